"""Weights: what is on disk arrives unchanged, and what doesn't fit the config never arrives."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from minipaged.config import ModelConfig
from minipaged.errors import ModelError
from minipaged.loading.tokenizer import Tokenizer
from minipaged.loading.weights import checked, expected_shapes, random_weights, read_weights

TINY = ModelConfig.tiny()


def tiny_tensors(config: ModelConfig = TINY) -> dict[str, torch.Tensor]:
    return dict(random_weights(config, seed=0))


def save_sharded(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    names = sorted(tensors)
    shards = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("save", [lambda folder, t: save_file(t, folder / "model.safetensors"), save_sharded])
def test_one_file_and_shards_give_the_same_tensors(tmp_path: Path, save: object) -> None:
    tensors = tiny_tensors()
    save(tmp_path, tensors)  # type: ignore[operator]
    read = dict(read_weights(tmp_path))
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_expected_shapes_of_the_tiny_model_by_hand() -> None:
    shapes = expected_shapes(TINY)
    assert shapes["model.embed_tokens.weight"] == (260, 64)
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (64, 64)
    assert shapes["model.layers.1.self_attn.v_proj.weight"] == (32, 64)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 128)
    assert len(shapes) == 2 + 2 * 9


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3"])
def test_expected_shapes_are_those_of_transformers(architecture: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(
        TINY,
        architecture=f"{architecture}ForCausalLM",
        head_dim=24,
        tie_word_embeddings=False,
        qkv_bias=architecture == "Qwen2",
        qk_norm=architecture == "Qwen3",
    )
    if architecture == "Qwen2":  # has no head_dim of its own
        config = dataclasses.replace(config, head_dim=16)
    theirs = getattr(transformers, f"{architecture}Config")(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=config.head_dim,
        tie_word_embeddings=False,
        pad_token_id=None,
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{architecture}ForCausalLM")(theirs)
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == expected_shapes(config)


def test_checked_passes_what_belongs_and_drops_what_is_redundant() -> None:
    tensors = tiny_tensors()
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
        "lm_head.weight": torch.ones(260, 64),
    }
    assert dict(checked(TINY, (tensors | extra).items())).keys() == tensors.keys()


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("model.norm.weight", torch.ones(63), ["model.norm.weight", "(63,)", "(64,)"]),
        ("model.norm.weight", torch.ones(64, dtype=torch.int8), ["int8", "bfloat16"]),
        ("model.layers.2.input_layernorm.weight", torch.ones(64), ["layers.2", "no such tensor"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_an_error_with_both_shapes(
    name: str, tensor: torch.Tensor, words: list[str]
) -> None:
    with pytest.raises(ModelError) as raised:
        list(checked(TINY, (tiny_tensors() | {name: tensor}).items()))
    assert all(word in str(raised.value) for word in words)


def test_a_missing_tensor_is_an_error_that_names_it() -> None:
    tensors = tiny_tensors()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(
        ModelError, match=r"1 tensors are missing, first model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        list(checked(TINY, tensors.items()))


def test_an_untied_model_must_have_its_lm_head() -> None:
    untied = dataclasses.replace(TINY, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        list(checked(untied, tiny_tensors().items()))


def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(tiny_tensors(), file)
    whole = file.read_bytes()
    for length in (0, 5, 1000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
            list(read_weights(tmp_path))


def test_a_missing_file_or_shard_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        list(read_weights(tmp_path))
    save_sharded(tmp_path, tiny_tensors())
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors cannot be read"):
        list(read_weights(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match=r"index\.json has no weight_map"):
        list(read_weights(tmp_path))


def test_a_seed_is_a_model() -> None:
    first, again, other = tiny_tensors(), tiny_tensors(), dict(random_weights(TINY, seed=1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert sum(tensor.nbytes for tensor in first.values()) < 1_000_000


def test_greedy_output_of_the_random_model_wanders() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=260,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-5,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    assert model.load_state_dict(tiny_tensors(), strict=False).missing_keys == ["lm_head.weight"]
    for prompt in ("Hello", "The capital of France is", "1 2 3 4"):
        prompt_ids = torch.tensor([Tokenizer.byte_level().encode(prompt)])
        output = model.eval().generate(prompt_ids, max_new_tokens=48, do_sample=False)[
            0, prompt_ids.shape[1] :
        ]
        assert len(set(output.tolist())) > 16
