"""Pictures of single layers, for the chapters' notebooks. `draw.py` has those of a whole engine."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged.block_allocator import BlockAllocator

IN_USE, FREE, INK = "#56B4E9", "#FFFFFF", "#222222"
INCHES_PER_BLOCK = 0.85


def draw_free_queue(pool: BlockAllocator) -> Figure:
    """The blocks of a small pool with their users, and the free queue as a chain from head to tail."""
    free, num_blocks = pool.free_blocks(), pool.num_blocks
    width = max(6.0, INCHES_PER_BLOCK * (num_blocks + 1.5))
    figure = Figure(figsize=(width, 2.1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(2.1, 0))
    axes.set_axis_off()
    axes.text(0.1, 0.42, "pool", fontsize=10, va="center")
    axes.text(0.1, 1.62, "free queue", fontsize=10, va="center")
    for block_id in range(num_blocks):
        users = pool.ref_count(block_id)
        note = f"{users} user{'s' * (users > 1)}" if users else "free"
        _draw_box(axes, 1.1 + INCHES_PER_BLOCK * block_id, 0.15, block_id, note, IN_USE if users else FREE)
    for place, block_id in enumerate(free):
        x = 1.1 + INCHES_PER_BLOCK * place
        end = {0: "head", len(free) - 1: "tail"}.get(place, "") if len(free) > 1 else "head, tail"
        _draw_box(axes, x, 1.35, block_id, end, FREE)
        if place:
            arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (x, 1.6), (x - INCHES_PER_BLOCK + 0.55, 1.6), arrowprops=arrow)
    counts = ", ".join(f"block {block_id}: {pool.ref_count(block_id)}" for block_id in range(num_blocks))
    figure.set_label(f"A pool of {num_blocks} blocks. Users: {counts}. Free queue, head first: {free}.")
    return figure


def _draw_box(axes: Axes, x: float, y: float, block_id: int, note: str, colour: str) -> None:
    """One block, with its id in it and a note below."""
    axes.add_patch(Rectangle((x, y), 0.55, 0.5, facecolor=colour, edgecolor=INK, linewidth=1))
    axes.text(x + 0.275, y + 0.25, str(block_id), fontsize=12, ha="center", va="center")
    axes.text(x + 0.275, y + 0.63, note, fontsize=8, ha="center", va="center", color="#555555")
