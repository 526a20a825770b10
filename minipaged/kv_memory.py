"""How many bytes a token's K/V takes, and how many blocks a budget buys.

Why it exists: the pool is sized once, at start, from these numbers; nothing grows later.
What it leaves out: the caches that other architectures have (MLA's compressed one). Chapter 01.
"""

from __future__ import annotations

import torch

from minipaged.config import ModelConfig
from minipaged.errors import check_int


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """2 (K and V) · layers · KV heads · head size · bytes per element.

    SmolLM2-135M: 2 · 30 · 3 · 64 · 4 = 46,080 bytes in fp32, half of it in bf16.
    """
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


def num_blocks_for(budget_bytes: int, block_size: int, config: ModelConfig, dtype: torch.dtype) -> int:
    """Whole blocks that fit a budget; ValueError if not even one does."""
    check_int("block_size", block_size, minimum=1)
    check_int("kv_cache_memory_bytes", budget_bytes, minimum=1, maximum=2**60)
    block_bytes = block_size * kv_bytes_per_token(config, dtype)
    if budget_bytes < block_bytes:
        raise ValueError(
            f"kv_cache_memory_bytes={budget_bytes:,} is less than one block: {block_size} tokens of "
            f"{kv_bytes_per_token(config, dtype):,} bytes are {block_bytes:,} bytes"
        )
    return budget_bytes // block_bytes
