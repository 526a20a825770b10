"""Kernels that a compile report must object to, each for one reason, and their correct counterparts."""

from __future__ import annotations

from dataclasses import replace

import triton
import triton.language as tl

from minipaged.kernels.paged.configs import Shipped

NUMBER = 3  # a global that is no tl.constexpr: the interpreter reads it, the compiler doesn't


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def reads_a_global(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr, NUMBER)


@triton.jit
def keeps_too_much(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.arange(0, BLOCK), x / tl.sum(x))  # all of x is needed again after its sum


@triton.jit
def shares_too_much(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for i in range(n):
        x = tl.load(x_ptr + i.to(tl.int64) * BLOCK + offs)
        total = tl.dot(x, tl.trans(x), total)
    tl.store(out_ptr + offs, total)


@triton.jit
def offset_of_64_bits(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    block = tl.load(table_ptr + tl.program_id(0)).to(tl.int64)
    tl.store(out_ptr, tl.load(x_ptr + block * stride))


@triton.jit
def offset_of_32_bits(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    block = tl.load(table_ptr + tl.program_id(0))
    tl.store(out_ptr, tl.load(x_ptr + block * stride))  # wrong


@triton.jit
def offset_widened_too_late(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    block = tl.load(table_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    rows = (block * stride).to(tl.int64)  # wrong
    offs = rows[:, None] + tl.arange(0, BLOCK)[None, :]
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def offset_by_a_constant_stride(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    block = tl.load(table_ptr + tl.program_id(0))
    tl.store(out_ptr, tl.load(x_ptr + block * BLOCK))  # wrong


@triton.jit
def offset_of_a_program(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * stride  # wrong
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + row))


@triton.jit
def offset_carried_by_a_loop(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64)
    bounded = tl.program_id(0)
    total = 0.0
    for i in range(BLOCK):
        total += tl.load(x_ptr + offset) + tl.load(table_ptr + bounded)
        offset += tl.load(table_ptr + i) * stride  # wrong
        bounded += BLOCK
    tl.store(out_ptr, total)


@triton.jit
def offset_carried_by_a_while_loop(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    block = tl.load(table_ptr)
    offset = block.to(tl.int64)
    while block > 0:
        offset += block * stride  # wrong
        block = tl.load(table_ptr + block)
        tl.store(out_ptr + offset, block)


@triton.jit
def offset_from_a_branch(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    block = tl.load(table_ptr + tl.program_id(0))
    offset = tl.program_id(0).to(tl.int64)
    if block > 0:
        offset = (block * stride).to(tl.int64)  # wrong
    tl.store(out_ptr + offset, 1.0)


@triton.jit
def row_of(block, stride):
    return block * stride  # wrong


@triton.jit
def offset_from_a_function(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    tl.store(out_ptr + row_of(tl.load(table_ptr), stride), 1.0)


@triton.jit
def table_entry_of_a_position(x_ptr, table_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    start = tl.program_id(0) * tl.load(table_ptr)  # a position: far below 2^31, and divided before it is used
    entry = (start + tl.arange(0, BLOCK)) // 16
    block = tl.load(table_ptr + entry).to(tl.int64)
    mask = (block * stride > 0) & (tl.load(table_ptr) * stride > 0)  # as a condition a product is no offset
    tl.store(out_ptr + block, 1.0, mask=mask)


def _shipped(kernel, types, block: int, num_warps: int = 4, num_stages: int = 3, aligned=()) -> Shipped:
    signature = dict(zip(kernel.arg_names, [*types, "constexpr"], strict=True))
    return Shipped(kernel.__name__, kernel, signature, {"BLOCK": block}, aligned, num_warps, num_stages)


VECTOR, TABLE = ("*fp32", "*fp32", "i32"), ("*fp32", "*i32", "*fp32", "i32")
SHIPPED = (
    _shipped(copy, VECTOR, 1024, aligned=("x_ptr", "out_ptr", "n")),
    _shipped(reads_a_global, VECTOR, 16),
    replace(_shipped(copy, VECTOR, 1024), name="copy_unaligned"),
    _shipped(keeps_too_much, VECTOR, 8192, num_warps=1, aligned=("x_ptr", "out_ptr")),
    _shipped(shares_too_much, ("*fp16", "*fp32", "i32"), 128, 8, num_stages=8, aligned=("x_ptr", "out_ptr")),
    *(
        _shipped(kernel, TABLE, 16)
        for name, kernel in list(globals().items())
        if name.startswith(("offset_", "table_"))
    ),
)
