"""`minipaged bench paper --figure N`: a figure of the paper made again, beside the values that were printed.

The experiments are `minipaged/simulation/paper.py`, the drawings `minipaged/simulation/paper_drawings.py`.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from minipaged.cli.bench_report import begin_report, json_option, png_option, write_report
from minipaged.simulation.paper import FIGURES, Panel, PaperFigure
from minipaged.simulation.traces import TraceRow, load_azure, load_mooncake

trace_option = click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False),
    help="Requests from Azure's CSV or Mooncake's JSON lines; without it they are generated.",
)


def load_trace(path: str) -> list[TraceRow]:
    """A trace in either public format: JSON lines are Mooncake's, everything else is read as Azure's CSV."""
    return load_mooncake(path) if Path(path).suffix == ".jsonl" else load_azure(path)


@click.command(context_settings={"show_default": True})
@click.option("--figure", "number", type=click.Choice(list(FIGURES)), required=True, help="Of the paper.")
@click.option(
    "--requests",
    type=click.IntRange(10),
    show_default="as many as the figure needs",
    help="Of each run; more take longer and scatter less, and few do not fill the memory.",
)
@trace_option
@json_option
@png_option
def paper(
    number: str, requests: int | None, trace: str | None, json_file: str | None, png: str | None
) -> None:
    """Simulate an experiment of the PagedAttention paper (SOSP 2023), and show its values beside the paper's.

    The scheduler and the memory are the engine's own; time is a formula for an A100-40GB. A minute or
    two; figure 12 some five.

    \b
    minipaged bench paper --figure 2
    minipaged bench paper --figure 13 --png figure13.png
    minipaged bench paper --figure 12 --trace AzureLLMInferenceTrace_conv.csv
    """
    started = time.process_time()
    experiment = FIGURES[number]
    rows = load_trace(trace) if trace else None
    figure = experiment(trace=rows) if requests is None else experiment(requests, rows)
    explanation = inspect.getdoc(experiment) or ""
    print_figure(figure, explanation, Console())
    options = {"figure": number, "requests": requests, "trace": Path(trace).name if trace else None}
    report = begin_report("paper", options) | asdict(figure)
    write_report(report | {"cpu_seconds": time.process_time() - started}, json_file)
    if png:
        from minipaged.pictures.draw import to_png
        from minipaged.simulation.paper_drawings import draw_paper_figure

        Path(png).write_bytes(to_png(draw_paper_figure(figure)))


def print_figure(figure: PaperFigure, explanation: str, console: Console) -> None:
    """A table for each panel, then the notes, then what differs from the paper and why."""
    console.print(f"Figure {figure.number}, simulated: {figure.title}", style="bold", highlight=False)
    for panel in figure.panels:
        console.print(panel_table(panel))
    for text in [*figure.notes, "", explanation]:
        console.print(text, highlight=False, soft_wrap=True)


def panel_table(panel: Panel) -> Table:
    """x from top to bottom, a column for each series, and beside it the paper's, where it has values."""
    title = ", ".join(part for part in (panel.title, panel.ylabel) if part)
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column(panel.xlabel)
    columns = []
    for name, points in panel.ours.items():
        columns.append(points)
        table.add_column(name, justify="right")
        if name in panel.paper:
            columns.append(panel.paper[name])
            table.add_column("paper", justify="right", style="italic")
    for x in dict.fromkeys(x for points in columns for x in points):
        values = (points.get(x) for points in columns)
        table.add_row(f"{x}", *("" if value is None else f"{value:.3g}" for value in values))
    return table
