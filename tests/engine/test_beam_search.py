"""Beam search gives what transformers' does on the same weights, with the same scores."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from minipaged.config import ModelConfig
from minipaged.engine import Engine
from minipaged.loading.tokenizer import Tokenizer
from minipaged.loading.weights import random_weights
from minipaged.model import Llama
from minipaged.params import BeamSearchParams, RequestOutput, SamplingParams
from tests.reference import TINY, all_free, finish, greedy, hf_model, prompt_of, tiny_engine, tiny_model

# A small vocabulary makes the end-of-text tokens come up often; specials of the tokenizer never do.
SMALL = replace(TINY, vocab_size=24, eos_token_ids=(3, 11))


def small_config(num_eos: int) -> ModelConfig:
    return replace(SMALL, eos_token_ids=SMALL.eos_token_ids[:num_eos])


@cache
def models(num_eos: int, seed: int) -> tuple[Llama, Any]:
    """Ours and transformers', with logits flat enough for beams to cross."""
    config = small_config(num_eos)
    weights = dict(random_weights(config, seed))
    weights["model.norm.weight"] = weights["model.norm.weight"] * 0.1
    theirs = hf_model(config, seed)
    theirs.model.norm.weight.data.mul_(0.1)
    return Llama(config, weights.items()), theirs


def engine_for(model: Llama, **kwargs: Any) -> Engine:
    return Engine(model, Tokenizer.byte_level(), **({"num_blocks": 500, "block_size": 4} | kwargs))


def search(engine: Engine, prompt: list[int], params: BeamSearchParams) -> RequestOutput:
    engine.add_request("beams", prompt, params)
    output = finish(engine)["beams"]
    assert all_free(engine)
    return output


def transformers_beams(
    model: Any, prompt: list[int], params: BeamSearchParams
) -> list[tuple[list[int], float]]:
    with torch.inference_mode():
        result = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), num_beams=params.beam_width,
            num_return_sequences=params.beam_width, max_new_tokens=params.max_tokens, do_sample=False,
            length_penalty=params.length_penalty, early_stopping=False, pad_token_id=0,
            eos_token_id=None if params.ignore_eos else list(model.config.eos_token_id or []) or None,
            return_dict_in_generate=True, output_scores=True,
        )
    eos = () if params.ignore_eos else tuple(model.config.eos_token_id or ())
    beams = []
    for row, score in zip(result.sequences.tolist(), result.sequences_scores.tolist(), strict=True):
        tokens = row[len(prompt) :]
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
        beams.append((tokens[:end], score))
    return beams


def assert_equals_transformers(output: RequestOutput, expected: list[tuple[list[int], float]]) -> None:
    """Equal beams in equal order, but beams whose scores differ by rounding alone may change places."""
    scores = [branch.score for branch in output.outputs]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-4)
    assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    ours = {tuple(branch.token_ids): branch.score for branch in output.outputs}
    theirs = {tuple(tokens): score for tokens, score in expected}
    worst = min(theirs.values())
    for tokens in ours.keys() ^ theirs.keys():
        assert {**ours, **theirs}[tokens] == pytest.approx(worst, abs=1e-4), (
            "only a tie for the last place may differ"
        )


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("beam_width", [1, 2, 3, 5])
@pytest.mark.parametrize("num_eos", [0, 1, 2])
def test_beams_and_scores_are_those_of_transformers(num_eos: int, beam_width: int, length_penalty: float):
    ended = 0
    for seed in range(4):
        ours, theirs = models(num_eos, seed)
        prompt = [token % 24 for token in prompt_of(5 + seed, seed=seed)]
        params = BeamSearchParams(beam_width, max_tokens=10, length_penalty=length_penalty)
        if beam_width == 1:
            output = search(engine_for(ours), prompt, params)
            engine = engine_for(ours)
            engine.add_request("greedy", prompt, SamplingParams(temperature=0.0, max_tokens=10))
            expected = finish(engine)["greedy"].outputs[0]
            assert output.outputs[0].token_ids == expected.token_ids
            assert output.outputs[0].finish_reason == expected.finish_reason
            ended += expected.finish_reason == "stop"
            continue
        output = search(engine_for(ours), prompt, params)
        assert_equals_transformers(output, transformers_beams(theirs, prompt, params))
        assert len(output.outputs) == beam_width
        ended += sum(branch.finish_reason == "stop" for branch in output.outputs)
    if num_eos and length_penalty <= 1.0:  # a high penalty prefers beams that never end
        assert ended, "no beam met an end-of-text token: a weak test"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 25])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_short_and_long_searches_agree_too(max_tokens: int, ignore_eos: bool):
    for seed in range(3):
        ours, theirs = models(1, seed)
        prompt = [token % 24 for token in prompt_of(6, seed=seed)]
        params = BeamSearchParams(4, max_tokens=max_tokens, ignore_eos=ignore_eos)
        output = search(engine_for(ours), prompt, params)
        assert_equals_transformers(output, transformers_beams(theirs, prompt, params))
        if ignore_eos:
            assert {branch.finish_reason for branch in output.outputs} == {"length"}


def test_beams_of_the_tiny_model_agree_too():
    from tests.reference import tiny_hf_model

    for seed in range(3):
        prompt, params = prompt_of(7, seed=seed), BeamSearchParams(3, max_tokens=8)
        output = search(tiny_engine(), prompt, params)
        assert_equals_transformers(output, transformers_beams(tiny_hf_model(), prompt, params))


@pytest.mark.parametrize(
    "engine_args",
    [
        {"block_size": 1},
        {"block_size": 16},
        {"num_blocks": 9},
        {"num_blocks": 9, "preemption_mode": "swap", "num_cpu_blocks": 50},
        {"max_num_batched_tokens": 4},
        {"num_blocks": 9, "max_num_batched_tokens": 5},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_beams_do_not_depend_on_blocks_chunks_or_preemption(engine_args: dict[str, Any]):
    ours, _ = models(1, 0)
    prompt = [token % 24 for token in prompt_of(6)]
    params = BeamSearchParams(4, max_tokens=6)
    expected = search(engine_for(ours), prompt, params)
    engine = engine_for(ours, **engine_args)
    engine.add_request("other", prompt[::-1], greedy(8))
    output = search(engine, prompt, params)
    assert [b.token_ids for b in output.outputs] == [b.token_ids for b in expected.outputs]
    assert [b.score for b in output.outputs] == pytest.approx([b.score for b in expected.outputs], abs=1e-4)
    assert "num_blocks" not in engine_args or engine.stats().preemptions > 0


def test_a_split_copies_at_most_the_tail_and_a_dead_beam_gives_its_blocks_back():
    engine = tiny_engine(block_size=4)
    engine.add_request("beams", prompt_of(41), BeamSearchParams(4, max_tokens=12, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
        assert len(engine.last_step.copies) <= 3
        # 10 full blocks are shared by all; each beam has at most 4 of its own.
        assert engine.stats().blocks_used <= 10 + 4 * 4


@pytest.mark.parametrize("end", ["abort", "capacity"])
def test_a_search_cut_short_returns_the_best_beam_width_beams(end: str):
    ours, _ = models(2, 1)
    for steps in range(1, 8):
        engine = engine_for(ours, num_blocks=500 if end == "abort" else 4 + steps)
        engine.add_request("beams", [5, 6, 7, 8], BeamSearchParams(4, max_tokens=50, length_penalty=2.0))
        if end == "abort":
            for _ in range(steps):
                engine.step()
            output = engine.abort("beams")
        else:
            output = finish(engine)["beams"]
        if output is None:
            continue
        scores = [branch.score for branch in output.outputs]
        assert 1 <= len(scores) <= 4 and scores == sorted(scores, reverse=True)  # type: ignore[type-var]
        assert {branch.finish_reason for branch in output.outputs} <= {"stop", end}
        assert [branch.index for branch in output.outputs] == list(range(len(scores)))


def test_several_searches_and_requests_run_side_by_side():
    prompts = [prompt_of(5 + index, seed=index) for index in range(3)]
    params = [BeamSearchParams(3, max_tokens=6), greedy(9), BeamSearchParams(2, max_tokens=9)]
    expected = []
    for prompt, each in zip(prompts, params, strict=True):
        engine = tiny_engine()
        engine.add_request("alone", prompt, each)
        expected.append([branch.token_ids for branch in finish(engine)["alone"].outputs])
    engine = tiny_engine()
    for index, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(index), prompt, each)
    outputs = finish(engine)
    assert [[b.token_ids for b in outputs[str(i)].outputs] for i in range(3)] == expected


def test_a_beam_ends_at_the_model_s_length():
    engine = Engine(tiny_model(), Tokenizer.byte_level(), num_blocks=100, block_size=4, max_model_len=12)
    output = search(engine, prompt_of(8), BeamSearchParams(2, max_tokens=50, ignore_eos=True))
    assert [len(branch.token_ids) for branch in output.outputs] == [4, 4]
    assert {branch.finish_reason for branch in output.outputs} == {"length"}
