"""The kernels' PyTorch twins: same signatures, same checks, same results, on any device and without triton.

Every kernel is tested against its twin here, and where triton is missing the twin takes its place. Apart from
the kernels because a file that imports triton can't be imported on macOS or Windows.

Left out: speed. Chapters 11 and 12.
"""

from __future__ import annotations

from torch import Tensor


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


def check_store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Raise ValueError, with what was given and what was expected, unless the arguments fit `store_kv`.

    Slot values are checked on the CPU only: on a GPU, looking at them would stop the queue of kernels.
    """
    if k.dim() != 3 or v.shape != k.shape:
        raise ValueError(f"k and v must both be [T, G, D]: got {list(k.shape)} and {list(v.shape)}")
    if k_cache.dim() != 4 or v_cache.shape != k_cache.shape or k_cache.shape[2:] != k.shape[1:]:
        expected = ", ".join(map(str, k.shape[1:]))
        raise ValueError(
            f"k_cache and v_cache must both be [N, B, {expected}], as k is [T, {expected}]: "
            f"got {list(k_cache.shape)} and {list(v_cache.shape)}"
        )
    if slot_mapping.shape != k.shape[:1] or slot_mapping.is_floating_point():
        raise ValueError(
            f"slot_mapping must hold {k.shape[0]} integers, one for each token: "
            f"got {slot_mapping.dtype} of {list(slot_mapping.shape)}"
        )
    _check_same("dtype", {str(x.dtype) for x in (k, v, k_cache, v_cache)})
    _check_same("device", {str(x.device) for x in (k, v, k_cache, v_cache, slot_mapping)})
    if slot_mapping.device.type == "cpu":
        _check_slots(slot_mapping, k_cache.shape[0] * k_cache.shape[1])


def _check_same(what: str, values: set[str]) -> None:
    if len(values) > 1:
        raise ValueError(f"k, v and the caches must have one {what}: got {', '.join(sorted(values))}")


def _check_slots(slot_mapping: Tensor, num_slots: int) -> None:
    outside = slot_mapping[(slot_mapping < -1) | (slot_mapping >= num_slots)]
    if len(outside):
        raise ValueError(f"slots must be -1 (padding) or below {num_slots}: got {outside.tolist()}")
