"""The bytes of the pool: writes by slot, copies of blocks (design rules 7 and 8, cases 7, 20 and 25)."""

from __future__ import annotations

import pytest
import torch

from minipaged.config import ModelConfig
from minipaged.kv_memory import kv_bytes_per_token, num_blocks_for
from minipaged.paged_attention import KVCache

L, N, B, G, D = 2, 6, 4, 3, 2


def filled_cache(dtype: torch.dtype = torch.float32) -> KVCache:
    cache = KVCache(L, N, B, G, D, dtype=dtype)
    cache.k.copy_(torch.arange(cache.k.numel()).reshape(cache.k.shape) % 251)
    cache.v.copy_(-cache.k)
    return cache


def snapshot(cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    return cache.k.clone(), cache.v.clone()


def test_the_cache_has_the_shape_of_the_design():
    cache = KVCache(L, N, B, G, D, dtype=torch.bfloat16)
    assert cache.k.shape == cache.v.shape == (L, N, B, G, D)
    assert cache.k.dtype == cache.v.dtype == torch.bfloat16
    assert cache.num_bytes == 2 * 2 * 6 * 4 * 3 * 2 * 2


@pytest.mark.parametrize("shape", [(0, 1, 1, 1, 1), (1, 0, 1, 1, 1), (1, 1, 1, 1, -1)])
def test_an_empty_cache_is_an_error(shape: tuple[int, ...]):
    with pytest.raises(ValueError):
        KVCache(*shape)


def test_a_write_changes_its_slots_in_its_layer_and_nothing_else():
    cache = filled_cache()
    expected_k, expected_v = snapshot(cache)
    k, v = torch.randn(3, G, D), torch.randn(3, G, D)
    for token, (block, offset) in enumerate([(5, 3), (0, 0), (2, 1)]):
        expected_k[1, block, offset], expected_v[1, block, offset] = k[token], v[token]
    cache.write(1, k, v, torch.tensor([23, 0, 9]))
    assert torch.equal(cache.k, expected_k) and torch.equal(cache.v, expected_v)


def test_slot_minus_one_writes_nothing_anywhere():
    cache = filled_cache()
    before = snapshot(cache)
    cache.write(0, torch.full((4, G, D), torch.nan), torch.full((4, G, D), torch.nan), torch.full((4,), -1))
    assert torch.equal(cache.k, before[0]) and torch.equal(cache.v, before[1])


def test_padding_between_tokens_writes_only_the_tokens():
    cache = filled_cache()
    expected_k, expected_v = snapshot(cache)
    k, v = torch.randn(4, G, D), torch.randn(4, G, D)
    k[[0, 2]] = torch.nan
    expected_k[0, 1, 3], expected_v[0, 1, 3] = k[1], v[1]
    expected_k[0, 5, 3], expected_v[0, 5, 3] = k[3], v[3]
    cache.write(0, k, v, torch.tensor([-1, 7, -1, 23]))
    assert torch.equal(cache.k, expected_k) and torch.equal(cache.v, expected_v)


def test_a_write_takes_views_of_a_packed_projection_and_converts_to_the_dtype_of_the_cache():
    cache = KVCache(1, N, B, G, D, dtype=torch.bfloat16)
    packed = torch.randn(2, 5 + 2 * G, D)
    k, v = packed[:, 5 : 5 + G], packed[:, 5 + G :]
    cache.write(0, k, v, torch.tensor([4, 2]))
    assert torch.equal(cache.k[0].flatten(0, 1)[[4, 2]], k.bfloat16())
    assert torch.equal(cache.v[0].flatten(0, 1)[[4, 2]], v.bfloat16())


def test_halves_of_one_tensor_are_written_through_their_strides():
    both = torch.zeros(2, N, B, G, D)
    cache = KVCache(1, N, B, G, D)
    cache.k, cache.v = both[:1], both[1:]
    k, v = torch.randn(2, G, D), torch.randn(2, G, D)
    cache.write(0, k, v, torch.tensor([21, 6]))
    assert torch.equal(both[0, [5, 1], [1, 2]], k) and torch.equal(both[1, [5, 1], [1, 2]], v)
    assert both.count_nonzero() == k.count_nonzero() + v.count_nonzero()


@pytest.mark.parametrize("copies", [[(0, 3), (0, 4), (1, 5)], [(2, 3), (3, 4), (4, 2)], []])
def test_a_batch_of_copies_reads_everything_before_it_writes(copies: list[tuple[int, int]]):
    cache = filled_cache()
    old_k, old_v = snapshot(cache)
    cache.copy_blocks(copies)
    source = {block: block for block in range(N)} | {dst: src for src, dst in copies}
    for block in range(N):
        assert torch.equal(cache.k[:, block], old_k[:, source[block]])
        assert torch.equal(cache.v[:, block], old_v[:, source[block]])


def test_a_swap_copies_every_layer_between_two_caches_of_different_size():
    pool, cpu = filled_cache(), KVCache(L, 2, B, G, D)
    cpu.copy_blocks_from(pool, [(5, 0), (3, 1)])
    assert torch.equal(cpu.k, pool.k[:, [5, 3]]) and torch.equal(cpu.v, pool.v[:, [5, 3]])
    old = snapshot(pool)
    pool.copy_blocks_from(cpu, [(1, 0)])
    assert torch.equal(pool.k[:, 0], old[0][:, 3]) and torch.equal(pool.k[:, 1:], old[0][:, 1:])


def test_the_price_of_a_token_is_counted_for_k_and_v_over_all_layers():
    config = ModelConfig.tiny()  # 2 layers, 2 KV heads of 16
    assert kv_bytes_per_token(config, torch.float32) == 2 * 2 * 2 * 16 * 4
    assert kv_bytes_per_token(config, torch.bfloat16) == 2 * 2 * 2 * 16 * 2


def test_a_budget_buys_whole_blocks_and_too_little_for_one_is_an_error_with_the_numbers():
    config = ModelConfig.tiny()
    assert num_blocks_for(3 * 4 * 512 + 511, 4, config, torch.float32) == 3
    with pytest.raises(ValueError, match=r"2,047.*2,048"):
        num_blocks_for(2047, 4, config, torch.float32)
