"""A prompt's keys, and the smallest pool whose freed blocks can be found again.

The engine does the same for requests with several branches (`minipaged/block_manager.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from minipaged.block_allocator import BlockAllocator
from minipaged.errors import OutOfBlocks
from minipaged.prefix_cache import ROOT_KEY, PrefixCache, block_key


def block_keys(
    token_ids: Sequence[int], block_size: int, extra: tuple[tuple[str, str], ...] = ()
) -> list[bytes]:
    """The keys of a sequence's full blocks, each computed over the one before it.

    Block size 4: 11 tokens have 2 keys, and the last 3 tokens are in neither.
    """
    keys: list[bytes] = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = keys[-1] if keys else ROOT_KEY
        keys.append(block_key(parent, token_ids[end - block_size : end], extra))
    return keys


class PrefixPool:
    """A pool whose freed blocks can be found again: an allocator and a prefix cache, wired together.

    Nothing here decides what to evict. Blocks come back to the tail of the free queue and are taken from its
    head, so the least recently used one goes first. The engine does the same for requests with several
    branches (`BlockManager`, blocks_to_admit and admit).

    >>> pool, first = PrefixPool(num_blocks=3, block_size=2), block_key(ROOT_KEY, [5, 6])
    >>> block_ids = pool.take([], num_new=2)
    >>> pool.cache.publish(block_ids[0], first)
    >>> pool.release(block_ids); pool.take(pool.cache.match([first], num_tokens=4), num_new=1)
    [0, 2]
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.cache = PrefixCache(block_size)
        self.allocator = BlockAllocator(num_blocks, on_reuse=self.cache.forget)

    def take(self, hits: Sequence[int], num_new: int) -> list[int]:
        """Become a user of the cached blocks `hits` and of `num_new` fresh ones, or of none (`OutOfBlocks`).

        A hit without users is one of the free blocks, and counts as needed like a fresh one.
        """
        num_revived = sum(self.allocator.ref_count(block_id) == 0 for block_id in hits)
        needed = num_revived + num_new
        if needed > self.allocator.num_free:
            raise OutOfBlocks(needed, self.allocator.num_free, self.allocator.num_blocks)
        for block_id in hits:
            if self.allocator.ref_count(block_id) == 0:
                self.allocator.revive(block_id)
            else:
                self.allocator.share(block_id)
        return [*hits, *self.allocator.allocate_many(num_new)]

    def release(self, block_ids: Sequence[int]) -> None:
        """Give blocks up, the last one first. They stay findable until they are handed out again."""
        self.allocator.free_many(reversed(block_ids))
