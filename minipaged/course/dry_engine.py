"""An engine without a model: the scheduler and the memory are real, every token is made up.

Why it exists: who runs when, and with how many tokens, does not depend on what the tokens say. So a scheduler
can be judged, step by step and in plain data, without PyTorch. What it leaves out: time
(`schedule_replay.py`). Chapter 08.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from minipaged.block_allocator import BlockAllocator
from minipaged.block_manager import BlockManager
from minipaged.block_table import BlockTable
from minipaged.copy_on_write import CopyOnWrite
from minipaged.detokenizer import Detokenizer
from minipaged.params import SamplingParams
from minipaged.preemption import Preemption
from minipaged.prefix_cache import PrefixCache
from minipaged.request import Request, Sequence
from minipaged.scheduler import Schedule, Scheduler
from minipaged.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minipaged.parts import Parts

# What BlockManager needs of `Parts`, without the parts that import PyTorch.
PARTS = SimpleNamespace(
    block_allocator=BlockAllocator, block_table=BlockTable, copy_on_write=CopyOnWrite,
    prefix_cache=PrefixCache, preemption=Preemption,
)  # fmt: skip


class DryEngine:
    """Drives a scheduler as `Engine` does, and says in plain data what it decided.

    >>> engine = DryEngine(Scheduler, num_blocks=8, block_size=4, max_num_batched_tokens=8)
    >>> engine.add("a", prompt_len=10, max_tokens=2)
    >>> [engine.step()["tokens"] for _ in range(3)]
    [{'a': 8}, {'a': 2}, {'a': 1}]
    """

    def __init__(
        self, scheduler: type[Scheduler], num_blocks: int, block_size: int = 4,
        max_num_batched_tokens: int = 64, max_num_seqs: int = 8, preemption_mode: str = "recompute",
        num_cpu_blocks: int = 0, enable_prefix_caching: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        """options: further arguments of the scheduler, by name."""
        parts = cast("Parts", PARTS)
        self.memory = BlockManager(parts, num_blocks, block_size, num_cpu_blocks, enable_prefix_caching)
        self.scheduler = scheduler(
            self.memory, max_num_batched_tokens, max_num_seqs, preemption_mode, **options
        )
        self.requests: dict[str, Request] = {}
        self._num_added = 0
        self._detokenizer = Detokenizer(Tokenizer.byte_level())

    def add(
        self, name: str, prompt_len: int, max_tokens: int = 8, priority: int = 0, n: int = 1,
        arrival: int | None = None,
    ) -> None:  # fmt: skip
        """Queue a request for `n` answers of exactly `max_tokens` tokens. arrival: else after all others."""
        self.scheduler.add(self._new_request(name, prompt_len, max_tokens, priority, n, arrival))

    def seat(self, name: str, prompt_len: int, max_tokens: int = 8, priority: int = 0, n: int = 1) -> None:
        """Put a request among the running ones, with nothing computed, as if it had been admitted."""
        request = self._new_request(name, prompt_len, max_tokens, priority, n, None)
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
        step = self.scheduler.schedule()
        tokens: Counter[str] = Counter()
        for work in step.work:
            tokens[work.request.request_id] += len(work.slots)
        self._take_in(step)
        self.requests = {name: one for name, one in self.requests.items() if not one.is_finished}
        return {
            "tokens": dict(tokens),
            "slots": [slot for work in step.work for slot in work.slots],
            "copies": list(step.copies), "swap_out": list(step.swap_out), "swap_in": list(step.swap_in),
            "preempted": [request.request_id for request in step.preempted],
            "out_of_capacity": [request.request_id for request in step.out_of_capacity],
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Who waits and who runs, in the scheduler's order, what each has stored, and the free blocks."""
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
        request = self.requests.pop(name)
        self.scheduler.remove(request)
        request.finish("abort")

    def preempt(self, name: str, swap: bool = False) -> list[tuple[int, int]]:
        """Take a running request's blocks; returns the copies that swap it out."""
        return self.scheduler.preempt(self.requests[name], swap)

    def restart(self, names: Iterable[str]) -> None:
        """What the engine does after a failure: empty memory, and these requests start anew."""
        self.memory.reset()
        for request in self.requests.values():
            for seq in request.live:
                seq.forget_blocks()
        self.scheduler.restart(self.requests[name] for name in names)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def _new_request(
        self, name: str, prompt_len: int, max_tokens: int, priority: int, n: int, arrival: int | None
    ) -> Request:
        params = SamplingParams(n=n, temperature=1.0, max_tokens=max_tokens)
        arrival = self._num_added if arrival is None else arrival
        prompt = [0] * prompt_len
        sequence = Sequence(list(prompt), prompt_len, self._detokenizer)
        self._num_added = max(self._num_added, arrival + 1)
        self.requests[name] = Request(name, None, prompt, params, priority, arrival, [sequence])
        return self.requests[name]

    def _take_in(self, step: Schedule) -> None:
        """A token for every sequence whose tokens are all computed: 0 for a request's first branch, 1 for the
        others, so that some have more in common than the prompt."""
        ready: dict[Request, list[Sequence]] = {}
        for work in step.work:
            if work.sequence.num_uncomputed_tokens == 0:
                ready.setdefault(work.request, []).append(work.sequence)
        for request, sequences in ready.items():
            if len(request.sequences) < request.max_num_seqs:  # its first token: the branches part here
                request.sequences += [sequences[0].fork(index) for index in range(1, request.max_num_seqs)]
                sequences = request.sequences
            for seq in sequences:
                seq.token_ids.append(min(seq.index, 1))
                if seq.num_tokens - seq.num_prompt_tokens == request.params.max_tokens:
                    seq.finish("length")
            if request.is_finished:
                self.scheduler.remove(request)
