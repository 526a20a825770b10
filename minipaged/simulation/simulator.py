"""A serving simulator: scheduler and memory are the engine's own, time is a formula, tokens are made up.

Which request runs when, and which waits for memory, does not depend on what the tokens say. So hours of
traffic for a large model on a large GPU can be replayed on a laptop, with the very code that would manage the
memory there. The formula is `cost_model.py`; what it leaves out is missing here too, and has to be said
beside every number from here. It imports no PyTorch. Chapter 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from random import Random
from statistics import fmean

from minipaged.block_manager import BlockManager, MemoryParts
from minipaged.detokenizer import Detokenizer
from minipaged.loading.tokenizer import Tokenizer
from minipaged.measure import Latencies, latencies
from minipaged.params import SamplingParams
from minipaged.request import Request, Sequence
from minipaged.scheduler import Schedule, Scheduler
from minipaged.simulation.traces import MOONCAKE_BLOCK_SIZE, TraceRow

StepSeconds = Callable[[Schedule], float]


def paged_memory(
    num_blocks: int, block_size: int = 16, num_cpu_blocks: int = 0, enable_prefix_caching: bool = False
) -> BlockManager:
    """The engine's own memory: pool, block tables, copy-on-write, prefix cache and preemption."""
    return BlockManager(MemoryParts(), num_blocks, block_size, num_cpu_blocks, enable_prefix_caching)


class SimulatedEngine:
    """Drives a scheduler as `Engine` does. A step takes `step_seconds(schedule)` of virtual time, asked after
    the slots are taken and before the new tokens are there.

    A request's first branch gets the token 0 every time and its others the token 1, so that some have more in
    common than the prompt. Every branch ends after exactly max_tokens.

    >>> engine = SimulatedEngine(Scheduler(paged_memory(8, 4), 8, 8), lambda step: 0.01 * step.num_tokens)
    >>> request = engine.add_request("a", [5] * 10, SamplingParams(max_tokens=2))
    >>> [len(engine.step()) for _ in range(3)], engine.now      # chunks of 8 and 2, then one token
    ([0, 1, 1], 0.11)
    """

    def __init__(self, scheduler: Scheduler, step_seconds: StepSeconds = lambda step: 0.0) -> None:
        self.scheduler, self.memory, self.step_seconds = scheduler, scheduler.memory, step_seconds
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.last_step = Schedule()
        self._num_added = 0
        self._detokenizer = Detokenizer(Tokenizer.byte_level())

    def new_request(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams,
        priority: int = 0,
        arrival: int | None = None,
    ) -> Request:
        """A request that is not queued yet. arrival: else after all others."""
        arrival = self._num_added if arrival is None else arrival
        self._num_added = max(self._num_added, arrival + 1)
        branch = Sequence(list(prompt), len(prompt), self._detokenizer)
        request = Request(request_id, None, prompt, params, priority, arrival, [branch])
        self.requests[request_id] = request
        return request

    def add_request(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams,
        priority: int = 0,
        arrival: int | None = None,
    ) -> Request:
        """Queue a request for `params.n` answers of exactly `params.max_tokens` tokens."""
        request = self.new_request(request_id, prompt, params, priority, arrival)
        self.scheduler.add(request)
        return request

    def abort(self, request_id: str) -> None:
        """End a request wherever it is."""
        request = self.requests.pop(request_id)
        self.scheduler.remove(request)
        request.finish("abort")

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Request]:
        """One step; returns the requests that got tokens."""
        step = self.last_step = self.scheduler.schedule()
        self.now += self.step_seconds(step)
        if self.memory.enable_prefix_caching:
            for work in step.work:
                self.memory.publish(work.request, work.sequence)
        for request in step.out_of_capacity:
            del self.requests[request.request_id]
        return self._take_in(step)

    def _take_in(self, step: Schedule) -> list[Request]:
        """A token for every branch of the requests whose tokens are all computed (branches take their tokens
        together); requests that end are forgotten."""
        ready = dict.fromkeys(work.request for work in step.work if work.gets_token)
        for request in ready:
            first = request.sequences[0]
            if first.num_tokens == first.num_prompt_tokens:  # its first token: the branches part here
                for index in range(1, request.max_num_seqs):
                    request.add_branch(first, index)
            for branch in request.sequences:
                branch.token_ids.append(1 if branch.index else 0)
            if first.num_tokens - first.num_prompt_tokens == request.params.max_tokens:
                request.finish("length")
                self.scheduler.remove(request)
                del self.requests[request.request_id]
        return list(ready)


@dataclass(frozen=True)
class Served:
    """A trace as it was served. token_times: of each request the time of each of its tokens, in seconds; a
    request with n branches counts a step that all of them took once. step_tokens: tokens that each step
    computed. num_preempted: how often a request gave way. seconds: when the last step ended."""

    arrivals: list[float]
    token_times: list[list[float]]
    step_tokens: list[int]
    num_preempted: int
    seconds: float

    def first_token(self) -> list[float]:
        """Time to first token of each request: from its arrival, waiting included."""
        return self._latencies.first_token

    def gaps(self) -> list[float]:
        """All times between two tokens of one request."""
        return self._latencies.between_tokens

    def throughput(self) -> float:
        """Output tokens per second, from the first arrival to the last token."""
        return sum(map(len, self.token_times)) / self.seconds

    def normalised_latency(self) -> float:
        """The mean over requests of (end - arrival) / number of output tokens, in seconds per token: what the
        paper measures (Kwon et al., SOSP'23, section 6.1)."""
        return fmean(self._latencies.normalised)

    @cached_property
    def _latencies(self) -> Latencies:
        return latencies(zip(self.arrivals, self.token_times, repeat("length")))


def serve(
    engine: SimulatedEngine,
    rows: Iterable[TraceRow],
    prompt: Callable[[TraceRow, int], list[int]] | None = None,
) -> Served:
    """Serve requests as they arrive, to the last token.

    prompt: the token ids of a row and its number; else `prompt_tokens`.

    ValueError if a request was given up because the memory cannot hold it: its latency would flatter.
    """
    rows = list(rows)
    token_times: list[list[float]] = [[] for _ in rows]
    step_tokens: list[int] = []
    num_added = num_preempted = 0
    while num_added < len(rows) or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            engine.now = max(engine.now, rows[num_added].arrival_s)  # nothing to do: sleep until one comes
        while num_added < len(rows) and rows[num_added].arrival_s <= engine.now:
            row = rows[num_added]
            params = SamplingParams(max_tokens=row.output_len)
            engine.add_request(str(num_added), (prompt or prompt_tokens)(row, num_added), params)
            num_added += 1
        for request in engine.step():
            token_times[int(request.request_id)].append(engine.now)
        step = engine.last_step
        if step.out_of_capacity:
            row = rows[int(step.out_of_capacity[0].request_id)]
            raise ValueError(
                f"a request of {row.prompt_len} + {row.output_len} tokens outgrew the memory: "
                f"{engine.memory.num_blocks:,} blocks of {engine.memory.block_size}"
            )
        step_tokens.append(step.num_tokens)
        num_preempted += len(step.preempted)
    return Served([row.arrival_s for row in rows], token_times, step_tokens, num_preempted, engine.now)


def prompt_tokens(row: TraceRow, number: int) -> list[int]:
    """Made-up token ids: equal beginnings exactly where the trace says so, by its hashes.

    Without hashes no two prompts have a token in common: request 7 is a row of -8.
    """
    if not row.block_hashes:
        return [-1 - number] * row.prompt_len
    tokens = [block_hash for block_hash in row.block_hashes for _ in range(MOONCAKE_BLOCK_SIZE)]
    return tokens[: row.prompt_len]


def poisson(lengths: SequenceOf[tuple[int, int]], rate: float, seed: int = 0) -> list[TraceRow]:
    """Requests of these (prompt, output) lengths that arrive at random, `rate` a second on average.

    >>> [row.arrival_s for row in poisson([(3, 5), (2, 2)], rate=10.0)]
    [0.0, ...]
    """
    if not rate > 0:
        raise ValueError(f"rate must be above 0 requests a second, got {rate}")
    rng, now, rows = Random(seed), 0.0, []
    for prompt_len, output_len in lengths:
        rows.append(TraceRow(now, prompt_len, output_len))
        now += rng.expovariate(rate)
    return rows
