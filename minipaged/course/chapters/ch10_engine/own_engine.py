"""The reader's own engine: as many of their layers as serve, turned by their own step loop.

At the end of chapter 10 you want to talk with what you have built, even if a layer is not finished. Each is
tried on the tiny model; one that can't serve, or gives other tokens, is replaced by the package's own and
named. The graders say what is wrong with it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from minipaged.course.outline import CHAPTERS, Chapter
from minipaged.course.serving import serve_all
from minipaged.course.tasks import find_root, import_path
from minipaged.engine import Engine
from minipaged.llm import LLM
from minipaged.params import SamplingParams
from minipaged.parts import LAYERS, Parts, load_parts

ENGINE_CHAPTER = CHAPTERS[10]
LAYER_CHAPTERS = CHAPTERS[3:10]
PROMPTS = ("an engine of one's own", "an engine", "and another one, with a longer prompt than those")
NUM_BLOCKS, BLOCK_SIZE, OUTPUT_TOKENS = 24, 4, 8  # so few blocks that a request is preempted
MAX_REASON = 70  # characters


def own_engine(llm: LLM, folder: str = "exercises", **options: Any) -> Engine:
    """An engine for the model of `llm`, made of the reader's layers and loop as far as they serve; prints
    which are the reader's. `options` are those of `Engine`.

    >>> engine = own_engine(llm, num_blocks=512)
    """
    root, tiny = find_root() / folder, LLM("tiny", num_blocks=1, device="cpu", dtype="float32")
    expected = _serve(tiny, Engine, Parts())
    parts, kind, own, given = Parts(), Engine, list[str](), dict[str, list[str]]()
    for chapter in (*LAYER_CHAPTERS, ENGINE_CHAPTER):
        try:
            theirs, their_kind = _take(root, chapter, parts, kind)
            reason = "" if _serve(tiny, their_kind, theirs) == expected else "it says something else"
        except NotImplementedError:
            reason = "not written yet"
        except (Exception, SystemExit) as error:  # whatever a reader's code may raise
            reason = f"{type(error).__name__}: {error}".replace(f"{root}/", "")[:MAX_REASON]
        if reason:
            given.setdefault(reason, []).append(chapter.key)
        else:
            parts, kind = theirs, their_kind
            own.append(chapter.key)
    print(f"yours:         {', '.join(own) or 'nothing yet'}")
    for reason, keys in given.items():
        print(f"the package's: {', '.join(keys)} ({reason})")
    try:
        return kind(llm.model, llm.tokenizer, parts=parts, **options)
    except (Exception, SystemExit) as error:  # in a pool of another size than the trials'
        engine = Engine(llm.model, llm.tokenizer, **options)  # if the options are wrong, this says so
        print(f"yours could not be built with these options, so the engine is the package's: {error!r}")
        return engine


def _take(root: Path, chapter: Chapter, parts: Parts, kind: type[Engine]) -> tuple[Parts, type[Engine]]:
    """What has been taken so far, with the reader's layer of one chapter, or their loop, added."""
    if chapter is ENGINE_CHAPTER:
        return parts, import_path(root / f"{chapter.file_stem}.py").Engine
    theirs = load_parts(root, chapter.key)
    return replace(parts, **{name: getattr(theirs, name) for name in LAYERS[chapter.stem]}), kind


def _serve(llm: LLM, kind: type[Engine], parts: Parts) -> list[list[int]]:
    """The output tokens of a few prompts, one of them in two branches, so near to greedy that seeds don't
    matter; when memory runs out they are recomputed, and in a second run swapped."""
    token_ids: list[list[int]] = []
    for mode in ("recompute", "swap"):
        engine = kind(
            llm.model,
            llm.tokenizer,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            parts=parts,
            num_cpu_blocks=NUM_BLOCKS,
            preemption_mode=mode,
        )
        for number, prompt in enumerate(PROMPTS):
            n = 1 + number % 2
            params = SamplingParams(n=n, temperature=1e-3, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
            engine.add_request(str(number), prompt, params)
        token_ids += [branch for branches in serve_all(engine).token_ids() for branch in branches]
    return token_ids
