"""Who runs when, and with how many tokens (design rules 12-14, case 13)."""

from __future__ import annotations

import pytest

from minipaged.engine import Engine
from minipaged.params import BeamSearchParams, SamplingParams
from tests.reference import finish, greedy, prompt_of, tiny_engine


def step(engine: Engine) -> dict[str, int]:
    """Step once; the number of tokens that each request computed."""
    engine.step()
    tokens: dict[str, int] = {}
    for work in engine.last_step.work:
        name = work.request.request_id
        tokens[name] = tokens.get(name, 0) + len(work.slots)
    return tokens


def add(engine: Engine, name: str, num_tokens: int, max_tokens: int = 8, priority: int = 0) -> None:
    engine.add_request(name, prompt_of(num_tokens, seed=ord(name[0])), greedy(max_tokens), priority=priority)


def test_a_prompt_is_computed_at_once_and_then_one_token_a_step():
    engine = tiny_engine()
    add(engine, "a", 9, max_tokens=4)
    assert [step(engine) for _ in range(4)] == [{"a": 9}, {"a": 1}, {"a": 1}, {"a": 1}]
    assert not engine.has_unfinished_requests(), "the last token's K/V is not needed"


def test_a_request_enters_while_others_decode_and_leaves_without_them():
    engine = tiny_engine()
    add(engine, "a", 5)
    step(engine)
    add(engine, "b", 7, max_tokens=2)
    assert [step(engine) for _ in range(3)] == [{"a": 1, "b": 7}, {"a": 1, "b": 1}, {"a": 1}]


def test_a_prompt_is_cut_to_the_budget_and_running_requests_come_first():
    engine = tiny_engine(max_num_batched_tokens=8)
    add(engine, "a", 20)
    add(engine, "b", 5)
    assert [step(engine) for _ in range(5)] == [
        {"a": 8},
        {"a": 8},
        {"a": 4, "b": 4},
        {"a": 1, "b": 1},
        {"a": 1, "b": 1},
    ]


def test_no_step_has_more_tokens_or_sequences_than_allowed():
    engine = tiny_engine(max_num_batched_tokens=10, max_num_seqs=3, num_blocks=20)
    for index in range(12):
        add(engine, chr(97 + index), 1 + 3 * index % 17)
    sizes = []
    while engine.has_unfinished_requests():
        engine.step()
        sizes.append((engine.last_step.num_tokens, len(engine.last_step.work)))
        assert engine.last_step.num_tokens == sum(len(work.slots) for work in engine.last_step.work)
    assert max(tokens for tokens, _ in sizes) == 10 and max(seqs for _, seqs in sizes) == 3


def test_every_branch_counts_as_a_sequence():
    engine = tiny_engine(max_num_seqs=4)
    engine.add_request("n", prompt_of(5), SamplingParams(n=3, temperature=5.0, max_tokens=5, ignore_eos=True))
    engine.add_request("m", prompt_of(5), SamplingParams(n=2, temperature=5.0, max_tokens=2, ignore_eos=True))
    engine.add_request("b", prompt_of(5), BeamSearchParams(beam_width=4, max_tokens=2))
    while engine.has_unfinished_requests():
        engine.step()
        live = [len(request.live) for request in engine.scheduler.running]
        assert len(engine.last_step.work) <= 4 and sum(live) <= 4


def test_nobody_overtakes_the_head_of_the_queue():
    engine = tiny_engine(num_blocks=6)
    add(engine, "a", 16, max_tokens=5)
    step(engine)
    add(engine, "big", 12)
    add(engine, "small", 2)
    assert step(engine) == {"a": 1}, "big needs 3 blocks, 1 is free; small would fit and waits"
    ended = list(finish(engine))
    assert ended[0] == "a"


def test_a_request_is_admitted_when_its_whole_prompt_fits_though_a_chunk_would_fit_before():
    engine = tiny_engine(num_blocks=6, max_num_batched_tokens=6, enable_prefix_caching=False)
    add(engine, "a", 12, max_tokens=2)
    add(engine, "b", 16, max_tokens=1)
    assert step(engine) == {"a": 6}
    assert step(engine) == {"a": 6}
    assert step(engine) == {"a": 1}, "b's 4 blocks are not there yet"
    assert step(engine) == {"b": 6}


def test_blocks_that_branches_still_need_after_a_preemption_are_not_given_away():
    """One branch comes back a step after the other, that it forks from: 3 blocks are free, 2 promised."""
    engine = tiny_engine(num_blocks=6, enable_prefix_caching=False)
    params = SamplingParams(n=2, temperature=8.0, seed=0, max_tokens=9, ignore_eos=True)
    engine.add_request("n", prompt_of(4), params)
    for _ in range(8):
        engine.step()
    assert engine.stats().blocks_used == 1 + 2 + 2
    engine.scheduler.preempt(engine.requests["n"])
    add(engine, "b", 8, max_tokens=1)
    assert step(engine) == {"n": 11}
    assert (engine.stats().blocks_free, engine.stats().waiting) == (3, 1)
    finish(engine)
    assert engine.stats().preemptions == 0


def test_priority_goes_before_arrival():
    engine = tiny_engine(max_num_seqs=1)
    for name, priority in (("a", 0), ("b", 0), ("c", -1), ("d", 7), ("e", 0)):
        add(engine, name, 3, max_tokens=1, priority=priority)
    assert [*finish(engine)] == ["c", "a", "b", "e", "d"]


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers_and_the_others_go_on():
    engine = tiny_engine(num_blocks=3)
    with pytest.raises(ValueError, match=r"(?s)13.*4.*3"):
        add(engine, "a", 13)
    add(engine, "b", 2, max_tokens=2)
    assert [*finish(engine)] == ["b"]


def test_a_prompt_that_fills_the_whole_pool_is_admitted():
    engine = tiny_engine(num_blocks=3)
    add(engine, "a", 12, max_tokens=1)
    assert [*finish(engine)] == ["a"]


def test_slots_of_a_step_are_all_different_and_lie_in_the_pool():
    engine = tiny_engine(num_blocks=20, max_num_batched_tokens=16)
    for index in range(8):
        add(engine, chr(97 + index), 4 + index)
    while engine.has_unfinished_requests():
        engine.step()
        slots = [slot for work in engine.last_step.work for slot in work.slots]
        assert len(slots) == len(set(slots)) and all(0 <= slot < 80 for slot in slots)


@pytest.mark.parametrize(
    "params", [SamplingParams(n=5, temperature=1.0), BeamSearchParams(beam_width=5)], ids=str
)
def test_branches_that_can_never_step_together_are_refused(params: SamplingParams | BeamSearchParams):
    for limit in ({"max_num_seqs": 4}, {"max_num_batched_tokens": 4}):
        engine = tiny_engine(**limit)
        with pytest.raises(ValueError, match=r"(?s)5.*4"):
            engine.add_request("a", prompt_of(3), params)
        assert not engine.has_unfinished_requests()
