"""What must always be true of an engine's memory, as code.

A wrong reference count shows up thousands of steps later as a wrong word; these checks find it in the step
that caused it. They use public methods only, so they judge a reader's layers as well as the package's.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from minipaged.block_allocator import BlockAllocator
from minipaged.block_manager import BlockManager
from minipaged.block_table import blocks_for
from minipaged.scheduler import Schedule, Scheduler


class HasMemory(Protocol):
    """What is checked: an `Engine`, or a simulated one (`minipaged/simulation/simulator.py`)."""

    memory: BlockManager
    scheduler: Scheduler

    def has_unfinished_requests(self) -> bool: ...


def check_invariants(engine: HasMemory) -> None:
    """Raise a RuntimeError, saying what is wrong with the numbers, unless all of these hold between two
    steps:

    free + used = N, and a block is in the free queue, once, exactly when its reference count is 0; the
    reference counts are the number of tables that use each block; every table holds ceil(tokens / block_size)
    blocks; every cached key belongs to the block that the key leads to; an engine without requests holds
    nothing.
    """
    memory, scheduler = engine.memory, engine.scheduler
    in_pool = [seq.table for request in scheduler.running for seq in request.live if seq.table is not None]
    swapped = [seq.table for request in scheduler.waiting for seq in request.live if seq.table is not None]
    for table in in_pool + swapped:
        expected = blocks_for(table.num_tokens, memory.block_size)
        _require(
            len(table.block_ids) == expected,
            f"{table.num_tokens} tokens in {table.block_ids}: not {expected} blocks",
        )
    _check_pool(memory.allocator, Counter(block_id for table in in_pool for block_id in table.block_ids))
    if memory.cpu_allocator is not None:
        _check_pool(
            memory.cpu_allocator, Counter(block_id for table in swapped for block_id in table.block_ids)
        )
    else:
        _require(not swapped, f"{len(swapped)} waiting sequences hold blocks")
    for key, block_id in memory.prefix_cache.entries().items():
        _require(
            memory.prefix_cache.key(block_id) == key,
            f"block {block_id} is cached under a key that it does not have",
        )
    num_free, num_blocks = memory.allocator.num_free, memory.allocator.num_blocks
    is_idle = not engine.has_unfinished_requests()
    _require(not is_idle or num_free == num_blocks, f"idle, but {num_free} of {num_blocks} blocks free")


def _check_pool(allocator: BlockAllocator, uses: Counter[int]) -> None:
    free = allocator.free_blocks()
    _require(len(free) == len(set(free)) == allocator.num_free, f"free queue {free} holds a block twice")
    in_queue = set(free)
    for block_id in range(allocator.num_blocks):
        count = allocator.ref_count(block_id)
        _require(
            count == uses[block_id],
            f"block {block_id}: reference count {count}, but {uses[block_id]} tables use it",
        )
        _require(
            (count == 0) == (block_id in in_queue),
            f"block {block_id}: reference count {count}, wrong place in the queue",
        )


def check_writes(step: Schedule, memory: BlockManager) -> None:
    """Raise a RuntimeError before a step that would write what it must not: a slot twice, a block that
    another sequence uses too, or one that the prefix cache can find.

    Also if copies are not safe to run as one batch: no destination twice, none that is also a source.
    """
    slots = [slot for work in step.work for slot in work.slots]
    _require(len(slots) == len(set(slots)), "two tokens of one step have the same slot")
    for block_id in {slot // memory.block_size for slot in slots}:
        users = memory.allocator.ref_count(block_id)
        _require(users == 1, f"block {block_id} has {users} users and would be written without a copy")
        _require(memory.prefix_cache.key(block_id) is None, f"cached block {block_id} would be written")
    sources, destinations = {src for src, _ in step.copies}, [dst for _, dst in step.copies]
    _require(len(destinations) == len(set(destinations)), f"two copies with one destination: {step.copies}")
    _require(sources.isdisjoint(destinations), f"a copy's destination is another's source: {step.copies}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(f"broken invariant: {what}")
