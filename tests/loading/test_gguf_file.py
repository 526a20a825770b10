"""GGUF conversion, on small files written with llama.cpp's own conventions: what comes out is what went
in."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from minipaged.config import ModelConfig, RopeScaling
from minipaged.errors import ModelError
from minipaged.loading.config_file import read_config
from minipaged.loading.gguf_file import convert_gguf
from minipaged.loading.tokenizer import BYTE_ALPHABET, Tokenizer
from minipaged.loading.weights import random_weights, read_weights

NAMES = {
    "embed_tokens": "token_embd",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "norm": "output_norm",
    "lm_head": "output",
}
MERGES = ["1 2", "12 3", "123 4", "Ġ Ġ", "h e"]
SPECIALS = {"<|bos|>": 3, "<|end|>": 3, "<think>": 4, "[PAD0]": 5}  # control, user-defined, unused
TOKENS = [*BYTE_ALPHABET, *(merge.replace(" ", "") for merge in MERGES), *SPECIALS]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"


def config_of(kind: str, **changes: Any) -> ModelConfig:
    architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[
        kind
    ]
    return dataclasses.replace(
        ModelConfig.tiny(),
        architecture=architecture,
        vocab_size=len(TOKENS),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        eos_token_ids=(TOKENS.index("<|end|>"),),
        **changes,
    )


def gguf_name(name: str) -> str:
    *path, module, kind = name.split(".")
    block = f"blk.{path[path.index('layers') + 1]}." if "layers" in path else ""
    return f"{block}{NAMES[module]}.{kind}"


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k: the second half of a head's rows goes between the
    first's."""
    out = np.empty_like(rows)
    half = rows.shape[0] // num_heads // 2
    for head in range(num_heads):
        start = head * 2 * half
        out[start : start + 2 * half : 2] = rows[start : start + half]
        out[start + 1 : start + 2 * half : 2] = rows[start + half : start + 2 * half]
    return out


def write_gguf(
    file: Path,
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    *,
    kind: str = "llama",
    pre: str = "smollm",
    types: dict[str, Type] | None = None,
    rope_freqs: list[float] | None = None,
    skip: str = "",
    tokenizer: str = "gpt2",
    **extra: Any,
) -> Path:
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_model_len)
    writer.add_embedding_length(config.hidden_size)
    if skip != "feed_forward_length":
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([SPECIALS.get(token, 1) for token in TOKENS])
    if skip != "merges":
        writer.add_token_merges(MERGES)
    writer.add_bos_token_id(TOKENS.index("<|bos|>"))
    writer.add_eos_token_id(TOKENS.index("<|end|>"))
    writer.add_chat_template(TEMPLATE)
    for key, value in extra.items():
        getattr(writer, key)(value)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    for name, tensor in tensors.items():
        module, values = name.split(".")[-2], tensor.numpy()
        if kind == "llama" and module in heads:
            values = interleave(values, heads[module])
        dtype = (types or {}).get(module, Type.F32)
        writer.add_tensor(gguf_name(name), quantize(values, dtype), raw_dtype=dtype)
    if rope_freqs:
        writer.add_tensor("rope_freqs.weight", np.array(rope_freqs, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_config_and_tensors_survive_the_round_trip(tmp_path: Path, kind: str, tied: bool) -> None:
    config = config_of(kind, tie_word_embeddings=tied, head_dim=24 if kind == "qwen3" else 16)
    tensors = dict(random_weights(config, seed=0))
    pre = "smollm" if kind == "llama" else "qwen2"
    file = write_gguf(tmp_path / "m.gguf", config, tensors, kind=kind, pre=pre)
    assert convert_gguf(file, tmp_path / "m") == "F32"
    assert read_config(tmp_path / "m") == config
    converted = dict(read_weights(tmp_path / "m"))
    assert converted.keys() == tensors.keys()
    assert all(torch.equal(converted[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_transformers_loads_the_folder_and_computes_the_same(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = config_of(kind)
    tensors = dict(random_weights(config, seed=0))
    pre = "smollm" if kind == "llama" else "qwen2"
    convert_gguf(write_gguf(tmp_path / "m.gguf", config, tensors, kind=kind, pre=pre), tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert type(model).__name__ == config.architecture
    original = type(model)(model.config)
    original.load_state_dict(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    token_ids = torch.tensor([[104, 101, 32, 49, 50]])
    assert torch.equal(model(token_ids).logits, original.eval()(token_ids).logits)
    theirs, ours = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "m"),
        Tokenizer.from_folder(tmp_path / "m"),
    )
    text = "hello  1234 Ünï<|end|><think>x"
    assert theirs(text)["input_ids"] == ours.encode(text)


@pytest.mark.parametrize(
    ("matrices", "expected"),
    [(Type.F16, torch.float16), (Type.BF16, torch.bfloat16), (Type.Q8_0, torch.bfloat16)],
)
def test_plain_files_keep_their_dtype_and_quantised_ones_become_bfloat16(
    tmp_path: Path, matrices: Type, expected: torch.dtype
) -> None:
    config = config_of("qwen3")
    tensors = dict(random_weights(config, seed=0))
    types = {module: matrices for module in NAMES if "norm" not in module}
    file = write_gguf(tmp_path / "m.gguf", config, tensors, kind="qwen3", pre="qwen2", types=types)
    assert convert_gguf(file, tmp_path / "m") == matrices.name
    for name, tensor in read_weights(tmp_path / "m"):
        stored = tensors[name].numpy()
        if "norm" not in name:
            stored = dequantize(quantize(stored, matrices), matrices)
        assert torch.equal(tensor, torch.from_numpy(stored).to(expected)), name
    assert read_config(tmp_path / "m").dtype == str(expected).removeprefix("torch.")


def llama3_factors(
    factor: float, low: float, high: float, original: int, theta: float, dim: int
) -> list[float]:
    factors = []
    for i in range(0, dim, 2):
        wavelen = 2 * math.pi * theta ** (i / dim)
        smooth = (original / wavelen - low) / (high - low)
        slow, fast = wavelen > original / low, wavelen < original / high
        factors.append(factor if slow else 1.0 if fast else 1 / ((1 - smooth) / factor + smooth))
    return factors


def test_the_parameters_of_llama_3_rope_are_recovered_from_its_factors(tmp_path: Path) -> None:
    config = config_of("llama", rope_theta=500000.0, head_dim=64, num_heads=1, num_kv_heads=1)
    factors = llama3_factors(32.0, 1.0, 4.0, 8192, 500000.0, 64)
    assert len(set(factors)) > 3  # fast, slow and blended waves
    tensors = dict(random_weights(config, seed=0))
    convert_gguf(write_gguf(tmp_path / "m.gguf", config, tensors, rope_freqs=factors), tmp_path / "m")
    assert read_config(tmp_path / "m").rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)


def test_other_rope_factors_are_refused_instead_of_guessed(tmp_path: Path) -> None:
    config = config_of("llama", rope_theta=500000.0, head_dim=64, num_heads=1, num_kv_heads=1)
    factors = llama3_factors(32.0, 1.0, 8.0, 8192, 500000.0, 64)
    file = write_gguf(tmp_path / "m.gguf", config, dict(random_weights(config, seed=0)), rope_freqs=factors)
    with pytest.raises(ModelError, match=r"m\.gguf: rope_freqs\.weight is not Llama 3's"):
        convert_gguf(file, tmp_path / "m")


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("llama-bpe", "1234", ["<|bos|>", "123", "4"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
        ("smollm", "a  1", ["a", "ĠĠ", "1"]),
        ("llama-bpe", "a  1", ["<|bos|>", "a", "Ġ", "Ġ", "1"]),
        ("smollm", "e\u0301", ["e", "Ì", "ģ"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),
        ("smollm", "he<|end|><think>[PAD0]", ["he", "<|end|>", "<think>", "[", "P", "A", "D", "0", "]"]),
    ],
)
def test_each_pre_tokenizer_cuts_as_its_model_was_trained(
    tmp_path: Path, pre: str, text: str, tokens: list[str]
) -> None:
    config = config_of("llama")
    file = write_gguf(tmp_path / "m.gguf", config, dict(random_weights(config, seed=0)), pre=pre)
    convert_gguf(file, tmp_path / "m")
    assert [TOKENS[i] for i in Tokenizer.from_folder(tmp_path / "m").encode(text)] == tokens


def test_specials_are_silent_user_defined_tokens_are_not_and_the_template_comes_along(tmp_path: Path) -> None:
    config = config_of("llama")
    convert_gguf(
        write_gguf(tmp_path / "m.gguf", config, dict(random_weights(config, seed=0))), tmp_path / "m"
    )
    tokenizer = Tokenizer.from_folder(tmp_path / "m")
    assert tokenizer.decode(tokenizer.encode("he<|end|><think>")) == "he<think>"
    assert tokenizer.token_bytes(TOKENS.index("<|end|>")) == b""
    assert tokenizer.token_bytes(TOKENS.index("<think>")) == b"<think>"
    assert tokenizer.token_bytes(TOKENS.index("[PAD0]")) == b""
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "<|bos|>hi<|end|>"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "gemma"}, ["gemma", "llama", "qwen3"]),
        ({"pre": "gpt-4o"}, ["gpt-4o", "smollm"]),
        ({"tokenizer": "llama"}, ["tokenizer llama", "gpt2"]),
        ({"skip": "feed_forward_length"}, ["lacks feed_forward_length"]),
        ({"skip": "merges"}, ["lacks tokenizer.ggml.merges"]),
        ({"add_rope_scaling_type": gguf.RopeScalingType.YARN}, ["RoPE scaling 'yarn'"]),
        ({"add_eot_token_id": 5000}, ["5000"]),
    ],
)
def test_what_cannot_be_converted_is_an_error_that_says_what(
    tmp_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    config = config_of("llama")
    file = write_gguf(tmp_path / "m.gguf", config, dict(random_weights(config, seed=0)), **options)
    with pytest.raises(ModelError) as raised:
        convert_gguf(file, tmp_path / "m")
    assert all(word in str(raised.value) for word in ["m.gguf", *words])
    assert not (tmp_path / "m" / "model.safetensors").exists()


@pytest.mark.parametrize("wrong", [torch.zeros(64, 32), torch.zeros(63, 64)])
def test_a_tensor_of_the_wrong_shape_is_an_error_that_names_the_file(
    tmp_path: Path, wrong: torch.Tensor
) -> None:
    config = config_of("qwen3")
    tensors = dict(random_weights(config, seed=0)) | {"model.layers.0.self_attn.q_proj.weight": wrong}
    file = write_gguf(tmp_path / "m.gguf", config, tensors, kind="qwen3", pre="qwen2")
    with pytest.raises(ModelError, match=r"m\.gguf: .*q_proj\.weight"):
        convert_gguf(file, tmp_path / "m")


def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    config = config_of("llama")
    file = write_gguf(tmp_path / "m.gguf", config, dict(random_weights(config, seed=0)))
    whole = file.read_bytes()
    for length in (0, 3, 20, 500, 5000, len(whole) // 2, len(whole) - 40):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"m\.gguf is not a whole GGUF file"):
            convert_gguf(file, tmp_path / "m")


def test_another_kind_of_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(ModelError, match=r"m\.gguf is not a whole GGUF file"):
        convert_gguf(file, tmp_path / "m")
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "m")
