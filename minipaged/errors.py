"""The errors a reader can meet, each with the numbers that explain it.

They live in one module, so that an exercise raises the very class that the engine catches. Everything else
that a caller can get wrong raises a plain `ValueError`; a broken invariant, `RuntimeError`.
"""

from __future__ import annotations


class OutOfBlocks(Exception):
    """The pool has fewer free blocks than an operation needs; nothing has changed.

    Not a `ValueError`: the caller made no mistake. The scheduler catches it and preempts a request.

    Example: `str(OutOfBlocks(needed=3, free=1, total=8)) == "need 3, 1 free of 8"`.
    """

    def __init__(self, needed: int, free: int, total: int) -> None:
        super().__init__(needed, free, total)
        self.needed = needed
        self.free = free
        self.total = total

    def __str__(self) -> str:
        return f"need {self.needed}, {self.free} free of {self.total}"


class ModelError(ValueError):
    """A model that cannot be found, fetched or read, or that the engine does not support.

    The message says what was given, what was expected and what to do.

    Example: `ModelError("config.json: architecture GPT2LMHeadModel is not supported; use one of
    LlamaForCausalLM, ...")`.
    """


def check_model(holds: bool, message: str) -> None:
    """Raise `ModelError` with this message unless `holds`."""
    if not holds:
        raise ModelError(message)


def check_int(name: str, value: object, minimum: int | None = None, maximum: int | None = None) -> None:
    """Raise `ValueError` with the numbers unless `value` is a whole number within the bounds.

    Example: `check_int("block_size", 0, minimum=1)` says "block_size must be a whole number of at least 1,
    got 0".
    """
    bounds = [f"at least {minimum}"] * (minimum is not None) + [f"at most {maximum}"] * (maximum is not None)
    in_bounds = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, int):
        in_bounds &= (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
    if not in_bounds:
        expected = " of " + " and ".join(bounds) if bounds else ""
        raise ValueError(f"{name} must be a whole number{expected}, got {value!r}")
