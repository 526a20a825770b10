"""Pictures for chapter 13: what a step takes by the size of its batch, and the paper's figures from files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from matplotlib.figure import Figure

from minipaged.measure import linear_work
from minipaged.pictures.draw import GREY, INK, PALETTE, WIDTH
from minipaged.simulation.cost_model import CostModel
from minipaged.simulation.paper import Panel, PaperFigure


def load_paper_figure(file: Path) -> PaperFigure:
    """A figure that `minipaged bench paper --json FILE` has written, to be drawn again.

    >>> load_paper_figure(Path("docs/results/paper-2.json")).number
    '2'
    """
    report = json.loads(file.read_text(encoding="utf-8"))
    panels = []
    for panel in report["panels"]:
        if panel["kind"] in ("lines", "log"):  # JSON makes texts of the numbers on the x axis
            for curves in (panel["ours"], panel["paper"]):
                curves |= {name: {float(x): y for x, y in curve.items()} for name, curve in curves.items()}
        panels.append(Panel(**{field.name: panel[field.name] for field in fields(Panel)}))
    return PaperFigure(report["number"], report["title"], panels, report["notes"])


def draw_batches(cost: CostModel, context_len: int, num_slots: int, batches: Sequence[int]) -> Figure:
    """What a decoding step of so many sequences takes, part by part, and where the memory ends.

    >>> show(draw_batches(CostModel(A100_40GB, OPT_13B), 500, 15_700, (1, 2, 4, 8, 16, 32, 64)))
    """
    device, model = cost.device, cost.model
    bandwidth, flops_per_s = (
        device.share_of_peak * peak for peak in (device.memory_bytes_per_s, device.flops_per_s)
    )
    works = [linear_work(batch, model.num_parameters, model.itemsize) for batch in batches]
    lines = {
        "read the matrices": [1000 * work.num_bytes / bandwidth for work in works],
        "multiply with them": [1000 * work.flops / flops_per_s for work in works],
        "read K and V": [1000 * batch * context_len * model.kv_bytes / bandwidth for batch in batches],
    }
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    for (name, times), color, mark in zip(lines.items(), PALETTE, "os^", strict=False):
        axes.plot(batches, times, color=color, marker=mark, markersize=4, linewidth=2, label=name)
    most = num_slots // context_len
    axes.axvline(most, color=INK, linestyle="--", linewidth=1)
    axes.annotate(f" memory is full: {most}", (most, 0.3), color=GREY, fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set(xlabel=f"sequences in the step, {context_len} tokens each", ylabel="ms")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    told = "; ".join(
        f"{name} {times[0]:.3g} ms for {batches[0]}, {times[-1]:.3g} ms for {batches[-1]}"
        for name, times in lines.items()
    )
    figure.set_label(
        f"A decoding step of {model.name} on an {device.name} against the number of sequences, both axes "
        f"logarithmic: {told}. With {most} sequences the memory is full."
    )
    return figure
