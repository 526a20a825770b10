"""Continuous batching: which requests compute how many tokens in the next step.

Requests arrive at any time and end after an unknown number of tokens. Deciding anew before every step lets a
request leave and another enter without waiting for the rest of a batch, and lets a long prompt be computed in
chunks beside the next tokens of the others. `BlockManager` knows where the blocks come from, `Preemption`
which request gives way. Chapter 08 (Yu et al., Orca, OSDI'22; vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from minipaged.block_manager import BlockManager, Copies
from minipaged.request import Request, Sequence


class Work(NamedTuple):
    """One sequence's part of a step: its next len(slots) tokens, whose K/V goes to these slots."""

    request: Request
    sequence: Sequence
    slots: list[int]

    @property
    def gets_token(self) -> bool:
        """Whether the step computes the sequence's last token, whose logits give the next one.

        Not for a prompt whose other chunks are still to come.
        """
        return self.sequence.num_uncomputed_tokens == 0


@dataclass
class Schedule:
    """One step: what moves, then what is computed.

    swap_out, swap_in (between the pools) and copies (within the pool) are (src, dst) block ids and run in
    that order, before any write. preempted: requests that gave way. out_of_capacity: requests that the whole
    pool cannot hold.
    """

    work: list[Work] = field(default_factory=list)
    copies: Copies = field(default_factory=list)
    swap_out: Copies = field(default_factory=list)
    swap_in: Copies = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    out_of_capacity: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(work.slots) for work in self.work)


class Scheduler:
    """First come, first served, or by priority: `waiting` and `running` are both ordered by (priority,
    arrival).

    Invariants: a request is in at most one of the two lists; only running requests hold blocks of the pool;
    in a step, tokens <= max_num_batched_tokens and sequences <= max_num_seqs.
    """

    def __init__(
        self,
        memory: BlockManager,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        preemption_mode: str = "recompute",
    ) -> None:
        self.memory = memory
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.preemption_mode = preemption_mode
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request behind those of its priority that came before it."""
        insort(self.waiting, request, key=lambda waiting: waiting.order)

    def remove(self, request: Request) -> None:
        """Forget a request that has ended, wherever it is."""
        queue = self.running if request in self.running else self.waiting
        queue.remove(request)

    def restart(self, requests: Iterable[Request]) -> None:
        """Start anew with these requests waiting, none of which holds a block."""
        self.running = []
        self.waiting = sorted(requests, key=lambda request: request.order)

    def schedule(self) -> Schedule:
        """Decide the next step and take its slots: running requests first, then the head of the queue."""
        step = Schedule()
        budget = self._schedule_running(step, self.max_num_batched_tokens)
        if self.waiting and not step.preempted:
            self._admit_waiting(step, budget)
        return step

    def preempt(self, request: Request, swap: bool = False) -> Copies:
        """Take a running request's blocks; it waits, ahead of those that came later, and keeps its output."""
        copies = self.memory.preempt(request, swap)
        self.running.remove(request)
        self.add(request)
        return copies

    def _schedule_running(self, step: Schedule, budget: int) -> int:
        for request in list(self.running):
            if request in step.preempted:
                continue
            self.memory.fork_ready(request)
            work = request.next_tokens(budget)
            if work and self._make_room(request, work, step):
                budget -= self._take(request, work, step)
        return budget

    def _admit_waiting(self, step: Schedule, budget: int) -> None:
        """Admit from the head while the whole of its tokens fits; no request overtakes it.

        Blocks that admitted prompts still need for their next chunks are promised to them.
        """
        promised = sum(self.memory.blocks_promised(request) for request in self.running)
        num_seqs = sum(request.num_seqs for request in self.running)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            if num_seqs + request.num_seqs > self.max_num_seqs:
                break
            if self.memory.blocks_to_admit(request) > self.memory.allocator.num_free - promised:
                if self.running:
                    break
                self._give_up(request, step)  # the pool is empty and still too small
                continue
            self.waiting.remove(request)
            insort(self.running, request, key=lambda running: running.order)
            step.swap_in += self.memory.admit(request)
            budget -= self._take(request, request.next_tokens(budget), step)
            promised += self.memory.blocks_promised(request)
            num_seqs += request.num_seqs

    def _make_room(self, request: Request, work: list[tuple[Sequence, int]], step: Schedule) -> bool:
        """Preempt until the work fits; False if the request itself had to go.

        Victims are chosen among this request and those after it: the ones before it have their slots already.
        """
        while self.memory.blocks_needed(work) > self.memory.allocator.num_free:
            if len(self.running) == 1:
                self._give_up(request, step)
                return False
            candidates = self.running[self.running.index(request) :]
            choice = self.memory.parts.preemption.choose_victim([candidate.order for candidate in candidates])
            victim = candidates[choice]
            step.swap_out += self.preempt(victim, swap=self.preemption_mode == "swap")
            step.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _take(self, request: Request, work: list[tuple[Sequence, int]], step: Schedule) -> int:
        """Take the slots for a request's work; returns its number of tokens."""
        num_tokens = 0
        for (seq, _), append in zip(work, self.memory.append(work), strict=True):
            step.work.append(Work(request, seq, append.slots))
            step.copies += append.copies
            num_tokens += len(append.slots)
        return num_tokens

    def _give_up(self, request: Request, step: Schedule) -> None:
        request.finish("capacity")
        self.remove(request)
        step.out_of_capacity.append(request)
