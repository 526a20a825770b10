"""What a kernel demands of its arguments, checked before it is launched: each mistake raises ValueError.

A kernel knows only pointers: with a wrong shape it reads and writes somewhere else. Shapes, dtypes and
devices are checked always. Values (slots, block ids, lengths) are checked on the CPU only: on a GPU, looking
at them would stop the queue of kernels. The kernels and their twins share these checks. Chapters 11 and 12.
"""

from __future__ import annotations

from torch import Tensor

from minipaged.kernels import triton_status

MAX_HEAD_DIM = 256  # a tile of wider rows would not fit into a GPU's shared memory


def check_runs_here(name: str, tensor: Tensor) -> None:
    """Raise ValueError if the kernel would be compiled for a GPU, and its tensors are not there."""
    if tensor.device.type == "cpu" and not triton_status().interpret:
        raise ValueError(
            f"{name} got CPU tensors but compiles for the GPU: move them there, or use {name}_torch"
        )


def check_store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Raise ValueError, with what was given and what was expected, unless the arguments fit `store_kv`."""
    if k.dim() != 3 or v.shape != k.shape:
        raise ValueError(f"k and v must both be [T, G, D]: got {list(k.shape)} and {list(v.shape)}")
    if k_cache.dim() != 4 or v_cache.shape != k_cache.shape or k_cache.shape[2:] != k.shape[1:]:
        expected = ", ".join(map(str, k.shape[1:]))
        raise ValueError(
            f"k_cache and v_cache must both be [N, B, {expected}], as k is [T, {expected}]: "
            f"got {list(k_cache.shape)} and {list(v_cache.shape)}"
        )
    _check_integers("slot_mapping", slot_mapping, len(k), "token")
    _check_same("k, v and the caches", "dtype", k, v, k_cache, v_cache)
    _check_same("k, v, the caches and slot_mapping", "device", k, v, k_cache, v_cache, slot_mapping)
    if slot_mapping.device.type == "cpu":
        num_slots = k_cache.shape[0] * k_cache.shape[1]
        outside = slot_mapping[(slot_mapping < -1) | (slot_mapping >= num_slots)]
        if len(outside):
            raise ValueError(f"slots must be -1 (padding) or below {num_slots}: got {outside.tolist()}")


def check_paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
) -> None:
    """Raise ValueError, with what was given and what was expected, unless the arguments fit
    `paged_decode`."""
    if q.dim() != 3 or len(q) != len(context_lens):
        raise ValueError(
            f"q must be [S, H, D], one row for each of the {len(context_lens)} context_lens: "
            f"got {list(q.shape)}"
        )
    _check_attention(q, k_cache, v_cache, block_tables, context_lens)


def check_paged_prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor,
    query_start_loc: Tensor,
) -> None:
    """Raise ValueError, with what was given and what was expected, unless the arguments fit
    `paged_prefill`."""
    if q.dim() != 3:
        raise ValueError(f"q must be [T, H, D]: got {list(q.shape)}")
    _check_integers("query_start_loc", query_start_loc, len(context_lens) + 1, "sequence, and the end")
    _check_same("q and query_start_loc", "device", q, query_start_loc)
    _check_attention(q, k_cache, v_cache, block_tables, context_lens)
    if q.device.type == "cpu":
        query_lens = query_start_loc.diff()
        if (query_lens < 0).any() or query_start_loc[0] < 0 or query_start_loc[-1] > len(q):
            raise ValueError(
                f"query_start_loc must rise from 0 to at most {len(q)}, the rows of q: "
                f"got {query_start_loc.tolist()}"
            )
        if ((query_lens > context_lens) & (context_lens > 0)).any():
            raise ValueError(
                f"a context holds its queries, but query lengths are {query_lens.tolist()}, "
                f"contexts {context_lens.tolist()}"
            )


def check_copy_blocks(k_cache: Tensor, v_cache: Tensor, copies: Tensor) -> None:
    """Raise ValueError, with what was given and what was expected, unless the arguments fit `copy_blocks`."""
    if k_cache.dim() != 5 or v_cache.shape != k_cache.shape:
        raise ValueError(
            f"k_cache and v_cache must both be [L, N, B, G, D]: "
            f"got {list(k_cache.shape)} and {list(v_cache.shape)}"
        )
    if copies.dim() != 2 or copies.shape[1] != 2 or copies.is_floating_point():
        raise ValueError(
            f"copies must be [C, 2] integers, (src, dst) each: got {copies.dtype} of {list(copies.shape)}"
        )
    _check_same("the caches", "dtype", k_cache, v_cache)
    _check_same("the caches and copies", "device", k_cache, v_cache, copies)
    if copies.device.type == "cpu":
        num_blocks = k_cache.shape[1]
        outside = copies[(copies < 0) | (copies >= num_blocks)]
        if len(outside):
            raise ValueError(f"block ids must be 0 to {num_blocks - 1}: got {outside.tolist()}")
        sources, destinations = copies.T.tolist()
        if len(set(destinations)) < len(destinations) or set(destinations) & set(sources):
            raise ValueError(
                f"a destination is nobody else's destination or source: got {copies.tolist()}"
            )


def _check_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor
) -> None:
    _, H, D = q.shape
    if k_cache.dim() != 4 or v_cache.shape != k_cache.shape or k_cache.shape[3] != D:
        raise ValueError(
            f"k_cache and v_cache must both be [N, B, G, {D}], as q's rows are {D} wide: "
            f"got {list(k_cache.shape)} and {list(v_cache.shape)}"
        )
    B, G = k_cache.shape[1:3]
    if G == 0 or H % G:
        raise ValueError(f"the {H} query heads must be a multiple of the KV heads: got {G} of those")
    if D > MAX_HEAD_DIM:
        raise ValueError(f"head sizes go up to {MAX_HEAD_DIM}: got {D}")
    _check_integers("context_lens", context_lens, len(context_lens), "sequence")
    if block_tables.dim() != 2 or len(block_tables) != len(context_lens) or block_tables.is_floating_point():
        raise ValueError(
            f"block_tables must be [{len(context_lens)}, M] integers, a row for each sequence: "
            f"got {block_tables.dtype} of {list(block_tables.shape)}"
        )
    _check_same("q and the caches", "dtype", q, k_cache, v_cache)
    tensors = (q, k_cache, v_cache, block_tables, context_lens)
    _check_same("q, the caches, block_tables and context_lens", "device", *tensors)
    if q.device.type == "cpu":
        _check_tables(block_tables, context_lens, k_cache.shape[0], B)


def _check_tables(block_tables: Tensor, context_lens: Tensor, num_blocks: int, block_size: int) -> None:
    most = block_tables.shape[1] * block_size
    outside = context_lens[(context_lens < 0) | (context_lens > most)]
    if len(outside):
        raise ValueError(
            f"context_lens must be 0 to {most}, which {block_tables.shape[1]} blocks of {block_size} hold: "
            f"got {outside.tolist()}"
        )
    for seq, context_len in enumerate(context_lens.tolist()):
        used = block_tables[seq, : -(-context_len // block_size)]
        if ((used < 0) | (used >= num_blocks)).any():
            raise ValueError(
                f"block ids must be 0 to {num_blocks - 1}: sequence {seq} of {context_len} tokens has "
                f"{used.tolist()}"
            )


def _check_integers(name: str, tensor: Tensor, length: int, each: str) -> None:
    if tensor.shape != (length,) or tensor.is_floating_point():
        raise ValueError(
            f"{name} must hold {length} integers, one for each {each}: "
            f"got {tensor.dtype} of {list(tensor.shape)}"
        )


def _check_same(whose: str, what: str, *tensors: Tensor) -> None:
    values = {str(getattr(tensor, what)) for tensor in tensors}
    if len(values) > 1:
        raise ValueError(f"{whose} must have one {what}: got {', '.join(sorted(values))}")
