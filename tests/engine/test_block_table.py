"""Block tables: growth, slots, forks (design rules 5-7, cases 5, 6, 18)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable, blocks_for
from minipaged.errors import OutOfBlocks


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_n_tokens_hold_exactly_the_blocks_they_need(tokens: int, blocks: int):
    assert blocks_for(tokens, 4) == blocks
    table = BlockTable(BlockAllocator(8), block_size=4)
    table.append(tokens)
    assert (len(table.block_ids), table.num_tokens) == (blocks, tokens)


def test_no_block_is_taken_before_a_token_needs_it():
    table = BlockTable(BlockAllocator(8), block_size=16)
    lengths = {}
    for _ in range(33):
        table.append(1)
        lengths[table.num_tokens] = len(table.block_ids)
    assert [lengths[n] for n in (15, 16, 17, 32, 33)] == [1, 1, 2, 2, 3]


def test_slots_follow_the_block_ids_and_not_the_positions():
    allocator = BlockAllocator(8)
    first, second = BlockTable(allocator, 4), BlockTable(allocator, 4)
    assert first.append(5).slots == [0, 1, 2, 3, 4]
    assert second.append(2).slots == [8, 9]
    assert first.append(4).slots == [5, 6, 7, 12]
    assert first.block_ids == [0, 1, 3]
    assert [first.slot(position) for position in (0, 4, 8)] == [0, 4, 12]


@pytest.mark.parametrize("position", [-1, 5, 100])
def test_the_slot_of_a_token_that_is_not_there_is_an_error(position: int):
    table = BlockTable(BlockAllocator(8), block_size=4)
    table.append(5)
    with pytest.raises(ValueError, match=str(position)):
        table.slot(position)


def test_a_table_of_blocks_of_one_token_works():
    table = BlockTable(BlockAllocator(3), block_size=1)
    assert table.append(3).slots == [0, 1, 2]
    child = table.fork()
    table.free()
    assert child.append(0) == ([], [])
    with pytest.raises(OutOfBlocks, match="need 1, 0 free of 3"):
        child.append(1)


def test_an_append_that_does_not_fit_changes_nothing():
    allocator = BlockAllocator(3)
    table, other = BlockTable(allocator, 4), BlockTable(allocator, 4)
    table.append(3)
    other.append(1)
    free = allocator.free_blocks()
    with pytest.raises(OutOfBlocks, match="need 2, 1 free of 3"):
        table.append(6)
    assert (table.block_ids, table.num_tokens, allocator.free_blocks()) == ([0], 3, free)


def test_an_append_whose_copy_alone_fits_changes_nothing():
    allocator = BlockAllocator(3)
    table = BlockTable(allocator, 4)
    table.append(6)
    child = table.fork()
    with pytest.raises(OutOfBlocks, match="need 2, 1 free of 3"):
        child.append(3)  # the copy of block 1, and one more
    assert (child.block_ids, child.num_tokens, allocator.ref_count(1)) == ([0, 1], 6, 2)


def test_a_fork_shares_every_block_and_takes_none_even_from_an_exhausted_pool():
    allocator = BlockAllocator(2)
    table = BlockTable(allocator, 4)
    table.append(8)
    child = table.fork()
    assert (child.block_ids, child.num_tokens, allocator.num_free) == ([0, 1], 8, 0)
    assert [allocator.ref_count(block) for block in (0, 1)] == [2, 2]


def test_a_fork_has_a_list_of_its_own():
    table = BlockTable(BlockAllocator(8), block_size=4)
    table.append(6)
    child = table.fork()
    child.append(3)
    assert (table.block_ids, table.num_tokens) == ([0, 1], 6)
    assert (child.block_ids, child.num_tokens) == ([0, 2, 3], 9)


def test_the_first_writer_copies_a_shared_tail_and_the_last_owner_writes_in_place():
    allocator = BlockAllocator(8)
    parent = BlockTable(allocator, block_size=4)
    parent.append(6)
    child = parent.fork()
    assert child.append(1) == ([10], [(1, 2)])
    assert parent.append(1) == ([6], [])
    assert (parent.block_ids, child.block_ids) == ([0, 1], [0, 2])
    assert [allocator.ref_count(block) for block in (0, 1, 2)] == [2, 1, 1]


def test_three_branches_on_one_tail_make_two_copies():
    allocator = BlockAllocator(8)
    parent = BlockTable(allocator, block_size=4)
    parent.append(2)
    branches = [parent, parent.fork(), parent.fork()]
    copies = [copy for branch in branches for copy in branch.append(1).copies]
    assert copies == [(0, 1), (0, 2)]
    assert [branch.block_ids for branch in branches] == [[1], [2], [0]]


@pytest.mark.parametrize("child_first", [True, False], ids=["child first", "parent first"])
@pytest.mark.parametrize(
    ("stored", "appended", "extra"),
    [(1, 1, 1), (1, 16, 3), (1, 129, 17), (16, 1, 1), (16, 16, 2), (16, 129, 17), (129, 1, 1), (129, 16, 3),
     (129, 129, 17)],
)
def test_an_append_to_one_branch_takes_exactly_the_blocks_that_differ(
    stored: int, appended: int, extra: int, child_first: bool
):
    allocator = BlockAllocator(64)
    parent = BlockTable(allocator, block_size=8)
    parent.append(stored)
    child = parent.fork()
    writer, other = (child, parent) if child_first else (parent, child)
    free, tail = allocator.num_free, parent.block_ids[stored // 8 :]
    append = writer.append(appended)
    assert free - allocator.num_free == extra
    assert [src for src, _ in append.copies] == tail
    assert [dst for _, dst in append.copies] == writer.block_ids[stored // 8 : stored // 8 + len(tail)]
    assert bool(append.copies) == (stored % 8 != 0)
    assert not other.append(appended).copies, "the last owner writes in place"
    parent.free()
    child.free()
    assert allocator.num_free == 64


def test_freeing_gives_the_last_block_back_first_and_can_be_repeated():
    allocator = BlockAllocator(4)
    table = BlockTable(allocator, 4)
    table.append(12)
    table.free()
    table.free()
    assert (table.block_ids, table.num_tokens) == ([], 0)
    assert allocator.free_blocks() == [3, 2, 1, 0]


def test_a_fork_of_a_beginning_shares_only_the_blocks_of_that_beginning():
    allocator = BlockAllocator(8)
    parent = BlockTable(allocator, block_size=4)
    parent.append(11)
    child = parent.fork(5)
    assert (child.block_ids, child.num_tokens) == ([0, 1], 5)
    assert child.append(1) == ([13], [(1, 3)])
    with pytest.raises(ValueError, match=r"(?s)12.*11"):
        parent.fork(12)


def test_adopting_needs_an_empty_table_and_exactly_the_blocks_of_the_tokens():
    allocator = BlockAllocator(8)
    table = BlockTable(allocator, block_size=4)
    with pytest.raises(ValueError, match="5"):
        table.adopt([0], 5)
    table.adopt(allocator.allocate_many(2), 5)
    assert table.append(1).slots == [5]
    with pytest.raises(ValueError):
        table.adopt([2, 3], 5)


@pytest.mark.parametrize("block_size", [0, -1])
def test_a_block_holds_at_least_one_token(block_size: int):
    with pytest.raises(ValueError, match=str(block_size)):
        BlockTable(BlockAllocator(1), block_size)


def test_a_negative_append_is_an_error():
    with pytest.raises(ValueError, match="-2"):
        BlockTable(BlockAllocator(1), 4).append(-2)


@given(
    block_size=st.integers(1, 9),
    appends=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=25),
)
def test_no_two_tables_ever_have_a_slot_in_common(block_size: int, appends: list[tuple[int, int]]):
    allocator = BlockAllocator(600)
    tables = [BlockTable(allocator, block_size) for _ in range(4)]
    for index, num_tokens in appends:
        tables[index].append(num_tokens)
    slots = [table.slot(position) for table in tables for position in range(table.num_tokens)]
    assert len(slots) == len(set(slots))
    assert allocator.num_blocks - allocator.num_free == sum(-(-t.num_tokens // block_size) for t in tables)
