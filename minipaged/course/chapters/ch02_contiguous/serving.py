"""The engine with memory managed the traditional way: chapter 02's last cell.

A pool whose one block is as long as the longest sequence is an arena with reservations to the
maximum. So the paged engine serves the traditional way if its blocks are that long and the reader's arena
hands them out. Reservations of different lengths are missing: the engine can't express them.
"""

from __future__ import annotations

from minipaged.block_allocator import BlockAllocator
from minipaged.course.layer import load_layer
from minipaged.course.serving import REAL_MODEL, Serving, attempt, model_to_compare, serve_all
from minipaged.course.tasks import find_chapter, find_root
from minipaged.engine import Engine
from minipaged.llm import LLM
from minipaged.loading.hub import is_fetched
from minipaged.params import SamplingParams
from minipaged.parts import Parts

TOPICS = (
    "The capital of France is",
    "Once upon a time",
    "To make a good soup, first",
    "In my garden there is",
    "The sun rises in the",
    "A triangle has three",
    "My favourite book is about",
    "Water boils when",
)
PROMPT_TOKENS = 5
PAGED_BLOCK_SIZE = 16


def serve_traditionally(pool_tokens: int = 1024, max_model_len: int = 256, num_requests: int = 16) -> None:
    """Serve the same requests twice in the same bytes, in blocks of 16 tokens and the traditional way with
    the reader's arena, and print what fitted and whether the tokens are the same.

    >>> serve_traditionally()
    """
    from minipaged.contiguous import ArenaBlocks

    model = REAL_MODEL if is_fetched(REAL_MODEL) else "tiny"
    print(f"{num_requests} requests, {model}, {pool_tokens:,} slots for K and V")
    llm = model_to_compare()

    def serve(allocator: type[BlockAllocator], block_size: int) -> Serving:
        return serve_all(new_engine(llm, allocator, pool_tokens, block_size, max_model_len, num_requests))

    def serve_with_own() -> Serving:
        layer = load_layer(find_root(), find_chapter(find_root(), "ch02"), "exercises")
        return serve(layer.ArenaBlocks, max_model_len)

    whose = "the arena in exercises/ch02_contiguous.py"

    def serve_with_the_package_s() -> Serving:
        nonlocal whose
        whose = "the package's arena"
        return serve(ArenaBlocks, max_model_len)

    reserved = attempt("exercises/ch02", serve_with_own, instead=serve_with_the_package_s)
    if reserved is None:
        return
    paged = serve(BlockAllocator, PAGED_BLOCK_SIZE)
    lines = ((f"reserved to {max_model_len} tokens by {whose}", reserved), ("in blocks of 16 tokens", paged))
    for name, serving in lines:
        print(f"  {name}: {serving.most_at_once} at once, {serving.steps} steps")
    both = [
        pair
        for (one,), (other,) in zip(reserved.token_ids(), paged.token_ids(), strict=True)
        for pair in zip(one, other, strict=True)
    ]
    print(f"  {sum(ours == theirs for ours, theirs in both)} of {len(both)} tokens are the same")


def new_engine(
    llm: LLM,
    allocator: type[BlockAllocator],
    pool_tokens: int,
    block_size: int,
    max_model_len: int,
    num_requests: int,
) -> Engine:
    """An engine with a pool of `pool_tokens` slots in blocks of `block_size`, and all requests waiting."""
    engine = Engine(
        llm.model,
        llm.tokenizer,
        num_blocks=pool_tokens // block_size,
        block_size=block_size,
        max_model_len=max_model_len,
        enable_prefix_caching=False,
        parts=Parts(block_allocator=allocator),
    )
    for number in range(num_requests):
        prompt = llm.tokenizer.encode(TOPICS[number % len(TOPICS)])[:PROMPT_TOKENS]
        params = SamplingParams(temperature=0, max_tokens=6 + number % 5, ignore_eos=True)
        engine.add_request(str(number), prompt, params)
    return engine
