"""Attention through block tables equals dense attention (design rule 8, cases 19, 22-27)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from minipaged.paged_attention import paged_attention
from tests.reference import dense_attention

POISON = 10**6
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass
class Case:
    """Sequences scattered over a poisoned cache, and the dense K/V they were made from."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_start_loc: torch.Tensor
    dense: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]

    def run(self, scale: float) -> torch.Tensor:
        return paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.context_lens,
            self.query_start_loc,
            scale,
        )

    def expected(self, scale: float) -> torch.Tensor:
        return torch.cat([dense_attention(*qkv, scale) for qkv in self.dense])


def make(
    sequences: list[tuple[int, int]],
    block_size: int = 4,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    garbage: float = torch.nan,
    spread: float = 1.0,
) -> Case:
    """`sequences` are (new tokens, context length). Blocks are shuffled, unwritten slots hold `garbage`, and
    table rows are wider than used, with `POISON` past the end."""
    H, G = heads
    counts = [-(-context // block_size) for _, context in sequences]
    num_blocks = sum(counts) + 2
    order = torch.randperm(num_blocks).tolist()
    k_cache = torch.full((num_blocks, block_size, G, head_dim), garbage, dtype=dtype)
    v_cache = k_cache.clone()
    tables = torch.full((len(sequences), max(counts) + 2), POISON, dtype=torch.int64)
    dense = []
    for row, (new, context) in enumerate(sequences):
        q, k, v = (torch.randn(n, h, head_dim).to(dtype) for n, h in ((new, H), (context, G), (context, G)))
        q, k = (q * spread).to(dtype), (k * spread).to(dtype)
        blocks = [order.pop() for _ in range(counts[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int64)
        for position in range(context):
            block, offset = blocks[position // block_size], position % block_size
            k_cache[block, offset], v_cache[block, offset] = k[position], v[position]
        dense.append((q, k, v))
    starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0)
    contexts = torch.tensor([context for _, context in sequences])
    return Case(torch.cat([q for q, _, _ in dense]), k_cache, v_cache, tables, contexts, starts, dense)


def assert_equals_dense(case: Case, scale: float = 0.3) -> None:
    out = case.run(scale)
    assert out.shape == case.q.shape and out.dtype == case.q.dtype
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(out.double(), case.expected(scale), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("context", [1, 3, 4, 5, 8, 33])
def test_a_prefill_equals_dense_attention(context: int, dtype: torch.dtype):
    assert_equals_dense(make([(context, context)], dtype=dtype))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_decodes_of_different_lengths_equal_dense_attention(dtype: torch.dtype):
    assert_equals_dense(make([(1, context) for context in (1, 2, 3, 4, 5, 8, 9, 31, 64, 65)], dtype=dtype))


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("blocks_and_new", ["1", "2", "B", "2B+3"])
@pytest.mark.parametrize("offset", ["0", "1", "B-1", "B", "3B+1"])
def test_a_chunk_attends_to_its_context_and_to_itself_up_to_the_diagonal(
    offset: str, blocks_and_new: str, block_size: int
):
    sizes = {"0": 0, "1": 1, "2": 2, "B-1": block_size - 1, "B": block_size, "3B+1": 3 * block_size + 1,
             "2B+3": 2 * block_size + 3}
    c, m = sizes[offset], sizes[blocks_and_new]
    assert_equals_dense(make([(m, c + m)], block_size))


def test_prefills_decodes_and_chunks_mix_in_one_call():
    assert_equals_dense(make([(5, 5), (1, 9), (3, 12), (1, 1), (7, 8), (1, 33), (2, 2)]))


def test_chunks_of_a_prompt_give_the_rows_of_the_whole_prefill():
    whole = make([(23, 23)])
    q = whole.q
    expected = whole.run(0.25)
    for start, end in ((0, 1), (1, 10), (10, 22), (22, 23)):
        out = paged_attention(
            q[start:end], whole.k_cache, whole.v_cache, whole.block_tables, torch.tensor([end]),
            torch.tensor([0, end - start]), 0.25,
        )
        torch.testing.assert_close(out, expected[start:end], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("new", [1, 3])
def test_query_head_h_reads_kv_head_h_over_the_group_size(group: int, new: int):
    case = make([(new, 6), (new, 9)], heads=(3 * group, 3), head_dim=8)
    case.v_cache.copy_(torch.arange(3.0)[:, None].expand_as(case.v_cache))
    out = case.run(1.0)
    for head in range(3 * group):
        torch.testing.assert_close(out[:, head], torch.full_like(out[:, head], float(head // group)))
    assert_equals_dense(make([(new, 6), (new, 9)], heads=(3 * group, 3), head_dim=8))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 120, 128, 192, 256])
def test_head_sizes_need_not_be_powers_of_two(head_dim: int):
    assert_equals_dense(make([(3, 5), (1, 6)], head_dim=head_dim), scale=head_dim**-0.5)


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64, 128, 256])
def test_block_sizes_from_one_token_to_many(block_size: int):
    contexts = sorted({1, max(block_size - 1, 1), block_size, block_size + 1})
    assert_equals_dense(make([(1, c) for c in contexts] + [(2, c) for c in contexts if c > 1], block_size))


@pytest.mark.parametrize("scale", [1.0, 0.01, 5.0])
def test_the_scale_is_the_one_given(scale: float):
    assert_equals_dense(make([(2, 7), (1, 9)]), scale=scale)


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("block_size", [4, 16])
def test_slots_that_hold_no_token_are_never_read(garbage: float, block_size: int):
    contexts = (1, block_size - 1, block_size, block_size + 1)
    case = make([(1, c) for c in contexts] + [(min(c, 2), c) for c in contexts], block_size, garbage=garbage)
    assert_equals_dense(case)


def test_what_a_table_row_holds_past_its_end_does_not_matter():
    """A row that a longer request used before: poison, another sequence's block, or minus one."""
    case = make([(1, 3), (1, 30), (2, 9)])
    expected = case.run(0.3)
    for stale in (POISON, -1, 0, 2**40):
        case.block_tables[0, 1:] = stale
        case.block_tables[2, 3:] = stale
        assert torch.equal(case.run(0.3), expected)


def test_a_sequence_without_context_gives_zeros():
    case = make([(1, 5), (1, 7)])
    q = torch.cat([case.q[:1], torch.ones_like(case.q[:1]), case.q[1:]])
    tables = torch.stack(
        [case.block_tables[0], torch.full_like(case.block_tables[0], POISON), case.block_tables[1]]
    )
    out = paged_attention(
        q, case.k_cache, case.v_cache, tables, torch.tensor([5, 0, 7]), torch.tensor([0, 1, 2, 3]), 0.3
    )
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    torch.testing.assert_close(out[[0, 2]], case.run(0.3))


def test_a_sequence_without_new_tokens_takes_no_row():
    case = make([(2, 5), (1, 7)])
    tables = torch.stack([case.block_tables[0], case.block_tables[1], case.block_tables[1]])
    out = paged_attention(
        case.q, case.k_cache, case.v_cache, tables, torch.tensor([5, 7, 7]), torch.tensor([0, 2, 2, 3]), 0.3
    )
    assert torch.equal(out, case.run(0.3))


@pytest.mark.parametrize("spread", [30.0, 0.0])
def test_very_large_and_equal_scores_stay_finite_and_right(spread: float):
    case = make([(1, 9), (4, 12)], spread=spread)
    assert case.run(1.0).isfinite().all()
    assert_equals_dense(case, scale=1.0)


def test_very_negative_scores_stay_finite_and_right():
    case = make([(1, 9), (3, 6)])
    case.q.fill_(100.0)
    for _, k, _ in case.dense:
        k.abs_().neg_()
    case.k_cache.copy_(-case.k_cache.abs())
    case.dense = [(torch.full_like(q, 100.0), k, v) for q, k, v in case.dense]
    assert_equals_dense(case, scale=1.0)


def test_queries_may_be_a_view_of_a_packed_projection():
    case = make([(2, 5), (1, 7)])
    packed = torch.randn(3, 8, 16)
    packed[:, :4] = case.q
    expected = case.run(0.3)
    case.q = packed[:, :4]
    torch.testing.assert_close(case.run(0.3), expected)


@pytest.mark.parametrize("layout", ["[2, N, B, G, D]", "[N, 2, B, G, D]", "v with other strides"])
def test_caches_are_read_through_their_strides(layout: str):
    case = make([(2, 5), (1, 7)])
    expected = case.run(0.3)
    if layout == "[2, N, B, G, D]":
        case.k_cache, case.v_cache = torch.stack([case.k_cache, case.v_cache])
    elif layout == "[N, 2, B, G, D]":
        both = torch.stack([case.k_cache, case.v_cache], dim=1)
        case.k_cache, case.v_cache = both[:, 0], both[:, 1]
    else:
        case.v_cache = case.v_cache.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    torch.testing.assert_close(case.run(0.3), expected)


def test_a_result_does_not_depend_on_its_neighbours():
    case = make([(1, 5), (3, 9), (1, 70)])
    together = case.run(0.3)
    for row, (start, end) in enumerate(((0, 1), (1, 4), (4, 5))):
        alone = paged_attention(
            case.q[start:end], case.k_cache, case.v_cache, case.block_tables[row : row + 1],
            case.context_lens[row : row + 1], torch.tensor([0, end - start]), 0.3,
        )
        torch.testing.assert_close(together[start:end], alone, atol=1e-5, rtol=1e-5)


def test_more_queries_than_context_is_an_error_with_the_numbers():
    case = make([(3, 5)])
    case.context_lens = torch.tensor([2])
    with pytest.raises(ValueError, match=r"(?s)3.*2"):
        case.run(0.3)
