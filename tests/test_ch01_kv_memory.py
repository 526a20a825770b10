"""Chapter 1's grader: what a token costs, what a budget buys, what a cache saves, what attention reads.

Expected values are written out, or computed by the naive models below: loops that count one by one, and
attention head by head in double precision.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_close, expect_error, generator

TASKS = (
    Task(
        1, "what a token costs", stars=1, points=15, minutes=10,
        hints=(
            "Write the sizes of one layer's K and V for one token as [heads, numbers per head]. How many "
            "numbers is that?",
            "K and V are two vectors of num_kv_heads · head_dim numbers in every layer. MLA has one vector"
            " of kv_lora_rank numbers and one of qk_rope_head_dim: a sum, and no factor 2.",
            "2 * num_layers * num_kv_heads * head_dim * itemsize, and num_layers * (kv_lora_rank + "
            "qk_rope_head_dim) * itemsize.",
        ),
        compare="the factor 2 that MLA does not have",
    ),
    Task(
        2, "how many blocks a budget buys", stars=1, points=15, minutes=10,
        hints=(
            "How large is one block? It holds block_size tokens, and kv_bytes_per_token gives those of "
            "one, for all layers.",
            "check_int raises the ValueErrors for a bad block_size or budget. The third one is yours: "
            "compare the budget with the bytes of a block before you divide.",
            'First `if budget_bytes < block_bytes: raise ValueError(f"{budget_bytes} is less than one '
            'block of {block_bytes} bytes")`, then `return budget_bytes // block_bytes`.',
        ),
        compare="what the message tells somebody whose budget was too small",
    ),
    Task(
        3, "tokens computed, uncached and cached", stars=1, points=10, minutes=10,
        hints=(
            "Write down, for a prompt of 5 and an answer of 3, which tokens go into the model to get each "
            "of the three.",
            "Without a cache 5, then 6, then 7 tokens go in. With one, 5, then 1, then 1. The third token "
            "of the answer comes out and never goes in.",
            "With a cache: prompt_len + output_len - 1. Without: the sum of prompt_len + i for i in "
            "range(output_len).",
        ),
        compare="the formula with your loop",
    ),
    Task(
        4, "attention of one token", stars=2, points=15, minutes=15,
        hints=(
            "Begin with H = G = 1: scores = k[:, 0] @ q[0] * D**-0.5 is [C]. Over which dimension does "
            "softmax run?",
            "For GQA either reshape q to [G, H // G, D], or repeat K and V: k.repeat_interleave(H // G, "
            "dim=1) has a key for every query head.",
            'With repeated K and V: scores = torch.einsum("hd,chd->hc", q, k) * D**-0.5, then '
            'softmax(dim=-1), then torch.einsum("hc,chd->hd", weights, v).',
        ),
        compare="how often K and V are read: once for each group, or once for each query head",
    ),
    Task(
        5, "the same with a cache", stars=2, points=20, minutes=15,
        hints=(
            "append: the new rows go from num_tokens to num_tokens + len(k). What if that is more than "
            "max_tokens?",
            "self._kv[0, start:end] = k copies. Check before you write, and count after. In "
            "decode_with_cache the new token's K and V must be in the cache before it looks.",
            "decode_without_cache: attend_one(project(x[-1:], w_q)[0], project(x, w_k), project(x, w_v)). "
            "In decode_with_cache: cache.append(…), then attend_one(project(x_new, w_q)[0], cache.k, "
            "cache.v).",
        ),
        compare="the order in decode_with_cache: store first, then look",
    ),
    Task(
        6, "FLOPs and bytes of attention", stars=2, points=15, minutes=10,
        hints=(
            "Draw the causal triangle for 3 new tokens of 5: the first sees 3, the next 4, the last 5.",
            "With m new tokens of C there are C + (C - 1) + … pairs, m of them: m·C - (0 + 1 + … + (m - "
            "1)). Each costs 4·D FLOPs in each of the H query heads.",
            "flops = 4 * num_heads * head_dim * pairs; num_bytes = 2 * context_len * num_kv_heads * "
            "head_dim * itemsize.",
        ),
        compare="what is left of flops / num_bytes for one new token",
    ),
    Task(
        7, "layers that look back only so far", stars=3, points=10, minutes=20,
        hints=(
            "Move a window of 6 tokens over blocks of 4, one token at a time, and count the blocks it "
            "touches.",
            "The worst moment is when the oldest token that is kept is the last one of its block: "
            "block_size - 1 slots in front of it are dead, and still held.",
            "ceil((span + shift) / block_size) with span = min(window, context_len) and shift = "
            "min(block_size - 1, context_len - span).",
        ),
        compare="the shift: how far a window can lie across its blocks",
    ),
)

# -- task 1 --------------------------------------------------------------------------------------------------

# Layers, KV heads, head size, bytes per number, from the models' config.json or papers; bytes per token.
MODELS = (
    ("OPT-13B, fp16, MHA", 40, 40, 128, 2, 819_200),
    ("Llama-3-8B, bf16, GQA", 32, 8, 128, 2, 131_072),
    ("Llama-3.1-405B, bf16, GQA", 126, 8, 128, 2, 516_096),
    ("Qwen2.5-72B, bf16, GQA", 80, 8, 128, 2, 327_680),
    ("Falcon-7B, bf16, MQA", 32, 1, 64, 2, 8_192),
    ("SmolLM2-135M, fp32, GQA", 30, 3, 64, 4, 46_080),
)


@pytest.mark.task(1)
@pytest.mark.parametrize("name, num_layers, num_kv_heads, head_dim, itemsize, num_bytes", MODELS)
def test_a_token_of_a_real_model_costs_what_its_makers_say(
    layer: Layer, name: str, num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int, num_bytes: int
) -> None:
    sizes = (num_layers, num_kv_heads, head_dim, itemsize)
    mistakes = {
        num_bytes // 2: "K and V are two vectors: only one was counted",
        num_bytes // num_layers: "one layer was counted: a token leaves K and V in every layer",
        num_bytes // num_kv_heads: "one KV head was counted, not all",
        num_bytes // itemsize: "numbers were counted, not bytes",
        num_bytes * 8: "bits were counted, not bytes",
    }
    expect(f"bytes_per_token{sizes} ({name})", layer.bytes_per_token(*sizes), num_bytes, mistakes)


@pytest.mark.task(1)
def test_a_token_costs_the_product_of_all_five_numbers(layer: Layer) -> None:
    expect("bytes_per_token(3, 5, 7, 11)", layer.bytes_per_token(3, 5, 7, 11), 2310)
    expect("bytes_per_token(1, 1, 1, 1)", layer.bytes_per_token(1, 1, 1, 1), 2)


@pytest.mark.task(1)
def test_mla_keeps_one_compressed_vector_and_one_for_rope_per_layer(layer: Layer) -> None:
    expect(
        "mla_bytes_per_token(61, 512, 64, 2) (DeepSeek-V3, bf16)",
        layer.mla_bytes_per_token(61, 512, 64, 2),
        70_272,
        mistakes={
            140_544: "counted for K and for V: MLA keeps one vector, from which both are computed",
            62_464: "the part of the key that RoPE turns was left out",
            132_736: "the compressed vector was counted twice: K and V are both computed from one",
            78_080: "the part that RoPE turns was counted twice: only keys are turned",
            1_152: "one layer was counted: a token leaves a vector in every layer",
        },
    )
    expect("mla_bytes_per_token(3, 5, 7, 11)", layer.mla_bytes_per_token(3, 5, 7, 11), 396)


# -- task 2 --------------------------------------------------------------------------------------------------


def tiny(layer: Layer) -> Any:
    """A model with 512 bytes per token in fp32: 2 layers, 4 query and 2 KV heads of 16."""
    return layer.given("minipaged.config").ModelConfig.tiny()


@pytest.mark.task(2)
def test_a_budget_buys_whole_blocks(layer: Layer) -> None:
    what = "num_blocks_for({}, 4, tiny, {}), with 512 bytes per token in fp32"
    mistakes = {
        4: "rounded up: the last block does not fit",
        1: "query heads were counted in place of KV heads",
        15: "tokens were counted, not blocks",
        7: "K and V are two vectors: only one was counted",
    }
    got = layer.num_blocks_for(8191, 4, tiny(layer), torch.float32)
    expect(what.format(8191, "float32"), got, 3, mistakes)
    got = layer.num_blocks_for(8191, 4, tiny(layer), torch.bfloat16)
    expect(what.format(8191, "bfloat16"), got, 7, mistakes={3: "a number in bf16 takes 2 bytes, not 4"})
    expect(what.format(8192, "float32"), layer.num_blocks_for(8192, 4, tiny(layer), torch.float32), 4)


@pytest.mark.task(2)
def test_a_budget_of_exactly_one_block_buys_one(layer: Layer) -> None:
    one_token = layer.num_blocks_for(512, 1, tiny(layer), torch.float32)
    expect("num_blocks_for(512, 1, tiny, float32), with 512 bytes per token", one_token, 1)
    one_block = layer.num_blocks_for(2048, 4, tiny(layer), torch.float32)
    expect("num_blocks_for(2048, 4, tiny, float32), with 512 bytes per token", one_block, 1)


@pytest.mark.task(2)
@pytest.mark.parametrize("budget, block_size, block_bytes", [(2047, 4, 2048), (1, 1, 512), (8191, 16, 8192)])
def test_a_budget_of_less_than_one_block_is_an_error_with_both_numbers(
    layer: Layer, budget: int, block_size: int, block_bytes: int
) -> None:
    expect_error(
        f"num_blocks_for({budget}, {block_size}, tiny, float32), with {block_bytes} bytes per block",
        ValueError,
        lambda: layer.num_blocks_for(budget, block_size, tiny(layer), torch.float32),
        numbers=[budget, block_bytes],
        mistake="a pool of 0 blocks serves nobody: this is an error",
    )


@pytest.mark.task(2)
@pytest.mark.parametrize(
    "budget, block_size, wrong",
    [(8192, 0, 0), (8192, -4, -4), (8192, 2.5, 2.5), (0, 4, 0), (-1, 4, -1), (8192.5, 4, 8192.5),
     (2**60 + 1, 4, 2**60 + 1)],
)
def test_a_bad_number_is_an_error_that_names_it(
    layer: Layer, budget: Any, block_size: Any, wrong: Any
) -> None:
    expect_error(
        f"num_blocks_for({budget}, {block_size}, tiny, float32)",
        ValueError,
        lambda: layer.num_blocks_for(budget, block_size, tiny(layer), torch.float32),
        numbers=[wrong],
    )


@pytest.mark.task(2)
def test_the_largest_budget_is_2_to_the_60(layer: Layer) -> None:
    got = layer.num_blocks_for(2**60, 16, tiny(layer), torch.float32)
    expect("num_blocks_for(2**60, 16, tiny, float32), with 8192 bytes per block", got, 2**47)
    got = layer.num_blocks_for(2**60 - 1, 16, tiny(layer), torch.float32)
    mistakes = {2**47: "divided as floats, which have no room for all digits of so large a number: use //"}
    expect(
        "num_blocks_for(2**60 - 1, 16, tiny, float32), with 8192 bytes per block", got, 2**47 - 1, mistakes
    )


@pytest.mark.task(2)
def test_a_block_size_of_true_is_not_a_whole_number(layer: Layer) -> None:
    call = lambda: layer.num_blocks_for(8192, True, tiny(layer), torch.float32)  # noqa: E731
    expect_error("num_blocks_for(8192, True, tiny, float32)", ValueError, call)


@pytest.mark.task(2)
def test_the_head_size_is_the_models_own(layer: Layer) -> None:
    # As in Qwen3 and Gemma: not hidden_size / num_heads.
    config = layer.given("dataclasses").replace(tiny(layer), head_dim=32)
    got = layer.num_blocks_for(8191, 2, config, torch.float32)
    mistakes = {7: "the head size is config.head_dim, not hidden_size // num_heads"}
    expect(
        "num_blocks_for(8191, 2, tiny with head_dim=32, float32), with 1024 bytes per token", got, 3, mistakes
    )


@pytest.mark.task(2)
@settings(max_examples=60)
@given(budget=st.integers(1, 10**6), block_size=st.integers(1, 40))
def test_one_block_more_would_never_fit(layer: Layer, budget: int, block_size: int) -> None:
    block_bytes = 512 * block_size
    what = f"num_blocks_for({budget}, {block_size}, tiny, float32), with {block_bytes} bytes per block"
    if budget < block_bytes:
        call = lambda: layer.num_blocks_for(budget, block_size, tiny(layer), torch.float32)  # noqa: E731
        expect_error(what, ValueError, call)
        return
    expected = 0
    while (expected + 1) * block_bytes <= budget:
        expected += 1
    expect(what, layer.num_blocks_for(budget, block_size, tiny(layer), torch.float32), expected)


# -- task 3 --------------------------------------------------------------------------------------------------


def count_tokens(prompt_len: int, output_len: int, is_cached: bool) -> int:
    """One by one: what is there, what has been computed, what goes in for the next token."""
    num_tokens, num_stored, computed = prompt_len, 0, 0
    for _ in range(output_len):
        computed += num_tokens - num_stored
        num_stored = num_tokens if is_cached else 0
        num_tokens += 1
    return computed


@pytest.mark.task(3)
def test_five_tokens_in_and_three_out(layer: Layer) -> None:
    expect(
        "tokens_computed(5, 3, is_cached=False)",
        layer.tokens_computed(5, 3, is_cached=False),
        18,
        mistakes={
            15: "the tokens of the answer go in again as well, not only the prompt",
            21: "the first token of the answer is predicted from the prompt alone: 5 tokens, not 6",
            26: "the last token of the answer was counted: it never goes in",
            7: "this is the number with a cache",
        },
    )
    expect(
        "tokens_computed(5, 3, is_cached=True)",
        layer.tokens_computed(5, 3, is_cached=True),
        7,
        mistakes={
            8: "the last token of the answer was counted: it never goes in",
            3: "the prompt was left out: its K and V must be computed once, too",
            2: "the prompt was left out: its K and V must be computed once, too",
            18: "this is the number without a cache",
        },
    )


@pytest.mark.task(3)
def test_for_a_single_token_a_cache_saves_nothing(layer: Layer) -> None:
    for prompt_len in (1, 7):
        for is_cached in (False, True):
            got = layer.tokens_computed(prompt_len, 1, is_cached=is_cached)
            expect(f"tokens_computed({prompt_len}, 1, is_cached={is_cached})", got, prompt_len)


@pytest.mark.task(3)
@settings(max_examples=60)
@given(prompt_len=st.integers(1, 200), output_len=st.integers(1, 100), is_cached=st.booleans())
def test_tokens_are_counted_as_they_go_in(
    layer: Layer, prompt_len: int, output_len: int, is_cached: bool
) -> None:
    got = layer.tokens_computed(prompt_len, output_len, is_cached=is_cached)
    what = f"tokens_computed({prompt_len}, {output_len}, is_cached={is_cached})"
    expect(what, got, count_tokens(prompt_len, output_len, is_cached))


# -- task 4 --------------------------------------------------------------------------------------------------


def attention_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None, interleaved: bool = False
) -> torch.Tensor:
    """Head by head, in double precision: q [H, D], k and v [C, G, D] -> [H, D]. The options are mistakes."""
    H, D, G = *q.shape, k.shape[1]
    rows = []
    for head in range(H):
        group = head % G if interleaved else head // (H // G)
        scores = (k[:, group].double() @ q[head].double()) * (D**-0.5 if scale is None else scale)
        weights = (scores - scores.max()).exp()
        rows.append((weights / weights.sum()) @ v[:, group].double())
    return torch.stack(rows).float()


def expect_attention(layer: Layer, what: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    (H, D), G = q.shape, k.shape[1]
    expected = attention_of(q, k, v)
    mistakes = [
        (attention_of(q, k, v, scale=1.0), "the scores were not scaled by 1 / √D"),
        (attention_of(q, k, v, scale=1 / D), "the scores were scaled by 1 / D, not by 1 / √D"),
        (attention_of(q, k, k), "the weights were put on the keys, not on the values"),
    ]
    if 1 < G < H:
        name = "query head h used KV head h % G: neighbours share, h // (H / G)"
        mistakes.append((attention_of(q, k, v, interleaved=True), name))
        first = attention_of(q, k[:, :1], v[:, :1])
        mistakes.append((first, "all query heads used KV head 0"))
    expect_close(what, layer.attend_one(q, k, v), expected, atol=1e-5, mistakes=mistakes)


@pytest.mark.task(4)
def test_equal_keys_give_the_mean_of_the_values(layer: Layer) -> None:
    q, k, v = torch.ones(1, 2), torch.ones(2, 1, 2), torch.tensor([[[0.0, 4.0]], [[2.0, 8.0]]])
    mistakes = [(torch.tensor([[2.0, 12.0]]), "softmax ran over the wrong dimension: the weights of the C "
                                              "tokens must sum to 1")]
    got = layer.attend_one(q, k, v)
    expect_close("attend_one(ones(1, 2), ones(2, 1, 2), [[[0., 4.]], [[2., 8.]]])", got,
                 torch.tensor([[1.0, 6.0]]), atol=1e-6, mistakes=mistakes)


@pytest.mark.task(4)
def test_scores_are_scaled_by_the_root_of_the_head_size(layer: Layer) -> None:
    # D = 4 and scores of 2·ln 3 and 0 before scaling: ln 3 and 0 after it, so weights of 3/4 and 1/4
    q, k = torch.tensor([[2 * torch.log(torch.tensor(3.0)), 0, 0, 0]]), torch.zeros(2, 1, 4)
    k[0, 0, 0] = 1
    v = torch.tensor([[[4.0, 0, 0, 0]], [[0.0, 4, 0, 0]]])
    mistakes = [(torch.tensor([[3.6, 0.4, 0, 0]]), "the scores were not scaled by 1 / √D")]
    got = layer.attend_one(q, k, v)
    expect_close("attend_one with scores of 2·ln 3 and 0, D = 4", got, torch.tensor([[3.0, 1, 0, 0]]),
                 atol=1e-5, mistakes=mistakes)


@pytest.mark.task(4)
@pytest.mark.parametrize("H, G, D, C", [(1, 1, 4, 1), (3, 3, 5, 7), (4, 2, 8, 5), (6, 2, 3, 9), (8, 1, 4, 6)])
def test_every_query_head_uses_the_kv_head_of_its_group(layer: Layer, H: int, G: int, D: int, C: int) -> None:
    chance = generator(100 * H + G)
    q = torch.randn(H, D, generator=chance)
    k, v = torch.randn(C, G, D, generator=chance), torch.randn(C, G, D, generator=chance)
    before = q.clone(), k.clone(), v.clone()
    expect_attention(layer, f"attend_one with H = {H}, G = {G}, D = {D}, C = {C}", q, k, v)
    unchanged = all(torch.equal(now, old) for now, old in zip((q, k, v), before, strict=True))
    expect("q, k and v are what they were before attend_one", unchanged, True)


@pytest.mark.task(4)
def test_large_scores_do_not_overflow(layer: Layer) -> None:
    q, k = torch.full((2, 4), 30.0), torch.tensor([20.0, -20.0, 20.0]).view(3, 1, 1).repeat(1, 1, 4)
    v = torch.arange(12.0).view(3, 1, 4)
    expect_attention(layer, "attend_one with scores of ±1,200", q, k, v)
    expect_attention(layer, "attend_one with scores of -1,200 alone", q, -k.abs(), v)


@pytest.mark.task(4)
def test_heads_with_small_scores_stand_beside_heads_with_large_ones(layer: Layer) -> None:
    q = torch.tensor([[2.0, 0, 0, 0], [2.0, 600, 0, 0]])
    k = torch.tensor([[0.0, 1, 0, 0], [1.0, 1, 0, 0], [0.5, 1, 0, 0]]).view(3, 1, 4)
    v = torch.arange(12.0).view(3, 1, 4)
    expected = attention_of(q, k, v)
    got = layer.attend_one(q, k, v)  # atol: near 300, numbers in fp32 are 3e-5 apart
    what = "attend_one with scores of 0 to 1 in head 0, and of 300 to 301 in head 1"
    expect_close(what, got, expected, atol=1e-3)


@pytest.mark.task(4)
def test_queries_may_be_a_part_of_a_larger_tensor(layer: Layer) -> None:
    qkv = torch.randn(3, 8, 6, generator=generator(4))
    q, k, v = qkv[-1, :, :4].t()[:, :5], qkv[:, 4:6, :5], qkv[:, 6:, :5]
    expect_attention(layer, "attend_one with q, k and v as strided views, H = 4, G = 2", q, k, v)


# -- task 5 --------------------------------------------------------------------------------------------------


def rows(first: int, num_tokens: int, num_kv_heads: int = 1, head_dim: int = 2) -> torch.Tensor:
    """Keys that can be told apart: first, first + 1, …, one number per token."""
    numbers = torch.arange(first, first + num_tokens, dtype=torch.float32)
    return numbers.view(-1, 1, 1).repeat(1, num_kv_heads, head_dim)


NO_ROOM = "there is no room for it: this is an error"


@pytest.mark.task(5)
def test_tokens_are_stored_behind_those_that_are_there(layer: Layer) -> None:
    cache = layer.DenseCache(8, num_kv_heads=3, head_dim=2)
    expect("DenseCache(8, 3, 2).num_tokens", cache.num_tokens, 0)
    cache.append(rows(10, 3, 3), rows(-10, 3, 3))
    cache.append(rows(20, 1, 3), rows(-20, 1, 3))
    mistakes = {0: "the new tokens were not counted", 1: "the count was set to T, not raised by it",
                2: "appends were counted, not tokens"}
    expect("num_tokens after append of 3 tokens and of 1", cache.num_tokens, 4, mistakes)
    k = torch.cat((rows(10, 3, 3), rows(20, 1, 3)))
    v = torch.cat((rows(-10, 3, 3), rows(-20, 1, 3)))
    expect("cache.k after both", cache.k, k, mistakes=[(v, "V was written where K belongs")])
    expect("cache.v after both", cache.v, v, mistakes=[(k, "K was written where V belongs")])
    expect("cache.num_bytes, written or not", cache.num_bytes, 2 * 8 * 3 * 2 * 4)


@pytest.mark.task(5)
def test_a_full_cache_refuses_and_keeps_what_it_has(layer: Layer) -> None:
    cache = layer.DenseCache(8, 1, 2)
    cache.append(rows(0, 6), rows(0, 6))
    expect_error("append of 3 tokens with 6 of 8 written", ValueError,
                 lambda: cache.append(rows(6, 3), rows(6, 3)), [6, 3, 8], NO_ROOM)
    expect("num_tokens after that error", cache.num_tokens, 6)
    cache.append(rows(6, 2), rows(6, 2))
    expect("cache.k with 8 of 8 written", cache.k, rows(0, 8))
    cache.append(rows(8, 0), rows(8, 0))
    expect("num_tokens after append of 0 tokens to a full cache", cache.num_tokens, 8)
    expect_error("append of 1 token with 8 of 8 written", ValueError,
                 lambda: cache.append(rows(8, 1), rows(8, 1)), [8, 1], NO_ROOM)


@pytest.mark.task(5)
def test_the_cache_holds_copies(layer: Layer) -> None:
    cache, k, v = layer.DenseCache(4, 1, 2), rows(1, 2), rows(5, 2)
    cache.append(k, v)
    unchanged = torch.equal(k, rows(1, 2)) and torch.equal(v, rows(5, 2))
    expect("k and v are what they were before append", unchanged, True)
    k.zero_()
    v.zero_()
    expect("cache.k after the tensor given to append was set to 0", cache.k, rows(1, 2))
    expect("cache.v after the tensor given to append was set to 0", cache.v, rows(5, 2))


class ModelCache:
    """A list that may not grow past its end."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens, self.stored = max_tokens, [0.0] * 0

    def append(self, numbers: list[float]) -> None:
        if len(self.stored) + len(numbers) > self.max_tokens:
            raise ValueError
        self.stored += numbers


def name_append_mistake(step: Step) -> str | None:
    if step.expected.error is not None:
        return "something was stored before the check" if step.got.error else "no check of what fits"
    if step.state["num_tokens"] == step.expected_state["num_tokens"]:
        return "the new rows went to the wrong place"
    return None


@pytest.mark.task(5)
@settings(max_examples=60)
@given(sizes=st.lists(st.integers(0, 4), max_size=8))
def test_any_history_of_appends(layer: Layer, sizes: list[int]) -> None:
    cache, model = layer.DenseCache(6, 1, 1), ModelCache(6)
    replay = Replay(
        "cache = DenseCache(6, 1, 1)",
        state=lambda: {"num_tokens": cache.num_tokens, "k": cache.k.flatten().tolist(),
                       "v": cache.v.flatten().tolist()},
        expected_state=lambda: {"num_tokens": len(model.stored), "k": model.stored[:],
                                "v": [-number for number in model.stored]},
        name_mistake=name_append_mistake,
    )
    for number, size in enumerate(sizes, start=1):
        k = rows(10 * number, size, head_dim=1)
        numbers = k.flatten().tolist()
        replay.step(f"cache.append(k, -k) with k = {numbers}", lambda k=k: cache.append(k, -k),
                    lambda numbers=numbers: model.append(numbers))


def a_layer(num_heads: int, num_kv_heads: int, num_tokens: int) -> tuple[torch.Tensor, ...]:
    """x [C, 6] and w_q [6, H, 4], w_k, w_v [6, G, 4]."""
    chance = generator(num_heads)
    shapes = ((num_tokens, 6), (6, num_heads, 4), (6, num_kv_heads, 4), (6, num_kv_heads, 4))
    x, w_q, w_k, w_v = (torch.randn(shape, generator=chance) for shape in shapes)
    return x, w_q, w_k, w_v


def heads_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.stack([x @ weight[:, head] for head in range(weight.shape[1])], dim=1)


@pytest.mark.task(5)
@pytest.mark.parametrize("H, G", [(1, 1), (4, 2), (3, 3), (6, 1)])
def test_without_a_cache_the_last_token_looks_at_all(layer: Layer, H: int, G: int) -> None:
    x, w_q, w_k, w_v = arguments = a_layer(H, G, num_tokens=5)
    before = [tensor.clone() for tensor in arguments]
    for num_tokens in (1, 2, 5):
        now = x[:num_tokens]
        q, k, v = heads_of(now[-1:], w_q)[0], heads_of(now, w_k), heads_of(now, w_v)
        first = heads_of(now[:1], w_q)[0]
        mistakes = [(attention_of(first, k, v), "the queries are those of the first token")]
        if num_tokens > 1:
            mistakes.append((attention_of(q, k[:-1], v[:-1]), "the token did not look at itself"))
            mistakes.append((attention_of(q, k[-1:], v[-1:]), "the token looked at itself alone"))
        got = layer.decode_without_cache(now, w_q, w_k, w_v)
        what = f"decode_without_cache of {num_tokens} tokens, H = {H}, G = {G}"
        expect_close(what, got, attention_of(q, k, v), atol=1e-4, mistakes=mistakes)
    unchanged = all(map(torch.equal, arguments, before))
    expect("x, w_q, w_k and w_v are what they were before decode_without_cache", unchanged, True)


@pytest.mark.task(5)
@pytest.mark.parametrize("H, G", [(1, 1), (4, 2), (3, 3), (6, 1)])
def test_with_a_cache_every_token_gets_the_same_result(layer: Layer, H: int, G: int) -> None:
    x, w_q, w_k, w_v = arguments = a_layer(H, G, num_tokens=6)
    before = [tensor.clone() for tensor in arguments]
    cache = layer.DenseCache(6, G, 4)
    cache.append(heads_of(x[:2], w_k), heads_of(x[:2], w_v))  # a prompt of two tokens
    for position in range(2, 6):
        now, old = x[: position + 1], x[:position]
        q = heads_of(now[-1:], w_q)[0]
        unseen = attention_of(q, heads_of(old, w_k), heads_of(old, w_v))
        mistakes = [(unseen, "the token did not look at itself: store first, then look"),
                    (attention_of(q, heads_of(now[-1:], w_k), heads_of(now[-1:], w_v)),
                     "the token looked at itself alone, not at the cache")]
        got = layer.decode_with_cache(x[position : position + 1], cache, w_q, w_k, w_v)
        what = f"decode_with_cache of token {position}, H = {H}, G = {G}"
        expected = attention_of(q, heads_of(now, w_k), heads_of(now, w_v))
        expect_close(what, got, expected, atol=1e-4, mistakes=mistakes)
        expect(f"cache.num_tokens after token {position}", cache.num_tokens, position + 1,
               mistakes={position: "the new token's K and V were not stored"})
    unchanged = all(map(torch.equal, arguments, before))
    expect("x_new, w_q, w_k and w_v are what they were before decode_with_cache", unchanged, True)
    expect_close("cache.k after all tokens", cache.k, heads_of(x, w_k), atol=1e-4)
    expect_close("cache.v after all tokens", cache.v, heads_of(x, w_v), atol=1e-4)


# -- task 6 --------------------------------------------------------------------------------------------------


def count_cost(num_new: int, context_len: int, num_heads: int, num_kv_heads: int, head_dim: int, itemsize: int
               ) -> tuple[int, int]:
    """Pair by pair, and token by token."""
    flops = num_bytes = 0
    for position in range(context_len - num_new, context_len):
        for _ in range(position + 1):
            flops += num_heads * (2 * head_dim + 2 * head_dim)
    for _ in range(context_len):
        num_bytes += 2 * num_kv_heads * head_dim * itemsize
    return flops, num_bytes


@pytest.mark.task(6)
def test_one_new_token_sees_the_whole_context(layer: Layer) -> None:
    expect(
        "attention_cost(1, 10, 6, 2, 16, 4)",
        layer.attention_cost(1, 10, 6, 2, 16, 4),
        (3840, 2560),
        mistakes={
            (1920, 2560): "a multiplication and an addition are 2 FLOPs, and there are two products: 4·D",
            (3456, 2560): "the new token sees itself, too: 10 tokens, not 9",
            (1280, 2560): "KV heads were counted: the FLOPs are those of every query head",
            (1280, 7680): "FLOPs come from query heads, bytes from KV heads; they were exchanged",
            (3840, 7680): "K and V were read once for each query head; the heads of a group share them",
            (3840, 1280): "K and V are two vectors: only one was counted",
            (3840, 640): "numbers were counted, not bytes",
            (2560, 3840): "FLOPs come first, then bytes",
        },
    )


@pytest.mark.task(6)
def test_a_prefill_is_a_triangle_of_pairs(layer: Layer) -> None:
    expect(
        "attention_cost(10, 10, 6, 2, 16, 4)",
        layer.attention_cost(10, 10, 6, 2, 16, 4),
        (21120, 2560),
        mistakes={
            (38400, 2560): "every new token was counted as seeing all of the context; attention is causal",
            (17280, 2560): "a token sees itself, too: the diagonal is missing",
            (21120, 14080): "K and V were read for every pair; they are read once for all new tokens",
            (21120, 25600): "K and V were read once for every new token; they are read once for all",
            (3840, 2560): "one new token was counted, not all of them",
        },
    )
    chunk = layer.attention_cost(3, 10, 6, 2, 16, 4)
    expect("attention_cost(3, 10, 6, 2, 16, 4), a chunk", chunk, (10368, 2560))


@pytest.mark.task(6)
@settings(max_examples=60)
@given(
    lengths=st.integers(1, 40).flatmap(lambda context: st.tuples(st.integers(1, context), st.just(context))),
    groups=st.integers(1, 4), group_size=st.integers(1, 4), head_dim=st.integers(1, 9),
    itemsize=st.sampled_from([1, 2, 4]),
)
def test_any_number_of_new_tokens(
    layer: Layer, lengths: tuple[int, int], groups: int, group_size: int, head_dim: int, itemsize: int
) -> None:
    arguments = (*lengths, groups * group_size, groups, head_dim, itemsize)
    expect(f"attention_cost{arguments}", layer.attention_cost(*arguments), count_cost(*arguments))


# -- task 7 --------------------------------------------------------------------------------------------------


def watch_blocks(context_len: int, block_size: int, window: int | None) -> int:
    """Grow a sequence token by token, and count after each the blocks that hold a token still seen."""
    most = 0
    for num_tokens in range(1, context_len + 1):
        first = 0 if window is None else max(0, num_tokens - window)
        most = max(most, len({position // block_size for position in range(first, num_tokens)}))
    return most


@pytest.mark.task(7)
def test_a_window_may_lie_across_one_block_more_than_its_tokens_need(layer: Layer) -> None:
    late = {2: "this is ceil(window / block_size); while the window slides, it lies across three blocks"}
    expect("blocks_held(100, 4, 6)", layer.blocks_held(100, 4, 6), 3, mistakes=late)
    early = {3: "a sequence of 8 tokens ends before its window lies across three blocks"}
    expect("blocks_held(8, 4, 6)", layer.blocks_held(8, 4, 6), 2, mistakes=early)
    expect("blocks_held(9, 4, 6)", layer.blocks_held(9, 4, 6), 3, mistakes=late)
    expect("blocks_held(100, 4, None)", layer.blocks_held(100, 4, None), 25)
    expect("blocks_held(3, 4, 6)", layer.blocks_held(3, 4, 6), 1)


@pytest.mark.task(7)
@settings(max_examples=80)
@given(context_len=st.integers(1, 60), block_size=st.integers(1, 9),
       window=st.one_of(st.none(), st.integers(1, 70)))
def test_no_moment_needs_more_blocks_and_one_needs_them(
    layer: Layer, context_len: int, block_size: int, window: int | None
) -> None:
    got = layer.blocks_held(context_len, block_size, window)
    expect(f"blocks_held({context_len}, {block_size}, {window})", got,
           watch_blocks(context_len, block_size, window))


@pytest.mark.task(7)
def test_a_budget_is_shared_by_sequences_of_many_layers(layer: Layer) -> None:
    call = "max_sequences({}, 100, 4, [None, 6], 1, 2, 4), with 1792 bytes per sequence"
    for budget, expected in ((4000, 2), (3584, 2), (3583, 1), (1791, 0)):
        expect(call.format(budget), layer.max_sequences(budget, 100, 4, [None, 6], 1, 2, 4), expected)
    # Gemma 3 1B: 26 layers, every sixth sees all, the others 512 tokens; 1 KV head of 256; bf16
    windows = [None if number % 6 == 0 else 512 for number in range(1, 27)]
    before = list(windows)
    got = layer.max_sequences(2**30, 32_768, 16, windows, 1, 256, 2)
    expect("max_sequences(2**30, 32768, 16, 22 layers with a window of 512 and 4 without, 1, 256, 2)", got, 7,
           mistakes={1: "all layers were counted as seeing everything"})
    expect("layer_windows after max_sequences", windows, before)
