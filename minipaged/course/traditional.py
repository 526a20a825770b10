"""The engine with memory managed the traditional way: chapter 02's last cell.

Why it works: a pool whose one block is as long as the longest sequence is an arena with reservations to the
maximum. So the paged engine serves the traditional way if its blocks are that long and the reader's arena
hands them out. What it leaves out: reservations of different lengths, which the engine has no words for.
"""

from __future__ import annotations

from typing import NamedTuple

from minipaged.block_allocator import BlockAllocator
from minipaged.course.layer import load_layer
from minipaged.course.notebook import REAL_MODEL
from minipaged.course.tasks import find_chapter, find_root
from minipaged.llm import LLM
from minipaged.parts import Parts

TOPICS = (
    "The capital of France is", "Once upon a time", "To make a good soup, first", "In my garden there is",
    "The sun rises in the", "A triangle has three", "My favourite book is about", "Water boils when",
)  # fmt: skip
PROMPT_TOKENS = 5


class Served(NamedTuple):
    """token_ids: the answers, in the order of the prompts. most_at_once: sequences that had memory in one
    step. num_steps: until the last one ended."""

    token_ids: list[list[int]]
    most_at_once: int
    num_steps: int


def serve_traditionally(pool_tokens: int = 1024, max_model_len: int = 256, num_requests: int = 16) -> None:
    """Serve the same requests twice in the same bytes, in blocks of 16 tokens and the traditional way with
    the reader's arena, and print what fitted and whether the tokens are the same.

    >>> serve_traditionally()
    """
    from minipaged.hub import is_fetched

    model = REAL_MODEL if is_fetched(REAL_MODEL) else "tiny"
    llm = LLM(model, num_blocks=1, device="cpu", dtype="float32")  # for its model; each run has its own pool
    print(f"{num_requests} requests, {model}, {pool_tokens:,} slots for K and V")
    paged = serve(llm, BlockAllocator, pool_tokens, 16, max_model_len, num_requests)
    whose = "the arena in exercises/ch02_contiguous.py"
    try:
        layer = load_layer(find_root(), find_chapter(find_root(), "ch02"), "exercises")
        reserved = serve(llm, layer.ArenaBlocks, pool_tokens, max_model_len, max_model_len, num_requests)
    except NotImplementedError as error:
        print(f"({error}: not written yet, so the package's arena serves)")
        from minipaged.contiguous import ArenaBlocks

        whose = "the package's arena"
        reserved = serve(llm, ArenaBlocks, pool_tokens, max_model_len, max_model_len, num_requests)
    except Exception as error:  # whatever a layer may raise is the reader's news, not a crash
        print(f"{whose} could not serve: {type(error).__name__}: {error}")
        return
    lines = ((f"reserved to {max_model_len} tokens by {whose}", reserved), ("in blocks of 16 tokens", paged))
    for name, served in lines:
        print(f"  {name}: {served.most_at_once} at once, {served.num_steps} steps")
    count = sum(map(len, paged.token_ids))
    same = sum(
        ours == theirs
        for one, other in zip(reserved.token_ids, paged.token_ids, strict=True)
        for ours, theirs in zip(one, other, strict=True)
    )
    print(f"  {same} of {count} tokens are the same")


def serve(
    llm: LLM, allocator: type[BlockAllocator], pool_tokens: int, block_size: int, max_model_len: int,
    num_requests: int,
) -> Served:  # fmt: skip
    """All requests at once, from a pool of `pool_tokens` slots in blocks of `block_size`."""
    from minipaged.engine import Engine
    from minipaged.invariants import check_invariants
    from minipaged.params import SamplingParams

    engine = Engine(
        llm.model, llm.tokenizer, num_blocks=pool_tokens // block_size, block_size=block_size,
        max_model_len=max_model_len, enable_prefix_caching=False, parts=Parts(block_allocator=allocator),
    )  # fmt: skip
    for number in range(num_requests):
        prompt = llm.tokenizer.encode(TOPICS[number % len(TOPICS)])[:PROMPT_TOKENS]
        params = SamplingParams(temperature=0, max_tokens=6 + number % 5, ignore_eos=True)
        engine.add_request(str(number), prompt, params)
    outputs: dict[str, list[int]] = {}
    most_at_once = num_steps = 0
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        check_invariants(engine)
        most_at_once, num_steps = max(most_at_once, len(engine.scheduler.running)), num_steps + 1
    return Served([outputs[str(number)] for number in range(num_requests)], most_at_once, num_steps)
