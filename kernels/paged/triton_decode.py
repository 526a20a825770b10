"""The first Triton kernels: new K and V rows scattered into the paged cache, and one token's attention to it.

`store_kv`: a step computes K and V for T tokens in one contiguous batch; the cache wants each token's row in
its slot. One program moves one token: it reads the token's slot, then copies G · D elements of K and of V.
Nothing is computed, so the cost is the bytes moved: 4 · T · G · D elements, half of them read, half written.

`paged_decode`: each sequence has one new token, whose H query heads attend to a context that lies scattered
over blocks. One program serves one sequence and one KV head, with the H / G query heads of its group as the
rows of one small matrix, so K and V are read once for all of them: 2 · K · G · D elements for K tokens.

Left out: quantised caches. Splitting a long context over several programs, and more than one new token per
sequence, are `triton_fast`'s. Chapter 11 (online softmax: Milakov and Gimelshein, arXiv 1805.02867; packing
the group: vllm/v1/attention/ops/triton_unified_attention.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.paged.checks import check_paged_decode, check_runs_here, check_store_kv

MIN_DOT = 16  # a GPU's matrix units take no smaller side
TILE_BYTES = 16384  # of K, and of V: what one step of the loop reads; more of it would spill registers


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write new K and V rows into their slots of a paged cache, in place.

    k, v: [T, G, D]. k_cache, v_cache: [N, B, G, D], of k's dtype. slot_mapping: [T], int32 or int64; token t
    goes to block slot // B, row slot % B; -1 is padding and writes nothing. Any strides will do. Slots other
    than -1 must differ from each other and lie below N · B, as those of one engine step do.

    Example: with blocks of 4, slot 6 is row 2 of block 1::

        store_kv(k, v, k_cache, v_cache, torch.tensor([6, -1]))
        k_cache[1, 2]  # is k[0]; k[1] is padding and went nowhere

    Raises ValueError for shapes, dtypes or devices that don't fit, and, on the CPU, for slots out of range.
    """
    check_store_kv(k, v, k_cache, v_cache, slot_mapping)
    check_runs_here("store_kv", k)
    T, G, D = k.shape
    if T == 0:
        return
    _store_kv_kernel[(T,)](
        k, v, k_cache, v_cache, slot_mapping, k_cache.shape[1], G, D,
        *k.stride(), *v.stride(), *k_cache.stride(), *v_cache.stride(), slot_mapping.stride(0),
        BLOCK_G=triton.next_power_of_2(G), BLOCK_D=triton.next_power_of_2(D),
    )


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """Attention of one new token per sequence to its whole context, through its block table.

    q: [S, H, D], H a multiple of G; query head h reads KV head h // (H / G). k_cache, v_cache: [N, B, G, D],
    one layer, of q's dtype. block_tables: [S, M] block ids; entries past a context may hold anything.
    context_lens: [S], the tokens that each sequence attends to, its new one included (its K/V is stored
    already); 0 gives zeros. Tables and lengths are int32 or int64. Any strides will do. `scale` multiplies
    the scores: D ** -0.5 as a rule. Slots past a context are never read.

    Returns [S, H, D] of q's dtype, computed in fp32.

    Example: with blocks of 4, a sequence of 6 tokens reads all of block 5 and two rows of block 2::

        paged_decode(q, k_cache, v_cache, torch.tensor([[5, 2, -1]]), torch.tensor([6]), scale)

    Raises ValueError for shapes, dtypes or devices that don't fit, and, on the CPU, for block ids or lengths
    out of range.
    """
    check_paged_decode(q, k_cache, v_cache, block_tables, context_lens)
    check_runs_here("paged_decode", q)
    (S, H, D), (_, B, G, _) = q.shape, k_cache.shape
    dtype, dot_dtype = compute_dtypes(q.dtype)
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    if out.numel() == 0:
        return out.to(q.dtype)
    _paged_decode_kernel[(S, G)](
        q, k_cache, v_cache, block_tables, context_lens, out, scale,
        *q.stride(), *k_cache.stride(), *v_cache.stride(), *block_tables.stride(), context_lens.stride(0),
        *out.stride(), B, H // G, D, DOT_DTYPE=dot_dtype, **tile_sizes(H // G, D, q.dtype),
    )
    return out.to(q.dtype)


def compute_dtypes(dtype: torch.dtype) -> tuple[torch.dtype, tl.dtype]:
    """What a kernel stores its result in, and in what it multiplies, for inputs of `dtype`.

    On a GPU both are `dtype`. Triton's interpreter can't compute in bf16, and rounds towards zero when it
    stores it (triton issue 11584), so there both are fp32, and PyTorch rounds the result.
    """
    if dtype == torch.bfloat16 and triton_status().interpret:
        return torch.float32, tl.float32
    return dtype, {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]


def tile_sizes(num_rows: int, head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """How `attend` cuts its work: BLOCK_R rows of q by BLOCK_N positions at a time, BLOCK_D wide.

    All are powers of two, and what `tl.dot` takes. fp32 without tensor cores needs more registers, so more
    warps share them. In the interpreter a step costs the same whatever it takes: few, big ones.

    >>> tile_sizes(num_rows=4, head_dim=80, dtype=torch.bfloat16)  # on a GPU
    {'BLOCK_R': 16, 'BLOCK_D': 128, 'BLOCK_N': 64, 'num_warps': 4}
    """
    BLOCK_R, BLOCK_D = (max(MIN_DOT, triton.next_power_of_2(size)) for size in (num_rows, head_dim))
    BLOCK_N = 128 if triton_status().interpret else min(64, TILE_BYTES // (BLOCK_D * dtype.itemsize))
    num_warps = 8 if dtype == torch.float32 or BLOCK_R >= 64 else 4
    return {"BLOCK_R": BLOCK_R, "BLOCK_D": BLOCK_D, "BLOCK_N": BLOCK_N, "num_warps": num_warps}


@triton.jit
def _store_kv_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slot_mapping_ptr, B, G, D,
    stride_kt, stride_kg, stride_kd,
    stride_vt, stride_vg, stride_vd,
    stride_kcn, stride_kcb, stride_kcg, stride_kcd,
    stride_vcn, stride_vcb, stride_vcg, stride_vcd,
    stride_st,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):
    # subtle: 64 bits, because block · stride passes 2^31 in a cache of more than 2 billion elements.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token * stride_st).to(tl.int64)
    if slot >= 0:  # -1 is padding
        block, row = slot // B, slot % B
        offs_g = tl.arange(0, BLOCK_G)[:, None].to(tl.int64)
        offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)
        mask = (offs_g < G) & (offs_d < D)  # arange is a power of two long; G and D need not be

        k = tl.load(k_ptr + token * stride_kt + offs_g * stride_kg + offs_d * stride_kd, mask=mask)
        v = tl.load(v_ptr + token * stride_vt + offs_g * stride_vg + offs_d * stride_vd, mask=mask)
        k_slot_ptr = k_cache_ptr + block * stride_kcn + row * stride_kcb
        v_slot_ptr = v_cache_ptr + block * stride_vcn + row * stride_vcb
        tl.store(k_slot_ptr + offs_g * stride_kcg + offs_d * stride_kcd, k, mask=mask)
        tl.store(v_slot_ptr + offs_g * stride_vcg + offs_d * stride_vcd, v, mask=mask)


@triton.jit
def _paged_decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, context_lens_ptr, out_ptr, scale,
    stride_qs, stride_qh, stride_qd,
    stride_kn, stride_kb, stride_kg, stride_kd,
    stride_vn, stride_vb, stride_vg, stride_vd,
    stride_ts, stride_tm, stride_cs,
    stride_os, stride_oh, stride_od,
    B: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, DOT_DTYPE: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    offs_r = tl.arange(0, BLOCK_R).to(tl.int64)  # the R query heads that share this KV head
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    mask = (offs_r < R)[:, None] & (offs_d < D)[None, :]
    heads = kv_head * R + offs_r
    offs_q = heads[:, None] * stride_qh + offs_d[None, :] * stride_qd
    q = tl.load(q_ptr + seq * stride_qs + offs_q, mask=mask, other=0.0).to(DOT_DTYPE)

    context_len = tl.load(context_lens_ptr + seq * stride_cs).to(tl.int32)
    visible = tl.zeros([BLOCK_R], tl.int32) + context_len  # the newest token sees all of its context
    acc, total, _ = attend(
        q, visible, 0, context_len, scale, block_tables_ptr + seq * stride_ts, stride_tm,
        k_cache_ptr + kv_head * stride_kg, stride_kn, stride_kb, stride_kd,
        v_cache_ptr + kv_head * stride_vg, stride_vn, stride_vb, stride_vd,
        B, D, BLOCK_R, BLOCK_D, BLOCK_N,
    )
    out = acc / tl.where(total > 0, total, 1.0)[:, None]  # no context: 0 / 1
    offs_o = heads[:, None] * stride_oh + offs_d[None, :] * stride_od
    tl.store(out_ptr + seq * stride_os + offs_o, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def attend(
    q, visible, start, end, scale, table_ptr, stride_tm,
    k_ptr, stride_kn, stride_kb, stride_kd,
    v_ptr, stride_vn, stride_vb, stride_vd,
    B: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Attention of the rows q [BLOCK_R, BLOCK_D] to positions start … end - 1 of one sequence and KV head.

    Row r sees positions below visible[r], of which the first BLOCK_N must hold at least one. The pointers
    stand at the sequence's row of the table, and at the head. Returns fp32: acc [BLOCK_R, BLOCK_D], the sum
    of weights times V; total [BLOCK_R], the sum of weights; highest [BLOCK_R], the highest score: weights are
    2^(score - highest), with scores in units of ln 2. acc / total is the attention; without positions all
    are 0, 0 and -inf.
    """
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    highest = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for first in range(start, end, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        exists = position < end
        # subtle: masked, because the table may end here and what lies behind its last entry is no block id;
        # in 64 bits, because block · stride passes 2^31.
        block = tl.load(table_ptr + (position // B).to(tl.int64) * stride_tm, mask=exists, other=0)
        block, row = block.to(tl.int64)[:, None], (position % B).to(tl.int64)[:, None]
        # subtle: a weight of 0 doesn't undo a NaN, so what was never written must not be read.
        mask = exists[:, None] & (offs_d < D)[None, :]
        offs_k = block * stride_kn + row * stride_kb + offs_d[None, :] * stride_kd
        k = tl.load(k_ptr + offs_k, mask=mask, other=0.0).to(q.dtype)

        # subtle: "ieee", because fp32 would otherwise be multiplied in tf32, which has 10 bits of 23.
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)  # 1 / ln 2
        scores = tl.where(position[None, :] < visible[:, None], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)  # what earlier weights are worth, measured by the new highest
        total = total * shrink + tl.sum(weights, axis=1)
        offs_v = block * stride_vn + row * stride_vb + offs_d[None, :] * stride_vd
        v = tl.load(v_ptr + offs_v, mask=mask, other=0.0).to(q.dtype)
        acc = acc * shrink[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")
        highest = new_highest
    return acc, total, highest
