"""Kernels that keep a whole GPU busy: decode split over the context, ragged prefill, copies of blocks.

`paged_decode_split`: one sequence with a long context gives `paged_decode` only G programs, and a GPU has
more than a hundred processors. Here several programs share a context, each with a piece of it, and a second
kernel merges their results by the same arithmetic that joins two steps of an online softmax.

`paged_prefill`: many new tokens per sequence, causal, with or without earlier context. One program serves a
tile of queries with all heads of a group, so K and V are read once for the whole tile.

`copy_blocks`: what copy-on-write asks for, in all layers of K and V by one launch.

Left out: tiles chosen by measuring (autotuning), and skipping the mask where a tile is visible as a whole.
Chapter 12 (Flash-Decoding: Dao et al., 2023; FlashAttention-2: Dao, arXiv 2307.08691; tiles of queries with
their group: vllm/v1/attention/ops/triton_unified_attention.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.paged.checks import (
    check_copy_blocks,
    check_paged_decode,
    check_paged_prefill,
    check_runs_here,
)
from minipaged.kernels.paged.triton_decode import attend, compute_dtypes, paged_decode, tile_sizes

MIN_SPLIT_LEN = 256  # tokens; a shorter piece isn't worth a program and a row of the merge
MAX_SPLITS = 128
PROGRAMS_PER_PROCESSOR = 2  # while one waits for memory, the other computes
COPY_TILE = 4096  # elements of K, and of V, that one program of copy_blocks moves


def paged_decode_split(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    num_splits: int | None = None,
) -> Tensor:
    """`paged_decode` with each context shared by `num_splits` programs per KV head; same shapes and errors.

    By default `choose_num_splits` chooses, from the width of the tables; 1 is plain `paged_decode`. The
    pieces take num_splits · S · H · (D + 1) · 4 bytes, written and read once.
    """
    check_paged_decode(q, k_cache, v_cache, block_tables, context_lens)
    check_runs_here("paged_decode_split", q)
    _, B, G, _ = k_cache.shape
    if num_splits is None:
        num_splits = choose_num_splits(len(q) * G, block_tables.shape[1] * B, num_processors(q.device))
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits must be 1 to {MAX_SPLITS}: got {num_splits}")
    if num_splits == 1 or q.numel() == 0:
        return paged_decode(q, k_cache, v_cache, block_tables, context_lens, scale)
    pieces, weights = decode_pieces(q, k_cache, v_cache, block_tables, context_lens, scale, num_splits)
    return merge_pieces(pieces, weights, q.dtype)


def decode_pieces(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    """Attention of one new token per sequence to each of `num_splits` pieces of its context, apart.

    Arguments as in `paged_decode`, checked by the caller. The pieces of a context are equally long, up to
    whole tiles of `attend`; the last ones may be empty.

    Returns pieces [S, H, num_splits, D] in fp32, each an attention of its own, and weights
    [S, H, num_splits] in fp32: log2 of the sum of exp(score) in the piece; of an empty one, 0 and -inf.
    """
    (S, H, D), (_, B, G, _) = q.shape, k_cache.shape
    _, dot_dtype = compute_dtypes(q.dtype)
    pieces = torch.empty(S, H, num_splits, D, dtype=torch.float32, device=q.device)
    weights = torch.empty(S, H, num_splits, dtype=torch.float32, device=q.device)
    _paged_decode_split_kernel[(S, G, num_splits)](
        q, k_cache, v_cache, block_tables, context_lens, pieces, weights, scale, num_splits,
        *q.stride(), *k_cache.stride(), *v_cache.stride(), *block_tables.stride(), context_lens.stride(0),
        B, H // G, D, DOT_DTYPE=dot_dtype, **tile_sizes(H // G, D, q.dtype),
    )
    return pieces, weights


def merge_pieces(pieces: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """The attention to a whole context from the attentions to its pieces: their mean by 2^weight.

    pieces: [S, H, P, D] and weights: [S, H, P], both fp32, contiguous, as `decode_pieces` gives them.
    Returns [S, H, D] of `dtype`; zeros where all pieces are empty.
    """
    S, H, P, D = pieces.shape
    out_dtype, _ = compute_dtypes(dtype)
    out = torch.empty(S, H, D, dtype=out_dtype, device=pieces.device)
    _merge_kernel[(S, H)](
        pieces, weights, out, P, *out.stride(), D,
        BLOCK_SPLITS=triton.next_power_of_2(P), BLOCK_D=triton.next_power_of_2(D),
    )
    return out.to(dtype)


def choose_num_splits(num_programs: int, max_context_len: int, num_processors: int) -> int:
    """Into how many pieces to split each context, when without splitting `num_programs` would run.

    As many as give every processor of the GPU PROGRAMS_PER_PROCESSOR programs, but no piece shorter than
    MIN_SPLIT_LEN tokens. One sequence with 8 KV heads on 132 processors: 33 pieces of a context of 128k
    tokens, 4 pieces of 1k, and a batch of 64 is not split at all.

    >>> choose_num_splits(8, 131072, 132), choose_num_splits(8, 1024, 132), choose_num_splits(512, 4096, 132)
    (33, 4, 1)
    """
    wanted = PROGRAMS_PER_PROCESSOR * num_processors // max(1, num_programs)
    return max(1, min(wanted, max_context_len // MIN_SPLIT_LEN, MAX_SPLITS))


def num_processors(device: torch.device) -> int:
    """How many programs run at the same time: a GPU's multiprocessors; 1 on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    max_query_len: int | None = None,
) -> Tensor:
    """Causal attention of every sequence's newest tokens to its whole context, through its block table.

    q: [T, H, D], the new tokens of all sequences one after another; sequence s owns rows query_start_loc[s]
    up to query_start_loc[s+1] of [S+1]. The rest as in `paged_decode`, with S rows of tables and lengths.
    Query i of m at context length c sees positions 0 … c - m + i: with m = c this is a whole prompt, with
    m < c a chunk of one that has earlier context. `max_query_len` is the largest m; if it isn't given it is
    read from query_start_loc, which on a GPU waits for all work before.

    Returns [T, H, D] of q's dtype, computed in fp32; rows without context or sequence are zeros.

    Example: two sequences, a prompt of 3 tokens and 2 more tokens of one that has 6 by now::

        paged_prefill(q, k_cache, v_cache, block_tables, torch.tensor([3, 6]), torch.tensor([0, 3, 5]), scale)

    Raises ValueError as `paged_decode` does, and for queries that outnumber their context.
    """
    check_paged_prefill(q, k_cache, v_cache, block_tables, context_lens, query_start_loc)
    check_runs_here("paged_prefill", q)
    (_, H, D), (_, B, G, _), S = q.shape, k_cache.shape, len(context_lens)
    dtype, dot_dtype = compute_dtypes(q.dtype)
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    if out.numel() == 0 or S == 0:
        return out.to(q.dtype)
    if max_query_len is None:
        max_query_len = int(query_start_loc.diff().max())
    R = H // G
    tiles = tile_sizes(max(R, prefill_rows(D, q.dtype)), D, q.dtype)
    _paged_prefill_kernel[(triton.cdiv(max_query_len, tiles["BLOCK_R"] // R), G, S)](
        q, k_cache, v_cache, block_tables, context_lens, query_start_loc, out, scale,
        *q.stride(), *k_cache.stride(), *v_cache.stride(), *block_tables.stride(), context_lens.stride(0),
        query_start_loc.stride(0), *out.stride(), B, R, D, DOT_DTYPE=dot_dtype, **tiles,
    )
    return out.to(q.dtype)


def prefill_rows(head_dim: int, dtype: torch.dtype) -> int:
    """How many rows (a query's head each) share one pass over K and V: as many as registers hold.

    bf16: 128 up to a head size of 128, then 64. fp32, which has no tensor cores: 32 for 64, then 16.
    """
    if triton_status().interpret:
        return 256
    elements = 2048 if dtype == torch.float32 else 16384
    return min(128, elements // triton.next_power_of_2(head_dim))


def copy_blocks(k_cache: Tensor, v_cache: Tensor, copies: Tensor) -> None:
    """Copy whole blocks in every layer, in place.

    k_cache, v_cache: [L, N, B, G, D], of one dtype; any strides will do. copies: [C, 2], int32 or int64, each
    (src, dst). A dst is no other's dst, and no other's src: copies run in any order. Bytes moved:
    4 · C · L · B · G · D elements, half of them read and half written.

    Example::

        copy_blocks(k_cache, v_cache, torch.tensor([[3, 7]]))  # block 7 is now what block 3 is, in all layers

    Raises ValueError for shapes, dtypes or devices that don't fit, and, on the CPU, for block ids out of
    range and copies that get in each other's way.
    """
    check_copy_blocks(k_cache, v_cache, copies)
    check_runs_here("copy_blocks", k_cache)
    L, _, B, G, D = k_cache.shape
    if len(copies) == 0 or k_cache.numel() == 0:
        return
    BLOCK_D = triton.next_power_of_2(D)
    BLOCK_ROWS = min(triton.next_power_of_2(B * G), max(1, COPY_TILE // BLOCK_D))
    _copy_blocks_kernel[(len(copies), L, triton.cdiv(B * G, BLOCK_ROWS))](
        k_cache, v_cache, copies, *k_cache.stride(), *v_cache.stride(), *copies.stride(), B, G, D,
        BLOCK_ROWS=BLOCK_ROWS, BLOCK_D=BLOCK_D,
    )


@triton.jit
def _paged_decode_split_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, context_lens_ptr, pieces_ptr, weights_ptr, scale,
    num_splits,
    stride_qs, stride_qh, stride_qd,
    stride_kn, stride_kb, stride_kg, stride_kd,
    stride_vn, stride_vb, stride_vg, stride_vd,
    stride_ts, stride_tm, stride_cs,
    B: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, DOT_DTYPE: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    offs_r = tl.arange(0, BLOCK_R).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    mask = (offs_r < R)[:, None] & (offs_d < D)[None, :]
    heads = kv_head * R + offs_r
    offs_q = heads[:, None] * stride_qh + offs_d[None, :] * stride_qd
    q = tl.load(q_ptr + seq * stride_qs + offs_q, mask=mask, other=0.0).to(DOT_DTYPE)

    context_len = tl.load(context_lens_ptr + seq * stride_cs).to(tl.int32)
    split_len = tl.cdiv(tl.cdiv(context_len, num_splits), BLOCK_N) * BLOCK_N  # whole tiles
    start = split * split_len
    end = tl.minimum(start + split_len, context_len)  # may lie before start: then this piece is empty
    visible = tl.zeros([BLOCK_R], tl.int32) + context_len
    acc, total, highest = attend(
        q, visible, start, end, scale, block_tables_ptr + seq * stride_ts, stride_tm,
        k_cache_ptr + kv_head * stride_kg, stride_kn, stride_kb, stride_kd,
        v_cache_ptr + kv_head * stride_vg, stride_vn, stride_vb, stride_vd,
        B, D, BLOCK_R, BLOCK_D, BLOCK_N,
    )
    # A piece is an attention of its own, and its weight in the whole is the sum of all its weights: total,
    # measured by its own highest score. Kept as a logarithm, as total alone may be too large or too small.
    total = tl.where(total > 0, total, 1.0)
    num_heads = tl.num_programs(1) * R
    offs_p = (seq * num_heads + heads) * num_splits + split
    tl.store(pieces_ptr + offs_p[:, None] * D + offs_d[None, :], acc / total[:, None], mask=mask)
    tl.store(weights_ptr + offs_p, highest + tl.log2(total), mask=offs_r < R)  # -inf if empty


@triton.jit
def _merge_kernel(
    pieces_ptr, weights_ptr, out_ptr, num_splits, stride_os, stride_oh, stride_od,
    D: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    offs_s = tl.arange(0, BLOCK_SPLITS)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    offs_p = (seq * tl.num_programs(1) + head) * num_splits + offs_s
    exists = offs_s < num_splits
    weights = tl.load(weights_ptr + offs_p, mask=exists, other=float("-inf"))
    highest = tl.max(weights, axis=0)
    weights = tl.exp2(weights - tl.where(highest > float("-inf"), highest, 0.0))  # no context: all are 0
    mask = exists[:, None] & (offs_d < D)[None, :]
    pieces = tl.load(pieces_ptr + offs_p[:, None] * D + offs_d[None, :], mask=mask, other=0.0)
    total = tl.sum(weights, axis=0)
    out = tl.sum(weights[:, None] * pieces, axis=0) / tl.where(total > 0, total, 1.0)
    offs_o = seq * stride_os + head * stride_oh + offs_d * stride_od
    tl.store(out_ptr + offs_o, out.to(out_ptr.dtype.element_ty), mask=offs_d < D)


@triton.jit
def _paged_prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, context_lens_ptr, query_start_loc_ptr, out_ptr, scale,
    stride_qt, stride_qh, stride_qd,
    stride_kn, stride_kb, stride_kg, stride_kd,
    stride_vn, stride_vb, stride_vg, stride_vd,
    stride_ts, stride_tm, stride_cs, stride_ls,
    stride_ot, stride_oh, stride_od,
    B: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, DOT_DTYPE: tl.constexpr,
):
    kv_head = tl.program_id(1).to(tl.int64)
    seq = tl.program_id(2).to(tl.int64)
    first_token = tl.load(query_start_loc_ptr + seq * stride_ls).to(tl.int64)
    query_len = (tl.load(query_start_loc_ptr + (seq + 1) * stride_ls) - first_token).to(tl.int32)
    tile_len: tl.constexpr = BLOCK_R // R  # queries; each brings the R heads of its group
    first_query = tl.program_id(0) * tile_len
    if first_query < query_len:  # the grid is as long as the longest sequence
        offs_r = tl.arange(0, BLOCK_R)
        query = first_query + offs_r // R
        head = kv_head * R + offs_r % R
        is_query = (offs_r < tile_len * R) & (query < query_len)
        offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
        mask = is_query[:, None] & (offs_d < D)[None, :]
        token = first_token + query
        offs_q = token[:, None] * stride_qt + head[:, None] * stride_qh + offs_d[None, :] * stride_qd
        q = tl.load(q_ptr + offs_q, mask=mask, other=0.0).to(DOT_DTYPE)

        context_len = tl.load(context_lens_ptr + seq * stride_cs).to(tl.int32)
        num_earlier = context_len - query_len  # tokens before the first query
        # subtle: a row that is no query sees one position, because the softmax over none is 0 / 0.
        visible = tl.where(is_query, num_earlier + query + 1, 1)
        end = tl.minimum(context_len, num_earlier + first_query + tile_len)  # what the last query sees
        acc, total, _ = attend(
            q, visible, 0, end, scale, block_tables_ptr + seq * stride_ts, stride_tm,
            k_cache_ptr + kv_head * stride_kg, stride_kn, stride_kb, stride_kd,
            v_cache_ptr + kv_head * stride_vg, stride_vn, stride_vb, stride_vd,
            B, D, BLOCK_R, BLOCK_D, BLOCK_N,
        )
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        offs_o = token[:, None] * stride_ot + head[:, None] * stride_oh + offs_d[None, :] * stride_od
        tl.store(out_ptr + offs_o, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _copy_blocks_kernel(
    k_cache_ptr, v_cache_ptr, copies_ptr,
    stride_kl, stride_kn, stride_kb, stride_kg, stride_kd,
    stride_vl, stride_vn, stride_vb, stride_vg, stride_vd,
    stride_cc, stride_cp,
    B, G, D, BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):
    copy = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    src = tl.load(copies_ptr + copy * stride_cc).to(tl.int64)
    dst = tl.load(copies_ptr + copy * stride_cc + stride_cp).to(tl.int64)
    offs_row = tl.program_id(2) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)  # each a slot's head, D elements
    slot, head = (offs_row // G).to(tl.int64)[:, None], (offs_row % G).to(tl.int64)[:, None]
    offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)
    mask = (offs_row < B * G)[:, None] & (offs_d < D)
    offs_k = layer * stride_kl + slot * stride_kb + head * stride_kg + offs_d * stride_kd
    offs_v = layer * stride_vl + slot * stride_vb + head * stride_vg + offs_d * stride_vd
    k = tl.load(k_cache_ptr + src * stride_kn + offs_k, mask=mask)
    v = tl.load(v_cache_ptr + src * stride_vn + offs_v, mask=mask)
    tl.store(k_cache_ptr + dst * stride_kn + offs_k, k, mask=mask)
    tl.store(v_cache_ptr + dst * stride_vn + offs_v, v, mask=mask)
