"""A trace served in blocks, without a model: chapter 02's experiment again, with block tables.

It measures the paged way by the same rules, on the same requests and in the same memory as the traditional
ones in chapter 02's `replay.py`, and as there it does not model time. Every step gives each running sequence
one more token. When a sequence needs a block and none is free, the last one that came is preempted: it gives
its blocks back and starts again later, with the tokens that it had. Chapter 04.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable
from minipaged.course.chapters.ch02_contiguous.replay import MAX_MODEL_LEN, NUM_REQUESTS, NUM_SLOTS
from minipaged.course.scorecard import Score
from minipaged.errors import OutOfBlocks
from minipaged.simulation.traces import TraceRow, synthetic

SECONDS_PER_STEP = 0.05


@dataclass(eq=False)
class TracedSequence:
    """One request's sequence. num_known: tokens that it has when it is admitted, its prompt at first."""

    table: BlockTable
    num_known: int
    final_len: int


class TableMoment(NamedTuple):
    """The pool after one step, in slots: with a token, free in a block that is held, and in free blocks."""

    used: int
    tail: int
    free: int
    num_running: int
    is_crowded: bool


class TableReplay:
    """Requests arrive, are admitted in their order when their blocks are free, grow by a token, and end.

    keep_free: blocks that must stay free on admission, for the running sequences to grow into.

    >>> replay = TableReplay(synthetic(1000, seed=0), block_size=16).run()
    >>> replay.shares()["tail"], replay.mean_running(), replay.num_preempted
    """

    def __init__(
        self,
        trace: Sequence[TraceRow],
        block_size: int = 16,
        num_slots: int = NUM_SLOTS,
        keep_free: int = 0,
    ) -> None:
        self.pool = BlockAllocator(num_slots // block_size)
        self.block_size, self.keep_free = block_size, keep_free
        fitting = [row for row in trace if row.prompt_len + row.output_len <= MAX_MODEL_LEN]
        self.num_refused = len(trace) - len(fitting)  # longer than the model allows, as in chapter 02
        self._to_come = deque(
            (row.arrival_s, TracedSequence(BlockTable(self.pool, block_size), row.prompt_len, sum(row[1:3])))
            for row in fitting
        )
        self._waiting: deque[TracedSequence] = deque()
        self.running: list[TracedSequence] = []
        self.moments: list[TableMoment] = []
        self.num_preempted = self.num_recomputed = self.worst_tail = 0
        self.num_tokens = sum(branch.final_len for _, branch in self._to_come)

    def run(self) -> TableReplay:
        """Step until the last request has ended; returns itself."""
        while self.running or self._waiting or self._to_come:
            self.step()
        return self

    def step(self) -> None:
        """Every running sequence gets a token, those that are done leave, and the queue moves up."""
        for branch in list(self.running):
            if branch in self.running:  # it may have been preempted by one before it
                self._grow(branch)
        is_crowded = self._admit()
        used = sum(branch.table.num_tokens for branch in self.running)
        tails = [len(one.table.block_ids) * self.block_size - one.table.num_tokens for one in self.running]
        free = self.pool.num_free * self.block_size
        self.worst_tail = max([self.worst_tail, *tails])
        self.moments.append(TableMoment(used, sum(tails), free, len(self.running), is_crowded))

    def shares(self) -> dict[str, float]:
        """Mean shares of the pool (used, tail, free) over all steps in which a request waited."""
        crowded = [moment for moment in self.moments if moment.is_crowded]
        num_slots = max(1, len(crowded)) * self.pool.num_blocks * self.block_size
        return {
            name: sum(getattr(moment, name) for moment in crowded) / num_slots
            for name in ("used", "tail", "free")
        }

    def mean_running(self) -> float:
        """Mean number of sequences in the pool, over all steps in which a request waited."""
        crowded = [moment.num_running for moment in self.moments if moment.is_crowded]
        return sum(crowded) / max(1, len(crowded))

    def _grow(self, branch: TracedSequence) -> None:
        while True:
            try:
                branch.table.append(1)
                break
            except OutOfBlocks:
                last = self.running.pop()
                last.num_known = last.table.num_tokens
                last.table.free()
                self._waiting.appendleft(last)
                self.num_preempted += 1
                self.num_recomputed += last.num_known
                if last is branch:
                    return
        if branch.table.num_tokens == branch.final_len:
            self.running.remove(branch)
            branch.table.free()

    def _admit(self) -> bool:
        """Admit the requests that fit, in order of arrival; returns whether one has to wait."""
        now = len(self.moments) * SECONDS_PER_STEP
        while self._to_come and self._to_come[0][0] <= now:
            self._waiting.append(self._to_come.popleft()[1])
        while self._waiting:
            head = self._waiting[0]
            keep_free = self.keep_free if self.running else 0  # a lone request may have them all
            if head.table.blocks_needed(head.num_known) + keep_free > self.pool.num_free:
                return True
            head.table.append(head.num_known)
            self.running.append(self._waiting.popleft())
        return False


def table_score(replay: TableReplay) -> Score:
    """What a replay was measured to waste, as a column of the scorecard."""
    growth = f"a block at a time, nothing moved; {replay.num_preempted} preemptions"
    return Score("block tables", 0.0, replay.shares()["tail"], 0.0, growth, "by fork")


def replay_tables(block_size: int = 16, keep_free: int = 0) -> TableReplay:
    """The standard experiment of chapter 02: 1,000 generated requests like Azure's chats, in blocks."""
    return TableReplay(synthetic(NUM_REQUESTS, seed=0), block_size, keep_free=keep_free).run()
