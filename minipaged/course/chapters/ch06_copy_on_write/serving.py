"""Samples and beams in the real engine: what is held in every step, and whether a reader's sharing is right.

`serve_with` serves single answers, in which nothing is forked; here branches are.
`minipaged/simulation/sharing.py` counts blocks without a model. Chapter 06.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minipaged.course.notebook import BLOCK_SIZE, MAX_TEXT, OUTPUT_TOKENS, PROMPTS
from minipaged.course.serving import Serving, attempt, model_to_compare, number_of, serve_all
from minipaged.course.tasks import find_root
from minipaged.simulation.sharing import Holding

if TYPE_CHECKING:
    from minipaged.engine import Engine
    from minipaged.llm import LLM
    from minipaged.parts import Parts

BRANCHES, POOL_BLOCKS = 3, 24


def count_holdings(engine: Engine) -> dict[str, list[Holding]]:
    """Step the engine until no request is left; of every request, what it held while each step was computed.

    Only steps in which a request has branches count: not its prefill. Without a prefix cache no block is
    shared between requests, so that each can be counted alone.
    """
    holdings: dict[str, list[Holding]] = {}
    schedule = engine.scheduler.schedule

    def counted():  # type: ignore[no-untyped-def]
        step = schedule()  # by now the tables have grown, and the copies are planned
        destinations = {dst for _, dst in step.copies}
        for request in engine.scheduler.running:
            tables = [seq.table.block_ids for seq in request.live if seq.table is not None]
            if request.live[0].output_token_ids:
                blocks = {block_id for block_ids in tables for block_id in block_ids}
                held = Holding(sum(map(len, tables)), len(blocks), len(blocks & destinations))
                holdings.setdefault(request.request_id, []).append(held)
        return step

    engine.scheduler.schedule = counted  # type: ignore[method-assign]
    try:
        while engine.has_unfinished_requests():
            engine.step()
    finally:
        engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    return holdings


def serve_branches_with(*chapters: str, folder: str = "exercises") -> None:
    """Serve three samples of one prompt and three beams of another with the reader's layers, in a pool so
    small that a request is preempted, and compare with the package's own in a roomy one, token for token.

    The model is the real one if it has been fetched, else the tiny one. A layer that can't serve is explained
    in a line or two; it is never an error of the notebook.

    >>> serve_branches_with("ch06")
    """
    from minipaged.parts import Parts, load_parts

    llm = model_to_compare()
    expected = _serve(llm, Parts(), 10 * POOL_BLOCKS)
    names = " and ".join(f"{folder}/{chapter}" for chapter in chapters)
    got = attempt(
        names,
        lambda: _serve(llm, load_parts(find_root() / folder, *chapters), POOL_BLOCKS),
        instead=lambda: expected,
    )
    if got is None:
        return
    if got is not expected:
        count = sum(len(token_ids) for outputs in expected.token_ids() for token_ids in outputs)
        if got.token_ids() != expected.token_ids():
            print(f"Served with {names}: DIFFERENT tokens from those of the package's own layers.")
            return
        print(
            f"Served with {names}: all {count} tokens as with the package's own layers; {got.copies} blocks"
        )
        times = number_of(got.preemptions, "preemption")
        print(f"copied and {times} on the way, and every invariant held after every step.")
    for number, outputs in enumerate(got.token_ids()):
        for token_ids in outputs:
            text = " ".join(llm.tokenizer.decode(_prompt(llm, number) + token_ids).split())
            print(f"  … {text[-MAX_TEXT:]}")  # branches differ at their ends


def _prompt(llm: LLM, number: int) -> list[int]:
    """6 tokens, with either model: the second block of 4 is half full, and will have to be copied."""
    return llm.tokenizer.encode(PROMPTS[number])[:6]


def _serve(llm: LLM, parts: Parts, num_blocks: int) -> Serving:
    from minipaged.engine import Engine
    from minipaged.params import BeamSearchParams, SamplingParams

    engine = Engine(llm.model, llm.tokenizer, num_blocks=num_blocks, block_size=BLOCK_SIZE, parts=parts)
    samples = SamplingParams(
        n=BRANCHES, temperature=0.8, top_p=0.9, seed=1, max_tokens=OUTPUT_TOKENS, ignore_eos=True
    )
    beams = BeamSearchParams(beam_width=BRANCHES, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    engine.add_request("0", _prompt(llm, 0), samples)
    engine.add_request("1", _prompt(llm, 1), beams)
    return serve_all(engine)
