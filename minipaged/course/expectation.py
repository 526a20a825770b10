"""How a grader says what must hold, so that a failure explains itself in the layer's own words.

A plain `assert` is not enough: a reader needs to know what was called, what should have come and what came,
and the name of the mistake if it is a known one; `minipaged check` shows those four. Sequences of operations
are in `comparison.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

Mistakes = Mapping[Any, str] | Iterable[tuple[Any, str]]
MAX_SHOWN = 300  # characters of a value
MAX_NUMBERS = 40  # in an error's message: one that lists all numbers says nothing


@dataclass
class Mismatch(AssertionError):
    """What a failed expectation has to say.

    operation: what was called. history: what was called before, in order. mistake: the known mistake that
    gives exactly this. before, wanted, came: the state drawn before the operation, as it should be after it,
    and as it is.
    """

    operation: str
    expected: str
    got: str
    mistake: str | None = None
    history: list[str] = field(default_factory=list)
    before: str = ""
    wanted: str = ""
    came: str = ""

    def __str__(self) -> str:
        lines = [*self.history, self.operation, f"  expected: {self.expected}", f"  got:      {self.got}"]
        if self.mistake:
            lines.append(f"  known mistake: {self.mistake}")
        for title, drawing in (("before", self.before), ("wanted", self.wanted), ("came", self.came)):
            lines += [f"  {title}:", *(f"    {line}" for line in drawing.splitlines())] if drawing else []
        return "\n" + "\n".join(lines)

    def as_data(self) -> dict[str, Any]:
        """The fields, as plain data for a report."""
        return asdict(self)


def expect(what: str, got: object, expected: object, mistakes: Mistakes = ()) -> None:
    """`got` must be the very value `expected`: plain data of the same types, compared in full.

    `True` is not 1 and a list is not a tuple (a named tuple is one). mistakes: pairs of a wrong value and the
    name of the mistake that leads to it.

    >>> expect("pool.num_free", 3, 4, mistakes={3: "block 0 was kept back"})    # raises Mismatch
    """
    if not is_same(got, expected):
        raise Mismatch(what, show_value(expected), show_value(got, expected), name_mistake(got, mistakes))


def expect_close(
    what: str, got: object, expected: object, atol: float, rtol: float = 0.0, mistakes: Mistakes = ()
) -> None:
    """A tensor or number must be within `atol` + `rtol`·|expected| of `expected`; a tensor also of its shape
    and dtype."""
    problem = _distance(got, expected, atol, rtol)
    if problem:
        named = [name for wrong, name in _pairs(mistakes) if not _distance(got, wrong, atol, rtol)]
        raise Mismatch(what, f"{show_value(expected)} within {atol:g}", problem, named[0] if named else None)


def expect_error(
    what: str,
    kind: type[Exception],
    call: Callable[[], object],
    numbers: Iterable[object] = (),
    mistake: str | None = None,
) -> None:
    """`call` must raise `kind`, and the message must contain each of `numbers` (1,000 counts as 1000), among
    at most 40.

    mistake: the name of the mistake of not raising at all.
    """
    try:
        value = call()
    except NotImplementedError:
        raise
    except kind as error:
        asked = [str(number) for number in numbers]
        missing = [number for number in asked if not _mentions(str(error), number)]
        if asked and len(re.findall(r"\d+", str(error))) > MAX_NUMBERS:
            wanted = f"a {kind.__name__} whose message has at most {MAX_NUMBERS} numbers"
            raise Mismatch(what, wanted, f"{type(error).__name__}: {error}") from None
        if missing:
            wanted = f"a {kind.__name__} whose message contains {' and '.join(missing)}"
            raise Mismatch(what, wanted, f"{type(error).__name__}: {error}") from None
    except Exception as error:
        raise Mismatch(what, f"a {kind.__name__}", f"{type(error).__name__}: {error}") from None
    else:
        raise Mismatch(what, f"a {kind.__name__}", f"no error; it returned {show_value(value)}", mistake)


def is_tensor(value: object) -> TypeIs[Tensor]:
    """Whether a value is a tensor, without importing torch: where it has not been imported, none can be."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_same(got: object, expected: object) -> bool:
    """Whether two pieces of plain data are equal, types and all."""
    if is_tensor(expected):
        if not (is_tensor(got) and got.shape == expected.shape and got.dtype == expected.dtype):
            return False
        return bool(got.eq(expected).all())
    if isinstance(expected, tuple):
        return isinstance(got, tuple) and _all_same(got, expected)
    if type(got) is not type(expected):
        return False
    if isinstance(expected, list):
        return isinstance(got, list) and _all_same(got, expected)
    if isinstance(expected, dict):
        assert isinstance(got, dict)
        return got.keys() == expected.keys() and all(is_same(got[key], expected[key]) for key in expected)
    return got == expected


def name_mistake(got: object, mistakes: Mistakes) -> str | None:
    """The name of the first known mistake that gives exactly this value."""
    return next((name for wrong, name in _pairs(mistakes) if is_same(got, wrong)), None)


def show_value(value: object, beside: object = None) -> str:
    """A value in a line; with its type if it would otherwise look the same as `beside`."""
    if is_tensor(value):
        numbers = ", ".join(f"{number:.6g}" for number in value.flatten()[:8].tolist())
        more = ", …" if value.numel() > 8 else ""
        return f"a tensor {list(value.shape)} of {str(value.dtype)[6:]}: [{numbers}{more}]"
    text = repr(value)
    if beside is not None and text == repr(beside):
        text += f" of type {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"


def _all_same(got: Any, expected: Any) -> bool:
    return len(got) == len(expected) and all(map(is_same, got, expected))


def _pairs(mistakes: Mistakes) -> list[tuple[Any, str]]:
    return list(mistakes.items() if isinstance(mistakes, Mapping) else mistakes)


def _distance(got: object, expected: object, atol: float, rtol: float) -> str:
    """In what way `got` is not close to `expected`; empty if it is."""
    if is_tensor(expected):
        if not is_tensor(got) or got.shape != expected.shape or got.dtype != expected.dtype:
            return show_value(got, expected)
    elif isinstance(got, bool) or not isinstance(got, int | float):
        return show_value(got, expected)
    import torch

    ours, theirs = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64)
    if torch.allclose(ours, theirs, atol=atol, rtol=rtol):
        return ""
    if ours.isnan().any():
        return f"{show_value(got)}, with NaN in {int(ours.isnan().sum())} of {ours.numel()} numbers"
    return f"{show_value(got)}, off by up to {float((ours - theirs).abs().max()):.3g}"


def _mentions(text: str, number: str) -> bool:
    text = re.sub(r"(?<=\d)[,_](?=\d\d\d)", "", text)
    return re.search(rf"(?<!\d)(?<!\d\.){re.escape(number)}(?!\d|\.\d)", text) is not None
