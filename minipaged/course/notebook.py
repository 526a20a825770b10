"""What the chapters' notebooks call: `check` the exercises, and serve a model with them.

The command line does the same (`minipaged check`, `minipaged demo --use`).
"""

from __future__ import annotations

import platform
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.course.progress import Progress
from minipaged.course.report import check_chapter, render
from minipaged.course.serving import Serving, attempt, model_to_compare, number_of, serve_all
from minipaged.course.tasks import find_chapter, find_root

if TYPE_CHECKING:
    from minipaged.llm import LLM
    from minipaged.parts import Parts

PROMPTS = (
    "The capital of France is",
    "To make a good soup, first",
    "Once upon a time there was a small computer that",
)
MAX_TEXT = 90  # characters of an answer that are printed
POOL_TOKENS, BLOCK_SIZE, OUTPUT_TOKENS = 64, 4, 24


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
    """Serve three prompts with the reader's layers, in a pool so small that a request is preempted, and
    compare with the package's own in a roomy pool, token for token. Invariants are checked after every step.

    The model is the real one if it has been fetched, else the tiny one. A layer that can't serve is explained
    in a line or two; it is never an error of the notebook.

    >>> serve_with("ch03")
    """
    from minipaged.parts import Parts, load_parts

    llm = model_to_compare()
    expected = _serve(llm, Parts(), 16 * POOL_TOKENS)
    names = " and ".join(f"{folder}/{chapter}" for chapter in chapters)
    got = attempt(
        names,
        lambda: _serve(llm, load_parts(find_root() / folder, *chapters), POOL_TOKENS),
        instead=lambda: expected,
    )
    if got is None:
        return
    if got is not expected and not _is_same(names, got, expected):
        return
    for prompt, (token_ids,) in zip(PROMPTS, got.token_ids(), strict=True):
        text = " ".join(f"{prompt}{llm.tokenizer.decode(token_ids)}".split())
        print(f"  {text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + ' …'}")


def machine_note() -> str:
    """Today and this machine, for beside a measurement: "2026-11-29, AMD EPYC, 2 threads"."""
    import torch

    threads = torch.get_num_threads()
    return f"{date.today()}, {_processor()}, {threads} thread{'s' * (threads > 1)}"


def _serve(llm: LLM, parts: Parts, pool_tokens: int) -> Serving:
    from minipaged.engine import Engine
    from minipaged.kv_memory import kv_bytes_per_token
    from minipaged.params import SamplingParams

    budget = pool_tokens * kv_bytes_per_token(llm.model.config, llm.model.dtype)
    num_blocks = parts.num_blocks_for(budget, BLOCK_SIZE, llm.model.config, llm.model.dtype)
    engine = Engine(llm.model, llm.tokenizer, num_blocks=num_blocks, block_size=BLOCK_SIZE, parts=parts)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), llm.tokenizer.encode(prompt)[:12], params)
    return serve_all(engine)


def _is_same(names: str, got: Serving, expected: Serving) -> bool:
    """Whether both gave the same tokens; says so, or where they part."""
    for prompt, (ours,), (theirs,) in zip(PROMPTS, got.token_ids(), expected.token_ids(), strict=True):
        pairs = zip(ours, theirs, strict=False)
        place = next((index for index, (have, want) in enumerate(pairs) if have != want), len(ours))
        if ours != theirs:
            print(f"Served with {names}: DIFFERENT from token {place} of {prompt!r}.")
            return False
    count = sum(len(token_ids) for (token_ids,) in expected.token_ids())
    print(f"Served with {names}: {count} of {count} tokens as with the package's own layers,")
    times = number_of(got.preemptions, "preemption")
    print(f"with {times} on the way, and every invariant held after every step.")
    return True


def _processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.machine()
