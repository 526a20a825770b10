"""`minipaged bench replay`, a trace served in virtual time; `bench calibrate`, this machine's constants.

The simulator is `minipaged/simulation/simulator.py`, the formula for time
`minipaged/simulation/cost_model.py`.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from minipaged.cli.bench_engines import memory
from minipaged.cli.bench_paper import load_trace, trace_option
from minipaged.cli.bench_report import Report, begin_report, json_option, write_report
from minipaged.measure import break_even_tokens, percentile
from minipaged.scheduler import Scheduler
from minipaged.simulation.cost_model import DEVICES, MODELS, CostModel, Device
from minipaged.simulation.simulator import Served, SimulatedEngine, paged_memory, poisson, serve
from minipaged.simulation.traces import TraceRow, synthetic


@click.command(context_settings={"show_default": True})
@trace_option
@click.option("--requests", type=click.IntRange(1), help="The first so many.", show_default="all, or 2000")
@click.option("--rate", type=float, help="Poisson arrivals, so many a second.", show_default="as recorded")
@click.option("--device", type=click.Choice([*DEVICES, "here"]), default="a100", help="here: this machine.")
@click.option("--model", type=click.Choice(list(MODELS)), default="llama-3-8b")
@click.option(
    "--memory-gb", type=float, default=40.0, help="Of the device; weights and 10 % are not for K/V."
)
@click.option("--block-size", type=click.IntRange(1), default=16)
@click.option("--max-num-seqs", type=click.IntRange(1), default=256)
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=2048)
@click.option("--prefix-caching/--no-prefix-caching", default=False)
@json_option
def replay(json_file: str | None, **options: Any) -> None:
    """Serve a trace in virtual time, with the real scheduler and memory and a formula for the rest.

    \b
    minipaged bench replay
    minipaged bench replay --trace AzureLLMInferenceTrace_conv.csv --device h100 --memory-gb 80
    minipaged bench replay --rate 12 --requests 1000
    """
    started = time.process_time()
    rows = _requests(options["trace"], options["requests"], options["rate"])
    model = MODELS[options["model"]]
    device = Device.measure() if options["device"] == "here" else DEVICES[options["device"]]
    pool_bytes = 0.9 * options["memory_gb"] * 1e9 - model.resident_bytes
    block_bytes = options["block_size"] * model.kv_bytes
    if not pool_bytes >= block_bytes:  # so that nan is refused, too
        raise click.ClickException(
            f"{model.name} has {model.resident_bytes / 1e9:.1f} GB of weights: nothing of "
            f"{options['memory_gb']:g} GB is left for K and V"
        )
    num_blocks = int(pool_bytes // block_bytes)
    manager = paged_memory(num_blocks, options["block_size"], enable_prefix_caching=options["prefix_caching"])
    scheduler = Scheduler(manager, options["max_num_batched_tokens"], options["max_num_seqs"])
    engine = SimulatedEngine(scheduler, CostModel(device, model, options["block_size"]).step_seconds)
    served = serve(engine, rows)
    report = begin_report("replay", options | {"trace": options["trace"] and Path(options["trace"]).name})
    report |= {"device": asdict(device), "model": asdict(model), "num_blocks": num_blocks}
    report |= summary(rows, served)
    report |= {
        "prefix_hits": manager.prefix_hits,
        "prefix_queries": manager.prefix_queries,
        "cpu_seconds": time.process_time() - started,
        **memory(),
    }
    print_replay(report, Console())
    write_report(report, json_file)


def _requests(trace: str | None, requests: int | None, rate: float | None) -> list[TraceRow]:
    rows = load_trace(trace) if trace else synthetic(requests or 2000, seed=0)
    rows = rows[:requests]
    if rate is None:
        return rows
    arrivals = poisson([row[1:3] for row in rows], rate)
    return [row._replace(arrival_s=new.arrival_s) for row, new in zip(rows, arrivals, strict=True)]


def summary(rows: list[TraceRow], served: Served) -> Report:
    """What a replay says about latency and throughput; times in seconds, of the simulated machine."""
    return {
        "requests": len(rows),
        "prompt_tokens": sum(row.prompt_len for row in rows),
        "output_tokens": sum(row.output_len for row in rows),
        "steps": len(served.step_tokens),
        "preemptions": served.num_preempted,
        "virtual_seconds": served.seconds,
        "output_tokens_per_second": served.throughput(),
        "normalised_latency": served.normalised_latency(),
        "first_token": _spread(served.first_token()),
        "between_tokens": _spread(served.gaps()),
    }


def _spread(values: list[float]) -> dict[str, float | None]:
    if not values:  # of answers of one token each there are no gaps
        return dict.fromkeys(("p50", "p99", "max"))
    return {"p50": percentile(values, 50), "p99": percentile(values, 99), "max": max(values)}


def print_replay(report: Report, console: Console) -> None:
    """Print the report as a few lines."""
    ttft, gaps = report["first_token"], report["between_tokens"]
    lines = [
        f"{report['requests']:,} requests, {report['prompt_tokens']:,} tokens in, "
        f"{report['output_tokens']:,} out",
        f"simulated: {report['model']['name']} on {report['device']['name']}, "
        f"{report['num_blocks']:,} blocks of {report['options']['block_size']}",
        f"  {report['virtual_seconds']:,.0f} s of virtual time, {report['steps']:,} steps, "
        f"{report['preemptions']:,} preemptions",
        f"  {report['output_tokens_per_second']:,.0f} output tokens/s, "
        f"normalised latency {report['normalised_latency']:.4f} s/token",
        f"  time to first token: median {ttft['p50']:.3f} s, 99 % at most {ttft['p99']:.3f} s",
    ]
    if gaps["p50"] is not None:
        lines.append(f"  between tokens: median {gaps['p50']:.4f} s, 99 % at most {gaps['p99']:.4f} s")
    if report["options"]["prefix_caching"]:
        share = report["prefix_hits"] / report["prefix_queries"]
        lines.append(f"  {share:.1%} of the prompts' tokens came from the prefix cache")
    peak = report["peak_rss_bytes"]
    cost = f"here: {report['cpu_seconds']:.1f} s of CPU" + (f", {peak / 1e6:,.0f} MB at most" if peak else "")
    console.print("\n".join([*lines, cost]), highlight=False, soft_wrap=True)


@click.command(context_settings={"show_default": True})
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option(
    "--threads", type=click.IntRange(1), default=torch.get_num_threads, show_default="as PyTorch chooses"
)
@json_option
def calibrate(dtype: str, threads: int, json_file: str | None) -> None:
    """Measure this machine's constants for the cost model: bandwidth, FLOPs, launches. Two seconds."""
    torch.set_num_threads(threads)
    device = Device.measure(getattr(torch, dtype))
    itemsize = getattr(torch, dtype).itemsize
    balance = break_even_tokens(itemsize, device.memory_bytes_per_s, device.flops_per_s)
    lines = [
        f"reads memory at {device.memory_bytes_per_s / 1e9:.1f} GB/s, copies at "
        f"{device.link_bytes_per_s / 1e9:.1f} GB/s",
        f"multiplies matrices at {device.flops_per_s / 1e9:.0f} GFLOP/s in {dtype}, {threads} threads",
        f"starts an operator in {device.kernel_s * 1e6:.1f} µs",
        f"so a step that computes fewer than {balance} tokens waits for the weights",
    ]
    Console().print("\n".join(lines), highlight=False, soft_wrap=True)
    report = begin_report("calibrate", {"dtype": dtype, "threads": threads})
    write_report(report | {"device": asdict(device)}, json_file)
