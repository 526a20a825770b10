"""The traditional way behind the engine's own scheduler: one reservation per request, made at admission.

To compare memory management and nothing else, everything else must be the same: the scheduler, the requests,
the clock. So this class answers the questions that the scheduler asks a `BlockManager`, from an arena of
contiguous runs. It knows how long the answers will be, as the paper's Orca (Pow2) and (Oracle) do. There is
no growth beyond a reservation, no sharing and no preemption; a request holds what it was given until it ends.
Chapter 13 (Kwon et al., SOSP'23, sections 3.1 and 6.1).
"""

from __future__ import annotations

from minipaged.block_manager import Copies
from minipaged.block_table import Append
from minipaged.contiguous import Arena, reservation
from minipaged.request import Request, Sequence


class Reserved:
    """The reservation of one sequence, in the place of its block table: `size` slots from `start` on."""

    def __init__(self, arena: Arena, start: int, size: int) -> None:
        self.arena, self.start, self.size = arena, start, size
        self.num_tokens = 0

    def append(self, num_tokens: int) -> Append:
        """The next slots of the run. RuntimeError if it is full: it was meant to hold the whole request."""
        first, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        if self.num_tokens > self.size:
            raise RuntimeError(f"{self.num_tokens} tokens in a reservation of {self.size}")
        return Append(list(range(self.start + first, self.start + self.num_tokens)), [])

    def free(self) -> None:
        self.arena.release(self.start)


class _Slots:
    """What the scheduler asks an allocator."""

    def __init__(self, arena: Arena) -> None:
        self.arena, self.num_blocks = arena, arena.num_slots

    @property
    def num_free(self) -> int:
        return self.arena.num_free


class ContiguousMemory:
    """An arena behind the questions of a scheduler; the unit is a slot, as if blocks had one token.

    >>> scheduler = Scheduler(ContiguousMemory(Buddy(15_700), "oracle", 2048), 2560, 256)
    """

    enable_prefix_caching, block_size = False, 1

    def __init__(self, arena: Arena, policy: str, max_model_len: int) -> None:
        self.arena, self.policy, self.max_model_len = arena, policy, max_model_len
        self.allocator, self.num_blocks = _Slots(arena), arena.num_slots

    def needed(self, request: Request) -> int:
        """Slots that the policy sets aside for a request."""
        assert request.params.max_tokens is not None
        prompt_len = len(request.prompt_token_ids)
        return reservation(self.policy, prompt_len, request.params.max_tokens, self.max_model_len)

    def blocks_to_admit(self, request: Request) -> int:
        """What the request needs, or more than there is if no hole has room for it."""
        size = self.needed(request)
        start = self.arena.reserve(size)
        if start is None:
            return self.num_blocks + 1
        self.arena.release(start)
        return min(size, self.allocator.num_free)  # the buddy system rounds up; it has just said that it fits

    def admit(self, request: Request) -> Copies:
        start = self.arena.reserve(self.needed(request))
        assert start is not None
        request.live[0].table = Reserved(self.arena, start, self.arena.reservations()[start])  # type: ignore[assignment]
        return []

    def fork_ready(self, request: Request) -> None:
        """Nothing forks here."""

    def blocks_needed(self, work: list[tuple[Sequence, int]]) -> int:
        """0, because all that a request will need is set aside already."""
        return 0

    def blocks_promised(self, request: Request) -> int:
        return 0

    def append(self, work: list[tuple[Sequence, int]]) -> list[Append]:
        return [seq.table.append(num_tokens) for seq, num_tokens in work if seq.table is not None]
