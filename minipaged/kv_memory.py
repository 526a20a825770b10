"""What a token's K and V cost, and how many blocks a budget buys.

The engine's pool is sized once, at start, from these numbers; nothing grows later. Left out: caches that
aren't laid out per token (state-space models), and the memory that the model itself needs. Chapter 01 (Kwon
et al., SOSP'23, sections 2 and 3).
"""

from __future__ import annotations

import torch

from minipaged.config import ModelConfig
from minipaged.errors import check_int


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """2 (K and V) · layers · KV heads · head size · bytes per number: MHA, GQA and MQA alike.

    OPT-13B: 2 · 40 · 40 · 128 · 2 = 819,200 bytes in fp16.
    """
    return 2 * num_layers * num_kv_heads * head_dim * itemsize


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """The bytes of one token in this engine: all the models that it serves have MHA, GQA or MQA.

    SmolLM2-135M: 2 · 30 · 3 · 64 · 4 = 46,080 bytes in fp32, half of it in bf16.
    """
    return bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize)


def num_blocks_for(budget_bytes: int, block_size: int, config: ModelConfig, dtype: torch.dtype) -> int:
    """Whole blocks that fit a budget; ValueError if not even one does.

    A block holds `block_size` tokens in every layer. SmolLM2-135M in fp32, blocks of 16 tokens, 512 MiB:
    728 blocks of 737,280 bytes, and 131,072 bytes are left over.
    """
    check_int("block_size", block_size, minimum=1)
    check_int("kv_cache_memory_bytes", budget_bytes, minimum=1, maximum=2**60)
    block_bytes = block_size * kv_bytes_per_token(config, dtype)
    if budget_bytes < block_bytes:
        raise ValueError(
            f"kv_cache_memory_bytes={budget_bytes:,} is less than one block: {block_size} tokens of "
            f"{kv_bytes_per_token(config, dtype):,} bytes are {block_bytes:,} bytes"
        )
    return budget_bytes // block_bytes
