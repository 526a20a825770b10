"""What the chapters' notebooks call: `check` the exercises, and serve a model with them.

What it leaves out: the command line, which does the same (`minipaged check`, `minipaged demo --use`).
"""

from __future__ import annotations

import platform
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.course.progress import Progress
from minipaged.course.report import check_chapter, render
from minipaged.course.tasks import find_chapter, find_root

if TYPE_CHECKING:
    from minipaged.llm import LLM
    from minipaged.parts import Parts

REAL_MODEL = "smollm2-135m"
PROMPTS = (
    "The capital of France is",
    "To make a good soup, first",
    "Once upon a time there was a small computer that",
)
MAX_TEXT = 90  # characters of an answer that are printed
POOL_TOKENS, BLOCK_SIZE, OUTPUT_TOKENS = 64, 4, 24
MAX_STEPS = 500  # ten times what it takes


def check(chapter: str, task: int | None = None) -> None:
    """Grade exercises/chNN_name.py, or one task of it, and print what came out.

    >>> check("ch03", task=2)
    """
    root = find_root()
    report = check_chapter(root, find_chapter(root, chapter), task=task)
    progress = Progress.load(root)
    progress.take(report)
    progress.save(root)
    print(render(report, root))


def serve_with(*chapters: str, folder: str = "exercises") -> None:
    """Serve three prompts with the reader's layers, in a pool so small that somebody is preempted, and
    compare with the package's own in a roomy pool, token for token. Invariants are checked after every step.

    The model is the real one if it has been fetched, else the tiny one. A layer that can't serve is explained
    in a line or two; it is never an error of the notebook.

    >>> serve_with("ch03")
    """
    from minipaged.hub import is_fetched
    from minipaged.llm import LLM
    from minipaged.parts import Parts, load_parts

    model = REAL_MODEL if is_fetched(REAL_MODEL) else "tiny"
    llm = LLM(model, num_blocks=1, device="cpu", dtype="float32")  # for its model; each run has its own pool
    expected, _ = _serve(llm, Parts(), 16 * POOL_TOKENS)
    names = " and ".join(f"{folder}/{chapter}" for chapter in chapters)
    try:
        got, preemptions = _serve(llm, load_parts(find_root() / folder, *chapters), POOL_TOKENS)
    except NotImplementedError as error:
        print(f"{names} can't serve yet: {error}.")
        print("Until it is written, the package's own layer takes its place. It says:")
        got, preemptions = expected, 0
    except (Exception, SystemExit) as error:  # whatever a layer may raise is the reader's news, not a crash
        print(f"{names} could not serve: {type(error).__name__}: {error}")
        return
    else:
        _compare(names, got, expected, preemptions)
    for prompt, token_ids in zip(PROMPTS, got, strict=True):
        text = " ".join(f"{prompt}{llm.tokenizer.decode(token_ids)}".split())
        print(f"  {text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + ' …'}")


def machine_note() -> str:
    """Today and this machine, for beside a measurement: "2026-11-29, AMD EPYC, 2 threads"."""
    import torch

    threads = torch.get_num_threads()
    return f"{date.today()}, {_processor()}, {threads} thread{'s' * (threads > 1)}"


def _serve(llm: LLM, parts: Parts, pool_tokens: int) -> tuple[list[list[int]], int]:
    """The output tokens of all prompts, and how often a request was preempted."""
    from minipaged.engine import Engine
    from minipaged.invariants import check_invariants, fill_with_junk
    from minipaged.kv_memory import kv_bytes_per_token
    from minipaged.params import SamplingParams

    budget = pool_tokens * kv_bytes_per_token(llm.model.config, llm.model.dtype)
    num_blocks = parts.num_blocks_for(budget, BLOCK_SIZE, llm.model.config, llm.model.dtype)
    engine = Engine(llm.model, llm.tokenizer, num_blocks=num_blocks, block_size=BLOCK_SIZE, parts=parts)
    fill_with_junk(engine)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), llm.tokenizer.encode(prompt)[:12], params)
    outputs: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        if engine.stats().steps >= MAX_STEPS:
            raise RuntimeError(f"{MAX_STEPS} steps taken, and {list(engine.requests)} are not done")
        outputs |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        check_invariants(engine)
    return [outputs[str(number)] for number in range(len(PROMPTS))], engine.stats().preemptions


def _compare(names: str, got: list[list[int]], expected: list[list[int]], preemptions: int) -> None:
    count = sum(map(len, expected))
    if got == expected:
        print(f"Served with {names}: {count} of {count} tokens as with the package's own layers,")
        times = f"{preemptions} preemption{'s' * (preemptions != 1)}"
        print(f"with {times} on the way, and every invariant held after every step.")
        return
    for prompt, ours, theirs in zip(PROMPTS, got, expected, strict=True):
        pairs = zip(ours, theirs, strict=False)
        place = next((index for index, (have, want) in enumerate(pairs) if have != want), len(ours))
        if ours != theirs:
            print(f"Served with {names}: DIFFERENT from token {place} of {prompt!r}.")
            return


def _processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.machine()
