"""Serving with a reader's layers: the loop in which they run, and what is said when they can't.

Used by the notebooks' `serve_with` and its like. `minipaged demo --use` draws every step besides
(`minipaged/pictures/recording.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from minipaged.engine import Engine
    from minipaged.llm import LLM
    from minipaged.params import RequestOutput

REAL_MODEL = "smollm2-135m"
MAX_STEPS = 1000  # ten times what any of the notebooks' workloads takes
JUNK = 1000.0  # a finite number: NaN would be an error of the sampler's, far from the cause

Result = TypeVar("Result")


class Serving(NamedTuple):
    """outputs: the last one of every request, by its id. most_at_once: requests that held blocks in one step.
    The other figures are those of `Stats`, in the end."""

    outputs: dict[str, RequestOutput]
    most_at_once: int
    steps: int
    preemptions: int
    copies: int

    def token_ids(self) -> list[list[list[int]]]:
        """Of every request, in the order of their ids, the output tokens of each of its sequences."""
        return [[one.token_ids for one in self.outputs[key].outputs] for key in sorted(self.outputs, key=int)]


def model_to_compare() -> LLM:
    """The real model if it has been fetched, else the tiny one, in float32; engines bring their own pools."""
    from minipaged.llm import LLM
    from minipaged.loading.hub import is_fetched

    return LLM(REAL_MODEL if is_fetched(REAL_MODEL) else "tiny", num_blocks=1, device="cpu", dtype="float32")


def serve_all(engine: Engine) -> Serving:
    """Serve the requests that wait at a fresh engine, with junk in its pools, and check its invariants after
    every step. RuntimeError, with the requests that are not done, after `MAX_STEPS` steps."""
    from minipaged.invariants import check_invariants

    fill_with_junk(engine)
    outputs: dict[str, RequestOutput] = {}
    most_at_once = steps = 0  # counted here: the step may be the reader's, which need not count itself
    while engine.has_unfinished_requests():
        if steps == MAX_STEPS:
            raise RuntimeError(f"{MAX_STEPS} steps taken, and {list(engine.requests)} are not done")
        outputs |= {output.request_id: output for output in engine.step()}
        steps += 1
        check_invariants(engine)
        most_at_once = max(most_at_once, len(engine.scheduler.running))
    stats = engine.stats()
    return Serving(outputs, most_at_once, steps, stats.preemptions, stats.copies)


def attempt(whose: str, serve: Callable[[], Result], instead: Callable[[], Result]) -> Result | None:
    """`serve()` with a reader's layers; `instead()`, with the package's own, if one of them is not written
    yet; None if one fails with an error or by sys.exit. The last two are explained in a line or two.

    Not Ctrl-C, which is meant for the notebook.
    """
    try:
        return serve()
    except NotImplementedError as error:
        print(f"{whose} can't serve yet: {error}.")
        print("Until it is written, the package's own layer takes its place. It says:")
        return instead()
    except (Exception, SystemExit) as error:
        print(f"{whose} could not serve: {type(error).__name__}: {error}")
        return None


def fill_with_junk(engine: Engine) -> None:
    """Fill every slot of the engine's pools with a number that no model computes, before anything is served.

    Fresh memory may hold what an earlier engine wrote there, and then a copy that was left out does no harm.
    With junk in it, whatever is read before it was written shows in the tokens.
    """
    for pool in (engine.kv_cache, engine.cpu_cache):
        if pool is not None:
            pool.k.fill_(JUNK)
            pool.v.fill_(JUNK)


def number_of(count: int, what: str) -> str:
    """`number_of(1, "preemption") == "1 preemption"`, and of 0 and 2 "preemptions"."""
    return f"{count} {what}{'s' * (count != 1)}"
