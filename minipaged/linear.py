"""A linear layer whose weight is laid out once, at load, for the way it will be used.

In a decode step the weights are read from memory for only a few rows of input, and a plain row-major weight
cannot be read at the full speed of a CPU. oneDNN, which PyTorch ships for its compiler, knows a blocked
layout that can (`torch.ops.mkldnn`, the operators that torch.compile puts in place of `F.linear` when it
freezes weights). Without oneDNN, or on a GPU, the layer is `F.linear`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

# The layout is chosen for a number of rows. One made for 64 also serves 1 and 2,000 without being converted
# again.
ROWS_HINT = 64


def padded_rows(num_rows: int) -> int:
    """How many rows to compute when `num_rows` are wanted: at least 4, then 8 sizes for every doubling.

    1 gives 4, 15 gives 15, 100 gives 104. oneDNN compiles a kernel for every number of rows it meets, and
    keeps it: about 0.6 MB for each weight shape (measured with torch 2.13, AVX-512). With every number from 1
    to 2,048 that would be gigabytes; with these 69 it stays small, for at most 1/8 of the rows computed in
    vain. Its kernels for 1 to 3 rows read the weights more slowly than the one for 4.
    """
    multiple = 2 ** max(0, num_rows.bit_length() - 4)
    return max(4, -(-num_rows // multiple) * multiple)


class Linear:
    """y = x Wᵀ + b, with W of [out, in].

    >>> Linear(torch.tensor([[1.0, 2.0]]))(torch.tensor([[3.0, 4.0]])).tolist()
    [[11.0]]
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.bias = bias
        self.is_packed = can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT) if self.is_packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x of [T, in] -> [T, out]."""
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN is there and has a blocked layout for this weight."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32
