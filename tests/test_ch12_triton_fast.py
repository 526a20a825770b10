"""Chapter 12's grader: kernels that keep a whole GPU busy.

Expected values are written out, or computed by naive models in double precision. Where kernels are
interpreted they run under watch: slots that hold no token are NaN and must not be loaded, tensors have gaps
after each row, programs must not meet, and the bytes they load are counted. K and V have strides of their
own. On a GPU only results count.

A program costs some 10 ms of the interpreter, whatever it does: few of them, and each with something to tell.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from minipaged.course import Layer, Mismatch, Task, expect, expect_close
from minipaged.course.layer import copied
from minipaged.kernels import triton_status

TASKS = (
    Task(
        1, "how many pieces", stars=1, points=10, minutes=5,
        hints=(
            "With 132 processors and 2 programs for each, 264 programs should run. Without splitting 8 would."
            " Into how many pieces does each of them fall?",
            "wanted = PROGRAMS_PER_PROCESSOR * num_processors // num_programs. What if num_programs is 0?",
            "max(1, min(wanted, max_context_len // MIN_SPLIT_LEN, MAX_SPLITS)), with max(1, num_programs) as"
            " the divisor.",
        ),
        compare="which of the three limits holds for a large batch, a short context and a small GPU",
    ),
    Task(
        2, "copy whole blocks", stars=2, points=15, minutes=15,
        hints=(
            "A block's K is B · G rows of D elements. Which slot and which head is row r of them?",
            "rows = tl.program_id(2) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS); slot = rows // G and head ="
            " rows % G, each as a column, [:, None]. The mask: rows < B * G, and offs_d < D.",
            "offs_k = layer * stride_kl + slot * stride_kb + head * stride_kg + offs_d * stride_kd; load from"
            " k_cache_ptr + src * stride_kn + offs_k, store the same with dst * stride_kn; and V likewise.",
        ),
        compare="that one launch serves all layers, K and V, whatever their strides",
    ),
    Task(
        3, "merge the pieces", stars=2, points=20, minutes=15,
        hints=(
            "Each piece is a mean already. To join means of 10 and of 2 numbers you need both counts; here"
            " the counts are 2^w.",
            "highest = tl.max(w, axis=0); factors = tl.exp2(w - highest): all are at most 1. Lanes without a"
            " piece are loaded as -inf, so their factor is 0.",
            "out = tl.sum(factors[:, None] * pieces, axis=0) / total, where total = tl.sum(factors, axis=0),"
            " or 1 if that is 0; and take 0 for highest where it is -inf.",
        ),
        compare="the two places where -inf needs care",
    ),
    Task(
        4, "one piece per program", stars=2, points=20, minutes=20,
        hints=(
            "600 tokens in 4 pieces are 150 each; with tiles of 128, each piece takes 2 whole tiles.",
            "split_len = tl.cdiv(tl.cdiv(context_len, num_splits), BLOCK_N) * BLOCK_N; it starts at split *"
            " split_len. What must not lie behind context_len?",
            "The row of head h: (seq * num_heads + h) * num_splits + split, where num_heads is"
            " tl.num_programs(1) * R. Its weight: highest + log2(total); divide acc by total, or by 1 if that"
            " is 0.",
        ),
        compare="why the weight is kept as a logarithm, and what an empty piece leaves",
    ),
    Task(
        5, "many queries a program", stars=2, points=20, minutes=20,
        hints=(
            "With R = 3, rows 0, 1, 2 are query 0 of the tile, heads 0, 1, 2; row 3 is query 1, head 0.",
            "query = first_query + offs_r // R; head = kv_head * R + offs_r % R; a row is a query if it lies"
            " below tile_len * R and query < query_len.",
            "num_earlier = context_len - query_len; query i sees num_earlier + i + 1 positions. The last one"
            " of the tile is first_query + tile_len - 1, unless the context ends before.",
        ),
        compare="the last line of the causal logic: `end`, by which half of a long prompt's K is not read",
    ),
    Task(
        6, "a shared prefix, read once", stars=3, points=15, minutes=30,
        hints=(
            "paged_decode reads K once for the R heads of a group. Which heads of the whole batch look at"
            " the very same shared K?",
            "q.view(S, G, R, D).transpose(0, 1).reshape(1, G * S * R, D) is one sequence with groups of S · R"
            " heads. decode_pieces gives it back as [1, G · S · R, 1, D]; undo the same steps.",
            "Then decode_pieces(q, …, block_tables[:, num_shared:], context_lens - num_shared * B, scale, 1),"
            " torch.cat both along dimension 2, and merge_pieces.",
        ),
        compare="that no kernel is new: a shared prefix is a larger group, and a merge",
    ),
)

pytestmark = pytest.mark.skipif(
    not triton_status().installed, reason="needs the package triton, which exists for Linux only"
)

NO_KERNEL = "it was computed without a kernel"
ROUNDED_UP = "the number of pieces was rounded up: some processors get a third program"
TOO_SHORT = "a piece is shorter than MIN_SPLIT_LEN tokens"
WITHOUT_LIMIT = "more pieces than MAX_SPLITS"
ONLY_K = "V was not copied, or K was not"
BACKWARDS = "dst was copied to src"
FIRST_LAYER = "only layer 0 was copied"
PLAIN_MEAN = "the plain mean of the pieces: their weights were not used"
BASE_E = "e^w was taken: weights are powers of two"
NOT_DIVIDED = "the weighted pieces were summed, and not divided by the sum of weights"
GHOSTS = "lanes without a piece counted as pieces of weight 2^0"
NATURAL_LOG = "the weight is a natural logarithm: log2 is asked for"
WITHOUT_HIGHEST = "the weight is log2(total): `highest`, by which total was measured, is missing"
ACC_STORED = "the piece was not divided by its total"
NAN_IN_EMPTY = "an empty piece is 0 / 0"
READ_TWICE = "some positions belong to two pieces"
UPPER_LEFT = "a chunk's queries were counted from position 0: the context before them was forgotten"
NOT_ITSELF = "a query does not see itself"
NO_MASK = "queries see tokens that come after them"
READS_ALL = "every tile of queries reads the whole context"
PREFIX_PER_SEQUENCE = "the shared blocks were read once for each sequence"

TOLERANCE = 2e-5  # fp32
NAN = float("nan")


def run(
    layer: Layer, what: str, function: Any, *arguments: Any, unwritten: tuple[int, ...] = (),
    gaps: bool = True,
) -> dict[str, Any]:
    """What `run_kernel` gives, if the kernels touched nothing that they must not."""
    runner = layer.given("minipaged.course.kernel_run")
    given = map(copied, arguments)
    done: dict[str, Any] = runner.run_kernel(function, *given, unwritten=unwritten, gaps=gaps)
    if done["fault"]:
        raise Mismatch(what, "no wrong load or store", done["fault"])
    if done["watched"]:
        expect(f"{what}: whether a kernel ran", done["launches"] != [], True, mistakes={False: NO_KERNEL})
    return done


def loaded(done: dict[str, Any], tensor: str) -> int:
    """Bytes loaded of one argument, in all launches."""
    return sum(launch["loaded"].get(tensor, 0) for launch in done["launches"])


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: list[int] | None = None) -> Tensor:
    """q [Q, H, D] against k and v [K, G, D], in double precision; query i sees the first visible[i]."""
    group = q.shape[1] // max(1, k.shape[1])
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if visible is not None:
        hidden = torch.arange(len(k)) >= torch.tensor(visible)[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v).to(q.dtype)


def scattered(
    context_lens: list[int], G: int, D: int, B: int, dtype: torch.dtype = torch.float32, num_shared: int = 0
) -> tuple[Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Caches of NaN with some contexts in scattered blocks: k_cache, v_cache, block_tables, dense k and v.

    Tables are wider than needed, and what lies behind a context is no block's id. V's dimensions lie in
    another order than K's. The first `num_shared` blocks of all sequences are the same.
    """
    widths = [-(-length // B) for length in context_lens]
    order = torch.randperm(sum(widths) + 2).tolist()
    k_cache = torch.full((len(order), B, G, D), NAN, dtype=dtype)
    v_cache = torch.full((G, len(order), B, D), NAN, dtype=dtype).permute(1, 2, 0, 3)
    tables = torch.full((len(widths), max(widths) + 1), 10**6)
    prefix: list[int] = [order.pop() for _ in range(num_shared)]
    dense = []
    for row, (width, length) in enumerate(zip(widths, context_lens, strict=True)):
        blocks = prefix + [order.pop() for _ in range(width - num_shared)]
        tables[row, :width] = torch.tensor(blocks, dtype=torch.int64)
        new = torch.arange(num_shared * B if row else 0, length)  # the shared ones are there already
        for cache in (k_cache, v_cache):
            cache[tables[row, new // B], new % B] = torch.randn(len(new), G, D).to(dtype)
        where = tables[row, torch.arange(length) // B], torch.arange(length) % B
        dense.append((k_cache[where], v_cache[where]))
    return k_cache, v_cache, tables, dense


# -- task 1: how many pieces ---------------------------------------------------------------------------------


CHOICES: tuple[tuple[int, int, int, int, dict[int, str]], ...] = (
    # programs, context, processors: pieces, and wrong numbers of them
    (8, 131072, 132, 33, {}),
    (8, 1024, 132, 4, {33: TOO_SHORT}),
    (512, 4096, 132, 1, {}),
    (100, 65536, 132, 2, {3: ROUNDED_UP}),
    (1, 131072, 132, 128, {264: WITHOUT_LIMIT, 132: WITHOUT_LIMIT}),
    (1, 511, 132, 1, {2: TOO_SHORT, 264: TOO_SHORT, 128: TOO_SHORT}),
    (1, 512, 132, 2, {}),
    (4, 65536, 108, 54, {}),
    (1, 100, 132, 1, {0: "no piece at all: a context is at least one"}),
    (264, 65536, 132, 1, {}),
    (0, 131072, 132, 128, {}),
    (0, 0, 1, 1, {}),
    (16, 65536, 1, 1, {0: "no piece at all: a context is at least one"}),
)


@pytest.mark.task(1)
def test_every_processor_has_work_and_no_piece_is_too_short(layer: Layer) -> None:
    for num_programs, context, processors, expected, mistakes in CHOICES:
        what = f"choose_num_splits({num_programs}, {context}, {processors})"
        got = layer.choose_num_splits(num_programs, context, processors)
        expect(what, got, expected, mistakes=mistakes)


# -- task 2: copy_blocks -------------------------------------------------------------------------------------

SMALL, LARGE = (2, 5, 4, 2, 8), (1, 2, 9, 5, 80)  # L, N, B, G, D; one block of LARGE takes two programs


def check_copies(
    layer: Layer, k: Tensor, v: Tensor, copies: list[tuple[int, int]], mistakes: tuple[tuple[str, Any], ...]
) -> dict[str, Any]:
    what = f"copy_blocks(k_cache, v_cache, {copies}), caches {list(k.shape)}"
    done = run(layer, what, layer.copy_blocks, k, v, torch.tensor(copies).view(-1, 2))
    for number, (name, before) in enumerate((("k_cache", k), ("v_cache", v))):
        expected = before.clone()
        for src, dst in copies:
            expected[:, dst] = before[:, src]
        wrong = [(change(before.clone()), mistake) for mistake, change in mistakes]
        expect_close(f"{name} after {what}", done["arguments"][number].clone(), expected, 0.0, mistakes=wrong)
    return done


def backwards(cache: Tensor) -> Tensor:
    cache[:, 1] = cache[:, 3]
    return cache


def first_layer(cache: Tensor) -> Tensor:
    cache[0, 3] = cache[0, 1]
    return cache


@pytest.mark.task(2)
def test_a_block_is_copied_in_every_layer_of_k_and_v(layer: Layer) -> None:
    k, v = torch.randn(SMALL), torch.randn(SMALL)
    mistakes = ((ONLY_K, lambda cache: cache), (BACKWARDS, backwards), (FIRST_LAYER, first_layer))
    check_copies(layer, k, v, [(1, 3)], mistakes)


@pytest.mark.task(2)
def test_several_copies_and_one_source_for_two(layer: Layer) -> None:
    shape = (1, 5, 3, 1, 20)
    check_copies(layer, torch.randn(shape), torch.randn(shape), [(1, 3), (1, 0), (2, 4)], ())


@pytest.mark.task(2)
def test_blocks_of_several_programs_are_loaded_once(layer: Layer) -> None:
    done = check_copies(layer, torch.randn(LARGE), torch.randn(LARGE), [(1, 0)], ())
    if done["launches"]:
        for name in ("k_cache_ptr", "v_cache_ptr"):
            expect(f"bytes that copy_blocks loads through {name}", loaded(done, name), 9 * 5 * 80 * 4)


@pytest.mark.task(2)
def test_k_and_v_have_strides_of_their_own(layer: Layer) -> None:
    k = torch.randn(2, 5, 4, 8, 2).transpose(3, 4)  # the elements of a head are not neighbours
    v = torch.randn(5, 2, 4, 2, 8).transpose(0, 1)  # and the layers of a block are
    check_copies(layer, k, v, [(1, 3)], ())


# -- task 3: merge_pieces ------------------------------------------------------------------------------------


def merged(pieces: Tensor, weights: Tensor, kind: str = "right") -> Tensor:
    """The definition in double precision, or a known mistake."""
    w, total = weights.double(), 0.0
    w = w - w.amax(dim=-1, keepdim=True).clamp(min=-1e9)
    factors = torch.exp(w) if kind == BASE_E else torch.exp2(w)
    if kind == PLAIN_MEAN:
        factors = torch.ones_like(w)
    summed = (factors[..., None] * pieces.double()).sum(dim=2)
    if kind == NOT_DIVIDED:
        return summed.float()
    total = factors.sum(dim=-1)[..., None]
    if kind == GHOSTS:
        P = weights.shape[-1]
        ghosts = (1 << (P - 1).bit_length()) - P
        total = total + ghosts * torch.exp2(-weights.double().amax(dim=-1, keepdim=True))
    return (summed / torch.where(total > 0, total, 1.0)).float()


def check_merge(layer: Layer, what: str, pieces: Tensor, weights: Tensor, mistakes: tuple[str, ...]) -> None:
    done = run(layer, what, layer.merge_pieces, pieces, weights, torch.float32, gaps=False)
    wrong = [(merged(pieces, weights, mistake), mistake) for mistake in mistakes]
    expect_close(what, done["result"], merged(pieces, weights), TOLERANCE, TOLERANCE, mistakes=wrong)


@pytest.mark.task(3)
def test_two_pieces_by_hand(layer: Layer) -> None:
    pieces, weights = torch.tensor([[[[10.0], [20.0]]]]), torch.tensor([[[3.0, 1.0]]])
    done = run(layer, "merge_pieces", layer.merge_pieces, pieces, weights, torch.float32, gaps=False)
    what = "merge_pieces of the pieces 10 and 20 with the weights 3 and 1"
    known = ((torch.tensor([[[15.0]]]), PLAIN_MEAN), (merged(pieces, weights, BASE_E), BASE_E),
             (merged(pieces, weights, NOT_DIVIDED), NOT_DIVIDED))
    expect_close(what, done["result"], torch.tensor([[[12.0]]]), 1e-5, mistakes=known)


@pytest.mark.task(3)
@pytest.mark.parametrize(("P", "D"), [(3, 20), (5, 8), (1, 16)])
def test_any_number_of_pieces_and_any_head_size(layer: Layer, P: int, D: int) -> None:
    pieces, weights = torch.randn(2, 2, P, D), 2 * torch.randn(2, 2, P)
    what = f"merge_pieces of {P} pieces, D = {D}, 2 sequences of 2 heads"
    check_merge(layer, what, pieces, weights, (PLAIN_MEAN, BASE_E, NOT_DIVIDED, GHOSTS))


@pytest.mark.task(3)
def test_weights_may_be_larger_than_powers_of_two_can_bear(layer: Layer) -> None:
    weights = torch.tensor([1000.0, -1000.0])[:, None] + torch.randn(1, 2, 3)
    check_merge(layer, "merge_pieces with weights near 1000 and -1000", torch.randn(1, 2, 3, 16), weights, ())


@pytest.mark.task(3)
def test_empty_pieces_count_nothing_and_no_context_gives_zeros(layer: Layer) -> None:
    pieces, weights = torch.randn(2, 1, 3, 16), torch.randn(2, 1, 3)
    pieces[0, 0, 2], weights[0, 0, 2] = 0, float("-inf")
    pieces[1], weights[1] = 0, float("-inf")
    check_merge(
        layer, "merge_pieces with an empty piece, and with nothing but empty ones", pieces, weights, ()
    )


@pytest.mark.task(3)
def test_the_result_has_the_dtype_that_is_asked_for(layer: Layer) -> None:
    pieces, weights = torch.randn(1, 1, 2, 16), torch.randn(1, 1, 2)
    what = "merge_pieces(…, torch.float16)"
    done = run(layer, what, layer.merge_pieces, pieces, weights, torch.float16, gaps=False)
    expect_close(what, done["result"], merged(pieces, weights).half(), 2e-3)


# -- task 4: decode_pieces, and the whole --------------------------------------------------------------------


def expected_pieces(
    layer: Layer, q: Tensor, dense: list[tuple[Tensor, Tensor]], scale: float, P: int
) -> tuple[Tensor, Tensor]:
    """The pieces' attentions and weights, by their definition."""
    S, H, D = q.shape
    pieces, weights = torch.zeros(S, H, P, D), torch.full((S, H, P), float("-inf"))
    for s, (k, v) in enumerate(dense):
        group = H // k.shape[1]
        tiles = layer.given("minipaged.kernels.paged.triton_decode").tile_sizes(group, D, q.dtype)
        tile = tiles["BLOCK_N"]
        length = math.ceil(math.ceil(len(k) / P) / tile) * tile
        for p in range(P):
            k_piece, v_piece = (x[p * length : (p + 1) * length] for x in (k, v))
            if len(k_piece):
                keys = k_piece.double().repeat_interleave(group, dim=1)
                scores = torch.einsum("hd,khd->hk", q[s].double(), keys) * scale
                weights[s, :, p] = (scores.logsumexp(dim=-1) / math.log(2)).float()
                pieces[s, :, p] = attention(q[s : s + 1], k_piece, v_piece, scale)[0].float()
    return pieces, weights


def check_pieces(layer: Layer, context_lens: list[int], G: int, R: int, D: int, P: int, B: int) -> None:
    k_cache, v_cache, tables, dense = scattered(context_lens, G, D, B)
    q, scale = torch.randn(len(context_lens), G * R, D), 0.3
    what = f"decode_pieces(…, context_lens={context_lens}, num_splits={P}), H={G * R}, G={G}, D={D}, B={B}"
    done = run(
        layer, what, layer.decode_pieces, q, k_cache, v_cache, tables, torch.tensor(context_lens), scale, P,
        unwritten=(1, 2),
    )
    pieces, weights = expected_pieces(layer, q, dense, scale, P)
    got_pieces, got_weights = done["result"]
    exists = weights > float("-inf")
    if not bool(exists.all()):
        broken = bool(got_pieces[~exists].isnan().any()) or bool(got_weights[~exists].isnan().any())
        expect(f"whether an empty piece of {what} is NaN", broken, False, {True: NAN_IN_EMPTY})
    known = [(weights * math.log(2), NATURAL_LOG)]
    expect_close(f"weights of {what}", got_weights, weights, 1e-4, 1e-5, mistakes=known)
    expect_close(f"pieces of {what}", got_pieces, pieces, TOLERANCE, TOLERANCE)
    if done["launches"]:
        once = sum(context_lens) * G * D * 4
        for name in ("k_cache_ptr", "v_cache_ptr"):
            got = loaded(done, name)
            more = {got: READ_TWICE} if got > once else {}
            expect(f"bytes loaded through {name} by {what}", got, once, mistakes=more)


@pytest.mark.task(4)
def test_the_pieces_of_600_tokens(layer: Layer) -> None:
    check_pieces(layer, [600], G=1, R=2, D=16, P=4, B=16)


@pytest.mark.task(4)
def test_short_contexts_and_none_leave_empty_pieces(layer: Layer) -> None:
    check_pieces(layer, [130, 0, 1], G=1, R=1, D=16, P=2, B=16)


@pytest.mark.task(4)
def test_any_group_and_head_size_and_pieces_of_whole_tiles(layer: Layer) -> None:
    check_pieces(layer, [256], G=2, R=3, D=20, P=2, B=7)


@pytest.mark.task(4)
def test_a_piece_of_one_token_is_its_value(layer: Layer) -> None:
    # One key, so its weight in base 2 is score / ln 2, and the piece is its value, whatever the score.
    q, k, v = torch.full((1, 1, 16), 1.0), torch.full((1, 1, 1, 16), 3.0), torch.randn(1, 1, 1, 16)
    arguments = (q, k, v, torch.tensor([[0]]), torch.tensor([1]), 1.0, 1)
    done = run(layer, "decode_pieces of one token", layer.decode_pieces, *arguments)
    pieces, weights = done["result"]
    known = [(torch.full((1, 1, 1), 48.0), NATURAL_LOG), (torch.zeros(1, 1, 1), WITHOUT_HIGHEST)]
    what = "the weight of one token with a score of 48: log2(e^48)"
    expect_close(what, weights, torch.full((1, 1, 1), 48 / math.log(2)), 1e-3, mistakes=known)
    expect_close("the piece of one token", pieces, v.view(1, 1, 1, 16), 1e-5)


@pytest.mark.task(4)
def test_total_is_divided_by_and_kept_in_the_weight(layer: Layer) -> None:
    # 4 tokens that all fit equally well, with a score of 0: total is 4, highest 0.
    q, k, v = torch.zeros(1, 1, 16), torch.randn(1, 4, 1, 16), torch.randn(1, 4, 1, 16)
    arguments = (q, k, v, torch.tensor([[0]]), torch.tensor([4]), 1.0, 1)
    pieces, weights = run(layer, "decode_pieces of 4 tokens", layer.decode_pieces, *arguments)["result"]
    expected = v.mean(dim=1, keepdim=True)
    expect_close("the weight of 4 tokens with a score of 0", weights, torch.full((1, 1, 1), 2.0), 1e-5)
    known = [(4 * expected, ACC_STORED)]
    expect_close("the piece of 4 tokens with a score of 0", pieces, expected, 1e-5, mistakes=known)


@pytest.mark.task(4)
@pytest.mark.parametrize(("dtype", "P"), [(torch.float32, 3), (torch.bfloat16, 2)])
def test_split_and_merged_it_is_the_attention_to_all(layer: Layer, dtype: torch.dtype, P: int) -> None:
    context_lens = [260, 0] if P == 3 else [130]
    k_cache, v_cache, tables, dense = scattered(context_lens, 1, 32, 16, dtype)
    q = torch.randn(len(context_lens), 2, 32).to(dtype)
    what = f"paged_decode_split(…, context_lens={context_lens}, num_splits={P}) in {dtype}"
    done = run(
        layer, what, layer.paged_decode_split, q, k_cache, v_cache, tables, torch.tensor(context_lens), 0.2,
        P, unwritten=(1, 2),
    )
    rows = [attention(q[s : s + 1], *kv, 0.2) if len(kv[0]) else 0 * q[:1] for s, kv in enumerate(dense)]
    tolerance = TOLERANCE if dtype == torch.float32 else 2e-2
    expect_close(what, done["result"], torch.cat(rows), tolerance, tolerance)


# -- task 5: paged_prefill -----------------------------------------------------------------------------------


def check_prefill(
    layer: Layer, sequences: list[tuple[int, int]], G: int, R: int, D: int, B: int = 16,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Sequences of (new tokens, context), a batch of them in one call."""
    news, context_lens = [new for new, _ in sequences], [context for _, context in sequences]
    k_cache, v_cache, tables, dense = scattered(context_lens, G, D, B, dtype)
    q, starts = torch.randn(sum(news), G * R, D).to(dtype), torch.tensor([0, *news]).cumsum(0)
    what = f"paged_prefill(…, context_lens={context_lens}, query_start_loc={starts.tolist()}), R={R}"
    done = run(
        layer, what, layer.paged_prefill, q, k_cache, v_cache, tables, torch.tensor(context_lens), starts,
        0.3, unwritten=(1, 2),
    )
    kinds = {
        "right": lambda new, context, i: context - new + i + 1,
        UPPER_LEFT: lambda new, context, i: i + 1,
        NOT_ITSELF: lambda new, context, i: max(1, context - new + i),
        NO_MASK: lambda new, context, i: context,
    }
    results = {}
    for kind, visible in kinds.items():
        rows = [torch.zeros(0, G * R, D, dtype=dtype)]
        for (start, end), (new, context), kv in zip(pairwise(starts.tolist()), sequences, dense, strict=True):
            sees = [visible(new, context, i) for i in range(new)]
            rows.append(attention(q[start:end], *kv, 0.3, sees) if context else 0 * q[start:end])
        results[kind] = torch.cat(rows)
    expected, tolerance = results.pop("right"), TOLERANCE if dtype == torch.float32 else 2e-2
    known = [(tensor, kind) for kind, tensor in results.items()]
    expect_close(what, done["result"], expected, tolerance, tolerance, mistakes=known)
    return done


@pytest.mark.task(5)
def test_a_whole_prompt(layer: Layer) -> None:
    check_prefill(layer, [(5, 5)], G=1, R=2, D=16)


@pytest.mark.task(5)
def test_a_chunk_sees_the_context_before_it(layer: Layer) -> None:
    check_prefill(layer, [(3, 150)], G=2, R=3, D=20)


@pytest.mark.task(5)
def test_prompts_chunks_and_decodes_in_one_call(layer: Layer) -> None:
    check_prefill(layer, [(7, 7), (1, 40), (0, 9), (3, 18)], G=1, R=3, D=16)


@pytest.mark.task(5)
def test_a_sequence_without_context_gives_zeros(layer: Layer) -> None:
    check_prefill(layer, [(2, 0), (3, 3)], G=1, R=2, D=16)


@pytest.mark.task(5)
def test_a_prompt_of_several_tiles_reads_no_further_than_it_sees(layer: Layer) -> None:
    new, R, D = 200, 2, 16
    done = check_prefill(layer, [(new, new)], G=1, R=R, D=D)
    if done["launches"]:
        fast = layer.given("minipaged.kernels.paged.triton_fast")
        tile = fast.prefill_rows(D, torch.float32) // R
        ends = [min(new, first + tile) for first in range(0, new, tile)]
        known = {len(ends) * new * D * 4: READS_ALL}
        what = f"bytes of K loaded for a prompt of {new} in {len(ends)} tiles of queries"
        expect(what, loaded(done, "k_cache_ptr"), sum(ends) * D * 4, mistakes=known)


@pytest.mark.task(5)
def test_a_group_that_does_not_fill_its_tile_with_more_queries_than_one_holds(layer: Layer) -> None:
    check_prefill(layer, [(90, 95)], G=1, R=3, D=16)


@pytest.mark.task(5)
def test_prefill_in_bfloat16(layer: Layer) -> None:
    check_prefill(layer, [(5, 9)], G=2, R=2, D=16, dtype=torch.bfloat16)


# -- task 6: the challenge -----------------------------------------------------------------------------------


def check_shared(
    layer: Layer, context_lens: list[int], G: int, R: int, num_shared: int, dtype: torch.dtype = torch.float32
) -> None:
    B, D = 16, 16
    k_cache, v_cache, tables, dense = scattered(context_lens, G, D, B, dtype, num_shared)
    q, contexts = torch.randn(len(context_lens), G * R, D).to(dtype), torch.tensor(context_lens)
    what = f"paged_decode_shared(…, context_lens={context_lens}, num_shared={num_shared}), H={G * R}, G={G}"
    done = run(
        layer, what, layer.paged_decode_shared, q, k_cache, v_cache, tables, contexts, num_shared, 0.3,
        unwritten=(1, 2),
    )
    expected = torch.cat([attention(q[s : s + 1], *kv, 0.3) for s, kv in enumerate(dense)])
    tolerance = TOLERANCE if dtype == torch.float32 else 3e-3
    expect_close(what, done["result"], expected, tolerance, tolerance)
    if done["launches"]:
        own = sum(context_lens) - len(context_lens) * num_shared * B
        slot = G * D * q.element_size()
        known = {sum(context_lens) * slot: PREFIX_PER_SEQUENCE}
        for name in ("k_cache_ptr", "v_cache_ptr"):
            what_loaded = f"bytes loaded through {name} by {what}"
            expect(what_loaded, loaded(done, name), (num_shared * B + own) * slot, mistakes=known)


@pytest.mark.task(6)
def test_a_shared_prefix_is_read_once_for_all_sequences(layer: Layer) -> None:
    check_shared(layer, [70, 80], G=2, R=2, num_shared=4)


@pytest.mark.task(6)
def test_one_head_a_group_and_one_token_behind_the_prefix(layer: Layer) -> None:
    check_shared(layer, [33, 34, 35], G=1, R=1, num_shared=2)


@pytest.mark.task(6)
def test_nothing_shared_is_an_ordinary_decode(layer: Layer) -> None:
    check_shared(layer, [20, 5], G=1, R=1, num_shared=0)


@pytest.mark.task(6)
def test_the_shared_result_has_the_dtype_of_the_query(layer: Layer) -> None:
    check_shared(layer, [50], G=1, R=3, num_shared=2, dtype=torch.float16)
