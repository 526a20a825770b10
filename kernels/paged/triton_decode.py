"""The first Triton kernel: new K and V rows scattered into the paged cache.

A step computes K and V for T tokens in one contiguous batch; the cache wants each token's row in its slot.
One program moves one token: it reads the token's slot, then copies G · D elements of K and of V. Nothing is
computed, so the cost is the bytes moved: 4 · T · G · D elements, half of them read and half written.

Left out: quantised caches. Chapter 11.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.paged.torch_twins import check_store_kv


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
    if k.device.type == "cpu" and not triton_status().interpret:
        raise ValueError(
            "store_kv got CPU tensors but compiles for the GPU: move them there, or use store_kv_torch"
        )
    T, G, D = k.shape
    if T == 0:
        return
    _store_kv_kernel[(T,)](
        k, v, k_cache, v_cache, slot_mapping, k_cache.shape[1], G, D,
        *k.stride(), *v.stride(), *k_cache.stride(), *v_cache.stride(), slot_mapping.stride(0),
        BLOCK_G=triton.next_power_of_2(G), BLOCK_D=triton.next_power_of_2(D),
    )  # fmt: skip


@triton.jit
def _store_kv_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slot_mapping_ptr, B, G, D,
    stride_kt, stride_kg, stride_kd,
    stride_vt, stride_vg, stride_vd,
    stride_kcn, stride_kcb, stride_kcg, stride_kcd,
    stride_vcn, stride_vcb, stride_vcg, stride_vcd,
    stride_st,
    BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
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
