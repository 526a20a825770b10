"""Chapter 9: preemption.

You write `Preemption`, which decides who gives way when the pool is empty, and moves a request's blocks to
another pool and back (tasks 1, 5 and 6); the engine runs it. Tasks 2 to 4 are about the price: three small
functions that say what recomputing costs, what swapping costs, and from where on the second is cheaper. Task
7 is a challenge. Everything here is numbers of blocks and plain arithmetic; the bytes are moved by
`KVCache.copy_blocks_from`, which is given.

Two pools are given to `move_blocks`, and it calls these methods of theirs (chapter 3; the package's own is
used here, so nothing of yours has to be finished): `num_free`, `num_blocks`, `allocate_many(n)`,
`share(block_id)`, `free_many(block_ids)`, `ref_count(block_id)`.

`minipaged check ch09` grades this file, `minipaged hint ch09` helps, and
`minipaged demo --use exercises:ch09` serves a real model with what you wrote.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from minipaged.block_allocator import BlockAllocator


class Preemption:
    """The two decisions of preemption, on plain ints and lists. It has no state: its methods are static.

    >>> Preemption.choose_victim([(0, 1), (5, 0), (0, 2)])
    1
    >>> gpu, cpu = BlockAllocator(4), BlockAllocator(8)
    >>> table = gpu.allocate_many(3)                       # [0, 1, 2]
    >>> Preemption.move_blocks([table], gpu, cpu)
    ([[0, 1, 2]], [(0, 0), (1, 1), (2, 2)])
    >>> gpu.num_free, cpu.num_free
    (4, 5)
    """

    @staticmethod
    def choose_victim(running: Sequence[tuple[int, int]]) -> int:
        """Who gives way: the index, in `running`, of the request that comes last.

        `running` lists the requests that may be chosen, each as (priority, arrival); it is never empty, may
        be in any order, and stays as it is. Requests are served by priority, lower numbers first, and those
        of one priority in the order of their arrival. The one who would be served last gives way. Arrivals
        are all different; a priority may be negative.

        Example: of [(0, 1), (5, 0), (0, 2)] it is index 1, whose priority is 5, although it came first. Of
        [(0, 1), (0, 0), (0, 2)] it is index 2, who came last.
        """
        # Task 1 ★ who gives way (10 points, about 5 minutes)
        # 1. How do two of these pairs compare in Python? Which one is the largest?
        # 2. Return its index, not the pair.
        raise NotImplementedError("ch09_preemption, task 1: who gives way")

    @staticmethod
    def move_blocks(
        tables: Sequence[Sequence[int]], source: BlockAllocator, target: BlockAllocator
    ) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Move the blocks of one request from the pool `source` to the pool `target`.

        `tables` are the block tables of the request's sequences, each a list of block ids of `source`; each
        entry counts as one user there. Nothing is done to these lists. Returns (new tables, copies): the same
        tables with the ids of `target`, in lists of their own; and the (src, dst) to be copied, src a block
        of `source` and dst one of `target`, once for each block that moves, in any order.

        * The different blocks, in the order in which the tables first name them (first table first), get the
          blocks that `target` hands out, in its order.
        * In `source`, every entry gives up one user: the last entry of the last table first, the first entry
          of the first table last. A block that somebody else uses too stays with them.
        * What the tables share they still share in `target` (task 6): a block that they name twice is moved
          once, and has two users there.
        * All or nothing: `OutOfBlocks(needed, free, total)`, with the numbers of `target`, if it has fewer
          free blocks than there are different blocks to move. Then both pools are as they were.

        Example: the tables [7, 3] and [7, 4] move to an empty pool: they become [0, 1] and [0, 2]. The copies
        are (7, 0), (3, 1) and (4, 2). Block 0 of the new pool has two users, blocks 1 and 2 have one.
        """
        # Task 5 ★★ move a request's blocks (20 points, about 15 minutes)
        # 1. List all the entries, table by table, and from them the different blocks in order.
        # 2. Take as many blocks from `target`. This is the only line that can fail: nothing has changed yet.
        # 3. Remember which block became which.
        # 4. Give up all entries in `source`, the last one first.
        # 5. Translate the tables, and list the copies.
        # In task 6 you come back: between 3 and 4, the new blocks get the users that they lack.
        raise NotImplementedError("ch09_preemption, task 5: move a request's blocks")

    @staticmethod
    def _keep_sharing(uses: Sequence[int], moved: dict[int, int], target: BlockAllocator) -> None:
        """Make the new blocks shared as the old ones were among these tables; a helper for `move_blocks`.

        `uses` are all entries of the tables, one after the other; `moved` says which block of `target` each
        of them became. A new block has one user so far. It shall have as many as entries name the old one.

        Example: uses [7, 3, 7, 4] and moved {7: 0, 3: 1, 4: 2}. Block 0 gets a second user.
        """
        # Task 6 ★★ keep what they share (15 points, about 10 minutes)
        # 1. Go through all entries. The first one that names a block is the user that it came with.
        # 2. Every further one is one more: `target.share`.
        # Then have `move_blocks` call this, after it has taken the blocks.
        raise NotImplementedError("ch09_preemption, task 6: keep what they share")


def recompute_flops(
    num_tokens: int,
    num_parameters: int,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    num_cached: int = 0,
) -> int:
    """FLOPs to compute K and V of `num_tokens` tokens anew; the first `num_cached` of them are still there.

    * The matrices: each token that is computed goes through all of `num_parameters` numbers, with one
      multiplication and one addition each.
    * Attention: a token sees all those before it and itself, cached or not. For each such pair, each of
      `num_layers` layers and each of `num_heads` heads multiplies and adds `head_dim` numbers for the score,
      and as many for the weighted sum. (The softmax is left out.)

    Returns a whole number, exact however large it is. num_cached is at most num_tokens.

    Example: 3 tokens, 1,000 parameters, 2 layers of 4 heads of size 8. The matrices take 3 · 2,000. The
    tokens see 1, 2 and 3 tokens, which is 6 pairs, of 4 · 2 · 4 · 8 = 256 each: 6,000 + 1,536 = 7,536. If the
    first two are cached, one token is computed, which sees 3: 2,000 + 3 · 256 = 2,768.
    """
    # Task 2 ★ what recomputing costs (10 points, about 10 minutes)
    # 1. How many tokens are computed?
    # 2. How many pairs? 1 + 2 + … + n is n · (n + 1) / 2; those of the cached tokens are not computed again.
    # 3. Both prices, added. `//` keeps it a whole number.
    raise NotImplementedError("ch09_preemption, task 2: what recomputing costs")


def swap_seconds(
    num_tokens: int,
    block_size: int,
    bytes_per_token: int,
    bytes_per_s: float,
    seconds_per_block: float = 0.0,
) -> float:
    """Seconds that it takes to swap a sequence out and in again.

    Whole blocks move, the last one too if it is not full. Each block moves twice, out and in, and each time
    it takes its bytes at `bytes_per_s`, and `seconds_per_block` besides, whatever its size: to start the
    transfer of a block takes time, too.

    Example: 20 tokens of 100,000 bytes, in blocks of 16, are 2 blocks of 1,600,000 bytes. Over a link of
    16 · 10⁹ bytes a second a block takes 100 µs; with 50 µs more for each, 2 blocks take 300 µs one way, and
    0.0006 s both ways. No tokens take 0 s.
    """
    # Task 3 ★ what swapping costs (10 points, about 5 minutes)
    # 1. How many blocks are it? (Chapter 4's `blocks_for`, again in one line.)
    # 2. How long does one take, one way? Times the blocks, times two.
    raise NotImplementedError("ch09_preemption, task 3: what swapping costs")


def crossover(
    swap_s_per_token: float,
    flops_per_s: float,
    num_parameters: int,
    num_layers: int,
    num_heads: int,
    head_dim: int,
) -> int:
    """The smallest number of tokens, at least 1, from which on swapping is no slower than recomputing.

    Swapping n tokens takes `swap_s_per_token` · n seconds, out and in together. Recomputing them takes
    `recompute_flops(n, …)` FLOPs, none of them cached, at `flops_per_s`. Per token, swapping costs the same
    for any n, while recomputing gets dearer with n, because a token sees ever more others: so there is always
    such a number. If both take equally long, swapping counts as no slower. The result is an int.

    Example: 0.5 s a token, 6,560 FLOPs a second, 1,000 parameters, 2 layers of 4 heads of size 8. Recomputing
    n tokens is 2,000 · n + 128 · n · (n + 1) FLOPs. At 9 tokens that is 29,520, which takes 4.5 s, and so
    does swapping them: the answer is 9. At 0.3 s a token swapping is never slower: the answer is 1.
    """
    # Task 4 ★★ from where on swapping is cheaper (15 points, about 15 minutes)
    # 1. Write down "recomputing takes at least as long as swapping" for n tokens. Both sides have a factor n.
    # 2. Divide by it, and solve for n.
    # 3. The smallest whole number that is not below the solution, and not below 1.
    raise NotImplementedError("ch09_preemption, task 4: from where on swapping is cheaper")


def swap_out_own(
    tables: Sequence[Sequence[int]], gpu: BlockAllocator, cpu: BlockAllocator
) -> tuple[list[list[tuple[str, int]]], list[tuple[int, int]]]:
    """A challenge: swap a request out, but leave on the GPU what somebody else uses too.

    `move_blocks` copies every block, also one that another request uses, which does not become free by that:
    it is copied for nothing, and when it comes back it is a second copy that takes a block of its own. Here
    such a block stays where it is, and the request stays one of its users, so that it cannot be lost.

    A block is *own* if nobody uses it but these tables: if they name it as often as it has users. Own blocks
    move as in `move_blocks`, and what the tables share among them stays shared. Returns (places, copies):
    for each table a list of places, one for each entry, which is ("cpu", id) for a block that has moved, with
    its new id, and ("gpu", id) for one that stays. All or nothing: `OutOfBlocks`, with the numbers of `cpu`,
    if it has too few free blocks; then nothing changes.

    Example: a request has the tables [5, 2] and [5, 3]; another request uses block 5 too, which has 3 users.
    The CPU pool is empty. The places are [("gpu", 5), ("cpu", 0)] and [("gpu", 5), ("cpu", 1)], the copies
    (2, 0) and (3, 1). Block 5 still has 3 users, blocks 2 and 3 are free.
    """
    # Task 7 ★★★ leave what others use (20 points, about 25 minutes)
    # 1. Count how often the tables name each block. Which ones are their own?
    # 2. Let move_blocks move the tables without the others.
    # 3. Put the tables together again: each entry is the next one that has moved, or one that stays.
    raise NotImplementedError("ch09_preemption, task 7: leave what others use")


def swap_in_own(
    places: Sequence[Sequence[tuple[str, int]]], cpu: BlockAllocator, gpu: BlockAllocator
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """The way back: bring what `swap_out_own` has moved to the GPU again, beside what has stayed there.

    Returns (tables, copies) as `move_blocks` does: block tables with ids of `gpu` only. All or nothing:
    `OutOfBlocks`, with the numbers of `gpu`, if it has too few free blocks; then nothing changes.

    Example: the places [("gpu", 5), ("cpu", 0)] and [("gpu", 5), ("cpu", 1)], with blocks 2 and 3 free on the
    GPU, in this order, become the tables [5, 2] and [5, 3]; the copies are (0, 2) and (1, 3).
    """
    # Task 7
    # 1. Let move_blocks move the entries that are on the CPU.
    # 2. Put the tables together again.
    raise NotImplementedError("ch09_preemption, task 7: leave what others use")
