"""Chapter 8's grader: continuous batching. `minipaged check ch08` runs it on exercises/ch08_scheduler.py.

A scheduler is driven by `DryEngine`: the package's block manager and its requests, without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Replay, Step, Task, expect, expect_error

DRY_ENGINE = "minipaged.course.chapters.ch08_scheduler.dry_engine"
TASKS = (
    Task(
        1, "two timetables", stars=1, points=10, minutes=10,
        hints=(
            "Static: `output_lens[first : first + max_num_seqs]` is a batch. It starts when the batch before "
            "it has ended, which is after as many steps as its longest request has tokens.",
            "Continuous: free_from = [0] * max_num_seqs, one entry for each seat. A request starts at "
            "min(free_from).",
            "Then that seat's entry becomes start + output_len: "
            "`free_from[free_from.index(start)] = start + output_len`, or a heap.",
        ),
        compare="the one line of the static timetable in which everybody waits for the longest",
    ),
    Task(
        2, "a prompt in chunks", stars=1, points=5, minutes=5,
        hints=(
            "The prompt gets max_num_batched_tokens - num_decoding tokens in each step but perhaps the last.",
            "`range(0, prompt_len, room)` gives the tokens that are done before each chunk.",
        ),
        compare="how the last chunk comes out right without an if",
    ),
    Task(
        3, "the queue", stars=1, points=10, minutes=5,
        hints=(
            "`request.order` is a pair. Python compares pairs by the first number, and by the second among "
            "equals: just what is needed.",
            "`insort(self.waiting, request, key=lambda waiting: waiting.order)` inserts at the right place.",
            "restart gets any iterable, in any order: `sorted(requests, key=lambda request: request.order)`.",
        ),
        compare="why a request is put in by its order and not at the end",
    ),
    Task(
        4, "running first, within the budget", stars=2, points=15, minutes=10,
        hints=(
            "_take: `self.memory.append(work)` gives a list with one Append(slots, copies) for each entry of "
            "the work; go through both with zip.",
            "_schedule_running: each request is asked with what is *left* of the budget, and what it takes "
            "makes the budget smaller for those behind it.",
            "for request in list(self.running): fork_ready; work = request.next_tokens(budget); "
            "if work: budget -= self._take(request, work, step). At the end: return budget.",
        ),
        compare="that the loop itself knows nothing of prefill and decode: next_tokens does",
    ),
    Task(
        5, "admission", stars=2, points=20, minutes=15,
        hints=(
            "Two sums before the loop: num_seqs and blocks_promised of all that run. Both grow with every "
            "request that you admit.",
            "The blocks that the head may have are `self.memory.allocator.num_free - promised`.",
            "Admitting is: out of waiting, into running by its order, step.swap_in += self.memory.admit("
            "request), budget -= self._take(request, request.next_tokens(budget), step). Only then ask for "
            "its blocks_promised.",
        ),
        compare="what is asked before a request is admitted, and what only after it",
    ),
    Task(
        6, "make room", stars=2, points=20, minutes=15,
        hints=(
            "One victim may not be enough: it is a loop, and every time round it asks blocks_needed and "
            "num_free anew.",
            "The candidates are `self.running[self.running.index(request):]`. If the victim is the request "
            "itself, its work is void: return False at once.",
            "In _schedule_running: `if request in step.preempted: continue`, and "
            "`if work and self._make_room(request, work, step):` before _take.",
        ),
        compare="the two ways in which the request itself does not get its slots, and why only one of them "
        "ends it",
    ),
    Task(
        7, "priorities without starvation", stars=3, points=20, minutes=20,
        hints=(
            "Who waits when the step has been decided? `self.waiting`, after `super().schedule()`.",
            "A Counter from requests to steps waited. Every multiple of patience: request.priority -= 1.",
            "`order` is computed from the priority each time, so `self.waiting.sort(key=lambda request: "
            "request.order)` puts everybody at their new place.",
        ),
        compare="why the request's own number changes, and not one that is kept beside it",
    ),
)


NOT_STATIC = "a seat was taken before the whole batch had ended"
NOT_CONTINUOUS = "a free seat stayed empty until the whole batch had ended: that is static batching"
ROUND_ROBIN = "the seats were taken in turn: a request takes the one that is free first"
DECODES_FORGOTTEN = "the tokens of those who decode were forgotten: they come out of the same budget"
EVEN = "the prompt was cut into equal parts: every chunk but the last fills what is left of the budget"
PRIORITY_IGNORED = "the priority was ignored: only the order of arrival counted"
HIGH_FIRST = "a higher number was put first: the lower the number, the earlier"
AT_THE_END = "the request was put at the end of the queue, although it is older than others there"
STILL_RUNNING = "requests are still running after a restart"
OVER_BUDGET = "more tokens were computed than max_num_batched_tokens allows"
NO_CHUNK = "a prompt waited until it fits into one step: it is computed in chunks"
COPIES_LOST = "the copies that the memory asked for were lost: somebody will read a block that nobody filled"
NO_FORK = "fork_ready was not called, and a branch waits for ever for its beginning"
EMPTY_WORK = "a request that computes nothing got an entry in the step's work"
TOO_MANY_SEQS = "more sequences run than max_num_seqs allows"
BRANCHES = "a request with several branches was counted as one sequence"
OVERTAKEN = "a request overtook the head of the queue"
ONLY_A_CHUNK = "a request was admitted when its first chunk fitted: all of its tokens must"
PROMISES = "blocks were given away that are promised to a running request's prompt"
NOT_LEFT = "the last block or seat was not given, although it was free"
GIVEN_UP_EARLY = "a request was given up while others run, whose blocks will become free"
NEVER_GIVEN_UP = "a request that the empty pool can't hold blocks the queue"
SWAP_IN_LOST = "the copies that swap a request in were lost"
NOT_IN_ORDER = "running is not in the order of (priority, arrival)"
NOBODY_ADMITTED = "nobody was admitted, although there was room"
WRONG_VICTIM = "the wrong request gave way: it is the last in the order of (priority, arrival)"
EARLIER_VICTIM = "a request gave way that has its slots of this step already"
ADMITTED_TOO = "somebody was admitted in a step in which another was preempted"
NOT_NOTED = "the preempted request is missing in step.preempted"
LOST_REQUEST = "a preempted request was lost: it must wait again"
PREEMPTED_ALONE = "a request that runs alone was preempted: nobody else has blocks, and it is given up"
NEVER_AGES = "a request that waits does not gain: as long as others keep coming, it starves"
SET_BACK = "running, or being preempted, set the count of waited steps back"
COUNTS_RUNNING = "a step in which the request ran was counted as one that it waited"
NOT_SORTED = "the priorities changed, and the queue is still in the old order"
BEFORE_STEP = "who is admitted in this very step was counted as waiting"


@dataclass
class ModelRequest:
    """known: its tokens, prompt and output; stored: those that have a slot; left: tokens still to come."""

    name: str
    priority: int
    arrival: int
    known: int
    left: int
    stored: int = 0
    waited: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.arrival


class ModelScheduler:
    """What a scheduler should do, in numbers alone: one sequence a request, no prefix cache, no swap."""

    def __init__(
        self, num_blocks: int, block_size: int, max_tokens: int, max_seqs: int, patience: int = 0
    ) -> None:
        self.num_blocks, self.block_size, self.patience = num_blocks, block_size, patience
        self.max_tokens, self.max_seqs = max_tokens, max_seqs
        self.waiting: list[ModelRequest] = []
        self.running: list[ModelRequest] = []
        self.num_added = 0

    def blocks(self, num_tokens: int) -> int:
        return len({position // self.block_size for position in range(num_tokens)})

    def num_free(self) -> int:
        return self.num_blocks - sum(self.blocks(request.stored) for request in self.running)

    def state(self) -> dict[str, Any]:
        waiting, running = (sorted(queue, key=lambda r: r.order) for queue in (self.waiting, self.running))
        return {
            "waiting": [request.name for request in waiting],
            "running": [request.name for request in running],
            "stored": {request.name: request.stored for request in running},
            "free blocks": self.num_free(),
        }

    def add(self, name: str, prompt_len: int, max_tokens: int, priority: int) -> None:
        self.waiting.append(ModelRequest(name, priority, self.num_added, prompt_len, max_tokens))
        self.num_added += 1

    def abort(self, name: str) -> None:
        self.waiting = [request for request in self.waiting if request.name != name]
        self.running = [request for request in self.running if request.name != name]

    def step(self) -> dict[str, Any]:
        tokens: dict[str, int] = {}
        preempted: list[str] = []
        given_up: list[str] = []
        for request in sorted(self.running, key=lambda r: r.order):
            num = min(request.known - request.stored, self.max_tokens - sum(tokens.values()))
            if request in self.running and num and self._make_room(request, num, preempted, given_up):
                request.stored += num
                tokens[request.name] = num
        while not preempted and self._admit_head(tokens, given_up):
            pass
        for request in list(self.running):
            if request.name in tokens and request.stored == request.known:
                request.known, request.left = request.known + 1, request.left - 1
                if request.left == 0:
                    self.running.remove(request)
        for request in self.waiting if self.patience else ():
            request.waited += 1
            request.priority -= request.waited % self.patience == 0
        return {"tokens": tokens, "preempted": preempted, "out_of_capacity": given_up}

    def _make_room(self, request: ModelRequest, num: int, preempted: list[str], given_up: list[str]) -> bool:
        while self.blocks(request.stored + num) - self.blocks(request.stored) > self.num_free():
            victim = max(self.running, key=lambda r: r.order)
            self.running.remove(victim)
            if victim is request and not self.running:
                given_up.append(request.name)
                return False
            victim.stored = 0
            self.waiting.append(victim)
            preempted.append(victim.name)
            if victim is request:
                return False
        return True

    def _admit_head(self, tokens: dict[str, int], given_up: list[str]) -> bool:
        budget = self.max_tokens - sum(tokens.values())
        if not self.waiting or budget == 0 or len(self.running) == self.max_seqs:
            return False
        head = min(self.waiting, key=lambda r: r.order)
        needed = sum(self.blocks(request.known) for request in [*self.running, head])
        if needed > self.num_blocks and self.running:
            return False
        self.waiting.remove(head)
        if needed > self.num_blocks:
            given_up.append(head.name)
        else:
            self.running.append(head)
            head.stored = tokens[head.name] = min(head.known, budget)
        return True


def dry(layer: Layer, **options: Any) -> Any:
    """A dry engine with the layer's scheduler; roomy unless told otherwise."""
    options = {"num_blocks": 64, "block_size": 4} | options
    return layer.given(DRY_ENGINE).DryEngine(layer.Scheduler, **options)


def expect_steps(what: str, engine: Any, expected: list[dict[str, int]], *mistakes: tuple[Any, str]) -> None:
    """The tokens of the next steps, one step after the other; a mistake is a wrong list of them."""
    got = [engine.step()["tokens"] for _ in expected]
    expect(f"the tokens of {len(expected)} steps, {what}", got, expected, list(mistakes))


def decided(step: dict[str, Any]) -> dict[str, Any]:
    """What the model predicts of a step; all slots of a step must be different, too."""
    slots = step["slots"]
    expect("how many different slots a step writes", len(set(slots)), len(slots))
    return {name: step[name] for name in ("tokens", "preempted", "out_of_capacity")}


class Subject:
    """A scheduler under test in a dry engine, and a replay that compares it with the model."""

    def __init__(self, engine: Any, model: ModelScheduler, setup: str) -> None:
        self.engine, self.model = engine, model
        self.replay = Replay(
            setup, lambda: dict(engine.state()), model.state, draw=draw, name_mistake=name_mistake
        )

    def add(self, prompt_len: int, max_tokens: int, priority: int) -> None:
        args = (chr(97 + self.model.num_added), prompt_len, max_tokens, priority)
        call = f'add("{args[0]}", prompt_len={prompt_len}, max_tokens={max_tokens}, priority={priority})'
        self.replay.step(call, lambda: self.engine.add(*args), lambda: self.model.add(*args))

    def step(self) -> None:
        self.replay.step("step()", lambda: decided(self.engine.step()), self.model.step)

    def abort(self, which: int) -> None:
        names = [request.name for request in [*self.model.running, *self.model.waiting]]
        if names:
            name = names[which % len(names)]
            call = f'abort("{name}")'
            self.replay.step(call, lambda: self.engine.abort(name), lambda: self.model.abort(name))

    def run(self, ops: list[tuple[Any, ...]]) -> None:
        for kind, *args in ops:
            {"add": self.add, "step": self.step, "abort": self.abort}[kind](*args)


def draw(state: dict[str, Any]) -> str:
    running = ", ".join(f"{name} ({state['stored'].get(name, 0)} tokens stored)" for name in state["running"])
    waiting = " → ".join(state["waiting"])
    return f"running: {running or '–'}\nwaiting: {waiting or '–'}\nfree blocks: {state['free blocks']}"


def name_mistake(step: Step) -> str | None:
    """The known mistake that a wrong step shows."""
    wanted, came = step.expected_state, step.state
    if step.operation != "step()" or step.got.error is not None:
        return None
    ours, theirs = step.got.value, step.expected.value
    assert isinstance(ours, dict) and isinstance(theirs, dict)
    if 0 in ours["tokens"].values():
        return EMPTY_WORK
    if theirs["preempted"] and set(ours["tokens"]) - set(theirs["tokens"]) & set(came["running"]):
        return ADMITTED_TOO if not set(theirs["preempted"]) & set(ours["tokens"]) else None
    if theirs["preempted"] and ours["preempted"] and ours["preempted"] != theirs["preempted"]:
        return WRONG_VICTIM
    if set(came["running"]) - set(wanted["running"]) and not theirs["preempted"]:
        entered = set(came["running"]) - set(wanted["running"])
        ahead = [name for name in wanted["waiting"] if name not in entered]
        skipped = wanted["waiting"] and wanted["waiting"][0] in ahead
        return OVERTAKEN if skipped else PROMISES
    if sorted(came["running"]) == sorted(wanted["running"]) and came["running"] != wanted["running"]:
        return NOT_IN_ORDER
    return None


# -- task 1: two timetables ------------------------------------------------------------------------


def timetable(output_lens: list[int], seats: int, static: bool) -> list[tuple[int, int]]:
    """Step by step: who may enter enters, and everybody who runs has one token less to go."""
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    running: list[int] = []
    step = 0
    while len(end) < len(output_lens):
        may_enter = not running or not static
        while may_enter and len(running) < seats and len(begin) < len(output_lens):
            running.append(len(begin))
            begin[running[-1]] = step
        step += 1
        for which in list(running):
            if step - begin[which] == output_lens[which]:
                running.remove(which)
                end[which] = step
    return [(begin[which], end[which]) for which in range(len(output_lens))]


@pytest.mark.task(1)
def test_a_static_batch_waits_for_its_longest_request(layer: Layer) -> None:
    got = layer.static_timeline([3, 5, 2, 4], 2)
    wrong = [([(0, 3), (0, 5), (3, 5), (5, 9)], NOT_STATIC)]
    expect("static_timeline([3, 5, 2, 4], 2)", got, [(0, 3), (0, 5), (5, 7), (5, 9)], wrong)
    got = layer.static_timeline([5, 1, 1, 2, 3], 2)
    wrong = [([(0, 5), (0, 1), (1, 2), (2, 4), (4, 7)], NOT_STATIC)]
    expect("static_timeline([5, 1, 1, 2, 3], 2)", got, [(0, 5), (0, 1), (5, 6), (5, 7), (7, 10)], wrong)


@pytest.mark.task(1)
def test_a_free_seat_is_taken_in_the_next_step(layer: Layer) -> None:
    got = layer.continuous_timeline([3, 5, 2, 4], 2)
    wrong = [
        ([(0, 3), (0, 5), (5, 7), (5, 9)], NOT_CONTINUOUS),
        (
            [(0, 3), (0, 5), (4, 6), (6, 10)],
            "a step lies between the end of one request and the next one's begin",
        ),
    ]
    expect("continuous_timeline([3, 5, 2, 4], 2)", got, [(0, 3), (0, 5), (3, 5), (5, 9)], wrong)
    got = layer.continuous_timeline([4, 1, 1, 1, 6], 2)
    wrong = [([(0, 4), (0, 1), (4, 5), (1, 2), (5, 11)], ROUND_ROBIN)]
    expect("continuous_timeline([4, 1, 1, 1, 6], 2)", got, [(0, 4), (0, 1), (1, 2), (2, 3), (3, 9)], wrong)


@pytest.mark.task(1)
@pytest.mark.parametrize("name", ["static_timeline", "continuous_timeline"])
def test_few_requests_many_seats_and_none(layer: Layer, name: str) -> None:
    timeline = getattr(layer, name)
    expect(f"{name}([], 3)", timeline([], 3), [])
    expect(f"{name}([2, 7], 5)", timeline([2, 7], 5), [(0, 2), (0, 7)])
    expect(f"{name}([2, 7, 1], 1)", timeline([2, 7, 1], 1), [(0, 2), (2, 9), (9, 10)])
    expect_error(f"{name}([2], 0)", ValueError, lambda: timeline([2], 0), numbers=[0])
    expect_error(f"{name}([2], -1)", ValueError, lambda: timeline([2], -1), numbers=[-1])


@pytest.mark.task(1)
@settings(max_examples=40)
@given(lens=st.lists(st.integers(1, 6), max_size=9), seats=st.integers(1, 4))
def test_any_requests_and_seats(layer: Layer, lens: list[int], seats: int) -> None:
    for name in ("static_timeline", "continuous_timeline"):
        right = timetable(lens, seats, static=name == "static_timeline")
        other = timetable(lens, seats, static=name != "static_timeline")
        mistake = NOT_STATIC if name == "static_timeline" else NOT_CONTINUOUS
        expect(f"{name}({lens}, {seats})", getattr(layer, name)(lens, seats), right, [(other, mistake)])


@pytest.mark.task(1)
@pytest.mark.parametrize("name", ["static_timeline", "continuous_timeline"])
def test_the_lengths_stay_with_the_caller(layer: Layer, name: str) -> None:
    lens = [3, 1, 2]
    getattr(layer, name)(lens, 2)
    changed = "what the caller passed in was changed"
    expect(
        f"output_lens after {name}", lens, [3, 1, 2], [(seen, changed) for seen in ([], [1, 2, 3], [0, 0, 0])]
    )


# -- task 2: chunks --------------------------------------------------------------------------------


@pytest.mark.task(2)
def test_a_prompt_takes_what_the_others_leave(layer: Layer) -> None:
    wrong = [([8, 8, 4], DECODES_FORGOTTEN), ([5, 5, 5, 5], EVEN)]
    expect("chunk_sizes(20, 2, 8)", layer.chunk_sizes(20, 2, 8), [6, 6, 6, 2], wrong)
    expect("chunk_sizes(12, 2, 8)", layer.chunk_sizes(12, 2, 8), [6, 6], [([6, 6, 0], "an empty last chunk")])
    expect("chunk_sizes(13, 2, 8)", layer.chunk_sizes(13, 2, 8), [6, 6, 1])
    expect("chunk_sizes(3, 7, 8)", layer.chunk_sizes(3, 7, 8), [1, 1, 1])


@pytest.mark.task(2)
def test_a_prompt_alone_has_the_whole_budget(layer: Layer) -> None:
    for prompt_len, expected in ((7, [7]), (8, [8]), (9, [8, 1])):
        expect(f"chunk_sizes({prompt_len}, 0, 8)", layer.chunk_sizes(prompt_len, 0, 8), expected)


@pytest.mark.task(2)
@pytest.mark.parametrize("num_decoding", [8, 11])
def test_without_room_a_prompt_would_wait_for_ever(layer: Layer, num_decoding: int) -> None:
    what = f"chunk_sizes(5, {num_decoding}, 8)"
    expect_error(what, ValueError, lambda: layer.chunk_sizes(5, num_decoding, 8), [num_decoding, 8])


# -- task 3: the queue -----------------------------------------------------------------------------


@pytest.mark.task(3)
def test_requests_wait_in_the_order_of_their_arrival(layer: Layer) -> None:
    engine = dry(layer)
    for name in "abc":
        engine.add(name, 3)
    wrong = [(["c", "b", "a"], "the last one that came was put first")]
    expect("waiting, after a, b and c came", engine.state()["waiting"], ["a", "b", "c"], wrong)


@pytest.mark.task(3)
def test_a_lower_priority_number_waits_before_a_higher_one(layer: Layer) -> None:
    engine = dry(layer)
    priorities = {"a": 0, "b": 5, "c": 0, "d": -1, "e": 5}
    for name, priority in priorities.items():
        engine.add(name, 3, priority=priority)
    wrong = [(["a", "b", "c", "d", "e"], PRIORITY_IGNORED), (["b", "e", "a", "c", "d"], HIGH_FIRST),
             (["d", "c", "a", "e", "b"], "among equals, the last one that came was put first")]
    what = f"waiting, after {priorities} came"
    expect(what, engine.state()["waiting"], ["d", "a", "c", "b", "e"], wrong)


@pytest.mark.task(3)
def test_an_older_request_is_put_before_younger_ones(layer: Layer) -> None:
    engine = dry(layer)
    for name, arrival in (("c", 2), ("d", 3), ("a", 0), ("b", 1)):
        engine.add(name, 3, arrival=arrival)
    wrong = [(["c", "d", "a", "b"], AT_THE_END), (["b", "a", "c", "d"], "it was put at the head")]
    what = "waiting, after c, d, and then a and b came back, who are older"
    expect(what, engine.state()["waiting"], ["a", "b", "c", "d"], wrong)


@pytest.mark.task(3)
def test_an_ended_request_is_forgotten_wherever_it_is(layer: Layer) -> None:
    engine = dry(layer)
    for name in "ab":
        engine.seat(name, 3)
    for name in "cd":
        engine.add(name, 3)
    engine.abort("a")
    engine.abort("d")
    state = engine.state()
    got = [state["running"], state["waiting"]]
    expect("running and waiting, after a (which ran) and d (which waited) ended", got, [["b"], ["c"]])


@pytest.mark.task(3)
def test_after_a_restart_everybody_waits_in_order(layer: Layer) -> None:
    engine = dry(layer)
    engine.seat("a", 3)
    engine.seat("b", 3, priority=1)
    for name in "cd":
        engine.add(name, 3)
    engine.restart(["d", "b", "a"])
    state = engine.state()
    got = [state["running"], state["waiting"]]
    wrong = [
        ([[], ["d", "b", "a"]], "the requests were taken in the order given, not in their own"),
        ([["a", "b"], ["a", "d", "b"]], STILL_RUNNING),
        ([[], ["a", "c", "d", "b"]], "who waited before is still there"),
    ]
    what = "running and waiting, after restart of d, b (priority 1) and a"
    expect(what, got, [[], ["a", "d", "b"]], wrong)


@pytest.mark.task(3)
def test_a_restart_takes_a_list_and_leaves_it_alone(layer: Layer) -> None:
    engine = dry(layer)
    for name in "abc":
        engine.add(name, 3)
    requests = [engine.requests[name] for name in "cab"]
    engine.scheduler.restart(requests)
    expect("waiting, after restart of [c, a, b]", engine.state()["waiting"], ["a", "b", "c"])
    engine.add("d", 3)
    names = [request.request_id for request in requests]
    wrong = "the caller's list became the queue: it was sorted, and grows and shrinks with it"
    what = "the list that was passed to restart, after d came"
    expect(what, names, ["c", "a", "b"], [(["a", "b", "c"], wrong), (["a", "b", "c", "d"], wrong)])


# -- task 4: running requests ----------------------------------------------------------------------


@pytest.mark.task(4)
def test_a_prompt_is_computed_and_then_a_token_a_step(layer: Layer) -> None:
    engine = dry(layer)
    engine.seat("a", 9, max_tokens=3)
    expect_steps("of a with 9 tokens, alone", engine, [{"a": 9}, {"a": 1}, {"a": 1}, {}])


@pytest.mark.task(4)
def test_the_slots_are_those_that_the_memory_gave(layer: Layer) -> None:
    engine = dry(layer, num_blocks=8)
    engine.seat("a", 5)
    engine.seat("b", 2)
    expect("the slots of a's 5 tokens and b's 2, blocks of 4", engine.step()["slots"], [0, 1, 2, 3, 4, 8, 9])
    expect("the slots of the next step", engine.step()["slots"], [5, 10])


@pytest.mark.task(4)
def test_who_comes_later_gets_what_is_left_of_the_budget(layer: Layer) -> None:
    engine = dry(layer, max_num_batched_tokens=8)
    engine.seat("a", 5)
    engine.seat("b", 6)
    steps = [{"a": 5, "b": 3}, {"a": 1, "b": 3}, {"a": 1, "b": 1}]
    over = [{"a": 5, "b": 6}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    whole = [{"a": 5}, {"a": 1, "b": 6}, {"a": 1, "b": 1}]
    what = "of a (5) and b (6), 8 tokens a step"
    expect_steps(what, engine, steps, (over, OVER_BUDGET), (whole, NO_CHUNK))


@pytest.mark.task(4)
def test_when_the_budget_is_used_up_nobody_else_computes(layer: Layer) -> None:
    engine = dry(layer, max_num_batched_tokens=8)
    for name, prompt_len in (("a", 8), ("b", 2), ("c", 3)):
        engine.seat(name, prompt_len)
    first = {"a": 8, "b": 0, "c": 0}
    steps = [{"a": 8}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 1, "c": 1}]
    what = "of a (8), b (2) and c (3), 8 tokens a step"
    expect_steps(what, engine, steps, ([first, *steps[1:]], EMPTY_WORK))


@pytest.mark.task(4)
def test_branches_are_computed_together_and_their_copies_are_kept(layer: Layer) -> None:
    engine = dry(layer, num_blocks=8)
    engine.seat("a", 5, n=3)
    expect("the tokens of a's prompt of 5", engine.step()["tokens"], {"a": 5})
    step = engine.step()
    expect("the tokens of its three branches", step["tokens"], {"a": 3})
    what = "the copies of the step in which three branches write into one shared block"
    expect(what, step["copies"], [(1, 2), (1, 3)], [([], COPIES_LOST), ([(1, 2)], COPIES_LOST)])
    expect("its slots", step["slots"], [9, 13, 5])


@pytest.mark.task(4)
def test_branches_that_do_not_all_fit_leave_the_budget_to_others(layer: Layer) -> None:
    engine = dry(layer, max_num_batched_tokens=6)
    for name, n in (("a", 2), ("b", 3), ("c", 1)):
        engine.seat(name, 2, n=n)
    steps = [{"a": 2, "b": 2, "c": 2}, {"a": 2, "b": 3, "c": 1}]
    expect_steps("of a (n=2), b (n=3), c (n=1), prompts of 2, 6 tokens a step", engine, steps)
    engine = dry(layer, max_num_batched_tokens=4)
    for name, n in (("a", 2), ("b", 3), ("c", 1)):
        engine.seat(name, 1, n=n)
    steps = [{"a": 1, "b": 1, "c": 1}, {"a": 2, "c": 1}]
    expect_steps("the same with prompts of 1, 4 tokens a step: b's three don't fit", engine, steps)


@pytest.mark.task(4)
def test_branches_that_lost_their_blocks_start_again_from_their_common_beginning(layer: Layer) -> None:
    engine = dry(layer)
    engine.seat("a", 5, n=2)
    for _ in range(3):
        engine.step()
    engine.seat_again("a")
    steps = [{"a": 7}, {"a": 2}, {"a": 2}]
    stuck = [{"a": 7}, {}, {}]
    what = "of a (n=2, 5 tokens of prompt, 3 of output each), computed again"
    expect_steps(what, engine, steps, (stuck, NO_FORK))


# -- task 5: admission -----------------------------------------------------------------------------


@pytest.mark.task(5)
def test_a_request_enters_while_others_decode(layer: Layer) -> None:
    engine = dry(layer)
    engine.add("a", 5)
    expect_steps("of a (5)", engine, [{"a": 5}])
    engine.add("b", 7, max_tokens=2)
    steps = [{"a": 1, "b": 7}, {"a": 1, "b": 1}, {"a": 1}]
    waited = [{"a": 1}, {"a": 1}, {"a": 1}]
    what = "after b (7 tokens, 2 of output) came"
    expect_steps(what, engine, steps, (waited, NOBODY_ADMITTED))


@pytest.mark.task(5)
def test_a_prompt_is_cut_to_what_the_running_ones_leave(layer: Layer) -> None:
    engine = dry(layer, max_num_batched_tokens=8)
    engine.add("a", 20)
    engine.add("b", 5)
    steps = [{"a": 8}, {"a": 8}, {"a": 4, "b": 4}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    over = [{"a": 8, "b": 5}, {"a": 8, "b": 1}, {"a": 4, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    expect_steps("of a (20) and b (5), 8 tokens a step", engine, steps, (over, OVER_BUDGET))


@pytest.mark.task(5)
def test_without_budget_nobody_is_admitted(layer: Layer) -> None:
    engine = dry(layer, max_num_batched_tokens=8)
    engine.add("a", 8)
    engine.add("b", 3)
    step = engine.step()
    wrong = [({"a": 8, "b": 0}, EMPTY_WORK), ({"a": 8, "b": 3}, OVER_BUDGET)]
    expect(
        "the tokens of the first step of a (8) and b (3), 8 tokens a step", step["tokens"], {"a": 8}, wrong
    )
    wrong = [([], "it was admitted without any budget left")]
    expect("who waits after it", engine.state()["waiting"], ["b"], wrong)


@pytest.mark.task(5)
def test_no_more_sequences_run_than_allowed(layer: Layer) -> None:
    engine = dry(layer, max_num_seqs=2)
    for name in "abc":
        engine.add(name, 3, max_tokens=2)
    steps = [{"a": 3, "b": 3}, {"a": 1, "b": 1}, {"c": 3}]
    wrong = (
        ([{"a": 3, "b": 3, "c": 3}, {"a": 1, "b": 1, "c": 1}, {}], TOO_MANY_SEQS),
        ([{"a": 3}, {"a": 1}, {"b": 3}], NOT_LEFT),
    )
    expect_steps("of a, b, c (3 tokens, 2 of output), 2 sequences at most", engine, steps, *wrong)


@pytest.mark.task(5)
def test_every_branch_counts_as_a_sequence_and_nobody_overtakes_those_who_wait_for_seats(
    layer: Layer,
) -> None:
    engine = dry(layer, max_num_seqs=4)
    for name, n in (("a", 3), ("b", 2), ("c", 1)):
        engine.add(name, 2, max_tokens=2, n=n)
    steps = [{"a": 2}, {"a": 3}, {"b": 2, "c": 2}]
    wrong = (
        ([{"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 2, "c": 1}, {}], BRANCHES),
        ([{"a": 2, "c": 2}, {"a": 3, "c": 1}, {"b": 2}], OVERTAKEN),
    )
    expect_steps("of a (n=3), b (n=2), c (n=1), 4 sequences at most", engine, steps, *wrong)


@pytest.mark.task(5)
def test_nobody_is_given_up_while_others_run(layer: Layer) -> None:
    engine = dry(layer, num_blocks=6)
    engine.add("a", 16, max_tokens=2)
    engine.step()
    engine.add("big", 12, max_tokens=2)
    step = engine.step()
    what = "given up, when big needs 3 blocks and a holds 5 of 6"
    expect(what, step["out_of_capacity"], [], [(["big"], GIVEN_UP_EARLY)])
    expect("the tokens of the next step, when a has ended", engine.step()["tokens"], {"big": 12})


@pytest.mark.task(5)
def test_nobody_overtakes_a_head_that_lacks_blocks(layer: Layer) -> None:
    engine = dry(layer, num_blocks=6)
    engine.add("a", 16, max_tokens=3)
    engine.step()
    engine.add("big", 12, max_tokens=2)
    engine.add("small", 2)
    steps = [{"a": 1}, {"a": 1}, {"big": 12, "small": 2}]
    wrong = ([{"a": 1, "small": 2}, {"a": 1, "small": 1}, {"big": 12, "small": 1}], OVERTAKEN)
    what = "after big (3 blocks) and small (1 block) came, while a holds 5 of 6 blocks"
    expect_steps(what, engine, steps, wrong)


@pytest.mark.task(5)
def test_a_request_that_takes_exactly_what_is_free_is_admitted(layer: Layer) -> None:
    engine = dry(layer, num_blocks=3)
    engine.add("a", 4, max_tokens=1)
    engine.add("b", 8, max_tokens=1)
    wrong = ([{"a": 4}], NOT_LEFT)
    expect_steps("of a (1 block) and b (2), 3 blocks in all", engine, [{"a": 4, "b": 8}], wrong)


@pytest.mark.task(5)
def test_the_whole_prompt_must_fit_and_promised_blocks_are_not_given_away(layer: Layer) -> None:
    engine = dry(layer, num_blocks=6, max_num_batched_tokens=6)
    engine.add("a", 12, max_tokens=2)
    engine.add("b", 16, max_tokens=1)
    engine.add("c", 2)
    expect_steps("of a (12), b (16), c (2), 6 tokens a step", engine, [{"a": 6}, {"a": 6}])
    state = engine.state()["waiting"]
    wrong = [(["b"], OVERTAKEN), (["c"], ONLY_A_CHUNK)]
    expect("who waits after them: b needs 4 blocks, 3 are free", state, ["b", "c"], wrong)
    step = engine.step()["tokens"]
    wrong = [({"a": 1, "b": 5}, ONLY_A_CHUNK), ({"a": 1, "c": 2}, OVERTAKEN)]
    expect("the tokens of the next step", step, {"a": 1}, wrong)
    expect_steps("after a has ended", engine, [{"b": 6}, {"b": 6}, {"b": 4, "c": 2}])


@pytest.mark.task(5)
def test_blocks_promised_to_branches_that_come_back_are_not_given_away(layer: Layer) -> None:
    engine = dry(layer, num_blocks=7)
    engine.add("a", 4, max_tokens=10, n=3)
    for _ in range(8):
        engine.step()
    engine.evict("a")
    engine.add("b", 8, max_tokens=1)
    steps = [{"a": 11}, {"a": 7}, {"a": 3}]
    what = "of a (three branches that come back one after the other) and b (2 blocks), 7 blocks"
    at_once, later = [{"a": 11, "b": 8}, {"a": 7}, {"a": 3}], [{"a": 11}, {"a": 7, "b": 8}, {"a": 3}]
    expect_steps(what, engine, steps, (at_once, PROMISES), (later, PROMISES))


@pytest.mark.task(5)
def test_what_the_empty_pool_cannot_hold_is_given_up_and_the_next_one_comes(layer: Layer) -> None:
    engine = dry(layer, num_blocks=2)
    engine.add("big", 9)
    engine.add("small", 3)
    step = engine.step()
    given_up = [step["out_of_capacity"], step["tokens"]]
    wrong = [([[], {}], NEVER_GIVEN_UP), ([["big"], {}], "after a request was given up, nobody came in")]
    what = "given up, and tokens, of big (3 blocks) and small (1 block) in a pool of 2"
    expect(what, given_up, [["big"], {"small": 3}], wrong)
    expect("who waits after it", engine.state()["waiting"], [])


@pytest.mark.task(5)
def test_nothing_runs_is_asked_anew_for_every_head(layer: Layer) -> None:
    engine = dry(layer, num_blocks=3)
    engine.add("a", 5, max_tokens=1)
    engine.add("b", 6, max_tokens=1)
    step = engine.step()
    got = [step["tokens"], step["out_of_capacity"]]
    wrong = [([{"a": 5}, ["b"]], GIVEN_UP_EARLY)]
    what = "tokens and given up, when a (2 blocks) and b (2 blocks) come to an empty pool of 3"
    expect(what, got, [{"a": 5}, []], wrong)
    expect("the tokens of the next step, when a has ended", engine.step()["tokens"], {"b": 6})


@pytest.mark.task(5)
def test_a_swapped_request_comes_back_with_its_copies(layer: Layer) -> None:
    engine = dry(layer, num_blocks=4, num_cpu_blocks=4, preemption_mode="swap")
    engine.add("a", 5)
    engine.step()
    expect("the copies that swap a out", engine.evict("a", swap=True), [(0, 0), (1, 1)])
    step = engine.step()
    what = "step.swap_in, when a comes back (its blocks 0 and 1 of the CPU's pool)"
    expect(what, step["swap_in"], [(0, 2), (1, 3)], [([], SWAP_IN_LOST)])
    expect("its tokens: nothing is computed again", step["tokens"], {"a": 1})


@pytest.mark.task(5)
def test_two_that_come_back_in_one_step_bring_the_copies_of_both(layer: Layer) -> None:
    engine = dry(layer, num_blocks=4, num_cpu_blocks=4, preemption_mode="swap")
    for name in "ab":
        engine.add(name, 2)
    engine.step()
    out = [engine.evict(name, swap=True) for name in "ab"]
    expect("the copies that swap a and b out", out, [[(0, 0)], [(1, 1)]])
    step = engine.step()
    wrong = [([(1, 3)], SWAP_IN_LOST), ([(0, 2)], SWAP_IN_LOST), ([], SWAP_IN_LOST)]
    expect("step.swap_in, when both come back", step["swap_in"], [(0, 2), (1, 3)], wrong)


@pytest.mark.task(5)
def test_running_requests_are_in_the_order_of_priority_and_arrival(layer: Layer) -> None:
    engine = dry(layer, max_num_batched_tokens=8)
    engine.add("a", 3)
    engine.step()
    engine.add("b", 20, priority=-1)
    steps = [{"a": 1, "b": 7}, {"b": 8}, {"b": 5, "a": 1}]
    wrong = [{"a": 1, "b": 7}, {"a": 1, "b": 7}, {"a": 1, "b": 6}]
    what = "after b (20 tokens, priority -1) came, 8 tokens a step"
    expect_steps(what, engine, steps, (wrong, NOT_IN_ORDER))


PROMPTS_ONLY = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 14), st.just(1), st.integers(-1, 1)),
    st.tuples(st.just("step")),
)


@pytest.mark.task(5)
@settings(max_examples=40)
@given(ops=st.lists(PROMPTS_ONLY, max_size=12), seats=st.integers(1, 3), budget=st.integers(1, 9))
def test_any_prompts(layer: Layer, ops: list[tuple[Any, ...]], seats: int, budget: int) -> None:
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": seats}
    engine = dry(layer, num_blocks=4, **limits)
    setup = f"4 blocks of 4 tokens, at most {budget} tokens and {seats} sequences a step"
    Subject(engine, ModelScheduler(4, 4, budget, seats), setup).run(ops)


# -- task 6: make room -----------------------------------------------------------------------------


@pytest.mark.task(6)
def test_the_last_one_gives_way(layer: Layer) -> None:
    engine = dry(layer, num_blocks=3)
    engine.seat("a", 4, max_tokens=3)
    engine.seat("b", 8)
    engine.step()
    step = engine.step()
    what = "preempted, when a needs a block and b holds the last two"
    expect(what, step["preempted"], ["b"], [([], NOT_NOTED), (["a"], WRONG_VICTIM)])
    expect(
        "the tokens of that step", step["tokens"], {"a": 1}, [({}, "a did not use the room that was made")]
    )
    state = engine.state()
    expect(
        "who runs and who waits",
        [state["running"], state["waiting"]],
        [["a"], ["b"]],
        [([["a"], []], LOST_REQUEST)],
    )
    steps = [{"a": 1}, {"b": 9}]
    expect_steps("after it: b comes back with the token that it had", engine, steps)


@pytest.mark.task(6)
def test_a_request_that_is_the_last_gives_way_itself(layer: Layer) -> None:
    engine = dry(layer, num_blocks=3)
    engine.seat("a", 7)
    engine.seat("b", 4)
    engine.step()
    step = engine.step()
    got = [step["tokens"], step["preempted"]]
    wrong = [([{"a": 1, "b": 1}, ["a"]], EARLIER_VICTIM), ([{"a": 1}, ["a"]], EARLIER_VICTIM)]
    what = "tokens and preempted, when b, behind a, needs a block and none is free"
    expect(what, got, [{"a": 1}, ["b"]], wrong)


@pytest.mark.task(6)
def test_a_lone_request_that_outgrows_the_pool_is_given_up(layer: Layer) -> None:
    engine = dry(layer, num_blocks=2)
    engine.seat("a", 8)
    engine.step()
    step = engine.step()
    got = [step["out_of_capacity"], step["preempted"], step["tokens"]]
    wrong = [([[], ["a"], {}], PREEMPTED_ALONE)]
    expect("given up, preempted and tokens, when a needs a third block of 2", got, [["a"], [], {}], wrong)
    state = engine.state()
    expect("what is left", [state["running"], state["waiting"], state["free blocks"]], [[], [], 2])


@pytest.mark.task(6)
def test_priority_decides_who_gives_way(layer: Layer) -> None:
    engine = dry(layer, num_blocks=4)
    engine.add("a", 8, priority=1)
    engine.add("b", 3)
    engine.add("c", 4, max_tokens=4)
    engine.step()
    step = engine.step()
    wrong = [(["c"], "the last that came gave way, whatever its priority"), (["b"], WRONG_VICTIM)]
    what = "preempted, when c (priority 0) needs a block; a (priority 1) came first"
    expect(what, step["preempted"], ["a"], wrong)
    expect("the tokens of that step", step["tokens"], {"b": 1, "c": 1})


@pytest.mark.task(6)
def test_one_victim_may_not_be_enough(layer: Layer) -> None:
    engine = dry(layer, num_blocks=4)
    engine.seat("a", 4, n=3)
    engine.seat("b", 2)
    engine.seat("c", 2)
    engine.step()
    step = engine.step()
    what = "preempted, when a's three branches need a block each, 1 is free, and b and c hold 1 each"
    expect(
        what, step["preempted"], ["c", "b"], [(["b", "c"], WRONG_VICTIM), (["c"], "one victim was enough")]
    )
    expect("the tokens of that step", step["tokens"], {"a": 3})


@pytest.mark.task(6)
def test_nobody_is_admitted_in_a_step_with_a_preemption_and_the_victim_is_before_who_came_later(
    layer: Layer,
) -> None:
    engine = dry(layer, num_blocks=3)
    engine.seat("a", 4)
    engine.seat("b", 8)
    engine.step()
    engine.add("c", 2)
    step = engine.step()
    expect(
        "the tokens of a step in which b was preempted",
        step["tokens"],
        {"a": 1},
        [({"a": 1, "c": 2}, ADMITTED_TOO)],
    )
    expect(
        "who waits after it",
        engine.state()["waiting"],
        ["b", "c"],
        [(["c", "b"], AT_THE_END), (["c"], LOST_REQUEST)],
    )


@pytest.mark.task(6)
def test_with_swapping_the_victims_blocks_are_copied_out(layer: Layer) -> None:
    engine = dry(layer, num_blocks=3, num_cpu_blocks=3, preemption_mode="swap")
    engine.seat("a", 4, max_tokens=3)
    engine.seat("b", 8)
    engine.step()
    step = engine.step()
    wrong = [([], "the victim was not swapped, or its copies were lost")]
    expect("step.swap_out, when b (blocks 1 and 2) gives way", step["swap_out"], [(1, 0), (2, 1)], wrong)
    engine.step()
    step = engine.step()
    expect("b's tokens when it is back: nothing is computed again", step["tokens"], {"b": 1})


@pytest.mark.task(6)
def test_two_victims_of_one_step_are_both_copied_out(layer: Layer) -> None:
    engine = dry(layer, num_blocks=4, num_cpu_blocks=4, preemption_mode="swap")
    engine.seat("a", 4, n=3)
    engine.seat("b", 2)
    engine.seat("c", 2)
    engine.step()
    step = engine.step()
    lost = "the copies of an earlier victim of the step were lost"
    what = "step.swap_out, when c (block 2) and then b (block 1) give way"
    expect(what, step["swap_out"], [(2, 0), (1, 1)], [([(1, 1)], lost), ([(2, 0)], lost)])


@pytest.mark.task(6)
def test_preempt_gives_the_blocks_back_and_the_request_waits_at_its_place(layer: Layer) -> None:
    engine = dry(layer, num_cpu_blocks=8)
    engine.seat("a", 5)
    engine.seat("b", 5)
    engine.step()
    engine.add("c", 5)
    expect('the copies of preempt("a")', engine.preempt("a"), [])
    state = engine.state()
    got = [state["running"], state["waiting"], state["free blocks"]]
    expect(
        "running, waiting and free after it",
        got,
        [["b"], ["a", "c"], 62],
        [([["b"], ["c", "a"], 62], AT_THE_END)],
    )
    expect('the copies of preempt("b", swap=True)', engine.preempt("b", True), [(2, 0), (3, 1)])
    expect("who waits after it", engine.state()["waiting"], ["a", "b", "c"])


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 14), st.integers(1, 6), st.integers(-1, 1)),
    st.tuples(st.just("step")),
    st.tuples(st.just("step")),
    st.tuples(st.just("abort"), st.integers(0, 3)),
)


@pytest.mark.task(6)
@settings(max_examples=60)
@given(ops=st.lists(OPERATIONS, max_size=24), seats=st.integers(1, 4), budget=st.integers(1, 12))
def test_any_history(layer: Layer, ops: list[tuple[Any, ...]], seats: int, budget: int) -> None:
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": seats}
    engine = dry(layer, num_blocks=5, **limits)
    setup = f"5 blocks of 4 tokens, at most {budget} tokens and {seats} sequences a step"
    Subject(engine, ModelScheduler(5, 4, budget, seats), setup).run(ops)


# -- task 7: aging ---------------------------------------------------------------------------------


def aging(layer: Layer, patience: int, **options: Any) -> Any:
    options = {"num_blocks": 64, "block_size": 4, "patience": patience} | options
    return layer.given(DRY_ENGINE).DryEngine(layer.AgingScheduler, **options)


@pytest.mark.task(7)
def test_nobody_starves(layer: Layer) -> None:
    engine = aging(layer, 2, max_num_seqs=1)
    engine.add("low", 3, max_tokens=1, priority=1)
    served = []
    for number in range(5):
        engine.add(f"high{number}", 3, max_tokens=1)
        served += list(engine.step()["tokens"])
    right = ["high0", "high1", "low", "high2", "high3"]
    wrong = [(["high0", "high1", "high2", "high3", "high4"], NEVER_AGES)]
    what = (
        "who is served, one a step; low (priority 1) came first, and a high (priority 0) comes in each step"
    )
    expect(what, served, right, wrong)


@pytest.mark.task(7)
def test_priority_falls_by_one_each_time_patience_is_over(layer: Layer) -> None:
    engine = aging(layer, 3, max_num_seqs=1)
    engine.add("a", 2, max_tokens=20)
    engine.add("b", 2, priority=5)
    seen = []
    for _ in range(9):
        engine.step()
        seen.append(engine.priorities()["b"])
    wrong = [([5] * 9, NEVER_AGES), ([5, 5, 4, 4, 4, 4, 4, 4, 4], "it gained once only")]
    what = "b's priority (5) after each of 9 steps that it waits, patience 3"
    expect(what, seen, [5, 5, 4, 4, 4, 3, 3, 3, 2], wrong)
    expect("a's priority: it runs all the time", engine.priorities()["a"], 0, {-3: COUNTS_RUNNING})


@pytest.mark.task(7)
def test_who_is_admitted_in_a_step_has_not_waited_it(layer: Layer) -> None:
    engine = aging(layer, 1)
    engine.add("a", 2)
    engine.step()
    what = "the priority of a (0), admitted in the first step after it came, patience 1"
    expect(what, engine.priorities()["a"], 0, {-1: BEFORE_STEP})


@pytest.mark.task(7)
def test_the_queue_is_in_order_after_the_step(layer: Layer) -> None:
    engine = aging(layer, 2, max_num_seqs=1)
    engine.add("run", 2, max_tokens=20, priority=-9)
    engine.add("old", 2, priority=1)
    engine.step()
    engine.add("new", 2, priority=0)
    expect("waiting, when new (priority 0) has come", engine.state()["waiting"], ["new", "old"])
    engine.step()
    what = "waiting, after old (priority 1) has waited its second step, patience 2"
    expect(what, engine.state()["waiting"], ["old", "new"], [(["new", "old"], NOT_SORTED)])


@pytest.mark.task(7)
def test_running_in_between_does_not_set_the_count_back(layer: Layer) -> None:
    engine = aging(layer, 3, max_num_seqs=1)
    engine.add("a", 2, max_tokens=2)
    engine.add("b", 2, max_tokens=9)
    engine.step()
    engine.step()
    engine.step()  # b runs, after two steps of waiting
    engine.preempt("b")
    engine.add("c", 2, max_tokens=3, priority=-5)
    engine.step()
    what = "b's priority (0) after 2 steps of waiting, 1 of running, and 1 of waiting; patience 3"
    expect(what, engine.priorities()["b"], -1, {0: SET_BACK})


@pytest.mark.task(7)
def test_a_step_in_which_a_request_was_preempted_is_one_that_it_waited(layer: Layer) -> None:
    engine = aging(layer, 1, num_blocks=3)
    engine.seat("a", 4)
    engine.seat("b", 8)
    engine.step()
    expect("preempted, when a needs a block", engine.step()["preempted"], ["b"])
    what = "b's priority (0) after the step in which it was preempted, patience 1"
    expect(
        what, engine.priorities()["b"], -1, {0: "a preempted request was not counted among those who wait"}
    )


@pytest.mark.task(7)
def test_a_request_that_has_ended_takes_its_count_along(layer: Layer) -> None:
    engine = aging(layer, 2, max_num_seqs=1)
    engine.add("run", 2, max_tokens=20)
    engine.add("again", 2)
    engine.step()
    engine.abort("again")
    engine.add("again", 2)
    engine.step()
    what = (
        "the priority of a request (0) that has waited one step; one of the same name, aborted, had one too"
    )
    expect(what, engine.priorities()["again"], 0, {-1: "the count of a request that has ended was kept"})


@pytest.mark.task(7)
def test_an_aging_scheduler_swaps_if_it_is_told_to(layer: Layer) -> None:
    engine = aging(layer, 2, num_blocks=3, num_cpu_blocks=3, preemption_mode="swap")
    engine.seat("a", 4)
    engine.seat("b", 8)
    engine.step()
    expect("step.swap_out, when b (blocks 1 and 2) gives way", engine.step()["swap_out"], [(1, 0), (2, 1)])


@pytest.mark.task(7)
def test_what_was_gained_counts_among_those_who_run(layer: Layer) -> None:
    engine = aging(layer, 2, num_blocks=3, max_num_seqs=2)
    engine.add("x", 2, max_tokens=2)
    engine.add("y", 2, max_tokens=2)
    engine.add("old", 4, priority=1)
    engine.step()
    engine.step()
    engine.add("new", 5)
    step = engine.step()
    expect("old (priority 1, gained 1) and new (0) come in", step["tokens"], {"old": 4, "new": 5})
    step = engine.step()
    what = "who gives way when old needs a block: both have priority 0 now, and new came later"
    expect(what, step["preempted"], ["new"], [(["old"], "what was gained counts in the queue only")])


@pytest.mark.task(7)
def test_patience_must_be_a_step_at_least(layer: Layer) -> None:
    expect_error("patience=0", ValueError, lambda: aging(layer, 0), numbers=[0])
    expect_error("patience=-2", ValueError, lambda: aging(layer, -2), numbers=[-2])


@pytest.mark.task(7)
@settings(max_examples=40)
@given(ops=st.lists(OPERATIONS, max_size=24), patience=st.integers(1, 4))
def test_any_history_with_aging(layer: Layer, ops: list[tuple[Any, ...]], patience: int) -> None:
    engine = aging(layer, patience, num_blocks=5, max_num_batched_tokens=8, max_num_seqs=2)
    setup = f"5 blocks of 4 tokens, at most 8 tokens and 2 sequences a step, patience {patience}"
    Subject(engine, ModelScheduler(5, 4, 8, 2, patience), setup).run(ops)
