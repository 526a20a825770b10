"""Wrong input is a named error that says what was given; nothing is lost and the engine serves on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import minipaged.engine
from minipaged import LLM, SamplingParams
from minipaged.config import ModelConfig
from minipaged.engine import Engine
from minipaged.errors import ModelError
from minipaged.invariants import check_invariants
from minipaged.loading.weights import random_weights
from minipaged.params import BeamSearchParams, RequestOutput
from tests.reference import (
    all_free,
    finish,
    greedy,
    interrupted_once,
    prompt_of,
    tiny_engine,
    tiny_model,
)

# -- requests ----------------------------------------------------------------------------------------------


def busy_engine() -> Engine:
    """One request runs and one waits; 8 blocks of 4."""
    engine = tiny_engine(num_blocks=8, max_num_seqs=2, max_num_batched_tokens=64)
    engine.add_request("running", prompt_of(9), greedy(6))
    engine.step()
    engine.add_request("waiting", prompt_of(5, seed=1), greedy(6), priority=3)
    return engine


BAD_REQUESTS: list[tuple[str, dict[str, Any], str]] = [
    ("an empty text", {"prompt": ""}, "empty.*0 tokens"),
    ("no tokens", {"prompt": []}, "empty.*0 tokens"),
    ("a prompt too long for the pool", {"prompt": [1] * 33}, "33 tokens.*9 blocks.*8"),
    ("a prompt too long for the model", {"prompt": [1] * 2048}, "2048 tokens.*2047"),
    ("a token that is not in the vocabulary", {"prompt": [1, 260]}, "260.*260"),
    ("a negative token", {"prompt": [1, -1]}, "-1"),
    ("a number", {"prompt": 5}, "int.*5"),
    ("nothing", {"prompt": None}, "NoneType"),
    ("bytes", {"prompt": b"abc"}, "bytes"),
    ("fractions", {"prompt": [1.0, 2.0]}, "1.0"),
    ("truths", {"prompt": [True]}, "True"),
    ("a list of texts", {"prompt": ["a", "b"]}, "'a'"),
    ("a tensor", {"prompt": torch.tensor([1, 2])}, "Tensor"),
    ("an id in use", {"request_id": "running"}, "'running'"),
    ("an id in the queue", {"request_id": "waiting"}, "'waiting'"),
    ("an id that is no text", {"request_id": 5}, "5"),
    ("parameters of the wrong type", {"params": {"n": 2}}, "dict"),
    ("a priority that is no number", {"priority": "high"}, "priority.*'high'"),
    ("a priority that is not a number", {"priority": float("nan")}, "priority.*nan"),
    ("a priority of nothing", {"priority": None}, "priority.*None"),
    ("more samples than can step together", {"params": SamplingParams(n=3)}, "3.*2"),
    ("more beams than can step together", {"params": BeamSearchParams(beam_width=3)}, "3.*2"),
]


@pytest.mark.parametrize(
    ("arguments", "match"), [case[1:] for case in BAD_REQUESTS], ids=[c[0] for c in BAD_REQUESTS]
)
def test_a_bad_request_is_refused_and_nothing_has_changed(arguments: dict[str, Any], match: str):
    engine = busy_engine()
    before = engine.stats()
    with pytest.raises(ValueError, match=f"(?s){match}"):
        engine.add_request(**({"request_id": "new", "prompt": [1, 2], "params": greedy(2)} | arguments))
    assert engine.stats() == before
    check_invariants(engine)
    assert set(engine.requests) == {"running", "waiting"}
    engine.add_request("after", [1, 2], greedy(2))
    outputs = finish(engine)
    expected = finish(undisturbed())
    assert {name: output.outputs for name, output in outputs.items()} == {
        name: output.outputs for name, output in expected.items()
    }


def undisturbed() -> Engine:
    engine = busy_engine()
    engine.add_request("after", [1, 2], greedy(2))
    return engine


def test_a_salt_that_is_no_text_is_refused_before_it_can_stop_the_engine():
    for params in (SamplingParams, BeamSearchParams):
        with pytest.raises(ValueError, match="cache_salt"):
            params(cache_salt=b"secret")  # type: ignore[arg-type]


# -- LLM ---------------------------------------------------------------------------------------------------

BAD_ENGINES: list[tuple[dict[str, Any], str]] = [
    ({"block_size": 0}, "block_size.*0"),
    ({"block_size": -1}, "block_size.*-1"),
    ({"block_size": "16"}, "block_size.*'16'"),
    ({"block_size": 0, "num_blocks": 4}, "block_size.*0"),
    ({"num_blocks": 0}, "num_blocks.*0"),
    ({"num_blocks": 1.5}, "num_blocks.*1.5"),
    ({"num_blocks": "8"}, "num_blocks.*'8'"),
    ({"num_blocks": 4, "kv_cache_memory_bytes": 10**6}, "num_blocks=4.*kv_cache_memory_bytes=1000000"),
    ({"kv_cache_memory_bytes": 8191}, "8,191.*8,192"),
    ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes.*0"),
    ({"kv_cache_memory_bytes": "1 GB"}, "kv_cache_memory_bytes.*'1 GB'"),
    ({"max_num_seqs": 0}, "max_num_seqs.*0"),
    ({"max_num_batched_tokens": 0}, "max_num_batched_tokens.*0"),
    ({"max_model_len": 1}, "max_model_len.*2.*1"),
    ({"max_model_len": 2049}, "max_model_len.*2048.*2049"),
    ({"preemption_mode": "drop"}, "preemption_mode.*'drop'"),
    ({"preemption_mode": "swap"}, "num_cpu_blocks"),
    ({"num_cpu_blocks": -1}, "num_cpu_blocks.*-1"),
    ({"dtype": "int8"}, "dtype.*float32.*'int8'"),
    ({"dtype": torch.int64}, "dtype.*float32.*int64"),
    ({"device": "nonsense"}, "device.*'nonsense'"),
    ({"attention_backend": "flash"}, "attention_backend.*auto, torch, triton, numba.*'flash'"),
    ({"seed": "x"}, "seed.*'x'"),
]


@pytest.mark.parametrize(("arguments", "match"), BAD_ENGINES, ids=str)
def test_a_bad_setting_is_an_error_that_names_it_and_its_value(arguments: dict[str, Any], match: str):
    with pytest.raises(ValueError, match=f"(?s){match}"):
        LLM("tiny", **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: cuda is a good device here")
def test_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="cuda"):
        LLM("tiny", device="cuda")


@pytest.mark.parametrize("prompts", [5, None, b"abc", {"a": 1}, 1.5], ids=str)
def test_prompts_of_the_wrong_type_are_an_error(prompts: Any):
    llm = LLM("tiny", num_blocks=8)
    with pytest.raises(ValueError, match=type(prompts).__name__):
        llm.generate(prompts, greedy(1))
    assert len(llm.generate("fine", greedy(1))) == 1


@pytest.mark.parametrize(
    "messages",
    [[], "hi", None, [{"role": "user"}], [{"content": "x"}], ["x"], [{"role": "user", "content": 5}]],
    ids=str,
)
def test_messages_of_the_wrong_shape_are_an_error(messages: Any):
    llm = LLM("tiny", num_blocks=8)
    with pytest.raises(ValueError, match=r"(?s)messages?.*role.*content"):
        llm.chat(messages, greedy(1))


# -- models ------------------------------------------------------------------------------------------------


def write_model(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """A model folder as others write it, of the tiny model's shape; its tensors."""
    tiny = ModelConfig.tiny()
    raw = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 260, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "eos_token_id": 257,
    }
    (folder / "config.json").write_text(json.dumps(raw | changes))
    vocab = {chr(0x100 + byte): byte for byte in range(256)}
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tensors = dict(random_weights(tiny, seed=0))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_a_good_folder_is_served_like_the_tiny_model_it_was_made_from(tmp_path: Path):
    write_model(tmp_path)
    llm = LLM(tmp_path, num_blocks=20, block_size=4)
    llm.engine.add_request("a", prompt_of(7), greedy(8))
    engine = tiny_engine()
    engine.add_request("a", prompt_of(7), greedy(8))
    assert finish(llm.engine)["a"].outputs[0].token_ids == finish(engine)["a"].outputs[0].token_ids


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def resave(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = dict(random_weights(ModelConfig.tiny(), seed=0))
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


NORM = "model.norm.weight"
BAD_FOLDERS: list[tuple[str, Callable[[Path], Any], str]] = [
    ("no config", drop("config.json"), r"config\.json"),
    ("no weights", drop("model.safetensors"), r"model\.safetensors"),
    ("no tokenizer", drop("tokenizer.json"), r"tokenizer\.json"),
    ("truncated weights", truncate, r"model\.safetensors"),
    ("a config that is no JSON", lambda f: (f / "config.json").write_text("{"), r"config\.json"),
    ("a tokenizer that is no JSON", lambda f: (f / "tokenizer.json").write_text("{"), r"tokenizer\.json"),
    (
        "another architecture",
        lambda f: write_model(f, architectures=["GPT2LMHeadModel"]),
        "GPT2LMHeadModel.*Llama",
    ),
    ("no architecture", lambda f: write_model(f, architectures=[]), "Llama"),
    ("heads that don't divide", lambda f: write_model(f, num_key_value_heads=3), "4.*3"),
    ("weights for another shape", lambda f: write_model(f, hidden_size=32), r"64.*32"),
    ("weights for more layers", lambda f: write_model(f, num_hidden_layers=3), r"layers\.2"),
    ("a missing tensor", resave(lambda t: t.pop(NORM)), NORM),
    ("a tensor of another shape", resave(lambda t: t.update({NORM: torch.ones(65)})), rf"{NORM}.*65.*64"),
    (
        "a tensor of whole numbers",
        resave(lambda t: t.update({NORM: torch.ones(64, dtype=torch.int8)})),
        "int8",
    ),
    ("a tensor too many", resave(lambda t: t.update({"extra.weight": torch.ones(1)})), r"extra\.weight"),
]


@pytest.mark.parametrize(
    ("damage", "match"), [case[1:] for case in BAD_FOLDERS], ids=[c[0] for c in BAD_FOLDERS]
)
def test_a_bad_model_folder_is_a_model_error_that_says_what_is_wrong(
    tmp_path: Path, damage: Callable[[Path], Any], match: str
):
    write_model(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=f"(?s){match}"):
        LLM(tmp_path, num_blocks=4)


@pytest.mark.parametrize("model", ["no-such-model", "/no/such/folder"])
def test_an_unknown_model_is_an_error_that_names_it_and_what_there_is(model: Any):
    with pytest.raises(ValueError, match=rf"(?s){model}.*smollm2-135m"):
        LLM(model, num_blocks=4)


@pytest.mark.parametrize("model", [5, None, b"tiny"], ids=str)
def test_a_model_that_is_no_name_and_no_path_is_an_error(model: Any):
    with pytest.raises(ValueError, match=type(model).__name__):
        LLM(model, num_blocks=4)


def test_a_gguf_file_that_is_none_is_a_model_error(tmp_path: Path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match=r"model\.gguf"):
        LLM(file, num_blocks=4)


# -- steps that fail ---------------------------------------------------------------------------------------

ERRORS = [RuntimeError("out of memory"), KeyboardInterrupt()]
MODES: list[dict[str, Any]] = [
    {},
    {"num_blocks": 12},
    {"num_blocks": 12, "preemption_mode": "swap", "num_cpu_blocks": 40},
    {"num_blocks": 12, "preemption_mode": "swap", "num_cpu_blocks": 40, "enable_prefix_caching": False},
    {"max_num_batched_tokens": 5, "num_blocks": 14},
]


def add_all(engine: Engine) -> None:
    engine.add_request("greedy", prompt_of(9), greedy(10))
    engine.add_request("also", prompt_of(9), greedy(7), priority=1)
    samples = SamplingParams(n=3, temperature=5.0, seed=1, max_tokens=6, ignore_eos=True, logprobs=1)
    engine.add_request("samples", prompt_of(6, seed=2), samples)
    engine.add_request("beams", prompt_of(5, seed=3), BeamSearchParams(3, max_tokens=5, ignore_eos=True))
    engine.add_request("capacity", prompt_of(30, seed=4), greedy(40), priority=2)


def answers(outputs: dict[str, RequestOutput]) -> dict[str, Any]:
    return {
        name: [
            (branch.index, branch.text, branch.token_ids, branch.finish_reason) for branch in output.outputs
        ]
        for name, output in outputs.items()
    }


def serve_with_failures(
    engine: Engine, failing: set[int], break_one: Callable[[Exception | BaseException], None]
) -> tuple[dict[str, RequestOutput], int]:
    """Serve everything; `break_one` arms a failure before the steps in `failing`. Also how many failed."""
    outputs: dict[str, RequestOutput] = {}
    failures = 0
    for number in range(500):
        if not engine.has_unfinished_requests():
            break
        if number in failing:
            break_one(ERRORS[number % 2])
        try:
            for output in engine.step():
                if output.finished:
                    assert output.request_id not in outputs
                    outputs[output.request_id] = output
        except (RuntimeError, KeyboardInterrupt) as error:
            assert error in ERRORS
            failures += 1
        check_invariants(engine)
    assert not engine.has_unfinished_requests()
    assert all_free(engine)
    return outputs, failures


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("failing", [{0}, {1}, {2, 3}, {4}, {5, 6, 8}, {7, 9}, set(range(0, 60, 2))], ids=str)
def test_a_step_whose_forward_fails_costs_nobody_a_token(
    failing: set[int], mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    expected_engine = tiny_engine(**mode)
    add_all(expected_engine)
    expected = answers(finish(expected_engine))
    engine = tiny_engine(**mode)
    add_all(engine)
    model = tiny_model()
    forward = model.forward

    def break_one(error: BaseException) -> None:
        monkeypatch.setattr(model, "forward", interrupted_once(forward, error))

    outputs, failures = serve_with_failures(engine, failing, break_one)
    assert failures
    actual = answers(outputs)
    # How far a request gets that outgrows the pool doesn't depend on failures either.
    assert actual == expected


@pytest.mark.parametrize("place", ["sample", "top_logprobs", "advance_beams", "check_writes"])
@pytest.mark.parametrize("failing", [{0}, {1, 2}, {3}, {4, 5}, {6}], ids=str)
def test_a_step_that_fails_anywhere_else_costs_nobody_a_token(
    failing: set[int], place: str, monkeypatch: pytest.MonkeyPatch
):
    mode = {"num_blocks": 14, "preemption_mode": "swap", "num_cpu_blocks": 40}
    expected_engine = tiny_engine(**mode)
    add_all(expected_engine)
    expected = answers(finish(expected_engine))
    engine = tiny_engine(**mode)
    add_all(engine)
    original = getattr(minipaged.engine, place)

    def break_one(error: BaseException) -> None:
        monkeypatch.setattr(minipaged.engine, place, interrupted_once(original, error))

    outputs, failures = serve_with_failures(engine, failing, break_one)
    assert failures
    assert answers(outputs) == expected


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("call", range(0, 40, 3))
def test_an_interrupt_in_the_middle_of_scheduling_costs_nobody_a_token(mode: str, call: int):
    """The block table's `append` is interrupted at its n-th call, wherever that is."""
    from minipaged.block_table import Append, BlockTable
    from minipaged.parts import Parts

    class Interrupted(BlockTable):
        calls = 0

        def append(self, num_tokens: int) -> Append:
            Interrupted.calls += 1
            if Interrupted.calls == call + 1:
                raise ERRORS[1]
            return super().append(num_tokens)

    settings: dict[str, Any] = {"num_blocks": 12, "preemption_mode": mode, "num_cpu_blocks": 40}
    expected_engine = tiny_engine(**settings)
    add_all(expected_engine)
    expected = answers(finish(expected_engine))
    engine = tiny_engine(**settings, parts=Parts(block_table=Interrupted))
    add_all(engine)
    outputs, failures = serve_with_failures(engine, set(), lambda _: None)
    assert failures == 1
    assert answers(outputs) == expected


def test_what_ended_in_a_step_that_failed_is_reported_by_the_next_one(monkeypatch: pytest.MonkeyPatch):
    """Block size 4, 2 blocks: "a" outgrows the pool in the very step in which "b"'s forward fails."""
    engine = tiny_engine(num_blocks=2)
    engine.add_request("a", prompt_of(8), greedy(4))
    engine.add_request("b", prompt_of(4), greedy(2))
    engine.step()
    monkeypatch.setattr(tiny_model(), "forward", interrupted_once(tiny_model().forward, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    check_invariants(engine)
    assert set(engine.requests) == {"a", "b"}
    outputs = finish(engine)
    assert outputs["a"].outputs[0].finish_reason == "capacity"
    assert outputs["b"].outputs[0].finish_reason == "length"


def test_what_ended_in_a_step_that_failed_can_be_aborted_and_its_id_used_again(
    monkeypatch: pytest.MonkeyPatch,
):
    engine = tiny_engine(num_blocks=2)
    engine.add_request("a", prompt_of(8), greedy(4))
    engine.add_request("b", prompt_of(4), greedy(2))
    engine.step()
    monkeypatch.setattr(tiny_model(), "forward", interrupted_once(tiny_model().forward, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    aborted = engine.abort("a")
    assert aborted is not None and aborted.outputs[0].finish_reason == "capacity"
    engine.add_request("a", prompt_of(3), greedy(2))
    outputs = finish(engine)
    assert outputs["a"].prompt_token_ids == prompt_of(3)
    assert outputs["a"].outputs[0].finish_reason == "length"


def test_an_interrupted_generate_leaves_the_llm_usable(monkeypatch: pytest.MonkeyPatch):
    llm = LLM("tiny", num_blocks=20, block_size=4)
    expected = llm.generate(["One", "Two"], greedy(5))
    step = llm.engine.step
    with monkeypatch.context() as patch:
        patch.setattr(llm.model, "forward", interrupted_once(llm.model.forward, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["One", "Two"], greedy(5))
    assert llm.engine.step == step
    assert not llm.engine.has_unfinished_requests() and all_free(llm.engine)
    again = llm.generate(["One", "Two"], greedy(5))
    assert [o.outputs[0].token_ids for o in again] == [o.outputs[0].token_ids for o in expected]
