"""Sampling: every filter against transformers' own, the distribution of the draws, and their independence."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from minipaged.params import SamplingParams
from minipaged.sampler import SamplingRow, sample, top_logprobs, uniform
from tests.reference import finish, hf_logits, prompt_of, tiny_engine, tiny_hf_model

V = 40
ALMOST_ONE = 1.0 - 2.0**-53


def draw(
    logits: torch.Tensor, params: SamplingParams, number: float, token_ids: list[int] | None = None
) -> int:
    return sample(logits[None], [SamplingRow(params, token_ids or [0], number)])[0]


def drawn_distribution(
    logits: torch.Tensor, params: SamplingParams, token_ids: list[int] | None = None, num_draws: int = 4000
) -> torch.Tensor:
    """How often each token comes out over evenly spaced numbers: the distribution to within 1 / num_draws."""
    numbers = [(i + 0.5) / num_draws for i in range(num_draws)]
    rows = [SamplingRow(params, token_ids or [0], number) for number in numbers]
    drawn = sample(logits.expand(num_draws, -1), rows)
    return torch.tensor(drawn).bincount(minlength=len(logits)) / num_draws


def expected_distribution(logits: torch.Tensor, params: SamplingParams, token_ids: list[int]) -> torch.Tensor:
    """The same through transformers' processors, in its own order."""
    from transformers import generation as hf

    processors: list[Any] = []
    if params.repetition_penalty != 1.0:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(hf.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        processors.append(hf.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(hf.TopPLogitsWarper(params.top_p))
    if params.min_p:
        processors.append(hf.MinPLogitsWarper(params.min_p))
    scores = logits[None].clone()
    for processor in processors:
        scores = processor(torch.tensor([token_ids]), scores)
    return scores[0].softmax(dim=-1)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": 1000},
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"temperature": 0.7, "top_k": 12, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.2},
        {"temperature": 1.5, "top_k": 30, "top_p": 0.95},
    ],
    ids=str,
)
def test_a_filter_gives_the_distribution_that_transformers_gives(filters: dict[str, float], seed: int):
    logits = 2.0 * torch.randn(V, generator=torch.Generator().manual_seed(seed))
    params, seen = SamplingParams(**filters), [3, 5, 3, 17, int(logits.argmax())]
    expected = expected_distribution(logits, params, seen)
    drawn = drawn_distribution(logits, params, seen)
    assert (drawn[expected == 0] == 0).all(), "a token that was filtered out came up"
    assert (drawn - expected).abs().max() < 1.5 / 4000


def test_rows_of_one_batch_each_have_their_own_parameters():
    logits = 2.0 * torch.randn(6, V)
    each = [
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.5, temperature=0.3),
        SamplingParams(temperature=0.0, repetition_penalty=5.0),
        SamplingParams(min_p=0.3),
        SamplingParams(),
    ]
    rows = [SamplingRow(params, [1, 2, int(logits[3].argmax())], 0.37) for params in each]
    together = sample(logits, rows)
    assert together == [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(6)]
    for order in ([5, 4, 3, 2, 1, 0], [3, 1], [2, 2, 2]):
        assert sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]


def test_sampling_leaves_the_logits_as_they_are():
    logits = torch.randn(3, V)
    before = logits.clone()
    params = [
        SamplingParams(repetition_penalty=2.0, top_k=2),
        SamplingParams(temperature=0.0, repetition_penalty=2.0),
    ]
    sample(logits, [SamplingRow(p, [1, 2], 0.5) for p in (*params, SamplingParams(top_p=0.5))])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_greedy_tie_goes_to_the_lowest_id_in_every_batch(rows: int):
    logits = torch.zeros(rows, 1000)
    logits[:, [17, 400, 999]] = 3.0
    assert sample(logits, [SamplingRow(SamplingParams(temperature=0.0), [0], 0.9)] * rows) == [17] * rows


@pytest.mark.parametrize("number", [0.0, 0.5, ALMOST_ONE])
def test_a_token_of_no_probability_is_never_drawn(number: float):
    for seed in range(300):
        logits = torch.randn(V, generator=torch.Generator().manual_seed(seed))
        kept = logits.topk(5).indices.tolist()
        if V - 1 in kept or 0 in kept:
            continue
        assert draw(logits, SamplingParams(top_k=5), number) in kept


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-38, 1e-45, 1e-300])
def test_a_vanishing_temperature_is_greedy(temperature: float):
    for seed in range(5):
        logits = 5.0 * torch.randn(V, generator=torch.Generator().manual_seed(seed))
        assert draw(logits, SamplingParams(temperature=temperature), 0.99) == logits.argmax()


def test_ties_at_the_edge_of_top_k_are_all_kept():
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0])
    assert (drawn_distribution(logits, SamplingParams(top_k=2)) > 0).tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_top_p_keeps_the_token_that_reaches_it():
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    assert (drawn_distribution(logits, SamplingParams(top_p=0.6)) > 0).tolist() == [True, True, False]
    assert (drawn_distribution(logits, SamplingParams(top_p=0.01)) > 0).tolist() == [True, False, False]


# -- the numbers behind the draws --------------------------------------------------------------------------


def test_the_numbers_are_a_function_of_seed_branch_and_position_and_look_uniform():
    keys = [(seed, branch, position) for seed in range(10) for branch in range(10) for position in range(100)]
    numbers = [uniform(*key) for key in keys]
    assert numbers == [uniform(*key) for key in keys]
    assert len(set(numbers)) == len(numbers) and all(0.0 <= number < 1.0 for number in numbers)
    counts = Counter(int(number * 20) for number in numbers)
    # Chi-square with 19 degrees of freedom: above 43.8 once in a thousand.
    assert sum((counts[i] - 500) ** 2 / 500 for i in range(20)) < 43.8
    pairs = Counter((int(a * 5), int(b * 5)) for a, b in pairwise(numbers))
    assert sum((pairs[i, j] - 400) ** 2 / 400 for i in range(5) for j in range(5)) < 51.2  # 24 degrees


def test_seed_branch_and_position_are_not_run_together():
    assert len({uniform(1, 11, 1), uniform(11, 1, 1), uniform(1, 1, 11), uniform(111, 1, 1)}) == 4


def test_the_draws_of_a_request_follow_the_model_s_distribution():
    """600 first tokens of one prompt, over seeds: chi-square against the dense model's probabilities."""
    engine, prompt = tiny_engine(num_blocks=2048, max_num_seqs=600), prompt_of(5)
    for seed in range(600):
        engine.add_request(
            str(seed), prompt, SamplingParams(seed=seed, max_tokens=1, top_k=8, temperature=6.0)
        )
    drawn = Counter(output.outputs[0].token_ids[0] for output in finish(engine).values())
    logits = hf_logits(tiny_hf_model(), prompt)[-1]
    top = (logits / 6.0).topk(8)
    assert set(drawn) <= set(top.indices.tolist())
    expected = dict(zip(top.indices.tolist(), (600 * top.values.softmax(dim=-1)).tolist(), strict=True))
    chi_square = sum((drawn[token] - count) ** 2 / count for token, count in expected.items())
    assert chi_square < 24.3, "7 degrees of freedom: above 24.3 once in a thousand"


# -- independence ------------------------------------------------------------------------------------------

# The tiny model is sure of itself (logits of deviation 8), so only a high temperature gives real draws.
MIXED = [
    SamplingParams(temperature=6.0, seed=1, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=6.0, seed=1, max_tokens=12, ignore_eos=True, top_p=0.9),
    SamplingParams(temperature=5.0, seed=2, max_tokens=9, ignore_eos=True, top_k=20, n=3),
    SamplingParams(
        temperature=8.0, seed=3, max_tokens=12, ignore_eos=True, min_p=0.01, repetition_penalty=1.2
    ),
    SamplingParams(temperature=4.0, seed=4, max_tokens=7, ignore_eos=True, n=2),
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
]


def samples(order: list[int], **engine_args: Any) -> dict[str, list[list[int]]]:
    engine = tiny_engine(**engine_args)
    for index in order:
        engine.add_request(str(index), prompt_of(5 + 3 * index, seed=index), MIXED[index])
    outputs = finish(engine)
    return {name: [branch.token_ids for branch in output.outputs] for name, output in outputs.items()}


@pytest.fixture(scope="module")
def alone() -> dict[str, list[list[int]]]:
    return {name: out for index in range(len(MIXED)) for name, out in samples([index]).items()}


@pytest.mark.parametrize(
    "engine_args",
    [
        {},
        {"block_size": 1, "num_blocks": 2000},
        {"max_num_batched_tokens": 4},
        {"max_num_seqs": 4},
        {"num_blocks": 14},
        {"num_blocks": 14, "max_num_batched_tokens": 5},
        {"num_blocks": 14, "preemption_mode": "swap", "num_cpu_blocks": 60},
        {"num_blocks": 14, "preemption_mode": "swap", "num_cpu_blocks": 5},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_a_seeded_request_has_the_same_samples_in_any_company(engine_args: dict[str, Any], alone: Any):
    for order in ([0, 1, 2, 3, 4, 5], random.Random(0).sample(range(6), 6)):
        assert samples(order, **engine_args) == alone


def test_branches_differ_from_each_other_and_seeds_from_each_other(alone: Any):
    assert len({tuple(branch) for branch in alone["2"]}) == 3
    params = [SamplingParams(seed=seed, max_tokens=8, temperature=5.0) for seed in range(4)]
    engine = tiny_engine()
    for index, each in enumerate(params):
        engine.add_request(str(index), prompt_of(5), each)
    assert len({tuple(output.outputs[0].token_ids) for output in finish(engine).values()}) == 4


def test_requests_without_a_seed_differ_but_an_engine_of_the_same_seed_repeats_them():
    def run(engine_seed: int) -> list[list[int]]:
        engine = tiny_engine(seed=engine_seed)
        for name in "abc":
            engine.add_request(name, prompt_of(5), SamplingParams(max_tokens=8, temperature=5.0))
        outputs = finish(engine)
        return [outputs[name].outputs[0].token_ids for name in "abc"]

    assert run(0) == run(0) != run(1)
    assert len(set(map(tuple, run(0)))) == 3


# -- logprobs ----------------------------------------------------------------------------------------------


def test_logprobs_are_the_model_s_own_log_softmax_likeliest_first():
    logits = torch.randn(3, V)
    rows = [
        SamplingRow(SamplingParams(logprobs=k, top_k=2, temperature=9.0), [0], 0.5) for k in (0, 3, V + 5)
    ]
    result = top_logprobs(logits, rows, [7, 8, 9])
    expected = logits.double().log_softmax(dim=-1)
    for row, (k, token) in enumerate(((0, 7), (3, 8), (V, 9))):
        entry = result[row]
        assert entry is not None
        best = expected[row].topk(k).indices.tolist()
        assert list(entry)[:k] == best and set(entry) == {*best, token}
        assert all(abs(value - expected[row, key]) < 1e-5 for key, value in entry.items())


def test_a_row_that_wants_no_logprobs_gets_none():
    assert top_logprobs(torch.randn(1, V), [SamplingRow(SamplingParams(), [0], 0.5)], [3]) == [None]


@pytest.mark.parametrize("num_blocks", [500, 9])
def test_a_request_s_logprobs_are_those_of_the_dense_model_even_after_preemption(num_blocks: int):
    engine = tiny_engine(num_blocks=num_blocks)
    params = SamplingParams(temperature=5.0, max_tokens=10, logprobs=4, seed=5, n=2, ignore_eos=True)
    for name in "ab":
        engine.add_request(name, prompt_of(7, seed=ord(name)), params)
    outputs = finish(engine)
    assert (engine.stats().preemptions > 0) == (num_blocks == 9)
    for name in "ab":
        for branch in outputs[name].outputs:
            tokens = outputs[name].prompt_token_ids + branch.token_ids
            dense = hf_logits(tiny_hf_model(), tokens).log_softmax(dim=-1)[6:-1]
            assert branch.logprobs is not None and len(branch.logprobs) == len(branch.token_ids) == 10
            for place, (token, entry) in enumerate(zip(branch.token_ids, branch.logprobs, strict=True)):
                assert set(entry) == {*dense[place].topk(4).indices.tolist(), token}
                assert all(abs(value - dense[place, key]) < 1e-3 for key, value in entry.items())
