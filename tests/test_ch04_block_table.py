"""Chapter 4's grader: block tables. `minipaged check ch04` runs it on exercises/ch04_block_table.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_error, sketch_pool, sketch_table
from minipaged.errors import OutOfBlocks

TASKS = (
    Task(
        1, "how many blocks", stars=1, points=5, minutes=5,
        hints=(
            "Try 7, 8 and 9 tokens in blocks of 4 on paper. `n // B + 1` is right for two of them.",
            "Rounding up is: add nearly one block (B - 1 tokens), then round down.",
        ),
        compare="how it rounds up with whole numbers only",
    ),
    Task(
        2, "where a token lies", stars=1, points=10, minutes=5,
        hints=(
            "`position // block_size` is the logical block, `position % block_size` the offset in it.",
            "block_ids has the physical block of each logical one, and a physical block b begins at slot "
            "b * block_size.",
            "Refuse with `if not 0 <= position < self.num_tokens:`, before you look anything up.",
        ),
        compare="what is refused: also a position for which the last block would have room",
    ),
    Task(
        3, "give the blocks back", stars=1, points=10, minutes=5,
        hints=(
            "`self.allocator.free_many(...)` takes the blocks in the order in which they shall be freed.",
            "`reversed(self.block_ids)` goes through a list from its end.",
        ),
        compare="that the table is empty afterwards, and why the last block is freed first",
    ),
    Task(
        4, "grow, block by block", stars=2, points=20, minutes=15,
        hints=(
            "blocks_needed: the blocks that *all* tokens will need, old and new, minus those that are here.",
            "If blocks_needed is more than `self.allocator.num_free`, raise OutOfBlocks(needed, free, "
            "total). Only after that, change anything.",
            "Once block_ids and num_tokens have grown, `self.slot(position)` gives the slot of every new "
            "position.",
        ),
        compare="that the one call which can fail comes before everything that changes",
    ),
    Task(
        5, "fork", stars=2, points=15, minutes=10,
        hints=(
            "Two tables, one set of blocks: each needs its own list, since each will grow in its own way.",
            "`self.copy_on_write.fork(ids)` counts one more user of each id and gives a new list. Which ids "
            "hold the first num_tokens tokens? `blocks_for` knows how many.",
            "Make the child with BlockTable(self.allocator, self.block_size, self.copy_on_write), and call "
            "child.adopt(ids, num_tokens).",
        ),
        compare="how fork(0) differs from fork(), and that nothing here can run out of blocks",
    ),
    Task(
        6, "write into a shared tail", stars=2, points=20, minutes=15,
        hints=(
            "Only one block can be shared and have room: the last. `self.num_tokens % self.block_size != 0` "
            "says whether it has room.",
            "The copy takes a free block. blocks_needed has to count it, or OutOfBlocks comes too late.",
            "copy = self.copy_on_write.make_writable(self.block_ids, len(self.block_ids) - 1), and then "
            "copies = [copy]; only if num_tokens > 0 and the tail is shared.",
        ),
        compare="when a shared block is not copied: it is full, nothing is written, or its other users left",
    ),
    Task(
        7, "take tokens back", stars=3, points=20, minutes=15,
        hints=(
            "It is `free` for the end of the list: the blocks from index blocks_for(num_tokens, B) on.",
            "Truncate a fork of 8 tokens at block size 4 to 6, and append 1. Which block does that write "
            "into, and who else reads it? If append asks anew each time, there is nothing to do.",
        ),
        compare="what keeps a shared block safe that was full when it was shared",
    ),
)

NOT_ROUNDED_UP = "the last block, not full, was not counted: rounded down, not up"
TOO_EARLY = "a block was taken before a token needs it: a block that is exactly full needs no other yet"
BY_FLOAT = "divided as floats, which are exact only up to 2**53"
NOT_LOOKED_UP = "the logical block was taken for the physical one: block_ids says where it lies"
WRONG_NUMBER = "the position was divided by the wrong number: blocks have block_size slots"
NOT_MULTIPLIED = "a block's id was taken for its first slot: block b begins at slot b * block_size"
SWAPPED = "block and offset were exchanged: // gives the block, % the offset"
ROOM_IS_NO_TOKEN = "a free slot of the last block was taken for a token"
FROM_THE_END = "a negative position was taken for one counted from the end"
HEAD_FIRST = "the blocks were freed head first: the last block must be freed first"
NOT_GIVEN_BACK = "blocks were not given back: a leak"
STILL_HELD = "the table still holds the blocks that it has given back"
KEPT = "blocks were taken before OutOfBlocks, and kept: check first, then change"
COUNTED = "the tokens were counted, although there was no room for them"
ROOM_FORGOTTEN = "the free slots of the last block were forgotten: blocks were taken for the new tokens alone"
NOT_A_USER = "the fork does not count as a user of the blocks: they will be freed under it"
ONE_LIST = "two tables share one list of block ids: when one grows, so does the other"
NONE_AND_ZERO = "fork(0) was taken for fork()"
TOO_MANY_SHARED = "a fork of some tokens shares blocks that none of them lies in"
NOT_COPIED = "the tail block was shared, and written without a copy"
FULL_COPIED = "a full block was copied, although nothing will be written into it"
LAST_OWNER_COPIES = "the tail was copied for its last owner, who may write in place"
COPY_FOR_NOTHING = "the tail was copied, although nothing was appended"
EXCHANGED = "src and dst were exchanged: the shared block is copied into the new one"
COPY_NOT_COUNTED = "the block for the copy was not counted"
NOT_GIVEN_UP = "the shared block was not given up after it had been copied"
NOTHING_GIVEN_UP = "the blocks of the tokens taken back are still held"


class ModelTables:
    """What tables on one pool should do, as simply as can be said: lists of users and of free blocks, and
    for every table its blocks and its number of tokens."""

    def __init__(self, num_blocks: int, block_size: int, names: str = "") -> None:
        self.users, self.free_list = [0] * num_blocks, list(range(num_blocks))
        self.block_size = block_size
        self.tables: dict[str, tuple[list[int], int]] = {name: ([], 0) for name in names}

    def state(self) -> dict[str, Any]:
        tables = {name: [list(blocks), tokens] for name, (blocks, tokens) in self.tables.items()}
        return {"tables": tables, "users": list(self.users), "free queue": list(self.free_list)}

    def num_blocks_of(self, num_tokens: int) -> int:
        """As many as there are different logical blocks among the positions."""
        return len({position // self.block_size for position in range(num_tokens)})

    def tail_is_shared(self, name: str) -> bool:
        blocks, tokens = self.tables[name]
        return len(blocks) * self.block_size > tokens and self.users[blocks[-1]] > 1

    def blocks_needed(self, name: str, n: int) -> int:
        blocks, tokens = self.tables[name]
        return self.num_blocks_of(tokens + n) - len(blocks) + (1 if n and self.tail_is_shared(name) else 0)

    def append(self, name: str, n: int) -> tuple[list[int], list[tuple[int, int]]]:
        if self.blocks_needed(name, n) > len(self.free_list):
            raise OutOfBlocks(self.blocks_needed(name, n), len(self.free_list), len(self.users))
        (blocks, tokens), copies = self.tables[name], []
        if n and self.tail_is_shared(name):
            copies = [(blocks[-1], self.free_list[0])]
            self._drop(blocks[-1])
            blocks = [*blocks[:-1], self._take()]
        while len(blocks) < self.num_blocks_of(tokens + n):
            blocks = [*blocks, self._take()]
        self.tables[name] = (blocks, tokens + n)
        slots = [block * self.block_size + offset for block in blocks for offset in range(self.block_size)]
        return slots[tokens : tokens + n], copies

    def fork(self, name: str, child: str) -> None:
        blocks, tokens = self.tables[name]
        for block in blocks:
            self.users[block] += 1
        self.tables[child] = (list(blocks), tokens)

    def truncate(self, name: str, num_tokens: int) -> None:
        blocks, tokens = self.tables[name]
        if num_tokens > tokens:
            raise ValueError((num_tokens, tokens))
        blocks = list(blocks)
        while len(blocks) > self.num_blocks_of(num_tokens):
            self._drop(blocks.pop())
        self.tables[name] = (blocks, num_tokens)

    def free(self, name: str) -> None:
        self.truncate(name, 0)

    def _take(self) -> int:
        block = self.free_list.pop(0)
        self.users[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self.users[block] -= 1
        if self.users[block] == 0:
            self.free_list.append(block)


class Subject:
    """Tables of the layer under test on one pool, by name, and a replay that compares them with the model."""

    def __init__(self, layer: Layer, num_blocks: int, block_size: int, names: str) -> None:
        self.pool = layer.given.BlockAllocator(num_blocks)
        cow = layer.given.CopyOnWrite(self.pool)
        self.tables: dict[str, Any] = {name: layer.BlockTable(self.pool, block_size, cow) for name in names}
        self.model = ModelTables(num_blocks, block_size, names)
        setup = f"pool = BlockAllocator({num_blocks}); " + ", ".join(names)
        self.replay = Replay(
            f"{setup} = {', '.join([f'BlockTable(pool, {block_size})'] * len(names))}",
            self.state, self.model.state, draw=self.draw, name_mistake=name_mistake,
        )

    def state(self) -> dict[str, Any]:
        tables = {name: [table.block_ids, table.num_tokens] for name, table in self.tables.items()}
        return {
            "tables": {name: [list(blocks), tokens] for name, (blocks, tokens) in tables.items()},
            "users": [self.pool.ref_count(block) for block in range(self.pool.num_blocks)],
            "free queue": self.pool.free_blocks(),
        }

    def draw(self, state: dict[str, Any]) -> str:
        size = self.model.block_size
        rows = [sketch_table(name, *row, size) for name, row in state["tables"].items()]
        return "\n".join([*rows, sketch_pool(state["users"], state["free queue"])])

    def append(self, name: str, n: int) -> None:
        call: Callable[[], object] = lambda: self.tables[name].append(n)  # noqa: E731
        self.replay.step(f"{name}.append({n})", call, lambda: self.model.append(name, n))

    def fork(self, name: str, child: str) -> None:
        def fork() -> None:
            self.tables[child] = self.tables[name].fork()

        self.replay.step(f"{child} = {name}.fork()", fork, lambda: self.model.fork(name, child))

    def free(self, name: str) -> None:
        self.replay.step(f"{name}.free()", lambda: self.tables[name].free(), lambda: self.model.free(name))

    def truncate(self, name: str, n: int) -> None:
        call: Callable[[], object] = lambda: self.tables[name].truncate(n)  # noqa: E731
        self.replay.step(f"{name}.truncate({n})", call, lambda: self.model.truncate(name, n))


def name_mistake(step: Step) -> str | None:
    """The known mistake that a wrong step shows."""
    before, wanted, came = step.state_before, step.expected_state, step.state
    name = step.operation.split(".")[0].split(" ")[-1]
    if step.expected.error is not None:
        if step.got.error is None:
            return COPY_NOT_COUNTED if isinstance(step.expected.error, OutOfBlocks) else None
        return _partly_done(step, name)
    (ours, ours_tokens), (theirs, theirs_tokens) = came["tables"].get(name, [[], 0]), wanted["tables"][name]
    if any(came["tables"].get(other) != row for other, row in wanted["tables"].items() if other != name):
        return ONE_LIST
    if "append" in step.operation:
        return _wrong_append(step, name)
    if "fork" in step.operation:
        return NOT_A_USER if came["users"] == before["users"] != wanted["users"] else None
    is_free, should_be_free = came["free queue"], wanted["free queue"]
    if len(is_free) < len(should_be_free):
        return NOT_GIVEN_BACK if "free" in step.operation else NOTHING_GIVEN_UP
    if is_free != should_be_free and sorted(is_free) == sorted(should_be_free):
        return HEAD_FIRST
    return STILL_HELD if len(ours) > len(theirs) or ours_tokens > theirs_tokens else None


def _partly_done(step: Step, name: str) -> str | None:
    """What an operation that must fail has changed."""
    before, came = step.state_before, step.state
    if came["users"] != before["users"] or came["free queue"] != before["free queue"]:
        return KEPT
    return COUNTED if came["tables"][name][1] != before["tables"][name][1] else None


def _wrong_append(step: Step, name: str) -> str | None:
    """The mistake that an append shows which should have worked."""
    wanted, came = step.expected_state["tables"][name][0], step.state["tables"][name][0]
    expected, got = step.expected.value, step.got.value
    if step.got.error is not None or not isinstance(got, tuple) or len(got) != 2:
        return None
    assert isinstance(expected, tuple)
    if expected[1] and not got[1]:
        return NOT_COPIED
    if got[1] and not expected[1]:
        if "append(0)" in step.operation:
            return COPY_FOR_NOTHING
        src = got[1][0][0]
        return FULL_COPIED if step.state_before["users"][src] > 1 else LAST_OWNER_COPIES
    if got[1] and sum(step.state["users"]) > sum(step.expected_state["users"]):
        return NOT_GIVEN_UP
    return TOO_EARLY if len(came) > len(wanted) else NOT_ROUNDED_UP if len(came) < len(wanted) else None


def scattered(layer: Layer, block_ids: list[int], num_tokens: int, block_size: int) -> tuple[Any, Any]:
    """A pool of 8 blocks, all in use, and a table that has adopted some of them."""
    pool = layer.given.BlockAllocator(8)
    pool.allocate_many(8)
    table = layer.BlockTable(pool, block_size)
    table.adopt(block_ids, num_tokens)
    return pool, table


# -- task 1: how many blocks -----------------------------------------------------------------------


@pytest.mark.task(1)
def test_tokens_take_as_many_blocks_as_they_need_and_no_more(layer: Layer) -> None:
    for num_tokens in range(14):
        expected = len({position // 4 for position in range(num_tokens)})
        wrong = {num_tokens // 4: NOT_ROUNDED_UP, num_tokens // 4 + 1: TOO_EARLY}
        expect(f"blocks_for({num_tokens}, 4)", layer.blocks_for(num_tokens, 4), expected, wrong)


@pytest.mark.task(1)
@pytest.mark.parametrize(
    ("num_tokens", "block_size", "expected"),
    [(5, 1, 5), (16, 16, 1), (17, 16, 2), (1000, 256, 4), (1024, 256, 4), (1025, 256, 5), (1, 1000, 1)],
)
def test_every_block_size_counts_the_same_way(
    layer: Layer, num_tokens: int, block_size: int, expected: int
) -> None:
    got = layer.blocks_for(num_tokens, block_size)
    wrong = {num_tokens // block_size: NOT_ROUNDED_UP, num_tokens // block_size + 1: TOO_EARLY}
    expect(f"blocks_for({num_tokens}, {block_size})", got, expected, wrong)


@pytest.mark.task(1)
def test_large_numbers_are_exact(layer: Layer) -> None:
    wrong = {2**53 // 2: BY_FLOAT}
    expect("blocks_for(2**53 + 1, 2)", layer.blocks_for(2**53 + 1, 2), 2**52 + 1, wrong)


# -- task 2: slots ---------------------------------------------------------------------------------


@pytest.mark.task(2)
def test_a_slot_follows_from_the_physical_block_and_the_offset(layer: Layer) -> None:
    blocks = [5, 2, 7]
    _, table = scattered(layer, [*blocks], num_tokens=10, block_size=4)
    expected = [20, 21, 22, 23, 8, 9, 10, 11, 28, 29]
    for position in range(10):
        wrong = [(position, NOT_LOOKED_UP), (blocks[position // 4] + position % 4, NOT_MULTIPLIED)]
        if position % 4 < 3:
            wrong.append((blocks[position % 4] * 4 + position // 4, SWAPPED))
        for number in (3, 8, 10):  # len(block_ids), pool.num_blocks, num_tokens
            index = position // number
            if index < 3:
                wrong += [
                    (blocks[index] * size + position % rest, WRONG_NUMBER)
                    for size in (4, number) for rest in (4, number)
                ]
            wrong.append((blocks[position // 4] * number + position % 4, WRONG_NUMBER))
        what = f"slot({position}), with block_size 4 and block_ids [5, 2, 7]"
        expect(what, table.slot(position), expected[position], wrong)


@pytest.mark.task(2)
@pytest.mark.parametrize(
    ("block_size", "block_ids", "num_tokens", "expected"),
    [(1, [3, 0, 6], 3, [3, 0, 6]), (3, [1, 4], 5, [3, 4, 5, 12, 13]), (16, [2], 3, [32, 33, 34])],
)
def test_every_block_size_has_its_slots(
    layer: Layer, block_size: int, block_ids: list[int], num_tokens: int, expected: list[int]
) -> None:
    _, table = scattered(layer, block_ids, num_tokens, block_size)
    what = f"the slots of {num_tokens} tokens, with block_size {block_size} and block_ids {block_ids}"
    expect(what, [table.slot(position) for position in range(num_tokens)], expected)


@pytest.mark.task(2)
@pytest.mark.parametrize("position", [-1, -10, 10, 11, 12, 1000])
def test_a_position_without_a_token_is_an_error(layer: Layer, position: int) -> None:
    _, table = scattered(layer, [5, 2, 7], num_tokens=10, block_size=4)
    mistake = FROM_THE_END if position < 0 else ROOM_IS_NO_TOKEN if position < 12 else None
    what = f"slot({position}) of a table of 10 tokens in 3 blocks of 4"
    expect_error(what, ValueError, lambda: table.slot(position), [position, 10], mistake)


@pytest.mark.task(2)
def test_an_empty_table_has_no_slot(layer: Layer) -> None:
    table = layer.BlockTable(layer.given.BlockAllocator(2), 4)
    expect_error("slot(0) of an empty table", ValueError, lambda: table.slot(0), [0])


# -- task 3: give back -----------------------------------------------------------------------------


@pytest.mark.task(3)
def test_the_last_block_is_freed_first(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    table = layer.BlockTable(pool, 4)
    table.adopt(pool.allocate_many(3), 10)
    table.free()
    wrong = [([3, 0, 1, 2], HEAD_FIRST), ([3], NOT_GIVEN_BACK)]
    what = "pool.free_blocks() after free() of a table with block_ids [0, 1, 2], with 3 free before"
    expect(what, pool.free_blocks(), [3, 2, 1, 0], wrong)


@pytest.mark.task(3)
def test_a_freed_table_is_empty_and_can_be_used_again(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    table = layer.BlockTable(pool, 4)
    table.adopt(pool.allocate_many(2), 5)
    table.free()
    expect("block_ids after free()", table.block_ids, [], [([0, 1], STILL_HELD), ([1, 0], STILL_HELD)])
    expect("num_tokens after free()", table.num_tokens, 0, {5: STILL_HELD})
    table.free()
    expect("pool.free_blocks() after a second free()", pool.free_blocks(), [2, 3, 1, 0])
    table.adopt(pool.allocate_many(1), 3)
    expect("block_ids after it has adopted one block", table.block_ids, [2])


@pytest.mark.task(3)
def test_blocks_are_given_back_in_the_order_of_the_table_not_of_their_ids(layer: Layer) -> None:
    pool, table = scattered(layer, [5, 2, 7], num_tokens=10, block_size=4)
    table.free()
    wrong = [([5, 2, 7], HEAD_FIRST), ([7, 5, 2], "freed in the order of the ids, not of the table")]
    expect("free_blocks() after free() of block_ids [5, 2, 7]", pool.free_blocks(), [7, 2, 5], wrong)


@pytest.mark.task(3)
def test_a_block_with_another_user_stays_with_that_user(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    table = layer.BlockTable(pool, 4)
    table.adopt(pool.allocate_many(3), 12)
    pool.share(0)
    pool.share(1)
    table.free()
    expect("the users of blocks 0 to 3 after free(), with 0 and 1 shared before",
           [pool.ref_count(block) for block in range(4)], [1, 1, 0, 0],
           [([0, 0, 0, 0], "everybody's use of the block was dropped, not only this table's"),
            ([2, 2, 0, 0], NOT_GIVEN_BACK)])


# -- task 4: grow ----------------------------------------------------------------------------------


@pytest.mark.task(4)
def test_an_append_to_an_empty_table(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(8)
    table = layer.BlockTable(pool, 4)
    append = table.append(6)
    expect("BlockTable(BlockAllocator(8), 4).append(6)", append, ([0, 1, 2, 3, 4, 5], []))
    expect("append(6).slots", append.slots, [0, 1, 2, 3, 4, 5])
    expect("append(6).copies", append.copies, [])
    expect("block_ids after it", table.block_ids, [0, 1], [([0], NOT_ROUNDED_UP), ([0, 1, 2], TOO_EARLY)])
    expect("num_tokens after it", table.num_tokens, 6)
    expect("pool.free_blocks() after it", pool.free_blocks(), [2, 3, 4, 5, 6, 7])


@pytest.mark.task(4)
def test_no_block_is_taken_before_a_token_needs_it(layer: Layer) -> None:
    table = layer.BlockTable(layer.given.BlockAllocator(8), 4)
    counts = [len(table.block_ids)]
    for _ in range(9):
        table.append(1)
        counts.append(len(table.block_ids))
    wrong = [
        ([0, *(n // 4 + 1 for n in range(1, 10))], TOO_EARLY),
        ([n // 4 + 1 for n in range(10)], TOO_EARLY),
        ([n // 4 for n in range(10)], NOT_ROUNDED_UP),
        (list(range(10)), ROOM_FORGOTTEN),
    ]
    what = "the number of blocks after 0, 1, … 9 times append(1)"
    expect(what, counts, [0, 1, 1, 1, 1, 2, 2, 2, 2, 3], wrong)


@pytest.mark.task(4)
def test_two_tables_grow_in_one_pool(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(8)
    a, b = layer.BlockTable(pool, 4), layer.BlockTable(pool, 4)
    expect("a.append(5).slots", a.append(5).slots, [0, 1, 2, 3, 4])
    expect("b.append(2).slots", b.append(2).slots, [8, 9], [([0, 1], NOT_LOOKED_UP)])
    wrong = [([5, 6, 7, 8], NOT_LOOKED_UP), ([12, 13, 14, 15], ROOM_FORGOTTEN)]
    expect("a.append(4).slots", a.append(4).slots, [5, 6, 7, 12], wrong)
    expect("a.block_ids", a.block_ids, [0, 1, 3])
    expect("b.block_ids", b.block_ids, [2], [([0, 1, 3], ONE_LIST)])


@pytest.mark.task(4)
def test_a_block_that_is_exactly_full_needs_no_other(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(2)
    table = layer.BlockTable(pool, 4)
    table.append(8)
    expect("block_ids of 8 tokens in blocks of 4", table.block_ids, [0, 1])
    expect("append(0) with all blocks in use", table.append(0), ([], []))
    expect("blocks_needed(1)", table.blocks_needed(1), 1, {0: NOT_ROUNDED_UP})
    expect_error("append(1) with no block free", OutOfBlocks, lambda: table.append(1), [1, 0, 2])


@pytest.mark.task(4)
def test_blocks_needed_counts_the_free_slots_of_the_last_block(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(8)
    table = layer.BlockTable(pool, 4)
    table.append(6)
    needed = [table.blocks_needed(n) for n in (0, 1, 2, 3, 6, 7)]
    wrong = [([0, 1, 1, 1, 2, 2], ROOM_FORGOTTEN), ([0, 0, 1, 1, 2, 2], TOO_EARLY)]
    expect("blocks_needed of 0, 1, 2, 3, 6, 7 more, with 6 tokens", needed, [0, 0, 0, 1, 1, 2], wrong)
    expect("blocks_needed(100)", table.blocks_needed(100), 25)
    expect("pool.num_free after asking", pool.num_free, 6)
    expect("num_tokens after asking", table.num_tokens, 6)


@pytest.mark.task(4)
def test_an_append_that_does_not_fit_changes_nothing(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    table = layer.BlockTable(pool, 4)
    table.append(3)
    pool.allocate()  # somebody else has block 1; 2 and 3 are free
    expect_error("append(10), which needs 3 blocks more", OutOfBlocks, lambda: table.append(10), [3, 2, 4])
    expect("pool.free_blocks() after it", pool.free_blocks(), [2, 3], [([], KEPT), ([3], KEPT)])
    expect("block_ids after it", table.block_ids, [0], [([0, 2, 3], KEPT), ([0, 2], KEPT)])
    expect("num_tokens after it", table.num_tokens, 3, {13: COUNTED, 12: COUNTED})
    expect("append(9).slots, which just fits", table.append(9).slots, [3, *range(8, 16)])
    expect("block_ids after it", table.block_ids, [0, 2, 3])


@pytest.mark.task(4)
def test_a_negative_append_is_an_error(layer: Layer) -> None:
    table = layer.BlockTable(layer.given.BlockAllocator(2), 4)
    table.append(6)
    expect_error("append(-2)", ValueError, lambda: table.append(-2), [-2])
    expect("num_tokens after it", table.num_tokens, 6)


@pytest.mark.task(4)
def test_the_lists_that_an_append_returns_are_not_the_tables_own(layer: Layer) -> None:
    table = layer.BlockTable(layer.given.BlockAllocator(4), 1)
    append = table.append(2)
    append.slots.append(99)
    append.copies.append((0, 1))
    expect("block_ids, after 99 was appended to append(2).slots", table.block_ids, [0, 1])
    expect("append(1)", table.append(1), ([2], []))


@pytest.mark.task(4)
@settings(max_examples=50)
@given(
    block_size=st.integers(1, 4),
    operations=st.lists(
        st.tuples(st.sampled_from("ab"), st.one_of(st.integers(0, 9), st.just("free"))), max_size=8
    ),
)
def test_tables_grow_and_go_in_any_order(
    layer: Layer, block_size: int, operations: list[tuple[str, Any]]
) -> None:
    subject = Subject(layer, 5, block_size, "ab")
    for name, number in operations:
        if number == "free":
            subject.free(name)
        else:
            subject.append(name, number)


# -- task 5: fork ----------------------------------------------------------------------------------


def parent_of(layer: Layer, num_blocks: int, num_tokens: int) -> tuple[Any, Any]:
    """A pool, and a table of some tokens in its first blocks, of 4 tokens each."""
    pool = layer.given.BlockAllocator(num_blocks)
    parent = layer.BlockTable(pool, 4, layer.given.CopyOnWrite(pool))
    parent.adopt(pool.allocate_many(-(-num_tokens // 4)), num_tokens)
    return pool, parent


def users_of(pool: Any) -> list[int]:
    return [pool.ref_count(block) for block in range(pool.num_blocks)]


@pytest.mark.task(5)
def test_a_fork_shares_every_block_and_takes_none(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=4, num_tokens=10)
    child = parent.fork()
    expect("parent.fork().block_ids, of a parent with [0, 1, 2]", child.block_ids, [0, 1, 2])
    expect("its num_tokens", child.num_tokens, 10)
    expect("the users of blocks 0 to 3", users_of(pool), [2, 2, 2, 0], [([1, 1, 1, 0], NOT_A_USER)])
    expect("pool.free_blocks()", pool.free_blocks(), [3])
    expect("parent.block_ids", parent.block_ids, [0, 1, 2])
    expect("the slots of the child", [child.slot(position) for position in (0, 5, 9)], [0, 5, 9])


@pytest.mark.task(5)
def test_a_fork_works_when_no_block_is_free(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=2, num_tokens=7)
    children = [parent.fork(), parent.fork()]
    expect("block_ids of two forks", [child.block_ids for child in children], [[0, 1], [0, 1]])
    expect("the users of blocks 0 and 1", users_of(pool), [3, 3], [([1, 1], NOT_A_USER)])
    grandchild = children[0].fork()
    expect("num_tokens of a fork's fork", grandchild.num_tokens, 7)
    expect("the users of blocks 0 and 1", users_of(pool), [4, 4])


@pytest.mark.task(5)
def test_whoever_is_freed_first_leaves_the_other_its_blocks(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=2, num_tokens=8)
    child = parent.fork()
    parent.free()
    expect("the users of blocks 0 and 1 after parent.free()", users_of(pool), [1, 1], [([0, 0], NOT_A_USER)])
    expect("child.block_ids", child.block_ids, [0, 1], [([], ONE_LIST)])
    child.free()
    expect("pool.free_blocks() after child.free()", pool.free_blocks(), [1, 0])


@pytest.mark.task(5)
def test_a_fork_has_a_list_of_its_own(layer: Layer) -> None:
    _, parent = parent_of(layer, num_blocks=8, num_tokens=8)
    child = parent.fork()
    parent.append(4)
    expect("child.block_ids after parent.append(4)", child.block_ids, [0, 1], [([0, 1, 2], ONE_LIST)])
    child.append(1)
    expect("child.block_ids after child.append(1)", child.block_ids, [0, 1, 3])
    expect("parent.block_ids", parent.block_ids, [0, 1, 2], [([0, 1, 2, 3], ONE_LIST)])
    expect("num_tokens of parent and child", [parent.num_tokens, child.num_tokens], [12, 9])


@pytest.mark.task(5)
@pytest.mark.parametrize("num_tokens", [0, 1, 4, 5, 8, 11])
def test_a_fork_of_some_tokens_shares_only_their_blocks(layer: Layer, num_tokens: int) -> None:
    pool, parent = parent_of(layer, num_blocks=4, num_tokens=11)
    child, shared = parent.fork(num_tokens), len({position // 4 for position in range(num_tokens)})
    what = f"fork({num_tokens}) of 11 tokens in blocks [0, 1, 2]"
    wrong = [([0, 1, 2], NONE_AND_ZERO if num_tokens == 0 else TOO_MANY_SHARED)]
    more, fewer = [*range(shared + 1)], [*range(shared - 1)]
    wrong += [(more, TOO_MANY_SHARED), (fewer, NOT_ROUNDED_UP)]
    expect(f"block_ids of {what}", child.block_ids, [*range(shared)], wrong)
    expect(f"num_tokens of {what}", child.num_tokens, num_tokens)
    users = [2] * shared + [1] * (3 - shared) + [0]
    expect(f"the users after {what}", users_of(pool), users, [([2, 2, 2, 0], TOO_MANY_SHARED)])


@pytest.mark.task(5)
@pytest.mark.parametrize("num_tokens", [12, 13, -1])
def test_tokens_that_are_not_there_cannot_be_forked(layer: Layer, num_tokens: int) -> None:
    pool, parent = parent_of(layer, num_blocks=4, num_tokens=11)
    what = f"fork({num_tokens}) of 11 tokens"
    expect_error(what, ValueError, lambda: parent.fork(num_tokens), [num_tokens, 11])
    expect("the users after it", users_of(pool), [1, 1, 1, 0])


@pytest.mark.task(5)
def test_an_empty_table_can_be_forked(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(2)
    child = layer.BlockTable(pool, 4).fork()
    expect("block_ids of a fork of an empty table", child.block_ids, [])
    expect("num_tokens of a fork of an empty table", child.num_tokens, 0)


# -- task 6: a shared tail -------------------------------------------------------------------------


@pytest.mark.task(6)
def test_the_first_writer_copies_and_the_last_owner_writes_in_place(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=8, num_tokens=6)
    child = parent.fork()
    wrong = [(([6], []), NOT_COPIED), (([10], [(2, 1)]), EXCHANGED)]
    what = "child.append(1), with 6 tokens in the blocks [0, 1] shared with its parent"
    expect(what, child.append(1), ([10], [(1, 2)]), wrong)
    expect("child.block_ids", child.block_ids, [0, 2])
    wrong = [([2, 2, 1, 0, 0, 0, 0, 0], NOT_GIVEN_UP)]
    expect("the users of the blocks", users_of(pool), [2, 1, 1, 0, 0, 0, 0, 0], wrong)
    expect("parent.block_ids", parent.block_ids, [0, 1], [([0, 2], ONE_LIST)])
    wrong = [(([14], [(1, 3)]), LAST_OWNER_COPIES)]
    expect("parent.append(1), the last owner", parent.append(1), ([6], []), wrong)
    expect("the slot of position 6 in the two", [parent.slot(6), child.slot(6)], [6, 10])


@pytest.mark.task(6)
def test_whoever_writes_first_copies_be_it_the_parent(layer: Layer) -> None:
    _, parent = parent_of(layer, num_blocks=8, num_tokens=6)
    child = parent.fork()
    wrong = [(([6], []), NOT_COPIED)]
    expect("parent.append(1), with 6 tokens shared", parent.append(1), ([10], [(1, 2)]), wrong)
    expect("child.append(1) after it", child.append(1), ([6], []), [(([14], [(1, 3)]), LAST_OWNER_COPIES)])
    expect("block_ids of both", [parent.block_ids, child.block_ids], [[0, 2], [0, 1]])


@pytest.mark.task(6)
def test_three_branches_make_two_copies(layer: Layer) -> None:
    _, parent = parent_of(layer, num_blocks=8, num_tokens=2)
    branches = [parent, parent.fork(), parent.fork()]
    copies = [copy for branch in branches for copy in branch.append(1).copies]
    wrong = [([], NOT_COPIED), ([(0, 1), (0, 2), (0, 3)], LAST_OWNER_COPIES)]
    expect("the copies when each of three branches appends 1", copies, [(0, 1), (0, 2)], wrong)
    expect("their block_ids", [branch.block_ids for branch in branches], [[1], [2], [0]])


@pytest.mark.task(6)
def test_a_full_block_is_never_copied(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=8, num_tokens=8)
    child = parent.fork()
    expect("child.blocks_needed(1), with 8 tokens shared", child.blocks_needed(1), 1, {2: FULL_COPIED})
    append, wrong = child.append(1), [(([12], [(1, 2)]), FULL_COPIED)]
    expect("child.append(1), with 8 tokens shared in blocks of 4", append, ([8], []), wrong)
    expect("the users of the blocks", users_of(pool), [2, 2, 1, 0, 0, 0, 0, 0])


@pytest.mark.task(6)
def test_nothing_is_copied_when_nothing_is_written(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=8, num_tokens=6)
    child = parent.fork()
    expect("child.blocks_needed(0)", child.blocks_needed(0), 0, {1: COPY_FOR_NOTHING})
    append, wrong = child.append(0), [(([], [(1, 2)]), COPY_FOR_NOTHING)]
    expect("child.append(0), with 6 tokens shared", append, ([], []), wrong)
    expect("the users of the blocks", users_of(pool), [2, 2, 0, 0, 0, 0, 0, 0])


@pytest.mark.task(6)
def test_a_copy_and_new_blocks_in_one_append(layer: Layer) -> None:
    _, parent = parent_of(layer, num_blocks=8, num_tokens=6)
    child = parent.fork()
    needed = [child.blocks_needed(n) for n in (1, 2, 3)]
    wrong = [([0, 0, 1], COPY_NOT_COUNTED)]
    expect("child.blocks_needed of 1, 2, 3 more, with 6 tokens shared", needed, [1, 1, 2], wrong)
    slots = [10, 11, 12, 13, 14, 15, 16]
    wrong = [(([6, 7, 8, 9, 10, 11, 12], []), NOT_COPIED)]
    expect("child.append(7)", child.append(7), (slots, [(1, 2)]), wrong)
    expect("child.block_ids", child.block_ids, [0, 2, 3, 4])


@pytest.mark.task(6)
@pytest.mark.parametrize(("appended", "free", "needed"), [(1, 0, 1), (3, 1, 2), (7, 2, 3)])
def test_an_append_whose_copy_or_rest_does_not_fit_changes_nothing(
    layer: Layer, appended: int, free: int, needed: int
) -> None:
    pool, parent = parent_of(layer, num_blocks=2 + free, num_tokens=6)
    child = parent.fork()
    what = f"child.append({appended}) with {free} blocks free: it needs a copy, and {needed - 1} blocks more"
    expect_error(what, OutOfBlocks, lambda: child.append(appended), mistake=COPY_NOT_COUNTED)
    expect("the users after it", users_of(pool), [2, 2, *[0] * free], [([2, 1, 1, *[0] * (free - 1)], KEPT)])
    expect("child.block_ids after it", child.block_ids, [0, 1], [([0, 2], KEPT)])
    expect("child.num_tokens after it", child.num_tokens, 6, {6 + appended: COUNTED})
    expect_error(what, OutOfBlocks, lambda: child.append(appended), [needed, free, 2 + free])


@pytest.mark.task(6)
def test_a_fork_of_a_beginning_copies_the_block_that_it_ends_in(layer: Layer) -> None:
    _, parent = parent_of(layer, num_blocks=8, num_tokens=11)
    child = parent.fork(5)
    wrong = [(([5], []), NOT_COPIED)]
    what = "child.append(1), a fork of 5 of 11 tokens, in the blocks [0, 1] of [0, 1, 2]"
    expect(what, child.append(1), ([13], [(1, 3)]), wrong)
    expect("parent.slot(5), not touched", parent.slot(5), 5)


@pytest.mark.task(6)
@settings(max_examples=60)
@given(
    block_size=st.integers(1, 3),
    operations=st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.integers(0, 5), st.sampled_from(["fork", "free"]))),
        max_size=9,
    ),
)
def test_branches_never_write_into_each_other(
    layer: Layer, block_size: int, operations: list[tuple[str, Any]]
) -> None:
    run_branches(Subject(layer, 4, block_size, "a"), operations)


def run_branches(subject: Subject, operations: list[tuple[str, Any]]) -> None:
    """Append, fork, free and truncate tables by name; what names no table, or one too many, is left out."""
    for name, operation in operations:
        if name not in subject.tables:
            continue
        if operation == "fork":
            child = next((letter for letter in "abc" if letter not in subject.tables), None)
            if child:
                subject.fork(name, child)
        elif operation == "free":
            subject.free(name)
        elif isinstance(operation, tuple):
            subject.truncate(name, operation[1])
        else:
            subject.append(name, operation)


# -- task 7: the challenge -------------------------------------------------------------------------


@pytest.mark.task(7)
def test_tokens_taken_back_give_up_the_blocks_that_nobody_needs(layer: Layer) -> None:
    pool, table = parent_of(layer, num_blocks=4, num_tokens=11)
    table.truncate(9)
    expect("block_ids of 11 tokens after truncate(9)", table.block_ids, [0, 1, 2], [([0, 1], NOT_ROUNDED_UP)])
    expect("pool.free_blocks() after it", pool.free_blocks(), [3])
    table.truncate(4)
    wrong = [([0, 1, 2], NOTHING_GIVEN_UP), ([0, 1], TOO_EARLY), ([], NOT_ROUNDED_UP)]
    expect("block_ids after truncate(4)", table.block_ids, [0], wrong)
    expect("num_tokens after truncate(4)", table.num_tokens, 4, {11: COUNTED, 9: COUNTED})
    wrong = [([3, 1, 2], HEAD_FIRST), ([3], NOTHING_GIVEN_UP)]
    expect("pool.free_blocks() after it", pool.free_blocks(), [3, 2, 1], wrong)
    expect("append(1) after it", table.append(1), ([12], []))
    table.truncate(0)
    expect("block_ids after truncate(0)", table.block_ids, [])
    expect("pool.free_blocks() after it", pool.free_blocks(), [2, 1, 3, 0])


@pytest.mark.task(7)
def test_to_keep_all_tokens_changes_nothing(layer: Layer) -> None:
    pool, table = parent_of(layer, num_blocks=4, num_tokens=8)
    table.truncate(8)
    expect("block_ids of 8 tokens after truncate(8)", table.block_ids, [0, 1])
    expect("num_tokens after it", table.num_tokens, 8)
    expect("the users after it", users_of(pool), [1, 1, 0, 0])


@pytest.mark.task(7)
@pytest.mark.parametrize("num_tokens", [12, -1])
def test_tokens_that_are_not_there_cannot_be_kept(layer: Layer, num_tokens: int) -> None:
    pool, table = parent_of(layer, num_blocks=4, num_tokens=11)
    what = f"truncate({num_tokens}) of 11 tokens"
    expect_error(what, ValueError, lambda: table.truncate(num_tokens), [num_tokens, 11])
    expect("block_ids after it", table.block_ids, [0, 1, 2])
    expect("num_tokens after it", table.num_tokens, 11)
    expect("pool.free_blocks() after it", pool.free_blocks(), [3])


@pytest.mark.task(7)
def test_a_block_that_was_full_when_it_was_shared_is_copied_after_all(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=4, num_tokens=8)
    child = parent.fork()
    child.truncate(6)
    expect("the users after child.truncate(6)", users_of(pool), [2, 2, 0, 0])
    what = "child.append(1) after truncate(6), with 8 tokens shared"
    expect(what, child.append(1), ([10], [(1, 2)]), [(([6], []), NOT_COPIED)])
    expect("parent.block_ids", parent.block_ids, [0, 1], [([0, 2], ONE_LIST)])


@pytest.mark.task(7)
def test_a_shared_block_given_up_stays_with_its_other_user(layer: Layer) -> None:
    pool, parent = parent_of(layer, num_blocks=4, num_tokens=11)
    child = parent.fork()
    child.truncate(3)
    expect("the users after child.truncate(3) of 11", users_of(pool), [2, 1, 1, 0])
    expect("parent.block_ids", parent.block_ids, [0, 1, 2], [([0], ONE_LIST)])
    expect("child.block_ids", child.block_ids, [0])


@pytest.mark.task(7)
@settings(max_examples=60)
@given(
    block_size=st.integers(1, 3),
    operations=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.one_of(
                st.integers(1, 5), st.sampled_from(["fork", "free"]),
                st.tuples(st.just("truncate"), st.integers(0, 6)),
            ),
        ),
        max_size=9,
    ),
)
def test_branches_that_shrink_and_grow_keep_out_of_each_others_way(
    layer: Layer, block_size: int, operations: list[tuple[str, Any]]
) -> None:
    run_branches(Subject(layer, 4, block_size, "a"), operations)
