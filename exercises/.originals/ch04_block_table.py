"""Chapter 4: the block table.

You write `BlockTable`, which says where each token of one sequence lies in the pool: a page table, with one
entry per block. It takes blocks from an allocator (chapter 3; the package's own is used here, so nothing of
yours has to be finished), and only when a token needs one. Every method has its specification in its
docstring, and steps to follow; `raise NotImplementedError` is where your code goes.

Two objects are given to a table, and it calls these methods of theirs:

* `allocator`: `num_free`, `num_blocks`, `allocate_many(n)`, `free_many(block_ids)`;
* `copy_on_write`, which you will write in chapter 6: `fork(block_ids)`, `is_writable(block_id)`,
  `make_writable(block_ids, index)`. What they do stands in tasks 5 and 6.

`minipaged check ch04` grades this file, `minipaged hint ch04` helps, and
`minipaged demo --use exercises:ch04` serves a real model with what you wrote.
"""

from __future__ import annotations

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import Append
from minipaged.copy_on_write import CopyOnWrite
from minipaged.errors import OutOfBlocks


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks of `block_size` tokens hold `num_tokens` tokens: num_tokens / block_size, rounded up.

    No token needs no block; a block that is exactly full needs no other beside it. The result is a whole
    number, and exact however large the numbers are.

    >>> [blocks_for(n, 4) for n in (0, 1, 4, 5, 8, 9)]
    [0, 1, 1, 2, 2, 3]
    """
    # Task 1 ★ how many blocks (5 points, about 5 minutes)
    # 1. `//` divides whole numbers and rounds down. Find a way to have it round up.
    raise NotImplementedError("ch04_block_table, task 1: how many blocks")


class BlockTable:
    """The blocks of one sequence, in order, and the number of tokens in them.

    `block_ids[i]` is the physical block of the logical block `i`, which holds the sequence's positions
    i · block_size to (i + 1) · block_size - 1. Several tables may have a block in common.

    Invariant: a table of `num_tokens` tokens holds exactly ceil(num_tokens / block_size) blocks. No block is
    taken before a token needs it. All or nothing: a method that raises leaves everything as it was, the
    table and the pool.

    >>> table = BlockTable(BlockAllocator(8), block_size=4)
    >>> table.append(6)
    Append(slots=[0, 1, 2, 3, 4, 5], copies=[])
    >>> table.block_ids, table.num_tokens
    ([0, 1], 6)
    >>> child = table.fork()                # shares blocks 0 and 1
    >>> child.append(1)                     # block 1 is half full and shared: copied to block 2 first
    Append(slots=[10], copies=[(1, 2)])
    >>> table.append(1)                     # now block 1 has one owner, who writes in place
    Append(slots=[6], copies=[])
    """

    def __init__(
        self, allocator: BlockAllocator, block_size: int, copy_on_write: CopyOnWrite | None = None
    ) -> None:
        """An empty table. It takes its blocks from `allocator`; all tables of a pool share one. Given."""
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.allocator = allocator
        self.block_size = block_size
        self.copy_on_write = copy_on_write or CopyOnWrite(allocator)
        self.block_ids: list[int] = []
        self.num_tokens = 0

    def adopt(self, block_ids: list[int], num_tokens: int) -> None:
        """Start an empty table from blocks that already count it as a user, with a list of its own. Given.

        ValueError if the table is not empty, or if these are not exactly the blocks that `num_tokens` tokens
        take.
        """
        expected = blocks_for(num_tokens, self.block_size)
        if self.block_ids or len(block_ids) != expected:
            raise ValueError(
                f"{num_tokens} tokens take {expected} blocks of {self.block_size} in an empty table, "
                f"got {len(block_ids)} blocks for one that holds {len(self.block_ids)}"
            )
        self.block_ids, self.num_tokens = list(block_ids), num_tokens

    def slot(self, position: int) -> int:
        """The slot of the token at one position: where its K and V lie in the pool.

        The pool's slots are numbered through: block 0 has the slots 0 to B-1, block 1 the slots B to 2B-1,
        and so on (B is block_size). ValueError, with the position and num_tokens, for a position that holds
        no token: below 0, or num_tokens and above, even where the last block still has room.

        Example: block size 4, block_ids [5, 2, 7], 10 tokens. Position 6 is offset 2 in the logical block 1,
        which is the physical block 2: its slot is 2 · 4 + 2 = 10. `slot(10)` is an error.
        """
        # Task 2 ★ where a token lies (10 points, about 5 minutes)
        # 1. Refuse a position without a token.
        # 2. In which logical block does it lie, and at which offset in that block?
        # 3. Look up the physical block; which slot is its first one?
        raise NotImplementedError("ch04_block_table, task 2: where a token lies")

    def free(self) -> None:
        """Give up every block, the last one first. The table is empty then: no blocks, no tokens.

        The free queue is first in, first out. Blocks given back last one first are taken again in that order,
        so the end of a sequence is overwritten before its beginning: and beginnings are what later requests
        may have in common with it (chapter 7). A block with another user stays with that user. Freeing an
        empty table does nothing.

        Example: a table with the blocks [0, 1, 2] in a pool of 4, block 3 free. After `free()` the free queue
        is 3, 2, 1, 0.
        """
        # Task 3 ★ give the blocks back (10 points, about 5 minutes)
        # 1. Hand the blocks to the allocator, in reverse order. `free_many` drops one user of each.
        # 2. Forget blocks and tokens.
        raise NotImplementedError("ch04_block_table, task 3: give the blocks back")

    def blocks_needed(self, num_tokens: int) -> int:
        """How many free blocks `append(num_tokens)` would take now. Changes nothing.

        Example: block size 4, 6 tokens in 2 blocks. For 2 more tokens no block is needed, for 3 one. If the
        second block is shared (task 6), its copy needs one too: 1 and 2.
        """
        # Task 4 ★★ grow, block by block (20 points, about 15 minutes)
        # 1. How many blocks will all the tokens need, and how many are here?
        # In task 6 you come back: a shared tail that will be written into needs one block more.
        raise NotImplementedError("ch04_block_table, task 4: grow, block by block")

    def append(self, num_tokens: int) -> Append:
        """Make room for `num_tokens` more tokens, and say where each of them goes.

        Returns `Append(slots, copies)`, two lists: one slot per new token, in order; and the (src, dst) block
        ids to copy before anything is written, which are none unless the tail is shared (task 6). New blocks
        come from `allocator.allocate_many`, in the order in which it hands them out.

        `OutOfBlocks(needed, free, total)` if `blocks_needed(num_tokens)` is more than what is free; then
        nothing changes. ValueError, with the number, for a negative one. Appending 0 tokens changes nothing.

        Example: block size 4, 3 tokens in block 5; blocks 1 and 6 are free, in this order. `append(3)` fills
        the last slot of block 5 and goes on in block 1: Append(slots=[23, 4, 5], copies=[]).
        """
        # Task 4
        # 1. Refuse a negative number.
        # 2. Compare blocks_needed with what is free, before anything changes.
        # 3. Take exactly the new blocks that all the tokens need, and put them behind the others.
        # 4. Count the tokens, and return their slots, with no copies.
        # In task 6 you come back: between 2 and 3, a shared tail is exchanged for a copy.
        raise NotImplementedError("ch04_block_table, task 4: grow, block by block")

    def fork(self, num_tokens: int | None = None) -> BlockTable:
        """A second table that holds this one's first `num_tokens` tokens (all by default) in the same blocks.

        It has the same allocator, block_size and copy_on_write, a list of block ids of its own, and counts as
        one more user of each of its blocks. No block is taken, so a fork can't run out of blocks. ValueError,
        with both numbers, if num_tokens is negative or more than the table holds; then nothing changes.

        `copy_on_write.fork(block_ids)` adds a user to each of the blocks, and returns a new list of them.

        Example: block size 4, 11 tokens in blocks [0, 1, 2]. `fork()` shares all three. `fork(5)` has 5
        tokens in the blocks [0, 1]; its next token will have position 5.
        """
        # Task 5 ★★ fork (15 points, about 10 minutes)
        # 1. None means all tokens. Refuse a number that can't be.
        # 2. Share the blocks that hold these tokens, and only those.
        # 3. Make a table and let it adopt them.
        raise NotImplementedError("ch04_block_table, task 5: fork")

    def _tail_is_shared(self) -> bool:
        """Whether the next token would be written into a block that somebody else uses too.

        Not so if the last block is full, since the next token starts a new one, or if there is none.
        `copy_on_write.is_writable(block_id)` says whether the block has only one user.

        Example: block size 4, blocks [0, 1], block 1 has two users. With 6 tokens yes, with 8 no.
        """
        # Task 6 ★★ write into a shared tail (20 points, about 15 minutes)
        # A helper for `append`, which must not write into a block that somebody else reads:
        # 1. Is there room in the last block, and does it have another user?
        # 2. If so, and if there is a token to write, `blocks_needed` counts one block more, and
        # 3. `append`, before it takes new blocks, calls `copy_on_write.make_writable(self.block_ids, index)`
        #    with the index of the last block. It takes a free block, gives the shared one up, puts the new id
        #    into the list and returns the (src, dst) to be copied: Append's `copies` is a list of just that.
        raise NotImplementedError("ch04_block_table, task 6: write into a shared tail")

    def truncate(self, num_tokens: int) -> None:
        """A challenge: keep only the first `num_tokens` tokens, and give up the blocks that no token needs.

        Speculative decoding appends several guessed tokens at once, computes them in one step, and takes
        those back that the model would not have chosen. Blocks are given up last one first, as in `free`; one
        with another user stays with that user. ValueError, with both numbers, if num_tokens is negative or
        more than the table holds; then nothing changes.

        Example: block size 4, 11 tokens in the blocks [0, 1, 2] of a pool of 4. `truncate(4)` leaves
        block_ids [0], and the free queue is 3, 2, 1. A later `append` begins at position 4.
        """
        # Task 7 ★★★ take tokens back (20 points, about 15 minutes)
        # 1. Refuse a number that can't be.
        # 2. How many blocks stay? Give up the others, and forget them.
        # 3. What does the next append do if the last block that stays is shared?
        raise NotImplementedError("ch04_block_table, task 7: take tokens back")
