"""A recorded run to leaf through in a notebook: a slider over its steps, a picture for each.

A run is a film, and a figure shows one moment. With ipywidgets you go back and forth; where widgets can't run
(a page on the web, a printout) a few steps stand below each other instead. `recording.py` records the run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from minipaged.pictures.draw import GREY, INK, PALETTE, WIDTH, show, to_png
from minipaged.pictures.recording import Frame, Row

COLUMNS, PITCH, LEFT = 24, 0.36, 0.15
ROW_HEIGHT, MAX_EVENTS, MAX_TEXT = 0.24, 3, 42
STATIC = "MINIPAGED_STATIC"  # set: no widgets. The builder of the notebooks sets it
# What makes a still worth showing, the most telling first, as it is said in a frame's events.
TELLING = ("PREEMPTED", "copied", "admitted, [1-9]", "arrives", "is back|swapped in")


def play(frames: Sequence[Frame], stills: int = 5) -> None:
    """Show a run with a slider and a play button, or `stills` of its steps where widgets can't run.

    >>> play(Recorder(engine, arrivals).run())
    """
    if not frames:
        raise ValueError("there is nothing to play: the recording has no frames")
    if os.environ.get(STATIC):
        for frame in pick_stills(frames, stills):
            show(draw_frame(frame, colours_of(frames)))
    else:
        _show_player(frames)


def pick_stills(frames: Sequence[Frame], count: int) -> list[Frame]:
    """At most `count` steps, in order, that show what the run has: the first preemption, copy, hit in the
    prefix cache, arrival and return, and the end. What is left over goes to the steps with most events."""

    def shows(frame: Frame, words: str) -> bool:
        return any(re.search(words, event) for event in frame.events)

    chosen = [frames[-1]][:count]
    for words in TELLING:
        found = next((frame for frame in frames if shows(frame, words)), None)
        if found and len(chosen) < count and not any(shows(frame, words) for frame in chosen):
            chosen.append(found)
    others = sorted((frame for frame in frames if frame not in chosen), key=lambda frame: -len(frame.events))
    return sorted([*chosen, *others[: count - len(chosen)]], key=lambda frame: frame.step)


def colours_of(frames: Sequence[Frame]) -> dict[str, str]:
    """A colour for each request, the same in every step, in the order in which the requests came."""
    names = dict.fromkeys(row.request_id for frame in frames for row in frame.rows)
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def draw_frame(frame: Frame, colours: dict[str, str]) -> Figure:
    """One step: the pool with its owners, a line for each sequence, the queue, and what happened."""
    num_lines = -(-frame.num_blocks // COLUMNS)
    height = 0.5 + num_lines * PITCH + 0.35 + (len(frame.rows) + MAX_EVENTS + 1) * ROW_HEIGHT
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    used, queue = f"{len(frame.owners)} of {frame.num_blocks} blocks used", " ".join(frame.queue) or "empty"
    title = f"Step {frame.step}: {used}, queue: {queue}"
    _write(axes, LEFT, 0.2, title, 10, weight="bold")
    for block_id in range(frame.num_blocks):
        x, y = LEFT + block_id % COLUMNS * PITCH, 0.42 + block_id // COLUMNS * PITCH
        _draw_block(axes, x, y, frame, block_id, colours)
    y = 0.42 + num_lines * PITCH + 0.25
    for row in frame.rows:
        _draw_row(axes, y, row, colours)
        y += ROW_HEIGHT
    counts = {"output tokens": frame.output_tokens, "preemptions": frame.preemptions, "copies": frame.copies}
    totals = "so far: " + ", ".join(f"{what} {count}" for what, count in counts.items())
    _write(axes, LEFT, y + 0.08, totals, 8, color=GREY)
    hidden = len(frame.events) - MAX_EVENTS
    events = [*frame.events[: MAX_EVENTS - 1], f"and {hidden + 1} more"] if hidden > 0 else frame.events
    for number, event in enumerate(events, start=1):
        _write(axes, LEFT, y + 0.08 + number * ROW_HEIGHT, event, 9)
    figure.set_label(_describe(frame, title))
    return figure


def _draw_block(axes: Axes, x: float, y: float, frame: Frame, block_id: int, colours: dict[str, str]) -> None:
    """A block in its owners' colours side by side, hatched if it is free but can still be found."""
    users, size = frame.owners.get(block_id, []), PITCH - 0.04
    cached = frame.cached.get(block_id)
    axes.add_patch(Rectangle((x, y), size, size, facecolor="white", edgecolor="#BBBBBB", linewidth=0.8))
    if cached:
        edge = colours.get(cached, GREY)
        axes.add_patch(Rectangle((x, y), size, size, fill=False, edgecolor=edge, hatch="//////", linewidth=0))
    distinct = list(dict.fromkeys(users))
    for index, user in enumerate(distinct):
        width = size / len(distinct)
        axes.add_patch(Rectangle((x + index * width, y), width, size, facecolor=colours[user], edgecolor=INK))
    text = "".join(distinct) + (str(len(users)) if len(users) > 1 else "") or (cached or "").lower()
    _write(axes, x + size / 2, y + size / 2, text, 9 if len(text) < 3 else 7, ha="center", weight="bold")


def _draw_row(axes: Axes, y: float, row: Row, colours: dict[str, str]) -> None:
    axes.add_patch(Rectangle((LEFT, y - 0.09), 0.18, 0.18, facecolor=colours[row.request_id], edgecolor=INK))
    blocks = ("CPU " if row.is_swapped else "") + " ".join(map(str, row.block_ids))
    text = " ".join(row.text.split())
    columns = (
        (0.42, row.name),
        (0.95, row.state),
        (2.2, f"{row.num_tokens} tokens"),
        (3.2, blocks if len(blocks) <= MAX_TEXT else blocks[: MAX_TEXT - 2] + " …"),
        (6.2, text if len(text) <= MAX_TEXT else "… " + text[-MAX_TEXT + 2 :]),
    )
    for x, words in columns:
        _write(axes, x, y, words, 8)


def _write(axes: Axes, x: float, y: float, text: str, size: float, **style: str) -> None:
    printable = "".join(c if (c.isprintable() and ord(c) < 0x500) or c == "…" else "□" for c in text)
    look = {"color": INK, "va": "center"} | style
    outline = [withStroke(linewidth=2, foreground="white")]
    axes.text(x, y, printable, fontsize=size, parse_math=False, path_effects=outline, **look)  # type: ignore[arg-type]


def _describe(frame: Frame, title: str) -> str:
    rows = [f"{row.name}: {row.state}, {row.num_tokens} tokens, blocks {row.block_ids}" for row in frame.rows]
    return ". ".join([title, *rows, *frame.events]) + "."


def _show_player(frames: Sequence[Frame]) -> None:
    """The slider, the play button and the picture. Pictures are drawn when they are first looked at."""
    import ipywidgets as widgets
    from IPython.display import display

    colours, drawn = colours_of(frames), dict[int, bytes]()

    def picture(index: int) -> bytes:
        if index not in drawn:
            drawn[index] = to_png(draw_frame(frames[index], colours))
        return drawn[index]

    def look(change: dict[str, int]) -> None:
        image.value = picture(change["new"])

    last = len(frames) - 1
    image = widgets.Image(value=picture(0), format="png", width=round(100 * WIDTH))
    slider = widgets.IntSlider(0, 0, last, description="step", readout=False, layout={"width": "60%"})
    button = widgets.Play(value=0, min=0, max=last, interval=400)
    widgets.jslink((button, "value"), (slider, "value"))
    slider.observe(look, "value")
    display(widgets.VBox([widgets.HBox([button, slider]), image]))
