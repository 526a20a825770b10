"""What a decoder computes between its matrix products, in PyTorch.

With one new token per sequence these small operators cost a CPU nearly half of a step, and so
`minipaged.backends.numba_loops` has them as compiled loops. This module says what they mean; it is also the
seam. The products are `minipaged.linear`, and attention itself is `minipaged.paged_attention`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from minipaged.batch import Batch
from minipaged.config import ModelConfig
from minipaged.paged_attention import KVCache, plan_attention


class Operators:
    """The operators of one step, made anew for each: they hold what all layers share.

    Rows are the step's T tokens, and behind them any number of unused ones (`padded_rows`).
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: Batch,
        angles: torch.Tensor,
        kv_cache: KVCache,
        attention: Callable[..., torch.Tensor],
    ) -> None:
        """angles: [rows, 1, D/2] in fp32, by which RoPE turns each row. attention: as `paged_attention`."""
        self.config, self.batch, self.kv_cache, self.attention = config, batch, kv_cache, attention
        dtype = kv_cache.k.dtype
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.tables = (batch.block_tables, batch.context_lens, batch.query_start_loc)
        plan = getattr(attention, "plan", plan_attention)  # kernels have their own
        self.plan = plan(*self.tables, kv_cache.k[0])

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Add `delta` to `x`, both [rows, width]. Returns RMSNorm of the sum: x / sqrt(mean(x²) + eps) ·
        weight."""
        return self._norm(x.add_(delta), weight)

    def attend(
        self, index: int, qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None
    ) -> torch.Tensor:
        """Turn q and k by their positions, store k and v in layer `index`, and attend.

        qkv: [rows, (H + 2G)·D]. q_norm, k_norm: [D], weights of a norm that comes first (Qwen3), or None.
        Returns [rows, H·D].
        """
        H, G, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        T, padding = len(self.batch.token_ids), len(qkv) - len(self.batch.token_ids)
        qkv = qkv.view(-1, H + 2 * G, D)
        if q_norm is not None and k_norm is not None:
            q, k = self._norm(qkv[:, :H], q_norm), self._norm(qkv[:, H : H + G], k_norm)
            q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        else:
            q, k = rotate(qkv[:, : H + G], self.cos, self.sin).split([H, G], dim=1)
        self.kv_cache.write(index, k[:T], qkv[:T, H + G :], self.batch.slot_mapping)
        k_cache, v_cache = self.kv_cache.k[index], self.kv_cache.v[index]
        context = self.attention(q[:T], k_cache, v_cache, *self.tables, D**-0.5, plan=self.plan)
        return F.pad(context.flatten(1), (0, 0, 0, padding))

    def swish(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """SwiGLU: swish(gate) · up, both [rows, width]; `gate` is overwritten."""
        return F.silu(gate, inplace=True).mul_(up)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE: turn each pair (x[i], x[i + D/2]) of x [T, heads, D] by its position's angle (Su et al.,
    2021)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
