"""A run of the engine written down step by step: the owners of every block, the queue, what was copied.

Sharing, copies and preemptions last a few steps and leave no trace in the text that comes out. The recording
is plain data, so the same run feeds the terminal (`minipaged demo`), the notebook's player (`player.py`) and
a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.params import SamplingParams

if TYPE_CHECKING:
    from minipaged.engine import Engine
    from minipaged.request import Request, Sequence


@dataclass(frozen=True)
class Arrival:
    """A request that comes in before step `step`, counted from 0."""

    step: int
    request_id: str
    prompt: str | list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Row:
    """One sequence after a step. name: "A", or "C.1" for a branch of C.

    If it is swapped, its block_ids are those of the CPU's pool.
    """

    name: str
    request_id: str
    state: str
    num_tokens: int
    num_stored: int
    block_ids: list[int]
    is_swapped: bool
    text: str


@dataclass(frozen=True)
class Frame:
    """What there is to see after a step.

    owners: the users of each block in use, as request ids, one entry per sequence: {7: ["C", "C"]}.
    cached: free blocks that the prefix cache can find, and their last owners. queue: who waits, in order.
    events: what the step did, in words. The rest are totals since the start, prefix figures in tokens.
    """

    step: int
    num_blocks: int
    block_size: int
    owners: dict[int, list[str]]
    cached: dict[int, str]
    rows: list[Row]
    queue: list[str]
    events: list[str]
    output_tokens: int
    preemptions: int
    copies: int
    prefix_hits: int
    prefix_queries: int


class Recorder:
    """Lets requests arrive at an engine, steps it, and keeps a frame of every step.

    >>> recorder = Recorder(engine, [Arrival(0, "A", "Hello", SamplingParams(max_tokens=8))])
    >>> while frame := recorder.step():
    ...     print(frame.step, frame.owners)
    """

    def __init__(self, engine: Engine, arrivals: Iterable[Arrival]) -> None:
        self.engine = engine
        self.arrivals = sorted(arrivals, key=lambda arrival: arrival.step)
        self.requests: dict[str, Request] = {}
        self.frames: list[Frame] = []
        self._last_owner: dict[int, str] = {}

    def step(self) -> Frame | None:
        """Take one step of the engine and return its frame; None if nothing is left to do.

        A RuntimeError if the engine has requests and does nothing for them.
        """
        events = self._let_arrive()
        if not self.arrivals and not self.engine.has_unfinished_requests():
            return None
        before = {name: self._state(req.sequences[0], req) for name, req in self.requests.items()}
        outputs = self.engine.step()
        events += self._changes(before)
        events += [f"{output.request_id} finishes" for output in outputs if output.finished]
        if not (self.arrivals or events or self.engine.last_step.work):
            number = len(self.frames) + 1
            raise RuntimeError(f"step {number} did nothing, but {list(self.engine.requests)} wait")
        self.frames.append(self._frame(events))
        return self.frames[-1]

    def run(self) -> list[Frame]:
        """Take all steps and return their frames."""
        while self.step():
            pass
        return self.frames

    def samples(self) -> dict[str, list[int]]:
        """The output token ids of every sequence, by its row's name."""
        return {
            _name(seq, request): seq.output_token_ids
            for request in self.requests.values()
            for seq in request.sequences
        }

    def _let_arrive(self) -> list[str]:
        events = []
        while self.arrivals and self.arrivals[0].step <= len(self.frames):
            arrival = self.arrivals.pop(0)
            self.engine.add_request(arrival.request_id, arrival.prompt, arrival.params)
            self.requests[arrival.request_id] = self.engine.requests[arrival.request_id]
            events.append(f"{arrival.request_id} arrives")
        return events

    def _changes(self, before: dict[str, str]) -> list[str]:
        """What the step did to queues and blocks, given the state of each request before it."""
        step, events = self.engine.last_step, []
        for request in step.preempted:
            how = "swapped out" if request.is_swapped else "to be recomputed"
            events.append(f"{request.request_id} PREEMPTED, {how}")
        for request in dict.fromkeys(work.request for work in step.work):
            found = f"{request.num_cached_tokens} of {len(request.prompt_token_ids)} tokens cached"
            entrances = {"waiting": f"admitted, {found}", "preempted": "is back", "swapped": "swapped in"}
            if before[request.request_id] in entrances:
                events.append(f"{request.request_id} {entrances[before[request.request_id]]}")
        return events + [f"block {src} copied to {dst}" for src, dst in step.copies]

    def _frame(self, events: list[str]) -> Frame:
        memory, stats, owners = self.engine.memory, self.engine.stats(), self._owners()
        self._last_owner |= {block_id: names[0] for block_id, names in owners.items()}
        cached = {
            block_id: self._last_owner.get(block_id, "?")
            for block_id in memory.allocator.free_blocks()
            if memory.prefix_cache.key(block_id) is not None
        }
        rows = [self._row(seq, request) for request in self.requests.values() for seq in request.sequences]
        queue = [request.request_id for request in self.engine.scheduler.waiting]
        return Frame(
            len(self.frames) + 1,
            stats.num_blocks,
            memory.block_size,
            owners,
            cached,
            rows,
            queue,
            events,
            stats.output_tokens,
            stats.preemptions,
            stats.copies,
            stats.prefix_hits,
            stats.prefix_queries,
        )

    def _owners(self) -> dict[int, list[str]]:
        owners: dict[int, list[str]] = {}
        for request in self.engine.scheduler.running:
            for table in [seq.table for seq in request.live if seq.table]:
                for block_id in table.block_ids:
                    owners.setdefault(block_id, []).append(request.request_id)
        return owners

    def _row(self, seq: Sequence, request: Request) -> Row:
        block_ids, num_stored = (list(seq.table.block_ids), seq.table.num_tokens) if seq.table else ([], 0)
        return Row(
            _name(seq, request),
            request.request_id,
            self._state(seq, request),
            seq.num_tokens,
            num_stored,
            block_ids,
            request.is_swapped,
            seq.detokenizer.text,
        )

    def _state(self, seq: Sequence, request: Request) -> str:
        """Where a sequence is in its life, in a word or two."""
        if seq.finish_reason:
            return f"done: {seq.finish_reason}"
        if request.is_swapped:
            return "swapped"
        if request in self.engine.scheduler.running:
            return "decode" if seq.num_uncomputed_tokens <= 1 else "prefill"
        return "preempted" if seq.output_token_ids else "waiting"


def save_recording(frames: SequenceOf[Frame], path: str | Path) -> None:
    """Write frames to a file, one line of JSON each."""
    lines = [json.dumps(asdict(frame), ensure_ascii=False) for frame in frames]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_recording(path: str | Path) -> list[Frame]:
    """Read what `save_recording` wrote. ValueError, with the line, for anything else."""
    frames = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            data = json.loads(line)
            data["rows"] = [Row(**row) for row in data["rows"]]
            for key in ("owners", "cached"):  # JSON's keys are texts
                data[key] = {int(block_id): value for block_id, value in data[key].items()}
            frames.append(Frame(**data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number} is no frame of a recording: {error!r}") from None
    return frames


def _name(seq: Sequence, request: Request) -> str:
    return request.request_id if len(request.sequences) == 1 else f"{request.request_id}.{seq.index}"
