"""Chapter 09's laboratory: an engine watched step by step, and a trace under memory pressure."""

from __future__ import annotations

import pytest

from minipaged import LLM, Engine, SamplingParams
from minipaged.course.chapters.ch09_preemption.figures import (
    describe,
    draw_prices,
    draw_timeline,
    draw_watermarks,
)
from minipaged.course.chapters.ch09_preemption.replay import Costs, Moment, PressureReplay, record
from minipaged.pictures.draw import to_png
from minipaged.simulation.traces import TraceRow

TRACE = [TraceRow(0.0, 4, 8), TraceRow(0.0, 4, 8)]
COSTS = Costs(per_step=1.0, per_token=0.125, per_block=0.25)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_two_requests_by_hand(mode: str) -> None:
    """12 tokens each, in 4 blocks of 4. In step 5 both have 8 tokens in 2 blocks; in step 6 the second one
    gives way. The first ends in step 9, in which the second comes back; it needs four more for its last four.

    Both ways take 17 s here: 8 tokens at 1/8 s, or 2 blocks out and in at 1/4 s.
    """
    replay = PressureReplay(TRACE, 4, COSTS, mode, block_size=4).run()
    assert (replay.num_steps, replay.num_preempted, replay.num_output, replay.seconds) == (13, 1, 16, 17.0)
    came = replay.num_computed, replay.num_recomputed, replay.num_moved
    assert came == ((32, 8, 0) if mode == "recompute" else (24, 0, 4))
    assert replay.pool.num_free == 4 and replay.cpu_pool.num_free == replay.cpu_pool.num_blocks


def test_nobody_gives_way_where_enough_is_kept_free() -> None:
    replay = PressureReplay(TRACE, 4, COSTS, keep_free=3, block_size=4).run()
    assert (replay.num_preempted, replay.num_recomputed) == (0, 0)
    assert replay.sum_running <= replay.num_steps  # one at a time


def test_a_request_that_the_pool_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="12 tokens can't be held by 2 blocks"):
        PressureReplay(TRACE, 2, COSTS, block_size=4)


def test_an_engine_is_recorded_and_drawn() -> None:
    llm = LLM("tiny", num_blocks=1, device="cpu", dtype="float32")
    runs = {}
    for mode in ("recompute", "swap"):
        engine = Engine(
            llm.model, llm.tokenizer, num_blocks=4, block_size=4, num_cpu_blocks=4, preemption_mode=mode,
            enable_prefix_caching=False,
        )
        for name in "AB":
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            engine.add_request(name, [1, 2, 3, 4], params)
        runs[mode], outputs = record(engine)
        assert [len(outputs[name]) for name in "AB"] == [8, 8]
    assert runs["recompute"][0].computed == {"A": 4, "B": 4}
    assert [each.preempted for each in runs["recompute"]] == [each.preempted for each in runs["swap"]]
    figure = draw_timeline(runs, 4)
    assert "preempted B in step 6" in figure.get_label() and to_png(figure)


def test_what_is_told_of_a_run() -> None:
    moments = [Moment({"A": 1}, ("B",), (), 1), Moment({"A": 1}, (), (), 1)]
    assert (describe(moments), describe(moments[1:])) == ("preempted B in step 1", "nobody preempted")


def test_pictures_say_their_numbers() -> None:
    assert "swap: 20 ms at 1" in draw_prices({"swap": {1: 0.02, 2: 0.01}}, "prices").get_label()
    runs = {share: PressureReplay(TRACE, 4, COSTS, block_size=4).run() for share in (0.0, 0.05)}
    assert "5 %:" in draw_watermarks(runs).get_label()
