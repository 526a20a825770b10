"""Chapter 11: the first Triton kernels.

You write seven kernels. Four are puzzles of a few lines, one idea each: a mask (task 1), strides (task 2), an
index that was read from memory (task 3), a softmax whose row does not fit (task 4). Then come the two that
the engine really uses: `store_kv`, which scatters new K and V into their slots (task 5), and `paged_decode`,
one new token's attention through its block table, in two steps: `attend`, the loop over a context (task 6),
and the kernel around it, which serves a whole group of query heads (task 7). Task 8 is a challenge.

The functions that launch kernels are given. Read one before you write its kernel: it says how many programs
run, and what they are told. A kernel gets a tensor as the pointer to its first element, and its strides as
numbers. A `tl.constexpr` in capitals is known when the kernel is compiled; BLOCK_… are sizes of tiles, powers
of two, so they may be larger than what they cover: mask that.

Dimension letters: T new tokens, S sequences, H query heads, G KV heads, R = H / G, D head size, N blocks,
B block size.

`minipaged check ch11` grades this file, `minipaged hint ch11` helps, and `minipaged demo --model tiny --use
exercises:ch11` serves with it. The kernels run on a GPU if there is one, and else in Triton's interpreter,
which is slow, with every load and store watched. Needs the package triton (Linux).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minipaged.kernels.paged.checks import check_paged_decode, check_runs_here, check_store_kv
from minipaged.kernels.paged.triton_decode import compute_dtypes, tile_sizes

ADD_BLOCK = 128  # elements that one program of `add` takes
SUM_BLOCK = 64  # columns that one step of `logsumexp_rows` takes


def add(x: Tensor, y: Tensor) -> Tensor:
    """Given: x + y, both [n], contiguous and of one dtype; n is at least 1.

    >>> add(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])).tolist()
    [11.0, 22.0, 33.0]
    """
    out = torch.full_like(x, float("nan"))  # so that one can see what was not written
    _add_kernel[(triton.cdiv(len(x), ADD_BLOCK),)](x, y, out, len(x), BLOCK=ADD_BLOCK)
    return out


@triton.jit
def _add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """One program: BLOCK neighbouring elements. Program 0 takes 0 … BLOCK - 1, program 1 the next ones.

    The last program may have more lanes than there are elements left. Those must load and store nothing.

    Example: n = 300 and BLOCK = 128: three programs, and the last one has 44 elements for its 128 lanes.
    """
    # Task 1 ★ add two vectors (5 points, about 5 minutes)
    # 1. The elements of this program: tl.program_id(0) and tl.arange(0, BLOCK).
    # 2. The mask: which of them exist?
    # 3. Load from x_ptr + offsets and from y_ptr + offsets, and store the sum; mask=… in all three.
    raise NotImplementedError("ch11_triton_decode, task 1: add two vectors")


def scale_rows(x: Tensor, factors: Tensor) -> Tensor:
    """Given: row i of x [M, N] times factors[i], as a new tensor. Any strides will do; one dtype.

    >>> scale_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([10.0, 100.0])).tolist()
    [[10.0, 20.0], [300.0, 400.0]]
    """
    M, N = x.shape
    out = torch.full((M, N), float("nan"), dtype=x.dtype, device=x.device)
    _scale_rows_kernel[(M,)](
        x, factors, out, N, *x.stride(), *factors.stride(), *out.stride(), BLOCK=triton.next_power_of_2(N)
    )
    return out


@triton.jit
def _scale_rows_kernel(
    x_ptr, factors_ptr, out_ptr, N,
    stride_xm, stride_xn, stride_fm, stride_om, stride_on,
    BLOCK: tl.constexpr,
):
    """One program: one row of x, all of its N elements at once; BLOCK is the power of two that holds them.

    Element [row, column] of a tensor lies at its pointer + row · (first stride) + column · (second stride).

    Example: x is the transpose of a contiguous [3, 5], so it is [5, 3] with strides 1 and 5. Its [4, 2] lies
    at x_ptr + 4 · 1 + 2 · 5.
    """
    # Task 2 ★ scale rows (10 points, about 10 minutes)
    # 1. Which row is this program's? Its factor is one number: a load without arange.
    # 2. The columns, and which of them exist.
    # 3. Load the row by x's strides, and store the product by out's.
    raise NotImplementedError("ch11_triton_decode, task 2: scale rows")


def gather_rows(table: Tensor, index: Tensor) -> Tensor:
    """Given: row index[i] of table [N, D], for every i, as a new tensor [T, D]; zeros where index[i] is -1.

    index: [T], int32 or int64. Any strides will do.

    >>> gather_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, -1, 1])).tolist()
    [[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]]
    """
    T, D = len(index), table.shape[1]
    out = torch.full((T, D), float("nan"), dtype=table.dtype, device=table.device)
    _gather_rows_kernel[(T,)](
        table, index, out, D, *table.stride(), *index.stride(), *out.stride(),
        BLOCK=triton.next_power_of_2(D),
    )
    return out


@triton.jit
def _gather_rows_kernel(
    table_ptr, index_ptr, out_ptr, D,
    stride_tn, stride_td, stride_it, stride_om, stride_od,
    BLOCK: tl.constexpr,
):
    """One program: one row of out, copied from the row of the table that the index names.

    Where the index is -1 the row of out is zeros, and nothing of the table is loaded. The number of the row
    must be brought to 64 bits, `.to(tl.int64)`, before it is multiplied by a stride: in a table of more than
    2^31 elements the product does not fit into 32.
    """
    # Task 3 ★ gather rows through an index (10 points, about 10 minutes)
    # 1. Load the row's number, one number, and bring it to 64 bits.
    # 2. Two masks: which columns exist, and of those, which are loaded from the table?
    # 3. Load with other=0.0: that is what a lane holds that the mask leaves out. Store the whole row.
    raise NotImplementedError("ch11_triton_decode, task 3: gather rows through an index")


def logsumexp_rows(x: Tensor) -> Tensor:
    """Given: log(Σ exp(x[i])) of every row of x [M, N] in fp32, N at least 1, as [M]. Any strides will do.

    >>> logsumexp_rows(torch.tensor([[0.0, 0.0], [1000.0, 1000.0]])).tolist()    # log 2, and 1000 + log 2
    [0.6931471824645996, 1000.693115234375]
    """
    M, N = x.shape
    out = torch.full((M,), float("nan"), device=x.device)
    _logsumexp_rows_kernel[(M,)](x, out, N, *x.stride(), BLOCK=SUM_BLOCK)
    return out


@triton.jit
def _logsumexp_rows_kernel(x_ptr, out_ptr, N, stride_xm, stride_xn, BLOCK: tl.constexpr):
    """One program: one row, BLOCK columns at a time, each loaded once. out is contiguous.

    What is kept from step to step are two numbers, as in chapter 5: the highest element so far, and the sum
    of exp(element - highest). A higher one makes the old sum too large, by a factor.

    Example: N = 150 and BLOCK = 64 takes three steps, the last one with 22 columns.
    """
    row = tl.program_id(0)
    # Scalars that a loop carries must have one type throughout: fp32 from the beginning.
    highest = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    # Task 4 ★★ a softmax's sum, tile by tile (15 points, about 15 minutes)
    # 1. for first in range(0, N, BLOCK): the columns of this step, and which of them exist.
    # 2. Load them. What must a lane hold that doesn't exist, so that it is never the highest and adds 0?
    # 3. The new highest: tl.maximum of two numbers, tl.max(x, axis=0) of a tile.
    # 4. The old total, times exp(old highest - new highest), and the new exps: tl.exp, tl.sum(…, axis=0).
    # 5. After the loop: store highest + log(total).
    raise NotImplementedError("ch11_triton_decode, task 4: a softmax's sum, tile by tile")


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Given: write new K and V rows into their slots of a paged cache, in place.

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
    """One program: one token, G · D elements of K and as many of V, to the row of its slot.

    token is this program's number; slot = slot_mapping[token] lies in block slot // B, row slot % B. A slot
    of -1 is padding: nothing is loaded or stored. A tile is [BLOCK_G, BLOCK_D], heads by elements: make the
    heads a column, `[:, None]`, and the elements a row, `[None, :]`. All four tensors have strides of their
    own. Whatever is multiplied by a stride is of 64 bits.

    Example: B = 4, slot 6: row 2 of block 1, so element d of head g goes to
    k_cache_ptr + 1 · stride_kcn + 2 · stride_kcb + g · stride_kcg + d · stride_kcd.
    """
    # Task 5 ★★ store K and V (15 points, about 15 minutes)
    # 1. This program's token, and its slot; both of 64 bits.
    # 2. Padding: a plain `if` works on one number.
    # 3. Block and row of the slot; heads, elements and their mask.
    # 4. Load k and v by k's and v's strides, and store them by those of the caches.
    raise NotImplementedError("ch11_triton_decode, task 5: store K and V")


def attend_alone(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, start: int, end: int, visible: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Given: run `attend` by itself, in one program: its acc [R, D], total [R] and highest [R], in fp32.

    q: [R, D], R rows. k_cache, v_cache: [N, B, D], of one KV head. block_table: [M] block ids. visible: [R].
    q and the caches are fp32. Any strides will do, but visible's is 1.
    """
    (R, D), (_, B, _) = q.shape, k_cache.shape
    acc, total, highest = (torch.full(size, float("nan"), device=q.device) for size in ((R, D), (R,), (R,)))
    _attend_alone_kernel[(1,)](
        q, k_cache, v_cache, block_table, visible, acc, total, highest, start, end, scale,
        *q.stride(), *k_cache.stride(), *v_cache.stride(), *block_table.stride(), B, R, D,
        **tile_sizes(R, D, q.dtype),
    )
    return acc, total, highest


@triton.jit
def _attend_alone_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, block_table_ptr, visible_ptr, acc_ptr, total_ptr, highest_ptr,
    start, end, scale,
    stride_qr, stride_qd,
    stride_kn, stride_kb, stride_kd,
    stride_vn, stride_vb, stride_vd,
    stride_tm,
    B: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Given: load the rows, call `attend`, store what it returns."""
    offs_r = tl.arange(0, BLOCK_R)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_r < R)[:, None] & (offs_d < D)[None, :]
    q = tl.load(q_ptr + offs_r[:, None] * stride_qr + offs_d[None, :] * stride_qd, mask=mask, other=0.0)
    visible = tl.load(visible_ptr + offs_r, mask=offs_r < R, other=end).to(tl.int32)
    acc, total, highest = attend(
        q, visible, start, end, scale, block_table_ptr, stride_tm,
        k_cache_ptr, stride_kn, stride_kb, stride_kd, v_cache_ptr, stride_vn, stride_vb, stride_vd,
        B, D, BLOCK_R, BLOCK_D, BLOCK_N,
    )
    tl.store(acc_ptr + offs_r[:, None] * D + offs_d[None, :], acc, mask=mask)
    tl.store(total_ptr + offs_r, total, mask=offs_r < R)
    tl.store(highest_ptr + offs_r, highest, mask=offs_r < R)


@triton.jit
def attend(
    q, visible, start, end, scale, table_ptr, stride_tm,
    k_ptr, stride_kn, stride_kb, stride_kd,
    v_ptr, stride_vn, stride_vb, stride_vd,
    B: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Attention of the rows q [BLOCK_R, BLOCK_D] to positions start … end - 1 of one sequence and KV head.

    A loop as in task 4, with a tile of BLOCK_N positions at a time. Position p lies in block table[p // B],
    row p % B. The pointers stand at the sequence's row of the table and at the head already: entry m of the
    table is at table_ptr + m · stride_tm, and element d of a row of K at k_ptr + block · stride_kn + row ·
    stride_kb + d · stride_kd. Row r of q sees positions below visible[r], of which the first BLOCK_N must
    hold at least one. Positions from `end` on are not there: neither their table entries nor their K and V
    may be loaded.

    A score is scale · (q · k), and its weight, with scores in units of ln 2, 2^(score / ln 2 - highest): the
    same as exp, but 2^x is what a GPU computes.

    Returns fp32: acc [BLOCK_R, BLOCK_D], the sum of weights times V; total [BLOCK_R], the sum of weights;
    highest [BLOCK_R], the highest score / ln 2. acc / total is the attention; without positions all are 0, 0
    and -inf.

    Example: B = 4, start 0, end 6: all rows of block table[0], rows 0 and 1 of block table[1]. With q = 0
    all scores are 0, so highest is 0, total is 6, and acc is the sum of the six rows of V.
    """
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    highest = tl.full([BLOCK_R], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    # Task 6 ★★ attend to one context (20 points, about 25 minutes)
    # 1. for first in range(start, end, BLOCK_N): the positions of this tile, and which exist (< end).
    # 2. Their blocks, from the table, masked, other=0; 64 bits. Block and row as columns, [:, None].
    # 3. K, [BLOCK_N, BLOCK_D], masked in both directions, other=0.0, as q.dtype.
    # 4. Scores [BLOCK_R, BLOCK_N]: tl.dot(q, tl.trans(k), input_precision="ieee") times scale / ln 2, which
    #    is scale * 1.4426950408889634; -inf where a row doesn't see the position.
    # 5. new_highest, weights (tl.exp2) and total as in task 4, but for every row: axis=1.
    # 6. V, as K; acc shrinks as total does, and gains tl.dot(weights.to(q.dtype), v, input_precision="ieee").
    raise NotImplementedError("ch11_triton_decode, task 6: attend to one context")
    return acc, total, highest


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """Given: attention of one new token per sequence to its whole context, through its block table.

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
    """One program: one sequence, one KV head, and the R query heads that read it, rows of one small matrix.

    program_id(0) is the sequence, program_id(1) the KV head g; its query heads are g · R … g · R + R - 1, as
    in chapter 5. q and out are tiles of [BLOCK_R, BLOCK_D], of which [R, D] exist. `attend` does not look at
    rows that don't exist, but they must be loaded as 0. K and V are read once for all R heads.

    Example: H = 6, G = 2, so R = 3: program (s, 1) serves query heads 3, 4 and 5 of sequence s.
    """
    # Task 7 ★★ decode a group of heads (15 points, about 15 minutes)
    # 1. seq and kv_head, of 64 bits. offs_r and offs_d, the rows and elements of a tile, and their mask.
    # 2. heads [BLOCK_R]: the number of each row's query head. Load q, other=0.0, as DOT_DTYPE.
    # 3. After the loop: the attention, acc / total; total is 0 without context, and then the result is 0.
    # 4. Store it by out's strides, as out_ptr.dtype.element_ty.
    raise NotImplementedError("ch11_triton_decode, task 7: decode a group of heads")
    context_len = tl.load(context_lens_ptr + seq * stride_cs).to(tl.int32)
    visible = tl.zeros([BLOCK_R], tl.int32) + context_len  # the newest token sees all of its context
    acc, total, _ = attend(
        q, visible, 0, context_len, scale, block_tables_ptr + seq * stride_ts, stride_tm,
        k_cache_ptr + kv_head * stride_kg, stride_kn, stride_kb, stride_kd,
        v_cache_ptr + kv_head * stride_vg, stride_vn, stride_vb, stride_vd,
        B, D, BLOCK_R, BLOCK_D, BLOCK_N,
    )
    raise NotImplementedError("ch11_triton_decode, task 7: decode a group of heads")


def store_and_decode(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor,
    context_lens: Tensor, scale: float,
) -> Tensor:
    """Given: a challenge: what `store_kv` and then `paged_decode` do, in one launch.

    k, v: [S, G, D], the new token of each sequence. It belongs at position context_len - 1, the last one, and
    is stored there; context_lens are at least 1. The other arguments, and the result, as in `paged_decode`.

    Raises ValueError as `paged_decode` does, and for a context without a token.
    """
    check_paged_decode(q, k_cache, v_cache, block_tables, context_lens)
    check_runs_here("store_and_decode", q)
    if bool((context_lens < 1).any()):
        raise ValueError(f"each context holds the new token, so at least 1: got {context_lens.tolist()}")
    (S, H, D), (_, B, G, _) = q.shape, k_cache.shape
    dtype, dot_dtype = compute_dtypes(q.dtype)
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    _store_and_decode_kernel[(S, G)](
        q, k, v, k_cache, v_cache, block_tables, context_lens, out, scale,
        *q.stride(), *k.stride(), *v.stride(), *k_cache.stride(), *v_cache.stride(),
        *block_tables.stride(), context_lens.stride(0), *out.stride(), B, H // G, D,
        DOT_DTYPE=dot_dtype, **tile_sizes(H // G, D, q.dtype),
    )
    return out.to(q.dtype)


@triton.jit
def _store_and_decode_kernel(
    q_ptr, k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, context_lens_ptr, out_ptr, scale,
    stride_qs, stride_qh, stride_qd,
    stride_ks, stride_kg, stride_kd,
    stride_vs, stride_vg, stride_vd,
    stride_kcn, stride_kcb, stride_kcg, stride_kcd,
    stride_vcn, stride_vcb, stride_vcg, stride_vcd,
    stride_ts, stride_tm, stride_cs,
    stride_os, stride_oh, stride_od,
    B: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, DOT_DTYPE: tl.constexpr,
):
    """One program: one sequence, one KV head: its row of K and of V stored, its R query heads served.

    A program's store and its later load of the same address are done by different threads, and nothing says
    that the store comes first. So the new token's row is stored and not loaded again: `attend` takes the
    context_len - 1 earlier tokens, and the new one is folded in from the registers. Nothing of the slot at
    position context_len - 1 is loaded from the caches, and every other slot of the context once.
    """
    # Task 8 ★★★ store and decode in one (10 points, about 30 minutes)
    # 1. The rows of q, as in task 7, and one row [BLOCK_D] of k and of v.
    # 2. The slot of position context_len - 1, through the table; store both rows there.
    # 3. `attend` to positions 0 … context_len - 2, all of them visible.
    # 4. The new token's score for each row (tl.sum(…, axis=1), in fp32, in units of ln 2), and one more step
    #    of the online softmax by hand. Divide, store.
    raise NotImplementedError("ch11_triton_decode, task 8: store and decode in one")
