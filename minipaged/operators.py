"""What a decoder computes between its matrix products, one small operator after another, in PyTorch.

Why it exists: on a CPU these cost a third of a decode step, and `minipaged.cpu_kernels` has them as compiled
loops. This is the seam, and what it means. What it leaves out: products (`minipaged.linear`), attention.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Operators:
    """All take rows of T tokens; an argument that is said to be used up holds anything afterwards."""

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add `delta` to `x`, both [T, width], and return RMSNorm of that: x / sqrt(mean(x²) + eps) · weight."""
        x += delta
        return F.rms_norm(x, weight.shape, weight, eps)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """RoPE: turn each pair (x[i], x[i + D/2]) of x [T, heads, D] by its position's angle, whose cos and
        sin are [T, 1, D/2] (Su et al., 2021)."""
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def swish(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """SwiGLU's product, swish(gate) · up, of [T, width]; `gate` is used up."""
        return F.silu(gate, inplace=True).mul_(up)
