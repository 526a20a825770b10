"""A trace of requests served by a dry engine, with a formula for time: how long each token took to come.

Throughput and latency pull in different directions, and a trace of real lengths shows where. A step of so
many tokens takes so many seconds, by a formula that the caller states; state it beside any numbers from here.
Such a formula ignores above all that attention takes longer over a longer context
(`minipaged/simulation/cost_model.py` has that). Chapter 08.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minipaged.course.chapters.ch08_scheduler.dry_engine import DryEngine
from minipaged.simulation.simulator import Served, serve
from minipaged.simulation.traces import TraceRow

__all__ = ["Served", "serve_trace"]


def serve_trace(engine: DryEngine, trace: Iterable[TraceRow], step_seconds: Callable[[int], float]) -> Served:
    """Serve requests as they arrive. step_seconds: how long a step of so many tokens takes."""
    engine.simulated.step_seconds = lambda step: step_seconds(step.num_tokens)
    return serve(engine.simulated, trace)
