"""Chapter 6: sharing and copy-on-write.

You write `CopyOnWrite`, the three decisions that let several sequences use the same blocks: how a fork
shares them, who may write into a block, and who gets a copy. It works on plain lists of block ids, and it
moves no bytes: it says which block must be copied where. Every function has its specification in its
docstring, and steps to follow; `raise NotImplementedError` is where your code goes.

The pool is given (chapter 3; the package's own is used here, so nothing of yours has to be finished). Of the
`allocator` you need:

* `ref_count(block_id)`: how many users the block has;
* `share(block_id)`: one user more; ValueError if the block is free;
* `allocate()`: a free block, with one user; `OutOfBlocks` if there is none, and then nothing has changed;
* `free(block_id)`: one user less; without users the block goes to the tail of the free queue;
* `num_free` and `num_blocks`.

`minipaged check ch06` grades this file, `minipaged hint ch06` helps, and
`minipaged demo --use exercises:ch06` serves a real model with what you wrote.
"""

from __future__ import annotations

from collections import Counter

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable
from minipaged.errors import OutOfBlocks


class CopyOnWrite:
    """The three decisions of sharing, on plain lists of block ids.

    A reference count says how many lists a block is in. Whoever has it in a list is an owner: it may read
    the block, must not write into it while there are other owners, and gives it up by freeing it once.

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
        """Sharing for the blocks of one pool. Given."""
        self.allocator = allocator

    def fork(self, block_ids: list[int]) -> list[int]:
        """Share every block of a list with one more owner, and return that owner's list: a new one.

        No block is allocated, so a fork can't run out of blocks, however full the pool is. The list that was
        passed in stays as it is. An empty list gives an empty list.

        Example: blocks 4 and 2, each with one user. `fork([4, 2])` returns [4, 2], and both have two users. A
        second `fork([4, 2])`, or a fork of the fork, makes it three.
        """
        # Task 1 ★ fork (10 points, about 5 minutes)
        # 1. Count one more user of every block.
        # 2. Return a list of the same ids, but not the same list.
        raise NotImplementedError("ch06_copy_on_write, task 1: fork")

    def is_writable(self, block_id: int) -> bool:
        """Whether somebody who has the block in a list may write into it: True if nobody else has it too.

        Changes nothing. Who was there first does not matter: parent and child are equals.

        Example: a block with one user is writable. After a fork it is not, for either of the two. When one of
        them has freed it, it is again, for the other one.
        """
        # Task 2 ★ who may write (5 points, about 5 minutes)
        # 1. How many users does the block have, if the caller is the only one?
        raise NotImplementedError("ch06_copy_on_write, task 2: who may write")

    def make_writable(self, block_ids: list[int], index: int) -> tuple[int, int] | None:
        """Make `block_ids[index]` a block that only this list's owner uses; return the copy to run, or None.

        If nobody else uses the block, nothing changes, and None is returned: no copy. Else the owner moves to
        a fresh block: one is allocated and takes the shared one's place in `block_ids` (in the list that was
        passed in), the shared one loses a user, and `(src, dst)`, shared and fresh id, is returned: the
        content of src must be copied to dst before anything is written.

        `OutOfBlocks`, as `allocate` raises it, if no block is free; then nothing has changed.

        Example: child [0, 1] and parent [0, 1] share both blocks, 2 is the next free one.
        `make_writable(child, 1)` returns (1, 2); child is [0, 2], parent still [0, 1]. `make_writable(parent,
        1)` returns None: the parent is block 1's last owner by now, and writes in place.
        """
        # Task 4 ★★ copy on write (20 points, about 15 minutes)
        # 1. Nothing to do if the block is the owner's alone.
        # 2. Take a fresh block. This is the only line that can fail: what must not have happened before it?
        # 3. Give the shared block up, put the fresh one into its place, return (shared, fresh).
        raise NotImplementedError("ch06_copy_on_write, task 4: copy on write")


def blocks_saved(n: int, prompt_len: int, output_len: int, block_size: int) -> int:
    """How many blocks `n` samples of one prompt save by sharing, when each has `output_len` tokens of its
    own.

    The prompt has `prompt_len` tokens, and n is at least 1. Without sharing each sample would hold the blocks
    of prompt and output, ceil((prompt_len + output_len) / block_size). With fork and copy-on-write one copy
    of what all have in common is enough. As long as nobody has written (output_len 0) that is every block of
    the prompt, also a last one that is not full. Once each has written, it is only those blocks that the
    prompt fills.

    Examples, in blocks of 16: 4 samples of a prompt of 40 tokens save 6 blocks, (4 - 1) · 2, be the output
    1 token long or 100. Just forked, with output_len 0, they save 9, (4 - 1) · 3. One sample saves nothing.
    """
    # Task 3 ★ what sharing saves (10 points, about 10 minutes)
    # 1. How many blocks of the prompt stay shared? Two cases; `//` rounds down.
    # 2. One of the n samples would need these blocks anyway.
    raise NotImplementedError("ch06_copy_on_write, task 3: what sharing saves")


def make_step_writable(cow: CopyOnWrite, writers: list[tuple[list[int], int]]) -> list[tuple[int, int]]:
    """A challenge: the copies of a whole step, as one batch, for all who write in it, or for nobody.

    `writers` are pairs (block_ids, index): the owner of this list will write into block_ids[index]. No place
    is named twice, but one list may write into several of its blocks. `writers` itself stays as it is.
    Afterwards all of these blocks are writable, each by its owner; the copies are returned in the order of
    the writers. If all k owners of a block write, they need k - 1 copies, since the last one writes in place.
    If one of the k only reads, the k - 1 others need a copy each: k - 1 again.

    `OutOfBlocks(needed, free, total)`, needed for all of the step's copies, if these are more than what is
    free; then nothing has changed: no list, no count. This is where one writer at a time is not enough: the
    third may find no block when two have moved already.

    `cow` is given, with `is_writable(block_id)`, `make_writable(block_ids, index)` and `allocator`.

    Example: a, b and c have all forked block 0, and a pool of 3 has blocks 1 and 2 free. Writers a, b, c:
    the copies are [(0, 1), (0, 2)], and c stays in block 0. In a pool of 2 the same is "need 2, 1 free of 2".
    """
    # Task 5 ★★★ the copies of a whole step (20 points, about 20 minutes)
    # 1. Count, for every block, how many of the writers will write into it.
    # 2. How many of these need a copy? Compare with the block's users; add it up over all blocks.
    # 3. Compare with what is free, before anything changes.
    # 4. Make the blocks writable, one writer after the other, and collect the copies.
    raise NotImplementedError("ch06_copy_on_write, task 5: the copies of a whole step")


class BestOf:
    """A challenge: n samples of one prompt of which only the likeliest is wanted, with early stopping.

    A branch's score is the sum of its tokens' log-probabilities. None of these is above 0, so a score can
    only fall. As soon as one branch has ended, every other whose score is not above the ended one's is
    hopeless, and can be stopped; its blocks serve somebody else.

    >>> table = BlockTable(BlockAllocator(8), block_size=4)
    >>> table.append(6)                                         # the prompt, in the blocks 0 and 1
    >>> best_of = BestOf(table, n=3)
    >>> best_of.step({0: -0.5, 1: -2.0, 2: -1.0}, ended=[])     # 0 and 1 get copies, 2 writes in place
    [(1, 2), (1, 3)]
    >>> best_of.step({0: -0.5, 1: -0.25, 2: -0.25}, ended=[0])  # 0 ends with -1.0: the others can't beat it
    []
    >>> best_of.best, best_of.live()
    ((0, -1.0), [])
    """

    def __init__(self, table: BlockTable, n: int) -> None:
        """Branch 0 is `table` itself; the branches 1 to n-1 are forks of it. All scores are 0.0.

        `best` is None until a branch has ended; then the pair (branch, score) of the best ended one.
        """
        # Task 6 ★★★ the best of n, stopping early (20 points, about 20 minutes)
        raise NotImplementedError("ch06_copy_on_write, task 6: the best of n, stopping early")

    def live(self) -> list[int]:
        """The branches that still run, lowest first."""
        # Task 6
        raise NotImplementedError("ch06_copy_on_write, task 6: the best of n, stopping early")

    def block_ids(self, branch: int) -> list[int]:
        """The blocks that a live branch holds, in order, as a new list."""
        # Task 6
        raise NotImplementedError("ch06_copy_on_write, task 6: the best of n, stopping early")

    def step(self, logprobs: dict[int, float], ended: list[int]) -> list[tuple[int, int]]:
        """Take in one new token for every live branch, and return the copies of this step, in order.

        `logprobs` has the log-probability of each live branch's new token; `ended` names the live branches
        for which it was the last one. Of those that end, the one with the highest score is remembered in
        `best`, if its score is above that of the best one so far (equal scores: the one that ended first,
        then the lower branch). They free their blocks, and so do all live branches whose score is not above
        best's. The others append one token to their table, the lowest branch first.

        Nobody appends before all that stop have freed: a block may have only one owner left by then, who
        writes it in place, and blocks that were freed can be taken again. Only *ended* branches make others
        stop; one that is ahead may still fall behind. Both arguments stay as they are.
        """
        # Task 6
        # 1. Add the log-probabilities to the scores.
        # 2. Which branches end, and is one of them better than the best so far? Free them.
        # 3. Free the hopeless ones.
        # 4. `table.append(1)` for the rest: its `.copies` are what it needs to have copied.
        raise NotImplementedError("ch06_copy_on_write, task 6: the best of n, stopping early")
