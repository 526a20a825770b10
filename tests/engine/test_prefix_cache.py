"""The prefix cache: keys, lookups, eviction (design rules 9-11, cases 3, 4, 9-12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipaged.block_allocator import BlockAllocator
from minipaged.engine import Engine
from minipaged.params import SamplingParams
from minipaged.prefix_cache import ROOT_KEY, PrefixCache, block_key, extra_keys
from tests.reference import all_free, finish, greedy, prompt_of, tiny_engine


def chain(token_ids: list[int], block_size: int, extra: tuple[tuple[str, str], ...] = ()) -> list[bytes]:
    keys: list[bytes] = []
    for start in range(0, len(token_ids) // block_size * block_size, block_size):
        keys.append(block_key(keys[-1] if keys else ROOT_KEY, token_ids[start : start + block_size], extra))
    return keys


# -- keys ----------------------------------------------------------------------------------------------------


def test_a_key_is_32_bytes_and_the_same_in_every_process():
    key = block_key(ROOT_KEY, [1, 2, 3, 4])
    assert len(key) == 32 and key == block_key(ROOT_KEY, [1, 2, 3, 4]) == block_key(ROOT_KEY, (1, 2, 3, 4))


def test_a_key_depends_on_parent_tokens_their_order_and_the_extra_keys():
    parent = block_key(ROOT_KEY, [1])
    keys = {
        block_key(ROOT_KEY, [1, 2]),
        block_key(ROOT_KEY, [2, 1]),
        block_key(ROOT_KEY, [1, 2, 0]),
        block_key(ROOT_KEY, [0, 1, 2]),
        block_key(ROOT_KEY, [258]),
        block_key(parent, [1, 2]),
        block_key(ROOT_KEY, [1, 2], extra_keys(cache_salt="x")),
        block_key(ROOT_KEY, [1, 2], extra_keys(adapter="x")),
        block_key(ROOT_KEY, [1, 2], extra_keys(cache_salt="y")),
        block_key(ROOT_KEY, [1, 2], extra_keys(cache_salt="x", adapter="y")),
        block_key(ROOT_KEY, [1, 2], extra_keys(cache_salt="y", adapter="x")),
        block_key(ROOT_KEY, [1, 2], extra_keys(cache_salt='x", "adapter": "y')),
        block_key(ROOT_KEY, [1, 2], extra_keys(cache_salt="")),
    }
    assert len(keys) == 13


ids = st.lists(st.integers(0, 3), min_size=1, max_size=6)
names = st.none() | st.text(max_size=3)


@given(ids, names, names, ids, names, names)
def test_two_keys_are_equal_only_when_everything_is(a, salt_a, adapter_a, b, salt_b, adapter_b):
    first, second = (
        block_key(ROOT_KEY, a, extra_keys(salt_a, adapter_a)),
        block_key(ROOT_KEY, b, extra_keys(salt_b, adapter_b)),
    )
    assert (first == second) == ((a, salt_a, adapter_a) == (b, salt_b, adapter_b))


# -- lookups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "blocks"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3), (99, 3)]
)
def test_a_lookup_leaves_at_least_one_token_to_compute(num_tokens: int, blocks: int):
    cache, keys = PrefixCache(4), chain(list(range(12)), 4)
    for block, key in enumerate(keys):
        cache.publish(block, key)
    assert cache.match(keys, num_tokens) == list(range(blocks))


def test_a_lookup_stops_at_the_first_block_that_is_missing():
    cache, keys = PrefixCache(4), chain(list(range(16)), 4)
    for block in (0, 1, 3):
        cache.publish(block, keys[block])
    assert cache.match(keys, 100) == [0, 1]


def test_a_block_behind_another_prefix_is_not_found():
    cache = PrefixCache(4)
    for block, key in enumerate(chain([1, 2, 3, 4, 5, 6, 7, 8], 4)):
        cache.publish(block, key)
    assert cache.match(chain([9, 9, 9, 9, 5, 6, 7, 8], 4), 9) == []
    assert cache.match(chain([1, 2, 3, 4, 9, 9, 9, 9], 4), 9) == [0]


def test_the_first_of_two_identical_blocks_is_published_and_the_other_has_no_key():
    cache, key = PrefixCache(2), block_key(ROOT_KEY, [1, 2])
    cache.publish(3, key)
    cache.publish(5, key)
    assert (cache.key(3), cache.key(5), cache.entries(), cache.num_blocks) == (key, None, {key: 3}, 1)
    cache.forget(5)
    assert cache.match([key], 3) == [3]
    cache.forget(3)
    assert (cache.match([key], 3), cache.num_blocks) == ([], 0)


def test_a_block_published_under_a_new_key_is_no_longer_found_under_the_old_one():
    cache, old, new = PrefixCache(2), block_key(ROOT_KEY, [1, 2]), block_key(ROOT_KEY, [3, 4])
    cache.publish(0, old)
    cache.publish(0, new)
    assert (cache.match([old], 3), cache.match([new], 3), cache.entries()) == ([], [0], {new: 0})


def test_a_freed_block_is_found_until_it_is_handed_out_again():
    cache = PrefixCache(2)
    allocator = BlockAllocator(3, on_reuse=cache.forget)
    keys = chain([1, 2, 3, 4], 2)
    blocks = allocator.allocate_many(2)
    for block, key in zip(blocks, keys, strict=True):
        cache.publish(block, key)
    allocator.free_many(reversed(blocks))
    assert allocator.num_free == 3
    assert allocator.allocate() == 2 and cache.match(keys, 5) == [0, 1]
    assert allocator.allocate() == 1 and cache.match(keys, 5) == [0]
    allocator.revive(0)
    assert cache.match(keys, 5) == [0], "a hit keeps its key"


@pytest.mark.parametrize("num_blocks", [1_000, 100_000])
def test_evicting_every_cached_block_forgets_each_exactly_once(num_blocks: int):
    """Work is counted, not timed: one call of `forget` and one entry less per block."""
    cache = PrefixCache(1)
    forgotten: list[int] = []

    def on_reuse(block: int) -> None:
        forgotten.append(block)
        cache.forget(block)

    allocator = BlockAllocator(num_blocks, on_reuse)
    blocks = allocator.allocate_many(num_blocks)
    for block in blocks:
        cache.publish(block, block.to_bytes(32, "little"))
    allocator.free_many(blocks)
    forgotten.clear()
    assert allocator.allocate_many(num_blocks) == blocks
    assert (forgotten, cache.num_blocks) == (blocks, 0)


# -- in the engine -------------------------------------------------------------------------------------------


def run(engine: Engine, name: str, prompt: list[int], params: SamplingParams) -> tuple[int, list[int]]:
    """Serve one request; its cached prompt tokens and its output."""
    engine.add_request(name, prompt, params)
    output = finish(engine)[name]
    return output.num_cached_tokens, output.outputs[0].token_ids


def test_the_same_prompt_again_computes_at_least_one_token_and_gives_the_same_output():
    engine = tiny_engine(block_size=4)
    prompt = prompt_of(9)
    assert run(engine, "first", prompt[:8], greedy(1))[0] == 0
    before = engine.stats()
    hit, output = run(engine, "again", prompt[:8], greedy(5))
    assert hit == 4
    assert engine.stats().computed_tokens - before.computed_tokens == 4 + 4
    assert (engine.stats().prefix_hits, engine.stats().prefix_queries) == (4, 16)
    assert output == run(tiny_engine(enable_prefix_caching=False), "alone", prompt[:8], greedy(5))[1]
    assert run(engine, "longer", prompt, greedy(1))[0] == 8
    assert run(engine, "one block", prompt[:4], greedy(1))[0] == 0


def test_output_tokens_are_cached_too():
    engine = tiny_engine(block_size=4)
    prompt = prompt_of(5)
    output = run(engine, "first", prompt, greedy(8))[1]
    # 12 tokens have K/V: the last output token was never an input.
    hit, more = run(engine, "next turn", prompt + output, greedy(3))
    assert hit == 12
    assert more == run(tiny_engine(), "alone", prompt + output, greedy(3))[1]


def test_without_prefix_caching_nothing_is_kept_or_found():
    engine = tiny_engine(block_size=4, enable_prefix_caching=False)
    for name in ("a", "b"):
        assert run(engine, name, prompt_of(12), greedy(2))[0] == 0
    assert engine.stats().blocks_cached == 0


@pytest.mark.parametrize(("chunks", "hit"), [([10], 8), ([10, 18], 28)])
def test_only_what_the_steps_so_far_have_filled_is_found(chunks: list[int], hit: int):
    engine = tiny_engine(block_size=4)
    engine.add_request("a", prompt_of(63), greedy(1))
    for chunk in chunks:
        engine.scheduler.max_num_batched_tokens = chunk
        engine.step()
    assert engine.stats().blocks_cached == hit // 4
    engine.abort("a")
    assert run(engine, "b", prompt_of(63), greedy(1))[0] == hit


def test_blocks_of_the_same_step_are_not_shared_and_only_one_of_them_is_published():
    engine = tiny_engine(block_size=4)
    for name in ("a", "b"):
        engine.add_request(name, prompt_of(9), greedy(2))
    outputs = finish(engine)
    assert [outputs[name].num_cached_tokens for name in "ab"] == [0, 0]
    assert outputs["a"].outputs[0].token_ids == outputs["b"].outputs[0].token_ids
    assert engine.stats().blocks_cached == 2


def test_salts_separate_and_the_same_salt_shares():
    engine = tiny_engine(block_size=4)
    prompt = prompt_of(9)
    hits = [
        run(engine, str(index), prompt, greedy(1, cache_salt=salt))[0]
        for index, salt in enumerate(["x", "y", None, "", "x", "y", None, ""])
    ]
    assert hits == [0, 0, 0, 0, 8, 8, 8, 8]


def test_a_reused_block_has_lost_its_key_and_a_hit_keeps_it():
    engine = tiny_engine(num_blocks=2, block_size=16)
    first = prompt_of(16)
    run(engine, "R0", first, greedy(1))
    for name in ("hit", "second hit"):
        assert run(engine, name, [*first, 7], greedy(1))[0] == 16
    run(engine, "R1", prompt_of(31, seed=1), greedy(1))  # takes both blocks
    assert run(engine, "gone", [*first, 7], greedy(1))[0] == 0


def test_in_a_pool_of_one_block_a_shorter_prompt_takes_the_key_away():
    engine = tiny_engine(num_blocks=1, block_size=16)
    first = prompt_of(16)
    run(engine, "R0", first, greedy(1))
    assert engine.stats().blocks_cached == 1
    run(engine, "R1", prompt_of(15, seed=1), greedy(1))
    assert engine.stats().blocks_cached == 0
    with pytest.raises(ValueError, match="2 blocks"):
        engine.add_request("R0 + 1", [*first, 7], greedy(1))
    assert run(engine, "R0 again", first, greedy(1))[0] == 0


def test_hits_that_must_be_revived_count_as_needed_and_a_refusal_changes_nothing():
    """Block size 16, 10 blocks: 5 are free; R3 hits 6, of which 3 are free, and needs 3 new ones: 6 > 5."""
    engine = tiny_engine(num_blocks=10, block_size=16)
    long = prompt_of(48 * 3)
    # R0 and R1 hold the same 48 tokens; R1 48 more. R1 leaves, its last 3 blocks stay findable.
    engine.add_request("R0", long[:48], greedy(8))
    engine.step()
    engine.add_request("R1", long[:96], greedy(8))
    engine.step()
    allocator = engine.memory.allocator
    assert engine.requests["R1"].num_cached_tokens == 48
    engine.abort("R1")
    engine.add_request("R2", prompt_of(15, seed=5), greedy(8))
    engine.step()
    used = allocator.num_blocks - allocator.num_free
    engine.add_request("R3", long, greedy(2))
    hits = engine.memory.prefix_cache.match(chain(long, 16), len(long))
    free_hits = [block for block in hits if allocator.ref_count(block) == 0]
    assert (used, allocator.num_free, len(hits), len(free_hits)) == (5, 5, 6, 3)
    counts = [allocator.ref_count(block) for block in range(10)]
    free = allocator.free_blocks()
    engine.step()
    assert engine.requests["R3"].live[0].table is None, "6 > 5: it waits"
    assert [allocator.ref_count(block) for block in range(10)] == counts
    assert allocator.free_blocks() == free
    output = finish(engine)["R3"]
    assert output.outputs[0].token_ids == run(tiny_engine(block_size=16), "R3", long, greedy(2))[1]
    assert all_free(engine)
