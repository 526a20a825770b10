"""Chapter 3's grader: the block pool. `minipaged check ch03` runs it on exercises/ch03_block_allocator.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_error, sketch_pool
from minipaged.errors import OutOfBlocks

TASKS = (
    Task(
        1, "a fresh pool", stars=1, points=10, minutes=10,
        hints=(
            "Three things have to be kept: how many users each block has, in which order free blocks wait, "
            "and what was passed in.",
            "`[0] * num_blocks` for the counts, `OrderedDict.fromkeys(range(num_blocks))` for the queue.",
            "Unknown means not 0 <= block_id < num_blocks; test it before you index, since list[-1] is the "
            "last block to Python.",
        ),
        compare="why the queue is an OrderedDict, and where unknown ids are refused, once for all methods",
    ),
    Task(
        2, "take blocks from the pool", stars=1, points=15, minutes=10,
        hints=(
            "Check first, change afterwards: once a block is taken, raising would lose it.",
            "`self._free_queue.popitem(last=False)` takes the head; it gives a pair (key, value).",
            "After the checks: n times, pop the head, set its count to 1, call on_reuse if it is not None.",
        ),
        compare="that nothing is taken before the only line that can fail has passed",
    ),
    Task(
        3, "give a block back", stars=1, points=10, minutes=5,
        hints=(
            "A block with two users is still in use after one `free`.",
            "Setting a new key puts it at the end of an OrderedDict: `self._free_queue[block_id] = None`.",
        ),
        compare="that free is free_many of one block: one place knows what freeing means",
    ),
    Task(
        4, "share a block", stars=1, points=5, minutes=5,
        hints=(
            "Who may share a block that is free? Nobody: it can be handed out to somebody else any time.",
            "`ref_count` already refuses unknown blocks; use it.",
        ),
        compare="that sharing costs one addition and no memory",
    ),
    Task(
        5, "take one particular free block", stars=2, points=15, minutes=10,
        hints=(
            "It is not at the head. Which of Python's containers lets you take something out of the middle "
            "without looking at what is before it?",
            "`del self._free_queue[block_id]` is O(1) in an OrderedDict, and the others keep their order.",
        ),
        compare="why this must not be `list.remove` in a pool of a hundred thousand blocks",
    ),
    Task(
        6, "give many back, or none", stars=2, points=20, minutes=15,
        hints=(
            "The list may be wrong at its last entry. What has changed by then?",
            "How many users does the list take from each block? `collections.Counter(block_ids)` knows.",
            "For each block and its number of times: if ref_count(block) < times, raise. Only then go "
            "through the list again and free one by one.",
        ),
        compare="how [b, b] is caught without changing anything and putting it back",
    ),
    Task(
        7, "the free queue by hand", stars=3, points=25, minutes=30,
        hints=(
            "Two lists of neighbours: before[b], after[b]. Removing b makes its two neighbours neighbours.",
            "One extra place, at index num_blocks, whose `after` is the head and whose `before` is the tail. "
            "Then no method needs to ask whether the queue is empty.",
            "A helper join(left, right) that sets after[left] = right and before[right] = left does both "
            "append (join tail-block, join block-end) and remove (join before-after).",
        ),
        compare="the extra place, which vLLM calls fake_free_list_head and fake_free_list_tail",
    ),
)

KEPT_BACK = "block 0 was kept back: a pool of N blocks hands out N, there is no reserved one"
LOST = "blocks were taken before the check, and are lost: check first, then change"
TO_THE_HEAD = "a freed block went to the head of the queue, not to its tail"
SORTED = "free blocks were handed out in order of their ids, not in the order in which they became free"
STILL_USED = "a block that somebody still uses was put into the free queue"
NEVER_FREED = "a block without users never came back into the free queue: a leak"
PARTLY = "some blocks were freed before the error was found: check all of them, then change"
EMPTIED = "the list that was passed in was emptied: it is the caller's"
ONCE = "the blocks were gone through twice, and an iterator is empty the second time"
TWICE = "a block listed twice was checked once, and now it has been freed more often than it has users"
SHARE_REPORTED = "share reported the block to on_reuse, although nobody took it"
FREE_REPORTED = "freeing reported the block to on_reuse; it keeps its content until somebody takes it"
REVIVED_HEAD = "revive took the head of the queue, not the block that was asked for"
REVIVED_REUSED = "revive reported the block to on_reuse, although its content is kept"


class ModelPool:
    """What the pool should do, as simply as can be said: a list of counts and a list of free blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.counts, self.free_list = [0] * num_blocks, list(range(num_blocks))

    def state(self) -> dict[str, Any]:
        num_free = len(self.free_list)
        return {"free queue": list(self.free_list), "users": list(self.counts), "num_free": num_free}

    def allocate_many(self, n: int) -> list[int]:
        if n > len(self.free_list):
            raise OutOfBlocks(n, len(self.free_list), len(self.counts))
        taken, self.free_list = self.free_list[:n], self.free_list[n:]
        for block_id in taken:
            self.counts[block_id] = 1
        return taken

    def share(self, block_id: int) -> None:
        if self.counts[block_id] == 0:
            raise ValueError("free")
        self.counts[block_id] += 1

    def revive(self, block_id: int) -> None:
        if self.counts[block_id] != 0:
            raise ValueError("in use")
        self.free_list.remove(block_id)
        self.counts[block_id] = 1

    def free_many(self, block_ids: list[int]) -> None:
        before = list(self.counts), list(self.free_list)
        for block_id in block_ids:
            if self.counts[block_id] == 0:
                self.counts, self.free_list = before
                raise ValueError("double free")
            self.counts[block_id] -= 1
            if self.counts[block_id] == 0:
                self.free_list.append(block_id)


def state_of(pool: Any, num_blocks: int) -> dict[str, Any]:
    """All that can be seen of a pool."""
    users = [pool.ref_count(block) for block in range(num_blocks)]
    return {"free queue": pool.free_blocks(), "users": users, "num_free": pool.num_free}


def name_mistake(step: Step) -> str | None:
    """The known mistake that a wrong step shows."""
    before, wanted, came = (
        step.state_before["free queue"],
        step.expected_state["free queue"],
        step.state["free queue"],
    )
    users = step.state["users"]
    if step.expected.error is not None:
        if step.got.error is None:
            return TWICE if "free_many" in step.operation else None
        if "free" in step.operation:
            return PARTLY
        return LOST if len(came) < len(before) else None
    if any(block in came and users[block] for block in range(len(users))):
        return STILL_USED
    if "free" in step.operation and len(came) < len(wanted):
        return NEVER_FREED
    if came != wanted and sorted(came) == sorted(wanted):
        return SORTED if came == sorted(wanted) and before != sorted(before) else TO_THE_HEAD
    return None


def start(layer: Layer, num_blocks: int) -> tuple[Any, Replay, ModelPool]:
    """A pool, its model, and a replay that compares them."""
    pool, model = layer.BlockAllocator(num_blocks), ModelPool(num_blocks)
    replay = Replay(
        f"pool = BlockAllocator({num_blocks})", lambda: state_of(pool, num_blocks), model.state,
        draw=lambda state: sketch_pool(state["users"], state["free queue"]), name_mistake=name_mistake,
    )
    return pool, replay, model


# -- task 1: a fresh pool --------------------------------------------------------------------------


@pytest.mark.task(1)
def test_every_block_of_a_fresh_pool_is_free_in_id_order(layer: Layer) -> None:
    pool = layer.BlockAllocator(4)
    expect("BlockAllocator(4).num_blocks", pool.num_blocks, 4)
    expect("BlockAllocator(4).num_free", pool.num_free, 4, {3: KEPT_BACK})
    expect("BlockAllocator(4).free_blocks()", pool.free_blocks(), [0, 1, 2, 3], [([1, 2, 3], KEPT_BACK)])
    expect("the users of its blocks", [pool.ref_count(block) for block in range(4)], [0, 0, 0, 0])


@pytest.mark.task(1)
def test_two_pools_have_nothing_in_common(layer: Layer) -> None:
    first, second = layer.BlockAllocator(3), layer.BlockAllocator(2)
    expect(
        "free_blocks() of BlockAllocator(3), made before BlockAllocator(2)", first.free_blocks(), [0, 1, 2]
    )
    expect("free_blocks() of BlockAllocator(2)", second.free_blocks(), [0, 1])


@pytest.mark.task(1)
def test_a_pool_needs_at_least_one_block(layer: Layer) -> None:
    expect("BlockAllocator(1).free_blocks()", layer.BlockAllocator(1).free_blocks(), [0])
    for number in (0, -3):
        expect_error(
            f"BlockAllocator({number})", ValueError, lambda n=number: layer.BlockAllocator(n), [number]
        )


@pytest.mark.task(1)
@pytest.mark.parametrize("block", [-1, 4, 1000])
def test_an_unknown_block_has_no_users_but_an_error(layer: Layer, block: int) -> None:
    pool = layer.BlockAllocator(4)
    what = f"BlockAllocator(4).ref_count({block})"
    minus_one = "a negative id was taken for one counted from the end" if block < 0 else None
    expect_error(what, ValueError, lambda: pool.ref_count(block), [block, 3], minus_one)


@pytest.mark.task(1)
def test_the_list_of_free_blocks_is_a_new_one(layer: Layer) -> None:
    pool = layer.BlockAllocator(3)
    pool.free_blocks().append(99)
    expect("free_blocks(), after 99 was appended to what it gave before", pool.free_blocks(), [0, 1, 2])


# -- task 2: take ----------------------------------------------------------------------------------


@pytest.mark.task(2)
def test_blocks_are_handed_out_in_id_order_each_with_one_user(layer: Layer) -> None:
    pool = layer.BlockAllocator(4)
    expect("pool.allocate()", pool.allocate(), 0, {1: KEPT_BACK, 3: "the tail of the queue was taken"})
    expect("pool.allocate_many(2)", pool.allocate_many(2), [1, 2])
    expect("pool.num_free", pool.num_free, 1)
    expect("pool.free_blocks()", pool.free_blocks(), [3])
    expect("the users of its blocks", [pool.ref_count(block) for block in range(4)], [1, 1, 1, 0])
    expect("pool.allocate()", pool.allocate(), 3)


@pytest.mark.task(2)
def test_no_blocks_are_a_list_of_none(layer: Layer) -> None:
    pool = layer.BlockAllocator(1)
    expect("pool.allocate_many(0)", pool.allocate_many(0), [])
    pool.allocate()
    expect("pool.allocate_many(0) of a full pool", pool.allocate_many(0), [])


@pytest.mark.task(2)
def test_a_negative_number_is_an_error(layer: Layer) -> None:
    pool = layer.BlockAllocator(3)
    expect_error("pool.allocate_many(-2)", ValueError, lambda: pool.allocate_many(-2), [-2])
    expect("pool.num_free after it", pool.num_free, 3)


@pytest.mark.task(2)
def test_too_many_are_refused_with_the_numbers_and_none_is_taken(layer: Layer) -> None:
    pool = layer.BlockAllocator(4)
    pool.allocate_many(2)
    expect_error("pool.allocate_many(3)", OutOfBlocks, lambda: pool.allocate_many(3), [3, 2, 4])
    expect("pool.free_blocks() after it", pool.free_blocks(), [2, 3], [([], LOST), ([3], LOST)])
    expect("the users of its blocks", [pool.ref_count(block) for block in range(4)], [1, 1, 0, 0])
    pool.allocate_many(2)
    expect_error("pool.allocate() of a full pool", OutOfBlocks, pool.allocate, [1, 0, 4])


@pytest.mark.task(2)
def test_every_block_handed_out_is_reported(layer: Layer) -> None:
    reported = layer.given("minipaged.course.layer").Log()
    pool = layer.BlockAllocator(3, on_reuse=reported.append)
    pool.allocate_many(2)
    pool.allocate()
    missed = "on_reuse was not called for every block handed out"
    expect(
        "the blocks that on_reuse was called with",
        reported.entries(),
        [0, 1, 2],
        [([], missed), ([2], missed)],
    )
    expect_error("pool.allocate() of a full pool", OutOfBlocks, pool.allocate)
    expect("the blocks reported after it", reported.entries(), [0, 1, 2])


@pytest.mark.task(4)
def test_nothing_but_handing_out_is_reported(layer: Layer) -> None:
    reported = layer.given("minipaged.course.layer").Log()
    pool = layer.BlockAllocator(2, on_reuse=reported.append)
    pool.allocate()
    pool.share(0)
    expect(
        "the blocks reported after allocate and share", reported.entries(), [0], [([0, 0], SHARE_REPORTED)]
    )
    pool.free(0)
    pool.free(0)
    expect("the blocks reported after it was freed", reported.entries(), [0], [([0, 0], FREE_REPORTED)])


# -- task 3: give back -----------------------------------------------------------------------------


@pytest.mark.task(3)
def test_freed_blocks_wait_behind_the_others(layer: Layer) -> None:
    pool = layer.BlockAllocator(4)
    pool.allocate_many(3)
    pool.free(2)
    pool.free(0)
    wrong = [([0, 2, 3], TO_THE_HEAD), ([2, 0, 3], TO_THE_HEAD), ([3], NEVER_FREED)]
    expect("free_blocks() after free(2), free(0), with 3 free before", pool.free_blocks(), [3, 2, 0], wrong)
    expect("pool.allocate_many(3)", pool.allocate_many(3), [3, 2, 0], [([0, 2, 3], SORTED)])


@pytest.mark.task(3)
def test_freeing_twice_is_an_error_and_changes_nothing(layer: Layer) -> None:
    pool = layer.BlockAllocator(4)
    pool.allocate_many(4)
    pool.free(2)
    expect_error("pool.free(2), a second time", ValueError, lambda: pool.free(2), [2])
    expect("pool.free_blocks() after it", pool.free_blocks(), [2], [([2, 2], "a double free")])
    expect("pool.ref_count(2) after it", pool.ref_count(2), 0, {-1: "the count went below zero"})


@pytest.mark.task(3)
@pytest.mark.parametrize("block", [-1, 4])
def test_an_unknown_block_cannot_be_freed(layer: Layer, block: int) -> None:
    pool = layer.BlockAllocator(4)
    pool.allocate_many(4)
    expect_error(f"BlockAllocator(4).free({block})", ValueError, lambda: pool.free(block), [block])
    expect("pool.num_free after it", pool.num_free, 0)


# -- task 4: share ---------------------------------------------------------------------------------


@pytest.mark.task(4)
def test_a_shared_block_is_free_when_its_last_user_gives_it_up(layer: Layer) -> None:
    pool = layer.BlockAllocator(2)
    pool.allocate()
    pool.share(0)
    expect("pool.ref_count(0) after allocate and share", pool.ref_count(0), 2)
    pool.free(0)
    expect(
        "pool.free_blocks() after one of two users freed it", pool.free_blocks(), [1], [([1, 0], STILL_USED)]
    )
    expect("pool.ref_count(0)", pool.ref_count(0), 1)
    pool.free(0)
    expect("pool.free_blocks() after the other one did", pool.free_blocks(), [1, 0], [([1], NEVER_FREED)])


@pytest.mark.task(4)
@pytest.mark.parametrize("block", [1, -1, 2])
def test_a_free_or_unknown_block_cannot_be_shared(layer: Layer, block: int) -> None:
    pool = layer.BlockAllocator(2)
    pool.allocate()
    expect_error(
        f"pool.share({block}), with only block 0 in use", ValueError, lambda: pool.share(block), [block]
    )
    expect("pool.ref_count(1) after it", pool.ref_count(1), 0)


# -- task 5: revive --------------------------------------------------------------------------------


@pytest.mark.task(5)
def test_a_block_can_be_taken_out_of_the_middle_of_the_queue(layer: Layer) -> None:
    reported = layer.given("minipaged.course.layer").Log()
    pool = layer.BlockAllocator(5, on_reuse=reported.append)
    pool.revive(2)
    expect("free_blocks() after revive(2)", pool.free_blocks(), [0, 1, 3, 4], [([1, 2, 3, 4], REVIVED_HEAD)])
    expect("ref_count(2) after revive(2)", pool.ref_count(2), 1)
    expect("the blocks reported to on_reuse", reported.entries(), [], [([2], REVIVED_REUSED)])
    pool.free(2)
    expect(
        "free_blocks() after free(2)", pool.free_blocks(), [0, 1, 3, 4, 2], [([2, 0, 1, 3, 4], TO_THE_HEAD)]
    )


@pytest.mark.task(5)
@pytest.mark.parametrize("block", [0, -1, 2])
def test_a_block_in_use_cannot_be_revived_nor_an_unknown_one(layer: Layer, block: int) -> None:
    pool = layer.BlockAllocator(2)
    pool.allocate()
    expect_error(
        f"pool.revive({block}), with block 0 in use", ValueError, lambda: pool.revive(block), [block]
    )
    expect("free_blocks() after it", pool.free_blocks(), [1])
    expect("pool.ref_count(0) after it", pool.ref_count(0), 1)


# -- task 6: give many back ------------------------------------------------------------------------


@pytest.mark.task(6)
def test_many_are_freed_in_the_order_given(layer: Layer) -> None:
    pool, replay, model = start(layer, 4)
    replay.step("pool.allocate_many(4)", lambda: pool.allocate_many(4), lambda: model.allocate_many(4))
    replay.step("pool.share(1)", lambda: pool.share(1), lambda: model.share(1))
    for blocks in ([3, 1, 0], [1, 2]):
        replay.step(
            f"pool.free_many({blocks})",
            lambda blocks=blocks: pool.free_many(blocks), lambda blocks=blocks: model.free_many(blocks),
        )


@pytest.mark.task(6)
def test_blocks_may_come_one_at_a_time(layer: Layer) -> None:
    pool = layer.BlockAllocator(4)
    blocks = pool.allocate_many(3)
    pool.free_many(reversed(blocks))  # the engine passes iterators, which can be gone through once
    expect(
        "free_blocks() after free_many(reversed([0, 1, 2]))", pool.free_blocks(), [3, 2, 1, 0], [([3], ONCE)]
    )
    expect("blocks, after it was freed", blocks, [0, 1, 2])


@pytest.mark.task(6)
@pytest.mark.parametrize("blocks", [[0, 1, 2], [2, 0, 1], [1, 1, 0]])
def test_a_list_that_is_freed_stays_as_it_is(layer: Layer, blocks: list[int]) -> None:
    pool, passed = layer.BlockAllocator(4), list(blocks)
    pool.allocate_many(3)
    pool.share(1)
    pool.free_many(passed)
    expect(f"the list, after free_many({blocks})", passed, blocks, [([], EMPTIED)])


@pytest.mark.task(6)
@pytest.mark.parametrize("blocks", [[0, 0], [1, 0, 1, 1], [1, 3], [0, 1, 7], [2, -1]])
def test_a_list_with_one_wrong_entry_frees_nothing(layer: Layer, blocks: list[int]) -> None:
    pool = layer.BlockAllocator(4)
    pool.allocate_many(3)
    pool.share(1)
    what = f"pool.free_many({blocks}), with blocks 0, 1 (two users) and 2 in use"
    mistake = TWICE if len(set(blocks)) < len(blocks) else None
    guilty = {3: [3], 7: [7], -1: [-1]}.get(blocks[-1], [max(blocks, key=blocks.count)])
    expect_error(what, ValueError, lambda: pool.free_many([*blocks]), guilty, mistake)
    users = [pool.ref_count(block) for block in range(4)]
    wrong = [
        (counts, PARTLY) for counts in ([0, 2, 1, 0], [1, 1, 1, 0], [0, 0, 1, 0], [1, 2, 0, 0], [0, 1, 1, 0])
    ]
    expect(f"the users after free_many({blocks})", users, [1, 2, 1, 0], wrong)
    expect(f"free_blocks() after free_many({blocks})", pool.free_blocks(), [3])


OPERATIONS = st.one_of(
    st.tuples(st.just("allocate_many"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["share", "revive", "free"]), st.integers(0, 3)),
    st.tuples(st.just("free_many"), st.lists(st.integers(0, 3), max_size=3)),
)


@pytest.mark.task(6)
@settings(max_examples=200)
@given(operations=st.lists(OPERATIONS, max_size=10))
def test_any_history_leaves_the_pool_as_it_should_be(layer: Layer, operations: list[tuple[str, Any]]) -> None:
    pool, replay, model = start(layer, 4)
    for name, argument in operations:
        model_name, model_argument = ("free_many", [argument]) if name == "free" else (name, argument)
        replay.step(
            f"pool.{name}({argument})",
            lambda name=name, argument=argument: getattr(pool, name)(argument),
            lambda name=model_name, argument=model_argument: getattr(model, name)(argument),
        )


# -- task 7: the challenge -------------------------------------------------------------------------


@pytest.mark.task(7)
def test_a_linked_queue_takes_from_the_head_and_appends_at_the_tail(layer: Layer) -> None:
    queue = layer.LinkedFreeQueue(4)
    expect("LinkedFreeQueue(4).blocks()", queue.blocks(), [0, 1, 2, 3])
    expect("queue.popleft()", queue.popleft(), 0)
    queue.remove(2)
    queue.append(0)
    expect("queue.blocks() after popleft(), remove(2), append(0)", queue.blocks(), [1, 3, 0])
    expect("len(queue)", len(queue), 3)


@pytest.mark.task(7)
def test_what_cannot_be_is_an_error(layer: Layer) -> None:
    queue = layer.LinkedFreeQueue(2)
    expect_error("queue.append(1), which is in the queue", ValueError, lambda: queue.append(1), [1])
    queue.remove(1)
    expect_error("queue.remove(1), a second time", ValueError, lambda: queue.remove(1), [1])
    for block in (-1, 2):
        expect_error(
            f"LinkedFreeQueue(2).remove({block})", ValueError, lambda b=block: queue.remove(b), [block]
        )
    expect("queue.blocks() after it", queue.blocks(), [0])
    queue.popleft()
    expect("queue.blocks() of an empty queue", queue.blocks(), [])
    expect_error("queue.popleft() of an empty queue", IndexError, queue.popleft)
    queue.append(1)
    expect("queue.blocks() after append(1)", queue.blocks(), [1])


@pytest.mark.task(7)
@settings(max_examples=100)
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["popleft", "append", "remove"]), st.integers(0, 3)), max_size=12
    )
)
def test_a_linked_queue_is_like_a_list(layer: Layer, operations: list[tuple[str, int]]) -> None:
    queue, model = layer.LinkedFreeQueue(4), [0, 1, 2, 3]

    def apply(name: str, block: int) -> int | None:
        if name == "popleft":
            return model.pop(0)
        if (block in model) == (name == "append"):
            raise ValueError(block)
        return model.append(block) if name == "append" else model.remove(block)

    replay = Replay(
        "queue = LinkedFreeQueue(4)", lambda: {"blocks": queue.blocks(), "len": len(queue)},
        lambda: {"blocks": list(model), "len": len(model)},
    )
    for name, block in operations:
        arguments = [] if name == "popleft" else [block]
        replay.step(
            f"queue.{name}({', '.join(map(str, arguments))})",
            lambda name=name, arguments=arguments: getattr(queue, name)(*arguments),
            lambda name=name, block=block: apply(name, block),
        )
