"""The paper's smallest set-up: OPT-13B on one A100-40GB, with four ways to keep K and V in the same slots.

Figures 2, 12, 13 and others ask these systems different questions, which are in `paper.py`. Source: Kwon et
al., SOSP'23, table 1 and section 6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from minipaged.contiguous import Account, Buddy, account
from minipaged.scheduler import Schedule, Scheduler
from minipaged.simulation.contiguous_memory import ContiguousMemory, Reserved
from minipaged.simulation.cost_model import A100_40GB, OPT_13B, CostModel, ModelShape
from minipaged.simulation.sharing import lengths_like
from minipaged.simulation.simulator import Served, SimulatedEngine, paged_memory, serve
from minipaged.simulation.traces import TraceRow

Lengths = list[tuple[int, int]]  # prompt and output tokens of each request

NUM_SLOTS, MAX_MODEL_LEN = 15_700, 2_048  # table 1: OPT-13B beside its weights on one A100-40GB
MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS = 2_560, 256  # the defaults of the paper's own system
SYSTEMS = {"Orca (Max)": "max", "Orca (Pow2)": "pow2", "Orca (Oracle)": "oracle", "vLLM": "paged"}


@dataclass(frozen=True)
class SystemRun:
    """A simulated system: what was served, and means over the time in which requests waited for memory.

    num_running: requests at once; None if none ever waited. shares: of all slots, as in `Account`.
    """

    served: Served
    num_running: float | None
    shares: dict[str, float]


@dataclass(frozen=True)
class Bench:
    """The paper's smallest set-up: a model, a device, and slots for K and V."""

    model: ModelShape = OPT_13B
    num_slots: int = NUM_SLOTS
    max_model_len: int = MAX_MODEL_LEN
    block_size: int = 16
    preemption_mode: str = "recompute"
    enable_prefix_caching: bool = False

    @property
    def cost(self) -> CostModel:
        return CostModel(A100_40GB, self.model, self.block_size)

    def scheduler(self, system: str) -> Scheduler:
        """The engine's scheduler over the memory of one of the `SYSTEMS`."""
        memory: Any
        if SYSTEMS[system] == "paged":
            num_blocks = self.num_slots // self.block_size
            num_cpu_blocks = 8 * num_blocks if self.preemption_mode == "swap" else 0
            memory = paged_memory(num_blocks, self.block_size, num_cpu_blocks, self.enable_prefix_caching)
        else:
            memory = ContiguousMemory(Buddy(self.num_slots), SYSTEMS[system], self.max_model_len)
        return Scheduler(memory, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, self.preemption_mode)

    def run(
        self,
        system: str,
        rows: Sequence[TraceRow],
        prompt: Callable[[TraceRow, int], list[int]] | None = None,
    ) -> SystemRun:
        """Serve the rows with one system."""
        price = self.cost.step_seconds
        sums = [0.0] * (len(Account._fields) + 2)

        def step_seconds(step: Schedule) -> float:
            seconds = price(step)
            if engine.scheduler.waiting:
                for index, value in enumerate((*_account(engine), len(engine.scheduler.running), 1)):
                    sums[index] += seconds * value
            return seconds

        engine = SimulatedEngine(self.scheduler(system), step_seconds)
        served = serve(engine, rows, prompt)
        *slots, running, seconds = sums
        shares = {
            name: total / max(1e-9, seconds * self.num_slots)
            for name, total in zip(Account._fields, slots, strict=True)
        }
        return SystemRun(served, running / seconds if seconds else None, shares)

    def full_queue(self, system: str, lengths: Lengths) -> SystemRun:
        """All requests are there at once, so memory alone decides how many are served together. Raises
        ValueError if none has to wait."""
        outcome = self.run(system, [TraceRow(0.0, *both) for both in lengths])
        if outcome.num_running is None:
            raise ValueError(
                f"{system} serves all {len(lengths)} requests at once: more are needed for a full queue"
            )
        return outcome


def _account(engine: SimulatedEngine) -> Account:
    """Where the slots are now; a paged pool reserves nothing, and any free block fits."""
    memory, running = engine.memory, engine.scheduler.running
    if isinstance(memory, ContiguousMemory):
        sequences = []
        for request in running:
            run = request.sequences[0].table
            assert isinstance(run, Reserved) and request.params.max_tokens is not None
            final_len = len(request.prompt_token_ids) + request.params.max_tokens
            sequences.append((run.size, run.num_tokens, final_len))
        return account(sequences, memory.arena.holes(), memory.needed(engine.scheduler.waiting[0]))
    used = sum(seq.num_computed_tokens for request in running for seq in request.sequences)
    held = (memory.num_blocks - memory.allocator.num_free) * memory.block_size
    return Account(used, 0, held - used, 0, memory.allocator.num_free * memory.block_size)


def lengths_of(name: str, num_requests: int, seed: int = 0) -> Lengths:
    """Generated lengths with the means of the paper's data set; output cut off at the model's limit."""
    drawn = lengths_like(name, num_requests, seed)
    return [
        (prompt, min(output, MAX_MODEL_LEN - prompt)) for prompt, output in drawn if prompt < MAX_MODEL_LEN
    ]


def lengths_from(rows: Iterable[TraceRow]) -> Lengths:
    """The lengths of a trace, without the requests that are too long for the model."""
    lengths = [row[1:3] for row in rows if row.prompt_len + row.output_len <= MAX_MODEL_LEN]
    if not lengths:
        raise ValueError(f"every request of the trace has more than {MAX_MODEL_LEN} tokens")
    return lengths
