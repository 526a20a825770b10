"""Pictures of schedules, for chapter 08: which request had which seat when, when tokens came, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from minipaged.pictures.draw import INK, PALETTE, WIDTH

Steps = Sequence[Mapping[str, int]]  # for each step, the tokens that each request computed


def assign_seats(steps: Steps) -> list[tuple[str, int, int, int]]:
    """For each request (name, seat, first step, step after its last): a new request takes the lowest
    free seat.

    >>> assign_seats([{"a": 3, "b": 2}, {"b": 1, "c": 4}])
    [('a', 0, 0, 1), ('b', 1, 0, 2), ('c', 0, 1, 2)]
    """
    begin: dict[str, int] = {}
    end: dict[str, int] = {}
    for number, tokens in enumerate(steps):
        for name in tokens:
            begin.setdefault(name, number)
            end[name] = number + 1
    seated: list[tuple[str, int, int, int]] = []
    for name, first in begin.items():
        taken = {seat for _, seat, _, until in seated if until > first}
        seat = next(seat for seat in range(len(seated) + 1) if seat not in taken)
        seated.append((name, seat, first, end[name]))
    return seated


def draw_timelines(runs: Mapping[str, Steps], num_seats: int) -> Figure:
    """One panel for each run: a row for each seat, a bar for each request, grey where a seat stayed empty
    while requests were still to come or to end. The darker part of a bar is the prompt.

    >>> show(draw_timelines({"static": steps, "continuous": others}, num_seats=4))
    """
    figure = Figure(figsize=(WIDTH, 0.55 + len(runs) * (0.62 + 0.27 * num_seats)), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    names = sorted({name for steps in runs.values() for tokens in steps for name in tokens})
    notes = []
    for axes, (title, steps) in zip(panels, runs.items(), strict=True):
        busy = sum(map(len, steps))
        share = 100 * busy / (num_seats * len(steps))
        axes.set_title(f"{title}: {len(steps)} steps, {share:.0f} % of the seats used", **_TITLE)
        axes.add_patch(
            Rectangle((0, 0), len(steps), num_seats, facecolor="#DDDDDD", hatch="///", edgecolor="white")
        )
        for name, seat, first, end in assign_seats(steps):
            colour = PALETTE[names.index(name) % len(PALETTE)]
            prefill = next(n for n in range(first, end + 1) if n == end or steps[n].get(name) == 1)
            _draw_bar(axes, seat, first, end, colour, name)
            axes.add_patch(Rectangle((first, seat + 0.06), prefill - first, 0.88, facecolor=INK, alpha=0.45))
        axes.set(ylim=(num_seats, 0), yticks=[seat + 0.5 for seat in range(num_seats)])
        axes.set_yticklabels([f"seat {seat}" for seat in range(num_seats)], fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        rows = ", ".join(f"{name} {first} to {end}" for name, _, first, end in assign_seats(steps))
        notes.append(f"{title}: {len(steps)} steps, {share:.0f} % of the seats used; steps of each: {rows}")
    panels[-1].set_xlim(0, max(map(len, runs.values())))
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.set_label(f"Who sat where in which step. {'. '.join(notes)}.")
    return figure


def draw_token_times(runs: Mapping[str, Mapping[str, Sequence[float]]], end_ms: float) -> Figure:
    """One panel for each run: a row for each request, with a mark at each moment (in ms) when it got a
    token."""
    num_rows = len(next(iter(runs.values())))
    figure = Figure(figsize=(WIDTH, 0.5 + len(runs) * (0.45 + 0.2 * num_rows)), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    notes = []
    for axes, (title, times) in zip(panels, runs.items(), strict=True):
        axes.set_title(title, **_TITLE)
        for row, moments in enumerate(times.values()):
            shown = [moment for moment in moments if moment <= end_ms]
            axes.vlines(shown, row + 0.12, row + 0.88, color=PALETTE[row % len(PALETTE)], linewidth=1.6)
            axes.hlines(row + 0.5, 0, end_ms, color="#DDDDDD", linewidth=0.8, zorder=0)
        axes.set(ylim=(num_rows, 0), yticks=[row + 0.5 for row in range(num_rows)], xlim=(0, end_ms))
        axes.set_yticklabels(list(times), fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        longest = max(b - a for moments in times.values() for a, b in pairwise(moments))
        notes.append(f"{title}: the longest time between two tokens is {longest:.0f} ms")
    panels[-1].set_xlabel("ms")
    figure.set_label(f"A mark for each token of each request, over time. {'. '.join(notes)}.")
    return figure


def draw_curves(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    x: Sequence[float] | Sequence[str],
    xlabel: str,
    log: Sequence[str] = (),
) -> Figure:
    """One panel for each title, one line for each name in it, over the same x. log: titles of panels whose y
    axis is logarithmic."""
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    notes = []
    for axes, (title, lines) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for number, (name, values) in enumerate(lines.items()):
            marker = "os^D"[number % 4]
            axes.plot(x, values, color=PALETTE[number], marker=marker, markersize=5, linewidth=2, label=name)
            notes.append(f"{title}, {name}: {', '.join(f'{value:.3g}' for value in values)}")
        axes.set_title(title, **_TITLE)
        axes.set_xlabel(xlabel)
        axes.spines[["top", "right"]].set_visible(False)
        if title in log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(0, None)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=9)
    ticks = ", ".join(map(str, x))
    figure.set_label(f"Curves over {xlabel} ({ticks}). {'; '.join(notes)}.")
    return figure


_TITLE: dict[str, Any] = {"fontsize": 10, "weight": "bold", "loc": "left", "color": INK}
_HALO = [withStroke(linewidth=2.5, foreground="white")]


def _draw_bar(axes: Axes, seat: int, first: int, end: int, colour: str, name: str) -> None:
    width = end - first
    axes.add_patch(Rectangle((first, seat + 0.06), width, 0.88, facecolor=colour, edgecolor="white"))
    axes.text(
        end - 0.3,
        seat + 0.5,
        name,
        fontsize=9,
        ha="right",
        va="center",
        color=INK,
        weight="bold",
        path_effects=_HALO,
    )
