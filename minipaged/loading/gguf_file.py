"""A GGUF file, made into an ordinary model folder once, so that the rest of the package knows one format.

The `gguf` library reads and dequantises; three things that it doesn't know are done here. The rows of q and k
go back into Hugging Face's order (llama files are laid out for another RoPE), the pre-tokenizer, which a file
only names, is spelled out, and the factors of Llama-3's RoPE become its parameters again.

Left out: running on quantised weights (they become bfloat16), SentencePiece vocabularies, other
architectures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, decoders, models, normalizers, processors
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from minipaged.config import ModelConfig
from minipaged.errors import ModelError
from minipaged.loading.config_file import parse_config, write_json
from minipaged.loading.weights import NamedTensor, checked

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # every other tensor type is quantised
_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # in tokenizer.ggml.token_type


def _split(digits: str) -> list[PreTokenizer]:
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return [Split(Regex(words), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]


# How text is cut before BPE, by tokenizer.ggml.pre. A wrong cut shows only in rare texts, like spaces before
# digits.
_PRE_TOKENIZERS: dict[str, list[PreTokenizer]] = {
    "smollm": [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)],
    "llama-bpe": _split("{1,3}"),
    "qwen2": _split(""),
}


class _Fields(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise ModelError(f"the metadata lacks {name}; take another conversion of the model")


def convert_gguf(gguf_path: str | Path, folder: str | Path) -> str:
    """Write `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json` and
    `model.safetensors` into `folder`; return the type that most weights had.

    Example: `convert_gguf("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m") == "Q4_1"`.

    The model is in memory once, in the dtype it is written in, because safetensors writes a file in one go.

    Raises: `ModelError` for a file that is truncated or no GGUF, or holds something that is not supported.
    """
    try:
        reader = GGUFReader(gguf_path)
        fields = _Fields({name: field.contents() for name, field in reader.fields.items()})
    except Exception as error:  # whatever numpy makes of the bytes
        raise ModelError(f"{gguf_path} is not a whole GGUF file ({error}); fetch it again") from None
    try:
        return _convert(reader, fields, Path(folder))
    except (ValueError, NotImplementedError) as error:  # the latter: a quantisation that gguf can't undo
        raise ModelError(f"{gguf_path}: {error}") from None


def _convert(reader: GGUFReader, fields: _Fields, folder: Path) -> str:
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1)
    raw = _config(reader, fields) | {"torch_dtype": _DTYPES.get("".join(types), "bfloat16")}
    config = parse_config(raw)
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer(fields).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    write_json(folder / "config.json", raw)
    write_json(folder / "generation_config.json", {k: raw[k] for k in ("bos_token_id", "eos_token_id")})
    save_file(dict(checked(config, _tensors(reader, config))), folder / "model.safetensors", {"format": "pt"})
    return types.most_common(1)[0][0]


def _config(reader: GGUFReader, fields: _Fields) -> dict[str, Any]:
    kind = fields["general.architecture"]
    if kind not in _ARCHITECTURES:
        raise ModelError(f"architecture {kind} is not supported; use one of {', '.join(_ARCHITECTURES)}")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    numbers = _Fields({name.removeprefix(f"{kind}."): value for name, value in fields.items()})
    num_heads = numbers["attention.head_count"]
    head_dim = numbers.get("attention.key_length") or numbers["embedding_length"] // num_heads
    rope_theta = _shortest(numbers.get("rope.freq_base", 10000.0))
    eos = {fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")} - {None}
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": numbers["embedding_length"],
        "intermediate_size": numbers["feed_forward_length"],
        "num_hidden_layers": numbers["block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": numbers.get("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": numbers["context_length"],
        "rms_norm_eps": _shortest(numbers["attention.layer_norm_rms_epsilon"]),
        "rope_theta": rope_theta,
        "rope_scaling": _rope_scaling(numbers, tensors.get("rope_freqs.weight"), rope_theta, head_dim),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted(eos),
    }


def _shortest(value: float) -> float:
    return float(str(np.float32(value)))  # it went through fp32: 9.999999747378752e-06 was 1e-05


def _rope_scaling(
    numbers: _Fields, found: np.ndarray | None, rope_theta: float, head_dim: int
) -> dict[str, Any] | None:
    """Llama-3's parameters from `found`, the factor that each wave is slowed by, [head_dim / 2].

    The largest is `factor`; the other parameters are those of every Llama 3.x, and must give what was found.
    """
    if found is None:
        kind = numbers.get("rope.scaling.type", "none")
        return None if kind == "none" else {"rope_type": kind}  # ModelConfig refuses it by name
    factor, low, high, original = float(found.max()), 1.0, 4.0, 8192
    periods = original / (2 * math.pi) * rope_theta ** (-np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((periods - low) / (high - low), 0.0, 1.0)
    if not np.allclose(found, 1 / (kept + (1 - kept) / factor), rtol=1e-4):
        raise ModelError("rope_freqs.weight is not Llama 3's RoPE scaling; use the model's safetensors")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _tensors(reader: GGUFReader, config: ModelConfig) -> Iterator[NamedTensor]:
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for tensor in reader.tensors:
        *block, module, kind = tensor.name.split(".")  # blk.3.attn_q.weight, or output_norm.weight
        if module == "rope_freqs":
            continue
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if config.architecture == "LlamaForCausalLM" and module in heads:
            values = _uninterleave(values, heads[module])
        prefix = f"model.layers.{block[1]}." if block else ""
        dtype = getattr(torch, config.dtype)
        yield f"{prefix}{_MODULES.get(module, module)}.{kind}", torch.from_numpy(values).to(dtype)


def _uninterleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """A head's rows 0, 1, 2, 3, 4, 5 -> 0, 2, 4, 1, 3, 5: that RoPE pairs neighbours, ours the halves."""
    return rows.reshape(num_heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _tokenizer(fields: _Fields) -> tokenizers.Tokenizer:
    model, pre = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        supported = ", ".join(_PRE_TOKENIZERS)
        raise ModelError(f"tokenizer {model} ({pre}) is not supported; expected gpt2 ({supported})")
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    vocab = {token: i for i, token in enumerate(tokens) if kinds[i] != _UNUSED}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = Sequence(_PRE_TOKENIZERS[pre])
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(token, special=kinds[i] == _CONTROL, normalized=False)
            for token, i in vocab.items()
            if kinds[i] in (_CONTROL, _USER_DEFINED)
        ]
    )
    if fields.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        bos_id = fields["tokenizer.ggml.bos_token_id"]
        bos = (tokens[bos_id], bos_id)
        backend.post_processor = processors.TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    return backend


def _tokenizer_config(fields: _Fields) -> dict[str, Any]:
    ids = {
        f"{name}_token": fields.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    tokens = {name: fields["tokenizer.ggml.tokens"][i] for name, i in ids.items() if i is not None}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | tokens
    return config | {"chat_template": fields.get("tokenizer.chat_template")}
