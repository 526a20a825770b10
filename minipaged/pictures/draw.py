"""Pictures of the engine, drawn with matplotlib from its live state: the pool and the block tables.

Owners, sharing and waste are hard to see in lists of block ids and obvious in a picture. A sequence has one
letter and colour in all of them (Okabe and Ito's palette, made for colour-blind readers). A figure's label
describes it in words; `show` makes that the alt text of the image. Used by every chapter.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

if TYPE_CHECKING:
    from minipaged.block_table import BlockTable
    from minipaged.engine import Engine

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
INK, GREY = "#222222", "#767676"
WIDTH = 9.5  # of a figure, in inches like all lengths here; `show` gives an inch 100 pixels
MAX_BLOCKS, MAX_ROWS, MAX_COLUMNS, MAX_BANDS = 512, 12, 9, 4
MAX_TEXT_BLOCK_SIZE = 8  # a block of up to so many tokens shows them


@dataclass(frozen=True)
class Owner:
    """A sequence that holds blocks. label: "B", or "B2" for the second branch of request B."""

    label: str
    colour: str
    token_ids: list[int]
    table: BlockTable

    def num_filled(self, index: int) -> int:
        """Slots written in logical block `index`. Block size 4, 6 tokens: 4 in block 0, 2 in block 1."""
        return min(self.table.block_size, self.table.num_tokens - index * self.table.block_size)


def find_owners(engine: Engine) -> list[Owner]:
    """The running sequences in the scheduler's order; letters and colours stay the same from step to step."""
    owners = []
    for request in engine.scheduler.running:
        for seq in request.live:
            if seq.table is not None:
                branch = str(seq.index + 1) if len(request.sequences) > 1 else ""
                colour = PALETTE[(request.arrival + 3 * seq.index) % len(PALETTE)]
                owners.append(Owner(_letters(request.arrival) + branch, colour, seq.token_ids, seq.table))
    return owners


def draw_pool(engine: Engine) -> Figure:
    """Every block of the pool: its id, its owners' colours and letters, how many of its slots are filled.

    A block with several owners has a band for each (4 at most), and their number at its top right. A free
    block is empty, hatched if the prefix cache can still find it. At most 512 blocks are drawn; the title
    counts the rest.

    >>> show(draw_pool(LLM("tiny", num_blocks=32).engine))
    """
    owners, num_blocks = find_owners(engine), engine.memory.allocator.num_blocks
    users: list[list[tuple[Owner, int]]] = [[] for _ in range(num_blocks)]
    for owner in owners:
        for index, block_id in enumerate(owner.table.block_ids):
            users[block_id].append((owner, owner.num_filled(index)))
    shown, legend = min(num_blocks, MAX_BLOCKS), _legend(owners)
    columns, pitch, left = (16, 0.58, 0.15) if shown <= 128 else (32, 0.28, 0.5)
    hidden = f"; the last {num_blocks - shown} are not drawn" if shown < num_blocks else ""
    height = 0.5 + -(-shown // columns) * pitch + 0.22 * -(-len(legend) // 4)
    title = _pool_title(engine) + hidden
    figure, axes = canvas(height, title)
    for block_id in range(shown):
        corner = left + block_id % columns * pitch, 0.4 + block_id // columns * pitch
        is_cached = engine.memory.prefix_cache.key(block_id) is not None
        _draw_block(axes, corner, pitch - 0.05, block_id, users[block_id], is_cached)
    axes.legend(handles=legend, loc="lower left", bbox_to_anchor=(0, 0), ncols=4, frameon=False, fontsize=8)
    return _describe(figure, title, owners)


def draw_tables(engine: Engine) -> Figure:
    """One row for each running sequence: its logical blocks in order, each with its physical block's id.

    Blocks of up to 8 tokens show the tokens in their slots, larger ones how full they are. At most 12 rows
    are drawn, and of a table longer than 9 blocks its beginning and end.

    >>> show(draw_tables(LLM("tiny", block_size=4).engine))
    """
    owners, block_size = find_owners(engine), engine.memory.block_size
    height = 0.3 + (0.15 * block_size if block_size <= MAX_TEXT_BLOCK_SIZE else 0.2)
    title = _tables_title(engine, owners)
    figure, axes = canvas(0.45 + len(owners[:MAX_ROWS]) * (height + 0.12), title)
    for row, owner in enumerate(owners[:MAX_ROWS]):
        _draw_table(axes, 0.4 + row * (height + 0.12), height, owner, engine)
    return _describe(figure, title, owners)


def show(figure: Figure) -> None:
    """Display a figure in a notebook, its label as alt text; the same figure gives the same bytes."""
    from IPython.display import display

    alt, png = str(figure.get_label()), base64.b64encode(to_png(figure)).decode()
    width = round(100 * figure.get_figwidth())
    image = f'<img width="{width}" alt="{escape(alt)}" src="data:image/png;base64,{png}">'
    display({"text/html": image, "text/plain": alt}, raw=True)


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 pixels to the inch, with no record of versions or of the time."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def canvas(height: float, title: str) -> tuple[Figure, Axes]:
    """A figure measured in inches from its top left corner; not pyplot's, which would keep it alive."""
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    write(axes, 0.15, 0.2, title, 10, weight="bold")
    return figure, axes


def write(
    axes: Axes, x: float, y: float, text: str, size: float, outlined: bool = False, **style: object
) -> None:
    """Text at a place in inches; style: further arguments of matplotlib's `text`."""
    effects = [withStroke(linewidth=2.5, foreground="white")] if outlined else None
    look = {"color": INK, "va": "center"} | style
    # Not parse_math: a token may hold two dollar signs.
    axes.text(x, y, text, fontsize=size, parse_math=False, path_effects=effects, **look)  # type: ignore[arg-type]


def _draw_block(
    axes: Axes,
    corner: tuple[float, float],
    size: float,
    block_id: int,
    users: list[tuple[Owner, int]],
    is_cached: bool,
) -> None:
    """One block of the pool. In a large pool blocks are small, and each row's first id stands beside it."""
    (x, y), is_large = corner, size > 0.4
    head, font = (0.16, 9.0) if is_large else (0.0, 6.5)
    axes.add_patch(Rectangle(corner, size, size, facecolor="white", edgecolor="#BBBBBB", linewidth=0.8))
    if is_cached and not users:
        body = Rectangle((x, y + head), size, size - head, fill=False, edgecolor="#AAAAAA", hatch="/////")
        axes.add_patch(body)
    band = (size - head) / max(1, len(users[:MAX_BANDS]))
    for index, (owner, filled) in enumerate(users[:MAX_BANDS]):
        _draw_slots(axes, (x, y + head + index * band), (size, band), owner, filled)
    labels = _shorten([owner.label for owner, _ in users], 2 if is_large else 1)
    for index, label in enumerate(labels):
        middle = y + head + (index + 0.5) * (size - head) / len(labels)
        write(axes, x + size / 2, middle, label, font, True, ha="center", weight="bold")
    if is_large:
        count = f"×{len(users)}" if len(users) > 1 else ""
        write(axes, x + 0.03, y + head / 2, str(block_id), 7.5, color=INK if users else GREY)
        write(axes, x + size - 0.03, y + head / 2, count, 7.5, ha="right", weight="bold")
    elif block_id % 32 == 0:
        write(axes, x - 0.08, y + size / 2, str(block_id), 7.5, ha="right", color=GREY)


def _shorten(labels: list[str], most: int) -> list[str]:
    """More labels than can be read become their request's letter: C1, C2, C3 are C; C1, D1 are C+."""
    if len(labels) <= most:
        return labels
    letters = list(dict.fromkeys(label.rstrip("0123456789") for label in labels))
    return [letters[0] + ("+" if len(letters) > 1 else "")]


def _draw_slots(
    axes: Axes, corner: tuple[float, float], shape: tuple[float, float], owner: Owner, filled: int
) -> None:
    """A block's slots from left to right: written ones in the owner's colour, the others in a tint of it."""
    (x, y), (width, height), block_size = corner, shape, owner.table.block_size
    axes.add_patch(Rectangle(corner, width, height, facecolor=owner.colour, alpha=0.2))
    axes.add_patch(Rectangle(corner, width * filled / block_size, height, facecolor=owner.colour))
    if block_size <= MAX_TEXT_BLOCK_SIZE and width > 0.4:
        borders = [x + width * slot / block_size for slot in range(1, block_size)]
        axes.vlines(borders, y, y + height, color="white", linewidth=0.6)
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=INK, linewidth=0.8))


def _draw_table(axes: Axes, y: float, height: float, owner: Owner, engine: Engine) -> None:
    axes.add_patch(Rectangle((0.15, y), 0.5, height, facecolor=owner.colour))
    write(axes, 0.4, y + height / 2, owner.label, 11, True, ha="center", weight="bold")
    indexes: list[int | None] = [*range(len(owner.table.block_ids))]
    num_hidden = len(indexes) - MAX_COLUMNS + 1
    if num_hidden > 1:
        indexes[MAX_COLUMNS // 2 : -(MAX_COLUMNS // 2)] = [None]
    for column, index in enumerate(indexes):
        x = 0.8 + column * 0.96
        if index is None:
            write(axes, x + 0.45, y + height / 2, f"… {num_hidden} more …", 8, ha="center")
        else:
            _draw_entry(axes, (x, y), height, owner, index, engine)


def _draw_entry(
    axes: Axes, corner: tuple[float, float], height: float, owner: Owner, index: int, engine: Engine
) -> None:
    """One entry of a block table, logical → physical, above the block's slots."""
    (x, y), width, head, block_size = corner, 0.9, 0.22, owner.table.block_size
    block_id, filled = owner.table.block_ids[index], owner.num_filled(index)
    num_users = engine.memory.allocator.ref_count(block_id)
    axes.add_patch(Rectangle(corner, width, height, facecolor="white", edgecolor=INK, linewidth=0.8))
    write(axes, x + 0.05, y + head / 2, f"{index} → {block_id}", 8)
    count = f"×{num_users}" if num_users > 1 else ""
    write(axes, x + width - 0.04, y + head / 2, count, 8, ha="right", weight="bold")
    if block_size > MAX_TEXT_BLOCK_SIZE:
        return _draw_slots(axes, (x, y + head), (width, height - head), owner, filled)
    line = (height - head) / block_size
    axes.add_patch(Rectangle((x, y + head), width, filled * line, facecolor=owner.colour, alpha=0.3))
    for offset, token_id in enumerate(owner.token_ids[index * block_size :][:filled]):
        text = _printable(engine.tokenizer.decode([token_id]))
        write(axes, x + 0.05, y + head + (offset + 0.5) * line, text, 7.5)


def _printable(text: str) -> str:
    """A token as a short word of glyphs that matplotlib's own font has; a blank shows as "␣"."""
    text = text.replace(" ", "␣").replace("\n", "↵")
    text = "".join(c if c.isprintable() and (ord(c) < 0x500 or c in "␣↵") else "□" for c in text)
    return text if len(text) <= 10 else f"{text[:9]}…"


def _letters(number: int) -> str:
    """0 is A, 25 is Z, 26 is AA."""
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def _pool_title(engine: Engine) -> str:
    allocator, cache = engine.memory.allocator, engine.memory.prefix_cache
    cached = sum(cache.key(block_id) is not None for block_id in allocator.free_blocks())
    text = f"Pool of {allocator.num_blocks} blocks of {engine.memory.block_size} tokens: "
    text += f"{allocator.num_blocks - allocator.num_free} used, {allocator.num_free} free"
    return text + (f", {cached} of them still cached" if cached else "")


def _tables_title(engine: Engine, owners: list[Owner]) -> str:
    waiting = ", ".join(_letters(request.arrival) for request in engine.scheduler.waiting[:MAX_ROWS])
    hidden = f" ({len(owners) - MAX_ROWS} of them not drawn)" if len(owners) > MAX_ROWS else ""
    text = f"Block tables, logical → physical block: {len(owners)} running{hidden}"
    return text + (f"; waiting: {waiting}" if waiting else "")


def _legend(owners: list[Owner]) -> list[Patch]:
    entries = [
        Patch(facecolor=owner.colour, label=f"{owner.label}: {owner.table.num_tokens} tokens stored")
        for owner in owners[:MAX_ROWS]
    ]
    if len(owners) > MAX_ROWS:
        entries.append(Patch(facecolor="none", label=f"and {len(owners) - MAX_ROWS} more"))
    free = Patch(facecolor="white", edgecolor=GREY, label="free")
    cached = Patch(facecolor="white", edgecolor=GREY, hatch="/////", label="free, still cached")
    return [*entries, free, cached]


def _describe(figure: Figure, title: str, owners: list[Owner]) -> Figure:
    """The same figure, labelled with what it shows, for readers who can't see it."""
    tables = [(owner.label, owner.table) for owner in owners[:MAX_ROWS]]
    rows = [f"{label}: {table.num_tokens} tokens in blocks {table.block_ids}" for label, table in tables]
    figure.set_label(". ".join([title, *rows]) + ".")
    return figure
