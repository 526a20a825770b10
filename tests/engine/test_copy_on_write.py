"""Sharing and copies, in numbers and in bytes (design rule 7, cases 5 and 7)."""

from __future__ import annotations

import pytest
import torch

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable
from minipaged.copy_on_write import CopyOnWrite
from minipaged.errors import OutOfBlocks
from minipaged.paged_attention import KVCache


def test_a_fork_takes_nothing_and_adds_one_user_per_block():
    allocator = BlockAllocator(2)
    cow = CopyOnWrite(allocator)
    parent = allocator.allocate_many(2)
    child = cow.fork(parent)
    assert child == parent and child is not parent
    assert (allocator.num_free, allocator.ref_count(0), allocator.ref_count(1)) == (0, 2, 2)


def test_only_a_block_with_one_user_is_writable():
    allocator = BlockAllocator(2)
    cow = CopyOnWrite(allocator)
    block = allocator.allocate()
    assert cow.is_writable(block)
    allocator.share(block)
    assert not cow.is_writable(block)


def test_the_writer_moves_to_a_fresh_block_and_the_last_owner_stays():
    allocator = BlockAllocator(4)
    cow = CopyOnWrite(allocator)
    parent = allocator.allocate_many(2)
    child = cow.fork(parent)
    assert (cow.make_writable(child, 1), child) == ((1, 2), [0, 2])
    assert (cow.make_writable(parent, 1), parent) == (None, [0, 1])
    assert [allocator.ref_count(block) for block in range(4)] == [2, 1, 1, 0]


def test_a_copy_that_finds_no_block_changes_nothing():
    allocator = BlockAllocator(2)
    cow = CopyOnWrite(allocator)
    parent = allocator.allocate_many(2)
    child = cow.fork(parent)
    with pytest.raises(OutOfBlocks, match="need 1, 0 free of 2"):
        cow.make_writable(child, 1)
    assert child == [0, 1]
    assert [allocator.ref_count(block) for block in (0, 1)] == [2, 2]


def test_a_shared_partial_tail_keeps_its_bytes_for_both_branches():
    """Block size 4, 6 tokens, fork; the child writes, then the parent: one copy, nobody sees the other."""
    allocator = BlockAllocator(4)
    cache = KVCache(2, 4, 4, num_kv_heads=1, head_dim=2)
    parent = BlockTable(allocator, block_size=4)

    def write(table: BlockTable, value: float) -> list[tuple[int, int]]:
        append = table.append(1)
        cache.copy_blocks(append.copies)
        kv = torch.full((1, 1, 2), value)
        for layer in range(2):
            cache.write(layer, kv + layer, -kv - layer, torch.tensor(append.slots))
        return append.copies

    for token in range(6):
        write(parent, float(token))
    child = parent.fork()
    assert write(child, 60.0) == [(1, 2)]
    assert write(parent, 70.0) == []
    for table, last in ((parent, 70.0), (child, 60.0)):
        slots = torch.tensor([table.slot(position) for position in range(7)])
        for layer in range(2):
            k = cache.k[layer].flatten(0, 1)[slots, 0, 0]
            assert (k - layer).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, last]
            assert torch.equal(cache.v[layer].flatten(0, 1)[slots, 0, 0], -k)
