"""The pool of blocks (design rules 1-4, cases 1-3)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.block_allocator import BlockAllocator
from minipaged.errors import OutOfBlocks


def state(allocator: BlockAllocator) -> tuple[list[int], list[int]]:
    return allocator.free_blocks(), [allocator.ref_count(block) for block in range(allocator.num_blocks)]


def test_a_pool_of_n_blocks_hands_out_all_n_in_id_order_and_reserves_none():
    allocator = BlockAllocator(5)
    assert [allocator.allocate() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert allocator.num_free == 0
    assert [allocator.ref_count(block) for block in range(5)] == [1] * 5


def test_freed_blocks_wait_behind_the_fresh_ones_and_come_back_first_in_first_out():
    allocator = BlockAllocator(5)
    allocator.allocate_many(4)
    for block in (2, 0, 3):
        allocator.free(block)
    assert allocator.free_blocks() == [4, 2, 0, 3]
    assert allocator.allocate_many(4) == [4, 2, 0, 3]


def test_freeing_twice_is_an_error_and_changes_nothing():
    allocator = BlockAllocator(4)
    allocator.allocate_many(4)
    allocator.free(2)
    before = state(allocator)
    with pytest.raises(ValueError, match="2"):
        allocator.free(2)
    assert state(allocator) == before
    allocator.free(0)
    assert allocator.allocate_many(2) == [2, 0], "never the same id twice"


@pytest.mark.parametrize("block", [-1, 4, 10**6])
@pytest.mark.parametrize("operation", ["free", "share", "ref_count", "revive"])
def test_an_unknown_block_is_an_error_that_names_it_and_the_pool(operation: str, block: int):
    allocator = BlockAllocator(4)
    allocator.allocate_many(4)
    before = state(allocator)
    with pytest.raises(ValueError, match=rf"(?s){block}.*3"):
        getattr(allocator, operation)(block)
    assert state(allocator) == before


def test_a_block_is_free_when_its_last_user_gives_it_up():
    allocator = BlockAllocator(4)
    block = allocator.allocate()
    allocator.share(block)
    allocator.share(block)
    assert allocator.ref_count(block) == 3
    for users_left in (2, 1):
        allocator.free(block)
        assert allocator.ref_count(block) == users_left
        assert block not in allocator.free_blocks()
    allocator.free(block)
    assert allocator.free_blocks().count(block) == 1


def test_a_free_block_cannot_be_shared():
    allocator = BlockAllocator(4)
    before = state(allocator)
    with pytest.raises(ValueError, match="0"):
        allocator.share(0)
    assert state(allocator) == before


def test_one_batch_may_free_a_block_once_per_user():
    allocator = BlockAllocator(4)
    block = allocator.allocate()
    allocator.share(block)
    allocator.free_many([block, block])
    assert (allocator.ref_count(block), allocator.num_free) == (0, 4)
    assert allocator.free_blocks().count(block) == 1


def test_one_batch_that_frees_a_block_more_often_than_it_has_users_changes_nothing():
    allocator = BlockAllocator(4)
    other, block = allocator.allocate_many(2)
    before = state(allocator)
    with pytest.raises(ValueError, match=f"{block}"):
        allocator.free_many([other, block, block])
    with pytest.raises(ValueError, match="9"):
        allocator.free_many([other, block, 9])
    assert state(allocator) == before


def test_a_sequence_freed_last_block_first_has_its_tail_reused_before_its_head():
    allocator = BlockAllocator(4)
    blocks = allocator.allocate_many(4)
    allocator.free_many(reversed(blocks))
    assert allocator.allocate() == blocks[-1]


def test_too_few_blocks_is_out_of_blocks_with_the_numbers_and_changes_nothing():
    allocator = BlockAllocator(8)
    allocator.allocate_many(7)
    before = state(allocator)
    with pytest.raises(OutOfBlocks, match="need 3, 1 free of 8") as caught:
        allocator.allocate_many(3)
    assert (caught.value.needed, caught.value.free, caught.value.total) == (3, 1, 8)
    assert not isinstance(caught.value, ValueError), "nobody made a mistake"
    assert state(allocator) == before
    allocator.allocate()
    with pytest.raises(OutOfBlocks, match="need 1, 0 free of 8"):
        allocator.allocate()


def test_allocating_none_takes_none_and_a_negative_number_is_an_error():
    allocator = BlockAllocator(2)
    assert allocator.allocate_many(0) == []
    with pytest.raises(ValueError, match="-1"):
        allocator.allocate_many(-1)
    assert allocator.num_free == 2


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_without_blocks_is_an_error(num_blocks: int):
    with pytest.raises(ValueError, match=str(num_blocks)):
        BlockAllocator(num_blocks)


def test_reviving_takes_one_block_out_of_the_middle_of_the_queue_and_keeps_its_content():
    reused: list[int] = []
    allocator = BlockAllocator(4, on_reuse=reused.append)
    allocator.revive(2)
    assert (allocator.ref_count(2), allocator.free_blocks(), reused) == (1, [0, 1, 3], [])
    assert allocator.allocate_many(3) == [0, 1, 3]
    assert reused == [0, 1, 3]


def test_a_block_in_use_cannot_be_revived():
    allocator = BlockAllocator(4)
    block = allocator.allocate()
    before = state(allocator)
    with pytest.raises(ValueError, match=str(block)):
        allocator.revive(block)
    assert state(allocator) == before


class CountingQueue(OrderedDict[int, None]):
    """A free queue that counts the entries it is asked to look at."""

    touched = 0

    def __iter__(self) -> Any:
        for entry in super().__iter__():
            type(self).touched += 1
            yield entry

    def popitem(self, last: bool = True) -> tuple[int, None]:
        type(self).touched += 1
        return super().popitem(last)

    def __delitem__(self, block: int) -> None:
        type(self).touched += 1
        super().__delitem__(block)

    def __setitem__(self, block: int, value: None) -> None:
        type(self).touched += 1
        super().__setitem__(block, value)


@pytest.mark.parametrize("num_blocks", [100, 10_000, 100_000])
def test_every_operation_touches_one_entry_of_the_free_queue_however_long_it_is(num_blocks: int):
    allocator = BlockAllocator(num_blocks)
    queues = [name for name, value in vars(allocator).items() if isinstance(value, OrderedDict)]
    assert len(queues) == 1, "this test knows an allocator with one ordered free queue"
    setattr(allocator, queues[0], CountingQueue(getattr(allocator, queues[0])))
    CountingQueue.touched = 0
    allocator.revive(num_blocks // 2)
    allocator.free(num_blocks // 2)
    blocks = allocator.allocate_many(10)
    allocator.free_many(blocks)
    assert CountingQueue.touched == 2 + 10 + 10


@given(st.lists(st.sampled_from(["allocate", "free", "share", "revive"]), max_size=60), st.randoms())
def test_the_pool_behaves_like_a_list_and_a_table_of_counts(operations: list[str], random: Any):
    allocator, free, counts = BlockAllocator(5), list(range(5)), [0] * 5
    for operation in operations:
        block = random.randrange(5)
        legal = {"free": counts[block] > 0, "share": counts[block] > 0, "revive": counts[block] == 0}
        if operation == "allocate":
            if free:
                expected = free.pop(0)
                assert allocator.allocate() == expected
                counts[expected] = 1
            else:
                with pytest.raises(OutOfBlocks):
                    allocator.allocate()
        elif not legal[operation]:
            with pytest.raises(ValueError):
                getattr(allocator, operation)(block)
        else:
            getattr(allocator, operation)(block)
            counts[block] += {"free": -1, "share": 1, "revive": 1}[operation]
            if operation == "revive":
                free.remove(block)
            elif counts[block] == 0:
                free.append(block)
        assert state(allocator) == (free, counts)
        assert allocator.num_free == len(free)
