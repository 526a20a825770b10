"""Chapter 7's grader: the prefix cache. `minipaged check ch07` runs it on exercises/ch07_prefix_cache.py."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_error, sketch_pool
from minipaged.errors import OutOfBlocks

TASKS = (
    Task(
        1, "what else must be equal", stars=1, points=5, minutes=5,
        hints=(
            "Without their domains, salt \"x\" and adapter \"x\" would look the same.",
            "An empty text is false to Python, and yet it is not None.",
        ),
        compare="that None is left out by `is not None`, and not by being false",
    ),
    Task(
        2, "a key for every full block", stars=1, points=15, minutes=15,
        hints=(
            "sha256 wants bytes. For each argument: could other values give the same bytes? And could the "
            "end of one argument be read as the beginning of the next?",
            "`array('q', token_ids).tobytes()` has 8 bytes for each token, `json.dumps(extra).encode()` "
            "keeps texts apart, and `len(token_ids).to_bytes(8, 'little')` says where the tokens end.",
            "In block_keys, `range(block_size, len(token_ids) + 1, block_size)` are the ends of the full "
            "blocks; the parent is the last key so far, or ROOT_KEY.",
        ),
        compare="the comment that says why no two inputs have the same bytes",
    ),
    Task(
        3, "publish and forget", stars=2, points=15, minutes=10,
        hints=(
            "Two dicts, from key to block and from block to key. Every change is a change of both.",
            "`self._key_of.pop(block_id, None)` takes a block's key out, or gives None if it has none.",
            "publish: if the key is not taken, forget(block_id), then enter it into both dicts.",
        ),
        compare="why `forget` needs the second map, and where `publish` uses `forget`",
    ),
    Task(
        4, "find a prompt's beginning", stars=1, points=10, minutes=10,
        hints=(
            "Which is the last block that may be found if one token must be left? Try 8 tokens, and 9.",
            "`keys[: max(num_tokens - 1, 0) // self.block_size]` are the keys to look at.",
            "Stop at the first key without a block, and mind that block 0 is a block.",
        ),
        compare="how the limit and the stop are two lines, and where 0 tokens are taken care of",
    ),
    Task(
        5, "least recently used", stars=2, points=20, minutes=15,
        hints=(
            "What must happen when the allocator hands out a block, and when a request gives one up? Only "
            "one of the two makes the cache forget.",
            "A hit is free or in use: `ref_count(block_id) == 0` says which. Free hits are needed like fresh "
            "blocks; hits in use cost nothing.",
            "take: count the free hits plus num_new and compare with num_free; then revive or share every "
            "hit; then allocate_many(num_new). release: free_many(reversed(block_ids)).",
        ),
        compare="how little of it is about eviction, and the order of the last two steps of `take`",
    ),
    Task(
        6, "a radix tree", stars=3, points=20, minutes=30,
        hints=(
            "A node holds a list of blocks and their tokens, and children that are found by the tokens of "
            "their first block. Compare block by block, so that nodes end where blocks end.",
            "Four things can happen at a node: no child begins like the rest; the child is a beginning of "
            "the rest; the rest is a beginning of the child; or they part in the middle. Only that splits.",
            "split(node, at): a new node takes the blocks from `at` on and all children; the old one keeps "
            "the blocks before, and has the new node as its only child.",
        ),
        compare="that match and insert take the same walk, and that only a fork in the way makes a node",
    ),
    Task(
        7, "the cache that knows the future", stars=3, points=15, minutes=30,
        hints=(
            "Go through the prompts from the last to the first, with a dict from block to the prompt that "
            "uses it next.",
            "Keep for every cached block the number of the prompt that uses it next and its place; evict "
            "max(cached, key=…), never one of the current prompt's.",
            "With `heapq`, push (-next use, -place, block) at every use. Entries of earlier uses can stay: "
            "the past is nearer than any future, so they never come out.",
        ),
        compare="why what comes out of the heap is never out of date, and never one of the prompt's own",
    ),
)

NO_DOMAIN = 'the values lack their domains: salt "x" and adapter "x" are the same then'
EMPTY_IS_NONE = "an empty text was taken for None: a user with an empty salt shares with those who have none"
NO_PARENT = "the parent is not in the key: a block behind another beginning is taken for this one"
NO_EXTRA = "the extra keys are not in the key: users with different salts share blocks"
NO_ORDER = "the order of the tokens is not in the key"
RUN_TOGETHER = "the tokens run together: [1, 23] and [12, 3] have the same key"
ONE_BYTE = "only the lowest byte of each token is in the key"
WEAK = "Python's hash() is not sha256: 0 and 2**61 - 1 have the same hash"
UNQUOTED = (
    "the extra keys run together: one salt can be written so that it looks like another with an adapter"
)
HALF_FULL = "a block that is not full has a key too"
LAST_FULL = "the last full block has no key"
NO_CHAIN = "each block's parent is ROOT_KEY: the keys are no chain"

LAST_WINS = "the second of two identical blocks took the key over: the first one stays"
OLD_KEY_STAYS = "a block is still found under the key it had before"
OTHER_FORGOTTEN = "forgetting a block without a key took the key of another one"
SAME_DICT = "the cache's own dict was given out: changing it changes the cache"

ALL_FOUND = "every block was found, and no token is left to compute"
BEHIND_A_HOLE = "a block behind a missing one was taken for a hit: a match is a run from the start"
TOO_FEW = (
    "one block too few was found: a prompt of 9 tokens with blocks of 4 leaves one token beside two blocks"
)
MINUS_ONE = "0 tokens: (0 - 1) // 4 is -1, and keys[:-1] is all but the last"
BLOCK_ZERO = "block 0 was taken for no block"

NOT_WIRED = (
    "a block that holds something else by now can still be found: the allocator does not tell the cache"
)
TOO_SOON = "a released block was forgotten: it can be found until it is handed out again"
HEAD_FIRST = "the blocks were released head first: a sequence's end must be evicted before its beginning"
FRESH_FIRST = "fresh blocks were taken before the hits were secured, and one of the hits was among them"
USED_HITS = "hits in use were counted as needed: one user more takes no free block"
PARTLY = "hits were taken before OutOfBlocks, and kept: check first, and count free hits as needed"
NOT_A_USER = "a hit in use got no user more: it will be freed under this request"

ONE_NODE_EACH = "one node for each block: a node is a run of blocks, split only where two sequences part"
TREE_LAST_WINS = "the second of two identical blocks took the first one's place"
LOST_BELOW = "what was below a node is lost when the node is split"

CHANGED = "what the caller passed in was changed"
SAME_LIST = "one list was given out twice: whoever changes it changes it for the other, too"

A, B, C, D = (bytes([number]) * 32 for number in (65, 66, 67, 68))
KEYS = {"A": A, "B": B, "C": C, "D": D}
NAMES = {key: name for name, key in KEYS.items()}


def findable(cache: Any) -> dict[str, int]:
    """The entries of a cache whose keys are A to D, by name."""
    return {NAMES[key]: block for key, block in cache.entries().items()}


# -- task 1: extra keys ----------------------------------------------------------------------------


@pytest.mark.task(1)
def test_each_value_stands_with_its_domain(layer: Layer) -> None:
    expect("extra_keys()", layer.extra_keys(), ())
    salt, adapter = (("cache_salt", "x"),), (("adapter", "x"),)
    expect('extra_keys("x")', layer.extra_keys("x"), salt, [(("x",), NO_DOMAIN)])
    expect('extra_keys(adapter="x")', layer.extra_keys(adapter="x"), adapter, [(("x",), NO_DOMAIN)])
    both = layer.extra_keys(adapter="x", cache_salt="y")
    wrong = [(("y", "x"), NO_DOMAIN), ((("adapter", "x"), ("cache_salt", "y")), "the salt stands first")]
    expect('extra_keys(adapter="x", cache_salt="y")', both, (("cache_salt", "y"), ("adapter", "x")), wrong)


@pytest.mark.task(1)
def test_an_empty_text_is_a_value(layer: Layer) -> None:
    expect('extra_keys("")', layer.extra_keys(""), (("cache_salt", ""),), [((), EMPTY_IS_NONE)])
    got = layer.extra_keys("a", "")
    expect(
        'extra_keys("a", "")',
        got,
        (("cache_salt", "a"), ("adapter", "")),
        [((("cache_salt", "a"),), EMPTY_IS_NONE)],
    )


@pytest.mark.task(1)
@pytest.mark.parametrize("text", [" Ab ", "None", "x"])
def test_a_value_stays_as_it_is_and_both_may_be_the_same(layer: Layer, text: str) -> None:
    expected = (("cache_salt", text), ("adapter", text))
    wrong = [
        (expected[:1], "of two equal values one was left out"),
        (expected[1:], "one was left out"),
        ((), "lost"),
    ]
    expect(f"extra_keys({text!r}, {text!r})", layer.extra_keys(text, text), expected, wrong)


# -- task 2: keys ----------------------------------------------------------------------------------

ROOT = bytes(32)
X, Y = (("cache_salt", "x"),), (("cache_salt", "y"),)
BOTH = (("cache_salt", "x"), ("adapter", "y"))


@pytest.mark.task(2)
def test_a_key_is_32_bytes_and_the_same_for_the_same_arguments(layer: Layer) -> None:
    key = layer.block_key(ROOT, [1, 2, 3, 4], X)
    expect(
        "type and length of block_key(ROOT_KEY, [1, 2, 3, 4], …)",
        (type(key).__name__, len(key)),
        ("bytes", 32),
    )
    expect("block_key of the same arguments, again", layer.block_key(ROOT, [1, 2, 3, 4], X), key)
    expect("block_key of the same tokens as a tuple", layer.block_key(ROOT, (1, 2, 3, 4), X), key)
    expect("block_key(ROOT_KEY, [1], ())", layer.block_key(ROOT, [1], ()), layer.block_key(ROOT, [1]))


@pytest.mark.task(2)
@pytest.mark.parametrize(
    ("one", "other", "mistake"),
    [
        ((A, [1, 2]), (B, [1, 2]), NO_PARENT),
        ((A, [1, 2]), (A[:31] + b"B", [1, 2]), NO_PARENT),
        ((ROOT, [1, 2]), (ROOT, [1, 2], X), NO_EXTRA),
        ((ROOT, [1, 2], X), (ROOT, [1, 2], Y), NO_EXTRA),
        ((ROOT, [1, 2], X), (ROOT, [1, 2], (("adapter", "x"),)), NO_EXTRA),
        ((ROOT, [1, 2]), (ROOT, [2, 1]), NO_ORDER),
        ((ROOT, [1, 4]), (ROOT, [2, 3]), None),
        ((ROOT, [1, 23]), (ROOT, [12, 3]), RUN_TOGETHER),
        ((ROOT, [2]), (ROOT, [258]), ONE_BYTE),
        ((ROOT, [5, 0]), (ROOT, [5]), None),
        ((ROOT, [1, 1, 2]), (ROOT, [1, 2, 2]), "a token that comes twice is in the key once"),
        ((ROOT, [2**63 - 1]), (ROOT, [2**63 - 2]), "large tokens were rounded: a float has 53 bits"),
        ((A[:30] + b"AB", [1]), (A[:30] + b"BA", [1]), NO_PARENT),
        ((ROOT, [1], (("cache_salt", "é"),)), (ROOT, [1], (("cache_salt", "è"),)), NO_EXTRA),
        ((ROOT, [7]), (ROOT, [7 + 2**32]), "only the lowest bytes of each token are in the key"),
        ((ROOT, [0]), (ROOT, [2**61 - 1]), WEAK),
        ((ROOT, [3]), (ROOT, [2**63 - 1]), None),
        ((ROOT, [1], BOTH), (ROOT, [1], (("cache_salt", "y"), ("adapter", "x"))), None),
        ((ROOT, [1], BOTH), (ROOT, [1], (("cache_salt", 'x", "adapter": "y'),)), UNQUOTED),
        ((ROOT, [1], BOTH), (ROOT, [1], (("cache_salt", "xadaptery"),)), UNQUOTED),
        ((ROOT, [1], (("cache_salt", ""),)), (ROOT, [1]), None),
    ],
)
def test_arguments_that_differ_give_different_keys(
    layer: Layer, one: tuple[Any, ...], other: tuple[Any, ...], mistake: str | None
) -> None:
    what = f"whether block_key{show(one)} and block_key{show(other)} are the same"
    same = layer.block_key(*one) == layer.block_key(*other)
    expect(what, same, False, {True: mistake} if mistake else {})


def show(arguments: Sequence[Any]) -> str:
    """The arguments of a call, with keys by name."""
    names = {ROOT: "ROOT_KEY"} | {key: f"b'{name}' * 32" for key, name in NAMES.items()}
    shown = [
        names.get(value, repr(value)) if isinstance(value, bytes) else repr(value) for value in arguments
    ]
    return f"({', '.join(shown)})"


@pytest.mark.task(2)
def test_inputs_by_the_hundred_have_a_key_of_their_own(layer: Layer) -> None:
    texts = (None, "", "x", "y", "xy")
    extras = [pairs(salt, adapter) for salt in texts for adapter in texts]
    tokens = [[0], [1], [0, 0], [0, 1], [1, 0], [256], [0, 0, 0]]
    inputs = [(parent, ids, extra) for parent in (ROOT, A) for ids in tokens for extra in extras]
    first: dict[bytes, tuple[Any, ...]] = {}
    for arguments in inputs:
        other = first.setdefault(layer.block_key(*arguments), arguments)
        same = f"the key of block_key{show(other)}, too" if other is not arguments else "a key of its own"
        expect(f"block_key{show(arguments)}", same, "a key of its own")


# What somebody might write between a domain and its value, or between two pairs.
MARKS = ("", " ", ":", "=", ",", ";", "|", "/", "-", "_", ".", "&", "#", "\0", "\x1f", "\n", ": ", ", ")
QUOTED = ('": "', '", "', "': '", "', '", '"], ["', "'), ('", '"}, {"', "][", ")(")


@pytest.mark.task(2)
def test_no_salt_can_be_written_that_looks_like_a_salt_and_an_adapter(layer: Layer) -> None:
    """Who chooses his own salt must not get at the blocks of another user's fine-tuned variant."""
    right = layer.block_key(ROOT, [1], BOTH)
    for inner, outer in itertools.product(MARKS + QUOTED, repeat=2):
        forged = (("cache_salt", f"x{outer}adapter{inner}y"),)
        what = f"whether block_key(ROOT_KEY, [1], {BOTH}) and block_key(ROOT_KEY, [1], {forged}) are the same"
        expect(what, layer.block_key(ROOT, [1], forged) == right, False, {True: UNQUOTED})


def pairs(salt: str | None, adapter: str | None) -> tuple[tuple[str, str], ...]:
    """What extra_keys should give."""
    values = {"cache_salt": salt, "adapter": adapter}
    return tuple((name, value) for name, value in values.items() if value is not None)


@pytest.mark.task(2)
@pytest.mark.parametrize(
    ("num_tokens", "num_keys"), [(0, 0), (3, 0), (4, 1), (5, 1), (8, 2), (11, 2), (12, 3), (41, 10)]
)
def test_full_blocks_have_keys_and_no_others(layer: Layer, num_tokens: int, num_keys: int) -> None:
    keys = layer.block_keys(list(range(num_tokens)), 4)
    wrong = {-(-num_tokens // 4): HALF_FULL, max(num_tokens - 1, 0) // 4: LAST_FULL}
    wrong.pop(num_keys, None)
    expect(f"how many keys {num_tokens} tokens have, block size 4", len(keys), num_keys, wrong)


@pytest.mark.task(2)
def test_each_key_is_the_parent_of_the_next(layer: Layer) -> None:
    first = layer.block_key(ROOT, [1, 2], X)
    second = layer.block_key(first, [3, 4], X)
    third = layer.block_key(second, [5, 6], X)
    got = layer.block_keys([1, 2, 3, 4, 5, 6, 7], 2, X)
    flat = [layer.block_key(ROOT, block, X) for block in ([1, 2], [3, 4], [5, 6])]
    plain = layer.block_keys([1, 2, 3, 4, 5, 6, 7], 2)
    what = "block_keys([1, 2, 3, 4, 5, 6, 7], 2, extra), beside keys made one by one with block_key"
    expect(what, got, [first, second, third], [(flat, NO_CHAIN), (plain, NO_EXTRA)])


@pytest.mark.task(2)
def test_the_tokens_stay_with_the_caller(layer: Layer) -> None:
    tokens = [1, 2, 3, 4, 5]
    layer.block_keys(tokens, 2)
    expect("the tokens after block_keys(tokens, 2)", tokens, [1, 2, 3, 4, 5], [([5], CHANGED), ([], CHANGED)])


@pytest.mark.task(2)
@pytest.mark.parametrize(
    ("other", "num_equal"),
    [([1, 2, 3, 4, 5, 6], 3), ([1, 2, 3, 4, 5, 9], 2), ([1, 2, 9, 4, 5, 6], 1), ([9, 2, 3, 4, 5, 6], 0)],
)
def test_keys_are_equal_up_to_the_first_block_that_differs(
    layer: Layer, other: list[int], num_equal: int
) -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    keys, others = layer.block_keys(list(prompt), 2), layer.block_keys(list(other), 2)
    got = [a == b for a, b in zip(keys, others, strict=True)]
    alone = [prompt[i : i + 2] == other[i : i + 2] for i in (0, 2, 4)]
    wanted = [True] * num_equal + [False] * (3 - num_equal)
    what = f"in which blocks of 2 the keys of {prompt} and of {other} are equal"
    expect(what, got, wanted, [] if alone == wanted else [(alone, NO_CHAIN)])


# -- task 3: publish and forget --------------------------------------------------------------------


class ModelCache:
    """What the cache should do: a list of (key, block)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    def state(self) -> dict[str, Any]:
        by_block = {block: name for name, block in self.rows}
        return {
            "entries": dict(self.rows), "num_blocks": len(self.rows),
            "keys of blocks 0 to 3": [by_block.get(block) for block in range(4)],
        }

    def publish(self, block_id: int, name: str) -> None:
        if all(row[0] != name for row in self.rows):
            self.forget(block_id)
            self.rows.append((name, block_id))

    def forget(self, block_id: int) -> None:
        self.rows = [row for row in self.rows if row[1] != block_id]


def state_of(cache: Any) -> dict[str, Any]:
    """All that can be seen of a cache."""
    keys = [cache.key(block) for block in range(4)]
    return {
        "entries": findable(cache), "num_blocks": cache.num_blocks,
        "keys of blocks 0 to 3": [None if key is None else NAMES[key] for key in keys],
    }


def name_cache_mistake(step: Step) -> str | None:
    """The known mistake that a wrong step shows."""
    before, wanted, came = (
        state["entries"] for state in (step.state_before, step.expected_state, step.state)
    )
    if "publish" in step.operation:
        if any(before.get(name) not in (None, block) for name, block in came.items()):
            return LAST_WINS
        return OLD_KEY_STAYS if len(came) > len(wanted) else None
    return OTHER_FORGOTTEN if len(came) < len(wanted) else None


def draw_cache(state: dict[str, Any]) -> str:
    """What can be found, in a line."""
    return "findable: " + (
        ", ".join(f"{name} → block {block}" for name, block in state["entries"].items()) or "nothing"
    )


@pytest.mark.task(3)
def test_a_published_block_is_found_under_its_key(layer: Layer) -> None:
    cache = layer.PrefixCache(4)
    expect("PrefixCache(4).block_size", cache.block_size, 4)
    expect("PrefixCache(4).num_blocks", cache.num_blocks, 0)
    expect("key(0) of a fresh cache", cache.key(0), None)
    cache.publish(0, A)
    cache.publish(7, B)
    expect("entries() after publish(0, A) and publish(7, B)", findable(cache), {"A": 0, "B": 7})
    expect("num_blocks", cache.num_blocks, 2)
    expect("key(0), key(7) and key(1)", [cache.key(block) for block in (0, 7, 1)], [A, B, None])


@pytest.mark.task(3)
def test_two_caches_have_nothing_in_common(layer: Layer) -> None:
    first, second = layer.PrefixCache(4), layer.PrefixCache(4)
    first.publish(3, A)
    expect("entries() of another cache", findable(second), {})


@pytest.mark.task(3)
def test_the_first_of_two_identical_blocks_stays(layer: Layer) -> None:
    cache = layer.PrefixCache(4)
    cache.publish(3, A)
    cache.publish(5, A)
    what = "entries() after publish(3, A) and publish(5, A)"
    expect(what, findable(cache), {"A": 3}, [({"A": 5}, LAST_WINS)])
    expect(
        "key(3) and key(5)",
        [cache.key(3), cache.key(5)],
        [A, None],
        [([A, A], "a block has a key that another block is found under")],
    )
    cache.forget(5)
    expect("entries() after forget(5), which has no key", findable(cache), {"A": 3}, [({}, OTHER_FORGOTTEN)])
    cache.publish(3, A)
    expect("entries() after publish(3, A), again", findable(cache), {"A": 3})


@pytest.mark.task(3)
def test_a_block_has_one_key_the_newest(layer: Layer) -> None:
    cache = layer.PrefixCache(4)
    cache.publish(2, A)
    cache.publish(2, B)
    expect(
        "entries() after publish(2, A) and publish(2, B)",
        findable(cache),
        {"B": 2},
        [({"A": 2, "B": 2}, OLD_KEY_STAYS), ({"A": 2}, "a block kept the key it had before")],
    )
    expect("key(2)", cache.key(2), B, {A: OLD_KEY_STAYS})
    cache.publish(3, A)
    expect("entries() after publish(3, A): the key is free again", findable(cache), {"A": 3, "B": 2})


@pytest.mark.task(3)
def test_a_forgotten_block_is_not_found_and_its_key_can_be_taken(layer: Layer) -> None:
    cache = layer.PrefixCache(4)
    cache.publish(2, A)
    cache.forget(2)
    cache.forget(2)
    cache.forget(0)
    expect("entries() after publish(2, A), forget(2), forget(2), forget(0)", findable(cache), {})
    expect(
        "key(2)", cache.key(2), None, {A: "the block still has its key: only one of the two maps was changed"}
    )
    cache.publish(1, A)
    expect(
        "entries() after publish(1, A)", findable(cache), {"A": 1}, [({}, "the key still counts as taken")]
    )


@pytest.mark.task(3)
def test_entries_are_a_copy(layer: Layer) -> None:
    cache = layer.PrefixCache(4)
    cache.publish(2, A)
    cache.entries().clear()
    expect("num_blocks, after entries().clear()", cache.num_blocks, 1, {0: SAME_DICT})
    expect("entries() after it", findable(cache), {"A": 2}, [({}, SAME_DICT)])


@pytest.mark.task(3)
@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["publish", "publish", "forget"]), st.integers(0, 3), st.sampled_from("ABCD")
        ),
        max_size=10,
    )
)
def test_any_history_leaves_two_maps_that_mirror_each_other(
    layer: Layer, operations: list[tuple[str, int, str]]
) -> None:
    cache, model = layer.PrefixCache(4), ModelCache()
    replay = Replay(
        "cache = PrefixCache(4)", lambda: state_of(cache), model.state, draw_cache, name_cache_mistake
    )
    for operation, block, name in operations:
        if operation == "publish":
            replay.step(
                f"cache.publish({block}, {name})",
                lambda block=block, name=name: cache.publish(block, KEYS[name]),
                lambda block=block, name=name: model.publish(block, name),
            )
        else:
            replay.step(
                f"cache.forget({block})",
                lambda block=block: cache.forget(block),
                lambda block=block: model.forget(block),
            )


# -- task 4: match ---------------------------------------------------------------------------------


@pytest.mark.task(4)
@pytest.mark.parametrize(
    ("num_tokens", "expected", "wrong"),
    [
        (9, [4, 0], [([4], TOO_FEW), ([], BLOCK_ZERO)]),
        (8, [4], [([4, 0], ALL_FOUND)]),
        (5, [4], [([], TOO_FEW)]),
        (4, [], [([4], ALL_FOUND)]),
        (12, [4, 0], [([4, 0, 6], ALL_FOUND), ([4], TOO_FEW)]),
        (13, [4, 0, 6], [([4, 0], TOO_FEW), ([4], BLOCK_ZERO)]),
        (99, [4, 0, 6], [([4], BLOCK_ZERO)]),
        (1, [], []),
        (0, [], [([4, 0], MINUS_ONE)]),
    ],
)
def test_at_least_one_token_is_left_to_compute(
    layer: Layer, num_tokens: int, expected: list[int], wrong: list[tuple[list[int], str]]
) -> None:
    cache = layer.PrefixCache(4)
    for block, key in ((4, A), (0, B), (6, C)):
        cache.publish(block, key)
    what = f"match([A, B, C], {num_tokens}), block size 4, with A in block 4, B in block 0, C in block 6"
    expect(what, cache.match([A, B, C], num_tokens), expected, wrong)


@pytest.mark.task(4)
def test_a_match_ends_at_the_first_block_that_is_missing(layer: Layer) -> None:
    cache = layer.PrefixCache(2)
    for block, key in ((1, A), (2, B), (3, D)):
        cache.publish(block, key)
    found = "with A, B and D cached in blocks 1, 2 and 3"
    expect(
        f"match([A, B, C, D], 100), {found}",
        cache.match([A, B, C, D], 100),
        [1, 2],
        [([1, 2, 3], BEHIND_A_HOLE)],
    )
    expect(f"match([C, A], 100), {found}", cache.match([C, A], 100), [], [([1], BEHIND_A_HOLE)])
    expect(f"match([], 100), {found}", cache.match([], 100), [])


@pytest.mark.task(4)
def test_a_match_changes_nothing(layer: Layer) -> None:
    cache, keys = layer.PrefixCache(2), [A, B]
    cache.publish(1, A)
    cache.publish(2, B)
    cache.match(keys, 100).clear()
    expect("entries() after a match, whose result was cleared", findable(cache), {"A": 1, "B": 2})
    expect("the keys that were passed", keys, [A, B])
    again, shorter = cache.match(keys, 100), cache.match(keys, 3)
    expect(
        "the same match again, after it one of 3 tokens",
        [again, shorter],
        [[1, 2], [1]],
        [([[1], [1]], SAME_LIST)],
    )


@pytest.mark.task(4)
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_any_match_is_the_longest_run_that_leaves_a_token(layer: Layer, block_size: int) -> None:
    for number in range(16):
        cached = {name: block for block, name in enumerate("ABCD") if number >> block & 1}
        cache = layer.PrefixCache(block_size)
        for name, block in cached.items():
            cache.publish(block, KEYS[name])
        for num_tokens in range(4 * block_size + 2):
            run = [0, 1, 2, 3][: next((block for block in range(4) if not number >> block & 1), 4)]
            run = [block for block in run if (block + 1) * block_size < num_tokens]
            what = f"match([A, B, C, D], {num_tokens}), block size {block_size}, with {cached} cached"
            expect(what, cache.match([A, B, C, D], num_tokens), run)


# -- task 5: the pool ------------------------------------------------------------------------------


class ModelPool:
    """What the pool should do: users of each block, the free queue as a list, and who can be found."""

    def __init__(self, num_blocks: int) -> None:
        self.users, self.queue, self.entries = [0] * num_blocks, list(range(num_blocks)), dict[str, int]()

    def state(self) -> dict[str, Any]:
        return {
            "free queue": list(self.queue),
            "users": list(self.users),
            "findable": dict(sorted(self.entries.items())),
        }

    def match(self, names: Sequence[str]) -> list[int]:
        run: list[int] = []
        for name in names:
            if name not in self.entries:
                break
            run.append(self.entries[name])
        return run

    def take(self, hits: list[int], num_new: int) -> list[int]:
        queue = [block for block in self.queue if block not in hits]
        if len(queue) < num_new:
            raise OutOfBlocks(num_new, len(queue), len(self.users))
        fresh, self.queue = queue[:num_new], queue[num_new:]
        self.entries = {name: block for name, block in self.entries.items() if block not in fresh}
        for block in hits + fresh:
            self.users[block] += 1
        return hits + fresh

    def publish(self, blocks: list[int], names: Sequence[str]) -> None:
        for block, name in zip(blocks, names, strict=False):
            if name not in self.entries:
                self.entries = {key: value for key, value in self.entries.items() if value != block}
                self.entries[name] = block

    def release(self, blocks: list[int]) -> None:
        for block in blocks[::-1]:
            self.users[block] -= 1
            if self.users[block] == 0:
                self.queue.append(block)


def state_of_pool(pool: Any) -> dict[str, Any]:
    """All that can be seen of a pool."""
    users = [pool.allocator.ref_count(block) for block in range(pool.allocator.num_blocks)]
    return {
        "free queue": pool.allocator.free_blocks(),
        "users": users,
        "findable": dict(sorted(findable(pool.cache).items())),
    }


def draw_pool(state: dict[str, Any]) -> str:
    """The blocks, the free queue and what can be found."""
    found = ", ".join(f"{name} → block {block}" for name, block in state["findable"].items())
    return f"{sketch_pool(state['users'], state['free queue'])}\nfindable: {found or 'nothing'}"


def name_pool_mistake(step: Step) -> str | None:
    """The known mistake that a wrong step shows."""
    before, wanted, came = step.state_before, step.expected_state, step.state
    if "release" in step.operation:
        if len(came["findable"]) < len(wanted["findable"]):
            return TOO_SOON
        return HEAD_FIRST if came["free queue"] != wanted["free queue"] else None
    if "take" in step.operation:
        if step.expected.error is not None:
            return PARTLY if came["users"] != before["users"] else None
        if step.got.error is not None:
            return USED_HITS if isinstance(step.got.error, OutOfBlocks) else None
        if len(came["findable"]) > len(wanted["findable"]):
            return NOT_WIRED
        return FRESH_FIRST if len(came["findable"]) < len(wanted["findable"]) else None
    return None


def served(layer: Layer, num_blocks: int, *sequences: str) -> Any:
    """A pool, block size 4, in which sequences of some blocks A to D were computed and released."""
    pool = layer.PrefixPool(num_blocks, 4)
    for names in sequences:
        blocks = pool.take([], len(names))
        for block, name in zip(blocks, names, strict=True):
            pool.cache.publish(block, KEYS[name])
        pool.release(blocks)
    return pool


@pytest.mark.task(5)
def test_a_fresh_pool_is_free_and_nothing_can_be_found(layer: Layer) -> None:
    pool = layer.PrefixPool(3, 4)
    expect(
        "PrefixPool(3, 4)", state_of_pool(pool), {"free queue": [0, 1, 2], "users": [0, 0, 0], "findable": {}}
    )
    expect("PrefixPool(3, 4).cache.block_size", pool.cache.block_size, 4)
    expect("pool.take([], 2)", pool.take([], 2), [0, 1])
    expect("its users after it", state_of_pool(pool)["users"], [1, 1, 0])
    expect("pool.take([], 0)", pool.take([], 0), [])


@pytest.mark.task(5)
def test_the_end_of_a_sequence_is_evicted_before_its_beginning(layer: Layer) -> None:
    pool = served(layer, 4, "ABC")
    what = "the free queue after release([0, 1, 2]), with block 3 free before"
    expect(what, pool.allocator.free_blocks(), [3, 2, 1, 0], [([3, 0, 1, 2], HEAD_FIRST)])
    expect("what can be found", findable(pool.cache), {"A": 0, "B": 1, "C": 2}, [({}, TOO_SOON)])
    pool.take([], 2)
    wrong = [({"A": 0, "B": 1, "C": 2}, NOT_WIRED), ({"B": 1, "C": 2}, HEAD_FIRST), ({}, TOO_SOON)]
    expect("what can be found after take([], 2)", findable(pool.cache), {"A": 0, "B": 1}, wrong)


@pytest.mark.task(5)
def test_a_free_hit_is_revived_with_its_key(layer: Layer) -> None:
    pool, hits = served(layer, 4, "ABC"), [0, 1]
    what = "take([0, 1], 1), with A, B, C in the free blocks 0, 1, 2, and block 3 free"
    expect(what, pool.take(hits, 1), [0, 1, 3])
    expect("the hits that were passed", hits, [0, 1], [([0, 1, 3], CHANGED)])
    pool.take(hits, 0).append(99)
    expect("the hits, after take(hits, 0).append(99)", hits, [0, 1], [([0, 1, 99], SAME_LIST)])
    expect("the free queue after it", pool.allocator.free_blocks(), [2])
    expect(
        "what can be found after it",
        findable(pool.cache),
        {"A": 0, "B": 1, "C": 2},
        [({"C": 2}, "a revived block lost its key, although its content is kept")],
    )


@pytest.mark.task(5)
def test_a_hit_in_use_gets_one_user_more_and_takes_no_free_block(layer: Layer) -> None:
    pool = served(layer, 3, "AB")
    first = pool.take([0, 1], 0)
    expect("take([0, 1], 0), with A and B in the free blocks 0 and 1", first, [0, 1])
    try:
        second = pool.take([0, 1], 1)
    except OutOfBlocks as error:
        second = f"OutOfBlocks: {error}"
    what = "take([0, 1], 1), with 0 and 1 in use by another, and block 2 free"
    wrong = [(text, USED_HITS) for text in [second] if "OutOfBlocks" in str(text)]
    expect(what, second, [0, 1, 2], wrong)
    expect("the users after it", state_of_pool(pool)["users"], [2, 2, 1], [([1, 1, 1], NOT_A_USER)])
    pool.release(first)
    expect(
        "the users after the first one's release",
        state_of_pool(pool)["users"],
        [1, 1, 1],
        [([0, 0, 1], NOT_A_USER)],
    )


@pytest.mark.task(5)
def test_the_hits_are_secured_before_fresh_blocks_are_taken(layer: Layer) -> None:
    pool = served(layer, 4, "A", "B", "C", "D")
    pool.take([3], 0)
    state = state_of_pool(pool)
    expect("the free queue before", state["free queue"], [0, 1, 2])
    what = "take([0], 2), with the free queue 0, 1, 2, and the hit at its head"
    try:
        got = pool.take([0], 2)
    except ValueError as error:  # from `revive`, of a block that is in use by now
        got = f"ValueError: {error}"
    wrong = [(got, FRESH_FIRST)] if got != [0, 1, 2] else []
    expect(what, got, [0, 1, 2], wrong)
    expect(
        "what can be found after it",
        findable(pool.cache),
        {"A": 0, "D": 3},
        [({"D": 3}, FRESH_FIRST), ({"A": 0, "B": 1, "C": 2, "D": 3}, NOT_WIRED)],
    )


@pytest.mark.task(5)
def test_free_hits_count_as_needed_and_a_refusal_changes_nothing(layer: Layer) -> None:
    pool = served(layer, 5, "AB")
    before = state_of_pool(pool)
    what = "take([0, 1], 4), all 5 blocks free, with the hits 0 and 1 among them"
    with suppress(OutOfBlocks):
        pool.take([0, 1], 4)
    partly = {**before, "users": [1, 1, 0, 0, 0], "free queue": [2, 3, 4]}
    expect(f"the pool after {what}", state_of_pool(pool), before, [(partly, PARTLY)])
    expect_error(what, OutOfBlocks, lambda: pool.take([0, 1], 4), [6, 5])
    expect("take([0, 1], 3)", pool.take([0, 1], 3), [0, 1, 2, 3, 4])
    expect_error("take([0], 1) of a full pool", OutOfBlocks, lambda: pool.take([0], 1), [1, 0, 5])
    expect("the users after it", state_of_pool(pool)["users"], [1, 1, 1, 1, 1], [([2, 1, 1, 1, 1], PARTLY)])


@pytest.mark.task(5)
def test_a_refusal_leaves_the_queue_in_its_order(layer: Layer) -> None:
    pool = served(layer, 5, "A", "B", "C", "D")
    expect("the free queue, with A to D in the blocks 0 to 3", pool.allocator.free_blocks(), [4, 0, 1, 2, 3])
    expect_error("take([0, 2], 4)", OutOfBlocks, lambda: pool.take([0, 2], 4), [6, 5])
    wrong = [([4, 1, 3, 2, 0], PARTLY), ([4, 1, 3, 0, 2], PARTLY)]
    expect("the free queue after it", pool.allocator.free_blocks(), [4, 0, 1, 2, 3], wrong)


@pytest.mark.task(5)
def test_a_release_goes_backwards_whatever_the_ids_and_the_keys(layer: Layer) -> None:
    pool = served(layer, 4, "A", "B", "C")
    pool.take([2, 0], 1)  # the fresh one is 3, which has no key
    blocks = [2, 3, 0]
    pool.release(blocks)
    wrong = [
        ([1, 3, 2, 0], "the blocks were released by their ids, not from the last to the first"),
        ([1, 3, 0, 2], "those without a key were released first: the order is the sequence's alone"),
        ([1, 2, 3, 0], HEAD_FIRST),
    ]
    what = "the free queue after release([2, 3, 0]), with block 1 free before"
    expect(what, pool.allocator.free_blocks(), [1, 0, 3, 2], wrong)
    expect("the list that was passed", blocks, [2, 3, 0], [([0, 3, 2], CHANGED), ([], CHANGED)])


PROMPTS = ("A", "AB", "ABC", "D", "ABD")  # the keys of their blocks, by name


@pytest.mark.task(5)
@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["serve", "serve", "release"]), st.integers(0, 4)), max_size=9))
def test_any_history_evicts_what_was_used_longest_ago(
    layer: Layer, operations: list[tuple[str, int]]
) -> None:
    pool, model = layer.PrefixPool(4, 1), ModelPool(4)
    replay = Replay(
        "pool = PrefixPool(4, 1)", lambda: state_of_pool(pool), model.state, draw_pool, name_pool_mistake
    )
    held: list[list[int]] = []
    for operation, number in operations:
        if operation == "serve":
            names, hits = PROMPTS[number], model.match(PROMPTS[number])
            num_new = len(names) - len(hits)
            taken = replay.step(
                f"pool.take({hits}, {num_new})",
                lambda hits=hits, num_new=num_new: pool.take(list(hits), num_new),
                lambda hits=hits, num_new=num_new: model.take(list(hits), num_new),
            )
            if taken is None:  # both raised OutOfBlocks
                continue
            blocks = list(taken)  # type: ignore[call-overload]
            held.append(blocks)
            replay.step(
                f"# its blocks {blocks} are computed, and published as {', '.join(names)}",
                lambda blocks=blocks, names=names: publish(pool, blocks, names),
                lambda blocks=blocks, names=names: model.publish(blocks, names),
            )
        elif held:
            blocks = held.pop(number % len(held))
            replay.step(
                f"pool.release({blocks})",
                lambda blocks=blocks: pool.release(list(blocks)), lambda blocks=blocks: model.release(blocks),
            )


def publish(pool: Any, blocks: list[int], names: Sequence[str]) -> None:
    """Make a sequence's blocks findable."""
    for block, name in zip(blocks, names, strict=True):
        pool.cache.publish(block, KEYS[name])


# -- task 6: the radix tree ------------------------------------------------------------------------


class ModelTree:
    """Every beginning that was ever inserted, as a whole, and its last block."""

    def __init__(self, block_size: int) -> None:
        self.block_size, self.block_of = block_size, dict[tuple[int, ...], int]()

    def beginnings(self, tokens: Sequence[int], num_blocks: int) -> list[tuple[int, ...]]:
        return [tuple(tokens[: (index + 1) * self.block_size]) for index in range(num_blocks)]

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> int:
        beginnings = self.beginnings(tokens, len(tokens) // self.block_size)
        known = [beginning for beginning in beginnings if beginning in self.block_of]
        for beginning, block in zip(beginnings, blocks, strict=True):
            self.block_of.setdefault(beginning, block)
        return len(known)

    def match(self, tokens: Sequence[int]) -> list[int]:
        beginnings = self.beginnings(tokens, max(len(tokens) - 1, 0) // self.block_size)
        return [self.block_of[beginning] for beginning in beginnings if beginning in self.block_of]


@pytest.mark.task(6)
def test_two_sequences_share_a_path_until_they_part(layer: Layer) -> None:
    tree = layer.RadixTree(2)
    expect("num_nodes of a fresh tree", tree.num_nodes, 0)
    expect("match([1, 2, 3]) of a fresh tree", tree.match([1, 2, 3]), [])
    expect("insert([1, 2, 3, 4, 5, 6, 7], [10, 11, 12])", tree.insert([1, 2, 3, 4, 5, 6, 7], [10, 11, 12]), 0)
    expect("num_nodes after it", tree.num_nodes, 1, {3: ONE_NODE_EACH})
    expect("insert([1, 2, 3, 4, 8, 9], [20, 21, 22])", tree.insert([1, 2, 3, 4, 8, 9], [20, 21, 22]), 2)
    expect("num_nodes after it", tree.num_nodes, 3)
    expect(
        "match([1, 2, 3, 4, 8, 9, 0])",
        tree.match([1, 2, 3, 4, 8, 9, 0]),
        [10, 11, 22],
        [([20, 21, 22], TREE_LAST_WINS), ([10, 11], LOST_BELOW)],
    )
    expect(
        "match([1, 2, 3, 4, 5, 6, 0])",
        tree.match([1, 2, 3, 4, 5, 6, 0]),
        [10, 11, 12],
        [([10, 11], LOST_BELOW)],
    )
    expect("match([1, 2, 9, 9, 9])", tree.match([1, 2, 9, 9, 9]), [10])


@pytest.mark.task(6)
@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(0, []), (1, []), (2, []), (3, [10]), (4, [10]), (5, [10, 11]), (6, [10, 11])],
)
def test_a_match_in_the_tree_leaves_a_token_too(layer: Layer, num_tokens: int, expected: list[int]) -> None:
    tree = layer.RadixTree(2)
    tree.insert([1, 2, 3, 4, 5, 6], [10, 11, 12])
    prompt = [1, 2, 3, 4, 5, 6][:num_tokens]
    expect(f"match({prompt}), with [1, 2, 3, 4, 5, 6] in blocks [10, 11, 12]", tree.match(prompt), expected)


@pytest.mark.task(6)
def test_a_node_that_is_split_keeps_what_is_below_it(layer: Layer) -> None:
    tree = layer.RadixTree(1)
    for tokens, blocks in (
        ([1, 2, 3], [10, 11, 12]),
        ([1, 2, 3, 4], [20, 21, 22, 23]),
        ([1, 2, 3, 5], [30, 31, 32, 33]),
        ([1, 9], [40, 41]),
    ):
        tree.insert(tokens, blocks)
    for tokens, blocks in (
        ([1, 2, 3, 4], [10, 11, 12, 23]),
        ([1, 2, 3, 5], [10, 11, 12, 33]),
        ([1, 9], [10, 41]),
    ):
        expect(
            f"match({[*tokens, 0]}), block size 1",
            tree.match([*tokens, 0]),
            blocks,
            [(blocks[:k], LOST_BELOW) for k in range(1, len(blocks))],
        )


@pytest.mark.task(6)
def test_a_beginning_of_what_is_there_splits_nothing(layer: Layer) -> None:
    tree = layer.RadixTree(1)
    tree.insert([1, 2, 3], [10, 11, 12])
    expect("insert([1, 2], [20, 21]), with [1, 2, 3] in the tree", tree.insert([1, 2], [20, 21]), 2)
    wrong = {2: "a node was split though no sequence goes a different way there"}
    expect("num_nodes after it", tree.num_nodes, 1, wrong)


@pytest.mark.task(6)
def test_lists_passed_in_and_given_out_are_not_the_trees_own(layer: Layer) -> None:
    tree, blocks = layer.RadixTree(1), [10, 11, 12]
    tree.insert([1, 2, 3], blocks)
    blocks.clear()
    longer, shorter = tree.match([1, 2, 3, 0]), tree.match([1, 2])
    what = "match([1, 2, 3, 0]) and then match([1, 2]), when the list passed to insert has been cleared"
    expect(what, [longer, shorter], [[10, 11, 12], [10]], [([[10], [10]], SAME_LIST), ([[], []], SAME_LIST)])
    longer.clear()
    expect("match([1, 2, 3, 0]) after its last result was cleared", tree.match([1, 2, 3, 0]), [10, 11, 12])


@pytest.mark.task(6)
def test_a_long_sequence_is_two_nodes_at_most(layer: Layer) -> None:
    tree = layer.RadixTree(4)
    tokens, blocks = list(range(400)), list(range(100))
    tree.insert(tokens, blocks)
    expect("num_nodes after a sequence of 100 blocks", tree.num_nodes, 1, {100: ONE_NODE_EACH})
    expect("what a shorter one adds", tree.insert(tokens[:200], blocks[:50]), 50)
    nodes = tree.num_nodes
    expect(f"whether {nodes} nodes are at most 3", nodes <= 3, True, {False: ONE_NODE_EACH})
    tree.insert([*tokens[:300], *range(1000, 1100)], range(100, 200))
    expect("whether num_nodes grew by 2 at most", tree.num_nodes <= nodes + 2, True, {False: ONE_NODE_EACH})


@pytest.mark.task(6)
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_tree_finds_what_the_keys_would(layer: Layer, block_size: int) -> None:
    """Random sequences of zeros and ones, short ones first: what goes wrong is seen in a small tree."""
    chance = random.Random(block_size)
    for size in sorted(chance.randrange(1, 6) for _ in range(60)):
        tree, model = layer.RadixTree(block_size), ModelTree(block_size)
        replay = Replay(f"tree = RadixTree({block_size})", dict, dict)
        sequences = [
            [chance.randrange(2) for _ in range(chance.randrange(2 * size))] for _ in range(size + 2)
        ]
        for number, tokens in enumerate(sequences[:size]):
            blocks = [10 * number + index for index in range(len(tokens) // block_size)]
            replay.step(
                f"tree.insert({tokens}, {blocks})",
                lambda tree=tree, tokens=tokens, blocks=blocks: tree.insert(tokens, blocks),
                lambda model=model, tokens=tokens, blocks=blocks: model.insert(tokens, blocks),
            )
            few = tree.num_nodes <= 2 * (number + 1)
            expect("whether an insert added two nodes at most", few, True, {False: ONE_NODE_EACH})
        for tokens in sequences:
            replay.step(
                f"tree.match({tokens})",
                lambda tree=tree, tokens=tokens: tree.match(tokens),
                lambda model=model, tokens=tokens: model.match(tokens),
            )


# -- task 7: the future ----------------------------------------------------------------------------

EVICTS_LRU = "the block that was used longest ago was evicted, and not the one that is used again latest"
SOONEST = "the block that is used again soonest was evicted"
OWN = "blocks of the prompt that is being served were evicted"


def naive_clairvoyant(prompts: Sequence[Sequence[int]], num_blocks: int) -> int:
    """As the docstring says, word for word."""
    cached: dict[int, int] = {}  # block: its place in its prompt
    hits = 0
    for number, prompt in enumerate(prompts):
        for block in prompt:
            if block not in cached:
                break
            hits += 1
        cached.update((block, place) for place, block in enumerate(prompt))
        while len(cached) > num_blocks:
            rank = {}
            for block in cached.keys() - set(prompt):
                later = [other for other in range(number + 1, len(prompts)) if block in prompts[other]]
                rank[block] = (later[0] if later else len(prompts), cached[block])
            del cached[max(rank, key=lambda block: rank[block])]
    return hits


@pytest.mark.task(7)
@pytest.mark.parametrize(
    ("prompts", "num_blocks", "expected", "wrong"),
    [
        ([[1], [2], [3], [1]], 2, 1, {0: EVICTS_LRU}),
        (
            [[1, 2], [3, 4], [1, 2]],
            3,
            1,
            {0: "the beginning was evicted before the end", 2: "the cache holds more blocks than it has"},
        ),
        ([[9, 1], [3, 4], [9, 1]], 3, 1, {0: "among blocks of one prompt the id decided, not the place"}),
        ([[1, 2], [1, 2], [1, 2]], 2, 4, {}),
        ([[1], [2], [3], [2], [1]], 2, 1, {0: SOONEST}),
        ([[1, 2, 3], [4], [1, 2, 3]], 3, 2, {0: OWN, 3: "the cache holds more blocks than it has"}),
        ([], 5, 0, {}),
        ([[7], [7], []], 1, 1, {}),
    ],
)
def test_the_block_that_is_needed_last_is_evicted_first(
    layer: Layer, prompts: list[list[int]], num_blocks: int, expected: int, wrong: dict[int, str]
) -> None:
    expect(
        f"clairvoyant_hits({prompts}, {num_blocks})",
        layer.clairvoyant_hits([list(prompt) for prompt in prompts], num_blocks),
        expected,
        wrong,
    )


@pytest.mark.task(7)
@pytest.mark.parametrize("num_blocks", [4, 6])
def test_any_trace_has_as_many_hits_as_the_future_allows(layer: Layer, num_blocks: int) -> None:
    """Random traces of four chats, short traces first; two chats each begin with the same block."""
    chance = random.Random(num_blocks)
    for length in sorted(chance.randrange(2, 14) for _ in range(80)):
        prompts = []
        for _ in range(length):
            chat, num_turns = chance.randrange(4), chance.randrange(1, 5)
            prompts.append([chat // 2 * 20, *range(10 * chat + 1, 10 * chat + num_turns)])
        what = f"clairvoyant_hits({prompts}, {num_blocks})"
        expect(what, layer.clairvoyant_hits(prompts, num_blocks), naive_clairvoyant(prompts, num_blocks))


@pytest.mark.task(7)
def test_what_was_passed_is_left_as_it_was(layer: Layer) -> None:
    prompts = [[1, 2], [3], [1, 2]]
    layer.clairvoyant_hits(prompts, 2)
    expect("the prompts after clairvoyant_hits", prompts, [[1, 2], [3], [1, 2]], [([], CHANGED)])
