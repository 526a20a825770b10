"""The tensors of a model, one at a time: from safetensors, or drawn from a seed.

A checkpoint can be larger than the memory left beside the model, so nothing here holds more than one tensor:
a folder is an iterator of (name, tensor) and the model copies each into its place. `expected_shapes` is the
contract between the two, and `checked` enforces it before a wrong tensor can become a wrong token.

Left out: PyTorch pickles (`*.bin`), which run code when they are loaded. GGUF is `gguf_file.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from minipaged.config import DTYPES, ModelConfig
from minipaged.errors import ModelError
from minipaged.loading.config_file import read_json

NamedTensor = tuple[str, torch.Tensor]

# For random weights. Sharp attention (q, k) and additions to the residual stream that outweigh the embeddings
# (o, down) make the next token depend on the context; at 1, tied embeddings repeat the last token for ever.
_GAINS = {"q_proj": 2.0, "k_proj": 2.0, "o_proj": 16.0, "down_proj": 16.0}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The Hugging Face name of every tensor of a model, with its shape; linear layers are [out, in].

    Example: `expected_shapes(ModelConfig.tiny())["model.layers.0.self_attn.k_proj.weight"] == (32, 64)`.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    shapes["model.norm.weight"] = (hidden,)
    return shapes if config.tie_word_embeddings else shapes | {"lm_head.weight": (vocab, hidden)}


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate, D = config.hidden_size, config.intermediate_size, config.head_dim
    rows = {"q": config.num_heads * D, "k": config.num_kv_heads * D, "v": config.num_kv_heads * D}
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    shapes |= {f"self_attn.{x}_proj.weight": (rows[x], hidden) for x in "qkv"}
    shapes |= {f"self_attn.{x}_proj.bias": (rows[x],) for x in "qkv" if config.qkv_bias}
    shapes |= {f"self_attn.{x}_norm.weight": (D,) for x in "qk" if config.qk_norm}
    return shapes | {
        "self_attn.o_proj.weight": (hidden, rows["q"]),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }


def checked(config: ModelConfig, weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
    """Pass on the tensors of `weights` that belong to the model; what is harmlessly redundant is dropped.

    Example: `dict(checked(config, read_weights(folder))).keys() == expected_shapes(config).keys()`.

    Raises: `ModelError`, with both shapes, for a tensor that is unexpected, of the wrong shape or of a dtype
    that is not one of `DTYPES`, and at the end for every tensor that is missing.
    """
    missing = expected_shapes(config)
    for name, tensor in weights:
        if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        expected, dtype = missing.pop(name, None), str(tensor.dtype).removeprefix("torch.")
        if expected != tuple(tensor.shape) or dtype not in DTYPES:
            raise ModelError(
                f"tensor {name} is {dtype} {tuple(tensor.shape)}, config.json implies "
                f"{expected or 'no such tensor'} in {', '.join(DTYPES)}; fetch the model again"
            )
        yield name, tensor
    if missing:
        name, shape = next(iter(missing.items()))
        raise ModelError(f"{len(missing)} tensors are missing, first {name} {shape}; fetch the model again")


def read_weights(folder: str | Path) -> Iterator[NamedTensor]:
    """Read `model.safetensors`, or the shards that `model.safetensors.index.json` lists, one tensor at a
    time.

    Example: `next(read_weights("models/smollm2-135m"))[0] == "model.embed_tokens.weight"`.

    Raises: `ModelError` naming the file and the reason when one is missing, truncated or corrupt.
    """
    for file in _files(Path(folder)):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    yield name, tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read ({error}); fetch the model again") from None


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map of tensor names to files; fetch the model again")
    return [folder / name for name in sorted(set(weight_map.values()))]


def random_weights(config: ModelConfig, seed: int) -> Iterator[NamedTensor]:
    """Draw fp32 tensors for a model of this shape; the same seed gives the same model.

    They are scaled so that greedy output wanders instead of repeating one token: tests need tokens that
    differ.

    Example: `dict(random_weights(ModelConfig.tiny(), seed=0))["model.norm.weight"].shape == (64,)`.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        module = name.split(".")[-2]
        if "norm" in module:
            yield name, 1.0 + 0.1 * noise
        elif module == "embed_tokens" or name.endswith(".bias"):
            yield name, noise
        else:
            yield name, _GAINS.get(module, 1.0) * shape[1] ** -0.5 * noise
