"""The engine without a model decides as the real one does, and a replayed trace adds up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minipaged.course.chapters.ch08_scheduler.dry_engine import DryEngine
from minipaged.course.chapters.ch08_scheduler.figures import (
    assign_seats,
    draw_curves,
    draw_timelines,
    draw_token_times,
)
from minipaged.course.chapters.ch08_scheduler.replay import serve_trace
from minipaged.invariants import check_invariants
from minipaged.scheduler import Scheduler
from minipaged.simulation.traces import TraceRow, synthetic
from tests.reference import greedy, prompt_of, tiny_engine


@pytest.mark.parametrize("num_blocks", [8, 40])
def test_it_computes_the_same_tokens_in_every_step_as_the_engine(num_blocks: int) -> None:
    limits = {"num_blocks": num_blocks, "max_num_batched_tokens": 10, "max_num_seqs": 3}
    engine = tiny_engine(enable_prefix_caching=False, **limits)
    dry = DryEngine(Scheduler, block_size=engine.memory.block_size, **limits)
    for number, (prompt_len, max_tokens) in enumerate([(9, 12), (14, 3), (2, 10), (7, 7)]):
        engine.add_request(str(number), prompt_of(prompt_len), greedy(max_tokens))
        dry.add(str(number), prompt_len, max_tokens)
    num_preempted = 0
    while engine.has_unfinished_requests():
        engine.step()
        check_invariants(engine)
        step = dry.step()
        tokens = {work.request.request_id: len(work.slots) for work in engine.last_step.work}
        assert step["tokens"] == tokens
        assert step["preempted"] == [request.request_id for request in engine.last_step.preempted]
        num_preempted += len(step["preempted"])
    assert not dry.has_unfinished_requests() and dry.state()["free blocks"] == num_blocks
    assert (num_preempted > 0) == (num_blocks == 8)


def test_a_replayed_trace_gives_every_token_its_time() -> None:
    rows = synthetic(30, seed=1)
    served = serve_trace(DryEngine(Scheduler, 2000, 16, 512, 8), rows, lambda n: 0.01 + 0.001 * n)
    assert [len(times) for times in served.token_times] == [row.output_len for row in rows]
    assert min(served.first_token()) > 0.01 and min(served.gaps()) >= 0.011
    computed = sum(row.prompt_len + row.output_len - 1 for row in rows)
    assert sum(served.step_tokens) == computed and max(served.step_tokens) <= 512
    assert served.throughput() == sum(row.output_len for row in rows) / served.seconds


def test_an_idle_engine_sleeps_until_somebody_comes() -> None:
    served = serve_trace(DryEngine(Scheduler, 8), [TraceRow(0.0, 3, 2), TraceRow(9.0, 3, 1)], lambda n: 1.0)
    assert served.token_times == [[1.0, 2.0], [10.0]]
    assert (served.first_token(), served.gaps(), served.seconds) == ([1.0, 1.0], [1.0], 10.0)


def test_it_needs_no_pytorch() -> None:
    code = "import sys, minipaged.course.chapters.ch08_scheduler.replay; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_whoever_enters_takes_the_lowest_free_seat() -> None:
    steps = [{"a": 8, "b": 2, "c": 1}, {"b": 1, "c": 1}, {"b": 1, "d": 3, "e": 1}, {"d": 1}]
    seats = [("a", 0, 0, 1), ("b", 1, 0, 3), ("c", 2, 0, 2), ("d", 0, 2, 4), ("e", 2, 2, 3)]
    assert assign_seats(steps) == seats
    label = draw_timelines({"run": steps}, num_seats=3).get_label()
    assert "run: 4 steps, 75 % of the seats used" in label and "d 2 to 4" in label


def test_the_other_pictures_say_their_numbers() -> None:
    label = draw_token_times({"x": {"a": [1.0, 2.0, 30.0], "b": [3.0]}}, end_ms=50).get_label()
    assert "x: the longest time between two tokens is 28 ms" in label
    label = draw_curves(
        {"p": {"a": [1, 2]}, "q": {"a": [0.5, 3], "b": [1, 1]}}, [4, 8], "n", log=["q"]
    ).get_label()
    assert "n (4, 8)" in label and "q, a: 0.5, 3" in label
