"""The same operations on the reader's layer and on a simple model of it, compared after every one.

Most mistakes in a memory manager show only after some operations: free, allocate, and one block has two
owners. Hypothesis generates the operations and finds the shortest history that goes wrong, which is reported
with the state before and after. The model is the grader's: each writes its own, naive and obviously right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minipaged.course.expectation import Mismatch, is_same, show_value

State = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a value, or an error."""

    value: object = None
    error: Exception | None = None

    def matches(self, expected: Outcome) -> bool:
        """The same value, or an error of the expected kind. Messages are not compared."""
        if expected.error is not None:
            return isinstance(self.error, type(expected.error))
        return self.error is None and is_same(self.value, expected.value)

    def __str__(self) -> str:
        if self.error is None:
            return show_value(self.value)
        return f"{type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Step:
    """One operation: what was expected and what came, and the state before and after it."""

    operation: str
    expected: Outcome
    got: Outcome
    state_before: State
    expected_state: State
    state: State


@dataclass
class Replay:
    """Runs operations one by one; the first difference raises `Mismatch` with the whole history.

    setup: how the layer was made, as code. state, expected_state: what can be seen of the layer, and of the
    model, as plain data under the same names. draw: a state as a few lines of text. name_mistake: the known
    mistake that a wrong step shows, if any.

    Example::

        replay = Replay("pool = BlockAllocator(2)", lambda: {"free": pool.num_free}, model.state)
        replay.step("pool.allocate()", pool.allocate, model.allocate)
    """

    setup: str
    state: Callable[[], State]
    expected_state: Callable[[], State]
    draw: Callable[[State], str] | None = None
    name_mistake: Callable[[Step], str | None] | None = None
    history: list[str] = field(default_factory=list)

    def step(self, operation: str, ours: Callable[[], object], model: Callable[[], object]) -> object:
        """Run one operation on both and compare; returns the layer's value. `Mismatch` if they differ."""
        before = self.expected_state()
        expected, got = _run(model), _run(ours)
        step = Step(operation, expected, got, before, self.expected_state(), self._state_of_layer(operation))
        if not (got.matches(expected) and is_same(step.state, step.expected_state)):
            raise self._mismatch(step)
        self.history.append(operation)
        return got.value

    def _state_of_layer(self, operation: str) -> State:
        try:
            return self.state()
        except (NotImplementedError, Mismatch):
            raise
        except Exception as error:
            what = f"the layer's state after {operation}"
            came = f"{type(error).__name__}: {error}"
            raise Mismatch(what, "no error", came, history=[self.setup, *self.history]) from error

    def _mismatch(self, step: Step) -> Mismatch:
        expected, got = str(step.expected), str(step.got)
        if step.got.matches(step.expected):
            wrong = [
                key for key, value in step.expected_state.items() if not is_same(step.state.get(key), value)
            ]
            expected = ", ".join(f"{key} {show_value(step.expected_state[key])}" for key in wrong)
            got = ", ".join(f"{key} {show_value(step.state.get(key))}" for key in wrong)
            failed = step.expected.error is not None
            expected += (
                f" after it, as before: it is a {type(step.expected.error).__name__}"
                if failed
                else " after it"
            )
        mistake = self.name_mistake(step) if self.name_mistake else None
        history = [self.setup, *self.history]
        if self.draw is None:
            return Mismatch(step.operation, expected, got, mistake, history)
        drawings = [self._draw(state) for state in (step.state_before, step.expected_state, step.state)]
        return Mismatch(step.operation, expected, got, mistake, history, *drawings)

    def _draw(self, state: State) -> str:
        assert self.draw is not None
        try:
            return self.draw(state)
        except Exception:  # a layer that is wrong may be in a state that can't be drawn
            return ", ".join(f"{key}: {show_value(value)}" for key, value in state.items())


def _run(call: Callable[[], object]) -> Outcome:
    try:
        return Outcome(call())
    except (NotImplementedError, Mismatch):
        raise
    except Exception as error:
        return Outcome(error=error)
