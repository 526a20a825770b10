"""The replay of a trace through an arena, its pictures and the scorecard (chapter 2's laboratory)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minipaged.block_allocator import BlockAllocator
from minipaged.contiguous import POLICIES, Account, Arena, ArenaBlocks, Buddy, reservation
from minipaged.course.chapters.ch02_contiguous.figures import (
    draw_arena,
    draw_memory_map,
    draw_shares,
    layout_of,
)
from minipaged.course.chapters.ch02_contiguous.replay import (
    ArenaReplay,
    Reserve,
    replay_policy,
    traditional_scores,
)
from minipaged.course.chapters.ch02_contiguous.serving import new_engine
from minipaged.course.scorecard import Score, Scorecard
from minipaged.course.serving import serve_all
from minipaged.llm import LLM
from minipaged.pictures.draw import to_png
from minipaged.simulation.traces import TraceRow, load_azure, synthetic
from tests.public_traces import find_trace

MAX_LEN = 64


def rows_of(*lengths: tuple[int, int]) -> list[TraceRow]:
    """Requests (prompt, output) that are all there at the beginning."""
    return [TraceRow(0.0, prompt_len, output_len) for prompt_len, output_len in lengths]


def by(policy: str) -> Reserve:
    return lambda row: reservation(policy, row.prompt_len, row.output_len, MAX_LEN)


def test_a_request_by_hand():
    """Ten slots; A and B are admitted, C waits until A has ended and its hole has room."""
    replay = ArenaReplay(rows_of((3, 2), (4, 1), (2, 3)), Arena(10), by("oracle")).run()
    assert [moment.account for moment in replay.moments] == [
        Account(used=7, reserved=3, internal=0, external=0, free=0),
        Account(used=6, reserved=4, internal=0, external=0, free=0),  # B ended, C took its place
        Account(used=3, reserved=2, internal=0, external=0, free=5),  # A ended
        Account(used=4, reserved=1, internal=0, external=0, free=5),
        Account(used=0, reserved=0, internal=0, external=0, free=10),
    ]
    assert [moment.needed for moment in replay.moments] == [5, 0, 0, 0, 0]
    assert (replay.num_admitted, replay.num_ended) == (3, 3)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [Arena, Buddy])
def test_every_slot_is_accounted_for_at_every_moment(policy: str, kind: Callable[[int], Arena]):
    trace = [
        TraceRow(row.arrival_s, 1 + row.prompt_len % 40, 1 + row.output_len % 20) for row in synthetic(200, 0)
    ]
    replay = ArenaReplay(trace, kind(300), by(policy)).run()
    assert all(sum(moment.account) == 300 for moment in replay.moments)
    assert sum(replay.shares().values()) == pytest.approx(1)
    assert replay.num_ended == replay.num_admitted == 200
    assert replay.arena.num_free == 300 and replay.leaks() == {}
    if policy == "oracle" and kind is Arena:
        assert replay.shares()["internal"] == 0


def test_a_request_that_is_too_long_is_refused_and_the_others_go_on():
    replay = ArenaReplay(rows_of((60, 5), (3, 2)), Arena(100), by("max")).run()
    assert (replay.num_refused, replay.num_ended) == (1, 1)


def test_nobody_overtakes_the_head_of_the_queue():
    replay = ArenaReplay(rows_of((4, 4), (5, 1), (1, 1)), Arena(10), by("oracle"))
    replay.step()
    assert replay.num_admitted == 1  # the third would fit, but comes after the second
    assert replay.moments[0].needed == 6


def test_a_sequence_that_outgrows_its_reservation_moves_if_it_can_and_is_cut_short_if_not():
    roomy = ArenaReplay(rows_of((4, 10)), Arena(30), lambda row: 6, grow_by=4).run()
    assert (roomy.num_outgrown, roomy.num_in_place, roomy.num_moved, roomy.num_cut_short) == (2, 2, 2, 0)
    assert roomy.moved_tokens == 6 + 10 and roomy.arena.num_free == 30
    tight = ArenaReplay(rows_of((4, 10)), Arena(9), lambda row: 6, grow_by=4).run()
    assert (tight.num_outgrown, tight.num_moved, tight.num_cut_short) == (1, 0, 1)
    assert tight.arena.num_free == 9


def test_what_is_not_released_leaks_and_in_the_end_nobody_gets_in():
    replay = ArenaReplay(rows_of(*[(4, 4)] * 10), Arena(24), by("oracle"), forget_every=2).run()
    assert replay.leaks() == dict.fromkeys(replay.arena.reservations(), 1)
    assert len(replay.leaks()) == 3 and replay.num_ended == 6 and replay.is_over


def test_the_measured_shares_are_what_the_chapter_says():
    scores = traditional_scores()
    assert [round(score.internal, 2) for score in scores if isinstance(score.internal, float)] == [
        0.67,
        0.32,
        0,
    ]
    assert [round(score.external, 2) for score in scores if isinstance(score.external, float)] == [
        0,
        0.1,
        0.2,
    ]


def test_the_recorded_trace_gives_much_the_same_shares_as_the_generated_one():
    real = load_azure(find_trace("AzureLLMInferenceTrace_conv.csv"))[:400]
    made = synthetic(400, seed=0)
    for policy, kind in zip(POLICIES, (Arena, Buddy, Arena), strict=True):
        ours, theirs = (replay_policy(policy, kind(32_768), trace).shares() for trace in (made, real))
        for name, share in ours.items():
            assert share == pytest.approx(theirs[name], abs=0.07), (policy, name)


def test_pictures_have_words_and_are_the_same_each_time():
    replay = ArenaReplay(rows_of((3, 20), (4, 9), (12, 3)), Arena(40), by("pow2"), layout_every=2).run(10)
    rows = [("now", replay.moments[2].layout, replay.arena.holes()), ("bare", layout_of(replay.arena), [])]
    for make in (
        lambda: draw_arena(40, rows, needed=7),
        lambda: draw_memory_map(replay, "a title"),
        lambda: draw_shares({"ours": replay.shares(), "theirs": {"used": 0.2, "rest": 0.8}}, "shares"),
    ):
        assert len(make().get_label()) > 40
        assert to_png(make()) == to_png(make())


def test_the_scorecard_is_a_table_of_what_was_measured():
    card = Scorecard(Score("a", 0.25, 0.5, 0.0, "never", "no"), Score("b", 0.0)).markdown().splitlines()
    assert card[0] == "|  | wanted | a | b |" and len(card) == 7
    assert card[2] == "| **Waste by pre-allocation** | allocate on demand: 0 % | 25.0 % | 0.0 % |"
    assert card[6].endswith("| no | – |")


def test_served_the_traditional_way_the_tokens_are_the_same_and_fewer_fit():
    llm = LLM("tiny", num_blocks=1, device="cpu", dtype="float32")
    paged = serve_all(new_engine(llm, BlockAllocator, 512, 16, 128, 8))
    reserved = serve_all(new_engine(llm, ArenaBlocks, 512, 128, 128, 8))
    assert paged.token_ids() == reserved.token_ids()
    assert (paged.most_at_once, reserved.most_at_once) == (8, 4)
