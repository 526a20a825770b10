"""A model's `config.json`, read into a `ModelConfig`, or refused.

A setting that would silently change the arithmetic (another RoPE scaling, a sliding window, an MLP bias) is
refused here, because a model that runs but computes something else is the worst kind of failure.

Left out: every architecture but the Llama family, and quantised safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minipaged.config import ModelConfig, RopeScaling
from minipaged.errors import ModelError, check_model

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

# What the forward computes. A config.json that asks for anything else must not be run as if it hadn't.
_ONLY_SUPPORTED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,  # not Qwen2's bias, which has no switch: this one also adds a bias to o_proj
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}


def read_config(path: str | Path) -> ModelConfig:
    """Read `config.json`, and the end-of-text ids of `generation_config.json` where it has them.

    Example: `read_config("models/smollm2-135m").eos_token_ids == (2,)`.

    Raises: `ModelError` for a missing or unreadable file, and as `parse_config`.
    """
    file, generation = Path(path) / "config.json", Path(path) / "generation_config.json"
    raw = read_json(file)
    if generation.exists():
        raw |= {k: v for k, v in read_json(generation).items() if k == "eos_token_id" and v is not None}
    try:
        return parse_config(raw)
    except (ModelError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: {error}") from None


def parse_config(raw: dict[str, Any]) -> ModelConfig:
    """Check and name what a `config.json` says, in the spelling of transformers 4 (`rope_theta` and
    `rope_scaling` at the top, `torch_dtype`) or of transformers 5 (`rope_parameters`, `dtype`).

    Raises: `ModelError` for an unsupported architecture or setting, and for a bad number.
    """
    architecture = (raw.get("architectures") or [None])[0]
    check_model(
        architecture in ARCHITECTURES,
        f"architecture {architecture} is not supported; use one of {', '.join(ARCHITECTURES)}",
    )
    _check_settings(raw)
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    hidden_size, num_heads = _count(raw, "hidden_size"), _count(raw, "num_attention_heads")
    check_model(
        "head_dim" in raw or hidden_size % num_heads == 0,
        f"hidden_size {hidden_size} is not a multiple of {num_heads} heads; expected head_dim",
    )
    eos = raw.get("eos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_count(raw, "num_key_value_heads", default=num_heads),
        head_dim=_count(raw, "head_dim", default=hidden_size // num_heads),
        max_model_len=_count(raw, "max_position_embeddings"),
        rms_norm_eps=_positive(raw, "rms_norm_eps"),
        rope_theta=_positive({"rope_theta": 10000.0} | raw | rope, "rope_theta"),
        rope_scaling=_rope_scaling(rope),
        qkv_bias=architecture == "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
    )


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`: `read_json(Path("models/smollm2-135m/config.json"))["vocab_size"] == 49152`.

    Raises: `ModelError` naming the file when it is missing or holds no JSON object.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror}; a model folder needs this file") from None
    except ValueError as error:
        raise ModelError(f"{file} is not JSON ({error}); fetch the model again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file} holds a {type(value).__name__}, not an object; fetch the model again")
    return value


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Write what `read_json` reads, for people to read too: `write_json(Path("config.json"), {"vocab_size":
    260})`."""
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_settings(raw: dict[str, Any]) -> None:
    for name, supported in _ONLY_SUPPORTED.items():
        value = raw.get(name, supported)
        check_model(
            value == supported, f"{name} is {value!r}; only {supported!r} is supported, use another model"
        )
    other_layers = set(raw.get("layer_types") or ()) - {"full_attention"}
    check_model(
        not other_layers, f"layer_types has {sorted(other_layers)}; only 'full_attention' is supported"
    )


def _rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    check_model(kind in ("default", "llama3"), f"RoPE scaling {kind!r} is not supported; only 'llama3' is")
    if kind == "default":
        return None
    return RopeScaling(
        factor=_positive(rope, "factor"),
        low_freq_factor=_positive(rope, "low_freq_factor"),
        high_freq_factor=_positive(rope, "high_freq_factor"),
        original_max_position_embeddings=_count(rope, "original_max_position_embeddings"),
    )


def _count(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value: Any = default if raw.get(name) is None else raw[name]
    check_model(type(value) is int and value > 0, f"{name} is {value!r}; expected a positive int")
    return value


def _positive(raw: dict[str, Any], name: str) -> float:
    value: Any = raw.get(name)
    check_model(type(value) in (int, float) and value > 0, f"{name} is {value!r}; expected a number above 0")
    return float(value)
