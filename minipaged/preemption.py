"""Preemption: which request gives way when the pool is empty, and how blocks move to another pool and back.

The scheduler admits requests whose outputs will grow by an unknown length, so memory does run out. A victim
is recomputed later (its blocks are simply dropped; K/V is a function of the tokens), or its blocks are
swapped to a pool in CPU memory. Either way its output does not change. The bytes of a swap are moved by
`KVCache.copy_blocks_from`. The engine is told which way to take (`preemption_mode`); what each costs is in
`minipaged/simulation/preemption_costs.py`. Chapter 09 (Kwon et al., SOSP'23, sections 4.5 and 7.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from minipaged.block_allocator import BlockAllocator


class Preemption:
    """The two decisions of preemption, on plain ints and lists."""

    @staticmethod
    def choose_victim(running: Sequence[tuple[int, int]]) -> int:
        """The index of the running request, given as (priority, arrival), that gives way: the last in that
        order.

        >>> Preemption.choose_victim([(0, 1), (5, 0), (0, 2)])
        1
        """
        return max(range(len(running)), key=lambda index: running[index])

    @staticmethod
    def move_blocks(
        tables: Sequence[Sequence[int]], source: BlockAllocator, target: BlockAllocator
    ) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Move the blocks of one request's tables from one pool to another, keeping what they share among
        them.

        Two tables [7, 3] and [7, 4] become, in an empty pool, [0, 1] and [0, 2], with copies (7, 0), (3, 1),
        (4, 2); block 0 has two users there. Returns (new tables, copies to run). All or nothing:
        `OutOfBlocks` if the target has too few free blocks, and neither pool has changed.
        """
        uses = list(chain.from_iterable(tables))
        distinct = list(dict.fromkeys(uses))
        moved = dict(zip(distinct, target.allocate_many(len(distinct)), strict=True))
        Preemption._keep_sharing(uses, moved, target)
        source.free_many(reversed(uses))
        return [[moved[block_id] for block_id in table] for table in tables], list(moved.items())

    @staticmethod
    def _keep_sharing(uses: Sequence[int], moved: dict[int, int], target: BlockAllocator) -> None:
        """A new block has one user; every further entry of `uses` that names the old one is one more."""
        seen: set[int] = set()
        for block_id in uses:
            if block_id in seen:
                target.share(moved[block_id])
            seen.add(block_id)
