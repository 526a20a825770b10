"""The engine end to end on the tiny model (design rules 12-16, cases 13-19)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from minipaged.block_manager import BlockManager
from minipaged.engine import Engine
from minipaged.invariants import check_invariants, check_writes
from minipaged.params import SamplingParams
from minipaged.parts import Parts
from minipaged.scheduler import Schedule, Work
from tests.reference import (
    all_free,
    finish,
    greedy,
    not_greedy,
    prompt_of,
    serve,
    tiny_engine,
    tiny_hf_model,
    tiny_model,
)

SWAP = {"preemption_mode": "swap", "num_cpu_blocks": 64}
A, B = prompt_of(6, seed=1), prompt_of(6, seed=2)


def alone(prompt: list[int], params: SamplingParams, **engine_args: Any) -> Any:
    engine = tiny_engine(**engine_args)
    engine.add_request("alone", prompt, params)
    return finish(engine)["alone"]


# -- what comes out ----------------------------------------------------------------------------------------


def test_greedy_output_is_that_of_transformers():
    prompts = [prompt_of(length, seed=length) for length in (1, 3, 4, 5, 8, 17, 40)]
    for prompt, output in zip(prompts, serve(tiny_engine(), prompts, greedy(24)), strict=True):
        assert len(output) == 24
        assert not not_greedy(tiny_hf_model(), prompt, output)


VARIATIONS: list[dict[str, Any]] = [
    {"block_size": 1, "num_blocks": 600},
    {"block_size": 3},
    {"block_size": 16},
    {"block_size": 128},
    {"num_blocks": 15},
    {"num_blocks": 15} | SWAP,
    {"num_blocks": 15, "preemption_mode": "swap", "num_cpu_blocks": 3},
    {"num_blocks": 17, "max_num_batched_tokens": 3},
    {"max_num_batched_tokens": 1},
    {"max_num_batched_tokens": 16},
    {"max_num_seqs": 1},
    {"max_num_seqs": 2, "max_num_batched_tokens": 5},
    {"enable_prefix_caching": False},
    {"enable_prefix_caching": False, "num_blocks": 15},
]


@pytest.mark.parametrize("variation", VARIATIONS, ids=str)
def test_greedy_output_does_not_depend_on_how_the_engine_is_set_up(variation: dict[str, Any]):
    shared = prompt_of(9)
    prompts = [
        *(shared + prompt_of(length, seed=length) for length in (1, 4, 9, 20)),
        prompt_of(7),
        shared[:4],
    ]
    expected = [alone(prompt, greedy(12)).outputs[0].token_ids for prompt in prompts]
    assert serve(tiny_engine(**variation), prompts, greedy(12)) == expected
    assert serve(tiny_engine(**variation), prompts[::-1], greedy(12)) == expected[::-1]


def test_requests_that_come_while_others_run_change_nobody_s_output():
    prompts = [prompt_of(5 + 2 * index, seed=index) for index in range(6)]
    expected = [alone(prompt, greedy(10)).outputs[0].token_ids for prompt in prompts]
    engine, outputs = tiny_engine(max_num_batched_tokens=8), {}
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, greedy(10))
        for _ in range(index):
            outputs |= {output.request_id: output for output in engine.step()}
            check_invariants(engine)
    outputs |= finish(engine)
    assert [outputs[str(index)].outputs[0].token_ids for index in range(6)] == expected


def test_a_stream_of_outputs_grows_by_one_token_and_ends_once():
    engine = tiny_engine()
    engine.add_request("a", A, greedy(5))
    seen = []
    while engine.has_unfinished_requests():
        seen += engine.step()
    assert [len(output.outputs[0].token_ids) for output in seen] == [1, 2, 3, 4, 5]
    assert [output.finished for output in seen] == [False] * 4 + [True]
    assert [output.outputs[0].finish_reason for output in seen] == [None] * 4 + ["length"]
    last = seen[-1].outputs[0].token_ids
    assert all(output.outputs[0].token_ids == last[: len(output.outputs[0].token_ids)] for output in seen)
    assert (seen[0].request_id, seen[0].prompt, seen[0].prompt_token_ids) == ("a", None, A)


def test_a_step_without_requests_does_nothing():
    assert tiny_engine().step() == []


# -- how a request ends ------------------------------------------------------------------------------------


def first_tokens(count: int) -> list[int]:
    return alone(A, greedy(count)).outputs[0].token_ids


def test_a_stop_token_ends_the_output_and_is_its_last_token():
    tokens = first_tokens(8)
    stop = tokens[5]
    output = alone(A, greedy(8, stop_token_ids=[stop])).outputs[0]
    assert (output.token_ids, output.finish_reason) == (tokens[: tokens.index(stop) + 1], "stop")


def test_the_end_of_text_token_ends_the_output_unless_it_is_ignored(monkeypatch: pytest.MonkeyPatch):
    from dataclasses import replace

    tokens = first_tokens(8)
    eos = tokens[5]
    monkeypatch.setattr(tiny_model(), "config", replace(tiny_model().config, eos_token_ids=(258, eos)))
    stopped = alone(A, greedy(8, ignore_eos=False)).outputs[0]
    assert (stopped.token_ids, stopped.finish_reason) == (tokens[: tokens.index(eos) + 1], "stop")
    assert alone(A, greedy(8)).outputs[0].token_ids == tokens


def test_a_stop_counts_before_a_length():
    tokens = first_tokens(8)
    place = next(i for i in range(8) if tokens.index(tokens[i]) == i and i > 1)
    output = alone(A, greedy(place + 1, stop_token_ids=[tokens[place]])).outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (place + 1, "stop")


def test_a_stop_text_ends_the_output_and_is_cut_off():
    whole = alone(A, greedy(24)).outputs[0]
    start = next(
        i for i in range(2, len(whole.text)) if whole.text[i : i + 2].isascii() and whole.text[i].strip()
    )
    stop = whole.text[start : start + 2]
    output = alone(A, greedy(24, stop=[stop])).outputs[0]
    assert output.finish_reason == "stop"
    assert output.text == whole.text[: whole.text.index(stop)]
    assert output.token_ids == whole.token_ids[: len(output.token_ids)] and len(output.token_ids) < 24


def test_the_model_s_length_ends_an_output_that_has_no_other_limit():
    output = alone(A, greedy(None), max_model_len=16).outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (10, "length")
    assert output.token_ids == first_tokens(10)
    assert len(alone(A, greedy(50), max_model_len=16).outputs[0].token_ids) == 10


def test_max_tokens_1_gives_one_token_and_takes_no_block_for_it():
    engine = tiny_engine(num_blocks=2)
    engine.add_request("a", prompt_of(8), greedy(1))
    output = finish(engine)["a"].outputs[0]
    assert (len(output.token_ids), output.finish_reason, engine.stats().steps) == (1, "length", 1)
    assert sorted(engine.memory.allocator.free_blocks()) == [0, 1]


def test_a_prompt_that_fits_with_an_output_that_does_not_ends_for_lack_of_capacity():
    output = alone(prompt_of(8), greedy(4), num_blocks=2).outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "capacity")
    assert output.token_ids == alone(prompt_of(8), greedy(1)).outputs[0].token_ids


@pytest.mark.parametrize("mode", [{}, SWAP], ids=["recompute", "swap"])
def test_a_request_alone_never_preempts_itself_for_ever(mode: dict[str, Any]):
    engine = tiny_engine(num_blocks=2, **mode)
    engine.add_request("a", prompt_of(7), greedy(10))
    output = finish(engine, max_steps=20)["a"].outputs[0]
    # 8 tokens have room; the ninth was computed from the eighth and needs none.
    assert (len(output.token_ids), output.finish_reason) == (2, "capacity")
    assert all_free(engine)


def test_the_others_go_on_when_one_outgrows_the_pool():
    engine = tiny_engine(num_blocks=3)
    engine.add_request("big", prompt_of(8), greedy(20))
    engine.add_request("small", prompt_of(4), greedy(3))
    outputs = finish(engine)
    assert outputs["big"].outputs[0].finish_reason == "capacity"
    assert len(outputs["big"].outputs[0].token_ids) == 12 - 8 + 1
    assert outputs["small"].outputs[0].token_ids == alone(prompt_of(4), greedy(3)).outputs[0].token_ids


# -- preemption --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{}, SWAP], ids=["recompute", "swap"])
@pytest.mark.parametrize("chunk", [2048, 4])
def test_preempted_output_is_neither_lost_nor_doubled(mode: dict[str, Any], chunk: int):
    expected = serve(tiny_engine(num_blocks=100), [A, B], greedy(6))
    engine = tiny_engine(num_blocks=4, max_num_batched_tokens=chunk, **mode)
    assert serve(engine, [A, B], greedy(6)) == expected
    assert engine.stats().preemptions > 0
    assert all_free(engine)


@pytest.mark.parametrize("mode", [{}, SWAP], ids=["recompute", "swap"])
@pytest.mark.parametrize(
    "moments", [(0,), (1,), (2,), (4,), (1, 2), (1, 4), (2, 3), (0, 1, 2, 3, 4, 5)], ids=str
)
def test_a_preemption_at_any_moment_leaves_the_output_as_it_is(
    moments: tuple[int, ...], mode: dict[str, Any]
):
    """Forced by the scheduler's own means, before the first token (half-prefilled) and after some."""
    expected = alone(A, greedy(6)).outputs[0].token_ids
    engine = tiny_engine(max_num_batched_tokens=4, **mode)
    engine.add_request("a", A, greedy(6))
    outputs, step = {}, 0
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        if step in moments and engine.scheduler.running:
            swap = engine.scheduler.preempt(engine.requests["a"], swap=bool(mode))
            if engine.cpu_cache is not None:
                engine.cpu_cache.copy_blocks_from(engine.kv_cache, swap)
            assert (engine.stats().running, engine.stats().blocks_used) == (0, 0)
        check_invariants(engine)
        step += 1
    assert outputs["a"].outputs[0].token_ids == expected


def test_the_last_to_arrive_gives_way_and_comes_back_before_those_behind_it():
    engine = tiny_engine(num_blocks=5)
    for name in "abc":
        engine.add_request(name, prompt_of(7, seed=ord(name)), greedy(6))
    order: list[str] = []
    preempted: list[str] = []
    admitted: list[list[str]] = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
        preempted += [request.request_id for request in engine.last_step.preempted]
        admitted.append(sorted(request.request_id for request in engine.scheduler.running))
    assert order == ["a", "b", "c"] and preempted and set(preempted) <= {"b", "c"}
    assert not any("c" in running and "b" not in running and "a" in running for running in admitted)


def test_the_lowest_priority_gives_way_even_if_it_came_first():
    engine = tiny_engine(num_blocks=4)
    engine.add_request("low", A, greedy(6), priority=5)
    engine.add_request("high", B, greedy(6), priority=0)
    order, preempted = [], []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
        preempted += [request.request_id for request in engine.last_step.preempted]
    assert order == ["high", "low"] and set(preempted) == {"low"}


def test_branches_are_preempted_together_and_share_again_when_they_come_back():
    params = SamplingParams(n=3, temperature=5.0, seed=1, max_tokens=6, ignore_eos=True)
    expected = [branch.token_ids for branch in alone(A, params).outputs]
    for mode in ({}, SWAP):
        engine = tiny_engine(num_blocks=9, **mode)
        engine.add_request("other", B, greedy(12))
        engine.add_request("n", A, params)
        most_used, preempted = 0, 0
        outputs = {}
        while engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step()}
            check_invariants(engine)
            most_used = max(most_used, engine.stats().blocks_used)
            preempted += len(engine.last_step.preempted)
            tables = [seq.table for seq in engine.requests["n"].live] if "n" in engine.requests else []
            if engine.last_step.preempted:
                assert mode or tables == [None] * 3
        assert [branch.token_ids for branch in outputs["n"].outputs] == expected
        assert preempted, "the pool was to be too small"
        assert all_free(engine)


@pytest.mark.parametrize("cpu_blocks", [1, 2, 3, 64])
def test_a_swap_pool_that_is_too_small_falls_back_to_recomputing(cpu_blocks: int):
    expected = serve(tiny_engine(num_blocks=100), [A, B], greedy(9))
    engine = tiny_engine(num_blocks=5, preemption_mode="swap", num_cpu_blocks=cpu_blocks)
    swapped = 0
    engine.add_request("0", A, greedy(9))
    engine.add_request("1", B, greedy(9))
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        check_invariants(engine)
        swapped = max(swapped, engine.stats().swapped)
    assert [outputs[name].outputs[0].token_ids for name in "01"] == expected
    assert (swapped > 0) == (cpu_blocks >= 2), "the victim holds 2 blocks"


# -- abort -------------------------------------------------------------------------------------------------


def state_of(engine: Engine, request_id: str) -> str:
    request = engine.requests.get(request_id)
    if request is None:
        return "finished"
    if request in engine.scheduler.running:
        return "half-prefilled" if request.live[0].num_uncomputed_tokens > 1 else "running"
    if request.is_swapped:
        return "swapped"
    return "preempted" if request.live[0].output_token_ids else "waiting"


@pytest.mark.parametrize("mode", [{}, SWAP], ids=["recompute", "swap"])
def test_abort_works_in_every_state_and_frees_everything(mode: dict[str, Any]):
    """The same run again and again, cut off one step later each time."""
    seen = set()
    for num_steps in range(40):
        engine = tiny_engine(num_blocks=5, max_num_batched_tokens=4, enable_prefix_caching=False, **mode)
        engine.add_request("a", A, greedy(8))
        engine.add_request("b", B, greedy(8))
        done = {}
        for _ in range(num_steps):
            done |= {output.request_id: output for output in engine.step() if output.finished}
        state = state_of(engine, "b")
        seen.add(state)
        output = engine.abort("b")
        check_invariants(engine)
        if state == "finished":
            assert output is None
        else:
            assert output is not None and output.finished
            assert [branch.finish_reason for branch in output.outputs] == ["abort"]
            expected = alone(B, greedy(8)).outputs[0].token_ids
            assert output.outputs[0].token_ids == expected[: len(output.outputs[0].token_ids)]
        assert engine.abort("b") is None
        done |= finish(engine)
        assert done["a"].outputs[0].token_ids == alone(A, greedy(8)).outputs[0].token_ids
        assert all_free(engine)
    assert seen == {"waiting", "half-prefilled", "running", "finished", "swapped" if mode else "preempted"}


def test_aborting_what_was_never_there_does_nothing():
    engine = tiny_engine()
    engine.add_request("a", A, greedy(2))
    assert engine.abort("b") is None
    assert list(finish(engine)) == ["a"]


def test_a_preempted_request_is_recomputed_with_its_output_when_the_other_leaves():
    """Block size 4, 2 blocks, A:4 and B:4; B is preempted with one token, A aborted: B re-prefills 4 + 1."""
    engine = tiny_engine(num_blocks=2, enable_prefix_caching=False)
    engine.add_request("a", A[:4], greedy(4))
    engine.add_request("b", B[:4], greedy(4))
    engine.step()
    engine.step()
    assert state_of(engine, "b") == "preempted"
    engine.abort("a")
    engine.step()
    (work,) = engine.last_step.work
    assert (work.request.request_id, len(work.slots)) == ("b", 5)
    assert finish(engine)["b"].outputs[0].token_ids == alone(B[:4], greedy(4)).outputs[0].token_ids


def test_an_id_can_be_used_again_once_its_request_has_ended():
    engine = tiny_engine()
    for _ in range(2):
        engine.add_request("a", A, greedy(2))
        finish(engine)
    engine.add_request("a", A, greedy(2))
    engine.abort("a")
    engine.add_request("a", B, greedy(2))
    assert finish(engine)["a"].outputs[0].token_ids == alone(B, greedy(2)).outputs[0].token_ids


# -- branches ----------------------------------------------------------------------------------------------


def test_n_samples_share_the_prompt_s_blocks_and_copy_only_the_tail():
    engine = tiny_engine(block_size=4)
    engine.add_request("n", A, SamplingParams(n=3, temperature=5.0, seed=0, max_tokens=2, ignore_eos=True))
    engine.step()
    assert (engine.stats().blocks_used, engine.stats().computed_tokens) == (2, 6)
    engine.step()
    assert engine.last_step.copies and len(engine.last_step.copies) == 2
    assert engine.stats().copies == 2


def test_copies_belong_to_one_step_and_are_not_run_again():
    engine = tiny_engine(block_size=4)
    params = SamplingParams(n=3, temperature=5.0, seed=0, max_tokens=4, ignore_eos=True)
    engine.add_request("n", A, params)
    copies = []
    while engine.has_unfinished_requests():
        engine.step()
        copies.append(len(engine.last_step.copies))
    assert copies == [0, 2, 0, 0]


@pytest.mark.parametrize("mode", [{}, SWAP], ids=["recompute", "swap"])
@pytest.mark.parametrize("leave", ["preempted", "aborted"])
def test_no_copy_is_made_for_a_request_that_has_left(leave: str, mode: dict[str, Any]):
    """Three branches share a tail that all are about to write, when the request loses its blocks."""
    engine = tiny_engine(block_size=4, **mode)
    params = SamplingParams(n=3, temperature=5.0, seed=0, max_tokens=4, ignore_eos=True)
    engine.add_request("n", A, params)
    engine.add_request("other", B, greedy(4))
    engine.step()
    if leave == "aborted":
        engine.abort("n")
    else:
        engine.scheduler.preempt(engine.requests["n"])
        engine.scheduler.max_num_seqs = 1
    engine.step()
    assert engine.last_step.copies == []
    check_invariants(engine)


def test_a_branch_that_ends_early_frees_its_blocks_and_the_others_go_on():
    for seed in range(20):
        free = SamplingParams(n=3, temperature=8.0, seed=seed, max_tokens=10, ignore_eos=True)
        branches = [branch.token_ids for branch in alone(A, free).outputs]
        stop = branches[1][3]
        if all(stop not in branch[:8] for branch in (branches[0], branches[2])):
            break
    engine = tiny_engine()
    params = SamplingParams(
        n=3, temperature=8.0, seed=seed, max_tokens=10, ignore_eos=True, stop_token_ids=[stop]
    )
    engine.add_request("n", A, params)
    outputs = finish(engine)["n"].outputs
    assert [branch.index for branch in outputs] == [0, 1, 2]
    assert outputs[1].finish_reason == "stop" and len(outputs[1].token_ids) <= 4
    for branch, whole in zip(outputs, branches, strict=True):
        assert branch.token_ids == whole[: len(branch.token_ids)]


# -- figures -----------------------------------------------------------------------------------------------


def test_stats_count_blocks_requests_and_tokens():
    engine = tiny_engine(num_blocks=10, block_size=4, max_num_seqs=1)
    engine.add_request("a", A, greedy(3))
    engine.add_request("b", B, greedy(2))
    before = engine.stats()
    assert (before.num_blocks, before.blocks_free, before.blocks_used, before.waiting, before.running) == (
        10, 10, 0, 2, 0,
    )
    engine.step()
    stats = engine.stats()
    assert (stats.blocks_free, stats.blocks_used, stats.blocks_cached) == (8, 2, 1)
    assert (stats.waiting, stats.running, stats.swapped, stats.steps) == (1, 1, 0, 1)
    finish(engine)
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.blocks_used, stats.preemptions) == (0, 0, 0, 0)
    assert (stats.steps, stats.computed_tokens, stats.output_tokens) == (5, 6 + 2 + 6 + 1, 5)
    assert 0.0 < stats.forward_time < stats.step_time
    assert stats.tokens_per_second == pytest.approx(5 / stats.step_time)


def test_stats_are_a_snapshot():
    engine = tiny_engine()
    before = engine.stats()
    engine.add_request("a", A, greedy(2))
    finish(engine)
    assert (before.steps, before.output_tokens) == (0, 0)


def test_memory_holds_nothing_after_many_requests():
    engine = tiny_engine(num_blocks=12)
    for index in range(60):
        engine.add_request(str(index), prompt_of(3 + index % 9, seed=index), greedy(1 + index % 5))
        if index % 3:
            engine.step()
    finish(engine)
    assert all_free(engine) and not engine.requests
    assert not engine.scheduler.waiting and not engine.scheduler.running
    assert engine.stats().blocks_cached <= 12


# -- the invariants themselves can fail --------------------------------------------------------------------


def broken_engine() -> Engine:
    engine = tiny_engine(num_blocks=8)
    engine.add_request("a", prompt_of(9), greedy(4))
    engine.step()
    check_invariants(engine)
    return engine


def test_a_leaked_block_is_noticed():
    engine = broken_engine()
    engine.memory.allocator.allocate()
    with pytest.raises(RuntimeError, match="reference count 1, but 0"):
        check_invariants(engine)


def test_a_block_freed_too_early_is_noticed():
    engine = broken_engine()
    engine.memory.allocator.free(0)
    with pytest.raises(RuntimeError, match="reference count 0, but 1"):
        check_invariants(engine)


def test_a_table_with_a_block_too_many_is_noticed():
    engine = broken_engine()
    table = engine.requests["a"].live[0].table
    assert table is not None
    table.block_ids += engine.memory.allocator.allocate_many(1)
    with pytest.raises(RuntimeError, match="not 3"):
        check_invariants(engine)


def test_a_request_forgotten_with_its_blocks_is_noticed():
    engine = broken_engine()
    engine.scheduler.remove(engine.requests.pop("a"))
    with pytest.raises(RuntimeError, match=r"tables use it|blocks are free"):
        check_invariants(engine)


def step_with(
    slots: list[int], copies: list[tuple[int, int]], users: int = 1
) -> tuple[Schedule, BlockManager]:
    """A step that writes one sequence's tokens to these slots of a pool of 8 blocks, all in use."""
    memory = BlockManager(Parts(), num_blocks=8, block_size=4)
    for block in memory.allocator.allocate_many(8):
        for _ in range(users - 1):
            memory.allocator.share(block)
    engine = broken_engine()
    request = engine.requests["a"]
    return Schedule(work=[Work(request, request.live[0], slots)], copies=copies), memory


def test_a_step_that_writes_different_slots_of_its_own_blocks_passes():
    check_writes(*step_with([4, 5], [(0, 1), (0, 2)]))


@pytest.mark.parametrize(
    ("slots", "copies", "users", "reason"),
    [
        ([4, 4], [], 1, "same slot"),
        ([4, 5], [], 2, "block 1 has 2 users"),
        ([4, 5], [], 0, "block 1 has 0 users"),
        ([4], [(0, 2), (3, 2)], 1, "one destination"),
        ([4], [(0, 2), (2, 3)], 1, "another's source"),
    ],
)
def test_a_step_that_would_write_wrongly_is_noticed_before_it_runs(
    slots: list[int], copies: list[tuple[int, int]], users: int, reason: str
):
    step, memory = step_with(slots, copies, max(users, 1))
    if users == 0:
        memory.allocator.free(1)
    with pytest.raises(RuntimeError, match=reason):
        check_writes(step, memory)


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
def test_priorities_decide_the_order_and_arrival_breaks_ties(order: tuple[str, ...]):
    priorities = {"a": 1, "b": 0, "c": 1}
    engine = tiny_engine(max_num_seqs=1)
    for name in order:
        engine.add_request(name, A, greedy(1), priority=priorities[name])
    ended = [output.request_id for _ in range(3) for output in engine.step()]
    assert ended == ["b", *(name for name in order if name != "b")]
