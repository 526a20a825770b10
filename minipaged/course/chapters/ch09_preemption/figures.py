"""Pictures of memory pressure, for chapter 09: which requests compute or wait; prices; watermarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minipaged.course.chapters.ch09_preemption.replay import Moment, PressureReplay
from minipaged.pictures.draw import GREY, INK, PALETTE, WIDTH

DECODE, PREFILL, AWAY, SWAPPED = PALETTE[4], PALETTE[0], "#EEEEEE", PALETTE[6]


def draw_timeline(runs: Mapping[str, Sequence[Moment]], num_blocks: int) -> Figure:
    """A panel for each run: a row for each request, a column for each step, and below it the blocks in use.

    A number in a cell counts the tokens that were computed, if there were several; ▼ is a preemption.

    >>> show(draw_timeline({"recompute": moments}, num_blocks=16))
    """
    names = sorted({name for moments in runs.values() for each in moments for name in each.computed})
    row_height = 0.26 * (len(names) + 2.4)
    figure = Figure(figsize=(WIDTH, 0.75 + len(runs) * (row_height + 0.55)), layout="constrained")
    panels = figure.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (title, moments) in zip(panels, runs.items(), strict=True):
        _draw_run(axes, title, moments, names, num_blocks)
    panels[-1].set_xlabel("step")
    legend = [
        Patch(facecolor=PREFILL, label="several tokens: a prompt, or computed again"),
        Patch(facecolor=DECODE, label="one token"),
        Patch(facecolor=AWAY, label="waits, holds nothing"),
    ]
    if any(each.swapped for moments in runs.values() for each in moments):
        patch = Patch(facecolor=SWAPPED, hatch="//", edgecolor="white", label="its blocks are in CPU memory")
        legend.insert(2, patch)
    figure.legend(handles=legend, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    told = [f"{title}: {len(moments)} steps, {describe(moments)}" for title, moments in runs.items()]
    figure.set_label(f"Timelines of {', '.join(names)}, a column for each step. {'. '.join(told)}.")
    return figure


def describe(moments: Sequence[Moment]) -> str:
    """The preemptions of a run in words: "B in step 7, C in step 9"."""
    told = [f"{name} in step {step}" for step, each in enumerate(moments, start=1) for name in each.preempted]
    return f"preempted {', '.join(told)}" if told else "nobody preempted"


def _draw_run(axes: Axes, title: str, moments: Sequence[Moment], names: list[str], num_blocks: int) -> None:
    for row, name in enumerate(names):
        last = max(step for step, each in enumerate(moments) if name in each.computed)
        for step, each in enumerate(moments[: last + 1]):
            count, is_away = each.computed.get(name, 0), name in each.swapped
            colour = (SWAPPED if is_away else AWAY) if not count else DECODE if count == 1 else PREFILL
            hatch = "//" if is_away and not count else None
            cell = Rectangle((step + 0.5, row), 1, 0.8, facecolor=colour, hatch=hatch, edgecolor="white")
            axes.add_patch(cell)
            if count > 1:
                style = {"ha": "center", "va": "center", "fontsize": 7.5, "color": "white"}
                axes.text(step + 1, row + 0.4, str(count), **style)  # type: ignore[arg-type]
            if name in each.preempted:
                axes.text(step + 1, row + 0.4, "▼", ha="center", va="center", fontsize=9, color="#B30000")
    base, tall = len(names) + 1.7, 1.5
    for step, each in enumerate(moments):
        height = tall * each.num_used / num_blocks
        bar = Rectangle((step + 0.5, base - height), 1, height, facecolor="#999999", edgecolor="white")
        axes.add_patch(bar)
    axes.axhline(base - tall, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xlim=(0.5, len(moments) + 0.5), ylim=(base, -0.1))
    places = [*(row + 0.4 for row in range(len(names))), base - tall / 2]
    axes.set_yticks(places, [*names, "blocks used"], fontsize=9)
    axes.set_title(f"{title}: {describe(moments)}", fontsize=10, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_prices(prices: Mapping[str, Mapping[int, float]], title: str) -> Figure:
    """Seconds against the block size, a line for each way, both axes logarithmic."""
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    for (name, by_size), colour, marker in zip(prices.items(), PALETTE[5::-5], "os^", strict=False):
        values = [1000 * value for value in by_size.values()]
        axes.plot(list(by_size), values, marker=marker, color=colour, label=name)
    sizes = list(next(iter(prices.values())))
    axes.set(xscale="log", yscale="log", xlabel="block size, in tokens", ylabel="milliseconds")
    axes.set_title(title, fontsize=10, weight="bold", loc="left")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_yticks([10, 30, 100, 300, 1000], ["10", "30", "100", "300", "1,000"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    told = [
        f"{name}: " + ", ".join(f"{1000 * value:.0f} ms at {size}" for size, value in by_size.items())
        for name, by_size in prices.items()
    ]
    figure.set_label(f"{title}. Milliseconds against block size. {'. '.join(told)}.")
    return figure


def draw_watermarks(runs: Mapping[float, PressureReplay]) -> Figure:
    """By the share of the pool that is kept free at the door: output a second, and tokens computed again."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = [f"{100 * share:g} %" for share in runs]
    rates = [run.num_output / run.seconds for run in runs.values()]
    again = [100 * run.num_recomputed / run.num_output for run in runs.values()]
    panels = (
        (left, rates, "{:.0f}", "tokens of output per second", PALETTE[0]),
        (right, again, "{:.0f} %", "computed again, in % of the output", PALETTE[5]),
    )
    for axes, values, form, title, colour in panels:
        bars = axes.bar(labels, values, color=colour)
        axes.bar_label(bars, [form.format(value) for value in values], fontsize=8, padding=2)
        axes.set_title(title, fontsize=10, weight="bold", loc="left")
        axes.set(xlabel="of the pool kept free at the door", yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="x", labelsize=8, color=GREY)
        axes.margins(y=0.15)
    told = [
        f"{label}: {rate:.0f} tokens/s, {more:.0f} % again"
        for label, rate, more in zip(labels, rates, again, strict=True)
    ]
    figure.set_label(f"Two bar charts by the share of the pool kept free. {'; '.join(told)}.")
    return figure
