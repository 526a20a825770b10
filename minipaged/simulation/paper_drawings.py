"""Pictures of the paper's figures made again: ours as bars or lines, the paper's values as black diamonds.

In the style of `minipaged.pictures.draw`: the same colours, alt text in the figure's label. Chapter 13.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minipaged.pictures.draw import INK, PALETTE, WIDTH
from minipaged.simulation.paper import Panel, PaperFigure

_MARK: dict[str, Any] = {
    "marker": "D",
    "color": INK,
    "markeredgecolor": "white",
    "linestyle": "",
    "markersize": 7,
    "zorder": 5,
}


def draw_paper_figure(figure: PaperFigure) -> Figure:
    """All panels side by side.

    >>> show(draw_paper_figure(figure_13()))
    """
    drawing = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = drawing.subplots(1, len(figure.panels), squeeze=False)[0]
    for ax, panel in zip(axes, figure.panels, strict=True):
        ax.set_title(panel.title, fontsize=10, weight="bold", loc="left", color=INK)
        ax.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        ax.spines[["top", "right"]].set_visible(False)
        if panel.kind in ("bars", "stack"):
            _draw_bars(ax, panel)
        else:
            _draw_lines(ax, panel)
        ax.set_ylim(bottom=0)
    shown: dict[str, Any] = {}  # label → what it looks like; the same in all panels
    for ax in axes:
        shown |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    drawing.legend(
        list(shown.values()), list(shown), loc="outside lower center", ncols=6, frameon=False, fontsize=9
    )
    drawing.set_label(describe(figure))
    return drawing


def describe(figure: PaperFigure) -> str:
    """The figure in words: every value, ours and the paper's."""
    parts = [f"Figure {figure.number} of the paper, simulated: {figure.title}"]
    for panel in figure.panels:
        for whose, curves in (("ours", panel.ours), ("paper", panel.paper)):
            for name, points in curves.items():
                values = ", ".join(f"{x} {y:.3g}" for x, y in points.items())
                parts.append(f"{panel.title}, {name} ({whose}): {values}")
    return ". ".join([*parts, *(note.rstrip(".") for note in figure.notes)]) + "."


def _draw_bars(ax: Axes, panel: Panel) -> None:
    xs = list(dict.fromkeys(x for points in panel.ours.values() for x in points))
    is_stack = panel.kind == "stack"
    width = 0.7 if is_stack else 0.8 / len(panel.ours)
    bottom = [0.0] * len(xs)
    for index, (name, points) in enumerate(panel.ours.items()):
        offset = 0.0 if is_stack else (index - (len(panel.ours) - 1) / 2) * width
        places = [place + offset for place in range(len(xs))]
        heights = [points.get(x, 0.0) for x in xs]
        ax.bar(places, heights, width, bottom=bottom if is_stack else None, color=PALETTE[index], label=name)
        marks = panel.paper.get(name, {})
        shown = [(place, marks[x]) for place, x in zip(places, xs, strict=True) if x in marks]
        if shown:
            ax.plot(*zip(*shown, strict=True), label="the paper", **_MARK)
        if is_stack:
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    ax.set_xticks(range(len(xs)), [str(x).replace(" (", "\n(") for x in xs], fontsize=8)


def _draw_lines(ax: Axes, panel: Panel) -> None:
    for index, (name, points) in enumerate(panel.ours.items()):
        style: dict[str, Any] = {"color": PALETTE[index], "marker": "os^D"[index % 4], "markersize": 4}
        ax.plot(list(points), list(points.values()), linewidth=2, label=name, **style)
    if panel.kind == "log":
        ax.set_xscale("log", base=2)
        ticks = [float(x) for x in next(iter(panel.ours.values()))]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    else:
        lows = [min(points.values()) for points in panel.ours.values()]
        ax.set_ylim(top=max(1.0, 5 * max(lows)))  # the paper's axis: beyond it, a queue only grows
    if panel.band is not None:
        ax.axvspan(*panel.band, color=INK, alpha=0.08, linewidth=0, label="the range that the paper names")
