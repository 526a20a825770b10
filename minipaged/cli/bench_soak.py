"""`minipaged bench soak`: a hundred thousand requests of random life, and whether anything is lost.

An engine that loses a block an hour still works all morning. The tiny model is enough: it makes as much
trouble for the memory as the real one, sooner.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter

import click
import torch
from rich.console import Console

from minipaged.cli.bench_engines import memory as process_memory
from minipaged.cli.bench_report import Report, begin_report, json_option, write_report
from minipaged.engine import Engine
from minipaged.invariants import check_invariants
from minipaged.params import BeamSearchParams, SamplingParams


class Soak:
    """Requests of random life in a pool that is too small for them, and what has happened so far.

    A request is greedy, or draws up to 4 samples or beams; one in twelve is aborted at a random moment, some
    have a priority, some begin like others. Invariants are checked after every step.
    """

    def __init__(self, preemption_mode: str, seed: int, check_every: int = 1) -> None:
        from minipaged import LLM

        self.engine: Engine = LLM(
            "tiny",
            device="cpu",
            num_blocks=24,
            block_size=4,
            max_num_seqs=16,
            max_num_batched_tokens=64,
            num_cpu_blocks=32 if preemption_mode == "swap" else 0,
            preemption_mode=preemption_mode,
            seed=seed,
        ).engine
        self.rng, self.check_every, self.num_added = random.Random(seed), check_every, 0
        self.counts: Counter[str] = Counter()
        self._swaps = 0

    def run(self, num_requests: int) -> None:
        """Serve so many more, to the last token; RuntimeError as soon as an invariant breaks."""
        rng, target = self.rng, self.num_added + num_requests
        while self.num_added < target or self.engine.has_unfinished_requests():
            while self.num_added < target and len(self.engine.requests) < 24:
                self._add()
            if self.engine.requests and rng.random() < 1 / 40:
                self.engine.abort(rng.choice(list(self.engine.requests)))
                self.counts["abort"] += 1
            for output in self.engine.step():
                if output.finished:
                    self.counts.update(each.finish_reason or "" for each in output.outputs)
            step = self.engine.last_step
            self.counts["blocks swapped"] += len(step.swap_in) + len(step.swap_out)
            if self.engine.stats().steps % self.check_every == 0:
                check_invariants(self.engine)
        check_invariants(self.engine)

    def _add(self) -> None:
        rng = self.rng
        length = rng.randint(1, 24)
        shared = rng.random() < 0.3
        prompt = [7] * length if shared else [rng.randrange(256) for _ in range(length)]
        max_tokens = rng.randint(1, 12)
        params: SamplingParams | BeamSearchParams
        draw = rng.random()
        if draw < 0.15:
            params = BeamSearchParams(beam_width=rng.randint(2, 4), max_tokens=max_tokens)
            self.counts["beam search"] += 1
        elif draw < 0.35:
            params = SamplingParams(n=rng.randint(2, 4), max_tokens=max_tokens)
            self.counts["several samples"] += 1
        else:
            params = SamplingParams(temperature=rng.choice([0.0, 0.8]), max_tokens=max_tokens)
        self.engine.add_request(str(self.num_added), prompt, params, priority=rng.choice([0, 0, 0, 1, 2]))
        self.num_added += 1

    def leaked(self) -> int:
        """Blocks of both pools that are not free, though no request is left."""
        pools = [self.engine.memory.allocator, self.engine.memory.cpu_allocator]
        return sum(pool.num_blocks - pool.num_free for pool in pools if pool is not None)


@click.command(context_settings={"show_default": True})
@click.option("--requests", type=click.IntRange(20), default=100_000)
@click.option("--seed", default=0)
@click.option(
    "--check-every", type=click.IntRange(1), default=1, help="Steps between checks of the invariants."
)
@json_option
def soak(requests: int, seed: int, check_every: int, json_file: str | None) -> None:
    """Serve many requests of random life with the tiny model, and look for what is lost.

    Aborted, forked, beams, preempted by recompute and by swap (half of the requests each). After every step
    the invariants are checked, and after each tenth the process's memory. 100,000 take about half an hour.
    """
    torch.set_num_threads(1)  # the tiny model's products are too small to share
    started = time.process_time()
    soaks = {mode: Soak(mode, seed, check_every) for mode in ("recompute", "swap")}
    rss, objects = [], []
    for _ in range(10):
        for each in soaks.values():
            each.run(requests // 20)
        gc.collect()
        rss.append(process_memory()["rss_bytes"])
        objects.append(len(gc.get_objects()))
    report = begin_report("soak", {"requests": requests, "seed": seed, "check_every": check_every}) | {
        "modes": {
            mode: {
                "requests": each.num_added,
                "steps": each.engine.stats().steps,
                "preemptions": each.engine.stats().preemptions,
                "copies": each.engine.stats().copies,
                "leaked_blocks": each.leaked(),
                **each.counts,
            }
            for mode, each in soaks.items()
        },
        "rss_by_tenth": rss,
        "objects_by_tenth": objects,
        "cpu_seconds": time.process_time() - started,
    }
    print_soak(report, Console())
    write_report(report, json_file)


def print_soak(report: Report, console: Console) -> None:
    """Print the report as a few lines."""
    for mode, counts in report["modes"].items():
        numbers = ", ".join(f"{name} {value:,}" for name, value in counts.items())
        console.print(f"{mode}: {numbers}", highlight=False, soft_wrap=True)
    sizes = ", ".join("unknown" if size is None else f"{size / 1e6:,.0f}" for size in report["rss_by_tenth"])
    objects = ", ".join(f"{count:,}" for count in report["objects_by_tenth"])
    console.print(f"MB after each tenth: {sizes}", highlight=False, soft_wrap=True)
    console.print(f"Python objects after each tenth: {objects}", highlight=False, soft_wrap=True)
    console.print(
        f"invariants held after every {report['options']['check_every']}. step; "
        f"{report['cpu_seconds']:,.0f} s of CPU",
        highlight=False,
        soft_wrap=True,
    )
