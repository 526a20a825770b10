"""Chapter 5's grader: K and V by slot, and attention through block tables.

Expected values are written out, or computed by the naive models below: a dict of slots, and attention query
by query and head by head in double precision. Slots that hold no token are NaN, and what follows a table's
end is no block: whatever reads one of them shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_close, expect_error, generator

TASKS = (
    Task(
        1, "store K and V by slot", stars=1, points=10, minutes=10,
        hints=(
            "One layer of the cache is [N, B, G, D], and slot = block · B + offset. In what shape is the slot"
            " number simply the first index?",
            "`self.k[layer].view(-1, G, D)` is [N·B, G, D] and shares its memory. For the padding: what is"
            " x[-1] in Python?",
            "keep = slot_mapping >= 0, then self.k[layer].view(-1, *k.shape[1:])[slot_mapping[keep]] ="
            " k[keep].to(self.k.dtype), and the same for V.",
        ),
        compare="why it says view and not reshape, and that nothing is copied when nothing is padding",
    ),
    Task(
        2, "copy blocks", stars=1, points=10, minutes=10,
        hints=(
            "Which dimension of [L, N, B, G, D] counts the blocks? Indexing it with a list takes several.",
            "x[:, [3, 1]] is a copy of two blocks in all layers. Read all of them first, then assign.",
            "self.k[:, dst] = other.k[:, src].to(self.k.device), with src and dst lists, and V likewise.",
        ),
        compare="one assignment instead of a loop, and what the loop would do to a chain of copies",
    ),
    Task(
        3, "gather a context", stars=1, points=10, minutes=10,
        hints=(
            "Where does the token at position 5 lie, with blocks of 4? Block block_table[1], offset 1.",
            "Compute blocks and offsets of all positions at once: positions = torch.arange(context_len).",
            "cache[block_table[positions // B], positions % B], with B = cache.shape[1].",
        ),
        compare="that a padded table entry is never used as an index, and no row past the end is read",
    ),
    Task(
        4, "who sees whom", stars=1, points=10, minutes=5,
        hints=(
            "At which position does the first of the new tokens stand? Not at 0, unless all are new.",
            "The i-th stands at context_len - query_len + i. It sees k if k <= that.",
            "torch.arange(K) <= torch.arange(K - Q, K)[:, None]; or torch.ones(Q, K).tril(K - Q).bool().",
        ),
        compare="one comparison of a row with a column, for prefill, decode and chunk",
    ),
    Task(
        5, "attention for grouped heads", stars=2, points=20, minutes=15,
        hints=(
            "Begin with G = H = 1: scores = q[:, 0] @ k[:, 0].T * scale is [Q, K]. Mask it, softmax over the"
            " last dimension, times v[:, 0].",
            "For groups, either view q as [Q, G, H // G, D], or repeat K and V:"
            " k.repeat_interleave(H // G, dim=1) is [K, H, D].",
            "With repeated K and V: scores = torch.einsum('qhd,khd->hqk', q.float(), k.float()) * scale;"
            " masked_fill(~mask, -inf); softmax(dim=-1); einsum('hqk,khd->qhd'), then .to(q.dtype).",
        ),
        compare="how K and V are read once per group, without repeating them",
    ),
    Task(
        6, "prefill, decode and chunks in one call", stars=2, points=20, minutes=15,
        hints=(
            "Everything is there already: which rows belong to a sequence, gather its K and V, attend.",
            "Sequence s has the rows query_start_loc[s] to query_start_loc[s + 1]. `attend` finds out by"
            " itself how many of the context's tokens are new.",
            "for s in range(len(context_lens)): start, end = …; skip if context or rows are 0; check;"
            " out[start:end] = attend(q[start:end], gather_context(k_cache, block_tables[s], context), …).",
        ),
        compare="that prefill, decode and chunk are one code path: nothing asks which of them it is",
    ),
    Task(
        7, "block by block, with an online softmax", stars=3, points=20, minutes=30,
        hints=(
            "You have Σ exp(s - 3), and now a score of 5 comes along. By what factor do you turn the sum into"
            " Σ exp(s - 5)?",
            "exp(old maximum - new maximum), for total and for weighted. With an old maximum of -inf that"
            " is 0, which is right: there was nothing before.",
            "new = torch.maximum(maximum, scores.amax(-1)); rescale = exp(maximum - new); weights ="
            " exp(scores - new[:, None]); then total * rescale + weights.sum(-1), and"
            " weighted * rescale[:, None] + Σ weights · v.",
        ),
        compare="that no more than one block's scores ever exist: this loop is the GPU kernel of chapter 11",
    ),
)

PADDING_LAST = "a token with slot -1 was written to the last slot: to an index, -1 is the last place"
ALL_OR_NOTHING = "one padding token kept the others from being written, or its neighbour took its place"
WRITES_A_COPY = "nothing was written: the tokens went to a copy of the cache, not to a view"
LAYER_ZERO = "layer 0 was written, whatever layer was given"
SPLIT_WRONG = "the slot was split the wrong way: block = slot // B, offset = slot % B"
V_IS_K = "K was stored as V"
ONE_BY_ONE = "copies were made one after another: a source had been overwritten before it was read"
BACKWARDS = "copies ran from the second to the first: the pairs are (source, destination)"
TABLE_IGNORED = "the positions themselves were taken for slots: the block table was not used"
WHOLE_BLOCKS = "whole blocks came out: the rows past the last token hold garbage"
SORTED_BLOCKS = "blocks were taken in order of their ids, not in the table's order"
FROM_ZERO = "the new tokens were counted from position 0: the context before them was forgotten"
NOT_ITSELF = "a token does not see itself"
UPSIDE_DOWN = "the mask is the wrong way round: True is where a token may look"
NO_MASK = "new tokens see tokens that come after them: the causal mask was not applied"
ROUND_ROBIN = "query heads were dealt out in turn (h % G): neighbours share a KV head, h // (H // G)"
FIRST_HEAD = "all query heads read KV head 0"
OWN_SCALE = "scores were scaled by 1 / √D, not by the scale that was given"
NO_SCALE = "the scores were not scaled"
WEIGHTLESS = "scores were set to 0 after the softmax, so the weights do not add up to 1"
READ_UNWRITTEN = "something was read that no token has been written to (it is NaN here)"
ONLY_NEW = "a sequence attended to its new tokens only, not to its whole context"
EMPTY_CONTEXT = "a softmax over nothing gave NaN: a sequence without context gives zeros"
NOT_RESCALED = "the maximum grew, and what was summed relative to the old one was not rescaled"
NO_MAXIMUM = "the maximum was not subtracted, and exp(score) overflowed"
CHANGED = "what was passed in was changed: the caller still needs it"
ONE_MAXIMUM = "one maximum was subtracted from all scores: every head of every token has its own"

NAN, MILLION = float("nan"), 10**6
Heads = Callable[[int, int, int], int]


def naive_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    head: Heads = lambda h, H, G: h // (H // G),
    visible: Callable[[int, int, int], int] = lambda i, m, c: c - m + i + 1,
) -> torch.Tensor:
    """The last m tokens' attention, q [m, H, D], k and v [c, G, D], one number at a time, in float64.

    head: which KV head a query head reads. visible: how many positions token i sees. Changed, they make the
    known mistakes.
    """
    (m, H, _), (c, G, _) = q.shape, k.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i in range(m):
        sees = visible(i, m, c)
        for h in range(H):
            keys, values = k[:sees, head(h, H, G)].double(), v[:sees, head(h, H, G)].double()
            weights = (keys @ q[i, h].double() * scale).softmax(dim=0)
            out[i, h] = (weights[:, None] * values).sum(dim=0)
    return out.to(q.dtype)


def known_mistakes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> Iterator[tuple[torch.Tensor, str]]:
    """What each known mistake makes of the same input, if it is not the right result too. Computed only when
    something went wrong."""
    right = naive_attention(q, k, v, scale)
    for name in MISTAKES:
        wrong = mistaken(name, q, k, v, scale)
        if not torch.allclose(wrong.float(), right.float(), atol=1e-2):
            yield wrong, name


def mistaken(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention with one mistake."""
    if name == ONLY_NEW:
        return naive_attention(q, k[-len(q) :], v[-len(q) :], scale)
    if name in (NO_SCALE, OWN_SCALE):
        return naive_attention(q, k, v, 1.0 if name == NO_SCALE else q.shape[-1] ** -0.5)
    if name in (NO_MASK, FROM_ZERO, NOT_ITSELF):
        visible = {
            NO_MASK: lambda i, m, c: c,
            FROM_ZERO: lambda i, m, c: i + 1,
            NOT_ITSELF: lambda i, m, c: c - m + i,
        }
        return naive_attention(q, k, v, scale, visible=visible[name])
    return naive_attention(q, k, v, scale, head=lambda h, H, G: h % G if name == ROUND_ROBIN else 0)


MISTAKES = (NO_MASK, FROM_ZERO, NOT_ITSELF, ROUND_ROBIN, FIRST_HEAD, NO_SCALE, OWN_SCALE, ONLY_NEW)


def random_qkv(
    m: int, c: int, heads: tuple[int, int], head_dim: int = 4, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [m, H, D], k and v [c, G, D]."""
    chance = generator(1000 * m + 10 * c + seed)
    shapes = ((m, heads[0]), (c, heads[1]), (c, heads[1]))
    q, k, v = (torch.randn(*shape, head_dim, generator=chance) for shape in shapes)
    return q, k, v


# -- task 1: write -----------------------------------------------------------------------------------

L, N, B, G, D = 2, 4, 2, 2, 3


def numbered(num_tokens: int, first: int = 1) -> torch.Tensor:
    """[num_tokens, G, D]: token t is first + t everywhere."""
    return torch.arange(first, first + num_tokens).float()[:, None, None].expand(-1, G, D).clone()


def filled_cache(layer: Layer, num_blocks: int = N, first: int = 100) -> Any:
    """A cache in which layer l's slot s holds first + 100·l + s as K, and the negative of it as V."""
    cache = layer.KVCache(L, num_blocks, B, G, D)
    for index in range(L):
        k = numbered(num_blocks * B, first + 100 * index)
        cache.write(index, k, -k, torch.arange(num_blocks * B))
    return cache


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers; garbage that is NaN counts as equal to itself."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def expect_unchanged(what: str, now: Iterable[torch.Tensor], before: Iterable[torch.Tensor]) -> None:
    unchanged = all(map(same, now, before))
    expect(f"whether the arguments are what they were before {what}", unchanged, True, {False: CHANGED})


def slots_of(x: torch.Tensor) -> list[list[float]]:
    """What each slot of each layer holds; a slot whose numbers differ from each other is NaN."""
    rows = x.flatten(1, 2).flatten(2)
    is_even = (rows == rows[..., :1]).all(dim=-1)
    return rows[..., 0].where(is_even, NAN).tolist()


@pytest.mark.task(1)
def test_a_token_goes_to_its_slot_in_its_layer_and_nothing_else_changes(layer: Layer) -> None:
    cache = filled_cache(layer)
    start = cache.k.clone()
    cache.write(1, numbered(3), -numbered(3), torch.tensor([5, 0, 7]))
    changes = [not same(now, old) for now, old in zip(cache.k.clone(), start, strict=True)]
    name = LAYER_ZERO if changes[0] else WRITES_A_COPY
    expect("whether write(1, …) has changed cache.k[1]", changes[1], True, {False: name})
    what = "the slots of cache.{} after write(1, k, v, [5, 0, 7]), 4 blocks of 2; tokens are 1, 2, 3"
    before, after = [100.0 + s for s in range(8)], [2.0, 201.0, 202.0, 203.0, 204.0, 1.0, 206.0, 3.0]
    exchanged = [[row[s // 2 + 4 * (s % 2)] for s in range(8)] for row in (before, after)]
    expect(what.format("k"), slots_of(cache.k.clone()), [before, after], [(exchanged, SPLIT_WRONG)])
    minus = [[-number for number in slots] for slots in (before, after)]
    as_k = [([before, after], V_IS_K)]
    expect(what.format("v"), slots_of(cache.v.clone()), minus, as_k)


@pytest.mark.task(1)
@pytest.mark.parametrize("slots", [[-1, 6, -1, 1], [2, -1], [-1, -1], [-1]])
def test_padding_is_not_written_and_does_not_disturb_the_others(layer: Layer, slots: list[int]) -> None:
    cache = filled_cache(layer)
    k = numbered(len(slots))
    given = k, -k, torch.tensor(slots)
    before = [tensor.clone() for tensor in given]
    cache.write(0, *given)
    expect_unchanged(f"write(0, k, v, {slots})", given, before)
    expected = [100.0 + slot for slot in range(8)]
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[slot] = 1.0 + token
    as_last = [[*expected[:-1], 1.0 + token] for token, slot in enumerate(slots) if slot < 0]
    nothing = [100.0 + slot for slot in range(8)]
    mistakes = [(wrong, PADDING_LAST) for wrong in as_last]
    mistakes += [(nothing, ALL_OR_NOTHING)] if nothing != expected else []
    what = f"the slots of layer 0 of cache.{{}} after write(0, k, v, {slots})"
    expect(what.format("k"), slots_of(cache.k.clone())[0], expected, mistakes)
    expect(what.format("v"), slots_of(cache.v.clone())[0], [-number for number in expected])
    expect("layer 1 after it", slots_of(cache.k.clone())[1], [200.0 + slot for slot in range(8)])


@pytest.mark.task(1)
def test_all_layers_are_written_with_one_slot_mapping(layer: Layer) -> None:
    cache, slots = filled_cache(layer), torch.tensor([-1, 6, -1])
    for index in range(L):
        cache.write(index, numbered(3), -numbered(3), slots)
        expect(f"slot_mapping [-1, 6, -1] after write({index}, …)", slots.tolist(), [-1, 6, -1])
    expected = [[2.0 if s == 6 else 100.0 * (index + 1) + s for s in range(8)] for index in range(L)]
    expect("the slots of cache.k, both layers written with it", slots_of(cache.k.clone()), expected)


@pytest.mark.task(1)
def test_a_write_of_no_tokens_changes_nothing(layer: Layer) -> None:
    cache = filled_cache(layer)
    cache.write(0, numbered(0), numbered(0), torch.tensor([], dtype=torch.int64))
    expect("layer 0 after it", slots_of(cache.k.clone())[0], [100.0 + slot for slot in range(8)])


@pytest.mark.task(1)
def test_heads_and_numbers_of_a_token_keep_their_places(layer: Layer) -> None:
    cache = layer.KVCache(1, 2, 2, G, D)
    k = torch.arange(2.0 * G * D).reshape(2, G, D)
    cache.write(0, k, k + 0.5, torch.tensor([3, 0]))
    expect("cache.k[0, 1, 1], slot 3", cache.k[0, 1, 1].clone(), k[0])
    expect("cache.v[0, 1, 1], slot 3", cache.v[0, 1, 1].clone(), k[0] + 0.5, [(k[0], V_IS_K)])
    expect("cache.k[0, 0, 0], slot 0", cache.k[0, 0, 0].clone(), k[1])


@pytest.mark.task(1)
def test_what_is_written_takes_the_dtype_of_the_cache(layer: Layer) -> None:
    cache = layer.KVCache(1, 2, 2, 1, 2, dtype=torch.bfloat16)
    packed = torch.tensor([[[1.0, 2.0], [3.0, 4.001]]])  # K and V of one token, views of one tensor
    cache.write(0, packed[:, :1], packed[:, 1:], torch.tensor([2]))
    expect(
        "cache.k[0, 1, 0] of a bfloat16 cache",
        cache.k[0, 1, 0].clone(),
        torch.tensor([[1.0, 2.0]]).bfloat16(),
    )
    expect(
        "cache.v[0, 1, 0] of a bfloat16 cache",
        cache.v[0, 1, 0].clone(),
        torch.tensor([[3.0, 4.0]]).bfloat16(),
    )


# -- task 2: copy ------------------------------------------------------------------------------------


def blocks_of(cache: Any) -> dict[str, Any]:
    """What can be seen of a cache, slot by slot."""
    return {"k": slots_of(cache.k.clone()), "v": slots_of(cache.v.clone())}


class ModelCache:
    """What a cache should do: a list of numbers per layer, for K; V is the negative of it."""

    def __init__(self, num_blocks: int = N, first: int = 100) -> None:
        self.slots = [
            [float(first + 100 * index + slot) for slot in range(num_blocks * B)] for index in range(L)
        ]

    def state(self) -> dict[str, Any]:
        return {"k": [[*row] for row in self.slots], "v": [[-number for number in row] for row in self.slots]}

    def write(self, index: int, tokens: list[float], slots: list[int]) -> None:
        for token, slot in zip(tokens, slots, strict=True):
            self.slots[index][slot] = token

    def copy_blocks(self, copies: list[tuple[int, int]], other: ModelCache | None = None) -> None:
        old = [[*row] for row in (other or self).slots]
        for src, dst in copies:
            for index in range(L):
                self.slots[index][dst * B : dst * B + B] = old[index][src * B : src * B + B]


def draw_cache(state: dict[str, Any]) -> str:
    """K of every block, a line per layer."""
    lines = []
    for index, row in enumerate(state["k"]):
        blocks = [row[start : start + B] for start in range(0, len(row), B)]
        texts = [
            f"{block_id}: {' '.join(f'{number:g}' for number in block)}"
            for block_id, block in enumerate(blocks)
        ]
        lines.append(f"layer {index}  " + "  |  ".join(texts))
    return "\n".join(lines)


def name_mistake(step: Step) -> str | None:
    """The known mistake that a wrong copy shows."""
    if step.got.error is not None or "write" in step.operation:
        return None
    before, came = step.state_before["k"], step.state["k"]
    numbers = [int(number) for number in re.findall(r"\d+", step.operation)]
    pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
    if came == copied_in_turn(before, pairs):
        return ONE_BY_ONE
    return BACKWARDS if came == copied_in_turn(before, [(dst, src) for src, dst in pairs]) else None


def copied_in_turn(slots: list[list[float]], pairs: list[tuple[int, int]]) -> list[list[float]]:
    """The slots after one copy after another, each reading what the last one left."""
    slots = [[*row] for row in slots]
    for src, dst in pairs:
        for row in slots:
            row[dst * B : dst * B + B] = row[src * B : src * B + B]
    return slots


@pytest.mark.task(2)
@pytest.mark.parametrize(
    "copies", [[(3, 0)], [(0, 3), (1, 2)], [(0, 2), (0, 3)], [(0, 1), (1, 2)], [(2, 3), (3, 2)]]
)
def test_copies_read_all_sources_before_they_write(layer: Layer, copies: list[tuple[int, int]]) -> None:
    cache, model = filled_cache(layer), ModelCache()
    replay = Replay(
        "cache = KVCache(…), 4 blocks of 2 tokens, filled", lambda: blocks_of(cache), model.state,
        draw_cache, name_mistake,
    )
    replay.step(
        f"cache.copy_blocks({copies})", lambda: cache.copy_blocks(copies), lambda: model.copy_blocks(copies)
    )


@pytest.mark.task(2)
def test_the_list_of_copies_is_only_read(layer: Layer) -> None:
    cache, copies = filled_cache(layer), [(0, 3), (1, 2)]
    cache.copy_blocks(copies)
    expect("the list, after copy_blocks([(0, 3), (1, 2)])", copies, [(0, 3), (1, 2)], [([], CHANGED)])


@pytest.mark.task(2)
def test_no_copies_change_nothing(layer: Layer) -> None:
    cache = filled_cache(layer)
    cache.copy_blocks([])
    expect("the slots after copy_blocks([])", blocks_of(cache), ModelCache().state())


@pytest.mark.task(2)
def test_a_swap_goes_from_one_cache_to_another_of_another_size(layer: Layer) -> None:
    pool, cpu, model = filled_cache(layer), filled_cache(layer, 2, first=500), ModelCache(2, first=500)
    cpu.copy_blocks_from(pool, [(3, 0), (0, 1)])
    model.copy_blocks([(3, 0), (0, 1)], ModelCache())
    what = "the slots of a cache of 2 blocks after copy_blocks_from(a cache of 4, [(3, 0), (0, 1)])"
    expect(what, blocks_of(cpu), model.state())
    expect("the slots of the cache that was copied from", blocks_of(pool), ModelCache().state())


SLOTS = st.lists(st.integers(0, N * B - 1), max_size=3, unique=True)
WRITES = st.tuples(st.just("write"), st.integers(0, L - 1), SLOTS)
COPIES = st.dictionaries(st.integers(0, N - 1), st.integers(0, N - 1), min_size=1, max_size=3)  # dst: src
OPERATIONS = WRITES | st.tuples(st.just("copy"), st.just(0), COPIES)


@pytest.mark.task(2)
def test_any_history_of_writes_and_copies(layer: Layer) -> None:
    run_history(layer, [("write", 0, [3]), ("copy", 0, {0: 1})])  # a stub ends here, unshrunk

    @settings(max_examples=30)
    @given(operations=st.lists(OPERATIONS, max_size=6))
    def holds_for(operations: list[tuple[str, int, Any]]) -> None:
        run_history(layer, operations)

    holds_for()


def run_history(layer: Layer, operations: list[tuple[str, int, Any]]) -> None:
    """Writes and copies, on the layer and on its model. No padding: that is task 1's."""
    cache, model = filled_cache(layer), ModelCache()
    replay = Replay(
        "cache = KVCache(…), 4 blocks of 2 tokens, filled", lambda: blocks_of(cache), model.state,
        draw_cache, name_mistake,
    )
    for number, (name, index, argument) in enumerate(operations):
        if name == "copy":
            copies = [(src, dst) for dst, src in argument.items()]
            replay.step(
                f"cache.copy_blocks({copies})",
                lambda copies=copies: cache.copy_blocks(copies),
                lambda copies=copies: model.copy_blocks(copies),
            )
            continue
        k, slots = numbered(len(argument), 1 + 10 * number), torch.tensor(argument, dtype=torch.int64)
        replay.step(
            f"cache.write({index}, k, v, {argument})",
            lambda index=index, k=k, slots=slots: cache.write(index, k, -k, slots),
            lambda index=index, k=k, slots=argument: model.write(index, k[:, 0, 0].tolist(), slots),
        )


# -- task 3: gather ----------------------------------------------------------------------------------


@pytest.mark.task(3)
def test_a_context_comes_out_in_order_wherever_its_blocks_lie(layer: Layer) -> None:
    cache = torch.arange(6 * 4).float().reshape(6, 4, 1, 1)  # block b holds 4b … 4b + 3
    table = torch.tensor([5, 2, 0])
    got = layer.gather_context(cache, table, 10)
    expected = [20.0, 21, 22, 23, 8, 9, 10, 11, 0, 1]
    what = "gather_context(cache, [5, 2, 0], 10), blocks of 4 tokens, slot s holds s"
    shaped = [torch.tensor(wrong).float()[:, None, None] for wrong in (
        expected, range(10), [*expected, 2, 3], [0, 1, 2, 3, 8, 9, 10, 11, 20, 21],
    )]
    mistakes = [(shaped[1], TABLE_IGNORED), (shaped[2], WHOLE_BLOCKS), (shaped[3], SORTED_BLOCKS)]
    expect(what, got, shaped[0], mistakes)


@pytest.mark.task(3)
@pytest.mark.parametrize("context_len", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("after", [MILLION, -1, 2**40])
def test_what_a_table_holds_past_its_end_is_no_block(layer: Layer, context_len: int, after: int) -> None:
    cache = torch.full((4, 4, 2, 3), NAN)
    tokens = torch.randn(context_len, 2, 3, generator=generator(context_len))
    table = [3, 1][: -(-context_len // 4)]
    for position in range(context_len):
        cache[table[position // 4], position % 4] = tokens[position]
    padded = torch.tensor([*table, after, after])
    what = f"gather_context(cache, {padded.tolist()}, {context_len}), blocks of 4 tokens"
    before = cache.clone(), padded.clone()
    got = layer.gather_context(cache, padded, context_len)
    expect_unchanged(what, (cache, padded), before)
    whole = cache[torch.tensor(table)].flatten(0, 1)
    is_nan = len(got) > context_len and bool(got[context_len:].isnan().all())
    expect(what, got, tokens, [(got, WHOLE_BLOCKS)] if is_nan and len(got) == len(whole) else [])


@pytest.mark.task(3)
def test_what_is_gathered_is_a_copy_with_the_dtype_of_the_cache(layer: Layer) -> None:
    cache = torch.ones(3, 2, 1, 2, dtype=torch.bfloat16)
    got = layer.gather_context(cache, torch.tensor([1, 2]), 4)
    expect(
        "gather_context(cache of bfloat16 ones, [1, 2], 4)", got, torch.ones(4, 1, 2, dtype=torch.bfloat16)
    )
    got.zero_()
    layer.settle()
    expect("the cache, after the result was overwritten", cache, torch.ones(3, 2, 1, 2, dtype=torch.bfloat16))


@pytest.mark.task(3)
@pytest.mark.parametrize("context_len", [1, 3, 4])
def test_a_context_of_one_block_is_a_copy_too(layer: Layer, context_len: int) -> None:
    cache = torch.ones(3, 4, 1, 2)
    got = layer.gather_context(cache, torch.tensor([1, 2]), context_len)
    got.zero_()
    layer.settle()
    what = f"the cache, after the result of gather_context(cache, [1, 2], {context_len}) was overwritten"
    expect(what, cache, torch.ones(3, 4, 1, 2))


# -- task 4: the mask --------------------------------------------------------------------------------


@pytest.mark.task(4)
@pytest.mark.parametrize("query_len, context_len", [(2, 4), (1, 4), (4, 4), (1, 1), (3, 4), (5, 9)])
def test_a_token_sees_every_position_up_to_its_own(layer: Layer, query_len: int, context_len: int) -> None:
    expected = [[k <= context_len - query_len + i for k in range(context_len)] for i in range(query_len)]
    got = layer.causal_mask(query_len, context_len)
    plain = [[k <= i for k in range(context_len)] for i in range(query_len)]
    strict = [[k < context_len - query_len + i for k in range(context_len)] for i in range(query_len)]
    inverted = [[not sees for sees in row] for row in expected]
    mistakes = [
        (torch.tensor(wrong), name)
        for wrong, name in ((plain, FROM_ZERO), (strict, NOT_ITSELF), (inverted, UPSIDE_DOWN))
    ]
    expect(f"causal_mask({query_len}, {context_len})", got, torch.tensor(expected), mistakes)


# -- task 5: attention -------------------------------------------------------------------------------


def check_attend(
    layer: Layer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, atol: float = 1e-5
) -> None:
    (m, H, _), (c, G, _) = q.shape, k.shape
    what = f"attend(q, k, v, {scale}) of {m} new tokens in a context of {c}, H={H}, G={G}"
    expected = naive_attention(q, k, v, scale)
    wrong = known_mistakes(q, k, v, scale)
    before = q.clone(), k.clone(), v.clone()
    expect_close(what, layer.attend(q, k, v, scale), expected, atol=atol, rtol=atol, mistakes=wrong)
    expect_unchanged(what, (q, k, v), before)


@pytest.mark.task(5)
def test_a_weighted_mean_by_hand(layer: Layer) -> None:
    # One decode, one head. Scores ln 3 and 0, so the weights are 3/4 and 1/4 of the values 8 and 4.
    q, k = torch.tensor([[[1.0]]]), torch.tensor([[[1.0986123]], [[0.0]]])
    v = torch.tensor([[[8.0]], [[4.0]]])
    what = "attend of one token with scores ln 3 and 0, values 8 and 4"
    uniform, last = torch.tensor([[[6.0]]]), torch.tensor([[[4.0]]])
    mistakes = [(uniform, "all weights are the same: the scores were not used"), (last, ONLY_NEW)]
    expect_close(what, layer.attend(q, k, v, 1.0), torch.tensor([[[7.0]]]), atol=1e-5, mistakes=mistakes)


@pytest.mark.task(5)
@pytest.mark.parametrize("m, c", [(1, 1), (1, 5), (4, 4), (3, 7), (2, 3)])
def test_decode_prefill_and_chunk_with_as_many_kv_heads_as_query_heads(layer: Layer, m: int, c: int) -> None:
    check_attend(layer, *random_qkv(m, c, (2, 2)), scale=0.7)


@pytest.mark.task(5)
@pytest.mark.parametrize("heads", [(4, 2), (6, 2), (6, 3), (3, 1), (9, 3)])
@pytest.mark.parametrize("m", [1, 3])
def test_neighbouring_query_heads_share_a_kv_head(layer: Layer, heads: tuple[int, int], m: int) -> None:
    check_attend(layer, *random_qkv(m, 5, heads), scale=0.7)


@pytest.mark.task(5)
@pytest.mark.parametrize("scale", [0.01, 1.5])
def test_the_scale_is_the_one_that_is_given(layer: Layer, scale: float) -> None:
    check_attend(layer, *random_qkv(2, 5, (2, 1)), scale=scale)


@pytest.mark.task(5)
def test_tokens_that_are_not_seen_have_no_weight_however_large_their_score(layer: Layer) -> None:
    q, k, v = random_qkv(2, 4, (1, 1))
    k[-1], v[-1] = 100.0 * q[0, 0], 1e6  # the first new token must not see the second
    check_attend(layer, q, k, v, scale=1.0)


@pytest.mark.task(5)
@pytest.mark.parametrize("offset", [3000.0, -3000.0])
def test_very_large_and_very_negative_scores_stay_finite(layer: Layer, offset: float) -> None:
    q, k, v = random_qkv(3, 6, (2, 1))
    q[..., 0], k[..., 0] = 1.0, offset + 10 * torch.arange(6.0)[:, None]  # even after 1 / √D
    got = layer.attend(q, k, v, 0.5)
    not_finite = bool((~got.isfinite()).any())
    expect("whether a result of scores near ±1500 has NaN or infinity", not_finite, False, {True: NO_MAXIMUM})
    check_attend(layer, q, k, v, scale=0.5, atol=1e-3)


@pytest.mark.task(5)
@pytest.mark.parametrize("differ", ["heads", "tokens"])
def test_every_head_and_every_token_has_a_maximum_of_its_own(layer: Layer, differ: str) -> None:
    # Scores of 0 to 1 for the first head (or token), of 300 to 301 for the next, and so on.
    q, k, v = random_qkv(3, 6, (4, 2))
    q[...], k[...] = 0.0, 0.0
    q[..., 0], k[..., 0] = 1.0, torch.arange(6.0)[:, None] / 5
    q[..., 1], k[..., 1] = 300 * (torch.arange(4.0) if differ == "heads" else torch.arange(3.0)[:, None]), 1.0
    got = layer.attend(q.clone(), k.clone(), v.clone(), 1.0)
    what = f"whether there is NaN or infinity where the scores of two {differ} are 300 apart"
    expect(what, bool((~got.isfinite()).any()), False, {True: ONE_MAXIMUM})
    check_attend(layer, q, k, v, scale=1.0, atol=1e-3)


@pytest.mark.task(5)
@pytest.mark.parametrize("m", [1, 3])
def test_bfloat16_comes_in_and_goes_out(layer: Layer, m: int) -> None:
    q, k, v = (x.bfloat16() for x in random_qkv(m, 6, (4, 2)))
    check_attend(layer, q, k, v, scale=0.5, atol=3e-2)


# -- task 6: the whole call --------------------------------------------------------------------------

Sequences = list[tuple[int, int]]


def scattered(
    sequences: Sequences, block_size: int = 4, heads: tuple[int, int] = (4, 2), seed: int = 0
) -> tuple[tuple[torch.Tensor, ...], list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Sequences of (new tokens, context) whose blocks lie shuffled in a cache of NaN.

    Returns the arguments of paged_attention up to query_start_loc, and every sequence's own q, k and v.
    """
    counts = [-(-context // block_size) for _, context in sequences]
    order = torch.randperm(sum(counts) + 2, generator=generator(seed)).tolist()
    k_cache = torch.full((len(order), block_size, heads[1], 4), NAN)
    v_cache = k_cache.clone()
    tables = torch.full((len(sequences), max(counts) + 1), MILLION)
    dense = []
    for row, (new, context) in enumerate(sequences):
        q, k, v = random_qkv(new, context, heads, seed=seed + row)
        blocks = [order.pop() for _ in range(counts[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int64)
        for position in range(context):
            block_id, offset = blocks[position // block_size], position % block_size
            k_cache[block_id, offset], v_cache[block_id, offset] = k[position], v[position]
        dense.append((q, k, v))
    starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0)
    contexts = torch.tensor([context for _, context in sequences])
    return (torch.cat([q for q, _, _ in dense]), k_cache, v_cache, tables, contexts, starts), dense


def check_paged(
    layer: Layer, name: str, sequences: Sequences, block_size: int = 4, heads: tuple[int, int] = (4, 2),
    mistakes: tuple[str, ...] = MISTAKES,
) -> None:
    arguments, dense = scattered(sequences, block_size, heads)
    starts, contexts, scale = arguments[5].tolist(), arguments[4].tolist(), 0.7
    what = f"{name}(…, context_lens={contexts}, query_start_loc={starts}, scale={scale})"
    expected = torch.cat([naive_attention(*qkv, scale) for qkv in dense])
    before = [tensor.clone() for tensor in arguments]
    got = getattr(layer, name)(*arguments, scale)
    expect_unchanged(what, arguments, before)
    if bool(got.isnan().any()):
        expect(f"whether there is NaN in {what}", True, False, {True: READ_UNWRITTEN})
    wrong = ((torch.cat([mistaken(kind, *qkv, scale) for qkv in dense]), kind) for kind in mistakes)
    expect_close(what, got, expected, atol=1e-5, rtol=1e-5, mistakes=wrong)


# In the package the second is a fast twin of the first; in your file they are one function.
BOTH = pytest.mark.parametrize("name", ["paged_attention_reference", "paged_attention"])


@pytest.mark.task(6)
@BOTH
def test_a_decode_sees_its_whole_context_and_nothing_else(layer: Layer, name: str) -> None:
    for context in (1, 3, 4, 5, 9):
        check_paged(layer, name, [(1, context)])


@pytest.mark.task(6)
@BOTH
def test_a_prefill_and_a_chunk(layer: Layer, name: str) -> None:
    for sequences in ([(5, 5)], [(3, 9)], [(4, 8)], [(1, 1)]):
        check_paged(layer, name, sequences)


@pytest.mark.task(6)
@BOTH
def test_prefills_decodes_and_chunks_mix_in_one_call(layer: Layer, name: str) -> None:
    check_paged(layer, name, [(5, 5), (1, 9), (3, 7), (1, 1), (2, 2), (1, 4)])
    check_paged(layer, name, [(1, 6), (1, 7), (4, 5)], block_size=1)


@pytest.mark.task(6)
def test_chunks_of_a_prompt_give_the_rows_of_the_whole_prefill(layer: Layer) -> None:
    (q, k_cache, v_cache, tables, _, _), [qkv] = scattered([(9, 9)])
    expected = naive_attention(*qkv, 0.5)
    for start, end in ((0, 1), (1, 6), (6, 9)):
        tables_of_chunk = (tables, torch.tensor([end]), torch.tensor([0, end - start]))
        got = layer.paged_attention(q[start:end], k_cache, v_cache, *tables_of_chunk, 0.5)
        what = f"paged_attention of the rows {start} to {end - 1} of a prompt of 9, with context {end}"
        expect_close(what, got, expected[start:end], atol=1e-5, rtol=1e-5)


@pytest.mark.task(6)
@BOTH
def test_a_sequence_without_context_gives_zeros_and_one_without_new_tokens_no_row(
    layer: Layer, name: str
) -> None:
    (q, k_cache, v_cache, tables, _, _), dense = scattered([(1, 5), (2, 3)])
    paged_attention = getattr(layer, name)
    nobody = torch.full_like(tables[:1], MILLION)
    got = paged_attention(
        torch.cat([q[:1], torch.ones_like(q[:1]), q[1:]]), k_cache, v_cache,
        torch.cat([tables[:1], nobody, tables[:1], tables[1:]]),
        torch.tensor([5, 0, 5, 3]), torch.tensor([0, 1, 2, 2, 4]), 0.5,
    )
    expected = [naive_attention(*qkv, 0.5) for qkv in dense]
    zeros = torch.zeros_like(expected[0])
    empty = bool(got[1:2].isnan().any()) if len(got) == 4 else False
    expect("whether a sequence of context 0 has NaN", empty, False, {True: EMPTY_CONTEXT})
    what = f"{name}(…, context_lens=[5, 0, 5, 3], query_start_loc=[0, 1, 2, 2, 4], …)"
    expect_close(what, got, torch.cat([expected[0], zeros, expected[1]]), atol=1e-5, rtol=1e-5)


@pytest.mark.task(6)
@BOTH
def test_more_new_tokens_than_context_are_refused_with_both_numbers(layer: Layer, name: str) -> None:
    (q, k_cache, v_cache, tables, _, starts), _ = scattered([(5, 5), (1, 4)])
    expect_error(
        f"{name}(…, context_lens=[3, 4], query_start_loc=[0, 5, 6], …)", ValueError,
        lambda: getattr(layer, name)(q, k_cache, v_cache, tables, torch.tensor([3, 4]), starts, 0.5), [5, 3],
    )


@pytest.mark.task(6)
@BOTH
def test_a_later_sequence_is_refused_as_the_first_is(layer: Layer, name: str) -> None:
    (q, k_cache, v_cache, tables, _, starts), _ = scattered([(1, 4), (5, 5), (1, 2)])
    contexts = torch.tensor([4, 3, 2])
    expect_error(
        f"{name}(…, context_lens=[4, 3, 2], query_start_loc=[0, 1, 6, 7], …)", ValueError,
        lambda: getattr(layer, name)(q, k_cache, v_cache, tables, contexts, starts, 0.5), [5, 3],
    )


@pytest.mark.task(6)
@BOTH
def test_several_new_tokens_without_context_give_zeros_and_no_error(layer: Layer, name: str) -> None:
    (q, k_cache, v_cache, tables, _, starts), dense = scattered([(1, 4), (3, 3)])
    got = getattr(layer, name)(q, k_cache, v_cache, tables, torch.tensor([4, 0]), starts, 0.5)
    expected = torch.cat([naive_attention(*dense[0], 0.5), torch.zeros(3, 4, 4)])
    what = f"{name}(…, context_lens=[4, 0], query_start_loc=[0, 1, 4], …)"
    expect_close(what, got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.task(6)
def test_the_plan_that_the_engine_passes_is_taken(layer: Layer) -> None:
    arguments, dense = scattered([(1, 5), (3, 6)])
    plan = layer.given("minipaged.paged_attention").plan_attention(*arguments[3:], arguments[1])
    got = layer.paged_attention(*arguments, 0.5, plan=plan)
    expected = torch.cat([naive_attention(*qkv, 0.5) for qkv in dense])
    expect_close("paged_attention(…, plan=plan_attention(…))", got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.task(6)
def test_queries_and_result_are_bfloat16_if_the_cache_is(layer: Layer) -> None:
    (q, k_cache, v_cache, *tables), dense = scattered([(1, 5), (2, 6)])
    got = layer.paged_attention(q.bfloat16(), k_cache.bfloat16(), v_cache.bfloat16(), *tables, 0.5)
    expected = torch.cat([naive_attention(*(x.bfloat16() for x in qkv), 0.5) for qkv in dense])
    expect_close("paged_attention of a bfloat16 cache", got, expected, atol=3e-2, rtol=3e-2)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Sequences, int, tuple[int, int]]:
    lengths = st.tuples(st.integers(1, 4), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair)))
    sequences = draw(st.lists(lengths, min_size=1, max_size=4))
    return sequences, draw(st.integers(1, 4)), draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (2, 2)]))


@pytest.mark.task(6)
def test_any_batch_equals_dense_attention(layer: Layer) -> None:
    check_paged(layer, "paged_attention", [(2, 3)])  # a stub ends here, unshrunk

    @settings(max_examples=30)
    @given(batch=batches())
    def holds_for(batch: tuple[Sequences, int, tuple[int, int]]) -> None:
        sequences, block_size, heads = batch
        # No names of mistakes here: shrinking would compute them over and over.
        check_paged(layer, "paged_attention", sequences, block_size, heads, mistakes=())

    holds_for()


# -- task 7: the challenge ---------------------------------------------------------------------------


def nothing_yet(H: int, D: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.full((H,), float("-inf")), torch.zeros(H), torch.zeros(H, D)


@pytest.mark.task(7)
def test_the_running_maximum_and_sums_after_every_block(layer: Layer) -> None:
    # Two heads. Head 0 grows its maximum in the second block, head 1 does not.
    running = nothing_yet(2, 1)
    blocks = ([[1.0, 3.0], [5.0, 0.0]], [[10.0], [20.0]]), ([[7.0], [2.0]], [[30.0]])
    seen: list[list[float]] = [[], []]
    values: list[float] = []
    for number, (scores, column) in enumerate(blocks):
        arguments = torch.tensor(scores), torch.tensor(column)[:, None].expand(-1, 2, 1)
        running = layer.fold_block(*running, *arguments)
        expect("the number of tensors that fold_block returns", len(running), 3)
        seen = [old + new for old, new in zip(seen, scores, strict=True)]
        values += [value for (value,) in column]
        biggest = [max(row) for row in seen]
        weights = [torch.tensor(row).sub(most).exp() for row, most in zip(seen, biggest, strict=True)]
        expected = (
            torch.tensor(biggest),
            torch.stack([row.sum() for row in weights]),
            torch.stack([(row * torch.tensor(values)).sum() for row in weights])[:, None],
        )
        kept = [torch.tensor(row[:2]).sub(max(row[:2])).exp() for row in seen]
        late = [torch.tensor(row[2:]).sub(most).exp() for row, most in zip(seen, biggest, strict=True)]
        sums = torch.stack([a.sum() + b.sum() for a, b in zip(kept, late, strict=True)])
        dots = torch.stack([
            (a * torch.tensor(values[:2])).sum() + (b * torch.tensor(values[2:])).sum()
            for a, b in zip(kept, late, strict=True)
        ])[:, None]
        mistakes = ((), ((sums, NOT_RESCALED),), ((dots, NOT_RESCALED),))
        for title, got, wanted, wrong in zip(
            ("maximum", "total", "weighted"), running, expected, mistakes, strict=True
        ):
            what = f"{title} after block {number}, scores of the two heads so far: {seen}"
            expect_close(what, got, wanted, atol=1e-5, rtol=1e-5, mistakes=wrong if number else ())


@pytest.mark.task(7)
def test_what_is_passed_in_is_not_changed(layer: Layer) -> None:
    running = torch.tensor([3.0]), torch.tensor([1.5]), torch.tensor([[4.0, 5.0]])
    before = [x.clone() for x in running]
    layer.fold_block(*running, torch.tensor([[5.0]]), torch.ones(1, 1, 2))
    for title, old, now in zip(("maximum", "total", "weighted"), before, running, strict=True):
        expect(f"the argument {title} after fold_block", now, old)


@pytest.mark.task(7)
@pytest.mark.parametrize("context", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2)])
def test_block_by_block_equals_the_whole(layer: Layer, context: int, heads: tuple[int, int]) -> None:
    arguments, [(q, k, v)] = scattered([(1, context)], heads=heads)
    what = f"attend_by_block of a context of {context}, blocks of 4 tokens, H={heads[0]}, G={heads[1]}"
    before, expected = [tensor.clone() for tensor in arguments], naive_attention(q, k, v, 0.7)[0]
    got = layer.attend_by_block(q[0], *arguments[1:3], arguments[3][0], context, 0.7)
    expect_unchanged(what, (q, *arguments[1:]), before)
    if bool(got.isnan().any()):
        expect(f"whether there is NaN in {what}", True, False, {True: READ_UNWRITTEN})
    wrong = ((tensor[0], name) for tensor, name in known_mistakes(q, k, v, 0.7))
    expect_close(what, got, expected, atol=1e-5, rtol=1e-5, mistakes=wrong)


@pytest.mark.task(7)
@pytest.mark.parametrize("offset", [1500.0, -1500.0])
def test_scores_may_be_larger_than_exp_can_bear(layer: Layer, offset: float) -> None:
    arguments, [(q, k, v)] = scattered([(1, 10)], heads=(2, 1))
    q[..., 0], k[..., 0] = 1.0, offset + torch.arange(10.0)[:, None]
    cache = arguments[1].clone()
    for position in range(10):
        cache[arguments[3][0, position // 4], position % 4] = k[position]
    got = layer.attend_by_block(q[0].clone(), cache, arguments[2], arguments[3][0], 10, 1.0)
    not_finite = bool((~got.isfinite()).any())
    expect("whether a result of scores near ±1500 has NaN or infinity", not_finite, False, {True: NO_MAXIMUM})
    what = f"attend_by_block with scores near {offset:g}"
    expect_close(what, got, naive_attention(q, k, v, 1.0)[0], atol=1e-3, rtol=1e-3)


@pytest.mark.task(7)
def test_the_result_has_the_dtype_of_the_query(layer: Layer) -> None:
    arguments, [(q, k, v)] = scattered([(1, 6)])
    got = layer.attend_by_block(
        q[0].bfloat16(), arguments[1].bfloat16(), arguments[2].bfloat16(), arguments[3][0], 6, 0.5
    )
    expected = naive_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.5)[0]
    expect_close("attend_by_block of a bfloat16 cache", got, expected, atol=3e-2, rtol=3e-2)


@pytest.mark.task(7)
def test_a_long_bfloat16_context_is_summed_in_fp32(layer: Layer) -> None:
    # 600 blocks of one token. A bfloat16 has 8 bits: 256 + 1 is 256, so a sum kept in it stops growing.
    q, k, v = random_qkv(1, 600, (4, 2))
    v += torch.arange(600.0)[:, None, None] / 200  # what comes late counts as much as what came first
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    table = torch.randperm(600, generator=generator(0))
    k_cache, v_cache = torch.empty_like(k)[:, None], torch.empty_like(v)[:, None]
    k_cache[table, 0], v_cache[table, 0] = k, v
    got = layer.attend_by_block(q[0].clone(), k_cache, v_cache, table, 600, 0.5)
    what = "attend_by_block of a bfloat16 context of 600, blocks of 1 token"
    expect_close(what, got, naive_attention(q, k, v, 0.5)[0], atol=1e-2, rtol=1e-2)
