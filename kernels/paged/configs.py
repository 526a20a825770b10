"""The kernels as they ship: what a typical launch of each compiles to, ready for ahead-of-time compilation.

A compile report is worth something only if it compiles what really runs. So nothing is written down twice:
the wrappers are called on tensors that have shapes but no memory (PyTorch's device "meta"), what they would
launch is recorded, and its arguments are specialised as Triton's own JIT does it.

`minipaged.kernels.compile_report` compiles them. An interpreter gets other launches, and has no kernels that
could be compiled: there, importing this raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.paged import triton_decode, triton_fast

if triton_status().interpret:
    raise RuntimeError("only compiled kernels have configurations: import them with TRITON_INTERPRET=0")

MODULES: tuple[ModuleType, ...] = (triton_decode, triton_fast)
TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32",
         torch.int64: "i64"}
# Layers, sequences, heads, KV heads, blocks, table width, block size, splits of a context.
L, S, H, G, N, M, B, SPLITS = 32, 64, 32, 8, 4096, 256, 16, 8
KINDS = ((torch.bfloat16, 64), (torch.bfloat16, 80), (torch.bfloat16, 128), (torch.bfloat16, 256),
         (torch.float16, 128), (torch.float32, 64), (torch.float32, 128))


@dataclass(frozen=True)
class Shipped:
    """One kernel with everything that decides what it compiles to.

    name: what is called and with what, as "store_kv bf16 D128". signature: each argument's type in Triton's
    words ("*bf16", "i32", "fp32" or "constexpr"), in the kernel's order. constexprs: the values of those.
    aligned: the arguments that are known to be multiples of 16, in bytes for pointers.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class _Recorder:
    """Stands in for a kernel: what would be launched is added to `launches`, and nothing runs."""

    kernel: Any
    launches: list[tuple[Any, dict[str, Any]]]

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.launches.append((self.kernel, dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs))

        return launch


@contextmanager
def _recorded() -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """The launches made inside, as (kernel, arguments by name)."""
    launches: list[tuple[Any, dict[str, Any]]] = []
    with ExitStack() as stack:
        for module in MODULES:
            for name, kernel in list(vars(module).items()):
                if name.endswith("_kernel"):
                    stack.enter_context(patch.object(module, name, _Recorder(kernel, launches)))
        yield launches


def specialise(name: str, kernel: Any, arguments: dict[str, Any]) -> Shipped:
    """What Triton's JIT would compile for these arguments: a 1 is a constant, and multiples of 16 are known.

    PyTorch's allocations begin at multiples of 16 bytes, so pointers count as such.
    """
    options = {key: arguments.pop(key, default) for key, default in (("num_warps", 4), ("num_stages", 3))}
    signature, constexprs, aligned = {}, {}, []
    constants = {param.name for param in kernel.params if param.is_constexpr}
    for arg in kernel.arg_names:
        value = arguments[arg]
        if arg in constants or (isinstance(value, int) and value == 1):
            signature[arg], constexprs[arg] = "constexpr", value
            continue
        signature[arg] = _type_of(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            aligned.append(arg)
    return Shipped(name, kernel, signature, constexprs, tuple(aligned), **options)


def _type_of(value: Tensor | float) -> str:
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _calls(dtype: torch.dtype, D: int) -> dict[str, Callable[[], object]]:
    """The wrappers' names, and a typical call of each, for one dtype and head size."""

    def new(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    pool = new(L, N, B, G, D)
    cache, q, kv = pool[0], new(S, H, D), new(S, G, D)
    slots, starts, copies = (new(*shape, dtype=torch.int64) for shape in ((S,), (S + 1,), (S, 2)))
    tables, scale = (new(S, M, dtype=torch.int64), slots), D**-0.5
    return {
        "store_kv": lambda: triton_decode.store_kv(kv, kv, cache, cache, slots),
        "paged_decode": lambda: triton_decode.paged_decode(q, cache, cache, *tables, scale),
        "paged_decode_split": lambda: triton_fast.paged_decode_split(q, cache, cache, *tables, scale, SPLITS),
        "paged_prefill": lambda: triton_fast.paged_prefill(q, cache, cache, *tables, starts, scale, B),
        "copy_blocks": lambda: triton_fast.copy_blocks(pool, pool, copies),
    }


def _ship() -> Iterator[Shipped]:
    for dtype, D in KINDS:
        for name, call in _calls(dtype, D).items():
            with _recorded() as launches:
                call()
            for kernel, arguments in launches:
                yield specialise(f"{name} {TYPES[dtype]} D{D}", kernel, arguments)


SHIPPED: tuple[Shipped, ...] = tuple(_ship())
