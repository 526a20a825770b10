"""Pictures for chapter 10: what filters leave of a distribution, and when a stream may show its text.

`minipaged/pictures` draws the engine's memory, and plays a run of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

BLUE, ORANGE, GREEN, INK, GREY = "#56B4E9", "#E69F00", "#009E73", "#222222", "#767676"
WIDTH = 9.5  # inches, 100 pixels each


def draw_filters(tokens: Sequence[str], filters: Mapping[str, Sequence[float]], title: str) -> Figure:
    """The probabilities of the same few tokens, side by side under each filter; a cross for a dropped token.

    >>> draw_filters(["a", "b"], {"the model": [0.6, 0.3], "top_k=1": [1.0, 0.0]}, "two of many tokens")
    """
    num_rows, num_panels = len(tokens), len(filters)
    figure = Figure(figsize=(WIDTH, 0.9 + 0.27 * num_rows), layout="constrained")
    panels = figure.subplots(1, num_panels, sharey=True, squeeze=False)[0]
    for axes, (name, probs) in zip(panels, filters.items(), strict=True):
        _draw_panel(axes, name, probs)
    panels[0].set_yticks(range(num_rows), [_printable(token) for token in tokens], fontsize=9)
    panels[0].set_ylim(num_rows - 0.4, -0.6)
    figure.suptitle(title, fontsize=10)
    words = [
        f"{name}: " + ", ".join(f"{token.strip()} {p:.2f}" for token, p in zip(tokens, probs, strict=True))
        for name, probs in filters.items()
    ]
    figure.set_label(f"{title}. Bars of probabilities. " + ". ".join(words) + ".")
    return figure


def _draw_panel(axes: Axes, name: str, probs: Sequence[float]) -> None:
    # Bars as long as their labels say: another processor's last digits would be another picture.
    lengths = [round(p, 2) for p in probs]
    axes.barh(range(len(lengths)), lengths, color=BLUE, edgecolor=INK, linewidth=0.6)
    for row, (p, length) in enumerate(zip(probs, lengths, strict=True)):
        text, colour = (f"{length:.2f}", INK) if p > 0 else ("×", ORANGE)
        axes.text(length + 0.02, row, text, va="center", fontsize=8, color=colour)
    axes.set_xlim(0, max(1.0, *lengths) * 1.2)
    axes.set_title(name, fontsize=9)
    axes.set_xticks([0, 0.5, 1])
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_stream(pieces: Sequence[bytes], visible: Sequence[str], title: str) -> Figure:
    """For each token its bytes, and what the stream has shown after it. Bytes that it shows are green, those
    that have to wait are orange.

    >>> draw_stream([b"caf", b"\\xc3", b"\\xa9"], ["caf", "caf", "café"], "café")
    """
    num_rows, row_height = len(pieces), 0.3
    figure = Figure(figsize=(WIDTH, 0.75 + row_height * num_rows))
    axes = figure.add_axes((0, 0, 1, 1))
    height = 0.75 + row_height * num_rows
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    axes.text(0.15, 0.2, title, fontsize=10, weight="bold", va="center", color=INK)
    for x, heading in ((0.15, "token"), (0.8, "its bytes"), (4.6, "shown after it")):
        axes.text(x, 0.5, heading, fontsize=8, va="center", color=GREY)
    before, num_bytes = "", 0
    for row, (piece, shown) in enumerate(zip(pieces, visible, strict=True)):
        y, is_new, num_bytes = 0.78 + row * row_height, shown != before, num_bytes + len(piece)
        axes.text(0.15, y, str(row), fontsize=9, va="center", color=INK)
        _draw_bytes(axes, y, piece, num_waiting=num_bytes - len(shown.encode()))
        note = _printable(shown) if is_new else _printable(shown) + "   (nothing new)"
        axes.text(4.6, y, note, fontsize=9, va="center", color=INK, parse_math=False)
        before = shown
    pairs = enumerate(zip(pieces, visible, strict=True))
    rows = [f"token {row}, {piece.hex(' ')}: {shown!r}" for row, (piece, shown) in pairs]
    figure.set_label(f"{title}. After each token, what is shown. " + "; ".join(rows) + ".")
    return figure


def _draw_bytes(axes: Axes, y: float, piece: bytes, num_waiting: int) -> None:
    """The bytes of a token as boxes: an ASCII byte as its character, another one in hexadecimal."""
    for place, byte in enumerate(piece[:11]):
        colour = GREEN if place < len(piece) - num_waiting else ORANGE
        axes.add_patch(
            Rectangle((0.8 + 0.33 * place, y - 0.12), 0.31, 0.24, facecolor=colour, alpha=0.35, edgecolor=INK)
        )
        text = "␣" if byte == 0x20 else chr(byte) if 0x20 < byte < 0x7F else f"{byte:02X}"
        x = 0.955 + 0.33 * place
        axes.text(x, y, text, fontsize=8, ha="center", va="center", color=INK, parse_math=False)
    if len(piece) > 11:
        axes.text(0.8 + 0.33 * 11, y, "…", fontsize=9, va="center", color=INK)


def _printable(text: str) -> str:
    """A text without what the figure's font may lack."""
    shown = "".join(c if c.isprintable() and ord(c) < 0x2500 else "□" for c in text.replace("\n", "⏎"))
    start, end = len(shown) - len(shown.lstrip()), len(shown.rstrip())  # blanks at the ends can't be seen
    return "␣" * start + shown[start:end] + "␣" * (len(shown) - max(start, end))
