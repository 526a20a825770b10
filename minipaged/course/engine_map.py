"""The map of the engine that every chapter opens with, the box that it builds lit up."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged.course.outline import CHAPTERS
from minipaged.pictures.draw import GREY, INK, canvas, write

TINT, LIT, LIT_EDGE = "#E3EFF7", "#E69F00", "#B35C00"

# The map's boxes: (x, y, width, height), name, the chapters about it, whether it frames others.
BOXES = (
    ((1.2, 0.05, 7.1, 3.6), "Engine: every step adds a token", "engine measure beyond", True),
    ((0.05, 0.8, 0.85, 0.75), "Requests", "", False),
    ((1.4, 0.8, 1.7, 0.75), "Scheduler", "scheduler", False),
    ((3.7, 0.7, 2.6, 0.95), "Model", "", True),
    ((3.8, 1.0, 1.25, 0.55), "Paged attention", "paged_attention", False),
    ((5.15, 1.0, 1.05, 0.55), "GPU kernels", "triton_decode triton_fast", False),
    ((6.9, 0.8, 1.2, 0.75), "Sampler", "", False),
    ((8.6, 0.8, 0.85, 0.75), "Text", "", False),
    ((1.4, 2.05, 4.1, 1.45), "Block manager", "", True),
    ((1.5, 2.35, 1.25, 0.48), "Block allocator", "block_allocator", False),
    ((2.83, 2.35, 1.25, 0.48), "Block tables", "block_table", False),
    ((4.15, 2.35, 1.25, 0.48), "Copy-on-write", "copy_on_write", False),
    ((1.5, 2.92, 1.91, 0.48), "Prefix cache", "prefix_cache", False),
    ((3.49, 2.92, 1.91, 0.48), "Preemption", "preemption", False),
    ((6.2, 2.05, 1.9, 1.45), "Pool of blocks:\nmemory for K and V", "kv_memory contiguous", False),
)
# Its arrows: text, where the text is, and the points that the line runs through.
ARROWS = (
    ("", (0, 0), ((0.9, 1.17), (1.4, 1.17))),
    ("batch", (3.4, 1.05), ((3.1, 1.17), (3.7, 1.17))),
    ("logits", (6.6, 1.05), ((6.3, 1.17), (6.9, 1.17))),
    ("", (0, 0), ((8.1, 1.17), (8.6, 1.17))),
    ("next token", (5.0, 0.48), ((7.5, 0.8), (7.5, 0.59), (2.25, 0.59), (2.25, 0.8))),
    ("asks for blocks", (2.8, 1.8), ((2.25, 1.55), (2.25, 2.05))),
    ("assigns", (5.85, 2.65), ((5.5, 2.77), (6.2, 2.77))),
    ("writes, reads", (6.7, 1.85), ((6.25, 1.65), (6.25, 2.05))),
)


def draw_engine_map(lit: str | None = None) -> Figure:
    """The picture of the engine that every chapter opens with, the box that chapter `lit` is about lit up.

    >>> show(draw_engine_map("block_table"))

    Raises ValueError if `lit` is neither None nor a chapter's stem.
    """
    number_of = {chapter.stem: chapter.number for chapter in CHAPTERS}
    if lit is not None and lit not in number_of:
        raise ValueError(f"no chapter is called {lit!r}; expected one of {', '.join(number_of)}")
    figure, axes = canvas(3.7, "")
    for (x, y, width, height), name, chapters, is_frame in BOXES:
        is_lit, numbers = lit in chapters.split(), [str(number_of[stem]) for stem in chapters.split()]
        text = f"{name}{'  ' if is_frame else chr(10)}ch. {', '.join(numbers)}" if numbers else name
        face = "white" if is_frame else LIT if is_lit else TINT
        edge, line = (LIT_EDGE, 3.0) if is_lit else (GREY, 1.0)
        axes.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, linewidth=line))
        text_y, weight = y + (0.16 if is_frame else height / 2), "bold" if is_lit or is_frame else "normal"
        write(axes, x + width / 2, text_y, text, 9, ha="center", weight=weight)
    style = {"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
    for text, (text_x, text_y), points in ARROWS:
        axes.plot(*zip(*points, strict=True), color=INK, linewidth=1.2)
        axes.annotate("", points[-1], points[-2], arrowprops=style)
        write(axes, text_x, text_y, text, 8, ha="center")
    names = ", ".join(name.replace("\n", " ") for _, name, _, _ in BOXES)
    figure.set_label(f"Map of the engine: {names}." + (f" Lit up: {lit}." if lit else ""))
    return figure
