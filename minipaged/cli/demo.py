"""`minipaged demo`: a few requests share one pool of blocks, drawn in the terminal after every step.

Sharing, copies and preemptions last a few steps each and leave no trace in the text that comes out. Here you
watch them happen, in the package's layers or in your own. `minipaged/pictures/recording.py` does the run.
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
from minipaged.course.serving import fill_with_junk
from minipaged.course.tasks import find_root
from minipaged.kernels.interpreter import cause_of
from minipaged.pictures.recording import Arrival, Frame, Recorder, save_recording

if TYPE_CHECKING:
    from minipaged.llm import LLM

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
MAX_STEPS = 5_000  # far more than any pool takes; a layer that gets nowhere would go on for ever
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
@click.option("--record", type=click.Path(dir_okay=False), help="Write the run to a file, for notebooks.")
@click.option("--plain", is_flag=True, help="Print one step below the other, as when stdout is no terminal.")
@click.pass_context
def demo(
    ctx: click.Context,
    model: str | None,
    use: str | None,
    num_blocks: int | None,
    block_size: int,
    swap: bool,
    delay: float,
    steps: int | None,
    record: str | None,
    plain: bool,
) -> None:
    """Watch requests share a pool of blocks, live in the terminal.

    Five requests arrive one after another. Four have the same system prompt, and find its blocks in the
    prefix cache; one wants 3 samples, which share the prompt's blocks until they write; and the pool is too
    small for all of them, so a request is preempted.

    With --use, the package's own layers serve the same requests afterwards, and the texts are compared token
    for token: the exit code is 1 if they differ.

    \b
    Examples:
      minipaged demo --swap
      minipaged demo --use exercises:ch03,ch04
      minipaged demo --model tiny --plain --steps 12
    """
    if use and steps:
        raise click.UsageError("--use compares finished texts and can't stop after --steps; leave one out")
    llm = open_model(model, num_blocks=1)  # only for its model: the engines below have pools of their own
    console = Console()
    with _blaming(use) if use else nullcontext():
        recorder = new_recorder(llm, num_blocks, block_size, swap, use)
        watch(recorder, console, None if plain or not console.is_terminal else delay, steps)
    if record:
        save_recording(recorder.frames, record)
        click.echo(f"{len(recorder.frames)} steps are in {record}")
    if use:
        own = new_recorder(llm, num_blocks, block_size, swap)
        own.run()
        ctx.exit(compare(recorder, own))


def new_recorder(
    llm: LLM, num_blocks: int | None, block_size: int, swap: bool, use: str | None = None
) -> Recorder:
    """An engine with a small pool, at which the workload's requests will arrive. `use`: FOLDER:CHAPTERS."""
    from minipaged.engine import Engine
    from minipaged.params import SamplingParams
    from minipaged.parts import load_parts

    arrivals = []
    for letter, (step, system, question, n) in zip(COLOURS, WORKLOAD, strict=True):
        messages = [{"role": "system", "content": system}] if system else []
        prompt = llm.tokenizer.encode_chat([*messages, {"role": "user", "content": question}])
        params = SamplingParams(n=n, temperature=0.8 if n > 1 else 0.0, max_tokens=MAX_TOKENS, seed=0)
        arrivals.append(Arrival(step, letter, prompt, params))
    if num_blocks is None:  # enough for two prompts and three outputs
        longest = sorted(len(arrival.prompt) for arrival in arrivals)[-2:]
        num_blocks = (sum(longest) + 3 * MAX_TOKENS) // block_size
    folder, colon, chapters = (use or "").rpartition(":")
    if use and not (folder and colon and chapters):
        raise ValueError(f"--use takes FOLDER:CHAPTERS, as exercises:ch03,ch04, got {use!r}")
    if folder and not Path(folder).is_dir() and (find_root() / folder).is_dir():
        folder = str(find_root() / folder)  # from notebooks/, say
    engine = Engine(
        llm.model,
        llm.tokenizer,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=64,
        preemption_mode="swap" if swap else "recompute",
        num_cpu_blocks=num_blocks if swap else 0,
        parts=load_parts(folder, *chapters.split(",")) if use else None,
    )
    fill_with_junk(engine)
    return Recorder(engine, arrivals)


# -- drawing ---------------------------------------------------------------------------------------


def watch(recorder: Recorder, console: Console, pause: float | None, steps: int | None = None) -> None:
    """Draw every step: over the last one, with a pause of so many seconds, or below it if `pause` is None."""
    frames = recorder.frames
    with nullcontext() if pause is None else Live(console=console, auto_refresh=False) as live:
        while len(frames) != steps and recorder.step():
            if len(frames) >= MAX_STEPS:
                raise RuntimeError(f"{MAX_STEPS} steps, and {list(recorder.engine.requests)} are not done")
            if live is None:
                console.print(Rule(style="dim"), draw(frames, console.width, recent=1))
            else:
                live.update(draw(frames, console.width, recent=20), refresh=True)
                time.sleep(pause or 0)


def draw(frames: list[Frame], width: int, recent: int) -> Group:
    """The last frame: pool, requests, totals, and what the `recent` last steps did, in `width` columns."""
    frame = frames[-1]
    num_used, queue = len(frame.owners), " ".join(frame.queue) or "empty"
    pool = f"blocks: {num_used} used, {frame.num_blocks - num_used} free   queue: {queue}"
    totals = (
        f"so far: {frame.output_tokens} tokens, {frame.preemptions} preemptions, {frame.copies} copies, "
        f"prefix cache {frame.prefix_hits} of {frame.prefix_queries} tokens"
    )
    events = [
        Text(f"step {past.step}: {'; '.join(past.events)}", "bold" if past is frame else "dim")
        for past in [past for past in frames if past.events][-recent:]
    ]
    first = Text.assemble((f"step {frame.step}", "bold"), f"   {pool}")
    return Group(first, _grid(frame, width), Text(LEGEND, "dim"), _table(frame, width), Text(totals), *events)


def _grid(frame: Frame, width: int) -> Text:
    grid = Text()
    per_row = max(8, (width - 6) // 24 * 8)  # three columns a block, and a multiple of eight blocks
    for block_id in range(frame.num_blocks):
        if block_id % per_row == 0:
            grid.append("\n" * (block_id > 0) + f"{block_id:4}  ", style="dim")
        if users := frame.owners.get(block_id):
            number = str(len(users)) if len(users) > 1 else " "
            grid.append(users[0] + number, f"reverse {COLOURS[users[0]]}")
        elif letter := frame.cached.get(block_id):
            grid.append(f"{letter.lower()} ", f"dim {COLOURS[letter]}")
        else:
            grid.append("· ", "dim")
        grid.append(" ")
    return grid


def _table(frame: Frame, width: int) -> Table:
    last_width = max(8, width - 56)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    columns = {"": 3, "state": 13, "tokens": 6, "blocks": 22, "last words": last_width}
    for header, column_width in columns.items():
        table.add_column(header, width=column_width, no_wrap=True)
    for row in frame.rows:
        blocks = ("CPU " if row.is_swapped else "") + runs(row.block_ids)
        words = printable(row.text).replace("\n", " ")[-last_width:]
        name = Text(row.name, COLOURS[row.request_id])
        table.add_row(name, row.state, str(row.num_tokens), blocks, Text(words))
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
    except (Exception, SystemExit) as error:
        folder = Path(use.rpartition(":")[0]).resolve()
        cause = cause_of(error)
        frames = traceback.extract_tb(cause.__traceback__)
        theirs = [frame for frame in frames if folder in Path(frame.filename).resolve().parents]
        where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
        raise click.ClickException(f"with {use}: {type(cause).__name__}: {cause}{where}") from error


def compare(theirs: Recorder, own: Recorder) -> int:
    """Say whether two runs gave the same tokens, else where they first part; returns the exit code."""
    for name, expected in own.samples().items():
        for index, (have, want) in enumerate(zip_longest(theirs.samples()[name], expected)):
            if have != want:
                click.echo(f"DIFFERENT: token {index} of {name} is {have}; with the package's layers, {want}")
                return 1
    count = sum(map(len, own.samples().values()))
    click.echo(f"the same as with the package's own layers, token for token ({count} tokens)")
    return 0
