"""What a user may ask for: every value is checked where it is typed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from minipaged.params import BeamSearchParams, SamplingParams


def test_the_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_k, params.top_p, params.min_p) == (1, 1.0, 0, 1.0, 0.0)
    assert (params.max_tokens, params.seed, params.logprobs, params.ignore_eos) == (16, None, None, False)
    assert (params.repetition_penalty, params.cache_salt, tuple(params.stop)) == (1.0, None, ())


BAD = [
    ("n", [0, -1, 1.5, "2", None, True]),
    ("temperature", [-0.1, float("nan"), float("inf"), "hot", None, True]),
    ("top_k", [-1, 2.5, "3", None]),
    ("top_p", [0.0, -0.5, 1.1, float("nan"), "x", None]),
    ("min_p", [-0.1, 1.1, float("nan"), "x", None]),
    ("max_tokens", [0, -1, 1.5, "8", True]),
    ("stop", [5, [""], "", [5], ["a", ""], None]),
    ("stop_token_ids", [5, [-1], [1.5], ["a"], [True], None]),
    ("ignore_eos", ["no", 1, None]),
    ("seed", [1.5, "x", True]),
    ("logprobs", [-1, 1.5, "x", True]),
    ("repetition_penalty", [0.0, -1.0, float("nan"), float("inf"), "x", None]),
    ("cache_salt", [b"x", 5, ["x"]]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD for value in values])
def test_a_bad_value_is_an_error_that_names_the_parameter_and_the_value(name: str, value: Any):
    with pytest.raises(ValueError) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value) and repr(value).strip("[]'\"") in str(caught.value)


BAD_BEAMS = [
    ("beam_width", [0, -1, 2.5, "2", None]),
    ("max_tokens", [0, -1, 1.5, "x", None]),
    ("length_penalty", [float("nan"), float("inf"), "x", None, True]),
    ("ignore_eos", ["no", 1, None]),
    ("cache_salt", [b"x", 5]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_BEAMS for value in values])
def test_a_bad_value_of_a_beam_search_is_an_error_too(name: str, value: Any):
    with pytest.raises(ValueError, match=name) as caught:
        BeamSearchParams(**{name: value})
    assert repr(value).strip("'\"") in str(caught.value)


def test_greedy_samples_that_would_all_be_equal_are_refused():
    with pytest.raises(ValueError, match=r"(?s)n=2.*temperature"):
        SamplingParams(n=2, temperature=0.0)


@pytest.mark.parametrize("stop", ["END", ["END"], ("END",)])
def test_one_stop_text_may_be_given_bare(stop: Any):
    assert tuple(SamplingParams(stop=stop).stop) == ("END",)


@pytest.mark.parametrize(
    "good",
    [
        {"temperature": 0},
        {"temperature": 1},
        {"top_p": 1},
        {"min_p": 0},
        {"max_tokens": None},
        {"seed": -5},
        {"seed": 2**80},
        {"logprobs": 0},
        {"cache_salt": ""},
        {"stop_token_ids": (1, 2)},
        {"n": 3},
    ],
    ids=str,
)
def test_a_value_at_the_edge_is_accepted(good: dict[str, Any]):
    params = SamplingParams(**good)
    assert all(getattr(params, name) == value for name, value in good.items())


def test_parameters_cannot_be_changed_afterwards():
    with pytest.raises(FrozenInstanceError):
        SamplingParams().n = 2  # type: ignore[misc]
