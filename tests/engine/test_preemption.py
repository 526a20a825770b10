"""Who gives way, and swapping without losing what is shared (design rule 14, case 8)."""

from __future__ import annotations

import pytest

from minipaged.block_allocator import BlockAllocator
from minipaged.errors import OutOfBlocks
from minipaged.preemption import Preemption


@pytest.mark.parametrize(
    ("running", "victim"),
    [
        ([(0, 0)], 0),
        ([(0, 0), (0, 1), (0, 2)], 2),
        ([(0, 2), (0, 0), (0, 1)], 0),
        ([(0, 1), (5, 0), (0, 2)], 1),
        ([(-1, 9), (0, 0)], 1),
    ],
)
def test_the_victim_is_the_last_by_priority_and_then_by_arrival(running: list[tuple[int, int]], victim: int):
    assert Preemption.choose_victim(running) == victim


def shared_tables(pool: BlockAllocator) -> list[list[int]]:
    """Two sequences of two blocks each, the first block shared."""
    shared, left, right = pool.allocate_many(3)
    pool.share(shared)
    return [[shared, left], [shared, right]]


def test_a_shared_block_is_moved_once_and_is_still_shared():
    gpu, cpu = BlockAllocator(8), BlockAllocator(4)
    tables = shared_tables(gpu)
    swapped, copies = Preemption.move_blocks(tables, gpu, cpu)
    assert (gpu.num_free, cpu.num_free) == (8, 1)
    assert swapped[0][0] == swapped[1][0] and len({*swapped[0], *swapped[1]}) == 3
    assert [cpu.ref_count(block) for block in (swapped[0][0], swapped[0][1], swapped[1][1])] == [2, 1, 1]
    assert sorted(copies) == sorted(
        {
            (old, new)
            for before, after in zip(tables, swapped, strict=True)
            for old, new in zip(before, after, strict=True)
        }
    )
    back, copies = Preemption.move_blocks(swapped, cpu, gpu)
    assert (gpu.num_free, cpu.num_free, len(copies)) == (5, 4, 3)
    assert back[0][0] == back[1][0] and gpu.ref_count(back[0][0]) == 2


def test_a_block_that_somebody_else_uses_stays_with_them():
    gpu, cpu = BlockAllocator(8), BlockAllocator(4)
    tables = shared_tables(gpu)
    gpu.share(tables[0][0])  # a third user, of another request
    Preemption.move_blocks(tables, gpu, cpu)
    assert (gpu.ref_count(tables[0][0]), gpu.num_free, cpu.num_free) == (1, 7, 1)


def test_a_swap_that_does_not_fit_changes_neither_pool():
    gpu, cpu = BlockAllocator(8), BlockAllocator(2)
    tables = shared_tables(gpu)
    counts = [gpu.ref_count(block) for block in range(8)]
    with pytest.raises(OutOfBlocks, match="need 3, 2 free of 2"):
        Preemption.move_blocks(tables, gpu, cpu)
    assert [gpu.ref_count(block) for block in range(8)] == counts
    assert cpu.free_blocks() == [0, 1]
