"""Pictures of an arena: the row of slots at a moment, over time, and shares as bars.

Drawn from a live `Arena` or `ArenaReplay`, in the style of `minipaged.pictures.draw`. Chapter 02.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minipaged.contiguous import Arena, Hole
from minipaged.course.chapters.ch02_contiguous.replay import ArenaReplay
from minipaged.pictures.draw import GREY, INK, WIDTH

# The kinds of slots: name, colour (Okabe and Ito), hatch, so that they differ in grey too.
KINDS = {
    "used": ("hold a token", "#0072B2", ""),
    "reserved": ("will hold one", "#56B4E9", "//"),
    "internal": ("never used: internal", "#D55E00", ""),
    "external": ("free, but no hole fits: external", "#E69F00", "xx"),
    "free": ("free", "#EEEEEE", ""),
}
MAP_ROWS = 400  # of the memory map: each stands for several slots
Layout = Sequence[tuple[int, int, int, int]]  # (first slot, slots, tokens held, tokens in the end)


def layout_of(arena: Arena) -> Layout:
    """An arena's reservations alone, as if each were full."""
    return [(start, size, size, size) for start, size in sorted(arena.reservations().items())]


def draw_arena(num_slots: int, rows: Sequence[tuple[str, Layout, Sequence[Hole]]], needed: int = 0) -> Figure:
    """The slots from left to right, a row for each (label, layout, holes).

    needed: a request that waits is drawn below, as long as what it asks for.

    >>> show(draw_arena(10, [("after reserve(4)", layout_of(arena), arena.holes())]))
    """
    figure = Figure(figsize=(WIDTH, 0.62 * len(rows) + (0.6 if needed else 0) + 0.65))
    axes = figure.add_axes((0.19, 0.42 / figure.get_figheight(), 0.79, 1 - 0.45 / figure.get_figheight()))
    axes.set(xlim=(0, num_slots), ylim=(len(rows) + (0.9 if needed else 0), 0), yticks=[])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    for index, (label, layout, holes) in enumerate(rows):
        _draw_row(axes, index + 0.12, num_slots, layout, holes)
        axes.text(-0.01 * num_slots, index + 0.5, label, ha="right", va="center", fontsize=9, color=INK)
    if needed:
        waiting = Rectangle((0, len(rows) + 0.2), needed, 0.55, fill=False, edgecolor=INK, linestyle="--")
        axes.add_patch(waiting)
        text = f"{needed:,} slots"
        axes.text(needed / 2, len(rows) + 0.48, text, ha="center", va="center", fontsize=9, color=INK)
        axes.text(
            -0.01 * num_slots, len(rows) + 0.48, "waits", ha="right", va="center", fontsize=9, color=INK
        )
    figure.set_label(_describe_rows(num_slots, rows, needed))
    return figure


def draw_memory_map(replay: ArenaReplay, title: str) -> Figure:
    """The arena over time: a column for each step whose layout was kept, slot 0 at the bottom."""
    kept = [moment for moment in replay.moments if moment.layout]
    num_slots, kinds = replay.arena.num_slots, list(KINDS)
    grid = np.full((MAP_ROWS, len(kept)), kinds.index("free"), dtype=np.uint8)
    for column, moment in enumerate(kept):
        for start, size, num_tokens, final_len in moment.layout:
            ends = [start, start + num_tokens, start + min(final_len, size), start + size]
            rows = [round(end * MAP_ROWS / num_slots) for end in ends]
            for kind, first, last in zip(("used", "reserved", "internal"), rows, rows[1:], strict=False):
                grid[first:last, column] = kinds.index(kind)
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.add_axes((0.08, 0.13, 0.9, 0.68))
    colours = ListedColormap([colour for _, colour, _ in KINDS.values()])
    extent = (kept[0].step, kept[-1].step, 0, num_slots)
    axes.imshow(
        grid,
        cmap=colours,
        vmin=-0.5,
        vmax=len(KINDS) - 0.5,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=extent,
    )
    axes.set_xlabel("step", fontsize=9)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("slot", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_title(title, fontsize=10, fontweight="bold", loc="left", pad=24)
    _legend(
        axes, [kind for kind in ("used", "reserved", "internal", "free") if (grid == kinds.index(kind)).any()]
    )
    shares = ", ".join(f"{name} {share:.0%}" for name, share in replay.shares().items())
    figure.set_label(
        f"Memory map of an arena of {num_slots:,} slots over {len(replay.moments):,} steps: every "
        f"reservation is a band from left to right. {title}. Mean shares while somebody waits: {shares}."
    )
    return figure


def draw_shares(bars: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """A stacked bar for each name: its shares of the arena by kind of slot.

    A bar may also have the key "rest", for what nothing more is known about.
    """
    figure = Figure(figsize=(WIDTH, 0.36 * len(bars) + 1.15))
    height = figure.get_figheight()
    axes = figure.add_axes((0.3, 0.45 / height, 0.67, (height - 1.1) / height))
    axes.set(xlim=(0, 1), ylim=(len(bars) - 0.45, -0.55))
    axes.spines[["right", "top"]].set_visible(False)
    axes.set_yticks(range(len(bars)), list(bars), fontsize=9)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"], fontsize=8)
    axes.set_title(title, fontsize=10, fontweight="bold", loc="left", pad=24, x=-0.42)
    present = [kind for kind in [*KINDS, "rest"] if any(bar.get(kind, 0) > 0.0005 for bar in bars.values())]
    for y, shares in enumerate(bars.values()):
        left = 0.0
        for kind in present:
            share = shares.get(kind, 0.0)
            axes.add_patch(_patch((left, y - 0.36), share, 0.72, kind))
            if share >= 0.04:
                style = {
                    "facecolor": "white",
                    "edgecolor": "none",
                    "boxstyle": "round,pad=0.15",
                    "alpha": 0.85,
                }
                axes.text(
                    left + share / 2,
                    y,
                    f"{100 * share:.1f} %",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=INK,
                    bbox=style,
                )
            left += share
    _legend(axes, present)
    words = [
        f"{name}: " + ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items() if share > 0.0005)
        for name, shares in bars.items()
    ]
    figure.set_label(f"{title}. Bars: " + "; ".join(words) + ".")
    return figure


def _draw_row(axes: Axes, y: float, num_slots: int, layout: Layout, holes: Sequence[Hole]) -> None:
    height = 0.76
    for start, size in holes:
        axes.add_patch(Rectangle((start, y), size, height, facecolor="white", edgecolor=GREY, linewidth=0.8))
        if size >= 0.04 * num_slots:
            axes.text(start + size / 2, y + height / 2, f"{size:,}", ha="center", va="center", fontsize=8)
    for start, size, num_tokens, final_len in layout:
        ends = [start, start + num_tokens, start + min(final_len, size), start + size]
        for kind, first, last in zip(("used", "reserved", "internal"), ends, ends[1:], strict=False):
            axes.add_patch(_patch((first, y), last - first, height, kind))
        axes.add_patch(Rectangle((start, y), size, height, fill=False, edgecolor=INK, linewidth=1.0))


def _patch(corner: tuple[float, float], width: float, height: float, kind: str) -> Rectangle:
    _, colour, hatch = KINDS.get(kind, ("", "#BBBBBB", ".."))
    return Rectangle(corner, width, height, facecolor=colour, edgecolor="white", linewidth=0, hatch=hatch)


def _legend(axes: Axes, kinds: Sequence[str]) -> None:
    names = {kind: text for kind, (text, _, _) in KINDS.items()} | {"rest": "not broken down"}
    handles = [
        Patch(
            facecolor=KINDS.get(kind, ("", "#BBBBBB", ""))[1],
            edgecolor="white",
            hatch=KINDS.get(kind, ("", "", ".."))[2],
            label=names[kind],
        )
        for kind in kinds
    ]
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(kinds),
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.2,
    )


def _describe_rows(num_slots: int, rows: Sequence[tuple[str, Layout, Sequence[Hole]]], needed: int) -> str:
    parts = []
    for label, layout, holes in rows:
        sizes = ", ".join(f"{size:,}" for _, size in holes)
        used = sum(num_tokens for _, _, num_tokens, _ in layout)
        to_come = sum(min(final_len, size) - num_tokens for _, size, num_tokens, final_len in layout)
        never = sum(size for _, size, _, _ in layout) - used - to_come
        kinds = f"{used:,} slots hold a token, {to_come:,} will, {never:,} never"
        parts.append(
            f"{label}: reservations: {len(layout)} ({kinds})" + (f", holes of {sizes}" if holes else "")
        )
    waits = f" A request for {needed:,} slots waits." if needed else ""
    return f"{num_slots:,} slots in a row. " + "; ".join(parts) + "." + waits
