"""The pool of physical blocks: who may use which block, and which blocks are free.

Why it exists: every sequence takes its memory one block at a time from one common pool, so no sequence
reserves what it may never use, and every hole is the right size for the next request. What it leaves out: it
never touches a tensor. It hands out numbers; `KVCache` owns the bytes behind them, and `PrefixCache`
remembers which free blocks still hold something worth finding. Chapter 03.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from minipaged.errors import OutOfBlocks


class BlockAllocator:
    """A pool of `num_blocks` blocks with ids 0 … N-1, a free queue and a reference count per block.

    The free queue is an `OrderedDict`, which is a linked list threaded through a hash table: taking the head,
    adding to the tail and pulling one block out of the middle (`revive`) are all O(1). vLLM builds the same
    structure by hand (vllm/v1/core/kv_cache_utils.py, FreeKVCacheBlockQueue).

    Invariant: a block is in the free queue, once, if and only if its reference count is 0.

    >>> allocator = BlockAllocator(4)
    >>> allocator.allocate_many(3)
    [0, 1, 2]
    >>> allocator.free(1); allocator.num_free
    2
    >>> allocator.allocate_many(2)          # first in, first out: 3 was free before 1
    [3, 1]

    `on_reuse(block_id)` is called for every block handed out by `allocate`: whatever it held before is gone.
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least 1 block, got num_blocks={num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._on_reuse = on_reuse

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can still hand out. Cached blocks that nobody uses count as free."""
        return len(self._free_queue)

    def free_blocks(self) -> list[int]:
        """The free blocks in the order in which they will be handed out."""
        return list(self._free_queue)

    def ref_count(self, block_id: int) -> int:
        """How many block tables use the block; 0 means free. ValueError for an unknown id."""
        self._check_known(block_id)
        return self._ref_counts[block_id]

    def allocate(self) -> int:
        """Take the block at the head of the free queue, with reference count 1. `OutOfBlocks` if there is
        none."""
        return self.allocate_many(1)[0]

    def allocate_many(self, n: int) -> list[int]:
        """Take `n` blocks, or none of them: `OutOfBlocks` when fewer than `n` are free, and nothing
        changes."""
        if n < 0:
            raise ValueError(f"cannot allocate {n} blocks")
        if n > self.num_free:
            raise OutOfBlocks(needed=n, free=self.num_free, total=self.num_blocks)
        return [self._take_head() for _ in range(n)]

    def share(self, block_id: int) -> None:
        """Add one user to a block in use. ValueError for a free block: its content may be gone (see
        `revive`)."""
        if self.ref_count(block_id) == 0:
            raise ValueError(f"block {block_id} is free and cannot be shared")
        self._ref_counts[block_id] += 1

    def revive(self, block_id: int) -> None:
        """Take one particular free block out of the queue, with its content: a prefix-cache hit. O(1).

        Unlike `allocate` it keeps what the block holds, so `on_reuse` is not called. ValueError if it is in
        use.
        """
        if self.ref_count(block_id) != 0:
            raise ValueError(f"block {block_id} has {self._ref_counts[block_id]} users and is not free")
        del self._free_queue[block_id]
        self._ref_counts[block_id] = 1

    def free(self, block_id: int) -> None:
        """Drop one user; the last one puts the block at the tail of the free queue. ValueError if it is
        free."""
        self.free_many([block_id])

    def free_many(self, block_ids: Iterable[int]) -> None:
        """Drop one user per entry, in the order given; all or nothing.

        A block may be listed twice only if two users give it up: with reference count 1, `free_many([b, b])`
        is a ValueError and changes nothing.
        """
        block_ids = list(block_ids)
        for block_id, times in Counter(block_ids).items():
            if self.ref_count(block_id) < times:
                users = self._ref_counts[block_id]
                raise ValueError(f"double free: block {block_id} has {users} user(s), freed {times} time(s)")
        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free_queue[block_id] = None

    def _take_head(self) -> int:
        block_id, _ = self._free_queue.popitem(last=False)
        self._ref_counts[block_id] = 1
        if self._on_reuse is not None:
            self._on_reuse(block_id)
        return block_id

    def _check_known(self, block_id: int) -> None:
        # subtle: without this, block -1 would quietly be the last one.
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(f"unknown block {block_id}: this pool has blocks 0 to {self.num_blocks - 1}")
