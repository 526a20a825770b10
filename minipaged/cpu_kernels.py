"""A decode step's small loops, compiled for the CPU by numba.

Why it exists: with one new token per sequence, PyTorch spends a third of a step on small operators and on
gathering scattered K/V into one piece. A loop reads K and V where they lie, once, and keeps what it needs in
the CPU's caches. It is what a GPU kernel does, in plain Python: one task per sequence and KV head, and the
H / G query heads that share the head together. numba turns it into vector instructions.
What it leaves out: matrix products (`minipaged.linear`), prompts, other dtypes than float32: for those the
PyTorch versions, whose results these equal up to rounding. numba is optional: without it nothing imports this
module. Compiled code is kept in `__pycache__`, so only the first start ever waits for the compiler.
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
from numba.extending import intrinsic

from minipaged.batch import Batch
from minipaged.config import ModelConfig
from minipaged.operators import Operators
from minipaged.paged_attention import KVCache, paged_attention

MAX_ROWS = 32  # one thread does the small operators; for more rows PyTorch's, which use all, are faster

f32 = np.float32
# fastmath: sums may be taken in any order, which is what lets them be taken 8 or 16 at a time.
compiled = numba.njit(fastmath=True, error_model="numpy", nogil=True, cache=True)


@compiled
def exp(x: float) -> float:
    """e^x for -87 <= x (less counts as -87), to about 3e-7 of it, in steps that the compiler can vectorise.

    x = n ln 2 + r with |r| <= ln 2 / 2: e^r is 8 terms of its series, 2^n the exponent's bits of a float32.
    """
    x = max(x, f32(-87))
    n = np.floor(x * f32(1 / math.log(2)) + f32(0.5))
    r = x - n * f32(math.log(2))
    series = f32(1 / 5040)
    for factorial in (720, 120, 24, 6, 2, 1, 1):
        series = series * r + f32(1 / factorial)
    return series * np.int32((np.int32(n) + 127) << 23).view(np.float32)


@compiled
def _add_norm(x: Any, delta: Any, weight: Any, eps: float, out: Any) -> None:
    T, width = x.shape
    for t in range(T):
        total = f32(0)
        for d in range(width):
            x[t, d] += delta[t, d]
            total += x[t, d] * x[t, d]
        factor = f32(1) / math.sqrt(total / f32(width) + f32(eps))
        for d in range(width):
            out[t, d] = x[t, d] * factor * weight[d]


@compiled
def _swish(gate: Any, up: Any) -> None:
    T, width = gate.shape
    for t in range(T):
        for d in range(width):
            x = gate[t, d]
            gate[t, d] = x / (f32(1) + exp(-x)) * up[t, d]


@intrinsic  # type: ignore[misc]
def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer, which numba's `carray` makes an array of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic  # type: ignore[misc]
def _take_number(typing_context: Any, counter: Any) -> Any:
    """What an int64 in memory is, and make it one more: atomically, so that no two threads take the same."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", arguments[0], one, "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@cache
def _decode_kernel(head_dim: int, heads_per_group: int) -> Any:
    """One layer's attention of one new token per sequence, as a C function that several threads may run.

    Sizes that are known when it is compiled make its inner loops 2.5 times as fast as sizes that come later.
    """
    D, R, half = head_dim, heads_per_group, head_dim // 2

    @compiled
    def rotate(x: Any, cos: Any, sin: Any) -> None:
        """Turn each pair (x[i], x[i + D/2]) of x, [D], in place."""
        for d in range(half):
            first, second = x[d], x[d + half]
            x[d] = first * cos[d] - second * sin[d]
            x[d + half] = second * cos[d] + first * sin[d]

    @compiled
    def attend(q: Any, k_cache: Any, v_cache: Any, g: int, table: Any, context_len: int, out: Any) -> None:
        """q, out: [R, D], the query heads that share KV head g. Its K and V are read once for all of them."""
        B = k_cache.shape[1]
        weights = np.empty((R, context_len), f32)
        for t in range(context_len):
            block, offset = table[t // B], t % B
            for r in range(R):
                score = f32(0)
                for d in range(D):
                    score += q[r, d] * k_cache[block, offset, g, d]
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
                    out[r, d] += weight * v_cache[block, offset, g, d]

    @numba.cfunc(types.void(types.CPointer(types.int64)), cache=True)
    def run(arguments: Any) -> None:
        """Take tasks, a sequence and a KV head each, until there are none. arguments: see `CompiledOperators`.

        A task stores its own K and V before it reads them; it reads no other's.
        """
        _, layer, rows, S, L, N, B, G, M = numba.carray(arguments, 9)
        addresses = numba.carray(arguments, 18)[9:]
        qkv = numba.carray(_pointer(addresses[0]), (rows, G * R + 2 * G, D), f32)
        k_cache = numba.carray(_pointer(addresses[1]), (L, N, B, G, D), f32)[layer]
        v_cache = numba.carray(_pointer(addresses[2]), (L, N, B, G, D), f32)[layer]
        slot_mapping = numba.carray(_pointer(addresses[3]), (S,), np.int64)
        block_tables = numba.carray(_pointer(addresses[4]), (S, M), np.int64)
        context_lens = numba.carray(_pointer(addresses[5]), (S,), np.int64)
        cos = numba.carray(_pointer(addresses[6]), (rows, half), f32)
        sin = numba.carray(_pointer(addresses[7]), (rows, half), f32)
        out = numba.carray(_pointer(addresses[8]), (rows, G, R, D), f32)
        task = _take_number(arguments)
        while task < S * G:
            s, g = task // G, task % G
            q, k, v = qkv[s, g * R : (g + 1) * R], qkv[s, (G * R) + g], qkv[s, (G * R) + G + g]
            for r in range(R):
                rotate(q[r], cos[s], sin[s])
            rotate(k, cos[s], sin[s])
            block, offset = slot_mapping[s] // B, slot_mapping[s] % B
            for d in range(D):
                k_cache[block, offset, g, d] = k[d]
                v_cache[block, offset, g, d] = v[d]
            attend(q, k_cache, v_cache, g, block_tables[s], context_lens[s], out[s, g])
            task = _take_number(arguments)

    return run


@cache
def _openmp_parallel() -> Any:
    """OpenMP's "let n threads run this function", from the library that PyTorch runs on: its threads stand
    ready, and a second set would fight them for the cores."""
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    function = torch_cpu.GOMP_parallel  # of the library that libtorch_cpu is linked with
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


class CompiledOperators(Operators):
    """The operators of a step of decodes, each one loop."""

    def __init__(
        self,
        config: ModelConfig,
        batch: Batch,
        angles: torch.Tensor,
        kv_cache: KVCache,
        attention: Callable[..., torch.Tensor],
    ) -> None:
        self.eps = f32(config.rms_norm_eps)
        rows, S = len(angles), len(batch.context_lens)
        self.normed = torch.empty(rows, config.hidden_size)
        self.context = torch.zeros(rows, config.num_heads * config.head_dim)
        self.kernel = _decode_kernel(config.head_dim, config.num_heads // config.num_kv_heads)
        self.threads = min(torch.get_num_threads(), S * config.num_kv_heads)
        # Whatever stands here by its address must live as long as the step does.
        self.tensors = (
            kv_cache.k, kv_cache.v, batch.slot_mapping, batch.block_tables, batch.context_lens,
            angles.cos(), angles.sin(), self.context,
        )  # fmt: skip
        L, N, B, G, _ = kv_cache.k.shape
        sizes = (rows, S, L, N, B, G, batch.block_tables.shape[1])
        self.arguments = np.array([0, 0, *sizes, 0, *(tensor.data_ptr() for tensor in self.tensors)])

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        _add_norm(x.numpy(), delta.numpy(), weight.numpy(), self.eps, self.normed.numpy())
        return self.normed

    def attend(
        self, index: int, qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None
    ) -> torch.Tensor:
        self.arguments[:2] = 0, index  # no task is taken yet
        self.arguments[9] = qkv.data_ptr()
        _openmp_parallel()(self.kernel.address, self.arguments.ctypes.data, self.threads, 0)
        return self.context

    def swish(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        _swish(gate.numpy(), up.numpy())
        return gate


def operators_for(
    config: ModelConfig,
    batch: Batch,
    angles: torch.Tensor,
    kv_cache: KVCache,
    attention: Callable[..., torch.Tensor],
) -> Operators:
    """Compiled ones for a step that they can do, PyTorch's for any other, and for layers of a reader's own."""
    num_rows = len(batch.token_ids)
    is_decode = num_rows == len(batch.context_lens) <= MAX_ROWS
    is_own = attention is paged_attention and type(kv_cache) is KVCache
    kind = CompiledOperators if is_decode and is_own else Operators
    return kind(config, batch, angles, kv_cache, attention)
