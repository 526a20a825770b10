"""The sanitizer: what a kernel does wrong is said in its own terms, and what it does right is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minipaged.kernels import sanitizer, triton_status
from minipaged.kernels.addresses import FarTensor
from minipaged.kernels.sanitizer import KernelFault, OutOfBounds, Race, UnwrittenRead, guarded, watch

if not triton_status().interpret:
    pytest.skip("kernels are not interpreted here, so there is nothing to watch", allow_module_level=True)

import triton
import triton.language as tl

from minipaged.kernels.paged.triton_decode import paged_decode, store_kv
from minipaged.kernels.paged.triton_fast import copy_blocks, paged_decode_split, paged_prefill

NAN = float("nan")


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, step, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * step + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = tl.load(y_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x + y, mask=offs < n)


@triton.jit
def copy_rows_kernel(x_ptr, out_ptr, stride_x, stride_out, D, BLOCK_D: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + row * stride_x + offs)  # no mask: wrong unless D is BLOCK_D
    tl.store(out_ptr + row * stride_out + offs, x, mask=offs < D)


@triton.jit
def shift_kernel(x_ptr, n, distance):
    i = tl.program_id(0)
    inside = (i + distance >= 0) & (i + distance < n)
    tl.store(x_ptr + i, tl.load(x_ptr + i + distance, mask=inside), mask=inside)


@triton.jit
def count_kernel(out_ptr):
    tl.atomic_add(out_ptr + tl.arange(0, 2), 1.0)


@triton.jit
def sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + offs, mask=offs < n)))


@triton.jit
def read_k_kernel(k_ptr, out_ptr, T, ROWS: tl.constexpr, D: tl.constexpr):
    """Each program serves ROWS query heads; all of them share one K."""
    head, offs_d = tl.program_id(0), tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    for t in range(T):
        total += tl.load(k_ptr + t * D + offs_d)
    offs = head * ROWS + tl.arange(0, ROWS)[:, None]
    tl.store(out_ptr + offs * D + offs_d[None, :], tl.zeros([ROWS, D], tl.float32) + total[None, :])


def add(n: int = 10, step: int = 4, length: int = 10) -> Tensor:
    x, out = torch.arange(10.0), torch.full([10], NAN)
    add_kernel[(3,)](x[:length], x, out, n, step, BLOCK=4)
    return out


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


# -- out of bounds ---------------------------------------------------------------------------------


def test_a_mask_that_lets_too_much_through_is_reported_with_line_program_index_and_limit() -> None:
    with pytest.raises(OutOfBounds) as caught, watch():
        add(n=11)
    fault, line = caught.value, line_of("x = tl.load(x_ptr + offs, mask")
    assert (fault.kernel, fault.program, fault.tensor, fault.index) == (
        "add_kernel",
        (2, 0, 0),
        "x_ptr",
        (10,),
    )
    assert (Path(fault.file), fault.line) == (Path(__file__), line)
    assert str(fault) == (
        "add_kernel loads x_ptr[10], but x_ptr is [10] with strides [1]: "
        "1 of 4 lanes are outside and not masked\n"
        "  in program (2, 0, 0)\n"
        f"  test_sanitizer.py, line {line}: x = tl.load(x_ptr + offs, mask=offs < n)"
    )


@pytest.mark.parametrize("step", [-1, 2**20, -(2**31), 2**44, -(2**44)])
def test_a_wild_pointer_is_refused_before_memory_is_touched_and_traced_to_its_tensor(step: int) -> None:
    with pytest.raises(OutOfBounds) as caught, watch():
        add(n=2**62, step=step)
    assert (caught.value.tensor, caught.value.index) == ("x_ptr", (step,))


def test_a_pointer_that_lands_in_another_tensor_is_out_of_bounds_all_the_same() -> None:
    pool = torch.zeros(2, 10)
    with pytest.raises(OutOfBounds, match=r"x_ptr\[10\]"), watch():
        add_kernel[(3,)](pool[0], pool[1], torch.zeros(20), 12, 4, BLOCK=4)


def test_a_store_out_of_bounds_changes_nothing() -> None:
    storage = torch.zeros(20)
    with pytest.raises(OutOfBounds, match=r"stores out_ptr\[10\].*2 of 4 lanes"), watch():
        add_kernel[(3,)](torch.ones(12), torch.ones(12), storage[:10], 12, 4, BLOCK=4)
    assert storage[:8].eq(2).all() and storage[8:].eq(0).all()


def test_a_row_read_past_its_end_is_seen_in_a_guarded_tensor_and_only_there() -> None:
    x, out = torch.randn(3, 5), torch.empty(3, 5)
    for rows, index in ((x, (3, 0)), (guarded(x), (0, 5))):  # of x, only what follows the last row is outside
        assert torch.equal(rows, x)
        with pytest.raises(OutOfBounds) as caught, watch():
            copy_rows_kernel[(3,)](rows, out, rows.stride(0), 5, 5, BLOCK_D=8)
        assert caught.value.index == index


@pytest.mark.parametrize(
    ("view", "offset", "element", "is_outside"),
    [
        (torch.zeros(5, 8), 39, "x[4, 7]", False),
        (torch.zeros(5, 8), 40, "x[5, 0]", True),
        (torch.zeros(5, 8), -1, "x[-1, 7]", True),
        (torch.zeros(5, 8)[:, ::2], 3, "x[0, 1] + 1", True),
        (torch.zeros(5, 8).T, 39, "x[7, 4]", False),
        (torch.zeros(8).expand(5, 8), 8, "x[0, 8]", True),
        (torch.zeros(5, 8)[2], 8, "x[8]", True),
        (torch.zeros(1, 1), 1, "x[1, 0]", True),
        (torch.zeros(()), 0, "x[]", False),
        (torch.zeros(0, 8), 0, "x[0, 0]", True),
        (torch.zeros(9).unfold(0, 4, 1), 8, "x[8, 0]", False),  # overlapping rows: elements in memory's order
    ],
)
def test_an_offset_is_named_by_the_index_that_it_stands_for(view, offset, element, is_outside) -> None:
    argument = sanitizer.Argument(1, "x", view)
    assert argument.describe(offset)[0] == element
    assert argument.is_outside(torch.tensor([offset]).numpy()).tolist() == [is_outside]


def test_a_pointer_made_from_no_argument_is_refused() -> None:
    @triton.jit
    def peek_kernel(address, out_ptr):
        tl.store(out_ptr, tl.load(address.to(tl.pointer_type(tl.float32))))

    x = torch.zeros(1)
    with (
        pytest.raises(OutOfBounds, match=f"loads address {x.data_ptr():#x}, made from none of its tensors"),
        watch(),
    ):
        peek_kernel[(1,)](x.data_ptr(), x)


# -- what nobody has written -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_read_of_a_slot_that_holds_no_token_is_reported_if_asked_for(dtype: torch.dtype) -> None:
    cache = torch.ones(3, 4, dtype=dtype)
    cache[1, 2] = NAN
    with pytest.raises(UnwrittenRead, match=r"x_ptr\[1, 2\].*1 of 4") as caught, watch(unwritten=[cache]):
        copy_rows_kernel[(3,)](cache, torch.empty_like(cache), 4, 4, 4, BLOCK_D=4)
    assert (caught.value.program, caught.value.index) == ((1, 0, 0), (1, 2))
    with watch():
        copy_rows_kernel[(3,)](cache, torch.empty_like(cache), 4, 4, 4, BLOCK_D=4)


def test_a_tensor_that_cannot_hold_nan_cannot_say_what_is_unwritten() -> None:
    with (
        pytest.raises(ValueError, match=r"torch\.int32"),
        watch(unwritten=[torch.zeros(1, dtype=torch.int32)]),
    ):
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_lanes_that_a_mask_without_other_leaves_out_are_not_zero(dtype: torch.dtype) -> None:
    x, out = torch.ones(3, dtype=dtype), torch.zeros(1, dtype=dtype)
    sum_kernel[(1,)](x, out, 3, BLOCK=4)
    assert out == 3  # what the interpreter makes of it, and a GPU need not
    with watch():
        sum_kernel[(1,)](x, out, 3, BLOCK=4)
    assert out.isnan()


# -- races -----------------------------------------------------------------------------------------


def test_two_programs_that_store_one_element_are_both_named() -> None:
    with pytest.raises(Race) as caught, watch():
        add(step=3)
    assert (caught.value.program, caught.value.tensor, caught.value.index) == ((1, 0, 0), "out_ptr", (3,))
    assert "stores out_ptr[3], and program (0, 0, 0) stores it too" in str(caught.value)


@pytest.mark.parametrize(("distance", "what"), [(1, "stores"), (-1, "loads")])
def test_a_program_that_reads_what_another_writes_is_a_race_in_either_order(distance: int, what: str) -> None:
    with pytest.raises(Race, match=rf"{what} x_ptr\[\d\], and program .* (loads|stores) it"), watch():
        shift_kernel[(4,)](torch.zeros(4), 4, distance)
    with watch(check_races=False):
        shift_kernel[(4,)](torch.zeros(4), 4, distance)


def test_programs_meet_in_one_storage_though_their_arguments_differ() -> None:
    pool = torch.zeros(14)
    with pytest.raises(Race, match=r"stores out_ptr\[4\], and program \(0, 0, 0\) loads it"), watch():
        add_kernel[(2,)](torch.zeros(8), pool[4:], pool, 8, 4, BLOCK=4)


def test_atomics_may_meet_and_launches_follow_each_other() -> None:
    out = torch.zeros(2)
    with watch() as report:
        count_kernel[(3,)](out)
        count_kernel[(3,)](out)
    assert out.tolist() == [6, 6]
    assert report["out_ptr"].bytes_moved == 2 * 3 * 2 * (4 + 4)


# -- counts ----------------------------------------------------------------------------------------


def test_store_kv_moves_every_byte_once() -> None:
    k, caches = torch.randn(5, 2, 8), torch.full((2, 4, 4, 2, 8), NAN)
    with watch(unwritten=[caches]) as report:
        store_kv(k, 10 * k, *caches, torch.tensor([6, -1, 0, 3, 12]))
    moved = 4 * 2 * 8 * 4  # tokens, heads, elements, bytes
    assert [report[name].bytes_loaded for name in ("k_ptr", "v_ptr", "k_cache_ptr")] == [moved, moved, 0]
    assert [report[name].bytes_stored for name in ("k_ptr", "k_cache_ptr", "v_cache_ptr")] == [
        0,
        moved,
        moved,
    ]
    assert report.bytes_moved == report.bytes_needed == 4 * moved + 5 * 8
    programs = report.launches[0].programs
    assert [(traffic.loads, traffic.stores) for traffic in programs.values()] == [
        (3, 2),
        (1, 0),
        *3 * [(3, 2)],
    ]
    assert programs[1, 0, 0].bytes_moved == 8  # padding: its slot was read


@pytest.mark.parametrize(("programs", "rows", "excess"), [(4, 1, 4.0), (1, 4, 1.0)])
def test_one_program_per_query_head_loads_k_four_times_and_a_packed_group_once(
    programs, rows, excess
) -> None:
    k, out = torch.randn(16, 8), torch.empty(4, 8)
    with watch() as report:
        read_k_kernel[(programs,)](k, out, 16, ROWS=rows, D=8)
    assert report["k_ptr"].excess == excess
    assert report["k_ptr"].bytes_needed == 16 * 8 * 4
    assert report["out_ptr"].excess == 1.0
    assert re.search(rf"k_ptr +{int(excess) * 512:,} +0 +{excess:.2f}", str(report))


# 3 sequences of 9, 0 and 5 tokens in blocks of 4; block 4 is nobody's, as are the rows after each last token.
TABLES = torch.tensor([[5, 0, 3, 10**9], [10**9] * 4, [1, 2, -1, -1]])
LENS = torch.tensor([9, 0, 5])
H, G, D = 6, 2, 5


def filled_cache(layers: int = 1) -> Tensor:
    """[L, N, B, G, D], guarded: the slots that hold a token random, the others NaN."""
    cache = torch.full((layers, 6, 4, G, D), NAN)
    for table, length in zip(TABLES, LENS, strict=True):
        for position in range(length):
            cache[:, table[position // 4], position % 4] = torch.randn(layers, G, D)
    return guarded(cache)


def test_the_packages_kernels_touch_what_they_should_and_nothing_else() -> None:
    k, v = filled_cache(2), filled_cache(2)
    q, rows = guarded(torch.randn(6, H, D)), guarded(torch.randn(3, G, D))
    tables, lens = guarded(TABLES), guarded(LENS)
    starts = guarded(torch.tensor([0, 4, 4, 6]))
    with watch(unwritten=[k, v]) as report:
        for out in (
            paged_decode(q[:3], k[0], v[0], tables, lens, 0.3),
            paged_decode_split(q[:3], k[0], v[0], tables, lens, 0.3, 2),
            paged_prefill(q, k[0], v[0], tables, lens, starts, 0.3),
        ):
            assert not out.isnan().any()
        copy_blocks(k, v, guarded(torch.tensor([[0, 4]])))
        store_kv(rows, rows, k[1], v[1], guarded(torch.tensor([17, -1, 18])))
    assert len(report.launches) == 6


def test_a_decode_step_loads_k_and_v_once_however_many_query_heads_share_them() -> None:
    k, v = filled_cache()[0], filled_cache()[0]
    with watch() as report:
        paged_decode(torch.randn(3, H, D), k, v, TABLES, LENS, 0.3)
    used = (9 + 5) * G * D * 4
    assert report["k_cache_ptr"].bytes_loaded == report["v_cache_ptr"].bytes_loaded == used
    assert report["k_cache_ptr"].excess == report["v_cache_ptr"].excess == 1.0


def test_a_name_that_no_kernel_has_is_an_error_with_those_that_there_are() -> None:
    with watch() as report:
        add()
    with pytest.raises(KeyError, match="'k_ptr': x_ptr, y_ptr, out_ptr"):
        report["k_ptr"]


@triton.jit
def if_wanted_kernel(x_ptr, wanted_ptr, out_ptr, D, BLOCK_D: tl.constexpr):
    wanted, offs = tl.load(wanted_ptr) >= 0, tl.arange(0, BLOCK_D)
    x = tl.load(x_ptr + offs, mask=(offs < D) & wanted, other=0.0)
    tl.store(out_ptr + offs, x, mask=(offs < D) & (D >= 0))


@pytest.mark.parametrize("wanted", [1, -1])
def test_a_mask_may_hold_a_condition_that_is_one_number_for_all_lanes(wanted: int) -> None:
    x, out = torch.arange(5.0), torch.full([5], NAN)
    with watch() as report:
        if_wanted_kernel[(1,)](x, torch.tensor([wanted]), out, 5, BLOCK_D=8)
    assert torch.equal(out, x if wanted > 0 else torch.zeros(5))
    assert report["x_ptr"].bytes_loaded == (20 if wanted > 0 else 0)


# -- leaving no trace ------------------------------------------------------------------------------


def test_watched_or_not_the_results_are_the_same_and_after_a_fault_all_is_as_before() -> None:
    expected = add()
    with pytest.raises(KernelFault), watch():
        add(n=11)
    with watch():
        watched = add()
    assert torch.equal(watched, expected) and torch.equal(add(), expected)


def test_an_error_of_another_kind_comes_through_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), watch():
        raise ZeroDivisionError
    with pytest.raises(Exception, match=r"incompatible|broadcast|shape"), watch():

        @triton.jit
        def misfit_kernel(out_ptr):
            tl.store(out_ptr, tl.arange(0, 2) + tl.arange(0, 4))

        misfit_kernel[(1,)](torch.zeros(4))


def test_a_compiled_kernel_cannot_be_watched(monkeypatch) -> None:
    monkeypatch.setattr(sanitizer, "triton_status", lambda: type(triton_status())(True, False))
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"), watch():
        pass


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, stride_x, D, BLOCK_D: tl.constexpr, WIDE: tl.constexpr):
    row, offs = tl.load(index_ptr + tl.program_id(0)), tl.arange(0, BLOCK_D)
    if WIDE:
        row = row.to(tl.int64)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < D)
    tl.store(out_ptr + tl.program_id(0) * D + offs, x, mask=offs < D)


def test_an_offset_computed_in_32_bits_is_seen_in_a_tensor_that_only_claims_to_be_large() -> None:
    x, index, out = torch.arange(15.0).view(3, 5), torch.tensor([2, 0, 2]).int(), torch.empty(3, 5)
    far = x.as_subclass(FarTensor)
    arguments = (far, index, out, far.stride(0), 5)
    with watch() as report:
        gather_kernel[(3,)](*arguments, BLOCK_D=8, WIDE=True)
    assert torch.equal(out, x[[2, 0, 2]]) and report["x_ptr"].bytes_loaded == 3 * 5 * 4
    with pytest.raises(OutOfBounds, match=re.escape("x_ptr[-2, 0], but x_ptr is [3, 5]")), watch():
        gather_kernel[(3,)](*arguments, BLOCK_D=8, WIDE=False)
    with pytest.raises(OutOfBounds, match=re.escape("loads x_ptr[2, 5]")), watch():
        gather_kernel[(3,)](far, index, out, far.stride(0), 6, BLOCK_D=8, WIDE=True)


def test_a_guarded_tensor_keeps_the_order_of_its_dimensions_and_what_lies_apart() -> None:
    x = torch.randn(4, 2, 3)
    assert torch.equal(guarded(x.transpose(0, 2)), x.transpose(0, 2))
    assert guarded(x).stride() == (12, 4, 1) and guarded(x.transpose(0, 2)).stride() == (1, 4, 12)
    assert guarded(torch.arange(6)[::2]).stride() == (2,) and guarded(torch.arange(6)).stride() == (1,)
    assert guarded(torch.tensor(3.0)).item() == 3
