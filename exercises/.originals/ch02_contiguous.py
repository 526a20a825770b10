"""Chapter 2: contiguous allocation and its waste.

You write the traditional way: `reservation` decides how many slots a request sets aside, `Arena` (first fit)
and `Buddy` (powers of two) find a place for them, `account` says what becomes of every slot, and `find_leaks`
finds what somebody forgot to give back. A slot is the place of one token's K and V; nothing here touches a
tensor. Every function has its specification in its docstring, and steps to follow;
`raise NotImplementedError` is where your code goes. `ArenaBlocks`, at the end, is given: it puts your arena
into the engine.

`minipaged check ch02` grades this file, `minipaged hint ch02` helps, and
`minipaged demo --use exercises:ch02` serves a real model with what you wrote.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from minipaged import block_allocator
from minipaged.contiguous import POLICIES, Account, Hole, next_power_of_two


def reservation(policy: str, prompt_len: int, output_len: int, max_model_len: int) -> int:
    """How many slots a policy sets aside for a request whose answer will have `output_len` tokens.

    * "max": nobody knows how long an answer gets, so take the longest that the model allows, `max_model_len`.
    * "pow2": suppose the output length is known to within a factor of 2: take the prompt, and the next power
      of two for the output, but never more than max_model_len.
    * "oracle": suppose it is known: take exactly what prompt and output will need.

    ValueError if prompt and output together are more than max_model_len (with both lengths and the limit in
    the message), and for a policy that is none of these.

    >>> [reservation(policy, 100, 25, 2048) for policy in ("max", "pow2", "oracle")]
    [2048, 132, 125]
    >>> reservation("pow2", 1000, 600, 2000)        # 1000 + 1024 would be more than the model allows
    2000
    """
    # Task 1 ★ three ways to reserve (10 points, about 5 minutes)
    # 1. Refuse a request that does not fit into max_model_len.
    # 2. One `if` for each policy. `next_power_of_two(25)` is 32, `next_power_of_two(32)` is 32.
    # 3. Refuse everything else; POLICIES lists the names.
    raise NotImplementedError("ch02_contiguous, task 1: three ways to reserve")


def account(sequences: Iterable[tuple[int, int, int]], holes: Sequence[Hole], needed: int = 0) -> Account:
    """Where every slot is at one moment, as `Account(used, reserved, internal, external, free)`.

    sequences: for each (slots set aside, tokens held now, tokens held in the end). holes: (first slot, number
    of slots) of each. needed: how many slots the request at the head of the queue asks for; 0 if nobody
    waits.

    * used: slots that hold a token.
    * reserved: slots that will hold one before their sequence ends.
    * internal: slots set aside that will never hold one: internal fragmentation.
    * external: all free slots, if together they would suffice for the request that waits, but none of the
      holes does: external fragmentation. Otherwise 0.
    * free: all free slots otherwise: nobody waits, a hole fits, or there are too few in any case.

    A sequence may end up longer than its reservation; it will then use all of it, and no more. What is passed
    in is only read.

    >>> account([(8, 3, 5)], [(8, 2), (14, 2)], needed=4)
    Account(used=3, reserved=2, internal=3, external=4, free=0)
    >>> account([(8, 3, 5)], [(8, 2), (14, 2)], needed=5)       # 4 slots would not suffice in one hole either
    Account(used=3, reserved=2, internal=3, external=0, free=4)
    """
    # Task 2 ★ where every slot goes (10 points, about 10 minutes)
    # 1. For every sequence: of its slots, how many will hold a token in the end? Not more than it has.
    # 2. Add up: tokens held now, slots still to be filled, slots never filled.
    # 3. Add up the holes, and find the largest; there may be none.
    # 4. External or free? Both comparisons with `needed` count: "enough together", "in no hole".
    raise NotImplementedError("ch02_contiguous, task 2: where every slot goes")


class Arena:
    """`num_slots` slots in a row, numbered 0 … num_slots - 1, and the runs of them that are reserved.

    A hole is a run of free slots, as long as can be: (first slot, number of slots). `self._holes` is the list
    of holes from left to right; `self._sizes` has, for every reservation, its first slot as key and its
    number of slots as value.

    Invariant: holes and reservations cover every slot once; no two holes touch. All or nothing: a method that
    raises or returns None leaves everything as it was.

    >>> arena = Arena(10)
    >>> arena.reserve(4), arena.reserve(3), arena.reserve(2)
    (0, 4, 7)
    >>> arena.release(0)
    >>> arena.holes(), arena.reserve(5)         # 5 slots are free, but not side by side
    ([(0, 4), (9, 1)], None)
    >>> arena.release(4); arena.holes()         # two neighbours have become one hole
    [(0, 7), (9, 1)]
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"an arena needs at least 1 slot, got num_slots={num_slots}")
        self.num_slots = num_slots
        self._holes: list[Hole] = [(0, num_slots)]  # in the order of their first slots
        self._sizes: dict[int, int] = {}  # first slot of a reservation → its number of slots

    @property
    def num_free(self) -> int:
        """Slots that belong to no reservation, in all holes together."""
        return sum(size for _, size in self.holes())

    def holes(self) -> list[Hole]:
        """(first slot, number of slots) of every hole, from left to right, as a new list."""
        return list(self._holes)

    def reservations(self) -> dict[int, int]:
        """First slot → number of slots, of every reservation, as a new dict."""
        return dict(self._sizes)

    def reserve(self, size: int) -> int | None:
        """Reserve `size` slots at the beginning of the first hole that has so many; return the first slot.

        First fit: the leftmost hole that is long enough, whether or not a later one would fit better. None,
        and nothing changes, if no hole is long enough. ValueError, with the number, for a size below 1.

        Example: with holes (2, 3), (8, 6) and (20, 5), `reserve(5)` returns 8 and leaves the holes (2, 3),
        (13, 1) and (20, 5); `reserve(3)` would have returned 2 and left no trace of the first hole.
        """
        # Task 3 ★ first fit (10 points, about 10 minutes)
        # 1. Refuse a size below 1.
        # 2. Go through the holes from left to right to the first that is long enough.
        # 3. Cut the slots off its left end; a hole of exactly `size` slots vanishes from the list.
        # 4. Write the reservation down in self._sizes, and return its first slot.
        raise NotImplementedError("ch02_contiguous, task 3: first fit")

    def release(self, start: int) -> None:
        """Give the reservation that begins at `start` back, and join its slots with the holes beside them.

        ValueError, with the number, and nothing changes, if no reservation begins there: it may have been
        given back before, or `start` is a slot in the middle of one.

        Example: slots 4 to 6 are reserved, with a hole of 4 slots before them and one of 2 after. After
        `release(4)` there is one hole, (0, 9). With reservations on both sides it would have been (4, 3).
        """
        # Task 4 ★★ release and join (20 points, about 15 minutes)
        # 1. Refuse a start that is no key of self._sizes.
        # 2. Take the reservation out; it covers the slots start … end - 1.
        # 3. Find the holes beside it: one that ends at `start`, one that begins at `end`; there may be both,
        #    one or none. Take them out and widen [start, end) over them.
        # 4. Put the new hole where it belongs: the list stays in order of the first slots.
        raise NotImplementedError("ch02_contiguous, task 4: release and join")


class Buddy(Arena):
    """An arena in chunks whose sizes are powers of two: the buddy system.

    To reserve, a chunk is halved until it fits; the two halves are each other's buddies. On release a chunk
    and its buddy become one again, if both are free. The buddy of the chunk of `size` slots at `start` begins
    at `start ^ size` (^ is exclusive or: it flips one bit). `self._free` has, for every size, the set of the
    first slots of its free chunks (a defaultdict: a size that is not there yet is an empty set);
    `self._sizes` is as in `Arena`, with the sizes of whole chunks.

    >>> buddy = Buddy(16)
    >>> buddy.reserve(3), buddy.reserve(5), buddy.holes()      # chunks of 4 and 8
    (0, 8, [(4, 4)])
    >>> buddy.release(0); buddy.release(8); buddy.holes()
    [(0, 16)]
    >>> Buddy(13).holes()                       # no power of two: cut into some, largest first
    [(0, 8), (8, 4), (12, 1)]
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._free: defaultdict[int, set[int]] = defaultdict(set)  # size → first slots of its free chunks
        start = 0
        for digit in reversed(range(num_slots.bit_length())):  # 13 slots: chunks of 8, 4 and 1
            if num_slots >> digit & 1:
                self._free[1 << digit].add(start)
                start += 1 << digit

    def holes(self) -> list[Hole]:
        """(first slot, size) of every free chunk, from left to right; two may touch."""
        return sorted((start, size) for size, starts in self._free.items() for start in starts)

    def reserve(self, size: int) -> int | None:
        """Reserve a chunk of the next power of two that is at least `size`; return its first slot.

        It is cut from the smallest free chunk that suffices, and of several from the leftmost: halved until
        it fits, each time keeping the left half; the right halves become free chunks. None, and nothing
        changes, if no chunk suffices. ValueError, with the number, for a size below 1.

        Example: in a fresh `Buddy(16)`, `reserve(3)` halves 16 into 8 + 8, the left 8 into 4 + 4, and takes
        the left 4. It returns 0, holes() is [(4, 4), (8, 8)], reservations() is {0: 4}. Then `reserve(4)`
        takes the chunk at 4 as it is.
        """
        # Task 5 ★★ the buddy system (20 points, about 15 minutes)
        # 1. Refuse a size below 1, and round it up with next_power_of_two.
        # 2. Find the smallest size that has free chunks and suffices; None if there is no such size.
        # 3. Take the leftmost chunk of that size out of self._free.
        # 4. As long as it is larger than wanted: halve it, and put its right half into self._free.
        # 5. Write the reservation down in self._sizes, with the size of the whole chunk.
        raise NotImplementedError("ch02_contiguous, task 5: the buddy system")

    def release(self, start: int) -> None:
        """Give the chunk that begins at `start` back; as long as its buddy is free too, the two become one.

        Only a free buddy of the same size counts, not any free neighbour. ValueError, with the number, and
        nothing changes, if no reserved chunk begins there.

        Example: in `Buddy(16)` with chunks of 4 reserved at 0, 4, 8 and 12, `release(4)` and `release(8)`
        leave the two holes (4, 4) and (8, 4): they touch, but the buddy of 4 is 0, and that of 8 is 12.
        `release(0)` then joins 0 and 4 into (0, 8).
        """
        # Task 5
        # 1. Refuse a start that is no key of self._sizes; take the reservation out.
        # 2. As long as start ^ size is among the free chunks of that size: take it out; the two are one chunk
        #    of twice the size, which begins where the left one began.
        # 3. Put what came out into self._free.
        raise NotImplementedError("ch02_contiguous, task 5: the buddy system")


def find_leaks(ref_counts: Mapping[int, int], holders: Iterable[Sequence[int]]) -> dict[int, int]:
    """What the books say, minus who is really there, for everything where the two differ.

    ref_counts: id → number of users, as the allocator has counted them; an id that is not listed has 0.
    holders: for each live sequence the list of ids that it holds. An id is the first slot of a reservation
    here, and will be the number of a block from chapter 3 on, where several sequences may hold the same one.

    Above 0 is a leak: a user who has gone without giving it back, so that nobody ever will. Below 0 somebody
    uses what has been given back already, and may soon be somebody else's. What is passed in is only read.

    >>> find_leaks({0: 1, 4: 1, 7: 2}, [[0], [7], [9]])
    {4: 1, 7: 1, 9: -1}
    """
    # Task 6 ★★ find what leaks (10 points, about 10 minutes)
    # 1. Count how often each id is held (collections.Counter).
    # 2. Go through all ids that either side knows; keep those whose difference is not 0.
    raise NotImplementedError("ch02_contiguous, task 6: find what leaks")


def compact(reservations: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Moves (from slot, to slot, number of slots) after which all holes are one, at the right end.

    reservations: first slot → number of slots, in any order. They slide to the left and keep the order in
    which they lie, each reservation as a whole: one move for each that is not in its place already, and none
    for the others. Moves are carried out one after the other; each reads all its slots before it writes, so
    the two ranges of one move may overlap. But no move may write on a reservation that still has to be moved
    itself, or that stays. This is only the plan: `reservations` is not changed.

    The price is not in the plan but in the bytes: every slot moved is K and V of a token in all layers, read
    and written, while the engine stands still.

    >>> compact({5: 2, 0: 3, 9: 4})         # 0 to 2 stay; 5 and 6 move to 3; then 9 to 12 move to 5
    [(5, 3, 2), (9, 5, 4)]
    """
    # Task 7 ★★★ compaction (15 points, about 15 minutes)
    # 1. In which order can reservations slide without running over each other?
    # 2. Keep the slot up to which everything is packed.
    raise NotImplementedError("ch02_contiguous, task 7: compaction")


class ArenaBlocks(block_allocator.BlockAllocator):
    """The traditional way as a part of the engine: served with block_size = max_model_len, every sequence has
    one block, as long as the longest sequence. An arena says which; counts and errors are the base's."""

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] | None = None) -> None:
        super().__init__(num_blocks, on_reuse)
        self._arena = Arena(num_blocks)

    @property
    def num_free(self) -> int:
        return self._arena.num_free

    def free_blocks(self) -> list[int]:
        return [block_id for start, size in self._arena.holes() for block_id in range(start, start + size)]

    def revive(self, block_id: int) -> None:
        super().revive(block_id)
        before = []  # an arena cannot be asked for a place: take the free ones before it, and give them back
        while (start := self._arena.reserve(1)) not in (block_id, None):
            before.append(start)
        for start in before:
            self._arena.release(start)

    def free_many(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        super().free_many(block_ids)
        for block_id in {block_id for block_id in block_ids if self.ref_count(block_id) == 0}:
            self._arena.release(block_id)

    def _take_head(self) -> int:
        block_id = self._arena.reserve(1)
        assert block_id is not None  # num_free said so
        self._free_queue.move_to_end(block_id, last=False)
        return super()._take_head()


BlockAllocator = ArenaBlocks  # the name under which the engine looks for the layer that hands out blocks
