"""A Llama-family decoder in plain PyTorch, for a flat batch of tokens whose K/V lives in blocks.

Llama 3, Qwen2, Qwen3 and SmolLM2 are one architecture with switches (GQA, QKV bias, QK-norm, tied embeddings,
RoPE scaling). A step's tokens, from however many sequences, form one [T, hidden] matrix: every layer but
attention treats them alike, so batching needs no padding. Left out: training, and any parallelism beyond what
the matrix products do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from minipaged.batch import Batch
from minipaged.config import ModelConfig, RopeScaling
from minipaged.linear import Linear, padded_rows
from minipaged.loading.weights import checked, expected_shapes
from minipaged.operators import Operators
from minipaged.paged_attention import KVCache


@dataclass(frozen=True)
class DecoderLayer:
    """One decoder layer's weights: q, k and v packed in one product, since they share their input."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Linear
    post_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear


class Llama:
    """The model: `forward(batch, kv_cache, attention)` gives the logits of the rows that are sampled."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        operators_for: Callable[..., Operators] = Operators,
    ) -> None:
        """Take every tensor of `weights` (Hugging Face's names); a missing or misshapen one is a
        `ModelError`. operators_for: what makes each step's operators (`find_operators`)."""
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        self.operators_for = operators_for
        tensors, layers = self._read(weights)
        self.embedding = tensors.pop("model.embed_tokens.weight")
        self.lm_head = Linear(self.embedding if config.tie_word_embeddings else tensors.pop("lm_head.weight"))
        self.norm = tensors.pop("model.norm.weight")
        self.layers = [layers[f"model.layers.{i}."] for i in range(config.num_layers)]
        self.inv_freq = rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling).to(device)

    def _read(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> tuple[dict[str, torch.Tensor], dict[str, DecoderLayer]]:
        """The tensors outside the layers by name, and the layers by prefix ("model.layers.0.").

        A layer is built as soon as its last tensor is there, so that its weights are laid out anew before the
        next layer's are read: memory is freed and used again instead of being cut into pieces.
        """
        tensors: dict[str, torch.Tensor] = {}
        layers: dict[str, DecoderLayer] = {}
        missing = Counter(map(_layer_prefix, expected_shapes(self.config)))
        for name, tensor in checked(self.config, weights):
            tensors[name] = tensor.to(self.device, self.dtype)
            prefix = _layer_prefix(name)
            missing[prefix] -= 1
            if prefix and not missing[prefix]:
                layers[prefix] = _take_layer(tensors, prefix)
        return tensors, layers

    @torch.inference_mode()
    def forward(
        self, batch: Batch, kv_cache: KVCache, attention: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Store the K/V of the batch's T tokens and return the logits [len(logits_rows), vocab] in fp32."""
        T = len(batch.token_ids)
        padding = (0, padded_rows(T) - T)  # the products get more rows, which are not used
        angles = F.pad(batch.positions, padding)[:, None, None].float() * self.inv_freq
        ops = self.operators_for(self.config, batch, angles, kv_cache, attention)
        x = self.embedding[F.pad(batch.token_ids, padding)]  # [rows, hidden]
        delta = torch.zeros_like(x)  # what the products before add to x
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(ops.add_norm(x, delta, layer.input_norm))
            delta = layer.o(ops.attend(index, qkv, layer.q_norm, layer.k_norm))
            h = ops.add_norm(x, delta, layer.post_norm)
            delta = layer.down(ops.swish(layer.gate(h), layer.up(h)))
        R = len(batch.logits_rows)
        rows = F.pad(batch.logits_rows, (0, padded_rows(R) - R))
        return self.lm_head(ops.add_norm(x[rows], delta[rows], self.norm))[:R].float()


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """The angle per position of each pair, [head_dim / 2] in fp32: theta^(-2i / head_dim), slowed down for
    Llama 3."""
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if scaling is None:
        return inv_freq
    periods = scaling.original_max_position_embeddings * inv_freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((periods - low) / (high - low)).clamp(0, 1)  # 0: slow waves, slowed by factor; 1: fast ones, kept
    return inv_freq * (keep + (1 - keep) / scaling.factor)


def _layer_prefix(name: str) -> str:
    """model.layers.7.mlp.up_proj.weight -> "model.layers.7.", and "" for what belongs to no layer."""
    return ".".join([*name.split(".")[:3], ""]) if name.startswith("model.layers.") else ""


def _take_layer(tensors: dict[str, torch.Tensor], prefix: str) -> DecoderLayer:
    """Build one layer, removing its tensors from the dict, so that a weight is never held twice for long."""

    def take(name: str) -> torch.Tensor:
        return tensors.pop(prefix + name)

    def maybe(name: str) -> torch.Tensor | None:
        return tensors.pop(prefix + name, None)

    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    biases = [bias for name in qkv if (bias := maybe(f"{name}.bias")) is not None]
    return DecoderLayer(
        input_norm=take("input_layernorm.weight"),
        qkv=Linear(
            torch.cat([take(f"{name}.weight") for name in qkv]), torch.cat(biases) if biases else None
        ),
        q_norm=maybe("self_attn.q_norm.weight"),
        k_norm=maybe("self_attn.k_norm.weight"),
        o=Linear(take("self_attn.o_proj.weight")),
        post_norm=take("post_attention_layernorm.weight"),
        gate=Linear(take("mlp.gate_proj.weight")),
        up=Linear(take("mlp.up_proj.weight")),
        down=Linear(take("mlp.down_proj.weight")),
    )
