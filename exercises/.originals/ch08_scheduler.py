"""Chapter 8: continuous batching.

You write the scheduler: before every step it decides which requests compute how many tokens in it. First, on
plain numbers, what that wins (tasks 1 and 2); then the class that the engine runs (tasks 3 to 6). Every
function has its specification in its docstring, and steps to follow; `raise NotImplementedError` is where
your code goes.

A scheduler takes no block itself: it asks `memory`, a `BlockManager`, which is given, with

* `memory.allocator.num_free`: how many blocks are free now;
* `memory.blocks_to_admit(request)`: how many a waiting request needs for *all* the tokens that it has;
* `memory.blocks_promised(request)`: how many a running one still needs for the tokens that it has, because
  some of them have not been computed yet;
* `memory.admit(request)`: prepares a waiting request to run; returns a list of copies, for `swap_in`;
* `memory.fork_ready(request)`: starts branches of a request that were waiting for their common beginning;
* `memory.blocks_needed(work)` and `memory.append(work)`: how many blocks some work takes, and taking them;
  `append` returns one `Append(slots, copies)` for each entry of `work`;
* `memory.preempt(request, swap)`: takes all blocks of a running request; returns a list of copies, for
  `swap_out`.

A request, given too, has `order`, which is the pair (priority, arrival); `num_seqs`, the number of sequences
that it counts for; `next_tokens(budget)`, its *work*, a list of (sequence, number of tokens): what it would
compute in a step if it had so many tokens to itself (an empty list: nothing); and `finish(reason)`.

`minipaged check ch08` grades this file, `minipaged hint ch08` helps, and
`minipaged demo --use exercises:ch08` serves a real model with what you wrote.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from heapq import heapreplace

from minipaged.block_manager import BlockManager, Copies
from minipaged.errors import check_int
from minipaged.request import Request, Sequence
from minipaged.scheduler import Schedule, Work


def static_timeline(output_lens: SequenceOf[int], max_num_seqs: int) -> list[tuple[int, int]]:
    """When each request runs, if requests are served in batches, one batch after the other.

    Every request needs one step for each of its `output_lens` tokens (each at least 1). At most
    `max_num_seqs` requests run in a step. The first `max_num_seqs` requests are the first batch, and so on;
    the next batch starts when the longest request of this one has had its last step. Returns, for each
    request in order, the pair (its first step, the step after its last). ValueError, with the number, for a
    max_num_seqs below 1. `output_lens` stays as it is.

    >>> static_timeline([3, 5, 2, 4], max_num_seqs=2)
    [(0, 3), (0, 5), (5, 7), (5, 9)]
    """
    # Task 1 ★ two timetables (10 points, about 10 minutes)
    # 1. `check_int("max_num_seqs", max_num_seqs, minimum=1)` refuses what can't be.
    # 2. Go through the requests in slices of max_num_seqs. When does each slice start?
    raise NotImplementedError("ch08_scheduler, task 1: two timetables")


def continuous_timeline(output_lens: SequenceOf[int], max_num_seqs: int) -> list[tuple[int, int]]:
    """When each request runs, if the next one starts in the very step in which a seat has become free.

    As `static_timeline`, but a batch has no end: there are `max_num_seqs` seats, all free from step 0. The
    requests take them in order. A request that has its last step in step 4 leaves a seat that is free from
    step 5 on.

    >>> continuous_timeline([3, 5, 2, 4], max_num_seqs=2)      # the third one takes the first one's seat
    [(0, 3), (0, 5), (3, 5), (5, 9)]
    """
    # Task 1
    # 1. For each seat keep the step from which on it is free.
    # 2. Each request, in order, takes the seat that is free first.
    raise NotImplementedError("ch08_scheduler, task 1: two timetables")


def chunk_sizes(prompt_len: int, num_decoding: int, max_num_batched_tokens: int) -> list[int]:
    """The chunks in which a prompt of `prompt_len` tokens is computed, one a step, while others decode.

    A step computes at most `max_num_batched_tokens` tokens. `num_decoding` sequences take one each, in every
    step, and they come first. The prompt gets the rest. ValueError, with num_decoding and
    max_num_batched_tokens, if there is no rest, since the prompt would never be computed.

    >>> chunk_sizes(20, num_decoding=2, max_num_batched_tokens=8)
    [6, 6, 6, 2]
    """
    # Task 2 ★ a prompt in chunks (5 points, about 5 minutes)
    # 1. How many tokens of a step are left for the prompt? Refuse what can't work.
    # 2. Full chunks of that size, and what remains.
    raise NotImplementedError("ch08_scheduler, task 2: a prompt in chunks")


class Scheduler:
    """Who computes how many tokens in the next step.

    `waiting` and `running` are lists of requests, both in order of `request.order`: a lower priority number
    comes first, and among equals whoever came first. A request is in at most one of them. Only running
    requests hold blocks of the pool. (Both are plain lists, which may be changed from outside.)

    In a step, the sequences compute at most `max_num_batched_tokens` tokens in all, and the requests that run
    count for at most `max_num_seqs` sequences. Running requests come first, in their order; then waiting ones
    are admitted, in theirs, and nobody overtakes the head of the queue.

    Whether and where a request's tokens are sampled, and that it has ended, is the engine's business: it
    calls `remove` for those that have.

    Example: with room for 8 tokens a step, `a` comes with a prompt of 20 tokens and `b` with 5. The steps are
    a 8 · a 8 · a 4, b 4 · a 1, b 1 (and b's prompt is done) · a 1, b 1 · …
    """

    def __init__(
        self,
        memory: BlockManager,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        preemption_mode: str = "recompute",
    ) -> None:
        """A scheduler without requests. preemption_mode: "recompute", or "swap" to a pool in CPU memory.
        Given."""
        self.memory = memory
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.preemption_mode = preemption_mode
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Put a request into `waiting`, at its place in the order of `request.order`.

        Example: the orders (0, 0), (0, 2), (5, 1) wait. A request with order (0, 3) goes behind the second,
        one with order (-1, 4) before the first.
        """
        # Task 3 ★ the queue (10 points, about 5 minutes)
        # 1. Find the place: before the first request whose order is higher. (`insort` with a key does it.)
        raise NotImplementedError("ch08_scheduler, task 3: the queue")

    def remove(self, request: Request) -> None:
        """Forget a request that has ended, whether it waits or runs."""
        # Task 3
        raise NotImplementedError("ch08_scheduler, task 3: the queue")

    def restart(self, requests: Iterable[Request]) -> None:
        """Start anew: exactly these requests wait, in order, and none runs. None of them holds a block.

        The engine calls this when a step has failed half-way, and everything is to be computed again. The
        requests may come in any order, and in a list of the caller's, which stays as it is.
        """
        # Task 3
        raise NotImplementedError("ch08_scheduler, task 3: the queue")

    def schedule(self) -> Schedule:
        """Decide the next step and take its slots: running requests first, then the head of the queue.
        Given.

        A new `Schedule()` has empty lists. `work` gets one `Work(request, sequence, slots)` for each sequence
        that computes something; `copies`, `swap_in` and `swap_out` the copies of blocks that the memory
        asked for; `preempted` the requests that gave way; `out_of_capacity` those that the whole pool can't
        hold.

        In a step in which somebody was preempted nobody is admitted: the blocks are needed by those who run.
        """
        step = Schedule()
        budget = self._schedule_running(step, self.max_num_batched_tokens)
        if self.waiting and not step.preempted:
            self._admit_waiting(step, budget)
        return step

    def _take(self, request: Request, work: list[tuple[Sequence, int]], step: Schedule) -> int:
        """Take the slots for a request's work, and put both into the step; returns its number of tokens.

        Example: with work [(one, 3), (other, 1)], `step.work` gets Work(request, one, slots), with 3 slots,
        and Work(request, other, slots), with 1; `step.copies` gets the copies of both; and 4 is returned.
        """
        # Task 4 ★★ running first, within the budget (15 points, about 10 minutes)
        # 1. `self.memory.append(work)` takes the slots, for all of the work at once: see above.
        # 2. A Work for each sequence, with its slots; and the copies, which must not be lost.
        # 3. How many tokens are these?
        raise NotImplementedError("ch08_scheduler, task 4: running first, within the budget")

    def _schedule_running(self, step: Schedule, budget: int) -> int:
        """Give the running requests, in their order, their tokens of this step. Returns the budget that is
        left.

        What a request computes is `request.next_tokens(budget)`, with what is left of the budget by then: a
        token for one that decodes, and for one whose prompt is not done yet as much of it as the budget
        allows.
        """
        # Task 4
        # For each running request (go through a copy of the list: in task 6 it shrinks on the way):
        # 1. `self.memory.fork_ready(request)`.
        # 2. Its work, within what is left. Without any it is somebody else's turn.
        # 3. `_take` the work; the budget is smaller by its tokens.
        # In task 6 you come back: a request that was preempted in this step is passed over; and before 3,
        # `_make_room` says whether there are blocks for the work.
        raise NotImplementedError("ch08_scheduler, task 4: running first, within the budget")

    def _admit_waiting(self, step: Schedule, budget: int) -> None:
        """Admit waiting requests, from the head of the queue, as long as the head can come in.

        The head is admitted if something is left of the budget, and

        * the sequences that run, with its own, are at most `max_num_seqs` (`request.num_seqs` of each); and
        * there are blocks for *all* of its tokens, not only for the chunk that it begins with:
          `blocks_to_admit` of it is at most what is free and not promised. Promised are, for every running
          request, its `blocks_promised`: not taken yet, but needed for tokens that it has.

        (A prompt that is not done takes all of the budget, so what is promised is mostly 0 when somebody can
        be admitted. Not so after a preemption: of a request with several branches one comes back first, and
        the others follow in later steps. Their blocks must still be there.)

        If the head can't come in, nobody does: no request overtakes it. One exception: if nothing runs, and
        it still lacks blocks, it can never be served. Then `_give_up` ends it, and the next one is the head.

        Whoever is admitted moves to `running`, at its place in the order; `memory.admit` is called for it,
        and what that returns is added to `step.swap_in`; and it gets its first tokens in this step, as many
        as are left of the budget. Its own promises and sequences count for the next in the queue.

        Example: block size 4, 6 blocks, of which `a` holds 4; 8 tokens of the budget are left. `b`, with 12
        tokens, needs 3 blocks, and must wait, although its first 8 would fit into the 2 that are free. `c`,
        with 2 tokens, waits behind it.
        """
        # Task 5 ★★ admission (20 points, about 15 minutes)
        # 1. How many sequences run, and how many blocks are promised?
        # 2. While somebody waits and budget is left, look at the head. Does it come in?
        # 3. If not, stop; or, if nothing runs and it lacks blocks, give it up and look at the next.
        # 4. If it does: move it, admit it, take its first tokens (`next_tokens`, `_take`).
        # 5. Bring all your numbers up to date: budget, sequences, promises.
        raise NotImplementedError("ch08_scheduler, task 5: admission")

    def preempt(self, request: Request, swap: bool = False) -> Copies:
        """Take a running request's blocks; it waits again, at its place in the order. Returns the copies that
        `memory.preempt` asked for.

        It keeps its output: later it goes on where it was. Being older than those who came after it, it waits
        before them.
        """
        # Task 6 ★★ make room (20 points, about 15 minutes)
        # 1. `self.memory.preempt(request, swap)`.
        # 2. It does not run any more, and waits.
        raise NotImplementedError("ch08_scheduler, task 6: make room")

    def _make_room(self, request: Request, work: list[tuple[Sequence, int]], step: Schedule) -> bool:
        """Preempt others until there are blocks for a running request's work; whether there are now.

        As long as `memory.blocks_needed(work)` is more than what is free, a victim is chosen among this
        request and those that run after it (the ones before it have their slots already):
        `self.memory.parts.preemption.choose_victim(orders)` takes their `order`s, a list of pairs, and
        returns the index of the one that gives way: the last in that order. The victim is preempted (by
        swapping if `preemption_mode` is "swap"); `step.preempted` gets it, `step.swap_out` the copies.

        False if the victim is this request itself. False, too, if it runs alone and still lacks blocks: the
        whole pool can't hold it, and `_give_up` ends it, without a preemption.

        Example: 3 blocks of 4 tokens, all in use: `a` (4 tokens, 1 block), then `b` (8 tokens, 2 blocks). `a`
        needs a second block for its next token, so `b` is preempted, and `a` has its slot in this very step.
        """
        # Task 6
        # 1. While blocks are lacking: does it run alone? Then give it up.
        # 2. Choose the victim, preempt it, and note it in the step.
        # 3. Was it the request itself?
        # And go back to `_schedule_running`, twice.
        raise NotImplementedError("ch08_scheduler, task 6: make room")

    def _give_up(self, request: Request, step: Schedule) -> None:
        """End a request that the whole pool can't hold, and tell the engine. Given."""
        request.finish("capacity")
        self.remove(request)
        step.out_of_capacity.append(request)


class AgingScheduler(Scheduler):
    """A challenge: priorities under which nobody waits for ever.

    With `Scheduler`, a request of priority 1 is not served as long as requests of priority 0 keep coming.
    Here a request gains in priority while it waits: `request.priority` falls by 1 each time it has been left
    waiting by `patience` steps. It keeps what it has gained when it runs, and when it is preempted.

    Example, with patience 2 and one seat: `low` (priority 1) waits while requests of priority 0 come in each
    step. After two steps its priority is 0, and it is the oldest of that priority: it is the next one.
    """

    def __init__(
        self,
        memory: BlockManager,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        preemption_mode: str = "recompute",
        patience: int = 8,
    ) -> None:
        """As `Scheduler`. ValueError, with the number, for a patience below 1."""
        # Task 7 ★★★ priorities without starvation (20 points, about 20 minutes)
        # 1. Let `super().__init__` do the rest; and remember how many steps each request has waited.
        raise NotImplementedError("ch08_scheduler, task 7: priorities without starvation")

    def schedule(self) -> Schedule:
        """Decide the next step as `Scheduler` does; after that, those who still wait grow older.

        Every request that is in `waiting` when the step has been decided, a preempted one too, has waited one
        step more. Steps are counted over its whole life: running in between neither counts nor sets the count
        back. Each time the count is a multiple of `patience`, its priority falls by 1, and `waiting` is in
        order again when this method returns.
        """
        # Task 7
        # 1. Decide the step.
        # 2. Count for those who wait; who has waited long enough gains.
        # 3. Put the queue in order. (`order` follows from the priority.)
        raise NotImplementedError("ch08_scheduler, task 7: priorities without starvation")

    def remove(self, request: Request) -> None:
        """Forget a request that has ended, and how long it has waited."""
        # Task 7
        raise NotImplementedError("ch08_scheduler, task 7: priorities without starvation")
