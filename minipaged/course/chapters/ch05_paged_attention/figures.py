"""Pictures of attention, for chapter 05: weights over scattered blocks, and a batch as the kernel sees it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged.pictures.draw import GREY, PALETTE, WIDTH, canvas, write

CELL, LEFT, TOP = 0.42, 1.55, 1.55  # in inches, like all lengths here
ROW, COLUMN, MARGIN = 0.26, 0.26, 3.1


def draw_weights(
    weights: torch.Tensor,
    block_table: Sequence[int],
    block_size: int,
    num_blocks: int,
    tokens: Sequence[str],
    title: str,
) -> Figure:
    """Attention weights [Q, K] of one head, a column per token of the context in the colour of the physical
    block that it lies in, and below them the pool. The darker, the larger the weight; crossed is not seen.

    >>> show(draw_weights(weights, [5, 2], 4, 8, ["The", "cap", …], "A's prompt"))
    """
    Q, K = weights.shape
    # Rounded, so that the last digits of a CPU don't show in the picture.
    weights, tokens = weights.float().round(decimals=2), [_printable(token) for token in tokens]
    pool_y = TOP + Q * CELL + 0.25
    figure, axes = canvas(pool_y + 0.6, title)
    colour_of = {block_id: PALETTE[index % len(PALETTE)] for index, block_id in enumerate(block_table)}
    for k, token in enumerate(tokens[:K]):
        x, block_id = LEFT + k * CELL, block_table[k // block_size]
        write(axes, x + CELL / 2, TOP - 0.34, token, 8, rotation=90, va="bottom", ha="center")
        axes.add_patch(Rectangle((x, TOP - 0.28), CELL, 0.22, facecolor=colour_of[block_id]))
        if k % block_size == 0:
            write(axes, x + 0.04, TOP - 0.17, f"block {block_id}", 7.5, weight="bold", outlined=True)
        for i in range(Q):
            _draw_weight(axes, x, TOP + i * CELL, float(weights[i, k]), colour_of[block_id], K - Q + i < k)
    for i, token in enumerate(tokens[K - Q : K]):
        write(axes, LEFT - 0.08, TOP + (i + 0.5) * CELL, token, 8, ha="right")
    size = min(0.5, (WIDTH - LEFT - 0.2) / num_blocks)
    write(axes, LEFT - 0.08, pool_y + size / 2, "where they lie\nin the pool", 8, ha="right")
    for block_id in range(num_blocks):
        x, face = LEFT + block_id * size, colour_of.get(block_id, "#EEEEEE")
        axes.add_patch(Rectangle((x, pool_y), size, size, facecolor=face, edgecolor="white"))
        write(axes, x + size / 2, pool_y + size / 2, str(block_id), 8, ha="center", outlined=True)
    lengths = f"{Q} tokens look back at {K}, which lie in the blocks {list(block_table)} of {num_blocks}"
    sinks = ", ".join(repr(tokens[int(k)]) for k in weights.argmax(dim=-1))
    figure.set_label(f"{title}: {lengths}. The largest weight of each row, from the top, is on: {sinks}.")
    return figure


def draw_batch(query_start_loc: Sequence[int], context_lens: Sequence[int], names: Sequence[str]) -> Figure:
    """The rows of q, one below the other, each with the positions it sees; its own is darker.

    A triangle is a prefill, a line a decode, anything between a chunk.

    >>> show(draw_batch([0, 3, 4], [3, 6], ["A", "B"]))
    """
    T, columns = query_start_loc[-1], max(context_lens)
    column = min(COLUMN, (WIDTH - MARGIN - 1.8) / columns)
    figure, axes = canvas(1.05 + T * ROW, "Rows of q, and the positions that each of them sees")
    described = []
    for seq, name in enumerate(names):
        start, end, colour = query_start_loc[seq], query_start_loc[seq + 1], PALETTE[seq % len(PALETTE)]
        new, context = end - start, context_lens[seq]
        kind = "decode" if new == 1 and context > 1 else "prefill" if new == context else "chunk"
        y = 0.75 + start * ROW
        axes.plot((0.15, WIDTH - 0.1), (y, y), color=GREY, linewidth=0.6)
        write(axes, WIDTH - 0.1, y + ROW / 2, f"query_start_loc[{seq}] = {start}", 8, ha="right")
        write(axes, 0.15, y + ROW / 2, f"{name}: {kind}, {new} of {context}", 9, weight="bold")
        for row in range(start, end):
            own, top = context - (end - row), 0.75 + row * ROW
            write(axes, MARGIN - 0.12, top + ROW / 2, f"row {row}", 8, ha="right")
            for position in range(own + 1):
                corner = MARGIN + position * column, top + 0.02
                alpha = 1.0 if position == own else 0.35
                cell = Rectangle(corner, column - 0.02, ROW - 0.04, facecolor=colour, alpha=alpha)
                axes.add_patch(cell)
        described.append(f"{name} has rows {start} to {end - 1}, a {kind} of {new} of {context} tokens")
    bottom = 0.75 + T * ROW
    axes.plot((0.15, WIDTH - 0.1), (bottom, bottom), color=GREY, linewidth=0.6)
    write(axes, WIDTH - 0.1, bottom + ROW / 2, f"query_start_loc[{len(names)}] = {T}", 8, ha="right")
    for position in range(0, columns, 2):
        write(axes, MARGIN + (position + 0.5) * column, 0.6, str(position), 7.5, ha="center")
    write(axes, MARGIN - 0.12, 0.6, "position", 8, ha="right")
    figure.set_label(
        f"The batch row by row, query_start_loc {list(query_start_loc)}: {'; '.join(described)}."
    )
    return figure


def _draw_weight(axes: Axes, x: float, y: float, weight: float, colour: str, is_hidden: bool) -> None:
    """One weight of the matrix, as a shade of its block's colour; a token that is not seen is crossed."""
    if is_hidden:
        axes.plot((x + 0.08, x + CELL - 0.08), (y + 0.08, y + CELL - 0.08), color="#CCCCCC", linewidth=0.8)
        axes.plot((x + 0.08, x + CELL - 0.08), (y + CELL - 0.08, y + 0.08), color="#CCCCCC", linewidth=0.8)
    else:
        axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor=colour, alpha=min(1.0, 0.08 + weight**0.5)))
        if weight >= 0.1:
            text = f"{weight:.2f}".removeprefix("0")
            write(axes, x + CELL / 2, y + CELL / 2, text, 7.5, ha="center", outlined=True)
    axes.add_patch(Rectangle((x, y), CELL, CELL, fill=False, edgecolor="#BBBBBB", linewidth=0.5))


def _printable(token: str) -> str:
    """A token in glyphs that matplotlib's own font has; a blank shows as "␣"."""
    token = token.replace(" ", "␣").replace("\n", "↵")
    token = "".join(c if c.isprintable() and (ord(c) < 0x500 or c in "␣↵") else "□" for c in token)
    return token if len(token) <= 12 else f"{token[:11]}…"
