"""`minipaged bench scaling`: what a step costs as things grow.

A memory manager that is quick with ten requests may be slow with a thousand. That is a slope on log-log
paper, 0 for flat and 1 for linear. `bench serve` measures the model's own time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console

from minipaged.block_allocator import BlockAllocator
from minipaged.cli.bench_report import Report, begin_report, json_option, png_option, write_report
from minipaged.params import SamplingParams
from minipaged.scheduler import Scheduler
from minipaged.simulation.simulator import SimulatedEngine, paged_memory

# -- what a step costs ---------------------------------------------------------------------------------------

SWEEPS: dict[str, tuple[int, ...]] = {
    "batch": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "context": (64, 256, 1_024, 4_096, 16_384),
    "pool": (1_000, 10_000, 100_000, 1_000_000),
    "cached": (10, 100, 1_000, 10_000, 100_000),
}
PASSES = 4
EXPECTED = {"batch": "linear", "context": "flat", "pool": "flat", "cached": "flat"}


def scheduling_seconds(
    batch: int = 8, context: int = 64, pool: int = 20_000, cached: int = 0, tries: int = 5
) -> float:
    """CPU seconds that scheduler and memory take for one decoding step: the best mean of 16 steps, in which
    every sequence takes a block once. cached: unused blocks in the prefix cache."""
    engine = SimulatedEngine(
        Scheduler(paged_memory(pool, 16, enable_prefix_caching=cached > 0), 1 << 30, batch + 1)
    )
    if cached:
        engine.add_request("cached", list(range(16 * cached)), SamplingParams(max_tokens=1))
        engine.step()
    for number in range(batch):
        engine.add_request(str(number), [-1 - number] * context, SamplingParams(max_tokens=1 << 20))
    engine.step()
    best = float("inf")
    for _ in range(tries):
        started = time.process_time()
        for _ in range(16):
            engine.step()
        best = min(best, (time.process_time() - started) / 16)
    return best


def engine_seconds(batch: int, context: int, tries: int = 5) -> float:
    """The same for the whole engine, without the tiny model's own time: batching, sampling, outputs."""
    from minipaged import LLM

    llm = LLM(
        "tiny",
        device="cpu",
        num_blocks=batch * (context // 16 + 8),
        max_num_seqs=batch,
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
    )
    for number in range(batch):
        params = SamplingParams(temperature=0.0, max_tokens=1 << 20, ignore_eos=True)
        llm.engine.add_request(str(number), [number % 256] * context, params)
    while any(request.sequences[0].num_computed_tokens < context for request in llm.engine.requests.values()):
        llm.engine.step()
    best = float("inf")
    for _ in range(tries):
        before = llm.engine.stats()
        for _ in range(16):
            llm.engine.step()
        after = llm.engine.stats()
        own = (after.step_time - before.step_time) - (after.forward_time - before.forward_time)
        best = min(best, own / 16)
    return best


def curve(sizes: Sequence[int], seconds_of: Callable[[int], float]) -> dict[int, float]:
    """Seconds by size, the best of some passes over all of them: a machine may be slow for a while."""
    best = dict.fromkeys(sizes, float("inf"))
    for size in [*sizes] * PASSES:
        best[size] = min(best[size], seconds_of(size))
    return best


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of the straight line through the points on log-log paper, over the larger half of the sizes.

    >>> round(slope([1, 10, 100, 1000], [5, 5, 7, 70]), 3)      # of the last two: ten times for ten times
    1.0
    """
    half = min(len(sizes) // 2, len(sizes) - 2)
    return float(np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)[0])


# -- the allocator -------------------------------------------------------------------------------------------


class BareIdea:
    """Nothing but the idea: a queue of free ids and a count of users. No checks, no sharing, no revival."""

    def __init__(self, num_blocks: int) -> None:
        self.free_queue, self.counts = deque(range(num_blocks)), [0] * num_blocks

    def allocate(self) -> int:
        block_id = self.free_queue.popleft()
        self.counts[block_id] = 1
        return block_id

    def free(self, block_id: int) -> None:
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.free_queue.append(block_id)


def operations_per_second(make: Callable[[int], Any], num_blocks: int = 10_000, rounds: int = 5) -> float:
    """`allocate` and `free`, one at a time, on a pool that is emptied and filled; the best round."""
    pool, best = make(num_blocks), float("inf")
    for _ in range(rounds):
        started = time.process_time()
        block_ids = [pool.allocate() for _ in range(num_blocks)]
        for block_id in block_ids:
            pool.free(block_id)
        best = min(best, time.process_time() - started)
    return 2 * num_blocks / best


def bulk_operations_per_second(num_blocks: int = 10_000, rounds: int = 5) -> float:
    """The same with `allocate_many` and `free_many`, 16 blocks a call, as a table of 256 tokens does."""
    pool, best = BlockAllocator(num_blocks), float("inf")
    for _ in range(rounds):
        started = time.process_time()
        tables = [pool.allocate_many(16) for _ in range(num_blocks // 16)]
        for table in tables:
            pool.free_many(table)
        best = min(best, time.process_time() - started)
    return 2 * (num_blocks // 16) * 16 / best


@click.command()
@json_option
@png_option
@click.option("--quick", is_flag=True, help="Only the ends of each curve: seconds, but rough slopes.")
def scaling(json_file: str | None, png: str | None, quick: bool) -> None:
    """Measure what a step costs against batch, context, pool and cached blocks, and the allocator alone.

    A decoding step's CPU time, of scheduler and memory (no model). One or two minutes.
    """
    torch.set_num_threads(1)
    curves: dict[str, dict[int, float]] = {}
    for name, sizes in SWEEPS.items():
        more = {"pool": 200_000} if name == "cached" else {}

        def seconds_of(size: int, name: str = name, more: dict[str, int] = more) -> float:
            return scheduling_seconds(**{name: size, **more})

        curves[name] = curve(sizes[::3] if quick else sizes, seconds_of)
    batches, contexts = ((8, 64), (64, 512)) if quick else ((1, 4, 16, 64, 256), (64, 256, 1024, 1800))
    curves["batch, whole engine"] = curve(batches, lambda size: engine_seconds(size, 64))
    curves["context, whole engine"] = curve(contexts, lambda size: engine_seconds(8, size))
    ours, bare = operations_per_second(BlockAllocator), operations_per_second(BareIdea)
    report = begin_report("scaling", {"quick": quick}) | {
        "step_seconds": curves,
        "slopes": {name: slope(list(points), list(points.values())) for name, points in curves.items()},
        "allocator": {
            "operations_per_second": ours,
            "bare_idea": bare,
            "in_bulk": bulk_operations_per_second(),
        },
    }
    print_scaling(report, Console())
    write_report(report, json_file)
    if png:
        from pathlib import Path

        from minipaged.pictures.draw import to_png

        Path(png).write_bytes(to_png(draw_scaling(report)))


def print_scaling(report: Report, console: Console) -> None:
    """A line for each curve, and one for the allocator."""
    for name, times in report["step_seconds"].items():
        points = ", ".join(f"{size:,}: {1e6 * seconds:,.0f} µs" for size, seconds in times.items())
        expected = EXPECTED[name.split(",")[0]]
        console.print(
            f"{name}: slope {report['slopes'][name]:.2f} ({expected} expected); {points}",
            highlight=False,
            soft_wrap=True,
        )
    allocator = report["allocator"]
    ours, bare, bulk = (allocator[key] for key in ("operations_per_second", "bare_idea", "in_bulk"))
    console.print(
        f"allocator: {ours:,.0f} operations/s one by one, {bulk:,.0f} in bulk; the bare idea {bare:,.0f}, "
        f"{bare / ours:.1f} x and {bare / bulk:.1f} x as many",
        highlight=False,
        soft_wrap=True,
    )


def draw_scaling(report: Report) -> Any:
    """A panel for each of the four sizes, log-log."""
    from matplotlib.figure import Figure

    from minipaged.pictures.draw import PALETTE, WIDTH

    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    for ax, name in zip(figure.subplots(1, 4, sharey=True), SWEEPS, strict=True):
        lines = {key: curve for key, curve in report["step_seconds"].items() if key.split(",")[0] == name}
        for index, (key, points) in enumerate(lines.items()):
            label = "whole engine" if "," in key else "scheduler and memory"
            values = [1e6 * seconds for seconds in points.values()]
            style = {"color": PALETTE[index], "marker": "os"[index], "markersize": 4}
            ax.loglog([int(size) for size in points], values, label=label, **style)
        slopes = " and ".join(f"{report['slopes'][key]:.2f}" for key in lines)
        ax.set_title(f"slope {slopes}", fontsize=10, loc="left")
        ax.set_xlabel({"pool": "blocks in the pool", "cached": "cached blocks"}.get(name, name))
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("µs of CPU per step")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    slopes = ", ".join(f"{name} {value:.2f}" for name, value in report["slopes"].items())
    figure.set_label(f"A step's CPU time against four sizes, on log-log axes. Slopes: {slopes}.")
    return figure
