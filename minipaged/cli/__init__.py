"""The command line: fetch a model, generate, chat; `doctor`, `demo` and `bench` are modules of their own.

The first thing a reader does is type a command, and what comes back must be an answer, or one line about what
to do. So here, and only here, a ValueError ends the process with exit code 1, a bad option with 2, Ctrl-C
with 130. Each command imports only what it needs, so `--help` answers at once.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import reduce
from importlib import import_module
from io import TextIOWrapper
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minipaged.engine_config import ATTENTION_BACKENDS, PREEMPTION_MODES, EngineConfig

if TYPE_CHECKING:
    from minipaged.llm import LLM
    from minipaged.params import RequestOutput, SamplingParams
    from minipaged.stats import Stats

REAL_MODEL = "smollm2-135m"
Command = TypeVar("Command", bound=Callable[..., object])

# The module of minipaged/cli that has the command, imported when used, and a text for the list of commands.
LAZY_COMMANDS = {
    "doctor": ("doctor", "Check this machine, and say what to do about each problem."),
    "demo": ("demo", "Watch requests share a pool of blocks, live in the terminal."),
    "check": ("course", "Grade your exercises, and say what is wrong."),
    "hint": ("course", "Show the next hint for a task."),
    "reset": ("course", "Start a chapter's exercise anew, keeping a backup."),
    "grade": ("grade", "For instructors: grade a submission, or a class, in isolation."),
    "handout": ("grade", "For instructors: a copy of the course without solutions."),
    "bench": ("bench", "Measure speed and memory."),
    "kernels": ("kernels", "Compile the Triton kernels for GPUs that are not here."),
}
# A model can emit any byte, and some would take the terminal apart.
_CONTROL = {code: 0xFFFD for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class MainGroup(click.Group):
    """A group that has the lazy commands too, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *LAZY_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in LAZY_COMMANDS:
            module, _ = LAZY_COMMANDS[cmd_name]
            return getattr(import_module(f"minipaged.cli.{module}"), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(limit=80) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([*own.items(), *((name, text) for name, (_, text) in LAZY_COMMANDS.items())])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # the shell's prompt belongs on a line of its own
            raise click.exceptions.Exit(130) from None
        except (ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=MainGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="minipaged")
def main() -> None:
    """A small, complete paged engine for LLM serving, to learn from.

    \b
    First things to try:
      minipaged doctor
      minipaged demo
      minipaged chat
      minipaged generate "The capital of France is"

    Commands use the model smollm2-135m if `minipaged fetch` has brought it, else a tiny random one.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # where a star can't be encoded, a "?" is printed
            stream.reconfigure(errors="replace")


def engine_option(name: str, help: str) -> Callable[[Command], Command]:
    """The option of a field of `EngineConfig`: its name, type and default, and a text."""
    default = getattr(EngineConfig, name)
    kind = int if default is None else type(default)
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, type=kind, default=default, show_default=default is not None, help=help)


_SERVING_OPTIONS = (
    click.option("--model", metavar="NAME|PATH", help=f"{REAL_MODEL}, tiny, a model folder or a .gguf file."),
    click.option("--max-tokens", default=256, show_default=True, help="Most tokens of one answer."),
    click.option("--temperature", default=0.0, show_default=True, help="0 always takes the likeliest token."),
    click.option("--top-p", default=1.0, show_default=True, help="Draw from the fewest that reach it."),
    click.option("--top-k", default=0, show_default=True, help="Draw from so many tokens; 0: from all."),
    click.option("--seed", type=int, help="The same seed gives the same text."),
    click.option("--dtype", default="auto", show_default=True, help="auto, float32, bfloat16 or float16."),
    engine_option("block_size", "Tokens in a block."),
    engine_option("num_blocks", "Blocks in the pool.  [default: 512 MiB of them on a CPU]"),
    engine_option("max_num_seqs", "Most sequences in a step."),
    engine_option("max_num_batched_tokens", "Most tokens in a step.  [default: 512 on a CPU]"),
    engine_option("preemption_mode", " or ".join(PREEMPTION_MODES) + "."),
    engine_option("num_cpu_blocks", "Blocks to swap to."),
    engine_option("attention_backend", ", ".join(ATTENTION_BACKENDS) + "."),
    click.option(
        "--prefix-caching/--no-prefix-caching",
        "enable_prefix_caching",
        default=EngineConfig.enable_prefix_caching,
        show_default=True,
        help="Reuse the blocks of equal beginnings.",
    ),
)


def serving_options(command: Command) -> Command:
    """Give a command the options of `SamplingParams`, `LLM` and `EngineConfig`, under the same names."""
    return reduce(lambda decorated, option: option(decorated), reversed(_SERVING_OPTIONS), command)


def take_sampling_params(options: dict[str, Any], **more: Any) -> SamplingParams:
    """Move the sampling options out of `options`; what remains is for `open_model`."""
    from minipaged.params import SamplingParams

    names = ("max_tokens", "temperature", "top_p", "top_k", "seed")
    return SamplingParams(**{name: options.pop(name) for name in names}, **more)


def open_model(model: str | None, **engine_options: Any) -> LLM:
    """`LLM(model, ...)`; by default the real model if it is here, else the tiny one, saying so on stderr."""
    from minipaged.llm import LLM
    from minipaged.loading.hub import is_fetched

    if model is None and not is_fetched(REAL_MODEL):
        model = "tiny"
        note = f"{REAL_MODEL} is not here (`minipaged fetch` brings it): a tiny random model babbles instead"
        click.secho(note, dim=True, err=True)
    elif sys.stderr.isatty():
        click.secho(f"loading {model or REAL_MODEL}", dim=True, err=True)
    return LLM(model or REAL_MODEL, **engine_options)


@main.command()
@click.argument("name", default=REAL_MODEL)
def fetch(name: str) -> None:
    """Fetch a model once, and say where it is.

    Example: minipaged fetch smollm2-135m
    """
    from minipaged.loading.hub import find_model, model_source

    folder = find_model(name)
    click.echo(f"{name} is in {folder} (from {model_source(folder) or 'you'})")


# -- generate --------------------------------------------------------------------------------------


@main.command()
@click.argument("prompts", nargs=-1)
@click.option("--file", type=click.File(encoding="utf-8"), help='A prompt a line, or {"prompt": ...} a line.')
@click.option("--n", default=1, show_default=True, help="Samples of each prompt; they share its blocks.")
@click.option("--stop", multiple=True, help="A text that ends the answer; can be given several times.")
@click.option("--chat/--raw", default=False, help="Ask as in a chat, or continue the text (the default).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each answer.")
@click.option("--stats", is_flag=True, help="Say on stderr what the engine did.")
@serving_options
def generate(
    prompts: tuple[str, ...],
    file: Iterable[str] | None,
    n: int,
    stop: tuple[str, ...],
    chat: bool,
    as_json: bool,
    stats: bool,
    **options: Any,
) -> None:
    """Continue or answer PROMPTS, all in one batch. Without any, they are read from stdin, one a line.

    \b
    Examples:
      minipaged generate "The capital of France is"
      minipaged generate --chat "What is a block table?" "What is a page table?"
      minipaged generate --file prompts.txt --json > answers.jsonl
    """
    if prompts and file:
        raise click.UsageError("prompts were given as arguments and with --file; give them one way")
    if not prompts and not file and sys.stdin.isatty():
        raise click.UsageError('no prompt; give one, as in: minipaged generate "The capital of France is"')
    texts = list(prompts) or read_prompts(file or sys.stdin)
    params = take_sampling_params(options, n=n, stop=stop)
    llm = open_model(**options)
    encode = llm.tokenizer.encode_chat
    inputs = [encode([{"role": "user", "content": text}]) if chat else text for text in texts]
    if len(inputs) == n == 1 and sys.stdout.isatty() and not as_json:
        outputs = list(printed(llm.stream(inputs[0], params)))[-1:]
    else:
        outputs = llm.generate(inputs, params)
        print_json(outputs) if as_json else print_texts(texts, outputs)
    warn_of_capacity(outputs)
    if stats:
        click.echo(describe(llm.engine.stats()), err=True)


def read_prompts(source: Iterable[str]) -> list[str]:
    """One prompt from each line that is not empty; JSON lines, if the first begins with a brace.

    Example: `read_prompts(["Hello\\n", "\\n"]) == ["Hello"] == read_prompts(['{"prompt": "Hello"}'])`.
    """
    # Windows programs begin a text with a byte order mark, U+FEFF, which is no part of it.
    numbered = ((number, line.rstrip("\r\n").lstrip("\ufeff")) for number, line in enumerate(source, 1))
    lines = [(number, line) for number, line in numbered if line.strip()]
    if not lines:
        raise ValueError("no prompts: expected one on each line, found no line with any text")
    is_json = lines[0][1].lstrip().startswith("{")
    return [_json_prompt(number, line) if is_json else line for number, line in lines]


def _json_prompt(number: int, line: str) -> str:
    with suppress(ValueError, TypeError, KeyError):
        prompt = json.loads(line)["prompt"]
        if isinstance(prompt, str):
            return prompt
    raise ValueError(f'line {number} is {line:.60}; in a file of JSON lines, expected {{"prompt": "a text"}}')


def print_json(outputs: list[RequestOutput]) -> None:
    """One line for each sample; requests and samples are counted from 0, in the order of the prompts."""
    for request, output in enumerate(outputs):
        for sample in output.outputs:
            row = {
                "request": request,
                "sample": sample.index,
                "text": sample.text,
                "token_ids": sample.token_ids,
                "finish_reason": sample.finish_reason,
                "num_cached_tokens": output.num_cached_tokens,
            }
            click.echo(json.dumps(row))


def print_texts(prompts: list[str], outputs: list[RequestOutput]) -> None:
    """The texts, each under its prompt if there are several."""
    answers = [
        (prompt, sample.text)
        for prompt, output in zip(prompts, outputs, strict=True)
        for sample in output.outputs
    ]
    for number, (prompt, text) in enumerate(answers, 1):
        if len(answers) > 1:
            click.secho(f"[{number}] {printable(prompt)}", bold=True)
        click.echo(printable(text))


def printed(outputs: Iterator[RequestOutput]) -> Iterator[RequestOutput]:
    """Pass a stream's outputs on, and print what is new of each."""
    shown = 0
    for output in outputs:
        text = printable(output.outputs[0].text)
        click.echo(text[shown:], nl=False)
        shown = len(text)
        yield output
    click.echo()


def printable(text: str) -> str:
    """The text with every control character but line feed and tab as U+FFFD; its length stays."""
    return text.translate(_CONTROL)


def describe(stats: Stats) -> str:
    """What the engine holds and has done, in four lines."""
    return (
        f"{stats.num_blocks} blocks: {stats.blocks_used} used, {stats.blocks_free} free, "
        f"{stats.blocks_cached} cached\n"
        f"prefix cache: {stats.prefix_hits} of {stats.prefix_queries} tokens were already there\n"
        f"{stats.steps} steps: {stats.computed_tokens} tokens computed, {stats.output_tokens} generated, "
        f"{stats.tokens_per_second:.1f} a second\n{stats.preemptions} preemptions, {stats.copies} copies"
    )


def warn_of_capacity(outputs: list[RequestOutput]) -> None:
    """Say on stderr if the pool was too small for an answer."""
    if any(sample.finish_reason == "capacity" for output in outputs for sample in output.outputs):
        click.echo("an answer outgrew the pool of blocks and was cut off; raise --num-blocks", err=True)


# -- chat ------------------------------------------------------------------------------------------


@main.command()
@click.option("--system", help="What the model is told before the conversation starts.")
@serving_options
def chat(system: str | None, **options: Any) -> None:
    """Talk with the model, and see what the prefix cache saves.

    Ctrl-C stops an answer; at the prompt it leaves, as do Ctrl-D and /exit. /reset starts a new conversation,
    /stats shows the engine's counters.

    Example: minipaged chat --system "You are a pirate."
    """
    params = take_sampling_params(options)
    llm = open_model(**options)
    click.secho("Ctrl-C stops an answer; /reset starts anew, /stats shows counters, /exit leaves.", dim=True)
    messages = opening = [{"role": "system", "content": system}] if system else []
    while (line := _read_line()) not in (None, "/exit"):
        if line == "/reset":
            messages = opening
        elif line == "/stats":
            click.secho(describe(llm.engine.stats()), dim=True)
        elif line:
            messages = take_turn(llm, [*messages, {"role": "user", "content": line}], params)


def _read_line() -> str | None:
    """The next line, None at the end. What is piped in is shown as if it had been typed."""
    is_typed = sys.stdin.isatty()
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() a history and editing keys; Windows has its own)
    try:
        line = input("> " if is_typed else "").strip()
    except EOFError:
        return None
    if not is_typed:
        click.echo(f"> {line}")
    return line


def take_turn(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> list[dict[str, str]]:
    """Stream the answer to `messages`; returns them with it, or without their last question if it is refused.

    All of the conversation is rendered and sent every time, as chat servers do: the prefix cache makes that
    cheap.
    """
    started = time.perf_counter()
    arrived: list[tuple[float, RequestOutput]] = []
    stream = llm.stream(llm.tokenizer.encode_chat(messages), params)
    with interrupt_flag() as interrupted, closing(stream):
        try:
            for output in printed(stream):
                arrived.append((time.perf_counter() - started, output))
                if interrupted.is_set():
                    click.echo(" [stopped]")
                    break
        except ValueError as error:
            click.echo(f"{error}. /reset starts a new conversation", err=True)
    if not arrived:
        return messages[:-1]
    (first, _), (last, output) = arrived[0], arrived[-1]
    click.secho(_turn_summary(output, first, last), dim=True)
    warn_of_capacity([output])
    return [*messages, {"role": "assistant", "content": output.outputs[0].text}]


@contextmanager
def interrupt_flag() -> Iterator[Event]:
    """Within, Ctrl-C sets a flag. Breaking into a step would cost the engine all it has cached."""
    pressed = Event()
    previous = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def _turn_summary(output: RequestOutput, first: float, last: float) -> str:
    answer, cached, total = output.outputs[0], output.num_cached_tokens, len(output.prompt_token_ids)
    cut = ", cut at the limit" if answer.finish_reason == "length" else ""
    rate = len(answer.token_ids) / last
    return (
        f"{len(answer.token_ids)} tokens{cut}, {rate:.1f} tokens/s, the first after {first:.2f} s\n"
        f"prefix cache: {cached} of {total} tokens were already there "
        f"({100 * cached / total:.0f} % of the prefill saved)"
    )
