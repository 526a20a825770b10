"""What may pass between a grader and a submission: plain data as lines of JSON, and handles.

Not pickle, because it runs code on the side that reads, and here that side holds the expected values. A value
that comes back is built anew from numbers, texts and bytes, so nothing that lies about itself can cross: a
subclass of int, or an object that equals everything, arrives as a handle, which equals nothing but itself.

A list, a dictionary or a tensor can be changed by either side. So the first time it passes, it gets a key,
and from then on it is one object with two copies: every message begins with the new content of those that
have changed. That way a test sees that a layer has written into its argument, or has given back one of its
own lists, as it would in one process. Changes to sets are not passed on: sets pass as copies.
"""

from __future__ import annotations

import base64
import json
import keyword
import math
import sys
from collections import namedtuple
from functools import lru_cache
from itertools import chain
from typing import Any

# Right answers to all chapters need at most 0.12 MB, 2,013 values and 713 shared objects.
MAX_BYTES = 4 << 20  # of a message, or of a tensor in it
MAX_VALUES = 50_000  # in a message, or in a value that is made of shared ones
MAX_KEYS = 2_000  # of a dictionary or a set: numbers can be chosen so that all their hashes are equal
MAX_DEPTH = 50
MAX_NAMES = 50  # of a named tuple; also characters of a name
PLAIN = (type(None), bool, int, float, str)
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
# What may be in an answer, and what the tests may send besides: a method to call, an iterator of values.
IN_ANSWERS = frozenset(
    ("shared", "object", "tuple", "named", "set", "frozenset", "bytes", "slice", "range", "dtype")
)
IN_REQUESTS = IN_ANSWERS | {"method", "iterator"}


class WireError(Exception):
    """A message that makes no sense, or a value that can't be sent."""


class Wire:
    """One end. The keys of one end count upwards (step 1), and those of the other downwards (step -1).

    A subclass says what stands for an object that is not plain data. takes: the tags that a message to this
    end may have; one that takes answers alone also forgets nothing because the other end says so.
    """

    def __init__(self, step: int, takes: frozenset[str]) -> None:
        self._step, self._last_key, self._takes = step, 0, takes
        self._shared: dict[int, Any] = {}  # lists, dictionaries and tensors that both ends have, by key
        self._keys: dict[int, int] = {}  # and their keys, by `id`
        self._known: dict[int, Any] = {}  # the content that the other end has
        self._outer: set[int] = set()  # keys of those that other values are in
        self._fresh: list[int] = []  # keys that the other end has not got yet
        self._stale: set[int] = set()  # keys that will be forgotten, unless they are used once more

    def encode_object(self, value: Any) -> Any:
        """What stands for an object of this end, or for one of the other, as `{"object": [handle, name]}`."""
        raise NotImplementedError

    def decode_object(self, handle: Any, name: Any) -> Any:
        """The object that a handle stands for."""
        raise NotImplementedError

    # -- messages ------------------------------------------------------------------------------------------

    def pack(self, body: Any, drop_unused: bool = False) -> bytes:
        """A message in one line: what has changed, what both ends forget from now on, and `body`.

        drop_unused: also forget shared objects to which nothing else at this end refers.
        """
        # Before `body` is encoded: afterwards nothing else may refer to what an iterator has yielded there.
        is_unused = [key for key, value in self._shared.items() if sys.getrefcount(value) <= _ALONE]
        encoded = self.encode(body)
        changed: list[Any] = []
        for key in list(self._shared):
            self._tell(key, changed)
        while self._fresh:  # a list within a list
            self._tell(self._fresh[0], changed)
        dropped = list({*is_unused, *self._stale}) if drop_unused else []
        self._stale.clear()
        for key in dropped:
            self._forget(key)
        return json.dumps([changed, dropped, encoded], separators=(",", ":")).encode() + b"\n"

    def forget_all(self) -> None:
        """Let all that is shared so far be different objects at both ends, from the next message on."""
        self._stale = set(self._shared)

    def unpack(self, line: bytes) -> Any:
        """The body of a message, after its changes were made here too. `WireError` if it makes no sense, or
        is larger than any answer has to be; then this end is of no more use."""
        try:
            _check_size(line)
            changed, dropped, body = json.loads(line)
            for key, kind, _, layout in changed:
                if key not in self._shared:
                    if type(key) is not int or key * self._step >= 0 or len(self._shared) > MAX_VALUES:
                        raise WireError(f"{key!r} is none of the other end's keys")
                    self._adopt(key, _empty(kind, layout))
            for key, kind, content, _ in changed:
                self._fill(key, kind, content)
            if dropped and self._takes == IN_ANSWERS:
                raise WireError("only the tests say what is forgotten")
            for key in dropped:
                self._forget(key)
            value = self.decode(body)
            if self._takes == IN_ANSWERS:  # what the tests send is believed
                known: dict[int, tuple[int, int]] = {}
                grown = self._outer.union(key for key, *_ in changed) if changed else ()
                for whole in (value, *map(self._shared.get, grown)):
                    _measure(whole, known)
            return value
        except WireError:
            raise
        except Exception as error:  # whatever can be wrong with a forged message
            raise WireError(f"{type(error).__name__}: {error}") from error

    # -- values --------------------------------------------------------------------------------------------

    def encode(self, value: Any) -> Any:
        """A value as data for JSON. Whatever is not exactly of a plain type is named by its handle."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in (list, dict) or _is_tensor(value):
            return {"shared": self._share(value)}
        if kind is tuple:
            return {"tuple": [self.encode(item) for item in value]}
        if issubclass(kind, tuple) and isinstance(names := getattr(kind, "_fields", None), tuple):
            return {"named": [list(names), [self.encode(item) for item in tuple.__iter__(value)]]}
        if kind in (set, frozenset):
            return {kind.__name__: [self.encode(item) for item in value]}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if kind in (slice, range):
            return {kind.__name__: [value.start, value.stop, value.step]}
        if _torch() and kind is _torch().dtype:
            return {"dtype": str(value).removeprefix("torch.")}
        return self.encode_object(value)

    def decode(self, data: Any) -> Any:
        """The value that was encoded, built anew."""
        if type(data) in PLAIN:
            return data
        ((tag, content),) = data.items()
        if tag not in self._takes:
            raise WireError(f"{tag!r} is no kind of value that may come here")
        if tag == "shared":
            return self._shared[content]
        if tag == "object":
            return self.decode_object(*content)
        if tag == "tuple":
            return tuple(self.decode(item) for item in content)
        if tag == "named":
            return _named_tuple(tuple(content[0]))(*(self.decode(item) for item in content[1]))
        if tag in ("set", "frozenset"):
            _check_keys(content)
            return {"set": set, "frozenset": frozenset}[tag](self.decode(item) for item in content)
        if tag == "method":
            return getattr(self.decode(content[0]), content[1])
        if tag == "iterator":
            return iter([self.decode(item) for item in content])
        if tag == "bytes":
            return base64.b64decode(content, validate=True)
        if tag == "dtype":
            return _dtype(content)
        if not all(part is None or type(part) is int for part in content):
            raise WireError(f"a {tag} of {content}")
        return {"slice": slice, "range": range}[tag](*content)

    # -- lists, dictionaries and tensors that both ends have -----------------------------------------------

    def _share(self, value: Any) -> int:
        key = self._keys.get(id(value))
        if key is None:
            self._last_key += self._step
            key = self._last_key
            self._adopt(key, value)
            self._fresh.append(key)
        self._stale.discard(key)
        return key

    def _adopt(self, key: int, value: Any) -> None:
        self._shared[key] = value
        self._keys[id(value)] = key

    def _forget(self, key: int) -> None:
        value = self._shared.pop(key)
        del self._keys[id(value)]
        self._known.pop(key, None)
        self._outer.discard(key)

    def _remember(self, key: int, content: Any) -> None:
        self._known[key] = content
        (self._outer.add if dict in map(type, content) else self._outer.discard)(key)

    def _tell(self, key: int, changed: list[Any]) -> None:
        """Add an object's content to the message, if the other end does not have it."""
        value = self._shared[key]
        content = self._content(value)
        if key in self._fresh or content != self._known.get(key):
            kind = _kind(value)
            layout = _layout(value) if kind == "tensor" else None
            self._fresh = [other for other in self._fresh if other != key]
            self._remember(key, content)
            changed.append([key, kind, content, layout])

    def _content(self, value: Any) -> list[Any]:
        """A list's items, a dictionary's names and items by turns, or a tensor's data."""
        if not isinstance(value, (list, dict)):
            return _tensor_data(value)
        items = value if isinstance(value, list) else chain.from_iterable(value.items())
        return [item if type(item) in PLAIN else self.encode(item) for item in items]

    def _fill(self, key: int, kind: str, content: Any) -> None:
        value = self._shared[key]
        if _kind(value) != kind:
            raise WireError(f"a {_kind(value)} became a {kind}")
        if kind == "list":
            value[:] = [self.decode(item) for item in content]
        elif kind == "dict":
            names, items = content[::2], content[1::2]
            _check_keys(names)
            new = {self.decode(name): self.decode(item) for name, item in zip(names, items, strict=True)}
            value.clear()
            value.update(new)
        else:
            _fill_tensor(value, content)
        self._remember(key, content)


def _kind(value: Any) -> str:
    """What is shared is of one of three types: list, dict or tensor."""
    return type(value).__name__.lower()


# -- tensors -----------------------------------------------------------------------------------------------


def _torch() -> Any:
    return sys.modules.get("torch")


def _is_tensor(value: Any) -> bool:
    return _torch() is not None and type(value) is _torch().Tensor


def _dtype(name: str) -> Any:
    import torch

    if name not in DTYPES:
        raise WireError(f"{name!r} is no dtype that may come here")
    return getattr(torch, name)


def _tensor_data(x: Any) -> list[Any]:
    """dtype, shape, and the numbers' bytes in order."""
    # One element is contiguous whatever its stride, but bytes are seen in one only with a stride of 1.
    plain = x.detach().cpu().contiguous().as_strided([x.numel()], [1])
    data = plain.view(_torch().uint8).numpy().tobytes() if plain.numel() else b""
    return [str(x.dtype).removeprefix("torch."), list(x.shape), base64.b64encode(data).decode()]


def _layout(x: Any) -> list[Any]:
    """dtype, shape and strides: what makes a tensor of the same kind, still empty."""
    return [str(x.dtype).removeprefix("torch."), list(x.shape), list(x.stride())]


def _empty(kind: str, layout: Any) -> Any:
    """An empty list or dictionary, or a tensor of that layout; one number that is expanded stays one."""
    if kind in ("list", "dict"):
        return [] if kind == "list" else {}
    import torch

    name, shape, stride = layout
    sizes = [*shape, *stride]
    if not all(type(size) is int and size >= 0 for size in sizes) or len(sizes) > 2 * MAX_DEPTH:
        raise WireError(f"a tensor of shape {shape} and strides {stride}")
    base = [min(size, 1) if step == 0 else size for size, step in zip(shape, stride, strict=True)]
    reach = 1 + sum((size - 1) * step for size, step in zip(base, stride, strict=True))
    if max(reach, math.prod(shape)) * _dtype(name).itemsize > MAX_BYTES:
        raise WireError(f"a tensor of shape {shape} and strides {stride} has more than {MAX_BYTES:,} bytes")
    return torch.empty_strided(base, stride, dtype=_dtype(name)).expand(shape)


def _fill_tensor(x: Any, content: Any) -> None:
    import torch

    name, shape, text = content
    if list(x.shape) != shape or str(x.dtype) != f"torch.{name}":
        raise WireError(f"a tensor of shape {list(x.shape)} became one of {shape}")
    data = base64.b64decode(text, validate=True)
    if len(data) != x.numel() * x.itemsize:
        raise WireError(f"a tensor of shape {shape} with {len(data)} bytes")
    if not data:
        return
    new = torch.frombuffer(bytearray(data), dtype=torch.uint8 if x.dtype == torch.bool else x.dtype)
    whole = tuple(slice(0, 1 if step == 0 else None) for step in x.stride())
    x.detach()[whole].copy_(new.reshape(shape)[whole])


# -- small things ------------------------------------------------------------------------------------------


def _check_size(line: bytes) -> None:
    """Before anything is built: a message has not more bytes, and not more values, than any answer needs."""
    num_values = line.count(b",") + line.count(b"[") + line.count(b"{")
    if len(line) > MAX_BYTES or num_values > MAX_VALUES:
        raise WireError(f"a message of {len(line):,} bytes and about {num_values:,} values")


def _check_keys(content: Any) -> None:
    if len(content) > MAX_KEYS:
        raise WireError(f"a set or a dictionary with {len(content):,} keys")


def _measure(value: Any, known: dict[int, tuple[int, int]], depth: int = MAX_DEPTH) -> tuple[int, int]:
    """How many values there are in a value, and how deep it is. A list may be in many others, or in itself,
    so that few bytes make a value that can't be printed: `WireError`. known: what was found, by `id`.
    """
    size, height = 1, 0
    if type(value) is range:
        size = len(value)
    elif isinstance(value, (list, dict, tuple, set, frozenset)):
        if id(value) not in known:
            known[id(value)] = MAX_VALUES + 1, 0  # until it is found, so that nothing can be in itself
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            inner = [part for part in parts if type(part) not in PLAIN]
            sizes = [_measure(part, known, depth - 1) for part in inner] if depth else [(0, MAX_DEPTH)]
            size = 1 + len(parts) - len(inner) + sum(s for s, _ in sizes)
            known[id(value)] = size, 1 + max((h for _, h in sizes), default=0)
        size, height = known[id(value)]
    if size > MAX_VALUES or height > MAX_DEPTH:
        raise WireError(f"a value that is in itself, or has more than {MAX_VALUES:,} values, or is too deep")
    return size, height


@lru_cache(256)
def _named_tuple(names: tuple[str, ...]) -> Any:
    """The class of a named tuple; its names must be plain ones."""
    for name in names:
        plain = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")
        if not plain or max(len(name), len(names)) > MAX_NAMES:
            raise WireError(f"a tuple with a field {name!r}")
    return namedtuple("Named", names)


def _count_alone() -> int:
    """What `sys.getrefcount` says of an object that only a dictionary holds, seen as `pack` sees it."""
    shared: dict[int, Any] = {0: []}
    (count,) = [sys.getrefcount(value) for _, value in shared.items()]
    return count


_ALONE = _count_alone()
