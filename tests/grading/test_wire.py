"""Whatever a submission answers: plain data, tensors and handles come out of it, or an error of the wire.

The fuzzer's messages are random bytes, JSON that looks like an answer, and right answers with a few bytes
changed. MINIPAGED_LONG=1 tries some hundred thousand.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minipaged.course.grading.remote import Remote, _rebuild
from minipaged.course.grading.wire import IN_ANSWERS, IN_REQUESTS, MAX_BYTES, MAX_KEYS, Wire, WireError

IS_LONG = os.environ.get("MINIPAGED_LONG") == "1"
EXAMPLES = 100_000 if IS_LONG else 1_000
TORCH_DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)


class Grader(Wire):
    """The grader's end, without a process behind it."""

    def __init__(self) -> None:
        super().__init__(step=1, takes=IN_ANSWERS)
        self.unused: list[int] = []
        self.shared = [[1, 2], {"a": 1}, torch.zeros(3)]
        self.pack(self.shared)  # three objects that the other end may speak of

    def encode_object(self, value: Any) -> Any:
        raise TypeError

    def decode_object(self, handle: Any, kind: Any) -> Any:
        if type(handle) is not int or type(kind) is not str:
            raise WireError("no handle")
        return Remote(self, handle, kind)  # type: ignore[arg-type]


def check_value(value: Any, seen: set[int], depth: int = 0) -> int:
    """That a value is made of nothing but what may come; returns how many there are in it."""
    assert depth < 60
    if type(value) in (type(None), bool, int, float, str, bytes, Remote, slice, torch.dtype):
        return 1
    if type(value) is torch.Tensor:
        assert value.numel() * value.itemsize <= MAX_BYTES and value.grad_fn is None
        assert value.untyped_storage().nbytes() <= MAX_BYTES
        return 1
    if type(value) is range:
        assert len(value) <= 50_000
        return 1
    if type(value) is dict:
        return 1 + sum(check_value(x, seen, depth + 1) for pair in value.items() for x in pair)
    assert type(value) in (list, tuple, set, frozenset) or (
        isinstance(value, tuple) and type(value).__name__ == "Named"
    ), type(value)
    assert not isinstance(value, (set, frozenset)) or len(value) <= MAX_KEYS
    return 1 + sum(check_value(item, seen, depth + 1) for item in value)


def check_messages(*messages: bytes) -> bool:
    """The oracle; returns whether all messages, one after the other, made sense."""
    end = Grader()
    for message in messages:
        begin = time.process_time()
        try:
            value = end.unpack(message)
        except WireError:
            return False
        finally:
            took = time.process_time() - begin
            assert took < 5, f"{took} s for {len(message)} bytes"
        assert check_value(value, set()) <= 60_000
        for shared in end._shared.values():
            assert check_value(shared, set()) <= 60_000
        repr(value)
    return True


KEYS = st.integers(-4, 4) | st.integers()
NAMES = st.sampled_from(["a", "b1", "__class__", "_x", "class", "é", "", "x" * 60]) | st.text(max_size=5)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | KEYS
SIZES = st.lists(st.integers(-2, 5) | st.sampled_from([10**6, 10**12, True, 1.5, "3"]), max_size=4)
DTYPES = st.sampled_from(["float32", "int64", "bool", "bfloat16", "quint8", "load", "__class__", "complex64"])
BASE64 = st.sampled_from(["", "AAAA", "AAAAAAAA", "A" * 16, "AAAAAAAAAAA=", "=", "é"]) | st.text(max_size=6)


def tagged(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=4)
    contents = {
        "shared": KEYS, "object": st.tuples(KEYS, NAMES) | items, "tuple": items, "set": items,
        "frozenset": items, "named": st.tuples(st.lists(NAMES, max_size=3), items), "bytes": BASE64,
        "slice": items, "range": st.lists(st.integers(-3, 9) | st.integers(), max_size=3),
        "dtype": DTYPES, "method": st.tuples(inner, NAMES), "iterator": items, "__class__": inner,
    }
    one = [content.map(lambda x, tag=tag: {tag: x}) for tag, content in contents.items()]
    return st.one_of(*one, items, st.dictionaries(NAMES, inner, max_size=2))


VALUES = st.recursive(PLAIN, tagged, max_leaves=12)
TENSORS = st.tuples(DTYPES, SIZES, BASE64)
CHANGES = st.tuples(
    KEYS,
    st.sampled_from(["list", "dict", "tensor", "set", "Tensor"]),
    st.lists(VALUES, max_size=3) | st.lists(st.tuples(VALUES, VALUES), max_size=3) | TENSORS | VALUES,
    st.none() | st.tuples(DTYPES, SIZES, SIZES) | VALUES,
)
MESSAGES = st.tuples(st.lists(CHANGES, max_size=3), st.lists(KEYS, max_size=2) | VALUES, VALUES) | VALUES
FUZZ = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes(message: bytes) -> None:
    check_messages(message)


@FUZZ
@given(st.lists(MESSAGES, min_size=1, max_size=3))
def test_what_looks_like_answers(messages: list[Any]) -> None:
    check_messages(*(json.dumps(message).encode() for message in messages))


class Submission(Wire):
    """The other end."""

    def __init__(self) -> None:
        super().__init__(step=-1, takes=IN_REQUESTS)

    def encode_object(self, value: Any) -> Any:
        return {"object": [7, "Pool/7"]}

    def decode_object(self, handle: Any, name: Any) -> Any:
        raise AssertionError


ANSWERS = st.recursive(
    PLAIN | st.binary(max_size=9) | st.just(object()) | st.sampled_from(TORCH_DTYPES)
    | st.sampled_from([torch.arange(6.0).view(2, 3).t(), torch.zeros(()), torch.ones(4, dtype=torch.bool)]),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner)
    | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def test_right_answers_with_a_few_bytes_changed() -> None:
    made_sense = []

    @FUZZ
    @given(ANSWERS, st.randoms(use_true_random=False), st.integers(0, 3))
    def run(answer: Any, chance: random.Random, num_changes: int) -> None:
        message = bytearray(Submission().pack(("value", answer)))
        for _ in range(num_changes):
            place = chance.randrange(len(message))
            message[place : place + chance.randrange(2)] = chance.choice(
                [b"", b"[", b"{", b"9", b"-", b'"', b"e9", bytes([chance.randrange(256)])]
            )
        made_sense.append((num_changes, check_messages(bytes(message))))

    run()
    assert all(is_sense for num_changes, is_sense in made_sense if num_changes == 0)
    assert any(not is_sense for _, is_sense in made_sense), "the changes reach what matters"


BOMBS = {
    "empty lists": b"[[],[]," + b"[" + b"[]," * 1_300_000 + b"[]]]",
    "deep lists": b"[" * 2_000_000,
    "deep tuples": b"[[],[]," + b'{"tuple":[' * 20_000 + b"]}" * 20_000 + b"]",
    "a long number": b"[[],[]," + b"9" * 3_000_000 + b"]",
    "a chain of lists": json.dumps(
        [[[-i, "list", [{"shared": -i - 1}], None] for i in range(1, 9000)], [], {"shared": -1}]
    ).encode(),
    "a list in itself": b'[[[-1,"list",[{"shared":-1}],null]],[],{"shared":-1}]',
    "doubled 60 times": json.dumps(
        [[[-i, "list", [{"shared": -i - 1}] * 2 if i < 60 else [], None] for i in range(1, 61)], [],
         {"shared": -1}]
    ).encode(),
    "equal hashes": json.dumps(
        [[[-1, "dict", [i // 2 * (2**61 - 1) for i in range(30_000)], None]], [], {"shared": -1}]
    ).encode(),
    "a tensor of strides 0": b'[[[-1,"tensor",["float32",[524288,524288],""],["float32",[524288,524288],'
                             b'[0,0]]]],[],{"shared":-1}]',
    "a tensor of no bytes": b'[[[-1,"tensor",["float32",[999999],""],["float32",[999999],[1]]]],[],null]',
    "a thousand tensors": json.dumps(
        [[[-i, "tensor", ["float32", [1 << 20], ""], ["float32", [1 << 20], [1]]] for i in range(1, 1000)],
         [], None]
    ).encode(),
    "classes of named tuples": json.dumps(
        [[], [], {"tuple": [{"named": [[f"a{i}"], [1]]} for i in range(9_000)]}]
    ).encode(),
    "a long range": b'[[],[],{"range":[0,1000000000000,1]}]',
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_message_costs_little(name: str) -> None:
    """Processor time, and memory: what Python allocates, and what the process has at most."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    begin = time.process_time()
    try:
        check_messages(BOMBS[name])
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert time.process_time() - begin < 30  # with what traces it
    assert most < 200 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


AROUND, INSIDE = {"shared": -1}, {"shared": -2}


@pytest.mark.parametrize(
    "later", [[-2, "list", [0] * 20_000, None], [-2, "list", [AROUND], None], [-3, "dict", [0, AROUND], None]]
)
def test_what_is_in_another_value_may_not_grow_until_that_is_too_large(later: Any) -> None:
    first = [[-1, "list", [INSIDE] * 9, None], [-2, "list", [{"shared": -3}], None], [-3, "dict", [], None]]
    end = Grader()
    end.unpack(json.dumps([first, [], AROUND]).encode())
    with pytest.raises(WireError, match="a value that is in itself, or has more than"):
        end.unpack(json.dumps([[later], [], None]).encode())


@pytest.mark.parametrize("tag", ["method", "iterator"])
def test_only_the_tests_may_name_a_method_or_send_an_iterator(tag: str) -> None:
    content = [{"shared": 1}, "append"] if tag == "method" else [1]
    message = json.dumps([[], [], {tag: content}]).encode()
    with pytest.raises(WireError, match="is no kind of value that may come here"):
        Grader().unpack(message)


def test_a_submission_can_make_the_tests_forget_nothing() -> None:
    with pytest.raises(WireError, match="only the tests say what is forgotten"):
        Grader().unpack(b"[[],[1],null]")


@given(st.text(max_size=30), st.lists(st.text(max_size=12) | st.sampled_from(["ValueError", "vars", "open"])))
def test_an_error_that_comes_back_is_one_of_the_known_kinds(name: str, known: list[str]) -> None:
    error = _rebuild("message", "place", name, known)
    assert isinstance(error, Exception) and str(error) == "message"
    assert type(error).__mro__[1] in vars(__import__("builtins")).values() or "minipaged" in str(type(error))
    assert all(c.isalnum() or c in "_?" for c in type(error).__name__)
