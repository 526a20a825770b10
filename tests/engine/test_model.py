"""The model equals transformers' on the same weights: Llama, Qwen2 and Qwen3, in prefill and in decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from minipaged.config import ModelConfig, RopeScaling
from minipaged.loading.weights import random_weights
from minipaged.model import Batch, Llama, rope_frequencies
from minipaged.operators import Operators
from minipaged.paged_attention import KVCache, paged_attention
from tests.reference import TINY, hf_logits, hf_model, prompt_of

BLOCK_SIZE = 4
QWEN2 = {"architecture": "Qwen2ForCausalLM", "qkv_bias": True}
QWEN3 = {"architecture": "Qwen3ForCausalLM", "qk_norm": True}
LLAMA3_ROPE = RopeScaling(8.0, 1.0, 4.0, 32)

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, untied": {"tie_word_embeddings": False},
    "llama, one KV head": {"num_kv_heads": 1},
    "llama, all heads": {"num_kv_heads": 4},
    "llama, 3 layers, group 3, head 20": {
        "num_layers": 3,
        "hidden_size": 96,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 20,
    },
    "llama 3 rope": {"rope_scaling": LLAMA3_ROPE, "rope_theta": 500_000.0},
    "llama 3 rope, short": {"rope_scaling": RopeScaling(32.0, 1.0, 4.0, 8192), "rope_theta": 500_000.0},
    "llama, eps and theta": {"rms_norm_eps": 1e-3, "rope_theta": 100.0},
    "qwen2": QWEN2,
    "qwen2, untied": QWEN2 | {"tie_word_embeddings": False},
    "qwen3": QWEN3,
    "qwen3, untied, wide heads": QWEN3 | {"tie_word_embeddings": False, "head_dim": 32},
}


def config_named(name: str) -> ModelConfig:
    return replace(TINY, **CONFIGS[name])


class Runner:
    """Feeds a model sequences by hand: one cache, blocks dealt out in a shuffled order."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        operators_for: Callable[..., Operators] = Operators,
    ) -> None:
        self.model = Llama(config, random_weights(config, seed), dtype, operators_for=operators_for)
        shape = (config.num_layers, 64, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.cache = KVCache(*shape, dtype=dtype)
        self.cache.k.fill_(torch.nan)
        self.cache.v.fill_(torch.nan)
        order = torch.randperm(64, generator=torch.Generator().manual_seed(0)).tolist()
        self.tables = [order[index * 8 : index * 8 + 8] for index in range(8)]

    def run(self, parts: list[tuple[list[int], int, int]], all_rows: bool = True) -> torch.Tensor:
        """`parts` are (token ids of a sequence, start, end), one per sequence; the logits of those tokens."""
        token_ids, positions, slots, starts, contexts = [], [], [], [0], []
        for row, (tokens, start, end) in enumerate(parts):
            token_ids += tokens[start:end]
            positions += range(start, end)
            slots += [
                self.tables[row][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, end)
            ]
            starts.append(len(slots))
            contexts.append(end)
        rows = list(range(len(slots))) if all_rows else [end - 1 for end in starts[1:]]
        values = (token_ids, positions, slots, self.tables[: len(parts)], contexts, starts, rows)
        batch = Batch(*(torch.tensor(value, dtype=torch.int64) for value in values))
        return self.model.forward(batch, self.cache, paged_attention)


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_decode_give_the_logits_of_transformers(name: str):
    config = config_named(name)
    tokens = prompt_of(27)
    expected = hf_logits(hf_model(config), tokens)
    runner = Runner(config)
    prefill = runner.run([(tokens, 0, 20)])
    decoded = [runner.run([(tokens, position, position + 1)]) for position in range(20, 27)]
    actual = torch.cat([prefill, *decoded])
    assert actual.dtype == torch.float32 and actual.shape == (27, config.vocab_size)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_several_sequences_in_one_batch_do_not_touch_each_other(name: str):
    config = config_named(name)
    sequences = [prompt_of(length, seed=length) for length in (9, 25, 1, 16)]
    hf = hf_model(config)
    expected = [hf_logits(hf, tokens) for tokens in sequences]
    runner = Runner(config)
    runner.run([(sequences[0], 0, 4), (sequences[1], 0, 13)])
    mixed = runner.run(
        [(sequences[0], 4, 9), (sequences[1], 13, 25), (sequences[2], 0, 1), (sequences[3], 0, 16)]
    )
    wanted = torch.cat([expected[0][4:9], expected[1][13:25], expected[2], expected[3]])
    torch.testing.assert_close(mixed, wanted, atol=1e-4, rtol=1e-4)


def test_logits_are_computed_for_the_rows_that_are_asked_for():
    sequences = [prompt_of(9), prompt_of(5, seed=1)]
    parts = [(sequences[0], 0, 9), (sequences[1], 0, 5)]
    every = Runner(TINY).run(parts)
    last = Runner(TINY).run(parts, all_rows=False)
    torch.testing.assert_close(last, every[[8, 13]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_wrong_by_no_more_than_transformers_is(dtype: torch.dtype):
    tokens = prompt_of(20)
    exact = hf_logits(hf_model(TINY), tokens)
    theirs = hf_logits(hf_model(TINY).to(dtype), tokens)
    ours = Runner(TINY, dtype).run([(tokens, 0, 20)])
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()


@pytest.mark.parametrize("scaling", [None, LLAMA3_ROPE, RopeScaling(32.0, 1.0, 4.0, 8192)], ids=str)
def test_the_angles_are_those_of_transformers(scaling: RopeScaling | None):
    config = replace(TINY, head_dim=64, rope_scaling=scaling, rope_theta=500_000.0)
    expected = hf_model(config).model.rotary_emb.inv_freq
    torch.testing.assert_close(rope_frequencies(64, 500_000.0, scaling), expected, rtol=1e-6, atol=0.0)
