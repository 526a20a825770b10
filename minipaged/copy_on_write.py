"""Sharing blocks between sequences: reference counts as ownership, and a copy only when somebody writes.

Why it exists: n samples of one prompt, or the beams of a search, have most of their K/V in common. They share
those blocks until one of them writes into a block that is not its own alone. What it leaves out: it decides
which block is copied where; `KVCache.copy_blocks` moves the bytes. Chapter 06 (Kwon et al., SOSP'23, section
4.4).
"""

from __future__ import annotations

from minipaged.block_allocator import BlockAllocator


class CopyOnWrite:
    """The three decisions of sharing, on plain lists of block ids.

    >>> allocator = BlockAllocator(4)
    >>> cow = CopyOnWrite(allocator)
    >>> parent = allocator.allocate_many(2)       # [0, 1]
    >>> child = cow.fork(parent)                  # shares both: nothing is allocated
    >>> cow.make_writable(child, 1), child        # the tail gets a copy of its own
    ((1, 2), [0, 2])
    >>> cow.make_writable(parent, 1), parent      # the last owner writes in place
    (None, [0, 1])
    """

    def __init__(self, allocator: BlockAllocator) -> None:
        self.allocator = allocator

    def fork(self, block_ids: list[int]) -> list[int]:
        """Share every block with one more user and return its list of ids. Allocates nothing, so it cannot
        run out."""
        for block_id in block_ids:
            self.allocator.share(block_id)
        return list(block_ids)

    def is_writable(self, block_id: int) -> bool:
        """Whether the caller, who uses the block, is the only one who does."""
        return self.allocator.ref_count(block_id) == 1

    def make_writable(self, block_ids: list[int], index: int) -> tuple[int, int] | None:
        """Make `block_ids[index]` the caller's own, in place; return the copy (src, dst) to run, or None.

        The fresh block is taken before the shared one is given up, so `OutOfBlocks` leaves everything as it
        was.
        """
        src = block_ids[index]
        if self.is_writable(src):
            return None
        dst = self.allocator.allocate()
        self.allocator.free(src)
        block_ids[index] = dst
        return src, dst


def blocks_saved(n: int, prompt_len: int, output_len: int, block_size: int) -> int:
    """How many blocks `n` samples of one prompt save by sharing, when each has `output_len` tokens of its
    own.

    Of the n · ceil((prompt_len + output_len) / block_size) blocks that they would hold without sharing, n - 1
    times those that the prompt fills; until somebody writes (output_len 0), also its last, half-full one.

    Example, in blocks of 16: 4 samples of 40 tokens save 3 · 2 blocks with any output, and 3 · 3 without.
    """
    full = prompt_len // block_size
    is_tail_shared = output_len == 0 and prompt_len % block_size > 0
    return (n - 1) * (full + is_tail_shared)
