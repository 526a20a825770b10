"""Chapter 3: the block pool.

You write `BlockAllocator`, which hands out the blocks of the pool. It knows nothing about tokens or tensors:
a block is a number from 0 to N-1, with a count of its users. Every method has its specification in its
docstring, and steps to follow; `raise NotImplementedError` is where your code goes.

`minipaged check ch03` grades this file, `minipaged hint ch03` helps, and
`minipaged demo --use exercises:ch03` serves a real model with what you wrote.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from minipaged.errors import OutOfBlocks


class BlockAllocator:
    """A pool of `num_blocks` blocks with ids 0 … N-1, a free queue and a reference count per block.

    The free queue says in which order free blocks are handed out: first in, first out. In a fresh pool that
    is 0, 1, …, N-1; a block that becomes free goes to the tail. There is no reserved block: all N can be
    handed out.

    Invariant: a block is in the free queue, once, if and only if its reference count is 0. All or nothing: a
    method that raises leaves everything as it was.

    >>> pool = BlockAllocator(4)
    >>> pool.allocate_many(3)
    [0, 1, 2]
    >>> pool.free(1); pool.num_free
    2
    >>> pool.allocate_many(2)               # first in, first out: 3 was free before 1
    [3, 1]
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] | None = None) -> None:
        """A pool in which every block is free. ValueError, with the number, for fewer than 1 block.

        on_reuse: called as `on_reuse(block_id)` for every block that `allocate` and `allocate_many` hand
        out. What the block held before is gone then, and the prefix cache (chapter 7) must know. None: nobody
        asks.
        """
        # Task 1 ★ a fresh pool (10 points, about 10 minutes)
        # 1. Refuse a num_blocks below 1 with a ValueError that contains it.
        # 2. Keep num_blocks (a public attribute) and on_reuse.
        # 3. Set up a reference count of 0 for every block, and the free queue 0, 1, …, N-1. An OrderedDict
        #    with the block ids as keys is a queue from whose middle a block can be taken in O(1) (task 5).
        raise NotImplementedError("ch03_block_allocator, task 1: a fresh pool")

    @property
    def num_free(self) -> int:
        """How many blocks can still be handed out."""
        # Task 1
        raise NotImplementedError("ch03_block_allocator, task 1: a fresh pool")

    def free_blocks(self) -> list[int]:
        """The free blocks in the order in which they will be handed out, as a new list."""
        # Task 1
        raise NotImplementedError("ch03_block_allocator, task 1: a fresh pool")

    def ref_count(self, block_id: int) -> int:
        """How many users the block has; 0 means free.

        ValueError for a block that the pool does not have, with its id and the last id of the pool: of a pool
        of 4, `ref_count(7)` and `ref_count(-1)` are errors.
        """
        # Task 1
        # 1. Refuse an unknown block. (Python's own list[-1] would quietly be the last one.)
        # 2. Return its count.
        raise NotImplementedError("ch03_block_allocator, task 1: a fresh pool")

    def allocate(self) -> int:
        """Take the block at the head of the free queue, with one user. `OutOfBlocks` if none is free."""
        return self.allocate_many(1)[0]

    def allocate_many(self, n: int) -> list[int]:
        """Take `n` blocks from the head of the free queue, each with one user, and return them in that order.

        `OutOfBlocks(needed=n, free=…, total=…)` if fewer than `n` are free; then none is taken. ValueError,
        with the number, for a negative `n`. `on_reuse` is called once for each block taken, in order.

        Example: in a pool of 4 with two blocks in use, `allocate_many(3)` raises "need 3, 2 free of 4", and
        both free blocks stay free.
        """
        # Task 2 ★ take blocks from the pool (15 points, about 10 minutes)
        # 1. Refuse a negative n.
        # 2. Compare n with what is free, before anything is taken.
        # 3. Take n blocks from the head; each gets 1 user and is reported to on_reuse, if there is one.
        raise NotImplementedError("ch03_block_allocator, task 2: take blocks from the pool")

    def share(self, block_id: int) -> None:
        """Add one user to a block in use. ValueError, with the id, for a free block or an unknown one.

        A free block can't be shared: it may be handed out to somebody else at any time.

        Example: block 0 has one user. After `share(0)` it has two, and the second `free(0)` makes it free.
        """
        # Task 4 ★ share a block (5 points, about 5 minutes)
        # 1. Refuse a free block; ref_count refuses an unknown one.
        # 2. Count one user more.
        raise NotImplementedError("ch03_block_allocator, task 4: share a block")

    def revive(self, block_id: int) -> None:
        """Take one particular free block out of the free queue, wherever in it, with one user. In O(1).

        The order of the others stays. What the block holds is kept, so `on_reuse` is not called: somebody
        found it by its content (chapter 7). ValueError, with the id, for a block in use or an unknown one.

        Example: with the free queue 0, 1, 2, 3, `revive(2)` leaves 0, 1, 3.
        """
        # Task 5 ★★ take one particular free block (15 points, about 10 minutes)
        # 1. Refuse a block in use; ref_count refuses an unknown one.
        # 2. Take it out of the queue; it has 1 user now.
        raise NotImplementedError("ch03_block_allocator, task 5: take one particular free block")

    def free(self, block_id: int) -> None:
        """Drop one user of a block; without users it goes to the tail of the free queue.

        ValueError, with the id, for a block that is free already (a double free) or unknown.

        Example: in a pool of 4, blocks 0, 1 and 2 are in use. `free(2)` and `free(0)` make the free queue
        3, 2, 0. Another `free(2)` is an error.
        """
        # Task 3 ★ give a block back (10 points, about 5 minutes)
        # 1. Refuse a free block; ref_count refuses an unknown one. (Or let free_many do all of it.)
        # 2. Count one user less.
        # 3. If that was the last one, put the block at the tail.
        raise NotImplementedError("ch03_block_allocator, task 3: give a block back")

    def free_many(self, block_ids: Iterable[int]) -> None:
        """Drop one user per entry, in the order given; all or nothing.

        A block may be listed twice only if it has two users to give it up: with one user, `free_many([b, b])`
        is a ValueError with the id, and changes nothing. So is a list with an unknown or a free block in it,
        wherever in the list that stands. A list that is passed in stays as it is.

        Example: block 0 has one user and block 1 has two. `free_many([1, 0, 1])` puts 0 into the free queue,
        and then 1.
        """
        # Task 6 ★★ give many back, or none (20 points, about 15 minutes)
        # 1. Make a list of the blocks: you will go through them twice, and an iterator lasts for once.
        # 2. Count how often each block is listed, and compare with its users, before anything changes.
        # 3. Drop the users one by one, in order; a block without users goes to the tail.
        raise NotImplementedError("ch03_block_allocator, task 6: give many back, or none")

    # Helpers of your own go here.


class LinkedFreeQueue:
    """A challenge: the free queue as vLLM builds it, a doubly linked list in plain lists of numbers.

    It starts with the blocks 0 … N-1 in order. Every method is O(1) but `blocks`: no list is searched or
    shifted, and no dict or OrderedDict is used. With the neighbours of each block in two lists, taking a
    block out of the middle joins its neighbours to each other.

    >>> queue = LinkedFreeQueue(4)
    >>> queue.remove(2); queue.append(2); queue.popleft(), queue.blocks()
    (0, [1, 3, 2])
    """

    def __init__(self, num_blocks: int) -> None:
        """A queue of the blocks 0 … N-1."""
        # Task 7 ★★★ the free queue by hand (25 points, about 30 minutes)
        # 1. Lay the neighbours down: before[b] and after[b] of every block. One more place, at index N, that
        #    stands before the head and behind the tail, saves every "if the queue is empty".
        # 2. Remember who is in the queue, and how many.
        raise NotImplementedError("ch03_block_allocator, task 7: the free queue by hand")

    def __len__(self) -> int:
        """How many blocks are in the queue."""
        # Task 7
        raise NotImplementedError("ch03_block_allocator, task 7: the free queue by hand")

    def popleft(self) -> int:
        """Take the head and return it. IndexError if the queue is empty."""
        # Task 7
        # 1. Refuse an empty queue.
        # 2. Which block comes after the extra place? Take that one out.
        raise NotImplementedError("ch03_block_allocator, task 7: the free queue by hand")

    def append(self, block_id: int) -> None:
        """Put a block at the tail. ValueError, with the id, if it is in the queue already."""
        # Task 7
        # 1. Refuse a block that is in the queue.
        # 2. Make it the neighbour of the tail on one side, and of the extra place on the other.
        # 3. Remember that it is in.
        raise NotImplementedError("ch03_block_allocator, task 7: the free queue by hand")

    def remove(self, block_id: int) -> None:
        """Take a block out, wherever it is. ValueError, with the id, if it is not in the queue."""
        # Task 7
        # 1. Refuse a block that is not in the queue, also one that can never be.
        # 2. Make its two neighbours each other's.
        # 3. Remember that it is out.
        raise NotImplementedError("ch03_block_allocator, task 7: the free queue by hand")

    def blocks(self) -> list[int]:
        """The blocks from head to tail, as a new list."""
        # Task 7
        # 1. Begin after the extra place, and go from neighbour to neighbour until you are back there.
        raise NotImplementedError("ch03_block_allocator, task 7: the free queue by hand")
