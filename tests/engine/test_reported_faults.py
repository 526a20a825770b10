"""Faults that were found by trying to break the engine, each with the values that showed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minipaged import (
    LLM,
    BeamSearchParams,
    CompletionOutput,
    Engine,
    ModelError,
    SamplingParams,
    check_invariants,
)
from minipaged.cli import read_prompts
from minipaged.detokenizer import Detokenizer
from minipaged.linear import padded_rows
from minipaged.loading.hub import find_model


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", num_blocks=64, block_size=4)


def engine_of(llm: LLM, **options: Any) -> Engine:
    return Engine(llm.model, llm.tokenizer, **{"num_blocks": 64, "block_size": 4, **options})


def serve(engine: Engine) -> list[CompletionOutput]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        check_invariants(engine)
    return outputs[0].outputs


@pytest.mark.parametrize("penalty", [1000, 400, -700, 1e308, 10**400])
def test_a_length_penalty_that_no_score_can_hold_is_refused(penalty: float) -> None:
    with pytest.raises(ValueError, match="length_penalty"):
        BeamSearchParams(length_penalty=penalty)


@pytest.mark.parametrize("penalty", [1e-38, 1e-300, 1e300, 0, 10**400])
def test_a_repetition_penalty_that_makes_logits_infinite_is_refused(penalty: float) -> None:
    with pytest.raises(ValueError, match="repetition_penalty"):
        SamplingParams(repetition_penalty=penalty)


@pytest.mark.parametrize("fault", ["detokenizer", "append"])
def test_a_token_whose_taking_in_was_interrupted_is_neither_lost_nor_counted_twice(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    expected = llm.generate("abc", params)[0].outputs
    engine = engine_of(llm)
    engine.add_request("a", "abc", params)
    engine.step()

    def interrupt(*args: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    if fault == "detokenizer":
        monkeypatch.setattr(Detokenizer, "append", interrupt)
    else:
        monkeypatch.setattr("minipaged.engine.append_token", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    (got,) = serve(engine)
    assert (got.token_ids, got.text, got.finish_reason) == (
        expected[0].token_ids, expected[0].text, "length",
    )
    assert got.logprobs is not None and [list(each) for each in got.logprobs] == [[i] for i in got.token_ids]


def test_samples_get_their_first_token_in_a_full_pool_after_sampling_was_interrupted(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(interrupted: bool) -> list[tuple[list[int], str | None]]:
        engine = engine_of(llm, num_blocks=2, block_size=16)
        engine.add_request("a", [28] * 32, SamplingParams(n=2, max_tokens=6, seed=86))
        if interrupted:

            def interrupt(*args: object) -> None:
                monkeypatch.undo()
                raise KeyboardInterrupt

            monkeypatch.setattr(engine, "_sample", interrupt)
            with pytest.raises(KeyboardInterrupt):
                engine.step()
        return [(output.token_ids, output.finish_reason) for output in serve(engine)]

    assert outcome(interrupted=True) == outcome(interrupted=False)
    assert all(len(token_ids) == 1 for token_ids, _ in outcome(interrupted=True))


def test_text_that_is_no_unicode_is_named(llm: LLM) -> None:
    with pytest.raises(ValueError, match="not a valid text"):
        llm.generate("a\ud800")
    with pytest.raises(ValueError, match="not a valid text"):
        llm.chat([{"role": "user", "content": "\udfff"}])


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 10**30},
        {"kv_cache_memory_bytes": 10**30},
        {"parts": 5},
        {"device": "meta"},
        {"enable_prefix_caching": "no"},
        {"seed": 2**70},
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        LLM("tiny", **options)


@pytest.mark.parametrize("name", ["", "a" * 5000, "~nouser/x", "nope"])
def test_a_name_that_is_no_model_says_what_is_one(name: str) -> None:
    with pytest.raises(ModelError, match="tiny"):
        find_model(name)


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="MINIPAGED_CACHE"):
        find_model("smollm2-135m", progress=False)


def test_a_model_keeps_no_output_of_requests_that_others_added(llm: LLM) -> None:
    for number in range(20):
        llm.engine.add_request(f"mine-{number}", "abc", SamplingParams(max_tokens=1))
    llm.generate("zz", SamplingParams(max_tokens=40, ignore_eos=True))
    assert not llm._newest and not llm.engine.requests


def test_changing_an_output_changes_no_later_one(llm: LLM) -> None:
    engine = engine_of(llm)
    engine.add_request("a", "abc", SamplingParams(temperature=0, max_tokens=3, logprobs=1, ignore_eos=True))
    (first,) = engine.step()
    assert first.outputs[0].logprobs
    first.outputs[0].logprobs[0].clear()
    first.prompt_token_ids.clear()
    (second,) = engine.step()
    assert second.prompt_token_ids == list(b"abc") and second.outputs[0].logprobs
    assert all(second.outputs[0].logprobs)


def test_a_byte_order_mark_is_no_part_of_a_prompt() -> None:
    assert read_prompts(['\ufeff{"prompt": "a"}\n']) == ["a"] == read_prompts(["\ufeffa\n"])


def test_products_meet_few_numbers_of_rows_and_compute_few_in_vain() -> None:
    padded = {num_rows: padded_rows(num_rows) for num_rows in range(1, 2049)}
    assert len(set(padded.values())) == 69
    assert all(padded[n] >= n for n in padded) and all(padded[n] <= n * 9 / 8 for n in padded if n > 3)
