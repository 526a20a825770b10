"""`minipaged demo`: a few requests share one pool of blocks, drawn in the terminal after every step.

Why it exists: sharing, copies and preemptions last a few steps each and leave no trace in the text that comes
out. Here one watches them happen, in the package's layers or in one's own.
What it leaves out: pictures for notebooks (`draw.py`).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from minipaged.cli import open_model, printable

if TYPE_CHECKING:
    from minipaged.llm import LLM
    from minipaged.request import Request, Sequence

SYSTEM = "You are a cook. Answer in one or two short sentences."
# (the step before which it arrives, system prompt, question, samples)
WORKLOAD = (
    (0, SYSTEM, "What can I make from eggs and rice?", 1),
    (4, SYSTEM, "How do I peel garlic?", 1),
    (6, SYSTEM, "Invent a new soup.", 3),
    (10, "", "Why is the sky blue?", 1),
    (14, SYSTEM, "How do I keep basil fresh?", 1),
)
MAX_TOKENS = 32
# Okabe and Ito's colours, which colour-blind readers can tell apart; the letters say the same without them.
COLOURS = dict(zip("ABCDE", ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442"), strict=True))
LEGEND = "A block of A   C3 shared by 3   a free, but A's tokens are cached   · free"


@click.command()
@click.option("--model", metavar="NAME|PATH", help="As for `minipaged generate`.")
@click.option("--use", metavar="FOLDER:CHAPTERS", help="Your layers, as exercises:ch03,ch04.")
@click.option("--num-blocks", type=int, help="Blocks in the pool.  [default: too few for all at once]")
@click.option("--block-size", default=8, show_default=True, type=click.IntRange(1), help="Tokens in a block.")
@click.option("--swap", is_flag=True, help="Swap preempted requests to CPU blocks; don't recompute them.")
@click.option("--delay", default=0.2, show_default=True, help="Seconds to look at each step.")
@click.option("--steps", type=click.IntRange(1), help="Stop after this many steps.")
@click.option("--plain", is_flag=True, help="Print one step below the other, as when stdout is no terminal.")
@click.pass_context
def demo(
    ctx: click.Context, model: str | None, use: str | None, num_blocks: int | None, block_size: int,
    swap: bool, delay: float, steps: int | None, plain: bool,
) -> None:
    """Watch requests share a pool of blocks, live in the terminal.

    Five requests arrive one after another. Four have the same system prompt, and find its blocks in the
    prefix cache; one wants 3 samples, which share the prompt's blocks until they write; and the pool is too
    small for all of them, so somebody is preempted.

    With --use, the package's own layers serve the same requests afterwards, and the texts are compared token
    for token: the exit code is 1 if they differ.

    \b
    Examples:
      minipaged demo --swap
      minipaged demo --use exercises:ch03,ch04
      minipaged demo --model tiny --plain --steps 12
    """  # fmt: skip
    if use and steps:
        raise click.UsageError("--use compares finished texts and can't stop after --steps; leave one out")
    llm = open_model(model, num_blocks=1)  # only for its model: the engines below have pools of their own
    console = Console()
    with _blaming(use) if use else nullcontext():
        show = Show(llm, num_blocks, block_size, swap, use)
        watch(show, console, None if plain or not console.is_terminal else delay, steps)
    if use:
        own = Show(llm, num_blocks, block_size, swap)
        while own.step():
            pass
        ctx.exit(compare(show, own))


class Show:
    """An engine, the requests that arrive at it from step to step, and what there is to see of them."""

    def __init__(
        self, llm: LLM, num_blocks: int | None, block_size: int, swap: bool, use: str | None = None
    ) -> None:
        from minipaged.engine import Engine
        from minipaged.params import SamplingParams
        from minipaged.parts import load_parts

        self.arrivals = []
        for letter, (step, system, question, n) in zip(COLOURS, WORKLOAD, strict=True):
            messages = [{"role": "system", "content": system}] if system else []
            prompt = llm.tokenizer.encode_chat([*messages, {"role": "user", "content": question}])
            params = SamplingParams(n=n, temperature=0.8 if n > 1 else 0.0, max_tokens=MAX_TOKENS, seed=0)
            self.arrivals.append((step, letter, prompt, params))
        if num_blocks is None:  # enough for two prompts and three outputs
            longest = sorted(len(prompt) for _, _, prompt, _ in self.arrivals)[-2:]
            num_blocks = (sum(longest) + 3 * MAX_TOKENS) // block_size
        folder, _, chapters = (use or "").rpartition(":")
        self.engine = Engine(
            llm.model, llm.tokenizer, num_blocks=num_blocks, block_size=block_size, max_num_batched_tokens=64,
            preemption_mode="swap" if swap else "recompute", num_cpu_blocks=num_blocks if swap else 0,
            parts=load_parts(folder, *chapters.split(",")) if use else None,
        )  # fmt: skip
        self.requests: dict[str, Request] = {}
        self.events: dict[int, list[str]] = {}
        self.num_steps = 0
        self.last_owner: dict[int, str] = {}

    def step(self) -> bool:
        """Let requests arrive and take one step of the engine; False if nothing is left to do."""
        events = []
        while self.arrivals and self.arrivals[0][0] <= self.num_steps:
            _, letter, prompt, params = self.arrivals.pop(0)
            self.engine.add_request(letter, prompt, params)
            self.requests[letter] = self.engine.requests[letter]
            events.append(f"{letter} arrives")
        if not self.arrivals and not self.engine.has_unfinished_requests():
            return False
        before = {letter: self.state(req.sequences[0], req) for letter, req in self.requests.items()}
        outputs = self.engine.step()
        self.num_steps += 1
        events += self._changes(before)
        events += [f"{output.request_id} finishes" for output in outputs if output.finished]
        self.events[self.num_steps] = events
        self.last_owner |= {block_id: owners[0] for block_id, owners in self.owners().items()}
        if not (self.arrivals or events or self.engine.last_step.work):
            raise RuntimeError(f"step {self.num_steps} did nothing, but {list(self.engine.requests)} wait")
        return True

    def _changes(self, before: dict[str, str]) -> list[str]:
        """What the step did to queues and blocks, given the state of each request before it."""
        step, events = self.engine.last_step, []
        for request in step.preempted:
            how = "swapped out" if request.is_swapped else "to be recomputed"
            events.append(f"{request.request_id} PREEMPTED, {how}")
        for request in dict.fromkeys(work.request for work in step.work):
            cached = f"{request.num_cached_tokens} of {len(request.prompt_token_ids)} tokens cached"
            entrances = {"waiting": f"admitted, {cached}", "preempted": "is back", "swapped": "swapped in"}
            if before[request.request_id] in entrances:
                events.append(f"{request.request_id} {entrances[before[request.request_id]]}")
        return events + [f"block {src} copied to {dst}" for src, dst in step.copies]

    def state(self, seq: Sequence, request: Request) -> str:
        """Where a sequence is in its life, in a word or two."""
        if seq.finish_reason:
            return f"done: {seq.finish_reason}"
        if request.is_swapped:
            return "swapped"
        if request in self.engine.scheduler.running:
            return "decode" if seq.num_uncomputed_tokens <= 1 else "prefill"
        return "preempted" if seq.output_token_ids else "waiting"

    def owners(self) -> dict[int, str]:
        """For each block in use the letters of its users, one for each sequence: {0: "AB", 7: "CCC"}."""
        owners: dict[int, str] = {}
        for request in self.engine.scheduler.running:
            for table in [seq.table for seq in request.live if seq.table]:
                for block_id in table.block_ids:
                    owners[block_id] = owners.get(block_id, "") + request.request_id
        return owners

    def samples(self) -> list[tuple[str, list[int]]]:
        """The output token ids of every sequence, by the name it has in the table."""
        return [(_name(seq, request), seq.output_token_ids)
                for request in self.requests.values() for seq in request.sequences]  # fmt: skip


def _name(seq: Sequence, request: Request) -> str:
    return request.request_id if len(request.sequences) == 1 else f"{request.request_id}.{seq.index}"


# -- drawing ---------------------------------------------------------------------------------------


def watch(show: Show, console: Console, pause: float | None, steps: int | None = None) -> None:
    """Draw every step: over the last one, with a pause of so many seconds, or below it if `pause` is None."""
    with nullcontext() if pause is None else Live(console=console, auto_refresh=False) as live:
        while show.num_steps != steps and show.step():
            if live is None:
                console.print(Rule(style="dim"), draw(show, console.width, recent=1))
            else:
                live.update(draw(show, console.width, recent=20), refresh=True)
                time.sleep(pause or 0)


def draw(show: Show, width: int, recent: int) -> Group:
    """The pool, the requests, the totals, and what the `recent` last steps did, in `width` columns."""
    stats = show.engine.stats()
    queue = " ".join(request.request_id for request in show.engine.scheduler.waiting) or "empty"
    pool = f"blocks: {stats.blocks_used} used, {stats.blocks_free} free   queue: {queue}"
    totals = (
        f"so far: {stats.output_tokens} tokens, {stats.preemptions} preemptions, {stats.copies} copies, "
        f"prefix cache {stats.prefix_hits} of {stats.prefix_queries} tokens"
    )
    events = [Text(f"step {step}: {'; '.join(events)}", "bold" if step == show.num_steps else "dim")
              for step, events in list(show.events.items())[-recent:] if events]  # fmt: skip
    first = Text.assemble((f"step {show.num_steps}", "bold"), f"   {pool}")
    return Group(first, _grid(show, width), Text(LEGEND, "dim"), _table(show, width), Text(totals), *events)


def _grid(show: Show, width: int) -> Text:
    owners, cache, grid = show.owners(), show.engine.memory.prefix_cache, Text()
    per_row = max(8, (width - 6) // 24 * 8)  # three columns a block, and a multiple of eight blocks
    for block_id in range(show.engine.memory.allocator.num_blocks):
        if block_id % per_row == 0:
            grid.append("\n" * (block_id > 0) + f"{block_id:4}  ", style="dim")
        if users := owners.get(block_id):
            number = str(len(users)) if len(users) > 1 else " "
            grid.append(users[0] + number, f"reverse {COLOURS[users[0]]}")
        elif cache.key(block_id) is not None:
            letter = show.last_owner[block_id]
            grid.append(f"{letter.lower()} ", f"dim {COLOURS[letter]}")
        else:
            grid.append("· ", "dim")
        grid.append(" ")
    return grid


def _table(show: Show, width: int) -> Table:
    last_width = max(8, width - 56)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    columns = {"": 3, "state": 13, "tokens": 6, "blocks": 22, "last words": last_width}
    for header, column_width in columns.items():
        table.add_column(header, width=column_width, no_wrap=True)
    for letter, request in show.requests.items():
        for seq in request.sequences:
            blocks = ("CPU " if request.is_swapped else "") + runs(seq.table.block_ids if seq.table else [])
            words = printable(seq.detokenizer.text).replace("\n", " ")[-last_width:]
            name, state = Text(_name(seq, request), COLOURS[letter]), show.state(seq, request)
            table.add_row(name, state, str(seq.num_tokens), blocks, Text(words))
    return table


def runs(block_ids: list[int]) -> str:
    """Block ids in their order, runs joined. Example: `runs([4, 5, 6, 2, 9]) == "4-6 2 9"`."""
    joined: list[list[int]] = []
    for block_id in block_ids:
        if joined and block_id == joined[-1][-1] + 1:
            joined[-1].append(block_id)
        else:
            joined.append([block_id])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in joined)


# -- a reader's own layers -------------------------------------------------------------------------


@contextmanager
def _blaming(use: str) -> Iterator[None]:
    """Say in one line what went wrong in a reader's layer, and where."""
    try:
        yield
    except Exception as error:
        folder = Path(use.rpartition(":")[0]).resolve()
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if folder in Path(frame.filename).resolve().parents]
        where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
        raise click.ClickException(f"with {use}: {type(error).__name__}: {error}{where}") from error


def compare(theirs: Show, own: Show) -> int:
    """Say whether two runs gave the same tokens, else where they first part; returns the exit code."""
    for (name, got), (_, expected) in zip(theirs.samples(), own.samples(), strict=True):
        for index, (have, want) in enumerate(zip_longest(got, expected)):
            if have != want:
                click.echo(f"DIFFERENT: token {index} of {name} is {have}; with the package's layers, {want}")
                return 1
    count = sum(len(expected) for _, expected in own.samples())
    click.echo(f"the same as with the package's own layers, token for token ({count} tokens)")
    return 0
