"""`minipaged bench memory` and `bench prefix`: what paging and the prefix cache are worth.

These are the engine's two promises. The first is counted, on the scheduler and the allocators, and needs no
clock; the second is timed with a real model. `bench serve` compares with other engines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import click
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from minipaged.block_table import blocks_for
from minipaged.cli.bench_paper import load_trace, trace_option
from minipaged.cli.bench_report import Report, begin_report, json_option, write_report
from minipaged.contiguous import next_power_of_two
from minipaged.simulation.paper_systems import NUM_SLOTS, SYSTEMS, Bench, Lengths, lengths_of

BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
NAMES = dict(zip(SYSTEMS, ("reserve the maximum", "power of two", "oracle", "paged"), strict=True))


def tail_waste(lengths: Iterable[tuple[int, int]], block_size: int) -> float:
    """The share of slots in the last blocks that stay empty, when every request has ended.

    >>> tail_waste([(5, 4)], block_size=4)         # 9 tokens in 3 blocks
    0.25
    """
    totals = [prompt + output for prompt, output in lengths]
    return 1 - sum(totals) / sum(blocks_for(total, block_size) * block_size for total in totals)


@click.command(context_settings={"show_default": True})
@trace_option
@click.option("--requests", type=click.IntRange(10), default=600, help="That compete for the memory.")
@click.option(
    "--slots",
    type=click.IntRange(1),
    help="Tokens that the memory holds.",
    show_default="the paper's 15,700; or 4 of the longest request",
)
@json_option
def memory(trace: str | None, requests: int, slots: int | None, json_file: str | None) -> None:
    """Count how many requests fit into the same memory, paged and in the traditional ways.

    All requests are there at once. The traditional ways are chapter 02's, with the buddy system.

    \b
    minipaged bench memory
    minipaged bench memory --trace AzureLLMInferenceTrace_conv.csv
    """
    if trace:
        lengths: Lengths = [row[1:3] for row in load_trace(trace)]
        longest = max(map(sum, lengths))
        bench = Bench(
            num_slots=slots or 4 * next_power_of_two(longest), max_model_len=next_power_of_two(longest)
        )
    else:
        lengths, bench = lengths_of("ShareGPT", requests), Bench(num_slots=slots or NUM_SLOTS)
    rows: dict[str, Report] = {}
    for system in SYSTEMS:
        outcome = bench.full_queue(system, lengths[:requests])
        held = 1 - outcome.shares["free"]
        rows[NAMES[system]] = {
            "requests_at_once": outcome.num_running,
            "used": outcome.shares["used"],
            "wasted": held - outcome.shares["used"],
            "wasted_of_held": 1 - outcome.shares["used"] / held if held else 0.0,
        }
    report = begin_report("memory", {"trace": trace and Path(trace).name, "requests": requests})
    report |= {"slots": bench.num_slots, "max_model_len": bench.max_model_len, "systems": rows}
    report["tail_waste"] = {size: tail_waste(lengths, size) for size in BLOCK_SIZES}
    print_memory(report, len(lengths), Console())
    write_report(report, json_file)


def print_memory(report: Report, num_lengths: int, console: Console) -> None:
    """The systems, then the waste by block size."""
    table = Table(
        "", "requests at once", "times", "slots with a token", "wasted", box=SIMPLE_HEAD, pad_edge=False
    )
    least = report["systems"]["reserve the maximum"]["requests_at_once"]
    for system, row in report["systems"].items():
        at_once = row["requests_at_once"]
        numbers = ("-", "-") if at_once is None else (f"{at_once:.2f}", f"{at_once / least:.2f}")
        table.add_row(system, *numbers, f"{row['used']:.1%}", f"{row['wasted']:.1%}")
    console.print(table)
    console.print(
        f"{report['slots']:,} slots, requests of up to {report['max_model_len']:,} tokens", highlight=False
    )
    sizes = ", ".join(f"{size}: {share:.2%}" for size, share in report["tail_waste"].items())
    console.print(
        f"empty slots in last blocks, when {num_lengths:,} requests have ended, by block size: {sizes}",
        highlight=False,
        soft_wrap=True,
    )


@click.command(context_settings={"show_default": True})
@click.option("--model", default="smollm2-135m", help="A name, a folder, or tiny.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option(
    "--threads", type=click.IntRange(1), default=torch.get_num_threads, show_default="as PyTorch chooses"
)
@click.option("--system-prompt", type=click.IntRange(1), default=1000, help="Its length in tokens.")
@click.option("--chats", type=click.IntRange(1), default=4)
@click.option("--turns", type=click.IntRange(1), default=4)
@click.option("--rounds", type=click.IntRange(1), default=5, help="Of the system prompt.")
@json_option
def prefix(json_file: str | None, **options: Any) -> None:
    """Time the first token behind a system prompt, cold and cached; and chats with the cache off and on.

    Cold and cached take turns, each round with a system prompt of its own. In a chat every turn sends all
    that was said before. Texts are Python's own help texts. Close what else runs on the machine.
    """
    from minipaged import LLM

    torch.set_num_threads(options["threads"])
    llms = {
        name: LLM(options["model"], dtype=options["dtype"], device="cpu", enable_prefix_caching=name == "on")
        for name in ("off", "on")
    }
    text = llms["on"].tokenizer.encode("\n".join(topics.values()))
    rounds = range(options["rounds"] + 1)
    first = [_first_tokens(llms["on"], text, options["system_prompt"], number) for number in rounds][1:]
    chats = _chats(llms, text, options["chats"], options["turns"])
    report = begin_report("prefix", options) | {
        "first_token": {"cold": [cold for cold, _ in first], "cached": [cached for _, cached in first]},
        "first_token_ratio": median(cached / cold for cold, cached in first),
        "chats": chats,
        "chats_ratio": chats["on"]["seconds"] / chats["off"]["seconds"],
    }
    print_prefix(report, Console())
    write_report(report, json_file)


def _first_tokens(llm: Any, text: list[int], length: int, number: int) -> tuple[float, float]:
    """Seconds to the first token of two requests that differ in their last 20 tokens: cold, then cached."""
    start = number * 2 * length % max(1, len(text) - length - 60)
    system = text[start : start + length]
    cold, _ = _serve(llm, system + text[-20:], 1)
    cached, _ = _serve(llm, system + text[-40:-20], 1)
    return cold, cached


def _serve(llm: Any, prompt: list[int], max_tokens: int) -> tuple[float, list[int]]:
    """One request: seconds to its first token, and all of them."""
    from minipaged import SamplingParams

    started, first = time.perf_counter(), 0.0
    llm.engine.add_request(
        "0", prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    )
    token_ids: list[int] = []
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            first = first or time.perf_counter() - started
            token_ids = output.outputs[0].token_ids
    return first, token_ids


def _chats(llms: dict[str, Any], text: list[int], num_chats: int, num_turns: int) -> dict[str, Report]:
    """Chats, one turn of each after the other: 60 tokens asked, 20 answered; the engines take turns.

    For each engine the seconds in all and those to each first token. RuntimeError if an answer differs.
    """
    histories = [text[400 * chat : 400 * chat + 200] for chat in range(num_chats)]
    results: dict[str, Report] = {name: {"seconds": 0.0, "first_token": []} for name in llms}
    for turn in range(num_turns):
        for chat, history in enumerate(histories):
            history += text[5000 + 60 * (turn * num_chats + chat) :][:60]
            answers = {}
            for name, llm in llms.items():
                started = time.perf_counter()
                first, answers[name] = _serve(llm, history, 20)
                results[name]["seconds"] += time.perf_counter() - started
                results[name]["first_token"].append(first)
            if answers["on"] != answers["off"]:
                raise RuntimeError(f"the prefix cache changed an answer: {answers}")
            history += answers["off"]
    return results


def print_prefix(report: Report, console: Console) -> None:
    """Print the report as a few lines."""
    options, first, chats = report["options"], report["first_token"], report["chats"]
    cold, cached = median(first["cold"]), median(first["cached"])
    off, on = chats["off"], chats["on"]
    lines = [
        f"{options['model']}, {options['dtype']}, {options['threads']} threads",
        f"first token behind {options['system_prompt']} tokens: cold {cold:.3f} s, cached {cached:.3f} s, "
        f"{report['first_token_ratio']:.2f} x (median of {options['rounds']})",
        f"{options['chats']} chats of {options['turns']} turns: cache off {off['seconds']:.1f} s, on "
        f"{on['seconds']:.1f} s, {report['chats_ratio']:.2f} x",
        f"the last turn's first token: {off['first_token'][-1]:.3f} s and {on['first_token'][-1]:.3f} s",
        "the answers are the same",
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
