"""What the two ways to preempt cost: recomputing K and V, or moving them out and in again.

What a step costs besides is in `cost_model.py`. Chapter 09 (Kwon et al., SOSP'23, section 7.3).
"""

from __future__ import annotations

import math


def recompute_flops(
    num_tokens: int,
    num_parameters: int,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    num_cached: int = 0,
) -> int:
    """FLOPs to compute K and V of `num_tokens` tokens anew, the first `num_cached` of which are still there.

    2 for each token and each of the `num_parameters` numbers in the layers' matrices, and 4 · H · D in each
    layer for each pair of a token and one that it sees (itself included). 3 tokens, 1,000 parameters,
    2 layers of 4 heads of 8: 6,000 + 6 pairs · 256 = 7,536; with 2 of them cached 2,768.
    """
    num_new = num_tokens - num_cached
    pairs = (num_tokens * (num_tokens + 1) - num_cached * (num_cached + 1)) // 2
    return 2 * num_parameters * num_new + 4 * num_layers * num_heads * head_dim * pairs


def swap_seconds(
    num_tokens: int,
    block_size: int,
    bytes_per_token: int,
    bytes_per_s: float,
    seconds_per_block: float = 0.0,
) -> float:
    """Seconds to move the blocks of `num_tokens` tokens out and in again.

    Whole blocks move. Each takes its bytes through the link, and `seconds_per_block` besides, each way.
    20 tokens of 100,000 bytes in blocks of 16, over 16 GB/s, 50 µs a block: 2 · 2 · (100 + 50) µs = 0.6 ms.
    """
    num_blocks = -(-num_tokens // block_size)
    return 2 * num_blocks * (block_size * bytes_per_token / bytes_per_s + seconds_per_block)


def crossover(
    swap_s_per_token: float,
    flops_per_s: float,
    num_parameters: int,
    num_layers: int,
    num_heads: int,
    head_dim: int,
) -> int:
    """The number of tokens from which on swapping is no slower than recomputing all of them; at least 1.

    Recomputing is 2·P·n + 2·L·H·D·n·(n + 1) FLOPs, swapping `swap_s_per_token` · n seconds; the square wins
    in the end. 0.5 s a token, 6,560 FLOPs/s, P = 1,000, 2 layers of 4 heads of 8: 9, where both take 4.5 s.
    """
    affordable = swap_s_per_token * flops_per_s / 2 - num_parameters
    return max(1, math.ceil(affordable / (num_layers * num_heads * head_dim) - 1))
