"""`LLM`: generate, chat and stream on the tiny model (design section 6)."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged import LLM, SamplingParams
from minipaged.invariants import check_invariants
from minipaged.params import BeamSearchParams, RequestOutput
from tests.reference import all_free, greedy, not_greedy, tiny_hf_model


@pytest.fixture(scope="module")
def shared_llm() -> LLM:
    return LLM("tiny", block_size=4, num_blocks=200)


@pytest.fixture
def llm(shared_llm: LLM) -> LLM:
    """The same LLM for every test, which must find it empty and leave it empty."""
    assert all_free(shared_llm.engine) and not shared_llm.engine.requests
    return shared_llm


def test_the_example_of_the_design_works():
    llm = LLM("tiny", block_size=16, num_blocks=512)
    out = llm.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=16))
    assert out[0].prompt == "The capital of France is"
    assert len(out[0].outputs[0].token_ids) <= 16
    assert out[0].outputs[0].finish_reason in ("length", "stop")
    assert out[0].num_cached_tokens == 0
    assert isinstance(out[0].outputs[0].text, str)


def test_text_and_token_ids_are_the_same_prompt(llm: LLM):
    (text,) = llm.generate("Hello", greedy(6))
    (ids,) = llm.generate(list(b"Hello"), greedy(6))
    assert text.outputs[0].token_ids == ids.outputs[0].token_ids
    assert (text.prompt, ids.prompt) == ("Hello", None)
    assert text.prompt_token_ids == ids.prompt_token_ids == list(b"Hello")


def test_outputs_come_in_the_order_of_the_prompts_each_with_its_own_parameters(llm: LLM):
    prompts = ["a", "bb", [1, 2, 3], "dd"]
    params = [greedy(9), greedy(1), greedy(5), BeamSearchParams(2, max_tokens=3, ignore_eos=True)]
    outputs = llm.generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5, 3]
    assert [output.prompt_token_ids for output in outputs] == [[97], [98, 98], [1, 2, 3], [100, 100]]


def test_no_prompts_give_no_outputs(llm: LLM):
    assert llm.generate([], greedy(2)) == []


def test_one_refused_prompt_means_that_none_is_served(llm: LLM):
    steps = llm.engine.stats().steps
    with pytest.raises(ValueError, match="empty"):
        llm.generate(["fine", ""], greedy(2))
    assert not llm.engine.requests and llm.engine.stats().steps == steps
    check_invariants(llm.engine)


def test_a_wrong_number_of_parameters_is_an_error_with_both_numbers(llm: LLM):
    with pytest.raises(ValueError, match=r"(?s)3.*2"):
        llm.generate(["a", "b", "c"], [greedy(1), greedy(1)])


def test_the_same_llm_serves_again_and_hits_its_prefix_cache(llm: LLM):
    first = llm.generate("a long enough prompt", greedy(4))[0]
    second = llm.generate("a long enough prompt", greedy(4))[0]
    assert second.num_cached_tokens == 16
    assert second.outputs[0].token_ids == first.outputs[0].token_ids


def test_two_llms_of_one_seed_are_the_same_and_of_two_seeds_are_not():
    outputs = [
        LLM("tiny", num_blocks=20, seed=seed).generate("Hello", greedy(12))[0].outputs[0].token_ids
        for seed in (0, 0, 1)
    ]
    assert outputs[0] == outputs[1] != outputs[2]


def test_the_text_is_what_the_tokenizer_makes_of_the_tokens(llm: LLM):
    for seed in range(5):
        params = SamplingParams(temperature=6.0, seed=seed, max_tokens=30, n=2)
        for branch in llm.generate("Hello", params)[0].outputs:
            tokens = branch.token_ids
            shown = tokens[:-1] if branch.finish_reason == "stop" else tokens
            assert branch.text == llm.tokenizer.decode(shown)


# -- streaming ---------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(1.0, 12.0))
def test_a_stream_only_ever_grows_and_ends_with_what_generate_gives(
    shared_llm: LLM, seed: int, temperature: float
):
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=24)
    streamed = list(shared_llm.stream("Once", params))
    (whole,) = shared_llm.generate("Once", params)
    texts = [output.outputs[0].text for output in streamed]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert [output.finished for output in streamed] == [False] * (len(streamed) - 1) + [True]
    assert texts[-1] == whole.outputs[0].text
    tokens = streamed[-1].outputs[0].token_ids
    assert tokens == whole.outputs[0].token_ids
    for output in streamed[:-1]:
        so_far = bytes(token for token in output.outputs[0].token_ids if token < 256)
        assert so_far.decode(errors="replace").startswith(output.outputs[0].text)
        assert len(so_far) - len(output.outputs[0].text.encode()) < 4 or "\ufffd" in output.outputs[0].text


def test_leaving_a_stream_early_frees_everything(llm: LLM):
    stream = llm.stream("Once", greedy(50))
    assert len(list(islice(stream, 3))) == 3
    assert llm.engine.has_unfinished_requests()
    stream.close()
    assert not llm.engine.has_unfinished_requests() and all_free(llm.engine)


def test_a_stream_whose_request_is_aborted_ends(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    steps = iter(range(20))
    step = llm.engine.step
    monkeypatch.setattr(llm.engine, "step", lambda: [next(steps)] and step())
    outputs = []
    for output in llm.stream("Once", greedy(50)):
        outputs.append(output)
        if len(outputs) == 2:
            llm.engine.abort(output.request_id)
    assert len(outputs) <= 3


def test_two_streams_may_take_turns(llm: LLM):
    expected = [llm.generate(prompt, greedy(10))[0].outputs[0].token_ids for prompt in ("One", "Two")]
    streams = [llm.stream(prompt, greedy(10)) for prompt in ("One", "Two")]
    last: list[RequestOutput | None] = [None, None]
    waiting = [0, 1]
    while waiting:
        for index in list(waiting):
            output = next(streams[index], None)
            if output is None:
                waiting.remove(index)
            else:
                last[index] = output
    assert [output is not None and output.finished for output in last] == [True, True]
    assert [output.outputs[0].token_ids for output in last if output is not None] == expected


# -- chat --------------------------------------------------------------------------------------------------


def test_chat_answers_what_the_template_makes_of_the_conversation(llm: LLM):
    messages = [{"role": "user", "content": "Hi"}]
    output = llm.chat(messages, greedy(8))[0]
    assert output.prompt_token_ids == llm.tokenizer.encode(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = output.outputs[0].token_ids
    assert len(tokens) == 8 and not not_greedy(tiny_hf_model(), output.prompt_token_ids, tokens)


def test_the_second_turn_of_a_chat_hits_the_prefix_cache(llm: LLM):
    messages = [{"role": "user", "content": "What is a block table?"}]
    first = llm.chat(messages, greedy(8))[0]
    messages += [
        {"role": "assistant", "content": first.outputs[0].text},
        {"role": "user", "content": "And a slot?"},
    ]
    second = llm.chat(messages, greedy(2))[0]
    assert second.num_cached_tokens >= (len(first.prompt_token_ids) - 1) // 4 * 4


# -- construction ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", torch.bfloat16, "float16"], ids=str)
def test_weights_and_cache_have_the_dtype_that_was_asked_for(dtype: str | torch.dtype):
    llm = LLM("tiny", num_blocks=20, dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert llm.model.dtype == llm.engine.kv_cache.k.dtype == wanted
    assert len(llm.generate("Hello", greedy(4))[0].outputs[0].token_ids) == 4


def test_a_budget_in_bytes_sizes_the_pool():
    llm = LLM("tiny", block_size=4, kv_cache_memory_bytes=10 * 4 * 512 + 100)
    assert llm.engine.stats().num_blocks == 10
    assert llm.engine.kv_cache.num_bytes == 10 * 4 * 512


def test_the_smallest_pool_serves_what_fits_it():
    llm = LLM("tiny", block_size=1, num_blocks=1)
    output = llm.generate([[65]], greedy(3))[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "capacity")
