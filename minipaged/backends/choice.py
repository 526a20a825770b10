"""Which backend serves attention, and which the small operators between the matrix products.

The engine has two seams for this. `parts.kv_cache` and `parts.paged_attention` store K and V and attend:
"torch" leaves them as they are, "triton" puts kernels there. A model's `operators_for` makes each step's
operators: "numba" has them, attention included, as loops compiled for a CPU. "auto" takes what is fastest on
the device at hand and has been installed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minipaged.backends.triton import with_kernels
from minipaged.config import ModelConfig
from minipaged.kernels import triton_status
from minipaged.operators import Operators
from minipaged.parts import KERNELS, Parts

WORTH_COMPILING = 256  # the hidden size below which a step is over sooner than numba is imported (0.3 s)


def with_attention_backend(parts: Parts, name: str, device: torch.device) -> Parts:
    """The parts with the `kv_cache` and `paged_attention` of the backend `name` on that device.

    "auto" goes by the parts: a reader's own kernels are run, and so is a reader's own PyTorch attention or
    cache; with neither it is "triton" on a GPU and "torch" elsewhere. Raises ValueError for "triton" where
    its kernels can't run.
    """
    if name == "auto":
        name = _choose(parts, device)
    return with_kernels(parts, device) if name == "triton" else parts


def _choose(parts: Parts, device: torch.device) -> str:
    if any(getattr(parts, kernel) for kernel in KERNELS):
        return "triton"
    package = Parts()
    is_own = (parts.kv_cache, parts.paged_attention) == (package.kv_cache, package.paged_attention)
    compiles = device.type == "cuda" and triton_status().installed and not triton_status().interpret
    return "triton" if is_own and compiles else "torch"


def find_operators(
    backend: str, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Callable[..., Operators]:
    """What makes the operators of a step: `Operators`, or a function that takes compiled ones where it can.

    "numba" asks for these, and raises ValueError where numba is missing; "auto" takes them if they are there,
    for a model that they were made for: float32 or bfloat16, on a CPU, not tiny.
    """
    known = dtype in (torch.float32, torch.bfloat16) and device.type == "cpu"
    made_for = known and config.hidden_size >= WORTH_COMPILING
    if backend in ("torch", "triton") or (backend == "auto" and not made_for):
        return Operators
    try:
        from minipaged.backends.numba_loops import operators_for
    except (ImportError, OSError, AttributeError) as error:  # no numba, or a PyTorch without GNU's OpenMP
        if backend == "auto":
            return Operators
        raise ValueError(
            f"attention_backend='numba' needs numba (pip install 'minipaged[fast]') and PyTorch's build for "
            f"Linux: {error}"
        ) from None
    return operators_for
