"""The kernels' PyTorch twins: same signatures, same checks, same results, on any device and without triton.

Every kernel is tested against its twin here, and where triton is missing the twin takes its place. Each is
the definition in plain PyTorch: one sequence, one head after another, all arithmetic in fp32. Apart from the
kernels because a file that imports triton can't be imported on macOS or Windows.

They are not fast. Chapters 11 and 12.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from minipaged.kernels.paged.checks import (
    check_copy_blocks,
    check_paged_decode,
    check_paged_prefill,
    check_store_kv,
)


def store_kv_torch(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write new K and V rows into their slots of a paged cache; what `triton_decode.store_kv` does.

    Example: with blocks of 4, slot 6 is row 2 of block 1::

        store_kv_torch(k, v, k_cache, v_cache, torch.tensor([6, -1]))
        k_cache[1, 2]  # is k[0]; k[1] is padding and went nowhere

    Shapes, errors and units as in `triton_decode.store_kv`.
    """
    check_store_kv(k, v, k_cache, v_cache, slot_mapping)
    block_size = k_cache.shape[1]
    written = slot_mapping >= 0
    slots = slot_mapping[written].long()
    k_cache[slots // block_size, slots % block_size] = k[written]
    v_cache[slots // block_size, slots % block_size] = v[written]


def paged_decode_torch(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """Attention of one token per sequence to its context; what `triton_decode.paged_decode` does.

    Shapes, errors and units as there.
    """
    check_paged_decode(q, k_cache, v_cache, block_tables, context_lens)
    out = torch.zeros_like(q)
    for seq, context_len in enumerate(context_lens.tolist()):
        k = _context(k_cache, block_tables[seq], context_len)
        v = _context(v_cache, block_tables[seq], context_len)
        out[seq] = _attend(q[seq], k, v, scale)
    return out


def paged_decode_split_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    num_splits: int | None = None,
) -> Tensor:
    """What `triton_fast.paged_decode_split` does: the result doesn't depend on the number of splits."""
    return paged_decode_torch(q, k_cache, v_cache, block_tables, context_lens, scale)


def paged_prefill_torch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    max_query_len: int | None = None,
) -> Tensor:
    """Causal attention of every sequence's newest tokens; what `triton_fast.paged_prefill` does.

    Shapes, errors and units as there.
    """
    check_paged_prefill(q, k_cache, v_cache, block_tables, context_lens, query_start_loc)
    out = torch.zeros_like(q)
    for seq, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        context_len = int(context_lens[seq])
        k = _context(k_cache, block_tables[seq], context_len)
        v = _context(v_cache, block_tables[seq], context_len)
        for token in range(start, end):
            visible = max(0, context_len - (end - token) + 1)
            out[token] = _attend(q[token], k[:visible], v[:visible], scale)
    return out


def copy_blocks_torch(k_cache: Tensor, v_cache: Tensor, copies: Tensor) -> None:
    """Copy whole blocks in every layer, in place; what `triton_fast.copy_blocks` does."""
    check_copy_blocks(k_cache, v_cache, copies)
    sources, destinations = copies.long().T
    k_cache[:, destinations] = k_cache[:, sources]
    v_cache[:, destinations] = v_cache[:, sources]


def _context(cache: Tensor, block_table: Tensor, context_len: int) -> Tensor:
    """K or V of one sequence's tokens in order: [N, B, G, D] -> [context_len, G, D] in fp32."""
    positions = torch.arange(context_len, device=cache.device)
    block_size = cache.shape[1]
    return cache[block_table[positions // block_size].long(), positions % block_size].float()


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One token's query heads q [H, D] against k and v of [K, G, D]: [H, D], zeros if K is 0."""
    H, (K, G, _) = len(q), k.shape
    if K == 0:
        return torch.zeros_like(q)
    heads = [
        (k[:, h // (H // G)] @ q[h].float() * scale).softmax(dim=0) @ v[:, h // (H // G)] for h in range(H)
    ]
    return torch.stack(heads).to(q.dtype)
