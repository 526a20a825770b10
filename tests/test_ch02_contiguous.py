"""Chapter 2's grader: contiguous allocation. `minipaged check ch02` runs it on your exercise."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.contiguous import Account
from minipaged.course import Layer, Mismatch, Replay, Step, Task, expect, expect_error
from minipaged.errors import OutOfBlocks

TASKS = (
    Task(
        1, "three ways to reserve", stars=1, points=10, minutes=5,
        hints=(
            "Which check concerns all three policies? It comes first.",
            "Only the output is rounded up: the prompt is there, its length is known.",
            "`min(prompt_len + next_power_of_two(output_len), max_model_len)` is the policy in the middle.",
        ),
        compare="that the request is refused before the policy is looked at",
    ),
    Task(
        2, "where every slot goes", stars=1, points=10, minutes=10,
        hints=(
            "Draw one reservation as a bar of `size` slots. Where does its last token land, and what is to "
            "the right of that?",
            "`min(final_len, size)` slots of it are used in the end; the rest is internal.",
            "External fragmentation is two comparisons: the largest hole < needed, and needed <= all holes "
            "together. `max(sizes, default=0)` copes with no holes.",
        ),
        compare="the chained comparison that says what external fragmentation is",
    ),
    Task(
        3, "first fit", stars=1, points=10, minutes=10,
        hints=(
            "Go through `enumerate(self._holes)`; the first hole that is long enough is it.",
            "What is left of a hole of 6 slots when 6 are taken? Nothing, not a hole of 0.",
            "`self._holes[index] = (start + size, hole_size - size)`, or `del self._holes[index]`.",
        ),
        compare="the slice assignment that replaces a hole by one hole or by none",
    ),
    Task(
        4, "release and join", stars=2, points=20, minutes=15,
        hints=(
            "A hole (a, n) ends before slot a + n. Which two of the holes can touch the slots given back?",
            "Four cases: no neighbour is a hole, the left one, the right one, both. Widening start and end "
            "over whichever is there handles all four in one way.",
            "Take the neighbours out, insert (start, end - start), keep the list sorted: `bisect.insort`.",
        ),
        compare="how the four cases have become one loop",
    ),
    Task(
        5, "the buddy system", stars=2, points=20, minutes=15,
        hints=(
            "Reserving: smallest size with a free chunk, leftmost chunk of it, then halve. A size in "
            "self._free may have an empty set.",
            "While the chunk is too large: `chunk //= 2`, and its right half begins at start + chunk.",
            "Releasing: `while (start ^ chunk) in self._free[chunk]`: take the buddy out, start is the "
            "smaller of the two, chunk doubles. After the loop, add what came out.",
        ),
        compare="that nothing is searched for when a chunk comes back",
    ),
    Task(
        6, "find what leaks", stars=2, points=10, minutes=10,
        hints=(
            "`Counter` gives 0 for what it has not seen.",
            "An id may be known to the books only, or to a sequence only: the union of both is "
            "`{*ref_counts, *uses}`.",
        ),
        compare="that both directions are found in one pass, and what each means",
    ),
    Task(
        7, "compaction", stars=3, points=15, minutes=15,
        hints=(
            "The leftmost reservation can always slide to slot 0. And then?",
            "sorted(reservations.items()), and a counter for the first slot that is not packed yet.",
        ),
        compare="why no move can overwrite what is still to be read",
    ),
)

TOGETHER = "the power of two was taken of prompt and output together"
NOT_CAPPED = "the reservation is longer than the model allows"
TWICE_TOO_FAR = "an output that is a power of two already was rounded up to the next one"
PROMPT_FORGOTTEN = "the prompt needs slots too"
STILL_TO_COME = "slots that will still be filled were counted as never used"
NEVER_USED = "slots that are never used were counted as still to be filled"
ANY_FREE = "free slots were counted as external fragmentation although a hole fits"
NOBODY_WAITS = "free slots were counted as external fragmentation although nobody waits for them"
TOO_FEW = "free slots were counted as external fragmentation although they would not suffice in one piece"
EMPTY_HOLE = "a hole of 0 slots was left behind"
PASSED_OVER = "a hole of exactly the right size was passed over"
LATER_HOLE = "a later hole was taken although an earlier one is long enough: that is not first fit (reserve)"
RIGHT_END = "the slots were taken from the right end of the hole"
NOT_JOINED = "two holes that touch were not joined"
OUT_OF_ORDER = "the holes are not in the order of their first slots"
LOST = "slots belong neither to a hole nor to a reservation: they are lost"
OVERLAP = "slots belong to two at once"
LARGER_CHUNK = "a larger chunk was halved although a smaller one suffices"
RIGHT_HALF = "the right half was kept, not the left one"
JOINED_STRANGERS = "a chunk was joined with a neighbour that is not its buddy"
NOT_HELD = "an id that somebody holds, but the books do not know, was overlooked"
OVERWRITTEN = "a move wrote on slots that a later move still had to read, or that stay"
HELD_TWICE = "an id that two sequences hold was counted once"


# -- how a state is drawn, and which mistake it shows ---------------------------------------------------


def state_of(arena: Any) -> dict[str, Any]:
    """All that can be seen of an arena."""
    return {"holes": arena.holes(), "reservations": arena.reservations(), "num_free": arena.num_free}


def sketch_arena(num_slots: int, state: dict[str, Any]) -> str:
    """One character a slot: a letter for each reservation, |·· for a hole, ? for neither, ! for two at once.

    >>> print(sketch_arena(10, {"reservations": {0: 3, 5: 2}, "holes": [(3, 2), (7, 2)]}))
    slots 0123456789
          AAA|·FF|·?
    """
    cells = ["?"] * num_slots
    runs = [(chr(ord("A") + start % 26) * size, start) for start, size in state["reservations"].items()]
    for text, start in runs + [("|" + "·" * (size - 1), start) for start, size in state["holes"]]:
        for slot, letter in enumerate(text, start):
            if 0 <= slot < num_slots:
                cells[slot] = letter if cells[slot] == "?" else "!"
    return f"slots {''.join(str(slot % 10) for slot in range(num_slots))}\n      {''.join(cells)}"


def name_mistake(num_slots: int, is_buddy: bool) -> Any:
    """A function that finds the known mistake that a wrong step shows."""

    def name(step: Step) -> str | None:
        came, wanted = step.state["holes"], step.expected_state["holes"]
        cells = sketch_arena(num_slots, step.state).splitlines()[-1]
        if any(size == 0 for _, size in came):
            return EMPTY_HOLE
        if "!" in cells:
            return OVERLAP
        if "?" in cells:
            return LOST
        if came != sorted(came):
            return OUT_OF_ORDER
        if "release" in step.operation:
            if len(came) > len(wanted):
                return NOT_JOINED
            return JOINED_STRANGERS if is_buddy and len(came) < len(wanted) else None
        if is_buddy:
            return LARGER_CHUNK if len(came) > len(wanted) else None
        ours, theirs = step.got.value, step.expected.value
        if ours is None and isinstance(theirs, int):
            return PASSED_OVER
        if isinstance(ours, int) and isinstance(theirs, int) and ours > theirs:
            starts = [start for start, _ in step.state_before["holes"]]
            return LATER_HOLE if ours in starts else RIGHT_END
        return None

    return name


class ModelArena:
    """What an arena should do, slot by slot: a list with the first slot of the owner of each, or None."""

    def __init__(self, num_slots: int) -> None:
        self.owners: list[int | None] = [None] * num_slots

    def state(self) -> dict[str, Any]:
        reservations = {start: n for start, n in Counter(self.owners).items() if start is not None}
        return {"holes": self.holes(), "reservations": reservations, "num_free": self.owners.count(None)}

    def holes(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for slot, owner in enumerate(self.owners):
            if owner is None and slot > 0 and self.owners[slot - 1] is None:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            elif owner is None:
                found.append((slot, 1))
        return found

    def reserve(self, size: int) -> int | None:
        if size < 1:
            raise ValueError(size)
        for start in range(len(self.owners) - size + 1):
            if self.owners[start : start + size] == [None] * size:
                self.owners[start : start + size] = [start] * size
                return start
        return None

    def release(self, start: int) -> None:
        if start not in self.owners:
            raise ValueError(start)
        self.owners = [None if owner == start else owner for owner in self.owners]


class ModelBuddy:
    """What the buddy system should do: a list of free chunks, and after every release all pairs are tried."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots, self.sizes = num_slots, dict[int, int]()
        self.free: list[tuple[int, int]] = []
        start = 0
        for size in (64, 32, 16, 8, 4, 2, 1):
            if num_slots - start >= size:
                self.free.append((start, size))
                start += size

    def state(self) -> dict[str, Any]:
        num_free = sum(size for _, size in self.free)
        return {"holes": sorted(self.free), "reservations": dict(self.sizes), "num_free": num_free}

    def reserve(self, size: int) -> int | None:
        if size < 1:
            raise ValueError(size)
        wanted = next(power for power in (1, 2, 4, 8, 16, 32, 64) if power >= size)
        fitting = sorted((chunk, start) for start, chunk in self.free if chunk >= wanted)
        if not fitting:
            return None
        chunk, start = fitting[0]
        self.free.remove((start, chunk))
        while chunk > wanted:
            chunk //= 2
            self.free.append((start + chunk, chunk))
        self.sizes[start] = wanted
        return start

    def release(self, start: int) -> None:
        if start not in self.sizes:
            raise ValueError(start)
        self.free.append((start, self.sizes.pop(start)))
        while pairs := [chunk for chunk in self.free if self._right_half(*chunk) in self.free]:
            left, size = pairs[0]
            self.free.remove((left, size))
            self.free.remove((left + size, size))
            self.free.append((left, 2 * size))

    def _right_half(self, left: int, size: int) -> tuple[int, int] | None:
        """The buddy of a chunk that is a left half."""
        return (left + size, size) if left % (2 * size) == 0 else None


def start(layer: Layer, kind: str, num_slots: int) -> tuple[Any, Replay, Any]:
    """An arena, its model, and a replay that compares them."""
    is_buddy = kind == "Buddy"
    arena = getattr(layer, kind)(num_slots)
    model = ModelBuddy(num_slots) if is_buddy else ModelArena(num_slots)
    replay = Replay(
        f"arena = {kind}({num_slots})", lambda: state_of(arena), model.state,
        draw=lambda state: sketch_arena(num_slots, state), name_mistake=name_mistake(num_slots, is_buddy),
    )
    return arena, replay, model


def run(arena: Any, replay: Replay, model: Any, *operations: tuple[str, int]) -> None:
    """Carry out operations such as ("reserve", 3) on both, comparing after each."""
    for name, number in operations:
        replay.step(
            f"arena.{name}({number})",
            lambda name=name, number=number: getattr(arena, name)(number),
            lambda name=name, number=number: getattr(model, name)(number),
        )


def run_any(arena: Any, replay: Replay, model: Any, operations: list[tuple[str, int]]) -> None:
    """The same with ("give back", 2) for the third of the reservations there are, from the left."""
    for name, number in operations:
        live = sorted(model.state()["reservations"])
        if name != "give back":
            run(arena, replay, model, (name, number))
        elif live:
            run(arena, replay, model, ("release", live[number % len(live)]))


HISTORIES = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(1, 6)),
        st.tuples(st.just("give back"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["reserve", "release"]), st.integers(0, 14)),
    ),
    max_size=14,
)


# -- task 1: reservation --------------------------------------------------------------------------------


@pytest.mark.task(1)
@pytest.mark.parametrize(
    ("policy", "expected", "mistakes"),
    [
        ("max", 2048, {2148: "the prompt is part of the longest sequence, it does not come on top"}),
        ("pow2", 132, {128: TOGETHER, 256: TOGETHER, 32: PROMPT_FORGOTTEN, 2048: "that is the policy max"}),
        ("oracle", 125, {25: PROMPT_FORGOTTEN, 132: "that is the policy pow2"}),
    ],
)
def test_each_policy_sets_aside_what_it_knows(
    layer: Layer, policy: str, expected: int, mistakes: dict[int, str]
) -> None:
    what = f"reservation({policy!r}, prompt_len=100, output_len=25, max_model_len=2048)"
    expect(what, layer.reservation(policy, 100, 25, 2048), expected, mistakes)


@pytest.mark.task(1)
@pytest.mark.parametrize(
    ("output_len", "expected"), [(1, 1), (2, 2), (3, 4), (32, 32), (33, 64), (1000, 1024)]
)
def test_an_output_that_is_a_power_of_two_is_not_rounded(
    layer: Layer, output_len: int, expected: int
) -> None:
    what = f"reservation('pow2', 10, {output_len}, 4096)"
    got = layer.reservation("pow2", 10, output_len, 4096)
    expect(what, got, 10 + expected, {10 + 2 * output_len: TWICE_TOO_FAR, expected: PROMPT_FORGOTTEN})


@pytest.mark.task(1)
def test_no_policy_sets_aside_more_than_the_model_allows(layer: Layer) -> None:
    got = layer.reservation("pow2", 1000, 600, 2000)
    expect("reservation('pow2', 1000, 600, 2000)", got, 2000, {2024: NOT_CAPPED})
    expect("reservation('max', 1000, 600, 2000)", layer.reservation("max", 1000, 600, 2000), 2000)


@pytest.mark.task(1)
@pytest.mark.parametrize("policy", ["max", "pow2", "oracle"])
def test_a_request_may_fill_the_longest_sequence_but_not_exceed_it(layer: Layer, policy: str) -> None:
    got = layer.reservation(policy, 90, 10, 100)
    expect(f"reservation({policy!r}, 90, 10, 100)", got, 100)
    what = f"reservation({policy!r}, 91, 10, 100), one token too many"
    mistake = "a request that can never fit was admitted"
    expect_error(what, ValueError, lambda: layer.reservation(policy, 91, 10, 100), [91, 10, 100], mistake)


@pytest.mark.task(1)
@pytest.mark.parametrize("policy", ["min", "m", "pow", "oracl", ""])
def test_an_unknown_policy_is_an_error(layer: Layer, policy: str) -> None:
    what = f"reservation({policy!r}, 1, 1, 8)"
    expect_error(what, ValueError, lambda: layer.reservation(policy, 1, 1, 8))


# -- task 2: account ------------------------------------------------------------------------------------


def model_account(
    sequences: list[tuple[int, int, int]], holes: list[tuple[int, int]], needed: int
) -> Account:
    """Slot by slot."""
    counts: Counter[str] = Counter()
    for size, num_tokens, final_len in sequences:
        for slot in range(size):
            counts["used" if slot < num_tokens else "reserved" if slot < final_len else "internal"] += 1
    free = sum(size for _, size in holes)
    stuck = needed > 0 and free >= needed and all(size < needed for _, size in holes)
    counts["external" if stuck else "free"] = free
    return Account(*(counts[name] for name in Account._fields))


def expect_account(
    layer: Layer, sequences: list[tuple[int, int, int]], holes: list[tuple[int, int]], needed: int = 0
) -> None:
    wanted = model_account(sequences, holes, needed)
    free = wanted.external + wanted.free
    mistakes = []
    if wanted.reserved:
        mistakes.append(
            (wanted._replace(reserved=0, internal=wanted.internal + wanted.reserved), STILL_TO_COME)
        )
    if free and not wanted.external:
        reason = NOBODY_WAITS if not needed else TOO_FEW if free < needed else ANY_FREE
        mistakes.append((wanted._replace(external=free, free=0), reason))
    got = layer.account(sequences, holes, needed)
    expect(f"account({sequences}, {holes}, needed={needed})", got, wanted, mistakes)


@pytest.mark.task(2)
def test_one_reservation_is_used_reserved_and_wasted_in_turn(layer: Layer) -> None:
    wrong = [(Account(3, 0, 5, 0, 0), STILL_TO_COME), (Account(3, 5, 0, 0, 0), NEVER_USED)]
    expect("account([(8, 3, 5)], [])", layer.account([(8, 3, 5)], []), Account(3, 2, 3, 0, 0), wrong)
    for sequence in ((8, 1, 8), (8, 8, 8), (5, 5, 5), (2048, 100, 125), (1, 1, 1)):
        expect_account(layer, [sequence], [])


@pytest.mark.task(2)
def test_sequences_and_holes_add_up(layer: Layer) -> None:
    expect_account(layer, [(8, 3, 5), (4, 4, 4), (16, 2, 9)], [(28, 4)])
    expect_account(layer, [], [(0, 10)])
    expect_account(layer, [], [])


@pytest.mark.task(2)
def test_free_slots_are_fragmented_when_they_suffice_but_no_hole_does(layer: Layer) -> None:
    holes = [(8, 2), (14, 3), (20, 2)]
    for needed in (4, 7, 8, 3, 0):  # scattered; just enough; too few; one hole fits; nobody waits
        expect_account(layer, [(8, 3, 5)], holes, needed)


@pytest.mark.task(2)
def test_an_arena_without_holes_has_nothing_to_fragment(layer: Layer) -> None:
    expect_account(layer, [(8, 3, 5)], [], needed=4)


@pytest.mark.task(2)
def test_a_sequence_that_will_outgrow_its_reservation_wastes_none_of_it(layer: Layer) -> None:
    wrong = [(Account(5, 15, -12, 0, 0), "more slots are reserved than the reservation has")]
    expect("account([(8, 5, 20)], [])", layer.account([(8, 5, 20)], []), Account(5, 3, 0, 0, 0), wrong)
    expect_account(layer, [(8, 8, 9), (6, 1, 7)], [(14, 2)])


@pytest.mark.task(2)
def test_what_is_accounted_for_is_only_read(layer: Layer) -> None:
    sequences, holes = [(8, 3, 5), (4, 4, 4)], [(20, 2), (12, 6)]
    layer.account(sequences, holes, needed=7)
    what = "what was passed in, after account([(8, 3, 5), (4, 4, 4)], [(20, 2), (12, 6)], needed=7)"
    expect(what, (sequences, holes), ([(8, 3, 5), (4, 4, 4)], [(20, 2), (12, 6)]))


@pytest.mark.task(2)
def test_sequences_that_can_be_read_only_once_are_accounted_for(layer: Layer) -> None:
    got = layer.account(iter([(8, 3, 5), (4, 4, 4), (16, 2, 9)]), [(28, 4)])
    what = (
        "account(iter([(8, 3, 5), (4, 4, 4), (16, 2, 9)]), [(28, 4)]), with an iterator: it can be read once"
    )
    expect(what, got, Account(used=9, reserved=9, internal=10, external=0, free=4))


SEQUENCES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(0, 9)).map(
        lambda spec: (spec[1] + spec[0], spec[1], spec[1] + spec[2])
    ),
    max_size=3,
)


@pytest.mark.task(2)
@settings(max_examples=40)
@given(sequences=SEQUENCES, sizes=st.lists(st.integers(1, 4), max_size=3), needed=st.integers(0, 10))
def test_any_moment_is_accounted_for(
    layer: Layer, sequences: list[tuple[int, int, int]], sizes: list[int], needed: int
) -> None:
    expect_account(layer, sequences, [(100 + 10 * i, size) for i, size in enumerate(sizes)], needed)


# -- task 3: reserve ------------------------------------------------------------------------------------


@pytest.mark.task(3)
def test_reservations_are_cut_off_from_the_left(layer: Layer) -> None:
    arena, replay, model = start(layer, "Arena", 10)
    run(arena, replay, model, ("reserve", 4), ("reserve", 3), ("reserve", 2))
    expect("arena.holes()", arena.holes(), [(9, 1)])
    expect("arena.reservations()", arena.reservations(), {0: 4, 4: 3, 7: 2})


@pytest.mark.task(3)
def test_a_hole_that_is_filled_up_is_gone(layer: Layer) -> None:
    arena = layer.Arena(6)
    expect("arena.reserve(6) of Arena(6)", arena.reserve(6), 0, [(None, PASSED_OVER)])
    expect("arena.holes()", arena.holes(), [], [([(6, 0)], EMPTY_HOLE)])
    expect("arena.num_free", arena.num_free, 0)
    expect("arena.reserve(1) of a full arena", arena.reserve(1), None)


@pytest.mark.task(3)
def test_what_does_not_fit_changes_nothing(layer: Layer) -> None:
    arena = layer.Arena(6)
    arena.reserve(2)
    expect("arena.reserve(5), with 4 slots free", arena.reserve(5), None)
    expect("arena.holes() after it", arena.holes(), [(2, 4)])
    expect("arena.reservations() after it", arena.reservations(), {0: 2})
    expect("arena.reserve(4)", arena.reserve(4), 2, [(None, PASSED_OVER)])


@pytest.mark.task(3)
@pytest.mark.parametrize("size", [0, -2])
def test_a_reservation_has_at_least_one_slot(layer: Layer, size: int) -> None:
    arena = layer.Arena(6)
    expect_error(f"arena.reserve({size})", ValueError, lambda: arena.reserve(size), [size])
    expect("arena.holes() after it", arena.holes(), [(0, 6)])
    expect("arena.reservations() after it", arena.reservations(), {})


@pytest.mark.task(3)
def test_what_an_arena_shows_is_a_copy(layer: Layer) -> None:
    arena = layer.Arena(6)
    arena.reserve(2)
    arena.holes().clear()
    arena.reservations().clear()
    expect("arena.holes(), after the list it gave before was cleared", arena.holes(), [(2, 4)])
    expect("arena.reservations(), after the same", arena.reservations(), {0: 2})


# -- task 4: release ------------------------------------------------------------------------------------


@pytest.mark.task(4)
@pytest.mark.parametrize("order", [(3, 0, 6), (0, 6, 3), (6, 3, 0), (3, 6, 0), (0, 3, 6), (6, 0, 3)])
def test_in_whatever_order_they_leave_one_hole_remains(layer: Layer, order: tuple[int, ...]) -> None:
    arena, replay, model = start(layer, "Arena", 11)
    run(arena, replay, model, ("reserve", 3), ("reserve", 3), ("reserve", 4))
    run(arena, replay, model, *[("release", first) for first in order])
    expect("arena.holes()", arena.holes(), [(0, 11)])


@pytest.mark.task(4)
def test_between_two_reservations_a_hole_is_as_long_as_what_was_there(layer: Layer) -> None:
    arena, replay, model = start(layer, "Arena", 9)
    run(arena, replay, model, ("reserve", 4), ("reserve", 3), ("reserve", 2), ("release", 4))
    expect("arena.holes()", arena.holes(), [(4, 3)])


@pytest.mark.task(4)
def test_the_first_hole_that_is_long_enough_is_taken(layer: Layer) -> None:
    """The holes of the docstring: (2, 3), (8, 6) and (20, 5)."""
    arena, replay, model = start(layer, "Arena", 26)
    run(arena, replay, model, *[("reserve", size) for size in (2, 3, 3, 6, 6, 5, 1)])
    run(arena, replay, model, ("release", 2), ("release", 8), ("release", 20))
    expect("arena.holes()", arena.holes(), [(2, 3), (8, 6), (20, 5)])
    run(arena, replay, model, ("reserve", 5), ("reserve", 3), ("reserve", 2), ("reserve", 1))
    expect("arena.holes()", arena.holes(), [(22, 3)])


@pytest.mark.task(4)
def test_free_slots_that_are_scattered_do_not_fit(layer: Layer) -> None:
    arena, replay, model = start(layer, "Arena", 10)
    run(arena, replay, model, ("reserve", 4), ("reserve", 3), ("reserve", 2), ("release", 0))
    expect("arena.num_free", arena.num_free, 5)
    run(arena, replay, model, ("reserve", 5))


@pytest.mark.task(4)
@pytest.mark.parametrize("first", [2, 4, 1, -1, 99])
def test_only_what_is_reserved_can_be_released(layer: Layer, first: int) -> None:
    arena, replay, model = start(layer, "Arena", 8)
    run(arena, replay, model, *[("reserve", 2)] * 3, ("release", 2), ("release", 4))
    what = f"arena.release({first}), with one reservation, at 0" + (", again" if first in (2, 4) else "")
    expect_error(what, ValueError, lambda: arena.release(first), [first])
    run(arena, replay, model, ("release", 0))
    expect("arena.holes()", arena.holes(), [(0, 8)])


@pytest.mark.task(4)
@settings(max_examples=50)
@given(operations=HISTORIES)
def test_any_history_leaves_the_arena_as_it_should_be(
    layer: Layer, operations: list[tuple[str, int]]
) -> None:
    run_any(*start(layer, "Arena", 12), operations)


@pytest.mark.task(4)
def test_the_engine_can_take_its_blocks_from_the_arena(layer: Layer) -> None:
    blocks = layer.ArenaBlocks(4)
    expect("ArenaBlocks(4).allocate_many(3)", blocks.allocate_many(3), [0, 1, 2])
    blocks.free_many([1, 0])
    expect("free_blocks() after free_many([1, 0])", blocks.free_blocks(), [0, 1, 3])
    blocks.revive(1)
    expect("free_blocks() after revive(1)", blocks.free_blocks(), [0, 3])
    blocks.share(2)
    blocks.free(2)
    expect("num_free after share(2), free(2)", blocks.num_free, 2)
    expect("allocate_many(2)", blocks.allocate_many(2), [0, 3])
    expect_error("allocate() of a full pool", OutOfBlocks, blocks.allocate, [1, 0, 4])


# -- task 5: Buddy --------------------------------------------------------------------------------------


@pytest.mark.task(5)
def test_a_chunk_is_halved_until_it_fits(layer: Layer) -> None:
    buddy = layer.Buddy(16)
    expect("Buddy(16).reserve(3)", buddy.reserve(3), 0, {12: RIGHT_HALF, 4: RIGHT_HALF, 8: RIGHT_HALF})
    expect("holes() after it", buddy.holes(), [(4, 4), (8, 8)], [([(0, 4), (8, 8)], RIGHT_HALF)])
    not_rounded = "the chunk is 4 slots, not the 3 that were asked for"
    expect("reservations() after it", buddy.reservations(), {0: 4}, [({0: 3}, not_rounded)])
    expect("reserve(4), with chunks of 4 and 8 free", buddy.reserve(4), 4, {8: LARGER_CHUNK})
    expect("num_free", buddy.num_free, 8)


@pytest.mark.task(5)
def test_the_smallest_chunk_that_suffices_is_taken_and_of_several_the_leftmost(layer: Layer) -> None:
    arena, replay, model = start(layer, "Buddy", 16)
    run(arena, replay, model, *[("reserve", 2)] * 8)
    run(arena, replay, model, *[("release", first) for first in (0, 2, 6, 14, 10)])
    expect("holes()", arena.holes(), [(0, 4), (6, 2), (10, 2), (14, 2)])
    run(arena, replay, model, ("reserve", 2), ("reserve", 1), ("reserve", 1), ("reserve", 4))


@pytest.mark.task(5)
def test_a_reservation_may_take_everything(layer: Layer) -> None:
    arena, replay, model = start(layer, "Buddy", 8)
    run(arena, replay, model, ("reserve", 5), ("reserve", 1), ("release", 0), ("reserve", 9), ("reserve", 8))


@pytest.mark.task(5)
def test_buddies_join_again_and_again(layer: Layer) -> None:
    arena, replay, model = start(layer, "Buddy", 16)
    run(arena, replay, model, *[("reserve", 1)] * 3)
    run(arena, replay, model, ("release", 1), ("release", 2), ("release", 0))
    expect("holes()", arena.holes(), [(0, 16)])


@pytest.mark.task(5)
@pytest.mark.parametrize("order", [(4, 8), (8, 4)])
def test_neighbours_that_are_no_buddies_stay_apart(layer: Layer, order: tuple[int, int]) -> None:
    arena, replay, model = start(layer, "Buddy", 16)
    run(arena, replay, model, *[("reserve", 4)] * 4, *[("release", first) for first in order])
    expect("holes()", arena.holes(), [(4, 4), (8, 4)], [([(4, 8)], JOINED_STRANGERS)])
    run(arena, replay, model, ("reserve", 8), ("release", 0))
    expect("holes()", arena.holes(), [(0, 8), (8, 4)], [([(0, 12)], JOINED_STRANGERS)])


@pytest.mark.task(5)
@pytest.mark.parametrize("size", [0, -3])
def test_a_chunk_has_at_least_one_slot(layer: Layer, size: int) -> None:
    buddy = layer.Buddy(4)
    expect_error(f"Buddy(4).reserve({size})", ValueError, lambda: buddy.reserve(size), [size])
    expect("holes() after it", buddy.holes(), [(0, 4)])


@pytest.mark.task(5)
@pytest.mark.parametrize("first", [1, 2, 4, -1])
def test_only_a_chunk_that_is_reserved_can_be_released(layer: Layer, first: int) -> None:
    buddy = layer.Buddy(8)
    buddy.reserve(2)
    what = f"buddy.release({first}), with one chunk of 2 reserved at 0"
    expect_error(what, ValueError, lambda: buddy.release(first), [first])
    expect("holes() after it", buddy.holes(), [(2, 2), (4, 4)])
    buddy.release(0)
    expect_error("buddy.release(0), a second time", ValueError, lambda: buddy.release(0), [0])
    expect("holes() after it", buddy.holes(), [(0, 8)])


@pytest.mark.task(5)
@pytest.mark.parametrize("num_slots", [16, 13])
@settings(max_examples=40)
@given(operations=HISTORIES)
def test_any_history_leaves_the_chunks_as_they_should_be(
    layer: Layer, num_slots: int, operations: list[tuple[str, int]]
) -> None:
    run_any(*start(layer, "Buddy", num_slots), operations)


# -- task 6: find_leaks ---------------------------------------------------------------------------------


@pytest.mark.task(6)
def test_nothing_leaks_where_the_books_are_right(layer: Layer) -> None:
    expect("find_leaks({}, [])", layer.find_leaks({}, []), {})
    listed = [({0: 0, 4: 0}, "ids without a difference are not listed")]
    expect("find_leaks({0: 1, 4: 1}, [[4], [0]])", layer.find_leaks({0: 1, 4: 1}, [[4], [0]]), {}, listed)
    wrong = [({3: 1}, HELD_TWICE)]
    expect("find_leaks({3: 2}, [[3], [3]])", layer.find_leaks({3: 2}, [[3], [3]]), {}, wrong)
    expect("find_leaks({3: 0, 5: 1}, [[5]])", layer.find_leaks({3: 0, 5: 1}, [[5]]), {})


@pytest.mark.task(6)
def test_what_nobody_holds_is_a_leak(layer: Layer) -> None:
    expect(
        "find_leaks({0: 1, 4: 1}, [[0]])",
        layer.find_leaks({0: 1, 4: 1}, [[0]]),
        {4: 1},
        [({}, "the leak was not found")],
    )
    expect("find_leaks({7: 3}, [[7], []])", layer.find_leaks({7: 3}, [[7], []]), {7: 2})


@pytest.mark.task(6)
def test_what_somebody_holds_without_being_counted_is_found_too(layer: Layer) -> None:
    expect("find_leaks({0: 1}, [[0, 9]])", layer.find_leaks({0: 1}, [[0, 9]]), {9: -1}, [({}, NOT_HELD)])
    expect(
        "find_leaks({2: 1}, [[2], [2]])", layer.find_leaks({2: 1}, [[2], [2]]), {2: -1}, [({}, HELD_TWICE)]
    )
    got = layer.find_leaks({0: 1, 4: 1, 7: 2}, [[0], [7], [9]])
    expect(
        "find_leaks({0: 1, 4: 1, 7: 2}, [[0], [7], [9]])",
        got,
        {4: 1, 7: 1, 9: -1},
        [({4: 1, 7: 1}, NOT_HELD)],
    )


@pytest.mark.task(6)
def test_what_is_held_may_be_tuples(layer: Layer) -> None:
    got = layer.find_leaks({0: 1, 4: 1, 7: 2}, [(0, 7), (), (9,)])
    expect("find_leaks({0: 1, 4: 1, 7: 2}, [(0, 7), (), (9,)])", got, {4: 1, 7: 1, 9: -1})


@pytest.mark.task(6)
def test_holders_that_can_be_read_only_once_are_enough(layer: Layer) -> None:
    got = layer.find_leaks({0: 1, 4: 1, 7: 2}, iter([(0, 7), (9,)]))
    what = "find_leaks({0: 1, 4: 1, 7: 2}, iter([(0, 7), (9,)])), with an iterator: it can be read once"
    expect(what, got, {4: 1, 7: 1, 9: -1}, [({4: 1, 7: 1}, NOT_HELD)])


@pytest.mark.task(6)
def test_the_books_are_only_read(layer: Layer) -> None:
    books, held = {0: 1, 4: 1}, [[0], [9]]
    layer.find_leaks(books, held)
    expect(
        "what was passed in, after find_leaks({0: 1, 4: 1}, [[0], [9]])",
        (books, held),
        ({0: 1, 4: 1}, [[0], [9]]),
    )


@pytest.mark.task(6)
@settings(max_examples=40)
@given(
    counts=st.dictionaries(st.integers(0, 4), st.integers(0, 2), max_size=4),
    holders=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=3),
)
def test_any_books_are_compared_with_the_holders(
    layer: Layer, counts: dict[int, int], holders: list[list[int]]
) -> None:
    held = [key for ids in holders for key in ids]
    wanted = {key: counts.get(key, 0) - held.count(key) for key in range(5)}
    wanted = {key: difference for key, difference in wanted.items() if difference}
    expect(f"find_leaks({counts}, {holders})", layer.find_leaks(counts, holders), wanted)


# -- task 7: the challenge ------------------------------------------------------------------------------


def expect_compact(layer: Layer, reservations: dict[int, int]) -> None:
    """Carry the moves out on a row of slots, and look at what is where."""
    end = max((first + size for first, size in reservations.items()), default=0)
    slots: list[str] = ["·"] * end
    names = {first: chr(ord("A") + index) for index, first in enumerate(sorted(reservations))}
    for first, size in reservations.items():
        slots[first : first + size] = [f"{names[first]}{i}" for i in range(size)]
    order = [(names[first], reservations[first]) for first in sorted(reservations)]
    wanted = [f"{name}{i}" for name, size in order for i in range(size)]
    places = [sum(size for _, size in order[:index]) for index in range(len(order))]
    what = f"compact({reservations})"
    moves = layer.compact(dict(reservations))
    if not isinstance(moves, list):
        raise Mismatch(what, "a list of moves", repr(moves))
    for move in moves:
        src, dst, size = move
        if reservations.get(src) != size or not 0 <= dst < src:
            raise Mismatch(
                what, "moves (from, to, size) of whole reservations to the left", f"the move {move}"
            )
        slots[dst : dst + size] = slots[src : src + size]
    packed = slots[: len(wanted)]
    mistakes = [(packed, OVERWRITTEN)] if len(set(packed)) < len(wanted) else []
    expect(f"the slots after the moves {moves} of {what}", packed, wanted, mistakes)
    num_moved = sum(slot != place for slot, place in zip(sorted(reservations), places, strict=True))
    expect(f"the number of moves of {what}", len(moves), num_moved)


@pytest.mark.task(7)
def test_what_lies_in_its_place_already_is_not_moved(layer: Layer) -> None:
    expect("compact({})", layer.compact({}), [])
    expect("compact({0: 3, 3: 2})", layer.compact({0: 3, 3: 2}), [])
    expect("compact({0: 3, 5: 2})", layer.compact({0: 3, 5: 2}), [(5, 3, 2)])


@pytest.mark.task(7)
def test_a_plan_changes_nothing(layer: Layer) -> None:
    reservations = {5: 2, 0: 3, 9: 4}
    layer.compact(reservations)
    expect("the reservations after compact({5: 2, 0: 3, 9: 4})", reservations, {5: 2, 0: 3, 9: 4})


@pytest.mark.task(7)
def test_no_move_overwrites_what_is_still_to_be_moved(layer: Layer) -> None:
    for reservations in ({5: 2, 0: 3, 9: 4}, {9: 4, 5: 2, 0: 3}, {1: 5, 7: 5, 13: 5}, {13: 1, 2: 9, 20: 3}):
        expect_compact(layer, reservations)


@pytest.mark.task(7)
@settings(max_examples=40)
@given(runs=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6), turn=st.integers(0, 5))
def test_any_arena_can_be_compacted(layer: Layer, runs: list[tuple[int, int]], turn: int) -> None:
    reservations, first = {}, 0
    for gap, size in runs:
        reservations[first + gap] = size
        first += gap + size
    items = list(reservations.items())
    turn %= max(1, len(items))
    expect_compact(layer, dict(items[turn:] + items[:turn]))
