"""A decode step's small loops, compiled for the CPU by numba.

With one new token per sequence, PyTorch spends a third of a step and more on small operators and on gathering
scattered K/V into one piece. A loop reads K and V where they lie, once for all the query heads that share
them. It is what a GPU kernel does, in plain Python: a task is a sequence and a KV head. Matrix products
(`minipaged.linear`), prompts and float16 go to PyTorch, whose results these loops equal up to rounding.
bfloat16, which numba doesn't know, is seen as int16, widened to float32 when it is read and rounded when it
is stored. numba is optional, and without it nothing imports this module. Compiled code is kept in
`__pycache__`, so that only the first start waits for the compiler.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.extending import intrinsic, overload

from minipaged.batch import Batch
from minipaged.config import ModelConfig
from minipaged.operators import Operators
from minipaged.paged_attention import KVCache, paged_attention

DTYPES = {torch.float32: np.float32, torch.bfloat16: np.int16}  # as PyTorch and as the loops see a number
MAX_ROWS = 32  # one thread does the small operators; PyTorch's use all, so for many rows they are faster

f32 = np.float32
# fastmath: sums may be taken in any order, that is 8 or 16 terms at a time.
# forceinline: where these are called head sizes are known, so loops are unrolled: 2.5 times as fast.
INLINED = {"fastmath": True, "error_model": "numpy", "forceinline": True}
compiled = numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
inlined = numba.njit(**INLINED)


@inlined
def exp(x: float) -> float:
    """e^x for x >= -87 (less counts as -87), to about 3e-7 of it, in steps that the compiler can vectorise.

    x = n ln 2 + r with |r| <= ln 2 / 2: e^r is 8 terms of its series, and 2^n the exponent bits of a float32.
    """
    x = min(max(x, f32(-87)), f32(88))
    n = np.floor(x * f32(1 / math.log(2)) + f32(0.5))
    r = x - n * f32(math.log(2))
    series = f32(1 / 5040)
    for factorial in (720, 120, 24, 6, 2, 1, 1):
        series = series * r + f32(1 / factorial)
    return series * np.int32((np.int32(n) + 127) << 23).view(np.float32)


def widen(x: Any) -> Any:
    """A number as float32: itself, or the bfloat16 whose bits it is, which are a float32's upper half."""


def narrow(x: Any, array: Any) -> Any:
    """A float32 as what the array holds: itself, or the bits of the nearest bfloat16 (of two, the even
    one)."""


@overload(widen, jit_options=INLINED)
def _widen(x: Any) -> Any:
    def same(x: Any) -> Any:
        return x

    def shifted(x: Any) -> Any:
        return np.int32(np.int32(x) << 16).view(np.float32)

    return shifted if x == types.int16 else same


@overload(narrow, jit_options=INLINED)
def _narrow(x: Any, array: Any) -> Any:
    def same(x: Any, array: Any) -> Any:
        return x

    def rounded(x: Any, array: Any) -> Any:
        bits = np.float32(x).view(np.int32)
        return np.int16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)

    return rounded if array.dtype == types.int16 else same


@compiled
def _add_norm(x: Any, delta: Any, weight: Any, eps: float, out: Any) -> None:
    rows, width = x.shape
    for row in range(rows):
        total = f32(0)
        for i in range(width):
            x[row, i] = narrow(widen(x[row, i]) + widen(delta[row, i]), x)
            total += widen(x[row, i]) * widen(x[row, i])
        factor = f32(1) / math.sqrt(total / f32(width) + eps)
        for i in range(width):
            out[row, i] = narrow(widen(x[row, i]) * factor * widen(weight[i]), out)


@compiled
def _swish(gate: Any, up: Any) -> None:
    rows, width = gate.shape
    for row in range(rows):
        for i in range(width):
            x = widen(gate[row, i])
            gate[row, i] = narrow(x / (f32(1) + exp(-x)) * widen(up[row, i]), gate)


@inlined
def _rotate(x: Any, cos: Any, sin: Any, D: int) -> None:
    """RoPE of one head: turn each pair (x[i], x[i + D/2]) of x, [D], in place."""
    for i in range(D // 2):
        first, second = x[i], x[i + D // 2]
        x[i] = first * cos[i] - second * sin[i]
        x[i + D // 2] = second * cos[i] + first * sin[i]


@inlined
def _attend(
    q: Any, k_cache: Any, v_cache: Any, g: int, table: Any, context_len: int, D: int, R: int, out: Any
) -> None:
    """out = softmax(q Kᵀ / √D) V for the R query heads that share KV head g. q, out: [R, D] of float32."""
    B = k_cache.shape[1]
    weights = np.empty((R, context_len), f32)
    for t in range(context_len):
        block, offset = table[t // B], t % B
        for r in range(R):
            score = f32(0)
            for d in range(D):
                score += q[r, d] * widen(k_cache[block, offset, g, d])
            weights[r, t] = score * f32(D**-0.5)
    for r in range(R):
        largest, total = f32(-np.inf), f32(0)
        for t in range(context_len):
            largest = max(largest, weights[r, t])
        for t in range(context_len):
            weights[r, t] = exp(weights[r, t] - largest)
            total += weights[r, t]
        for t in range(context_len):
            weights[r, t] /= total
        for d in range(D):
            out[r, d] = 0
    for t in range(context_len):
        block, offset = table[t // B], t % B
        for r in range(R):
            weight = weights[r, t]
            for d in range(D):
                out[r, d] += weight * widen(v_cache[block, offset, g, d])


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer, which `numba.carray` makes an array of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def _take_number(typing_context: Any, counter: Any) -> Any:
    """Return the int64 at `counter` and add 1 to it, atomically, so that no two threads take the same."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", arguments[0], one, "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@cache
def _decode_kernel(head_dim: int, heads_per_group: int, dtype: torch.dtype) -> Any:
    """RoPE, storing and attention of one layer, for one new token per sequence: a C function of one argument,
    the address of `CompiledOperators.arguments`, that several threads may run."""
    D, R, number = head_dim, heads_per_group, DTYPES[dtype]

    @numba.cfunc(types.void(types.CPointer(types.int64)), fastmath=True, error_model="numpy", cache=True)
    def run(arguments: Any) -> None:
        _, layer, rows, S, L, N, B, G, M = numba.carray(arguments, 9)
        addresses = numba.carray(arguments, 18)[9:]
        qkv = numba.carray(_pointer(addresses[0]), (rows, G * R + 2 * G, D), number)
        k_cache = numba.carray(_pointer(addresses[1]), (L, N, B, G, D), number)[layer]
        v_cache = numba.carray(_pointer(addresses[2]), (L, N, B, G, D), number)[layer]
        slot_mapping = numba.carray(_pointer(addresses[3]), (S,), np.int64)
        block_tables = numba.carray(_pointer(addresses[4]), (S, M), np.int64)
        context_lens = numba.carray(_pointer(addresses[5]), (S,), np.int64)
        cos = numba.carray(_pointer(addresses[6]), (rows, D // 2), f32)
        sin = numba.carray(_pointer(addresses[7]), (rows, D // 2), f32)
        out = numba.carray(_pointer(addresses[8]), (rows, G, R, D), number)
        q, k, context = np.empty((R, D), f32), np.empty(D, f32), np.empty((R, D), f32)
        task = _take_number(arguments)
        while task < S * G:  # a task reads no K and V of this step but those that it has stored itself
            s, g = task // G, task % G
            for r in range(R):
                for d in range(D):
                    q[r, d] = widen(qkv[s, g * R + r, d])
                _rotate(q[r], cos[s], sin[s], D)
            for d in range(D):
                k[d] = widen(qkv[s, G * R + g, d])
            _rotate(k, cos[s], sin[s], D)
            block, offset = slot_mapping[s] // B, slot_mapping[s] % B
            for d in range(D):
                k_cache[block, offset, g, d] = narrow(k[d], k_cache)
                v_cache[block, offset, g, d] = qkv[s, G * R + G + g, d]
            _attend(q, k_cache, v_cache, g, block_tables[s], context_lens[s], D, R, context)
            for r in range(R):
                for d in range(D):
                    out[s, g, r, d] = narrow(context[r, d], out)
            task = _take_number(arguments)

    return run


def _find_parallel() -> Any:
    """OpenMP's "let n threads run this function", in the library that PyTorch runs on: its threads stand
    ready, and a second set would fight them for the cores. OSError or AttributeError where there is none."""
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    parallel = torch_cpu.GOMP_parallel  # searched for in the libraries that libtorch_cpu needs, too
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


run_in_threads = _find_parallel()


def _seen(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same memory as the loops see it."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


class CompiledOperators(Operators):
    """The operators of a step of decodes, one loop each. Results are good until the next call."""

    def __init__(
        self,
        config: ModelConfig,
        batch: Batch,
        angles: torch.Tensor,
        kv_cache: KVCache,
        attention: Callable[..., torch.Tensor],
    ) -> None:
        rows, S = len(angles), len(batch.context_lens)
        self.eps = f32(config.rms_norm_eps)
        dtype = kv_cache.k.dtype
        self.normed = torch.empty(rows, config.hidden_size, dtype=dtype)
        self.context = torch.zeros(rows, config.num_heads * config.head_dim, dtype=dtype)  # past T: stays 0
        self.kernel = _decode_kernel(config.head_dim, config.num_heads // config.num_kv_heads, dtype)
        self.num_threads = min(torch.get_num_threads(), S * config.num_kv_heads)
        # They are known to the kernel by address, so they must live as long as the step does.
        self.tensors = (
            kv_cache.k,
            kv_cache.v,
            batch.slot_mapping,
            batch.block_tables,
            batch.context_lens,
            angles.cos(),
            angles.sin(),
            self.context,
        )
        # The number of tasks taken, the layer, sizes, the address of q, k and v, and the others' addresses.
        sizes = (rows, S, *kv_cache.k.shape[:4], batch.block_tables.shape[1])
        addresses = (tensor.data_ptr() for tensor in self.tensors)
        self.arguments = np.array([0, 0, *sizes, 0, *addresses], np.int64)

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed = self.normed[: len(x)]
        _add_norm(_seen(x), _seen(delta), _seen(weight), self.eps, _seen(normed))
        return normed

    def attend(
        self, index: int, qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None
    ) -> torch.Tensor:
        self.arguments[:2] = 0, index
        self.arguments[9] = qkv.data_ptr()
        run_in_threads(self.kernel.address, self.arguments.ctypes.data, self.num_threads, 0)
        return self.context

    def swish(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        _swish(_seen(gate), _seen(up))
        return gate


def operators_for(
    config: ModelConfig,
    batch: Batch,
    angles: torch.Tensor,
    kv_cache: KVCache,
    attention: Callable[..., torch.Tensor],
) -> Operators:
    """The compiled operators for a step that they can do, and PyTorch's for any other: prompts, Qwen3's norm
    of q and k, other dtypes and devices, a cache or an attention of the reader's own."""
    covered = (
        attention is paged_attention
        and type(kv_cache) is KVCache
        and kv_cache.k.dtype in DTYPES
        and kv_cache.k.device.type == "cpu"
        and not config.qk_norm
        and len(batch.token_ids) <= MAX_ROWS
        and bool((batch.query_start_loc.diff() == 1).all())
        and _is_in_bounds(batch, kv_cache)
    )
    return (CompiledOperators if covered else Operators)(config, batch, angles, kv_cache, attention)


def _is_in_bounds(batch: Batch, kv_cache: KVCache) -> bool:
    """Whether every slot and block lies in the pool. A compiled loop doesn't notice; PyTorch says what is
    wrong."""
    _, N, B, _, _ = kv_cache.k.shape
    slots, tables, contexts = batch.slot_mapping, batch.block_tables, batch.context_lens
    return (
        0 <= int(slots.min()) <= int(slots.max()) < N * B
        and 0 <= int(tables.min()) <= int(tables.max()) < N
        and 0 < int(contexts.min()) <= int(contexts.max()) <= tables.shape[1] * B
    )
