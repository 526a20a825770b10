"""Memory pressure, watched in a running engine and simulated on a trace: chapter 09's experiments.

What preemption costs, and how admission avoids it, shows only over thousands of steps. `record` notes what a
real engine does step by step; `PressureReplay` does the same bookkeeping with block tables and no model, and
a clock that runs by `Costs`. Not modelled: attention's part of a step's time, chunks of prompts, the prefix
cache, and transfers that overlap with computing. Chapter 09.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable
from minipaged.engine import Engine
from minipaged.invariants import check_invariants
from minipaged.preemption import Preemption
from minipaged.simulation.traces import TraceRow


@dataclass(frozen=True)
class Moment:
    """One step of an engine: tokens computed by each request, requests preempted, and those swapped out."""

    computed: dict[str, int]
    preempted: tuple[str, ...]
    swapped: tuple[str, ...]
    num_used: int


def record(engine: Engine) -> tuple[list[Moment], dict[str, list[int]]]:
    """Step an engine until nothing is left to do: the moments, and every request's output tokens.

    Invariants are checked after every step.
    """
    moments, outputs = [], {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = output.outputs[0].token_ids
        check_invariants(engine)
        step, computed = engine.last_step, dict[str, int]()
        for work in step.work:
            name = work.request.request_id
            computed[name] = computed.get(name, 0) + len(work.slots)
        preempted = tuple(request.request_id for request in step.preempted)
        swapped = tuple(request.request_id for request in engine.scheduler.waiting if request.is_swapped)
        moments.append(Moment(computed, preempted, swapped, engine.stats().blocks_used))
    return moments, outputs


@dataclass(frozen=True)
class Costs:
    """Seconds: of any step, for each token that it computes besides, and for a block that moves one way."""

    per_step: float
    per_token: float
    per_block: float


@dataclass(eq=False)
class PressedSequence:
    """One request's sequence. num_known: the tokens that it has, of which its table holds some or none."""

    arrival: int
    arrival_s: float
    num_known: int
    final_len: int
    table: BlockTable
    is_swapped: bool = False


@dataclass
class PressureReplay:
    """Requests are served in order of arrival from one pool; when it is empty, the last one is preempted.

    mode: "recompute" or "swap" (the CPU pool is as large as needed). keep_free: blocks that must stay free
    on admission, unless no sequence runs. A request that the pool cannot hold raises ValueError.

    >>> replay = PressureReplay(trace, num_blocks=981, costs=costs, keep_free=10).run()
    >>> replay.seconds, replay.num_preempted, replay.num_recomputed
    """

    trace: Iterable[TraceRow]
    num_blocks: int
    costs: Costs
    mode: str = "recompute"
    keep_free: int = 0
    block_size: int = 16
    preemption: type[Preemption] = Preemption
    running: list[PressedSequence] = field(default_factory=list)
    seconds: float = 0.0
    num_steps: int = 0
    num_computed: int = 0
    num_recomputed: int = 0
    num_moved: int = 0
    num_preempted: int = 0
    num_output: int = 0
    sum_running: int = 0

    def __post_init__(self) -> None:
        self.pool = BlockAllocator(self.num_blocks)
        self.waiting: deque[PressedSequence] = deque()
        for arrival, row in enumerate(self.trace):
            final_len = row.prompt_len + row.output_len
            if final_len > self.num_blocks * self.block_size:
                raise ValueError(f"{final_len} tokens can't be held by {self.num_blocks} blocks")
            table = BlockTable(self.pool, self.block_size)
            self.waiting.append(PressedSequence(arrival, row.arrival_s, row.prompt_len, final_len, table))
            self.num_output += row.output_len
        num_all = sum(-(-branch.final_len // self.block_size) for branch in self.waiting)
        self.cpu_pool = BlockAllocator(max(1, num_all))

    def run(self) -> PressureReplay:
        """Step until the last request has ended; returns itself."""
        while self.running or self.waiting:
            self.step()
        return self

    def step(self) -> None:
        """Every running sequence gets a token; if none was preempted, the queue moves up."""
        if not self.running:
            self.seconds = max(self.seconds, self.waiting[0].arrival_s)
        before = self.num_computed, self.num_moved, self.num_preempted
        for branch in list(self.running):
            if branch in self.running:  # an earlier one may have preempted it
                self._grow(branch)
        if self.num_preempted == before[2]:
            self._admit()
        self.num_steps += 1
        self.sum_running += len(self.running)
        computed, moved = self.num_computed - before[0], self.num_moved - before[1]
        self.seconds += self.costs.per_step + computed * self.costs.per_token + moved * self.costs.per_block

    def _grow(self, branch: PressedSequence) -> None:
        is_full = branch.table.num_tokens % self.block_size == 0
        while is_full and self.pool.num_free == 0:
            candidates = self.running[self.running.index(branch) :]
            victim = candidates[self.preemption.choose_victim([(0, one.arrival) for one in candidates])]
            self._preempt(victim)
            if victim is branch:
                return
        if is_full:
            branch.table.append(1)
        else:  # what an append does here, without asking whether the tail is shared: nothing is
            branch.table.num_tokens += 1
        self.num_computed += 1
        branch.num_known += 1
        if branch.num_known >= branch.final_len:
            self.running.remove(branch)
            branch.table.free()

    def _preempt(self, victim: PressedSequence) -> None:
        self.running.remove(victim)
        self.waiting.appendleft(victim)  # it came after all that run, and before all that wait
        self.num_preempted += 1
        if self.mode == "swap":
            self._move(victim, self.pool, self.cpu_pool)
        else:
            self.num_recomputed += victim.table.num_tokens
            victim.table.free()
        victim.is_swapped = self.mode == "swap"

    def _move(self, branch: PressedSequence, source: BlockAllocator, target: BlockAllocator) -> None:
        tables, copies = self.preemption.move_blocks([branch.table.block_ids], source, target)
        num_tokens, branch.table = branch.table.num_tokens, BlockTable(target, self.block_size)
        branch.table.adopt(tables[0], num_tokens)
        self.num_moved += len(copies)

    def _admit(self) -> None:
        while self.waiting and self.waiting[0].arrival_s <= self.seconds:
            head = self.waiting[0]
            needed = -(-head.num_known // self.block_size)
            if needed + (self.keep_free if self.running else 0) > self.pool.num_free:
                return
            self.running.append(self.waiting.popleft())
            if head.is_swapped:
                self._move(head, self.cpu_pool, self.pool)
                head.is_swapped = False
            else:
                head.table.append(head.num_known)
                self.num_computed += head.num_known
