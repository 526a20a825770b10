"""Pictures of block tables, for chapter 04: logical blocks and where they lie, growth, block sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged.block_table import BlockTable
from minipaged.pictures.draw import GREY, INK, PALETTE, WIDTH

LEFT, PITCH, BLOCK_WIDTH, BLOCK_HEIGHT, ROW = 1.35, 1.0, 0.9, 0.42, 1.05  # in inches
MAX_TOKEN_BLOCK_SIZE = 8  # larger blocks show no positions


def draw_translation(tables: Mapping[str, BlockTable], title: str = "") -> Figure:
    """Logical blocks of one or two sequences, the physical blocks of their pool between them, and the lines
    from one to the other. A token is shown as its position; a shared block has a band for each owner.

    >>> show(draw_translation({"A": table, "B": other}))
    """
    names, pool = list(tables), next(iter(tables.values())).allocator
    top = 0.55 if title else 0.2
    pool_y = top + ROW
    figure = Figure(figsize=(WIDTH, pool_y + (ROW if len(names) > 1 else 0) + BLOCK_HEIGHT + 0.35))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(figure.get_figheight(), 0))
    axes.set_axis_off()
    axes.text(0.1, 0.18, title, fontsize=10, va="center", weight="bold", color=INK)
    axes.text(0.1, pool_y + BLOCK_HEIGHT / 2, "the pool,\nphysical", fontsize=9, va="center", color=INK)
    for block_id in range(pool.num_blocks):
        users = pool.ref_count(block_id)
        note = f"{block_id}{f' ×{users}' if users > 1 else ''}{'' if users else '  free'}"
        _draw_frame(axes, LEFT + block_id * PITCH, pool_y, note, below=len(names) == 1)
    for row, name in enumerate(names):
        y = (top, pool_y + ROW)[row]
        _draw_sequence(axes, y, pool_y, name, row, tables)
    rows = [f"{name}: {one.num_tokens} tokens in blocks {one.block_ids}" for name, one in tables.items()]
    figure.set_label(
        f"{title or 'Logical and physical blocks'}. {'. '.join(rows)}. Free: {pool.free_blocks()}."
    )
    return figure


def _draw_sequence(
    axes: Axes, y: float, pool_y: float, name: str, row: int, tables: Mapping[str, BlockTable]
) -> None:
    """One sequence's logical blocks, its tokens in the pool, and a line from block to block."""
    table, colour = tables[name], PALETTE[row]
    text = f"{name}, logical\n{table.num_tokens} tokens"
    axes.text(0.1, y + BLOCK_HEIGHT / 2, text, fontsize=9, va="center", color=INK)
    for index, block_id in enumerate(table.block_ids):
        x, pool_x = LEFT + index * PITCH, LEFT + block_id * PITCH
        filled = min(table.block_size, table.num_tokens - index * table.block_size)
        sharers = [key for key, other in tables.items() if block_id in other.block_ids]
        height = BLOCK_HEIGHT / len(sharers)
        band_y = pool_y + sharers.index(name) * height
        for left, top, tall in ((x, y, BLOCK_HEIGHT), (pool_x, band_y, height)):
            _draw_tokens(axes, (left, top), tall, table.block_size, index, filled, colour)
        _draw_frame(axes, x, y, f"block {index}", below=row == 1)
        start, end = (y + BLOCK_HEIGHT, pool_y) if row == 0 else (y, pool_y + BLOCK_HEIGHT)
        points = ((x + BLOCK_WIDTH / 2, pool_x + BLOCK_WIDTH / 2), (start, end))
        axes.plot(*points, color=colour, linewidth=2, marker="o", markersize=4, zorder=3)


def _draw_tokens(
    axes: Axes,
    corner: tuple[float, float],
    height: float,
    block_size: int,
    index: int,
    filled: int,
    colour: str,
) -> None:
    """The slots of one block: those that hold a token in colour, with the token's position."""
    width = BLOCK_WIDTH / block_size
    for offset in range(block_size):
        x, is_filled = corner[0] + offset * width, offset < filled
        alpha = 0.45 if is_filled else 0.08
        axes.add_patch(Rectangle((x, corner[1]), width, height, linewidth=0, facecolor=colour, alpha=alpha))
        axes.vlines(x, corner[1], corner[1] + height, color="white", linewidth=0.8)
        if is_filled and block_size <= MAX_TOKEN_BLOCK_SIZE:
            text = str(index * block_size + offset)
            axes.text(x + width / 2, corner[1] + height / 2, text, fontsize=8, ha="center", va="center")


def _draw_frame(axes: Axes, x: float, y: float, note: str, below: bool) -> None:
    axes.add_patch(Rectangle((x, y), BLOCK_WIDTH, BLOCK_HEIGHT, fill=False, edgecolor=INK, linewidth=1))
    note_y = y + BLOCK_HEIGHT + 0.11 if below else y - 0.1
    axes.text(x, note_y, note, fontsize=8, va="center", color=GREY)


def draw_growth(held: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Slots held (y) after every token (x), a staircase for each name; the diagonal is what is needed."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.add_subplot()
    longest = max(len(slots) for slots in held.values())
    tokens = range(1, longest + 1)
    axes.fill_between(tokens, 0, tokens, color="#DDDDDD", label="needed: one slot for each token")
    for (name, slots), colour in zip(held.items(), PALETTE, strict=False):
        axes.step(range(1, len(slots) + 1), slots, where="mid", color=colour, linewidth=2, label=name)
    axes.set(xlabel="tokens in the sequence", ylabel="slots held", xlim=(1, longest), ylim=(0, None))
    axes.set_title(title, fontsize=10, weight="bold", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.01, 0.86))  # off the grey
    ends = [f"{name}: {slots[-1]} slots for {len(slots)} tokens" for name, slots in held.items()]
    figure.set_label(f"{title}. Slots held against tokens. At the end, {'; '.join(ends)}.")
    return figure


def draw_block_sizes(waste: Mapping[int, float], entries: Mapping[int, float]) -> Figure:
    """By block size: the share of slots wasted in last blocks, and the entries of a mean table."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    panels = (
        (waste, "%", "slots wasted in last blocks", PALETTE[5]),
        (entries, "", "entries in the block table of a mean request", PALETTE[0]),
    )
    for axes, (values, unit, title, colour) in zip(figure.subplots(1, 2), panels, strict=True):
        bars = axes.bar([str(size) for size in values], list(values.values()), color=colour)
        labels = [f"{value:.2f} %" if unit else f"{value:.0f}" for value in values.values()]
        axes.bar_label(bars, labels=labels, fontsize=8, padding=2)
        axes.set_title(title, fontsize=10, weight="bold", loc="left")
        axes.set(xlabel="block size in tokens", yticks=[])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.margins(y=0.15)
    rows = [f"{size}: {waste[size]:.2f} % wasted, {entries[size]:.0f} entries" for size in waste]
    figure.set_label(f"Two bar charts by block size. {'; '.join(rows)}.")
    return figure
