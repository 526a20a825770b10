"""The traditional way: one contiguous run of memory per sequence, reserved when its request is admitted.

Before paging, engines set aside, for every request, one run of token slots for all that it might ever write.
Here are three ways to decide how long a run to ask for, the two classical allocators that hand runs out, and
the account of what becomes of the memory: to be measured, and to be replaced. A slot is the place of one
token's K and V in all layers. Chapter 02 (Kwon et al., SOSP'23, section 3.1; first fit and buddies: Knuth,
The Art of Computer Programming, volume 1, section 2.5).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from minipaged.block_allocator import BlockAllocator

POLICIES = ("max", "pow2", "oracle")
Hole = tuple[int, int]  # (first slot, number of slots)


class Account(NamedTuple):
    """Where the slots of an arena are at one moment; the five numbers add up to all of them."""

    used: int  # hold a token
    reserved: int  # will hold one before their sequence ends
    internal: int  # set aside, and never used
    external: int  # free, and enough for the request at the head of the queue, but in no single hole
    free: int  # the rest


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`: 1 → 1, 5 → 8, 8 → 8."""
    return 1 << (n - 1).bit_length()


def reservation(policy: str, prompt_len: int, output_len: int, max_model_len: int) -> int:
    """How many slots a policy sets aside for a request whose answer will have `output_len` tokens.

    "max" takes max_model_len; "pow2" knows the output length to within a factor of 2 and takes the next power
    of two for it; "oracle" knows it. ValueError for another policy, or more than max_model_len tokens.

    >>> [reservation(policy, 100, 25, 2048) for policy in POLICIES]
    [2048, 132, 125]
    """
    final_len = prompt_len + output_len
    if final_len > max_model_len:
        raise ValueError(f"{prompt_len} + {output_len} tokens are more than max_model_len={max_model_len}")
    if policy == "max":
        return max_model_len
    if policy == "pow2":
        return min(prompt_len + next_power_of_two(output_len), max_model_len)
    if policy == "oracle":
        return final_len
    raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")


def account(sequences: Iterable[tuple[int, int, int]], holes: Sequence[Hole], needed: int = 0) -> Account:
    """Where every slot is; `sequences` are (slots set aside, tokens held now, tokens held in the end).

    needed: slots that the request at the head of the queue asks for; 0 if none waits. A sequence that will
    outgrow its reservation leaves none of it unused.

    >>> account([(8, 3, 5)], [(8, 2), (14, 2)], needed=4)
    Account(used=3, reserved=2, internal=3, external=4, free=0)
    """
    used = reserved = internal = 0
    for size, num_tokens, final_len in sequences:
        used_in_the_end = min(final_len, size)
        used += num_tokens
        reserved += used_in_the_end - num_tokens
        internal += size - used_in_the_end
    sizes = [size for _, size in holes]
    if needed > 0 and max(sizes, default=0) < needed <= sum(sizes):
        return Account(used, reserved, internal, external=sum(sizes), free=0)
    return Account(used, reserved, internal, external=0, free=sum(sizes))


class Arena:
    """`num_slots` slots in a row, and the runs of them that are reserved: first fit.

    Invariant: holes and reservations cover every slot once; no two holes touch.

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
        """(first slot, number of slots) of every hole, from left to right."""
        return list(self._holes)

    def reservations(self) -> dict[int, int]:
        """First slot → number of slots, of every reservation."""
        return dict(self._sizes)

    def reserve(self, size: int) -> int | None:
        """Reserve `size` slots at the beginning of the first hole that has so many; return the first slot.

        None, and nothing changes, if no hole is long enough. ValueError for a size below 1.
        """
        if size < 1:
            raise ValueError(f"cannot reserve {size} slots")
        for index, (start, hole_size) in enumerate(self._holes):
            if hole_size >= size:
                rest = (start + size, hole_size - size)
                self._holes[index : index + 1] = [rest] if hole_size > size else []
                self._sizes[start] = size
                return start
        return None

    def release(self, start: int) -> None:
        """Give the reservation that begins at `start` back, and join its slots with the holes beside them.

        ValueError, and nothing changes, if no reservation begins there.
        """
        if start not in self._sizes:
            raise ValueError(f"no reservation begins at slot {start}")
        end = start + self._sizes.pop(start)
        for hole in [hole for hole in self._holes if sum(hole) == start or hole[0] == end]:
            self._holes.remove(hole)
            start, end = min(start, hole[0]), max(end, sum(hole))
        insort(self._holes, (start, end - start))


class Buddy(Arena):
    """An arena in chunks whose sizes are powers of two, halved to reserve, joined on release.

    The buddy of a chunk, the other half of what it was cut from, begins at start ^ size, so nothing has to be
    searched for. The price is rounding: a reservation holds a whole chunk.

    >>> buddy = Buddy(16)
    >>> buddy.reserve(3), buddy.reserve(5), buddy.holes()      # chunks of 4 and 8
    (0, 8, [(4, 4)])
    >>> buddy.release(0); buddy.release(8); buddy.holes()
    [(0, 16)]
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
        """Reserve the next power of two: of the smallest free chunks that suffice the leftmost, halved until
        it fits, each time keeping its left half. None and ValueError as in `Arena`."""
        if size < 1:
            raise ValueError(f"cannot reserve {size} slots")
        wanted = next_power_of_two(size)
        fitting = [chunk for chunk, starts in self._free.items() if starts and chunk >= wanted]
        if not fitting:
            return None
        chunk = min(fitting)
        start = min(self._free[chunk])
        self._free[chunk].remove(start)
        while chunk > wanted:
            chunk //= 2
            self._free[chunk].add(start + chunk)
        self._sizes[start] = wanted
        return start

    def release(self, start: int) -> None:
        """Give a chunk back; as long as its buddy is free too, the two become one. Errors as in `Arena`."""
        if start not in self._sizes:
            raise ValueError(f"no reservation begins at slot {start}")
        chunk = self._sizes.pop(start)
        while (buddy := start ^ chunk) in self._free[chunk]:
            self._free[chunk].remove(buddy)
            start, chunk = min(start, buddy), 2 * chunk
        self._free[chunk].add(start)


def find_leaks(ref_counts: Mapping[int, int], holders: Iterable[Sequence[int]]) -> dict[int, int]:
    """What the books say minus who is really there: `holders` are the ids that each live sequence holds.

    Above 0 is a leak, which is never freed; below 0, a sequence uses what has been given up.

    >>> find_leaks({0: 1, 4: 1, 7: 2}, [[0], [7], [9]])
    {4: 1, 7: 1, 9: -1}
    """
    uses = Counter(chain.from_iterable(holders))
    differences = {key: ref_counts.get(key, 0) - uses[key] for key in sorted({*ref_counts, *uses})}
    return {key: difference for key, difference in differences.items() if difference != 0}


class ArenaBlocks(BlockAllocator):
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
