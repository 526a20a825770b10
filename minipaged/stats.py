"""What an engine holds and has done, as numbers: for the user, the benchmark and the pictures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """What the engine holds now (blocks, requests) and has done so far (the rest).

    blocks_free includes the cached blocks without users; blocks_cached are all that a lookup could find.
    Prefix hits and queries are in tokens, times in seconds; forward_time is the part of step_time spent in
    the model.
    """

    num_blocks: int
    blocks_free: int
    blocks_used: int
    blocks_cached: int
    running: int
    waiting: int
    swapped: int
    steps: int
    preemptions: int
    prefix_hits: int
    prefix_queries: int
    copies: int
    computed_tokens: int
    output_tokens: int
    step_time: float
    forward_time: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of stepping."""
        return self.output_tokens / self.step_time if self.step_time else 0.0
