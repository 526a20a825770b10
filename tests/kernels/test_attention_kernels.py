"""The attention kernels against dense attention in float64: interpreted without a GPU, compiled with one.

A fast sample runs always; MINIPAGED_LONG=1 runs the complete matrix of sizes, dtypes, poisons and layouts.
Caches are poisoned wherever no token lies, and tables past a context's end hold ids of no block.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.interpreter import repair_interpreter
from minipaged.kernels.paged import torch_twins as twins
from tests.reference import dense_attention

needs_triton = pytest.mark.skipif(not triton_status().installed, reason="no triton here: no kernel to test")
LONG = os.environ.get("MINIPAGED_LONG") == "1"
DEVICE = "cpu" if triton_status().interpret or not triton_status().installed else "cuda"
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}  # of values around 1
G = 2  # KV heads
NAN, INF = float("nan"), float("inf")

LAYOUTS: dict[str, Callable[[int, int, int, torch.dtype], tuple[Tensor, Tensor]]] = {
    "separate": lambda N, B, D, dtype: (empty(N, B, G, D, dtype=dtype), empty(N, B, G, D, dtype=dtype)),
    "stacked": lambda N, B, D, dtype: tuple(empty(N, 2, B, G, D, dtype=dtype).unbind(1)),
    "heads first": lambda N, B, D, dtype: (
        empty(G, N, B, D, dtype=dtype).permute(1, 2, 0, 3), empty(N, G, D, B, dtype=dtype).permute(0, 3, 1, 2)
    ),
}


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE)


def kernel(name: str) -> Callable[..., Any]:
    from minipaged.kernels.paged import triton_decode, triton_fast  # here, because they need triton

    return getattr(triton_decode, name, None) or getattr(triton_fast, name)


@dataclass(frozen=True)
class Case:
    """A batch whose contexts lie scattered over a poisoned cache, and what attention to it gives."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_start_loc: Tensor
    scale: float
    expected: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return self.q, self.k_cache, self.v_cache, self.block_tables, self.context_lens

    def attend(self, name: str, num_splits: int = 2) -> Tensor:
        """What the kernel of that name gives."""
        starts = [self.query_start_loc] if name == "paged_prefill" else []
        splits = [num_splits] if name == "paged_decode_split" else []
        return kernel(name)(*self.tensors(), *starts, self.scale, *splits)


def scattered(
    contexts: list[int], queries: list[int] | None = None, *, B: int = 4, D: int = 64, R: int = 3,
    dtype: torch.dtype = torch.float32, poison: float = NAN, tail: int = 10**9, layout: str = "separate",
    index: torch.dtype = torch.int64, spread: float = 1.0, shift: float = 0.0,
) -> Case:
    """Contexts of so many tokens, each with so many new ones (one, if `queries` isn't given).

    spread: how large scores are. shift: what is added to every score, by a direction that all keys have.
    """
    queries = [1] * len(contexts) if queries is None else queries
    blocks = [math.ceil(context / B) for context in contexts]
    ids = iter(torch.randperm(sum(blocks) + 2).tolist())
    k_cache, v_cache = LAYOUTS[layout](sum(blocks) + 2, B, D, dtype)
    k_cache.fill_(poison)
    v_cache.fill_(poison)
    tables = torch.full((len(contexts), max([*blocks, 1])), tail, dtype=index)
    scale = 0.7 / D**0.5  # no kernel may take a scale of its own
    q = (torch.randn(sum(queries), G * R, D) * spread).to(dtype)
    q[..., 0] = 1.0
    expected, start = [], 0
    for seq, (context, num_blocks, num_queries) in enumerate(zip(contexts, blocks, queries, strict=True)):
        tables[seq, :num_blocks] = torch.tensor([next(ids) for _ in range(num_blocks)], dtype=index)
        k, v = torch.randn(2, context, G, D).to(dtype)
        k[..., 0] = shift / scale
        places = torch.arange(context)
        slots = tables[seq, places // B].long().to(DEVICE), (places % B).to(DEVICE)
        k_cache[slots], v_cache[slots] = k.to(DEVICE), v.to(DEVICE)
        rows = q[start : start + num_queries]
        expected.append(dense_attention(rows, k, v, scale) if context else torch.zeros_like(rows).double())
        start += num_queries
    starts = torch.tensor([0, *queries]).cumsum(0)
    on_device = (each.to(DEVICE) for each in (tables, torch.tensor(contexts, dtype=index), starts.to(index)))
    return Case(q.to(DEVICE), k_cache, v_cache, *on_device, scale, torch.cat(expected))


def assert_attends(case: Case, actual: Tensor) -> None:
    assert actual.dtype == case.q.dtype
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(actual.cpu().double(), case.expected, rtol=tolerance, atol=tolerance)


# -- the matrix --------------------------------------------------------------------------------------------

COMPLETE = list(product(
    (1, 16, 32, 128), (64, 80, 128), (1, 3, 4, 7), (torch.float32, torch.float16, torch.bfloat16), (NAN, INF),
    (0, -1, 10**9), ("separate", "stacked"),
))
SIZES = [(1, 64, 1), (16, 80, 3), (32, 128, 4), (128, 64, 7), (8, 96, 2), (64, 112, 8), (256, 192, 1),
         (7, 256, 1), (16, 16, 16), (3, 120, 3)]
REST = zip(
    cycle([torch.bfloat16, torch.float32, torch.float16]), cycle([NAN, INF]), cycle([10**9, -1, 0]),
    cycle(["stacked", "separate", "stacked", "heads first"]), strict=False,
)
SAMPLE = [(*sizes, *rest) for sizes, rest in zip(SIZES, REST, strict=False)]
NAMES = ("B", "D", "R", "dtype", "poison", "tail", "layout")
KINDS = [dict(zip(NAMES, kind, strict=True)) for kind in (SAMPLE + COMPLETE if LONG else SAMPLE)]
SPLIT_KINDS = KINDS if LONG else KINDS[1::3]  # merging takes the interpreter long


def of_kinds(kinds: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: "-".join(map(str, kind.values())))


@needs_triton
@of_kinds(KINDS)
def test_decode_is_dense_attention_whatever_lies_elsewhere(kind: dict[str, Any]) -> None:
    case = decodes_of(**kind)
    assert_attends(case, case.attend("paged_decode"))


@needs_triton
@of_kinds(SPLIT_KINDS)
def test_split_decode_is_dense_attention_whatever_lies_elsewhere(kind: dict[str, Any]) -> None:
    case = decodes_of(**kind)
    assert_attends(case, case.attend("paged_decode_split"))


def decodes_of(B: int, **kind: Any) -> Case:
    return scattered([1, B - 1, B, B + 1, 3 * B + 2], B=B, **kind)


@needs_triton
@of_kinds(KINDS)
def test_prefill_is_dense_attention_whatever_lies_elsewhere(kind: dict[str, Any]) -> None:
    B = kind["B"]
    case = scattered([1, B - 1, B, B + 1, 3 * B + 2], [1, B - 1, min(B, 2), 1, B // 2 + 1], **kind)
    assert_attends(case, case.attend("paged_prefill"))


# -- what the matrix leaves out ----------------------------------------------------------------------------

with_each = pytest.mark.parametrize("name", ["paged_decode", "paged_decode_split", "paged_prefill"])


@needs_triton
def test_a_chunk_sees_its_context_and_of_itself_what_came_before() -> None:
    B = 4
    chunks = list(product((0, 1, B - 1, B, 3 * B + 1), (1, 2, B, 2 * B + 3)))  # tokens before, new tokens
    case = scattered([c + m for c, m in chunks], [m for _, m in chunks], B=B)
    assert_attends(case, case.attend("paged_prefill"))


@needs_triton
def test_a_prompt_of_several_tiles_is_causal_across_them() -> None:
    case = scattered([150, 70], [150, 65], B=16, R=7)
    assert_attends(case, case.attend("paged_prefill"))


@needs_triton
@with_each
@pytest.mark.parametrize(("spread", "shift"), [(50.0, 0.0), (1.0, -3e4), (1.0, 3e4)])
def test_scores_may_be_large_or_all_very_negative(name: str, spread: float, shift: float) -> None:
    case = scattered([1, 9, 150], B=16, spread=spread, shift=shift)
    # The exponent of a large score has few digits left: of 3e4 in fp32, two after the point.
    tolerance = 2e-2 if shift else 1e-4
    actual = case.attend(name).cpu().double()
    torch.testing.assert_close(actual, case.expected, rtol=0, atol=tolerance)


@needs_triton
@with_each
@pytest.mark.parametrize("R", [1, 2, 7, 8, 16, 20])
def test_query_head_h_reads_kv_head_h_over_group(name: str, R: int) -> None:
    case = scattered([20], R=R, B=16)
    for head in range(G):
        case.v_cache[:, :, head] = head
    expected = (torch.arange(G * R) // R).float()[None, :, None].expand(1, -1, 64)
    torch.testing.assert_close(case.attend(name).cpu(), expected, rtol=1e-6, atol=0)


@needs_triton
@with_each
def test_a_sequence_without_context_gives_zeros_and_harms_no_other(name: str) -> None:
    case = scattered([0, 5, 0])
    assert_attends(case, case.attend(name))


@needs_triton
@with_each
def test_without_sequences_there_are_no_rows(name: str) -> None:
    case = replace(
        scattered([4]), q=torch.zeros(0, 3 * G, 64, device=DEVICE),
        block_tables=torch.zeros(0, 1, dtype=torch.int64, device=DEVICE),
        context_lens=torch.zeros(0, dtype=torch.int64, device=DEVICE),
        query_start_loc=torch.zeros(1, dtype=torch.int64, device=DEVICE),
    )
    assert case.attend(name).shape == (0, 3 * G, 64)


@needs_triton
def test_sequences_without_new_tokens_take_no_rows() -> None:
    case = scattered([4, 6, 0, 3], [0, 2, 0, 1])
    assert_attends(case, case.attend("paged_prefill"))


@needs_triton
def test_rows_of_no_sequence_give_zeros() -> None:
    case = scattered([6, 3], [2, 3])
    padded = replace(case, q=torch.cat([case.q, torch.full_like(case.q[:2], NAN)]))
    out = padded.attend("paged_prefill")
    assert_attends(case, out[:5])
    assert (out[5:] == 0).all()


@needs_triton
@with_each
def test_strided_queries_tables_and_lengths_are_read_where_they_lie(name: str) -> None:
    case = scattered([7, 70, 1], B=16, index=torch.int32)
    fused = torch.full((3, 10, 64), NAN, device=DEVICE)  # q beside k and v, as one product leaves them
    fused[:, 2:8] = case.q
    spread_out = {
        field: torch.stack([value, torch.full_like(value, 10**9)], dim=-1)[..., 0]
        for field, value in vars(case).items() if field in ("block_tables", "context_lens", "query_start_loc")
    }
    strided = replace(case, q=fused[:, 2:8], **spread_out)
    assert not strided.q.is_contiguous() and strided.block_tables.stride(-1) == 2
    assert_attends(strided, strided.attend(name))


@needs_triton
@pytest.mark.parametrize("num_splits", [2, 5])
def test_pieces_that_hold_no_token_are_not_merged(
    num_splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = scattered([1, 0, 65, 300], B=16)
    fresh = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: fresh(*args, **kwargs).fill_(NAN))
    assert_attends(case, case.attend("paged_decode_split", num_splits))


@needs_triton
def test_a_block_beyond_two_billion_elements_is_read_and_copied_where_it_lies() -> None:
    B, D = 16, 128
    num_blocks = 2**31 // (B * G * D) + 2
    cache = empty(num_blocks, B, G, D, dtype=torch.float16)  # never filled, so that it takes no memory
    k, v = torch.randn(2, B, G, D).half()
    cache[-1], cache[-2] = k.to(DEVICE), v.to(DEVICE)
    q, scale = torch.randn(1, 3 * G, D).half(), 0.1
    tables, length, starts = (torch.tensor(each, device=DEVICE) for each in ([[num_blocks - 2]], [B], [0, 1]))
    # V lies in the block before K's: the same tensor, seen from one block later.
    case = Case(q.to(DEVICE), cache[1:], cache[:-1], tables, length, starts, scale,
                dense_attention(q, k, v, scale))
    for name in ("paged_decode", "paged_decode_split", "paged_prefill"):
        assert_attends(case, case.attend(name))
    for src, dst in ((num_blocks - 1, 0), (0, num_blocks - 2)):
        kernel("copy_blocks")(cache[None], cache[None], torch.tensor([[src, dst]], device=DEVICE))
    assert torch.equal(cache[0].cpu(), k) and torch.equal(cache[-2].cpu(), k)


def test_each_twin_is_dense_attention_too() -> None:
    case = scattered([1, 0, 9, 20], B=4, poison=INF)
    q, *rest = (each.cpu() for each in case.tensors())
    for out in (
        twins.paged_decode_torch(q, *rest, case.scale),
        twins.paged_decode_split_torch(q, *rest, case.scale, 3),
        twins.paged_prefill_torch(q, *rest, case.query_start_loc.cpu(), case.scale),
    ):
        assert_attends(case, out)
    chunks = scattered([5, 9, 4], [2, 9, 1])
    tensors = [each.cpu() for each in (*chunks.tensors(), chunks.query_start_loc)]
    assert_attends(chunks, twins.paged_prefill_torch(*tensors, chunks.scale))


@needs_triton
@pytest.mark.skipif(DEVICE == "cuda", reason="compiled kernels need no interpreter")
def test_a_loop_up_to_a_loaded_number_runs_with_the_interpreter_of_triton_3_6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def as_in_triton_3_6(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data)  # what NumPy 2.4 refuses

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", as_in_triton_3_6)
    repair_interpreter()
    case = scattered([5])
    assert_attends(case, case.attend("paged_decode"))


@needs_triton
def test_the_number_of_splits_fills_the_gpu_and_no_piece_is_short() -> None:
    choose = kernel("choose_num_splits")
    assert choose(8, 131072, 132) == 33  # 2 programs for each of 132 processors, 8 without splitting
    assert choose(8, 1024, 132) == 4  # pieces of 256 tokens
    assert choose(1, 10**7, 132) == 128  # as many as there may be
    assert choose(512, 4096, 132) == choose(8, 255, 132) == choose(0, 0, 1) == 1


# -- copies ------------------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize(
    ("B", "D", "dtype"),
    [(1, 64, torch.float32), (3, 80, torch.bfloat16), (16, 7, torch.float16), (256, 33, torch.float32)],
    ids=str,
)
@pytest.mark.parametrize("blocks", [slice(None, 6), slice(None, None, 2)], ids=["first half", "every second"])
def test_copies_change_their_destinations_in_all_layers_and_nothing_else(B, D, dtype, blocks: slice) -> None:
    L, N = 3, 6
    pools = torch.randn(L, 2 * N, B, G, 2 * D), torch.randn(L, G, 2 * N, B, D)  # V's heads come first
    pools = [pool.to(DEVICE, dtype) for pool in pools]
    expected = [pool.clone() for pool in pools]
    (k, v), wanted = (
        (k[:, blocks, ..., :D], v.permute(0, 2, 3, 1, 4)[:, blocks]) for k, v in (pools, expected)
    )
    copies = torch.tensor([[0, 4], [2, 1], [0, 3]], device=DEVICE)
    kernel("copy_blocks")(k, v, copies)
    twins.copy_blocks_torch(*wanted, copies)
    assert all(torch.equal(pool, each) for pool, each in zip(pools, expected, strict=True))
    assert torch.equal(k[:, 4], k[:, 0]) and torch.equal(v[:, 1], v[:, 2])


@needs_triton
def test_no_copies_change_nothing() -> None:
    pool = torch.randn(1, 2, 4, G, 8, device=DEVICE)
    before = pool.clone()
    kernel("copy_blocks")(pool, pool, torch.empty(0, 2, dtype=torch.int64, device=DEVICE))
    assert torch.equal(pool, before)


# -- bad input ---------------------------------------------------------------------------------------------

BLOCK_IDS, LENGTHS, STARTS = torch.tensor([[0, 1], [2, 3]]), torch.tensor([5, 8]), torch.tensor([0, 1, 3])
VALID: dict[str, Tensor] = {
    "q": torch.zeros(2, 4, 16), "k_cache": torch.zeros(4, 4, 2, 16), "v_cache": torch.zeros(4, 4, 2, 16),
    "block_tables": BLOCK_IDS, "context_lens": LENGTHS,
}


@pytest.mark.parametrize(
    "attend",
    [
        lambda *args: twins.paged_decode_torch(*args, 1.0),
        lambda *args: twins.paged_prefill_torch(*args, torch.tensor([0, 1, 2]), 1.0),
        pytest.param(lambda *args: kernel("paged_decode")(*args, 1.0), marks=needs_triton),
        pytest.param(lambda *args: kernel("paged_decode_split")(*args, 1.0, 2), marks=needs_triton),
        pytest.param(
            lambda *args: kernel("paged_prefill")(*args, torch.tensor([0, 1, 2]), 1.0), marks=needs_triton
        ),
    ],
    ids=["decode twin", "prefill twin", "paged_decode", "paged_decode_split", "paged_prefill"],
)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": torch.zeros(2, 64)}, r"q must be \[.*got \[2, 64\]"),
        ({"q": torch.zeros(2, 5, 16)}, r"5 query heads must be a multiple of the KV heads: got 2"),
        ({"q": torch.zeros(2, 4, 16).half()}, r"one dtype: got torch.float16, torch.float32"),
        ({"k_cache": torch.zeros(4, 4, 2, 8)}, r"\[N, B, G, 16\].*got \[4, 4, 2, 8\]"),
        ({"v_cache": torch.zeros(5, 4, 2, 16)}, r"\[4, 4, 2, 16\] and \[5, 4, 2, 16\]"),
        ({"block_tables": torch.zeros(3, 2, dtype=torch.int64)}, r"\[2, M\] integers.*\[3, 2\]"),
        ({"block_tables": BLOCK_IDS.float()}, r"integers.*float32"),
        ({"context_lens": LENGTHS.float()}, r"2 integers.*float32"),
        ({"context_lens": torch.tensor([9, -1])}, r"0 to 8, which 2 blocks of 4 hold: got \[9, -1\]"),
        ({"block_tables": torch.tensor([[0, 1], [2, 4]])}, r"0 to 3: sequence 1 of 8 tokens has \[2, 4\]"),
        ({name: torch.zeros(2, 4, 2, 257) for name in ("k_cache", "v_cache")} | {"q": torch.zeros(2, 4, 257)},
         r"up to 256: got 257"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_numbers(attend, changed, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(*{**VALID, **changed}.values())


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 2], r"3 integers.*\[2\]"),
        ([0, 2, 1], r"rise from 0 to at most 2.*got \[0, 2, 1\]"),
        ([0, 1, 3], r"at most 2.*\[0, 1, 3\]"),
        ([-1, 1, 2], r"\[-1, 1, 2\]"),
    ],
)
def test_query_starts_that_do_not_fit_are_refused(starts: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        twins.paged_prefill_torch(*VALID.values(), torch.tensor(starts), 1.0)


def test_more_queries_than_context_are_refused() -> None:
    arguments = VALID | {"context_lens": torch.tensor([1, 8])}
    with pytest.raises(ValueError, match=r"query lengths are \[2, 0\], contexts \[1, 8\]"):
        twins.paged_prefill_torch(*arguments.values(), torch.tensor([0, 2, 2]), 1.0)


@needs_triton
@pytest.mark.parametrize("num_splits", [0, 129])
def test_a_number_of_splits_out_of_range_is_refused(num_splits: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 128: got {num_splits}"):
        kernel("paged_decode_split")(*VALID.values(), 1.0, num_splits)


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ([[0, 4]], r"0 to 3: got \[4\]"),
        ([[-1, 2]], r"0 to 3: got \[-1\]"),
        ([[0, 2], [1, 2]], r"nobody else's.*\[\[0, 2\], \[1, 2\]\]"),
        ([[0, 1], [1, 2]], r"nobody else's"),
        ([0, 1], r"\[C, 2\] integers.*\[2\]"),
        ([[0.0, 1.0]], r"float32"),
    ],
)
def test_copies_that_do_not_fit_are_refused(copies: list, message: str) -> None:
    pool = torch.zeros(1, 4, 2, 1, 8)
    with pytest.raises(ValueError, match=message):
        twins.copy_blocks_torch(pool, pool, torch.tensor(copies))
