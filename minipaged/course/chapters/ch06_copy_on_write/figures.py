"""Pictures of shared blocks, for chapter 06: a family of branches with the blocks they hold, and savings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged.engine import Engine
from minipaged.pictures.draw import GREY, INK, PALETTE, WIDTH

SHARED, OWN, LEFT, ROW, HEAD = PALETTE[4], PALETTE[1], 0.55, 0.36, 0.62  # lengths in inches
WIDEST, LETTER_WIDTH = 1.75, 0.068  # a block, and a letter of its text


@dataclass(frozen=True)
class Family:
    """One request's branches at one moment. rows: (name, block ids, text of each block). copies: of the last
    step, (src, dst)."""

    title: str
    rows: list[tuple[str, list[int], list[str]]]
    copies: list[tuple[int, int]]

    @property
    def num_blocks(self) -> int:
        return len({block_id for _, block_ids, _ in self.rows for block_id in block_ids})


def family_of(engine: Engine, request_id: str, title: str = "") -> Family:
    """The branches of a running request as they are now, those that share most beside each other."""
    rows = []
    for seq in engine.requests[request_id].live:
        assert seq.table is not None
        size, stored = seq.table.block_size, seq.token_ids[: seq.table.num_tokens]
        texts = [engine.tokenizer.decode(stored[at : at + size]) for at in range(0, len(stored), size)]
        rows.append((str(seq.index + 1), list(seq.table.block_ids), texts))
    return Family(title, sorted(rows, key=lambda row: row[1]), list(engine.last_step.copies))


def draw_families(families: Sequence[Family]) -> Figure:
    """Moment by moment, a row for every branch and a box for every block; a shared block is one box over all
    the rows that have it.

    >>> show(draw_families([family_of(engine, "A", "After the prefill")]))
    """
    heights = [HEAD + ROW * len(family.rows) for family in families]
    columns = max(len(block_ids) for family in families for _, block_ids, _ in family.rows)
    pitch = min(WIDEST, (WIDTH - LEFT - 0.1) / columns)
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(figure.get_figheight(), 0))
    axes.set_axis_off()
    sentences = []
    for number, family in enumerate(families):
        top = sum(heights[:number])
        entries = sum(len(block_ids) for _, block_ids, _ in family.rows)
        copies = ", ".join(f"{src} → {dst}" for src, dst in family.copies)
        note = f"{family.title}: {entries} entries in the tables, {family.num_blocks} blocks"
        note += f"; copied in this step: {copies}" if copies else ""
        axes.text(0.1, top + 0.2, note, fontsize=10, weight="bold", color=INK, va="center", parse_math=False)
        _draw_family(axes, family, top + HEAD - 0.14, pitch)
        tables = ", ".join(f"branch {name} {block_ids}" for name, block_ids, _ in family.rows)
        sentences.append(f"{note}. Tables: {tables}.")
    figure.set_label(" ".join(sentences))
    return figure


def _draw_family(axes: Axes, family: Family, top: float, pitch: float) -> None:
    for row, (name, block_ids, texts) in enumerate(family.rows):
        axes.text(0.2, top + (row + 0.5) * ROW, name, fontsize=10, weight="bold", color=INK, va="center")
        for index, block_id in enumerate(block_ids):
            sharers = [at for at, (_, other, _) in enumerate(family.rows) if block_id in other]
            if sharers[0] == row:
                is_new = block_id in {dst for _, dst in family.copies}
                corner = LEFT + index * pitch, top + row * ROW
                _draw_block(axes, corner, pitch - 0.05, len(sharers), block_id, texts[index], is_new)


def _draw_block(
    axes: Axes, corner: tuple[float, float], width: float, users: int, block_id: int, text: str, is_new: bool
) -> None:
    (x, y), height = corner, users * ROW - 0.04
    colour, edge = (SHARED if users > 1 else OWN), 2.2 if is_new else 0.8
    axes.add_patch(Rectangle(corner, width, height, facecolor=colour, alpha=0.4))
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=INK, linewidth=edge))
    number = f"{block_id}{f' ×{users}' if users > 1 else ''}"
    axes.text(x + 0.04, y + 0.09, number, fontsize=7, va="center", color=INK, weight="bold")
    text = text.replace("\n", "↵").strip()
    text = "".join(c if c == "↵" or (c.isprintable() and ord(c) < 0x500) else "□" for c in text)
    most = int(width / LETTER_WIDTH)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    style = {"fontsize": 7.5, "va": "center", "ha": "center", "color": INK, "parse_math": False}
    axes.text(x + width / 2, y + height / 2 + 0.06, text, **style)  # type: ignore[arg-type]


def draw_savings(
    measured: Mapping[tuple[str, str], Mapping[int, float]],
    paper: Mapping[tuple[str, str], tuple[float, float]],
) -> Figure:
    """A panel of bars for each (data set, kind), by number of branches; a grey band is the paper's range."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    sentences = []
    panels = figure.subplots(1, len(measured), sharey=True)
    for axes, (key, bars) in zip(panels, measured.items(), strict=True):
        low, high = paper[key]
        axes.axhspan(low, high, color="#CCCCCC", label=f"the paper: {low} to {high} %")
        values = [100 * value for value in bars.values()]
        drawn = axes.bar(
            [str(n) for n in bars], values, color=PALETTE[0 if key[1] == "samples" else 2], width=0.6
        )
        axes.bar_label(drawn, [f"{value:.0f}" for value in values], fontsize=8, padding=2)
        axes.set_title(f"{key[0]} lengths, {key[1]}", fontsize=9, weight="bold", loc="left")
        axes.set(xlabel=f"number of {key[1]}", ylim=(0, 100))
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=GREY)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
        shown = ", ".join(f"{n}: {value:.0f} %" for n, value in zip(bars, values, strict=True))
        sentences.append(f"{key[0]}, {key[1]}: measured {shown}; the paper {low} to {high} %.")
    figure.axes[0].set_ylabel("blocks saved, %", fontsize=9)
    figure.set_label("Bars of the share of blocks saved by sharing. " + " ".join(sentences))
    return figure
