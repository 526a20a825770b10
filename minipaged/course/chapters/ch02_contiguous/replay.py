"""A trace served by an arena, without a model: which requests run or wait, and how every slot is used.

Waste shows only over hundreds of requests that come, grow and go, and no model is needed to see it: every
step gives each running sequence one more token, whatever that token is. Time is not modelled: a step takes
`seconds_per_step`, however much there is to compute. Chapter 02.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minipaged.contiguous import POLICIES, Account, Arena, Buddy, account, find_leaks, reservation
from minipaged.course.scorecard import Score
from minipaged.simulation.traces import TraceRow, synthetic

# The standard experiment: half of the K/V memory beside a 13B model on a card of 80 GB; Llama-2's longest.
NUM_SLOTS, MAX_MODEL_LEN, NUM_REQUESTS = 32_768, 4_096, 1_000
Reserve = Callable[[TraceRow], int]  # how many slots a request sets aside


@dataclass
class Running:
    """One sequence in the arena. start, size: its reservation, a whole chunk in the buddy system."""

    row: TraceRow
    start: int
    size: int
    num_tokens: int

    @property
    def final_len(self) -> int:
        return self.row.prompt_len + self.row.output_len


class ArenaMoment(NamedTuple):
    """The arena after one step. needed: slots that the head of the queue asks for, 0 if none waits. layout:
    the sequences as (first slot, slots, tokens held, tokens in the end), if it was kept."""

    step: int
    account: Account
    num_running: int
    needed: int
    layout: tuple[tuple[int, int, int, int], ...] = ()


class ArenaReplay:
    """Requests arrive, are admitted in their order when a hole fits, grow by a token a step, and end.

    reserve: how many slots a request sets aside; a ValueError from it refuses the request. A sequence that
    outgrows its reservation is moved to one with `grow_by` more slots if a hole has room for it while the old
    one is still there; otherwise it is cut short. forget_every=50: every 50th sequence to end is not
    released. layout_every=10: the layout is kept for every 10th step.

    >>> replay = ArenaReplay(trace, Arena(32768), lambda row: reservation("oracle", *row[1:3], 4096)).run()
    >>> replay.shares()["used"]
    """

    def __init__(
        self,
        trace: Sequence[TraceRow],
        arena: Arena,
        reserve: Reserve,
        *,
        seconds_per_step: float = 0.05,
        grow_by: int = 128,
        forget_every: int = 0,
        layout_every: int = 0,
    ) -> None:
        self.trace, self.arena, self.reserve = trace, arena, reserve
        self.seconds_per_step, self.grow_by = seconds_per_step, grow_by
        self.forget_every, self.layout_every = forget_every, layout_every
        self.running: list[Running] = []
        self.moments: list[ArenaMoment] = []
        self.num_admitted = self.num_ended = self.num_refused = 0
        self.num_outgrown = self.num_in_place = self.num_moved = self.num_cut_short = 0
        self.moved_tokens = 0
        self._next = 0  # of the trace
        self._needed = 0

    @property
    def is_over(self) -> bool:
        """No sequence runs, and none waits or can ever get in (after leaks, a hole may never open again)."""
        return not self.running and bool(self.moments) and (self._next == len(self.trace) or self._needed > 0)

    def run(self, num_steps: int | None = None) -> ArenaReplay:
        """Step to the end, or `num_steps` times; returns itself."""
        while not self.is_over and (num_steps is None or len(self.moments) < num_steps):
            self.step()
        return self

    def step(self) -> ArenaMoment:
        """Every running sequence gets a token, those that are done leave, and the queue moves up."""
        for sequence in list(self.running):
            self._grow(sequence)
        self._admit()
        step = len(self.moments)
        sequences = [(one.size, one.num_tokens, one.final_len) for one in self.running]
        layout: tuple[tuple[int, int, int, int], ...] = ()
        if self.layout_every > 0 and step % self.layout_every == 0:
            layout = tuple((one.start, *parts) for one, parts in zip(self.running, sequences, strict=True))
        now = account(sequences, self.arena.holes(), self._needed)
        moment = ArenaMoment(step, now, len(self.running), self._needed, layout)
        self.moments.append(moment)
        return moment

    def shares(self) -> dict[str, float]:
        """The mean account, as shares of the arena, over all steps in which a request waited: only then does
        waste matter. What leaked is in none of them."""
        crowded = [moment.account for moment in self.moments if moment.needed]
        num_slots = self.arena.num_slots * max(1, len(crowded))
        return {name: sum(getattr(one, name) for one in crowded) / num_slots for name in Account._fields}

    def mean_running(self) -> float:
        """Mean number of sequences in the arena, over all steps in which a request waited."""
        crowded = [moment.num_running for moment in self.moments if moment.needed]
        return sum(crowded) / max(1, len(crowded))

    def leaks(self) -> dict[int, int]:
        """The reservations that no sequence holds: first slot → 1."""
        counts = dict.fromkeys(self.arena.reservations(), 1)
        return find_leaks(counts, [[sequence.start] for sequence in self.running])

    def _grow(self, sequence: Running) -> None:
        if sequence.num_tokens == sequence.size and not self._move(sequence):
            self.num_cut_short += 1
            self._end(sequence)
            return
        sequence.num_tokens += 1
        if sequence.num_tokens == sequence.final_len:
            self._end(sequence)

    def _move(self, sequence: Running) -> bool:
        """Find a longer reservation for a sequence that has filled its own, and copy all its tokens there."""
        self.num_outgrown += 1
        end = sequence.start + sequence.size
        self.num_in_place += any(start == end and size >= self.grow_by for start, size in self.arena.holes())
        size = sequence.size + self.grow_by
        start = self.arena.reserve(size)
        if start is None:
            return False
        self.arena.release(sequence.start)
        sequence.start, sequence.size = start, self.arena.reservations()[start]
        self.num_moved += 1
        self.moved_tokens += sequence.num_tokens
        return True

    def _end(self, sequence: Running) -> None:
        self.running.remove(sequence)
        self.num_ended += 1
        if not self.forget_every or self.num_ended % self.forget_every:
            self.arena.release(sequence.start)

    def _admit(self) -> None:
        """First come, first served: no request overtakes the head of the queue."""
        now, self._needed = len(self.moments) * self.seconds_per_step, 0
        while self._next < len(self.trace) and self.trace[self._next].arrival_s <= now:
            row = self.trace[self._next]
            try:
                size = self.reserve(row)
            except ValueError:
                self.num_refused += 1
                self._next += 1
                continue
            start = self.arena.reserve(size)
            if start is None:
                self._needed = size
                return
            self.running.append(Running(row, start, self.arena.reservations()[start], row.prompt_len))
            self.num_admitted += 1
            self._next += 1


def replay_policy(policy: str, arena: Arena, trace: Sequence[TraceRow] | None = None) -> ArenaReplay:
    """The standard experiment: 1,000 generated requests like Azure's chats, served under one policy."""
    rows = synthetic(NUM_REQUESTS, seed=0) if trace is None else trace
    return ArenaReplay(
        rows, arena, lambda row: reservation(policy, row.prompt_len, row.output_len, MAX_MODEL_LEN)
    ).run()


def traditional_score(name: str, replay: ArenaReplay) -> Score:
    """What a replay was measured to waste, as a column of the scorecard."""
    shares = replay.shares()
    growth = f"impossible; {100 * replay.num_refused / len(replay.trace):.1f} % refused"
    if replay.num_outgrown:
        cut_short = 100 * replay.num_cut_short / replay.num_admitted
        growth = f"{cut_short:.0f} % cut short, {replay.moved_tokens:,} tokens moved"
    return Score(name, shares["reserved"], shares["internal"], shares["external"], growth, "none")


def traditional_scores() -> list[Score]:
    """Chapter 02's three columns, measured anew (2 seconds), for the chapters that add theirs."""
    arenas = {"max": Arena, "pow2": Buddy, "oracle": Arena}
    names = {"max": "reserve the maximum", "pow2": "power of two, buddies", "oracle": "oracle"}
    return [traditional_score(names[one], replay_policy(one, arenas[one](NUM_SLOTS))) for one in POLICIES]
