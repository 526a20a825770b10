"""Chapter 6's grader: copy-on-write. `minipaged check ch06` runs it on exercises/ch06_copy_on_write.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_error, sketch_pool
from minipaged.errors import OutOfBlocks

TASKS = (
    Task(
        1, "fork", stars=1, points=10, minutes=5,
        hints=(
            "What changes in the pool when a second sequence uses the same blocks? Only numbers of users.",
            "`self.allocator.share(block_id)` for each block; and the child needs a list that is its own.",
            "`return list(block_ids)` makes a new list of the same ids. `return block_ids` would not.",
        ),
        compare="that nothing is allocated, so nothing can fail for lack of memory",
    ),
    Task(
        2, "who may write", stars=1, points=5, minutes=5,
        hints=(
            "The caller has the block in its list, so the caller is one of its users.",
            "`self.allocator.ref_count(block_id)` is the number of users, the caller included.",
        ),
        compare="that a count needs no flag: it falls by itself when the others leave",
    ),
    Task(
        3, "what sharing saves", stars=1, points=10, minutes=10,
        hints=(
            "Draw it: blocks of 4, a prompt of 6 tokens, 3 samples. Which blocks have several owners just "
            "after the fork, and which when each sample has written a token?",
            "Of a shared block one is needed and n - 1 are saved.",
            "prompt_len // block_size blocks are full and stay shared. One more is, if output_len is 0 and "
            "prompt_len % block_size is not.",
        ),
        compare="what becomes of the half-full block when the first token is written",
    ),
    Task(
        4, "copy on write", stars=2, points=20, minutes=15,
        hints=(
            "Three cases: nobody else uses the block; somebody does, and a block is free; somebody does, and "
            "none is.",
            "`allocate()` may raise OutOfBlocks. If nothing has been changed before it, there is nothing to "
            "undo.",
            "dst = self.allocator.allocate(); self.allocator.free(src); block_ids[index] = dst; and then "
            "return (src, dst).",
        ),
        compare="the order: a fresh block is taken before the shared one is given up",
    ),
    Task(
        5, "the copies of a whole step", stars=3, points=20, minutes=20,
        hints=(
            "All or nothing means: know how many copies it will be, before the first one.",
            "A block has u users, and w of them write. Try u = 3 with w = 1, 2, 3. When does the last "
            "writer get away without a copy?",
            "min(w, u - 1) copies for each block. `Counter(...)` of the blocks to be written counts w.",
        ),
        compare="why min(w, u - 1), and why the copies may then run in any order, or all at once",
    ),
    Task(
        6, "the best of n, stopping early", stars=3, points=20, minutes=20,
        hints=(
            "Keep a table and a score for every live branch; a branch that stops is taken out, and its "
            "table's free() is called.",
            "A score can only fall. Whom can you stop for certain when a branch ends with -3.0? The one that "
            "has -2.9 now may still win.",
            "First everybody who stops frees; only then the others append, in the order of their numbers.",
        ),
        compare="how many copies the order saves: who stops first leaves the others as last owners",
    ),
)

NOT_A_USER = "the fork does not count as a user of its blocks: they will be freed under it"
ONE_LIST = "parent and child have one list: when one of them gets a copy, so does the other"
COPIED_AT_FORK = "blocks were allocated for the fork: it shares its parent's, and copies nothing"
SHARED_WRITABLE = "a shared block was called writable: its other owners would read what one of them writes"
ALONE_NOT_WRITABLE = "a block was called not writable although only the caller uses it"
ONCE_SHARED = "a block that was shared once is taken for shared for ever"
NOT_COPIED = "the block was shared, and would be written without a copy"
LAST_OWNER_COPIES = "the block was copied for its last owner, who may write in place"
EXCHANGED = "src and dst were exchanged: the shared block is copied into the fresh one"
NOT_GIVEN_UP = "the shared block was not given up: it has a user who does not have it any more"
NOT_IN_LIST = "the fresh block was not put into the list: its owner would write into the shared one"
WRONG_PLACE = "another block than block_ids[index] was exchanged"
GIVEN_UP_FIRST = "the shared block was given up before a fresh one was there: check first, then change"
TAIL_COUNTED = "the half-full block was counted as shared, although every sample has written into it"
ORIGINAL_COUNTED = "all n were counted as saved: one of them is needed"
OUTPUT_COUNTED = "blocks with output in them were counted as shared"
FORKED_FORGOTTEN = "as long as nobody has written, the half-full block is shared too"
ROUNDED_LATE = "the tokens of all samples were divided together: each has a half-full block of its own"
IN_TOKENS = "tokens were counted, not blocks"
ONE_BY_ONE = "some writers had moved before the blocks ran out: count all copies first"
LAST_COUNTED = "a copy was counted for a block's last owner, who writes in place"
APPENDED_FIRST = "the others wrote before those that stop had freed their blocks"
LEADER_STOPS = "a live branch was taken for the best one: it leads, but it may still fall behind"
GOES_ON = "a branch goes on that can't become better than the best one"
NOT_FREED = "a branch that stopped still holds its blocks"
TWINS = "two forks have one list: when one of them gets a copy, so does the other"
CHANGED = "what the caller passed in was changed"
ALIAS = "the table's own list was given out: changing it changes the table"


class ModelSharing:
    """What sharing should do, as simply as can be said: lists of users and of free blocks, and the owners'
    lists by name."""

    def __init__(self, num_blocks: int, owners: dict[str, int]) -> None:
        self.users, self.free_list = [0] * num_blocks, list(range(num_blocks))
        self.owners: dict[str, list[int]] = {}
        for name, count in owners.items():
            self.owners[name] = [self._take() for _ in range(count)]

    def state(self) -> dict[str, Any]:
        owners = {name: list(blocks) for name, blocks in self.owners.items()}
        return {"owners": owners, "users": list(self.users), "free queue": list(self.free_list)}

    def fork(self, name: str, child: str) -> list[int]:
        for block in self.owners[name]:
            self.users[block] += 1
        self.owners[child] = list(self.owners[name])
        return list(self.owners[child])

    def make_writable(self, name: str, index: int) -> tuple[int, int] | None:
        src = self.owners[name][index]
        if sum(src in blocks for blocks in self.owners.values()) == 1:
            return None
        dst = self._take()
        self.users[src] -= 1
        self.owners[name][index] = dst
        return src, dst

    def make_step_writable(self, writers: list[tuple[str, int]]) -> list[tuple[int, int]]:
        """Tries it on a second model, which may break, and does it on this one if it worked."""
        trial = ModelSharing(len(self.users), {})
        trial.users, trial.free_list = list(self.users), list(self.free_list)
        trial.owners = {name: list(blocks) for name, blocks in self.owners.items()}
        for name, index in writers:
            trial.make_writable(name, index)
        copies = [self.make_writable(name, index) for name, index in writers]
        return [copy for copy in copies if copy is not None]

    def release(self, name: str) -> None:
        for block in reversed(self.owners.pop(name)):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free_list.append(block)

    def _take(self) -> int:
        if not self.free_list:
            raise OutOfBlocks(1, 0, len(self.users))
        block = self.free_list.pop(0)
        self.users[block] = 1
        return block


class Subject:
    """Owners of blocks by name, their lists as the layer made them, and a replay that compares with the
    model."""

    def __init__(self, layer: Layer, num_blocks: int, owners: dict[str, int]) -> None:
        self.layer = layer
        self.pool = layer.given.BlockAllocator(num_blocks)
        self.cow = layer.CopyOnWrite(self.pool)
        self.lists = {name: self.pool.allocate_many(count) for name, count in owners.items()}
        self.model = ModelSharing(num_blocks, owners)
        setup = f"pool = BlockAllocator({num_blocks}); cow = CopyOnWrite(pool)"
        for name, blocks in self.lists.items():
            setup += f"; {name} = {blocks}"
        self.replay = Replay(setup, self.state, self.model.state, draw=draw, name_mistake=name_mistake)

    def state(self) -> dict[str, Any]:
        return {
            "owners": {name: list(blocks) for name, blocks in self.lists.items()},
            "users": users_of(self.pool),
            "free queue": self.pool.free_blocks(),
        }

    def fork(self, name: str, child: str) -> None:
        def fork() -> list[int]:
            self.lists[child] = self.cow.fork(self.lists[name])
            return list(self.lists[child])

        self.replay.step(f"{child} = cow.fork({name})", fork, lambda: self.model.fork(name, child))

    def make_writable(self, name: str, index: int) -> None:
        call: Callable[[], object] = lambda: self.cow.make_writable(self.lists[name], index)  # noqa: E731
        model: Callable[[], object] = lambda: self.model.make_writable(name, index)  # noqa: E731
        self.replay.step(f"cow.make_writable({name}, {index})", call, model)

    def make_step_writable(self, writers: list[tuple[str, int]]) -> None:
        def call() -> object:
            cow = self.layer.given.CopyOnWrite(self.pool)
            return self.layer.make_step_writable(cow, [(self.lists[name], index) for name, index in writers])

        pairs = ", ".join(f"({name}, {index})" for name, index in writers)
        what = f"make_step_writable(cow, [{pairs}])"
        self.replay.step(what, call, lambda: self.model.make_step_writable(writers))

    def release(self, name: str) -> None:
        def release() -> None:
            self.pool.free_many(reversed(self.lists.pop(name)))

        self.replay.step(f"pool.free_many(reversed({name}))", release, lambda: self.model.release(name))


def users_of(pool: Any) -> list[int]:
    return [pool.ref_count(block) for block in range(pool.num_blocks)]


def draw(state: dict[str, Any]) -> str:
    rows = [f"{name}: {blocks}" for name, blocks in state["owners"].items()]
    return "\n".join([*rows, sketch_pool(state["users"], state["free queue"])])


def name_mistake(step: Step) -> str | None:
    """The known mistake that a wrong step shows."""
    before, wanted, came = step.state_before, step.expected_state, step.state
    changed = came["users"] != before["users"] or came["owners"] != before["owners"]
    if step.expected.error is not None:
        if step.got.error is None or not changed:
            return None
        return ONE_BY_ONE if "step" in step.operation else GIVEN_UP_FIRST
    if "step" in step.operation:
        is_early = isinstance(step.got.error, OutOfBlocks)
        return LAST_COUNTED if is_early and not changed else ONE_BY_ONE if is_early else None
    if "fork" in step.operation:
        if len(came["free queue"]) < len(wanted["free queue"]):
            return COPIED_AT_FORK
        return NOT_A_USER if came["users"] == before["users"] != wanted["users"] else None
    if "make_writable" not in step.operation:
        return None
    name = step.operation.split("(")[1].split(",")[0]
    if any(came["owners"][other] != row for other, row in wanted["owners"].items() if other != name):
        return ONE_LIST
    if step.expected.value is None:
        return LAST_OWNER_COPIES if step.got.value is not None else None
    if step.got.value is None and not changed:
        return NOT_COPIED
    if step.got.value == tuple(reversed(step.expected.value)):  # type: ignore[call-overload]
        return EXCHANGED
    if came["owners"][name] == before["owners"][name]:
        return NOT_IN_LIST
    return NOT_GIVEN_UP if sum(came["users"]) > sum(wanted["users"]) else None


def shared(layer: Layer, num_blocks: int, num_lists: int, num_shared: int = 2) -> tuple[Any, Any, list[Any]]:
    """A pool, the layer's CopyOnWrite, and lists that share the blocks 0, 1, …, made without the layer."""
    pool = layer.given.BlockAllocator(num_blocks)
    first = pool.allocate_many(num_shared)
    lists = [first] + [layer.given.CopyOnWrite(pool).fork(first) for _ in range(num_lists - 1)]
    return pool, layer.CopyOnWrite(pool), lists


# -- task 1: fork ----------------------------------------------------------------------------------


@pytest.mark.task(1)
def test_a_fork_has_the_same_blocks_and_each_counts_one_user_more(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    parent = pool.allocate_many(3)
    cow = layer.CopyOnWrite(pool)
    child = cow.fork(parent)
    wrong = [([3], COPIED_AT_FORK), ([3, 3, 3], COPIED_AT_FORK), (None, "the child's list was not returned")]
    expect("cow.fork([0, 1, 2])", child, [0, 1, 2], wrong)
    users = [([1, 1, 1, 0], NOT_A_USER), ([2, 2, 2, 1], COPIED_AT_FORK), ([1, 1, 1, 1], COPIED_AT_FORK)]
    users += [
        ([1, 1, 2, 0], "only the last block got a user more"),
        ([3, 3, 3, 0], "users were counted twice"),
    ]
    expect("the users of blocks 0 to 3", users_of(pool), [2, 2, 2, 0], users)
    expect("pool.free_blocks()", pool.free_blocks(), [3])
    expect("the parent's list", parent, [0, 1, 2])


@pytest.mark.task(1)
def test_the_child_has_a_list_of_its_own(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    parent = pool.allocate_many(2)
    child = layer.CopyOnWrite(pool).fork(parent)
    child.append(3)
    expect("the parent's list after child.append(3)", parent, [0, 1], [([0, 1, 3], ONE_LIST)])
    parent[1] = 2
    expect("the child's list after parent[1] = 2", child, [0, 1, 3], [([0, 2, 3], ONE_LIST)])


@pytest.mark.task(1)
def test_every_fork_has_a_list_of_its_own(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    parent = pool.allocate_many(2)
    cow = layer.CopyOnWrite(pool)
    first, second = cow.fork(parent), cow.fork(parent)
    first.append(3)
    expect(
        "the list of a second fork, after the first one's .append(3)", second, [0, 1], [([0, 1, 3], TWINS)]
    )


@pytest.mark.task(1)
def test_a_fork_works_when_no_block_is_free(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(2)
    parent = pool.allocate_many(2)
    try:
        child = layer.CopyOnWrite(pool).fork(parent)
    except OutOfBlocks:
        expect("cow.fork([0, 1]) in a full pool", "OutOfBlocks", [0, 1], {"OutOfBlocks": COPIED_AT_FORK})
    expect("cow.fork([0, 1]) in a full pool", child, [0, 1])
    expect("the users of blocks 0 and 1", users_of(pool), [2, 2], [([1, 1], NOT_A_USER)])


@pytest.mark.task(1)
def test_forks_of_forks_count_every_owner(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(5)
    pool.allocate_many(5)
    cow = layer.CopyOnWrite(pool)
    child = cow.fork([4, 2])
    expect("cow.fork([4, 2])", child, [4, 2], [([2, 4], "the order of the blocks was lost")])
    grandchild = cow.fork(child)
    expect("a fork of the fork", grandchild, [4, 2])
    cow.fork([4, 2])
    wrong = [
        ([1, 1, 1, 1, 1], NOT_A_USER),
        ([1, 1, 2, 1, 2], "a block that is shared already got no user more"),
    ]
    expect("the users after three forks", users_of(pool), [1, 1, 4, 1, 4], wrong)


@pytest.mark.task(1)
def test_an_empty_list_can_be_forked(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(2)
    expect("cow.fork([])", layer.CopyOnWrite(pool).fork([]), [])
    expect("the users after it", users_of(pool), [0, 0])


# -- task 2: who may write -------------------------------------------------------------------------


@pytest.mark.task(2)
@pytest.mark.parametrize("num_owners", [1, 2, 3, 7])
def test_only_a_block_with_one_owner_is_writable(layer: Layer, num_owners: int) -> None:
    pool, cow, _ = shared(layer, 3, num_owners)
    wrong = {True: SHARED_WRITABLE} if num_owners > 1 else {False: ALONE_NOT_WRITABLE}
    what = f"cow.is_writable(1), with {num_owners} owner{'s' * (num_owners > 1)}"
    expect(what, cow.is_writable(1), num_owners == 1, wrong)
    expect("the users after it", users_of(pool), [num_owners, num_owners, 0])


@pytest.mark.task(2)
def test_a_block_is_writable_again_when_the_others_have_left(layer: Layer) -> None:
    pool, cow, _ = shared(layer, 3, 3)
    expect("cow.is_writable(0), with 3 owners", cow.is_writable(0), False, {True: SHARED_WRITABLE})
    pool.free(0)
    expect("cow.is_writable(0), with 2 of 3 owners left", cow.is_writable(0), False, {True: SHARED_WRITABLE})
    pool.free(0)
    expect("cow.is_writable(0), with 1 of 3 left", cow.is_writable(0), True, {False: ONCE_SHARED})
    expect("cow.is_writable(1), still with 3", cow.is_writable(1), False, {True: SHARED_WRITABLE})


@pytest.mark.task(2)
def test_every_block_has_its_own_answer(layer: Layer) -> None:
    pool = layer.given.BlockAllocator(4)
    pool.allocate_many(4)
    pool.share(2)
    cow = layer.CopyOnWrite(pool)
    answers = [cow.is_writable(block) for block in (0, 2, 3)]
    expect("is_writable of blocks 0, 2, 3, of which 2 is shared", answers, [True, False, True])


# -- task 3: what sharing saves --------------------------------------------------------------------


def held_and_alone(n: int, prompt_len: int, output_len: int, block_size: int) -> tuple[int, int]:
    """Blocks of n samples with and without sharing, counted one by one: a block is named by its place and,
    once a sample has written into it, by the sample."""
    held, alone = set(), set()
    for sample in range(n):
        for position in range(prompt_len + output_len):
            place = position // block_size
            written = output_len > 0 and (place + 1) * block_size > prompt_len
            held.add((place, sample if written else -1))
            alone.add((place, sample))
    return len(held), len(alone)


@pytest.mark.task(3)
@pytest.mark.parametrize(
    ("n", "prompt_len", "output_len", "block_size", "expected"),
    [
        (4, 40, 1, 16, 6), (4, 40, 100, 16, 6), (4, 40, 0, 16, 9), (2, 32, 5, 16, 2), (2, 32, 0, 16, 2),
        (1, 40, 10, 16, 0), (1, 40, 0, 16, 0), (6, 15, 60, 16, 0), (6, 15, 0, 16, 5), (3, 16, 1, 16, 2),
        (2, 17, 15, 16, 1), (100, 1000, 1, 16, 6138), (3, 6, 3, 1, 12), (5, 0, 20, 16, 0), (2, 0, 0, 4, 0),
    ],
)
def test_what_the_prompt_fills_is_saved_once_for_every_further_sample(
    layer: Layer, n: int, prompt_len: int, output_len: int, block_size: int, expected: int
) -> None:
    full, up = prompt_len // block_size, -(-prompt_len // block_size)
    tokens = prompt_len + output_len
    wrong = [
        (n * full, ORIGINAL_COUNTED), (n * up, ORIGINAL_COUNTED),
        ((n - 1) * up, TAIL_COUNTED), ((n - 1) * full, FORKED_FORGOTTEN),
        ((n - 1) * prompt_len // block_size, ROUNDED_LATE),
        ((n - 1) * (tokens // block_size), OUTPUT_COUNTED),
        ((n - 1) * -(-tokens // block_size), OUTPUT_COUNTED),
        ((n - 1) * prompt_len, IN_TOKENS), ((n - 1) * prompt_len / block_size, IN_TOKENS),
    ]
    what = f"blocks_saved({n}, {prompt_len}, {output_len}, {block_size})"
    expect(what, layer.blocks_saved(n, prompt_len, output_len, block_size), expected, wrong)


@pytest.mark.task(3)
@settings(max_examples=60)
@given(
    n=st.integers(1, 4), prompt_len=st.integers(0, 12), output_len=st.integers(0, 6),
    block_size=st.integers(1, 5),
)
def test_the_formula_counts_what_a_list_of_all_blocks_counts(
    layer: Layer, n: int, prompt_len: int, output_len: int, block_size: int
) -> None:
    held, alone = held_and_alone(n, prompt_len, output_len, block_size)
    what = f"blocks_saved({n}, {prompt_len}, {output_len}, {block_size})"
    expect(what, layer.blocks_saved(n, prompt_len, output_len, block_size), alone - held)


# -- task 4: copy on write -------------------------------------------------------------------------


@pytest.mark.task(4)
def test_the_first_writer_moves_and_the_last_owner_writes_in_place(layer: Layer) -> None:
    pool, cow, (parent, child) = shared(layer, 4, 2)
    wrong = [(None, NOT_COPIED), ((2, 1), EXCHANGED), ((0, 2), WRONG_PLACE), ([1, 2], "a list, not a tuple")]
    wrong.append((2, "only the fresh block was returned, not the copy (src, dst)"))
    expect(
        "cow.make_writable(child, 1), child [0, 1] like its parent",
        cow.make_writable(child, 1),
        (1, 2),
        wrong,
    )
    wrong = [
        ([0, 1], NOT_IN_LIST),
        ([2, 1], WRONG_PLACE),
        ([0, 1, 2], "the fresh block was appended, not put in its place"),
    ]
    expect("child after it", child, [0, 2], wrong)
    wrong = [
        ([2, 2, 1, 0], NOT_GIVEN_UP),
        ([1, 2, 1, 0], WRONG_PLACE),
        ([2, 0, 1, 0], "the shared block lost all its users"),
    ]
    expect("the users after it", users_of(pool), [2, 1, 1, 0], wrong)
    expect("parent after it", parent, [0, 1], [([0, 2], ONE_LIST)])
    wrong = [((1, 3), LAST_OWNER_COPIES), ((1, 1), "a block is copied onto itself: there is nothing to copy")]
    expect(
        "cow.make_writable(parent, 1), the last owner of block 1", cow.make_writable(parent, 1), None, wrong
    )
    expect("parent after it", parent, [0, 1], [([0, 3], LAST_OWNER_COPIES)])
    expect("the users after it", users_of(pool), [2, 1, 1, 0])


@pytest.mark.task(4)
def test_whoever_writes_first_moves_be_it_the_parent(layer: Layer) -> None:
    _, cow, (parent, child) = shared(layer, 4, 2)
    expect(
        "cow.make_writable(parent, 1), shared with its child",
        cow.make_writable(parent, 1),
        (1, 2),
        {None: NOT_COPIED},
    )
    expect(
        "cow.make_writable(child, 1) after it", cow.make_writable(child, 1), None, {(1, 3): LAST_OWNER_COPIES}
    )
    expect("parent and child", [parent, child], [[0, 2], [0, 1]])


@pytest.mark.task(4)
def test_a_block_of_ones_own_is_left_alone(layer: Layer) -> None:
    pool, cow, (alone,) = shared(layer, 3, 1)
    expect(
        "cow.make_writable([0, 1], 1), with one owner",
        cow.make_writable(alone, 1),
        None,
        {(1, 2): LAST_OWNER_COPIES},
    )
    expect("the list after it", alone, [0, 1])
    expect("the users after it", users_of(pool), [1, 1, 0])


@pytest.mark.task(4)
def test_the_place_is_the_one_that_was_asked_for(layer: Layer) -> None:
    pool, cow, (parent, child) = shared(layer, 8, 2, num_shared=4)
    wrong = {(3, 4): WRONG_PLACE, None: NOT_COPIED, (4, 1): EXCHANGED}
    expect("cow.make_writable(child, 1), child [0, 1, 2, 3]", cow.make_writable(child, 1), (1, 4), wrong)
    expect("child after it", child, [0, 4, 2, 3], [([0, 1, 2, 4], WRONG_PLACE), ([0, 1, 2, 3], NOT_IN_LIST)])
    expect("the users after it", users_of(pool), [2, 1, 2, 2, 1, 0, 0, 0])
    expect("cow.make_writable(parent, 0)", cow.make_writable(parent, 0), (0, 5))
    expect("cow.make_writable(child, 0)", cow.make_writable(child, 0), None, {(0, 6): LAST_OWNER_COPIES})
    expect("parent and child", [parent, child], [[5, 1, 2, 3], [0, 4, 2, 3]])


@pytest.mark.task(4)
def test_a_block_that_was_copied_once_can_be_shared_again(layer: Layer) -> None:
    pool, cow, (_, child) = shared(layer, 6, 2)
    expect("cow.make_writable(child, 1)", cow.make_writable(child, 1), (1, 2), {None: NOT_COPIED})
    layer.given.CopyOnWrite(pool).fork(child)
    wrong = {None: "a block that was the owner's alone once is taken to be so for ever"}
    expect("the same, when child [0, 2] has been forked", cow.make_writable(child, 1), (2, 3), wrong)


@pytest.mark.task(4)
def test_without_a_free_block_nothing_changes(layer: Layer) -> None:
    pool, cow, (parent, child) = shared(layer, 2, 2)
    what = "cow.make_writable(child, 1) in a full pool, block 1 shared"
    expect_error(what, OutOfBlocks, lambda: cow.make_writable(child, 1), mistake=NOT_COPIED)
    wrong = [([2, 1], GIVEN_UP_FIRST), ([1, 1], GIVEN_UP_FIRST)]
    expect("the users after it", users_of(pool), [2, 2], wrong)
    expect("child and parent after it", [child, parent], [[0, 1], [0, 1]])
    pool.free(1)
    expect("cow.make_writable(child, 1) when the parent has left", cow.make_writable(child, 1), None)


@pytest.mark.task(4)
def test_forks_of_forks_before_any_write_make_one_copy_less_than_owners(layer: Layer) -> None:
    subject = Subject(layer, 8, {"a": 1})
    for parent, child in (("a", "b"), ("b", "c"), ("c", "d")):
        subject.model.fork(parent, child)
        subject.lists[child] = layer.given.CopyOnWrite(subject.pool).fork(subject.lists[parent])
    for name in "cadb":
        subject.make_writable(name, 0)
    expect("their blocks in the end", [subject.lists[name] for name in "abcd"], [[2], [0], [1], [3]])


@pytest.mark.task(4)
@settings(max_examples=80)
@given(
    operations=st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.integers(0, 1), st.sampled_from(["fork", "free"]))),
        max_size=9,
    )
)
def test_any_family_of_owners_shares_and_parts(layer: Layer, operations: list[tuple[str, Any]]) -> None:
    subject = Subject(layer, 5, {"a": 2})
    for name, operation in operations:
        if name not in subject.lists:
            continue
        if operation == "fork":
            child = next((letter for letter in "abc" if letter not in subject.lists), None)
            if child:
                subject.fork(name, child)
        elif operation == "free":
            subject.release(name)
        else:
            subject.make_writable(name, operation)


# -- task 5: the copies of a whole step ------------------------------------------------------------


def family(layer: Layer, num_blocks: int, owners: str, num_shared: int = 1) -> Subject:
    """A subject whose owners all share the first blocks, forked without the layer."""
    subject = Subject(layer, num_blocks, {owners[0]: num_shared})
    for child in owners[1:]:
        subject.model.fork(owners[0], child)
        subject.lists[child] = layer.given.CopyOnWrite(subject.pool).fork(subject.lists[owners[0]])
    return subject


@pytest.mark.task(5)
def test_all_owners_write_and_the_last_stays(layer: Layer) -> None:
    subject = family(layer, 3, "abc")
    subject.make_step_writable([("a", 0), ("b", 0), ("c", 0)])
    expect("the lists of a, b, c", [subject.lists[name] for name in "abc"], [[1], [2], [0]])


@pytest.mark.task(5)
@pytest.mark.parametrize("writers", ["a", "ab", "c", "cb"])
def test_one_who_only_reads_makes_a_copy_of_every_write(layer: Layer, writers: str) -> None:
    subject = family(layer, 4, "abc")
    subject.make_step_writable([(name, 0) for name in writers])
    expect("the users of block 0", subject.pool.ref_count(0), 3 - len(writers))


@pytest.mark.task(5)
@pytest.mark.parametrize(("num_blocks", "writers", "needed"), [(2, "abc", 2), (2, "ab", 2), (4, "abcde", 4)])
def test_a_step_that_does_not_fit_changes_nothing(
    layer: Layer, num_blocks: int, writers: str, needed: int
) -> None:
    owners = "abcde" if len(writers) > 3 else "abc"
    subject = family(layer, num_blocks, owners)
    pairs = [(name, 0) for name in writers]
    subject.make_step_writable(pairs)
    cow, free = layer.given.CopyOnWrite(subject.pool), num_blocks - 1
    what = f"make_step_writable, {len(writers)} writers of a block with {len(owners)} owners"
    places = [(subject.lists[name], index) for name, index in pairs]
    call: Callable[[], object] = lambda: layer.make_step_writable(cow, places)  # noqa: E731
    expect_error(what, OutOfBlocks, call, [needed, free, num_blocks])
    expect("the users after it", users_of(subject.pool), [len(owners), *[0] * free])


@pytest.mark.task(5)
@pytest.mark.parametrize("writers", [[("a", 0), ("a", 1)], [("a", 0), ("b", 1)]])
def test_the_copies_of_several_blocks_are_counted_together(
    layer: Layer, writers: list[tuple[str, int]]
) -> None:
    subject = Subject(layer, 9, {"a": 2, "others": 6})  # one block is left
    for child in "bc":
        subject.model.fork("a", child)
        subject.lists[child] = layer.given.CopyOnWrite(subject.pool).fork(subject.lists["a"])
    subject.make_step_writable(writers)
    places = [(subject.lists[name], index) for name, index in writers]
    cow = layer.given.CopyOnWrite(subject.pool)
    call: Callable[[], object] = lambda: layer.make_step_writable(cow, places)  # noqa: E731
    expect_error("the same: 2 copies, 1 block free of 9", OutOfBlocks, call, [2, 1, 9])


@pytest.mark.task(5)
def test_the_list_of_writers_stays_as_it_was(layer: Layer) -> None:
    subject = family(layer, 4, "abc")
    writers = [(subject.lists[name], 0) for name in "ab"]
    layer.make_step_writable(layer.given.CopyOnWrite(subject.pool), writers)
    expect("writers after make_step_writable(cow, writers)", writers, [([1], 0), ([2], 0)], [([], CHANGED)])


@pytest.mark.task(5)
def test_nobody_needs_a_copy_of_what_is_his_own(layer: Layer) -> None:
    subject = Subject(layer, 2, {"a": 1, "b": 1})
    subject.make_step_writable([("b", 0), ("a", 0)])
    subject.make_step_writable([])


@pytest.mark.task(5)
def test_forks_of_forks_write_in_one_step(layer: Layer) -> None:
    subject = family(layer, 8, "ab", num_shared=2)
    subject.make_step_writable([("b", 1)])
    for parent, child in (("a", "c"), ("b", "d"), ("d", "e")):
        subject.model.fork(parent, child)
        subject.lists[child] = layer.given.CopyOnWrite(subject.pool).fork(subject.lists[parent])
    subject.make_step_writable([("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)])
    lists = [subject.lists[name] for name in "abcde"]
    expect("the lists of a to e", lists, [[0, 3], [0, 4], [0, 1], [0, 5], [0, 2]])


@pytest.mark.task(5)
@settings(max_examples=60)
@given(
    operations=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.sampled_from("bcd")),
            st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 1)), max_size=4, unique=True),
        ),
        max_size=6,
    )
)
def test_any_step_makes_the_copies_of_one_writer_after_the_other_or_none(
    layer: Layer, operations: list[Any]
) -> None:
    subject = family(layer, 5, "a", num_shared=2)
    for operation in operations:
        if isinstance(operation, list):
            subject.make_step_writable([(name, i) for name, i in operation if name in subject.lists])
        elif operation[0] in subject.lists and operation[1] not in subject.lists:
            parent, child = operation
            subject.model.fork(parent, child)
            subject.lists[child] = layer.given.CopyOnWrite(subject.pool).fork(subject.lists[parent])


# -- task 6: the best of n -------------------------------------------------------------------------


class ModelBestOf:
    """What the challenge should remember, as simply as can be said."""

    def __init__(self, num_tokens: int, n: int) -> None:
        self.scores: dict[int, float] = dict.fromkeys(range(n), 0.0)
        self.best: tuple[int, float] | None = None
        self.num_tokens = num_tokens

    def step(self, logprobs: dict[int, float], ended: list[int]) -> None:
        self.scores = {branch: self.scores[branch] + logprobs[branch] for branch in self.scores}
        for branch in sorted(ended):
            if self.best is None or self.scores[branch] > self.best[1]:
                self.best = (branch, self.scores[branch])
        if self.best is not None:
            best = self.best[1]
            self.scores = {branch: score for branch, score in self.scores.items() if score > best}
        self.num_tokens += 1


def best_of(layer: Layer, num_tokens: int, n: int, num_blocks: int = 16) -> tuple[Any, Any]:
    """A pool and a BestOf of a prompt in its first blocks, of 4 tokens each."""
    pool = layer.given.BlockAllocator(num_blocks)
    table = layer.given.BlockTable(pool, 4)
    table.append(num_tokens)
    return pool, layer.BestOf(table, n)


@pytest.mark.task(6)
def test_branches_share_the_prompt_until_they_write(layer: Layer) -> None:
    pool, best = best_of(layer, 6, 3)
    expect("BestOf(table, 3).live()", best.live(), [0, 1, 2])
    expect("its best", best.best, None)
    expect("the blocks of its branches", [best.block_ids(branch) for branch in range(3)], [[0, 1]] * 3)
    expect(
        "the users of blocks 0 and 1", users_of(pool)[:2], [3, 3], [([4, 4], "branch 0 was forked as well")]
    )
    copies = best.step({0: -0.5, 1: -2.0, 2: -1.0}, [])
    wrong: list[Any] = [([], LEADER_STOPS), ([(1, 2)], LEADER_STOPS)]
    expect("step({0: -0.5, 1: -2.0, 2: -1.0}, [])", copies, [(1, 2), (1, 3)], wrong)
    expect("best.live() after it", best.live(), [0, 1, 2], [([0], LEADER_STOPS)])
    expect("best.best after it", best.best, None, {(0, -0.5): LEADER_STOPS})


@pytest.mark.task(6)
def test_one_that_ends_stops_all_that_cannot_beat_it(layer: Layer) -> None:
    pool, best = best_of(layer, 6, 4)
    best.step({0: -0.5, 1: -2.0, 2: -1.0, 3: -0.25}, [])
    best.step({0: -0.5, 1: -0.25, 2: -0.25, 3: -0.5}, [0])
    expect("best.best when 0 ended with -1.0", best.best, (0, -1.0), {(3, -0.75): LEADER_STOPS})
    wrong = [([1, 2, 3], GOES_ON), ([0, 3], "a branch that has ended is still live"), ([], LEADER_STOPS)]
    expect("best.live(), the scores of 1, 2, 3 being -2.25, -1.25, -0.75", best.live(), [3], wrong)
    users = users_of(pool)
    expect("blocks in use", sum(map(bool, users)), 2, {5: NOT_FREED, 4: NOT_FREED, 3: NOT_FREED})
    best.step({3: -0.5}, [3])
    expect(
        "best.best when 3 ended with -1.25",
        best.best,
        (0, -1.0),
        {(3, -1.25): "a worse one replaced the best"},
    )
    expect("best.live() after it", best.live(), [])
    expect("blocks in use in the end", sum(users_of(pool)), 0, {2: NOT_FREED})


@pytest.mark.task(6)
def test_an_equal_score_is_no_better(layer: Layer) -> None:
    _, best = best_of(layer, 4, 3)
    best.step({0: -1.0, 1: -1.0, 2: -0.5}, [1])
    expect("best.live(), with -1.0, -1.0 (ended), -0.5", best.live(), [2], [([0, 2], GOES_ON)])
    expect("best.best", best.best, (1, -1.0))
    best.step({2: -0.5}, [2])
    expect(
        "best.best, when 2 ended with -1.0 too",
        best.best,
        (1, -1.0),
        {(2, -1.0): "an equal one replaced the best"},
    )


@pytest.mark.task(6)
def test_two_end_in_one_step_and_the_better_counts(layer: Layer) -> None:
    _, best = best_of(layer, 4, 4)
    best.step({0: -2.0, 1: -0.5, 2: -0.5, 3: -1.0}, [0, 2, 1])
    wrong = {(2, -0.5): "of equals the lower branch is the best", (0, -2.0): "the first that ended was kept"}
    expect("best.best of 0, 1, 2, ended with -2.0, -0.5, -0.5", best.best, (1, -0.5), wrong)
    expect("best.live()", best.live(), [], [([3], GOES_ON)])


@pytest.mark.task(6)
def test_who_stops_leaves_its_block_before_the_others_write(layer: Layer) -> None:
    _, best = best_of(layer, 6, 3, num_blocks=4)
    copies = best.step({0: -1.0, 1: -3.0, 2: -0.5}, [0])
    wrong = [([(1, 2)], APPENDED_FIRST), ([(1, 2), (1, 3)], APPENDED_FIRST)]
    what = "the copies when 0 ends, 1 stops, and only 2 goes on, all in block 1"
    expect(what, copies, [], wrong)
    expect("the blocks of branch 2", best.block_ids(2), [0, 1], [([0, 2], APPENDED_FIRST)])


@pytest.mark.task(6)
def test_who_stops_is_waited_for_by_those_with_lower_numbers_too(layer: Layer) -> None:
    _, best = best_of(layer, 6, 3, num_blocks=4)
    copies = best.step({0: -0.5, 1: -1.0, 2: -3.0}, [1])
    wrong = [([(1, 2)], APPENDED_FIRST), ([(1, 2), (1, 3)], APPENDED_FIRST)]
    expect("the copies when 1 ends, 2 stops, and only 0 goes on, all in block 1", copies, [], wrong)


@pytest.mark.task(6)
def test_the_lowest_branch_writes_first_and_nothing_passed_in_or_given_out_is_shared(layer: Layer) -> None:
    _, best = best_of(layer, 6, 4)
    logprobs, ended = {3: -9.0, 2: -1.0, 1: -5.0, 0: -0.5}, [3, 1]
    copies = best.step(logprobs, ended)
    what = "step({3: -9.0, 2: -1.0, 1: -5.0, 0: -0.5}, [3, 1])"
    expect(what, copies, [(1, 2)])
    wrong = [([[0, 1], [0, 2]], "the branches appended in the order of the dict, not the lowest first")]
    expect("the blocks of 0 and 2", [best.block_ids(branch) for branch in (0, 2)], [[0, 2], [0, 1]], wrong)
    expect("logprobs after it", logprobs, {3: -9.0, 2: -1.0, 1: -5.0, 0: -0.5}, [(dict(logprobs), CHANGED)])
    expect("ended after it", ended, [3, 1], [([1, 3], CHANGED), ([], CHANGED)])
    best.block_ids(0).append(99)
    expect("block_ids(0), after block_ids(0).append(99)", best.block_ids(0), [0, 2], [([0, 2, 99], ALIAS)])


@pytest.mark.task(6)
def test_blocks_that_were_freed_can_be_taken_in_the_same_step(layer: Layer) -> None:
    _, best = best_of(layer, 4, 2, num_blocks=3)
    best.step({0: -1.0, 1: -0.5}, [])
    for _ in range(3):
        best.step({0: -1.0, 1: -0.25}, [])
    try:
        best.step({0: -1.0, 1: -0.25}, [0])
    except OutOfBlocks as error:
        wrong = {str(error): APPENDED_FIRST}
        expect("a step in which 0 ends and 1 needs a block, with none free", str(error), "no error", wrong)
    expect("best.live()", best.live(), [1])
    expect("the blocks of branch 1", best.block_ids(1), [0, 2, 1])


@pytest.mark.task(6)
@settings(max_examples=40)
@given(
    num_tokens=st.integers(1, 6),
    n=st.integers(1, 4),
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=4, max_size=4), max_size=5
    ),
)
def test_any_course_of_a_search(
    layer: Layer, num_tokens: int, n: int, steps: list[list[tuple[int, int]]]
) -> None:
    pool, best = best_of(layer, num_tokens, n, num_blocks=32)
    model = ModelBestOf(num_tokens, n)
    history: list[str] = []
    for draws in steps:
        live = list(model.scores)
        logprobs = {branch: -draws[branch][0] / 4 for branch in live}
        ended = [branch for branch in live if draws[branch][1] == 0]
        history.append(f"step({logprobs}, {ended})")
        model.step(logprobs, ended)
        best.step(logprobs, ended)
        what = f"BestOf of {num_tokens} tokens, n={n}: {'; '.join(history)}; then "
        expect(what + "best", best.best, model.best)
        expect(what + "live()", best.live(), sorted(model.scores))
        held = {block for branch in best.live() for block in best.block_ids(branch)}
        expect(what + "the blocks in use", [b for b in range(32) if pool.ref_count(b)], sorted(held))
        uses = sum(len(best.block_ids(branch)) for branch in best.live())
        expect(what + "the sum of all users", sum(users_of(pool)), uses, {uses + 1: NOT_FREED})
        lens = [len(best.block_ids(branch)) for branch in best.live()]
        expect(what + "blocks of each branch", lens, [len(range(0, model.num_tokens, 4)) for _ in lens])
