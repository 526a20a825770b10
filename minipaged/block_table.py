"""The block table: where each token of one sequence lies in the pool.

Why it exists: a sequence sees one contiguous run of positions 0, 1, 2, …; its blocks lie anywhere. The table
is the page table of an operating system, with one entry per block of `block_size` tokens. What it leaves out:
which sequence runs when (`Scheduler`), and the bytes (`KVCache`). Chapter 04.
"""

from __future__ import annotations

from typing import NamedTuple

from minipaged.block_allocator import BlockAllocator
from minipaged.copy_on_write import CopyOnWrite
from minipaged.errors import OutOfBlocks


class Append(NamedTuple):
    """What an append asks of the cache: copies first, then one K/V write per slot.

    slots: one slot per new token, slot = block id · block_size + offset in the block.
    copies: (src, dst) block ids; at most one, since only the tail can be shared and partly filled.
    """

    slots: list[int]
    copies: list[tuple[int, int]]


def blocks_for(num_tokens: int, block_size: int) -> int:
    """ceil(num_tokens / block_size). Block size 4, 9 tokens: 3 blocks, 1 token in the last."""
    return -(-num_tokens // block_size)


class BlockTable:
    """The blocks of one sequence, in order; `num_tokens` tokens hold exactly ceil(num_tokens / block_size)
    blocks.

    >>> table = BlockTable(BlockAllocator(8), block_size=4)
    >>> table.append(6)
    Append(slots=[0, 1, 2, 3, 4, 5], copies=[])
    >>> child = table.fork()                # shares blocks 0 and 1
    >>> child.append(1)                     # block 1 is half full and shared: copied to block 2 first
    Append(slots=[10], copies=[(1, 2)])
    >>> table.append(1)                     # now block 1 has one owner, who writes in place
    Append(slots=[6], copies=[])
    """

    def __init__(
        self, allocator: BlockAllocator, block_size: int, copy_on_write: CopyOnWrite | None = None
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.allocator = allocator
        self.block_size = block_size
        self.copy_on_write = copy_on_write or CopyOnWrite(allocator)
        self.block_ids: list[int] = []
        self.num_tokens = 0

    def blocks_needed(self, num_tokens: int) -> int:
        """Blocks that appending `num_tokens` more would take now, the copy of a shared tail included."""
        grown = blocks_for(self.num_tokens + num_tokens, self.block_size) - len(self.block_ids)
        return grown + (num_tokens > 0 and self._tail_is_shared())

    def append(self, num_tokens: int) -> Append:
        """Make room for `num_tokens` more tokens, taking blocks only as they are needed.

        All or nothing: `OutOfBlocks` when `blocks_needed` exceeds what is free, and nothing changes.
        """
        if num_tokens < 0:
            raise ValueError(f"cannot append {num_tokens} tokens")
        needed = self.blocks_needed(num_tokens)
        if needed > self.allocator.num_free:
            raise OutOfBlocks(needed, self.allocator.num_free, self.allocator.num_blocks)
        copies = []
        if needed > 0 and self._tail_is_shared():
            copy = self.copy_on_write.make_writable(self.block_ids, len(self.block_ids) - 1)
            copies = [copy] if copy else []
        first, end = self.num_tokens, self.num_tokens + num_tokens
        new_blocks = blocks_for(end, self.block_size) - len(self.block_ids)
        if new_blocks > 0:
            self.block_ids += self.allocator.allocate_many(new_blocks)
        self.num_tokens = end
        # What `slot` says of one position, for all of them at once: a prompt has thousands.
        ids, size = self.block_ids, self.block_size
        return Append([ids[p // size] * size + p % size for p in range(first, end)], copies)

    def fork(self, num_tokens: int | None = None) -> BlockTable:
        """A second table that shares this one's first `num_tokens` tokens (all by default). Takes no block.

        Example: 6 tokens at block size 4, `fork(5)` shares both blocks; the child's next token goes to
        position 5.
        """
        num_tokens = self.num_tokens if num_tokens is None else num_tokens
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot fork {num_tokens} tokens of a table that holds {self.num_tokens}")
        child = type(self)(self.allocator, self.block_size, self.copy_on_write)
        child.adopt(
            self.copy_on_write.fork(self.block_ids[: blocks_for(num_tokens, self.block_size)]), num_tokens
        )
        return child

    def adopt(self, block_ids: list[int], num_tokens: int) -> None:
        """Start an empty table from blocks that already count it as a user: a fork, prefix hits, or a
        swap."""
        expected = blocks_for(num_tokens, self.block_size)
        if self.block_ids or len(block_ids) != expected:
            raise ValueError(
                f"{num_tokens} tokens take {expected} blocks of {self.block_size} in an empty table, "
                f"got {len(block_ids)} blocks for one that holds {len(self.block_ids)}"
            )
        self.block_ids, self.num_tokens = list(block_ids), num_tokens

    def slot(self, position: int) -> int:
        """The slot of one token: block_ids[position // block_size] · block_size + position % block_size."""
        if not 0 <= position < self.num_tokens:
            raise ValueError(f"position {position} is outside the table's {self.num_tokens} tokens")
        return self.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def free(self) -> None:
        """Give every block back, the last one first, so that a tail is reused before the head it depends
        on."""
        self.allocator.free_many(reversed(self.block_ids))
        self.block_ids, self.num_tokens = [], 0

    def _tail_is_shared(self) -> bool:
        """Whether the next token would land in a block that somebody else also uses."""
        has_room = self.num_tokens % self.block_size != 0
        return has_room and not self.copy_on_write.is_writable(self.block_ids[-1])
