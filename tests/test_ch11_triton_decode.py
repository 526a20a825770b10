"""Chapter 11's grader: the first Triton kernels.

Expected values are written out, or computed by naive models in double precision. Where kernels are
interpreted they run under watch: slots that hold no token are NaN and must not be loaded, tensors have gaps
after each row, programs must not meet, and the bytes they load are counted. K and V, and all that is read
through an index, have strides of their own. On a GPU only results count.

A launch costs some 10 ms of the interpreter, and each program in it as much again: few, and each with
something to tell.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from minipaged.course import Layer, Mismatch, Task, expect, expect_close
from minipaged.course.layer import copied
from minipaged.kernels import triton_status

TASKS = (
    Task(
        1, "add two vectors", stars=1, points=5, minutes=5,
        hints=(
            "Program 0 takes elements 0 to 127, program 1 takes 128 to 255. Where does program p start?",
            "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) are the elements, and offs < n says which"
            " of them exist.",
            "x = tl.load(x_ptr + offs, mask=offs < n), y likewise; tl.store(out_ptr + offs, x + y, mask=offs"
            " < n).",
        ),
        compare="that the mask stands in all three accesses",
    ),
    Task(
        2, "scale rows", stars=1, points=10, minutes=10,
        hints=(
            "Element [row, column] of x lies at x_ptr + row * stride_xm + column * stride_xn.",
            "row = tl.program_id(0); factor = tl.load(factors_ptr + row * stride_fm) is one number, and"
            " columns = tl.arange(0, BLOCK) are all columns at once, and maybe some more.",
            "x = tl.load(x_ptr + row * stride_xm + columns * stride_xn, mask=columns < N); store x * factor"
            " at out_ptr + row * stride_om + columns * stride_on, with the same mask.",
        ),
        compare="which part of an address is one number, and which is a whole tile of them",
    ),
    Task(
        3, "gather rows through an index", stars=1, points=10, minutes=10,
        hints=(
            "The row's number is in memory: row = tl.load(index_ptr + i * stride_it).to(tl.int64).",
            "A lane is loaded if its column exists and the row is not -1: mask=(columns < D) & (row >= 0).",
            "tl.load(table_ptr + row * stride_tn + columns * stride_td, mask=…, other=0.0) is all zeros for"
            " -1; store it with mask=columns < D.",
        ),
        compare="the two masks, and what `other` is for",
    ),
    Task(
        4, "a softmax's sum, tile by tile", stars=2, points=15, minutes=15,
        hints=(
            "It is the loop of chapter 5's online softmax, without values. Begin with the columns: first +"
            " tl.arange(0, BLOCK), masked by < N, and other=float(\"-inf\").",
            "new_highest = tl.maximum(highest, tl.max(x, axis=0)); what was summed before is too large by"
            " tl.exp(highest - new_highest).",
            "total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(x - new_highest), axis=0); then"
            " highest = new_highest. At the end store highest + tl.log(total) at out_ptr + row.",
        ),
        compare="what the lanes hold that don't exist, and why nothing special is done in the first step",
    ),
    Task(
        5, "store K and V", stars=2, points=15, minutes=15,
        hints=(
            "It is task 3 the other way round: the index names the row that is stored. Slot 6 of blocks of 4:"
            " block 6 // 4, row 6 % 4.",
            "offs_g = tl.arange(0, BLOCK_G)[:, None].to(tl.int64) and offs_d = tl.arange(0, BLOCK_D)[None,"
            " :].to(tl.int64) make a tile together; mask = (offs_g < G) & (offs_d < D).",
            "Inside `if slot >= 0:`, load from k_ptr + token * stride_kt + offs_g * stride_kg + offs_d *"
            " stride_kd; store to k_cache_ptr + block * stride_kcn + row * stride_kcb + offs_g * stride_kcg +"
            " offs_d * stride_kcd. V likewise, with its own strides.",
        ),
        compare="what is read for a token that is padding: its slot, and nothing else",
    ),
    Task(
        6, "attend to one context", stars=2, points=20, minutes=25,
        hints=(
            "position = first + tl.arange(0, BLOCK_N), and exists = position < end. The table:"
            " tl.load(table_ptr + (position // B).to(tl.int64) * stride_tm, mask=exists, other=0).",
            "block = block.to(tl.int64)[:, None] and row = (position % B).to(tl.int64)[:, None] are columns,"
            " offs_d[None, :] is a row: k_ptr + block * stride_kn + row * stride_kb + offs_d[None, :] *"
            " stride_kd is a tile of K's addresses, with the mask exists[:, None] & (offs_d < D)[None, :].",
            "scores = tl.where(position[None, :] < visible[:, None], scores, float(\"-inf\")); new_highest ="
            " tl.maximum(highest, tl.max(scores, axis=1)); weights = tl.exp2(scores - new_highest[:, None]);"
            " shrink = tl.exp2(highest - new_highest); total and acc are multiplied by shrink (acc by"
            " shrink[:, None]) before they grow.",
        ),
        compare="the three things that are masked: the table, K and V, and the scores",
    ),
    Task(
        7, "decode a group of heads", stars=2, points=15, minutes=15,
        hints=(
            "Program (seq, kv_head) serves the query heads kv_head * R up to kv_head * R + R - 1, as rows 0"
            " to R - 1 of a tile that has BLOCK_R rows.",
            "heads = kv_head * R + offs_r, and q lies at q_ptr + seq * stride_qs + heads[:, None] * stride_qh"
            " + offs_d[None, :] * stride_qd, masked by (offs_r < R)[:, None] & (offs_d < D)[None, :].",
            "out = acc / tl.where(total > 0, total, 1.0)[:, None]; store out.to(out_ptr.dtype.element_ty) by"
            " stride_os, stride_oh and stride_od, with q's mask.",
        ),
        compare="that K and V are read once for all heads of the group",
    ),
    Task(
        8, "store and decode in one", stars=3, points=10, minutes=30,
        hints=(
            "Put tasks 5 and 7 together, for one KV head: offs_d is one row [BLOCK_D]. The new token's slot:"
            " table entry (context_len - 1) // B, row (context_len - 1) % B.",
            "attend(q, visible, 0, context_len - 1, …) leaves the new token out. Its score: tl.sum(q *"
            " k[None, :], axis=1) * (scale * 1.4426950408889634), all in fp32.",
            "new_highest = tl.maximum(highest, score); shrink = tl.exp2(highest - new_highest); weight ="
            " tl.exp2(score - new_highest); total = total * shrink + weight; acc = acc * shrink[:, None] +"
            " weight[:, None] * v[None, :].",
        ),
        compare="how a value in registers joins a running softmax, so that no store must be waited for",
    ),
)

pytestmark = pytest.mark.skipif(
    not triton_status().installed, reason="needs the package triton, which exists for Linux only"
)

NO_KERNEL = "it was computed without a kernel"
NO_MASK = "lanes that have no element load or store: a mask is missing or too wide"
OUTSIDE = "none of the lanes has an element: the address is wrong, or nothing is masked"
MEET = "two programs write the same elements: the program's number is missing in an address"
GARBAGE = "slots that hold no token were read"
ROW_0 = "every row was multiplied by factors[0]"
CONTIGUOUS = "x was read as if it were contiguous: its strides were not used"
NO_OTHER = "lanes that were not loaded were used: what they hold is anything at all, without `other`"
PADDING_LOADED = "something was loaded where the index is -1"
GHOSTS = "lanes without an element counted as elements of 0"
NOT_RESCALED = "what was summed before a higher element came was not made smaller"
NO_HIGHEST = "the highest element was not taken off before the exponential, which overflowed"
READ_TWICE = "elements were loaded twice"
ONLY_K = "one of the two caches was not written"
EXCHANGED = "K went to V's cache, or V to K's"
NO_SCALE = "the scores were not multiplied by `scale`"
NATURAL = "weights are powers of e, or scores not in units of ln 2: they are powers of 2 here"
ALL_VISIBLE = "rows see positions that are not visible to them"
NOT_DIVIDED = "the sum of weights times V was not divided by the sum of weights"
NAN_WITHOUT_CONTEXT = "without context it is 0 / 0"
DEALT_OUT = "query head h read KV head h % G: neighbours share one, h // (H / G)"
FIRST_GROUP = "every program served the query heads of the first group"
PER_HEAD = "K was loaded once for each query head, not once for the group"
NARROW = "an offset was computed in 32 bits: in a tensor of 2^31 elements and more it gets negative"
NEW_LOADED = "the new token's row was loaded back from the cache that it was just stored to"

PUZZLES = (1, 2, 3, 4, 6)  # the package has no such functions; its `attend` is judged by task 7
TOLERANCE = 2e-5  # fp32
NAN = float("nan")


@pytest.fixture(autouse=True)
def _the_package_has_no_puzzles(request: pytest.FixtureRequest) -> None:
    mark = request.node.get_closest_marker("task")
    if mark.args[0] in PUZZLES and request.config.getoption("--impl") == "minipaged":
        pytest.skip("a puzzle, which the package has no use for; judged with --impl solutions")


def run(
    layer: Layer, what: str, function: Any, *arguments: Any, unwritten: tuple[int, ...] = (),
    gaps: bool = True, far: tuple[int, ...] = (),
) -> dict[str, Any]:
    """What `run_kernel` gives, if the kernels touched nothing that they must not."""
    runner = layer.given("minipaged.course.kernel_run")
    done: dict[str, Any] = runner.run_kernel(
        function, *map(copied, arguments), unwritten=unwritten, gaps=gaps, far=far
    )
    kinds = {r"(\d+) of \1 lanes": OUTSIDE, "outside and not masked": NO_MASK, "stores it too": MEET,
             "nobody has written": GARBAGE}
    if far:
        kinds = {r"_ptr\[-": NARROW} | kinds
    if fault := done["fault"]:
        named = [name for pattern, name in kinds.items() if re.search(pattern, fault)]
        raise Mismatch(what, "no wrong load or store", fault, named[0] if named else None)
    if done["watched"]:
        expect(f"{what}: whether a kernel ran", done["launches"] != [], True, mistakes={False: NO_KERNEL})
    return done


def expect_loaded(
    done: dict[str, Any], what: str, tensor: str, expected: int, mistakes: dict[int, str] | None = None
) -> None:
    """The bytes loaded of one argument; nothing where nothing was watched."""
    if done["launches"]:
        got = sum(launch["loaded"].get(tensor, 0) for launch in done["launches"])
        expect(f"bytes loaded through {tensor} by {what}", got, expected, mistakes=mistakes or {})


# -- task 1: add ---------------------------------------------------------------------------------------------


@pytest.mark.task(1)
@pytest.mark.parametrize("n", [3, 256, 300])
def test_the_sum_of_two_vectors_of_any_length(layer: Layer, n: int) -> None:
    x, y = torch.arange(float(n)), 1000 * torch.arange(float(n))
    done = run(layer, f"add(x, y), n = {n}", layer.add, x, y)
    expect_close(f"add(x, y), n = {n}", done["result"], 1001 * torch.arange(float(n)), 0.0)
    for tensor in ("x_ptr", "y_ptr"):
        expect_loaded(done, f"add(x, y), n = {n}", tensor, 4 * n, {8 * n: READ_TWICE})


# -- task 2: scale_rows --------------------------------------------------------------------------------------


def check_scaled(layer: Layer, what: str, x: Tensor, factors: Tensor) -> None:
    done = run(layer, what, layer.scale_rows, x, factors, gaps=False)
    known = [(x * factors[0], ROW_0)]
    if not x.is_contiguous():
        known.append((x.as_strided(x.shape, (x.shape[1], 1)) * factors[:, None], CONTIGUOUS))
    expect_close(what, done["result"], x * factors[:, None], 0.0, mistakes=known)
    expect_loaded(done, what, "x_ptr", 4 * x.numel())


@pytest.mark.task(2)
def test_every_row_has_a_factor_of_its_own(layer: Layer) -> None:
    x, factors = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([10.0, 100.0])
    check_scaled(layer, "scale_rows of two rows", x, factors)


@pytest.mark.task(2)
def test_x_and_the_factors_have_strides(layer: Layer) -> None:
    factors = torch.tensor([2.0, 0.0, 3.0, 0.0, 4.0, 0.0])[::2]
    check_scaled(layer, "scale_rows of a transposed x [3, 5]", torch.randn(5, 3).T, factors)


@pytest.mark.task(2)
def test_rows_of_any_length(layer: Layer) -> None:
    wide = torch.randn(3, 6)
    check_scaled(layer, "scale_rows of x [3, 5]", wide[:, :5], torch.tensor([2.0, 0.5, -1.0]))
    check_scaled(layer, "scale_rows of x [2, 1]", wide[:2, :1], torch.tensor([2.0, 0.5]))


# -- task 3: gather_rows -------------------------------------------------------------------------------------


def check_gathered(
    layer: Layer, what: str, table: Tensor, index: list[int], dtype: torch.dtype = torch.int64,
    far: tuple[int, ...] = (),
) -> None:
    """Rows of the table that the index doesn't name are NaN, and must not be loaded."""
    numbers = torch.tensor(index, dtype=dtype).repeat_interleave(2)[::2]
    done = run(layer, what, layer.gather_rows, table, numbers, unwritten=(0,), far=far)
    zeros = torch.zeros(table.shape[1])
    got, expected = done["result"], torch.stack([table[i] if i >= 0 else zeros for i in index])
    expect(f"whether {what} has NaN in it", bool(got.isnan().any()), False, {True: NO_OTHER})
    expect_close(what, got, expected, 0.0)
    once = 4 * table.shape[1] * sum(i >= 0 for i in index)
    expect_loaded(done, what, "table_ptr", once, {4 * table.shape[1] * len(index): PADDING_LOADED})


@pytest.mark.task(3)
def test_rows_come_in_the_order_of_the_index(layer: Layer) -> None:
    table = torch.tensor([[1.0, 2.0], [NAN, NAN], [5.0, 6.0]])
    check_gathered(layer, "gather_rows(table, [2, 0, 2])", table, [2, 0, 2])


@pytest.mark.task(3)
def test_minus_one_gives_zeros_and_loads_nothing(layer: Layer) -> None:
    check_gathered(layer, "gather_rows(table, [1, -1, 0])", torch.randn(2, 8), [1, -1, 0])


@pytest.mark.task(3)
def test_a_table_with_strides_and_rows_of_any_length(layer: Layer) -> None:
    check_gathered(layer, "gather_rows of a transposed table", torch.randn(5, 3).T, [2, -1])


@pytest.mark.task(3)
def test_an_index_of_32_bits_into_a_table_too_large_for_it(layer: Layer) -> None:
    # The table says that its rows are 2^30 elements apart; see `FarTensor`.
    what = "gather_rows of a table whose rows are 2^30 elements apart"
    check_gathered(layer, what, torch.randn(4, 5), [3, 0], torch.int32, far=(0,))


# -- task 4: logsumexp_rows ----------------------------------------------------------------------------------


def check_sums(layer: Layer, what: str, x: Tensor) -> None:
    done = run(layer, what, layer.logsumexp_rows, x)
    block = 64
    padded = torch.nn.functional.pad(x.double(), (0, -x.shape[1] % block))
    highest, total = torch.full((len(x),), -math.inf).double(), torch.zeros(len(x)).double()
    for tile in x.double().split(block, dim=1):
        highest = torch.maximum(highest, tile.amax(dim=1))
        total = total + torch.exp(tile - highest[:, None]).sum(dim=1)
    known = [((highest + total.log()).float(), NOT_RESCALED), (padded.logsumexp(dim=1).float(), GHOSTS)]
    expected = x.double().logsumexp(dim=1).float()
    overflow = bool((~done["result"].isfinite()).any())
    large = {True: NO_HIGHEST} if x.abs().max() > 80 else {}
    expect(f"whether {what} is infinite or NaN anywhere", overflow, False, large)
    expect_close(what, done["result"], expected, TOLERANCE, TOLERANCE, mistakes=known)
    expect_loaded(done, what, "x_ptr", 4 * x.numel(), {8 * x.numel(): READ_TWICE})


@pytest.mark.task(4)
def test_two_rows_by_hand(layer: Layer) -> None:
    check_sums(layer, "logsumexp_rows of [0, 0] and [3, 3]", torch.tensor([[0.0, 0.0], [3.0, 3.0]]))


@pytest.mark.task(4)
@pytest.mark.parametrize("N", [1, 64, 65, 150])
def test_rows_of_any_number_of_tiles(layer: Layer, N: int) -> None:
    check_sums(layer, f"logsumexp_rows of x [1, {N}]", torch.randn(1, N))


@pytest.mark.task(4)
def test_the_highest_may_come_late_or_early(layer: Layer) -> None:
    rising = torch.linspace(-20, 20, 80)
    check_sums(layer, "logsumexp_rows of a rising and a falling row", torch.stack([rising, rising.flip(0)]))


@pytest.mark.task(4)
def test_elements_may_be_larger_than_exp_can_bear(layer: Layer) -> None:
    x = torch.stack([1000 + torch.randn(70), torch.randn(70) - 100_000])
    check_sums(layer, "logsumexp_rows of elements near 1000 and -100,000", x)


@pytest.mark.task(4)
def test_rows_with_strides(layer: Layer) -> None:
    check_sums(layer, "logsumexp_rows of a transposed x", torch.randn(70, 2).T)


# -- task 5: store_kv ----------------------------------------------------------------------------------------


def check_stored(
    layer: Layer, what: str, k: Tensor, v: Tensor, caches: tuple[Tensor, Tensor], slots: list[int],
    index: torch.dtype = torch.int64, far: tuple[int, ...] = (),
) -> None:
    """Both caches as they must be afterwards, slot by slot, and nothing loaded for padding."""
    slot_mapping = torch.tensor(slots, dtype=index).repeat_interleave(2)[::2]
    done = run(layer, what, layer.store_kv, k, v, *caches, slot_mapping, far=far)
    block_size, wanted = caches[0].shape[1], []
    for cache, new in zip(caches, (k, v), strict=True):
        after = cache.clone()
        for token, slot in enumerate(slots):
            if slot >= 0:
                after[slot // block_size, slot % block_size] = new[token]
        wanted.append(after)
    for number, name in ((2, "k_cache"), (3, "v_cache")):
        known = [(caches[number - 2], ONLY_K)] if any(slot >= 0 for slot in slots) else []
        other = caches[number - 2].clone()
        for token, slot in enumerate(slots):
            if slot >= 0:
                other[slot // block_size, slot % block_size] = (v, k)[number - 2][token]
        known.append((other, EXCHANGED))
        got = done["arguments"][number].clone()
        expect_close(f"{name} after {what}", got, wanted[number - 2], 0.0, mistakes=known)
    row = k[0].numel() * k.element_size() if len(k) else 0
    once = row * sum(slot >= 0 for slot in slots)
    for tensor in ("k_ptr", "v_ptr"):
        expect_loaded(done, what, tensor, once, {row * len(slots): PADDING_LOADED})


def new_kv(T: int, G: int, D: int, N: int, B: int, dtype: torch.dtype = torch.float32) -> Any:
    """k, v and both caches; V's dimensions lie in another order than K's."""
    k, v = torch.randn(T, G, D).to(dtype), torch.randn(T, D, G).to(dtype).transpose(1, 2)
    caches = torch.randn(N, B, G, D).to(dtype), torch.randn(G, N, B, D).to(dtype).permute(1, 2, 0, 3)
    return k, v, caches


@pytest.mark.task(5)
def test_one_token_goes_to_its_slot(layer: Layer) -> None:
    check_stored(layer, "store_kv(…, slot_mapping=[6]), blocks of 4", *new_kv(1, 1, 4, 2, 4), [6])


@pytest.mark.task(5)
def test_padding_writes_nothing_and_reads_nothing(layer: Layer) -> None:
    check_stored(layer, "store_kv(…, slot_mapping=[6, -1, 0])", *new_kv(3, 2, 8, 3, 4), [6, -1, 0])


@pytest.mark.task(5)
def test_heads_and_head_sizes_that_are_no_powers_of_two(layer: Layer) -> None:
    check_stored(layer, "store_kv of G = 3, D = 20", *new_kv(2, 3, 20, 4, 3), [11, 2])


@pytest.mark.task(5)
def test_the_engine_s_views_have_strides_of_their_own(layer: Layer) -> None:
    qkv = torch.randn(2, 8, 16)  # 4 query heads, 2 of K and 2 of V, as one matrix product leaves them
    pool = torch.randn(2, 5, 4, 2, 16)  # two layers
    check_stored(layer, "store_kv of views", qkv[:, 4:6], qkv[:, 6:], (pool[1], pool[0]), [18, 7])


@pytest.mark.task(5)
def test_bits_are_copied_as_they_are(layer: Layer) -> None:
    check_stored(layer, "store_kv in bfloat16", *new_kv(1, 1, 8, 2, 4, torch.bfloat16), [5])


@pytest.mark.task(5)
def test_slots_of_32_bits_in_caches_too_large_for_them(layer: Layer) -> None:
    what = "store_kv into caches whose blocks are 2^30 elements apart"
    check_stored(layer, what, *new_kv(2, 1, 4, 4, 4), [9, 2], torch.int32, far=(2, 3))


# -- task 6: attend ------------------------------------------------------------------------------------------


def one_context(end: int, D: int, B: int, first_written: int = 0) -> Any:
    """Caches [N, B, D] of NaN with one context of one head in scattered blocks, its table, and dense K and V.

    The table ends with the context, and has a stride of 2. V's dimensions lie in another order than K's.
    Positions before `first_written` are not there either.
    """
    width = max(1, -(-end // B))
    order = torch.randperm(width + 2)[:width].repeat_interleave(2)[::2]
    k_cache, v_cache = torch.full((width + 2, B, D), NAN), torch.full((B, width + 2, D), NAN).transpose(0, 1)
    k, v = torch.randn(2, end, D)
    positions = torch.arange(first_written, end)
    where = order[positions // B], positions % B
    k_cache[where], v_cache[where] = k[positions], v[positions]
    return k_cache, v_cache, order, k, v


def attended(
    q: Tensor, k: Tensor, v: Tensor, start: int, visible: Tensor, scale: float, kind: str = "right"
) -> tuple[Tensor, Tensor, Tensor]:
    """acc, total and highest by their definition, in double precision; or a known mistake."""
    scores = q.double() @ k[start:].double().T * (1.0 if kind == NO_SCALE else scale)
    if kind != NATURAL:
        scores = scores / math.log(2)
    if kind != ALL_VISIBLE:
        hidden = torch.arange(start, len(k)) >= visible[:, None]
        scores = scores.masked_fill(hidden, -math.inf)
    highest = scores.amax(dim=1)
    weights = torch.exp2(scores - highest[:, None])
    return (weights @ v[start:].double()).float(), weights.sum(dim=1).float(), highest.float()


def check_attend(
    layer: Layer, end: int, *, R: int = 2, D: int = 16, B: int = 16, start: int = 0, scale: float = 0.3,
    visible: list[int] | None = None, far: bool = False,
) -> None:
    k_cache, v_cache, table, k, v = one_context(end, D, B, first_written=start)
    if far:
        table = table.int()
    q, sees = torch.randn(R, D), torch.tensor(visible or [end] * R)
    what = f"attend(…) of positions {start} to {end - 1}, {R} rows, D = {D}, B = {B}"
    if visible:
        what += f", visible = {visible}"
    if far:
        what += ", blocks 2^30 elements apart"
    done = run(layer, what, layer.attend_alone, q, k_cache, v_cache, table, start, end, sees, scale,
               unwritten=(1, 2), far=(1, 2) if far else ())
    names = ("acc", "total", "highest")
    expected = attended(q, k, v, start, sees, scale)
    wrong = {kind: attended(q, k, v, start, sees, scale, kind) for kind in (NO_SCALE, NATURAL, ALL_VISIBLE)}
    for place in (2, 1, 0):
        known = [(tensors[place], kind) for kind, tensors in wrong.items()]
        name = f"{names[place]} of {what}"
        expect_close(name, done["result"][place], expected[place], 1e-4, 1e-4, mistakes=known)
    once = 4 * (end - start) * D
    for tensor in ("k_cache_ptr", "v_cache_ptr"):
        expect_loaded(done, what, tensor, once, {2 * once: READ_TWICE})


@pytest.mark.task(6)
def test_six_positions_by_hand(layer: Layer) -> None:
    k_cache, v_cache, table, _, v = one_context(6, 16, 4)
    arguments = (torch.zeros(1, 16), k_cache, v_cache, table, 0, 6, torch.tensor([6]), 1.0)
    what = "attend(…) of q = 0 to 6 positions"
    done = run(layer, what, layer.attend_alone, *arguments, unwritten=(1, 2))
    acc, total, highest = done["result"]
    expect_close(f"highest of {what}", highest, torch.zeros(1), 0.0)
    expect_close(f"total of {what}", total, torch.full((1,), 6.0), 0.0)
    expect_close(f"acc of {what}", acc, v.sum(dim=0, keepdim=True), 1e-5)


@pytest.mark.task(6)
@pytest.mark.parametrize(("end", "B"), [(1, 16), (128, 16), (140, 7)])
def test_contexts_of_any_length_in_blocks_of_any_size(layer: Layer, end: int, B: int) -> None:
    check_attend(layer, end, B=B)


@pytest.mark.task(6)
def test_any_number_of_rows_and_any_head_size(layer: Layer) -> None:
    check_attend(layer, 40, R=3, D=20, B=3)


@pytest.mark.task(6)
def test_a_row_sees_what_is_visible_to_it(layer: Layer) -> None:
    check_attend(layer, 20, R=3, visible=[1, 7, 20])
    check_attend(layer, 140, R=2, visible=[3, 139])


@pytest.mark.task(6)
def test_what_lies_before_the_start_is_not_read(layer: Layer) -> None:
    check_attend(layer, 200, start=150, B=32)


@pytest.mark.task(6)
def test_a_table_of_32_bits_and_caches_too_large_for_it(layer: Layer) -> None:
    check_attend(layer, 60, far=True)


@pytest.mark.task(6)
def test_no_positions_leave_zeros_and_minus_infinity(layer: Layer) -> None:
    k_cache, v_cache, table, _, _ = one_context(3, 16, 16)
    arguments = (torch.randn(2, 16), k_cache, v_cache, table, 0, 0, torch.tensor([0, 0]), 0.3)
    done = run(layer, "attend(…) of no positions", layer.attend_alone, *arguments, unwritten=(1, 2))
    acc, total, highest = done["result"]
    expect_close("acc of no positions", acc, torch.zeros(2, 16), 0.0)
    expect_close("total of no positions", total, torch.zeros(2), 0.0)
    expect("highest of no positions", highest, torch.full((2,), -math.inf))


@pytest.mark.task(6)
@pytest.mark.parametrize("offset", [1500.0, -1500.0])
def test_scores_may_be_larger_than_powers_of_two_can_bear(layer: Layer, offset: float) -> None:
    # Element 0 of row 0 is 1, so element 0 of a key is its score: near ±1500, rising by 1 every 10 positions.
    # To row 1 all positions score alike, ±30,000, far above or below anything that stands for "hidden".
    q = torch.zeros(2, 16)
    q[0, 0], q[1, 1] = 1, 20 * offset
    k_cache, v_cache, table, k, v = one_context(150, 16, 16)
    position = torch.arange(150)
    k[:, 0], k[:, 1] = offset + position / 10, 1
    k_cache[table[position // 16], position % 16] = k
    sees = torch.tensor([150, 150])
    what = f"attend(…) with scores near {offset:g}"
    arguments = (q, k_cache, v_cache, table, 0, 150, sees, 1.0)
    done = run(layer, what, layer.attend_alone, *arguments, unwritten=(1, 2))
    acc, total, _ = done["result"]
    finite = bool(acc.isfinite().all() and (total > 0).all() and total.isfinite().all())
    what_finite = f"whether acc and total of {what} are finite, and total above 0"
    expect(what_finite, finite, True, {False: NO_HIGHEST})
    acc_wanted, total_wanted, _ = attended(q, k, v, 0, sees, 1.0)
    expect_close(f"total of {what}", total, total_wanted, 1e-2, 1e-3)
    expect_close(f"acc of {what}", acc, acc_wanted, 2e-2, 1e-3)


@pytest.mark.task(6)
def test_what_was_summed_shrinks_when_a_higher_score_comes(layer: Layer) -> None:
    # Scores of 0 for the first 290 positions, and of 5 ln 2 for the last 10: the first weigh 1 / 32.
    q = torch.zeros(1, 16)
    q[0, 0] = 1
    k_cache, v_cache, table, k, v = one_context(300, 16, 32)
    position = torch.arange(300)
    k[:, 0] = torch.where(position < 290, 0.0, 5 * math.log(2))
    k_cache[table[position // 32], position % 32] = k
    done = run(layer, "attend(…)", layer.attend_alone, q, k_cache, v_cache, table, 0, 300,
               torch.tensor([300]), 1.0, unwritten=(1, 2))
    acc, total, highest = done["result"]
    what = "of 290 scores of 0 and then 10 of 5 ln 2"
    expect_close(f"highest {what}", highest, torch.tensor([5.0]), 1e-4)
    tile = layer.given("minipaged.kernels.paged.triton_decode").tile_sizes(1, 16, torch.float32)["BLOCK_N"]
    before = 290 // tile * tile  # positions in earlier tiles, not made smaller by mistake
    known = [(torch.tensor([before + (290 - before) / 32 + 10]), NOT_RESCALED)]
    expect_close(f"total {what}", total, torch.tensor([290 / 32 + 10]), 1e-3, mistakes=known)
    wanted = v[:290].sum(dim=0) / 32 + v[290:].sum(dim=0)
    wrong = v[:before].sum(dim=0) + v[before:290].sum(dim=0) / 32 + v[290:].sum(dim=0)
    expect_close(f"acc {what}", acc, wanted[None], 1e-3, 1e-4, mistakes=[(wrong[None], NOT_RESCALED)])


# -- task 7: paged_decode, and 8 -----------------------------------------------------------------------------


def scattered(
    context_lens: list[int], G: int, D: int, B: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Caches of NaN with some contexts in scattered blocks: k_cache, v_cache, block_tables, dense k and v.

    Tables are wider than needed, and what lies behind a context is no block's id. V's dimensions lie in
    another order than K's, and entries of a table not side by side.
    """
    widths = [-(-length // B) for length in context_lens]
    order = torch.randperm(sum(widths) + 2).tolist()
    k_cache = torch.full((len(order), B, G, D), NAN, dtype=dtype)
    v_cache = torch.full((G, len(order), B, D), NAN, dtype=dtype).permute(1, 2, 0, 3)
    tables = torch.full((len(widths), 2 * max(widths) + 2), 10**6)[:, ::2]
    dense = []
    for row, (width, length) in enumerate(zip(widths, context_lens, strict=True)):
        blocks = torch.tensor([order.pop() for _ in range(width)], dtype=torch.int64)
        tables[row, :width] = blocks
        where = blocks[torch.arange(length) // B], torch.arange(length) % B
        for cache in (k_cache, v_cache):
            cache[where] = torch.randn(length, G, D).to(dtype)
        dense.append((k_cache[where], v_cache[where]))
    return k_cache, v_cache, tables, dense


def decoded(
    q: Tensor, dense: list[tuple[Tensor, Tensor]], scale: float, kind: str = "right"
) -> Tensor:
    """One head of one sequence after another in double precision, [S, H, D]; or a known mistake."""
    out = torch.zeros_like(q)
    for s, (k, v) in enumerate(dense):
        H, G = q.shape[1], k.shape[1]
        for h in range(H):
            kv_head = h % G if kind == DEALT_OUT else h // (H // G)
            row = q[s, h % (H // G) if kind == FIRST_GROUP else h].double()
            scores = k[:, kv_head].double() @ row * (1.0 if kind == NO_SCALE else scale)
            weights = scores.softmax(dim=0)
            if kind == NOT_DIVIDED and len(k):
                weights = torch.exp(scores - scores.max())
            out[s, h] = weights @ v[:, kv_head].double()
    return out


def check_decode(
    layer: Layer, context_lens: list[int], G: int, R: int, D: int, B: int = 16,
    dtype: torch.dtype = torch.float32,
) -> None:
    k_cache, v_cache, tables, dense = scattered(context_lens, G, D, B, dtype)
    q, scale = torch.randn(len(context_lens), G * R, D).to(dtype), 0.3
    what = f"paged_decode(…, context_lens={context_lens}), H = {G * R}, G = {G}, D = {D}, B = {B}"
    if dtype != torch.float32:
        what += f", {dtype}"
    arguments = (q, k_cache, v_cache, tables, torch.tensor(context_lens), scale)
    done = run(layer, what, layer.paged_decode, *arguments, unwritten=(1, 2))
    got = done["result"]
    if 0 in context_lens:
        empty = [s for s, length in enumerate(context_lens) if not length]
        expect(f"whether a sequence without context is NaN in {what}", bool(got[empty].isnan().any()), False,
               {True: NAN_WITHOUT_CONTEXT})
    tolerance = TOLERANCE if dtype == torch.float32 else 2e-2
    known = [(decoded(q, dense, scale, kind), kind)
             for kind in (DEALT_OUT, FIRST_GROUP, NO_SCALE, NOT_DIVIDED)]
    expect_close(what, got, decoded(q, dense, scale), tolerance, tolerance, mistakes=known)
    once = sum(context_lens) * G * D * q.element_size()
    for tensor in ("k_cache_ptr", "v_cache_ptr"):
        expect_loaded(done, what, tensor, once, {R * once: PER_HEAD})


@pytest.mark.task(7)
def test_one_head_and_one_token(layer: Layer) -> None:
    check_decode(layer, [1], G=1, R=1, D=16)


@pytest.mark.task(7)
def test_neighbouring_query_heads_share_a_kv_head(layer: Layer) -> None:
    check_decode(layer, [9], G=2, R=2, D=16, B=4)


@pytest.mark.task(7)
def test_groups_and_head_sizes_that_are_no_powers_of_two(layer: Layer) -> None:
    check_decode(layer, [33], G=2, R=3, D=20, B=7)
    check_decode(layer, [5], G=1, R=17, D=16)


@pytest.mark.task(7)
def test_sequences_of_different_lengths_and_one_without_context(layer: Layer) -> None:
    check_decode(layer, [130, 0, 1], G=1, R=2, D=16)


@pytest.mark.task(7)
def test_half_precision_comes_in_and_goes_out(layer: Layer) -> None:
    check_decode(layer, [20], G=1, R=2, D=16, dtype=torch.bfloat16)


@pytest.mark.task(7)
def test_in_float16_sums_are_kept_in_fp32(layer: Layer) -> None:
    # 260 values of 300 with equal weights: their sum, 78,000, is more than float16 can hold.
    k_cache, v_cache, tables, _ = scattered([260], 1, 16, 16, torch.float16)
    v_cache[~v_cache.isnan()] = 300
    q = torch.zeros(1, 2, 16, dtype=torch.float16)
    what = "paged_decode(…) of 260 equal scores and values of 300, in float16"
    arguments = (q, k_cache, v_cache, tables, torch.tensor([260]), 0.3)
    done = run(layer, what, layer.paged_decode, *arguments, unwritten=(1, 2))
    expect_close(what, done["result"], torch.full((1, 2, 16), 300.0, dtype=torch.float16), 1.0)


@pytest.mark.task(7)
def test_q_and_the_lengths_are_views(layer: Layer) -> None:
    k_cache, v_cache, tables, dense = scattered([9, 5], 1, 16, 8)
    q = torch.randn(2, 8, 16)[:, :2]  # of a fused qkv: 2 query heads of 8
    what = "paged_decode(…) of a view of qkv, context_lens of every second number"
    arguments = (q, k_cache, v_cache, tables, torch.tensor([9, 3, 5, 3])[::2], 0.3)
    done = run(layer, what, layer.paged_decode, *arguments, unwritten=(1, 2), gaps=False)
    expect_close(what, done["result"], decoded(q, dense, 0.3), TOLERANCE, TOLERANCE)


# -- task 8: the challenge -----------------------------------------------------------------------------------


def check_both(
    layer: Layer, context_lens: list[int], G: int, R: int, D: int, B: int = 16,
    dtype: torch.dtype = torch.float32,
) -> None:
    k_after, v_after, tables, dense = scattered(context_lens, G, D, B, dtype)
    k_cache, v_cache = k_after.clone(), v_after.clone()
    for row, length in enumerate(context_lens):  # the new tokens are not there yet
        place = tables[row, (length - 1) // B], (length - 1) % B
        k_cache[place], v_cache[place] = NAN, NAN
    k, v = (torch.stack([kv[i][-1] for kv in dense]) for i in (0, 1))
    v = v.transpose(1, 2).contiguous().transpose(1, 2)  # other strides than k's
    q = torch.randn(len(context_lens), G * R, D).to(dtype)
    what = f"store_and_decode(…, context_lens={context_lens}), H = {G * R}, G = {G}, D = {D}, B = {B}"
    done = run(layer, what, layer.store_and_decode, q, k, v, k_cache, v_cache, tables,
               torch.tensor(context_lens), 0.3)
    for number, name, wanted in ((3, "k_cache", k_after), (4, "v_cache", v_after)):
        got = done["arguments"][number].clone().nan_to_num(1e4)
        before = (k_cache, v_cache)[number - 3].nan_to_num(1e4)
        known = [(before, ONLY_K)]
        what_after = f"{name} after {what}, with 10000 for NaN"
        expect_close(what_after, got, wanted.nan_to_num(1e4), 0.0, mistakes=known)
    tolerance = TOLERANCE if dtype == torch.float32 else 2e-2
    known = [(decoded(q, dense, 0.3, kind), kind) for kind in (DEALT_OUT, FIRST_GROUP)]
    expect_close(what, done["result"], decoded(q, dense, 0.3), tolerance, tolerance, mistakes=known)
    slot = G * D * q.element_size()
    once = (sum(context_lens) - len(context_lens)) * slot
    for tensor in ("k_cache_ptr", "v_cache_ptr"):
        expect_loaded(done, what, tensor, once, {sum(context_lens) * slot: NEW_LOADED})


@pytest.mark.task(8)
def test_the_new_token_is_stored_and_attended_to(layer: Layer) -> None:
    check_both(layer, [6], G=1, R=2, D=16, B=4)


@pytest.mark.task(8)
def test_a_first_token_and_one_that_begins_a_block(layer: Layer) -> None:
    check_both(layer, [1, 17], G=2, R=1, D=16)


@pytest.mark.task(8)
def test_groups_and_sizes_of_any_kind_in_more_than_one_tile(layer: Layer) -> None:
    check_both(layer, [133], G=2, R=3, D=20, B=7)


@pytest.mark.task(8)
def test_what_was_summed_shrinks_when_the_new_token_fits_best(layer: Layer) -> None:
    # Five tokens with a score of 0, and the new one with 5 ln 2, so 32 times their weight.
    q, k, v, old = torch.zeros(1, 1, 16), torch.zeros(1, 1, 16), torch.randn(1, 1, 16), torch.randn(5, 16)
    q[..., 0], k[..., 0] = 1, 5 * math.log(2)
    k_cache, v_cache = torch.zeros(1, 8, 1, 16), torch.zeros(1, 8, 1, 16)
    v_cache[0, :5, 0] = old
    arguments = (q, k, v, k_cache, v_cache, torch.tensor([[0]]), torch.tensor([6]), 1.0)
    what = "store_and_decode(…) of five scores of 0 and a new one of 5 ln 2"
    got = run(layer, what, layer.store_and_decode, *arguments)["result"]
    known = [((old.sum(dim=0) + v) / 6, NOT_RESCALED)]  # 1 for the new one, and still 1 for each old one
    expect_close(what, got, (old.sum(dim=0) + 32 * v) / 37, TOLERANCE, TOLERANCE, mistakes=known)


@pytest.mark.task(8)
def test_store_and_decode_in_half_precision(layer: Layer) -> None:
    check_both(layer, [9], G=1, R=2, D=16, dtype=torch.bfloat16)
