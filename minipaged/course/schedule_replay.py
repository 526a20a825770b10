"""A trace of requests served by a dry engine, with a formula for time: who waited how long for which token.

Why it exists: throughput and latency pull in different directions, and a trace of real lengths shows where. A
step of so many tokens takes so many seconds, by a formula that the caller states; whoever shows numbers from
here has to state it too. What it leaves out: all that such a formula leaves out, above all that attention
takes longer over a longer context. Chapter 08.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from minipaged.course.dry_engine import DryEngine
from minipaged.traces import TraceRow


@dataclass(frozen=True)
class Served:
    """A trace as it was served. token_times: of each request the time of each of its tokens, in seconds."""

    arrivals: list[float]
    token_times: list[list[float]]
    step_tokens: list[int]
    seconds: float

    def first_token(self) -> list[float]:
        """Time to first token of each request: from its arrival, waiting included."""
        return [times[0] - arrival for times, arrival in zip(self.token_times, self.arrivals, strict=True)]

    def gaps(self) -> list[float]:
        """All times between two tokens of one request."""
        return [b - a for times in self.token_times for a, b in pairwise(times)]

    def throughput(self) -> float:
        """Output tokens per second, from the first arrival to the last token."""
        return sum(map(len, self.token_times)) / self.seconds


def serve_trace(engine: DryEngine, trace: Iterable[TraceRow], step_seconds: Callable[[int], float]) -> Served:
    """Serve requests as they arrive. step_seconds: how long a step of so many tokens takes."""
    rows = list(trace)
    token_times: list[list[float]] = [[] for _ in rows]
    step_tokens: list[int] = []
    now, num_added = 0.0, 0
    while num_added < len(rows) or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            now = max(now, rows[num_added].arrival_s)  # nothing to do: sleep until somebody comes
        while num_added < len(rows) and rows[num_added].arrival_s <= now:
            row = rows[num_added]
            engine.add(str(num_added), row.prompt_len, row.output_len)
            num_added += 1
        before = {name: request.sequences[0].num_tokens for name, request in engine.requests.items()}
        requests = dict(engine.requests)
        num_tokens = sum(engine.step()["tokens"].values())
        now += step_seconds(num_tokens)
        step_tokens.append(num_tokens)
        for name, request in requests.items():
            if request.sequences[0].num_tokens > before[name]:
                token_times[int(name)].append(now)
    return Served([row.arrival_s for row in rows], token_times, step_tokens, now)
