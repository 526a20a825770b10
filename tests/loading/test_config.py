"""`ModelConfig`: both spellings are read alike, and what would change the arithmetic is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from minipaged.config import ModelConfig, RopeScaling
from minipaged.errors import ModelError, OutOfBlocks
from minipaged.loading.config_file import parse_config, read_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 128001,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write(folder: Path, raw: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(raw))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_the_old_and_the_new_spelling_mean_the_same(tmp_path: Path) -> None:
    old = LLAMA | {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE, "torch_dtype": "bfloat16"}
    new = LLAMA | {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500000.0}, "dtype": "bfloat16"}
    expected = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_model_len=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192),
        qkv_bias=False,
        qk_norm=False,
        tie_word_embeddings=True,
        eos_token_ids=(128001,),
        dtype="bfloat16",
    )
    assert read_config(write(tmp_path, old)) == expected
    assert read_config(write(tmp_path, new)) == expected


def test_what_an_old_llama_leaves_out_has_its_defaults() -> None:
    raw = {
        k: v
        for k, v in LLAMA.items()
        if k not in ("num_key_value_heads", "tie_word_embeddings", "eos_token_id")
    }
    config = parse_config(raw)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (32, 64, 10000.0)
    assert (config.rope_scaling, config.tie_word_embeddings, config.eos_token_ids) == (None, False, ())
    assert config.dtype == "float32"


def test_head_dim_need_not_be_hidden_size_over_heads() -> None:
    assert parse_config(LLAMA | {"head_dim": 128}).head_dim == 128


@pytest.mark.parametrize(
    ("architecture", "qkv_bias", "qk_norm"),
    [
        ("LlamaForCausalLM", False, False),
        ("Qwen2ForCausalLM", True, False),
        ("Qwen3ForCausalLM", False, True),
    ],
)
def test_the_architecture_says_which_extras_there_are(
    architecture: str, qkv_bias: bool, qk_norm: bool
) -> None:
    config = parse_config(LLAMA | {"architectures": [architecture]})
    assert (config.qkv_bias, config.qk_norm) == (qkv_bias, qk_norm)


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 7], None, (2, 7)),
        (None, None, ()),
        (2, {"eos_token_id": [5, 6]}, (5, 6)),
        (2, {"eos_token_id": 5}, (5,)),
        (2, {"temperature": 0.6}, (2,)),
        (2, {"eos_token_id": None}, (2,)),
    ],
)
def test_end_of_text_ids_come_from_generation_config_where_it_has_them(
    tmp_path: Path, in_config: object, in_generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    folder = write(tmp_path, LLAMA | {"eos_token_id": in_config}, in_generation)
    assert read_config(folder).eos_token_ids == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3ForCausalLM"]),
        ({"architectures": None}, ["None", "LlamaForCausalLM"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["linear", "llama3"]),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ["yarn"]),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ["dynamic"]),
        ({"rope_scaling": LLAMA3_ROPE | {"factor": 0}}, ["factor is 0", "above 0"]),
        ({"use_sliding_window": True}, ["use_sliding_window", "True"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["sliding_attention"]),
        ({"mlp_bias": True}, ["mlp_bias"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config", "awq"]),
        ({"num_key_value_heads": 5}, ["32", "5", "multiple"]),
        ({"num_attention_heads": 30, "num_key_value_heads": 10}, ["2048", "30"]),
        ({"head_dim": 63}, ["63", "even"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers is 0", "positive"]),
        ({"vocab_size": "many"}, ["vocab_size is 'many'"]),
        ({"hidden_size": None}, ["hidden_size is None"]),
        ({"rms_norm_eps": -1.0}, ["rms_norm_eps is -1.0"]),
        ({"eos_token_id": 128256}, ["128256", "0..128255"]),
        ({"torch_dtype": "float8_e4m3fn"}, ["float8_e4m3fn", "bfloat16"]),
    ],
)
def test_what_the_engine_would_compute_wrongly_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ModelError) as raised:
        read_config(write(tmp_path, LLAMA | change))
    for word in ["config.json", *words]:
        assert word in str(raised.value)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "\xff"])
def test_a_damaged_config_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json.*fetch the model again"):
        read_config(tmp_path)


def test_a_folder_without_config_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json.*needs this file"):
        read_config(tmp_path)


def test_the_tiny_config_is_consistent_and_frozen() -> None:
    config = ModelConfig.tiny()
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (2, 64, 4, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 3  # type: ignore[misc]
    with pytest.raises(ModelError, match="3 query heads over 2 KV heads"):
        dataclasses.replace(config, num_heads=3)


def test_out_of_blocks_says_how_many() -> None:
    error = OutOfBlocks(needed=3, free=1, total=8)
    assert (str(error), error.needed, error.free, error.total) == ("need 3, 1 free of 8", 3, 1, 8)
    assert not isinstance(error, ValueError)
