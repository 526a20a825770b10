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

from minipaged import paged_attention as in_torch
from minipaged.operators import Operators
from minipaged.paged_attention import AttentionGroup

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
def _rotate(x: Any, cos: Any, sin: Any, out: Any) -> None:
    T, heads, D = x.shape
    half = D // 2
    for t in range(T):
        for h in range(heads):
            for d in range(half):
                first, second = x[t, h, d], x[t, h, d + half]
                out[t, h, d] = first * cos[t, 0, d] - second * sin[t, 0, d]
                out[t, h, d + half] = second * cos[t, 0, d] + first * sin[t, 0, d]


@compiled
def _swish(gate: Any, up: Any) -> None:
    T, width = gate.shape
    for t in range(T):
        for d in range(width):
            x = gate[t, d]
            gate[t, d] = x / (f32(1) + exp(-x)) * up[t, d]


class CompiledOperators(Operators):
    """`Operators` as one loop each, where there are few rows; in PyTorch where there are many."""

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        if len(x) > MAX_ROWS:
            return super().add_norm(x, delta, weight, eps)
        out = torch.empty_like(x)
        _add_norm(x.numpy(), delta.numpy(), weight.numpy(), eps, out.numpy())
        return out

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if len(x) > MAX_ROWS:
            return super().rotate(x, cos, sin)
        out = torch.empty(x.shape)
        _rotate(x.numpy(), cos.numpy(), sin.numpy(), out.numpy())
        return out

    def swish(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if len(gate) > MAX_ROWS:
            return super().swish(gate, up)
        _swish(gate.numpy(), up.numpy())
        return gate


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
    """Attention of one new token per sequence, as a C function of one argument that several threads may run.

    Sizes that are known when it is compiled make its inner loops 2.5 times as fast as sizes that come later.
    """
    D, R = head_dim, heads_per_group

    @compiled
    def attend(
        q: Any, k_cache: Any, v_cache: Any, block_table: Any, context_len: int, g: int, weights: Any, out: Any
    ) -> None:
        """The R heads of one sequence's q and out, [H, D], that share KV head g. weights: [R, context_len]."""
        B = k_cache.shape[1]
        for t in range(context_len):
            block, offset = block_table[t // B], t % B
            for r in range(R):
                score = f32(0)
                for d in range(D):
                    score += q[g * R + r, d] * k_cache[block, offset, g, d]
                weights[r, t] = score
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
                out[g * R + r, d] = 0
        for t in range(context_len):
            block, offset = block_table[t // B], t % B
            for r in range(R):
                weight = weights[r, t]
                for d in range(D):
                    out[g * R + r, d] += weight * v_cache[block, offset, g, d]

    @numba.cfunc(types.void(types.CPointer(types.int64)), cache=True)
    def run(arguments: Any) -> None:
        """Take tasks, one sequence and KV head each, until there are none. arguments: see `paged_attention`."""
        _, S, G, N, B, M = numba.carray(arguments, 6)
        addresses = numba.carray(arguments, 12)[6:]
        q = numba.carray(_pointer(addresses[0]), (S, G * R, D), f32)
        k_cache = numba.carray(_pointer(addresses[1]), (N, B, G, D), f32)
        v_cache = numba.carray(_pointer(addresses[2]), (N, B, G, D), f32)
        block_tables = numba.carray(_pointer(addresses[3]), (S, M), np.int64)
        context_lens = numba.carray(_pointer(addresses[4]), (S,), np.int64)
        out = numba.carray(_pointer(addresses[5]), (S, G * R, D), f32)
        weights = np.empty((R, context_lens.max()), f32)
        task = _take_number(arguments)
        while task < S * G:
            s = task // G
            attend(q[s], k_cache, v_cache, block_tables[s], context_lens[s], task % G, weights, out[s])
            task = _take_number(arguments)

    return run


@cache
def _parallel() -> Any:
    """OpenMP's "let n threads run this function", from the library that PyTorch runs on: its threads stand
    ready, and a second set would fight them for the cores. None where PyTorch has no such library."""
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    function = torch_cpu.GOMP_parallel  # found in what libtorch_cpu is linked with
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    plan: list[AttentionGroup] | None = None,
) -> torch.Tensor:
    """`minipaged.paged_attention.paged_attention`: same arguments, same result up to rounding.

    A step of decodes, one new token for every sequence, is computed here; any other by PyTorch.
    """
    tables = (block_tables, context_lens, query_start_loc)
    if plan is None:
        plan = in_torch.plan_attention(*tables, k_cache)
    S = len(context_lens)
    # S rows, and S sequences that have at least one: they have one each.
    is_decode = len(q) == S == sum(group.num_seqs for group in plan)
    covered = all(x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous() for x in (k_cache, v_cache))
    if not (is_decode and covered and q.dtype == torch.float32):
        return in_torch.paged_attention(q, k_cache, v_cache, *tables, scale, plan=plan)
    q = q * scale  # [S, H, D], one piece of memory even if q was a part of one
    N, B, G, D = k_cache.shape
    out = torch.empty(q.shape)
    tensors = (q, k_cache, v_cache, block_tables, context_lens, out)
    sizes = (0, S, G, N, B, block_tables.shape[1])  # the first counts the tasks taken
    arguments = np.array([*sizes, *(x.data_ptr() for x in tensors)], np.int64)
    kernel = _decode_kernel(D, q.shape[1] // G)
    threads = min(torch.get_num_threads(), S * G)
    _parallel()(kernel.address, arguments.ctypes.data, threads, 0)
    return out
