"""The simulated engine, driven by name and answering in plain data: for graders and notebooks.

Which request runs when, and with how many tokens, does not depend on what the tokens say. So a scheduler can
be judged, step by step and in plain data, without PyTorch. `replay.py` adds time. Chapter 08.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from minipaged.params import SamplingParams
from minipaged.request import Request
from minipaged.scheduler import Scheduler
from minipaged.simulation.simulator import SimulatedEngine, paged_memory


class DryEngine:
    """Drives a scheduler as `Engine` does, and says in plain data what it decided.

    >>> engine = DryEngine(Scheduler, num_blocks=8, block_size=4, max_num_batched_tokens=8)
    >>> engine.add("a", prompt_len=10, max_tokens=2)
    >>> [engine.step()["tokens"] for _ in range(3)]
    [{'a': 8}, {'a': 2}, {'a': 1}]
    """

    def __init__(
        self,
        scheduler: type[Scheduler],
        num_blocks: int,
        block_size: int = 4,
        max_num_batched_tokens: int = 64,
        max_num_seqs: int = 8,
        preemption_mode: str = "recompute",
        num_cpu_blocks: int = 0,
        enable_prefix_caching: bool = False,
        **options: Any,
    ) -> None:
        """options: further arguments of the scheduler, by name."""
        self.memory = paged_memory(num_blocks, block_size, num_cpu_blocks, enable_prefix_caching)
        self.scheduler = scheduler(
            self.memory, max_num_batched_tokens, max_num_seqs, preemption_mode, **options
        )
        self.simulated = SimulatedEngine(self.scheduler)

    @property
    def requests(self) -> dict[str, Request]:
        """The unfinished requests, by name."""
        return self.simulated.requests

    def add(
        self,
        name: str,
        prompt_len: int,
        max_tokens: int = 8,
        priority: int = 0,
        n: int = 1,
        arrival: int | None = None,
    ) -> None:
        """Queue a request for `n` answers of exactly `max_tokens` tokens. arrival: else after all others."""
        params = SamplingParams(n=n, max_tokens=max_tokens)
        self.simulated.add_request(name, [0] * prompt_len, params, priority, arrival)

    def seat(self, name: str, prompt_len: int, max_tokens: int = 8, priority: int = 0, n: int = 1) -> None:
        """Put a request among the running ones, with nothing computed, as if it had been admitted."""
        params = SamplingParams(n=n, max_tokens=max_tokens)
        request = self.simulated.new_request(name, [0] * prompt_len, params, priority)
        self.memory.admit(request)
        self.scheduler.running.append(request)

    def seat_again(self, name: str) -> None:
        """Take a running request's blocks, and put it back at once, with nothing computed."""
        request = self.requests[name]
        self.memory.preempt(request, swap=False)
        self.memory.admit(request)

    def evict(self, name: str, swap: bool = False) -> list[tuple[int, int]]:
        """Preempt a request without asking the scheduler's `preempt`; returns the copies that swap it out."""
        request = self.requests[name]
        copies = self.memory.preempt(request, swap)
        self.scheduler.running.remove(request)
        self.scheduler.add(request)
        return copies

    def step(self) -> dict[str, Any]:
        """One step. tokens: {name: tokens computed}; slots: of all of them; the rest as in `Schedule`."""
        self.simulated.step()
        step = self.simulated.last_step
        tokens: Counter[str] = Counter()
        for work in step.work:
            tokens[work.request.request_id] += len(work.slots)
        return {
            "tokens": dict(tokens),
            "slots": [slot for work in step.work for slot in work.slots],
            "copies": list(step.copies),
            "swap_out": list(step.swap_out),
            "swap_in": list(step.swap_in),
            "preempted": [request.request_id for request in step.preempted],
            "out_of_capacity": [request.request_id for request in step.out_of_capacity],
        }

    def state(self) -> dict[str, Any]:
        """Waiting and running requests in the scheduler's order, what each stored, and the free blocks."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        return {
            "waiting": [request.request_id for request in waiting],
            "running": [request.request_id for request in running],
            "stored": {one.request_id: sum(s.num_computed_tokens for s in one.live) for one in running},
            "free blocks": self.memory.allocator.num_free,
        }

    def priorities(self) -> dict[str, int]:
        """The priority of every unfinished request."""
        return {name: request.priority for name, request in self.requests.items()}

    def abort(self, name: str) -> None:
        """End a request wherever it is."""
        self.simulated.abort(name)

    def preempt(self, name: str, swap: bool = False) -> list[tuple[int, int]]:
        """Take a running request's blocks; returns the copies that swap it out."""
        return self.scheduler.preempt(self.requests[name], swap)

    def restart(self, names: Iterable[str]) -> None:
        """What the engine does after a failure: empty memory, and these requests start anew."""
        self.memory.reset()
        for request in self.requests.values():
            request.forget_blocks()
        self.scheduler.restart(self.requests[name] for name in names)

    def has_unfinished_requests(self) -> bool:
        return self.simulated.has_unfinished_requests()
