"""Made-up addresses, which tell what a kernel meant; `sanitizer` gives them to kernels.

A real address that is out of bounds is most often some other tensor's, and it can't be told which was meant.
So each tensor argument of a launch gets a region of 2^48 addresses of its own, and lies in the middle of it:
whatever a kernel adds to its pointer, up to 2^47 bytes either way, the sum still says which argument it was
made from, and how far off it is. It becomes a real address only after it has been checked.

What is said of a tensor's strides may be made up as well (`FarTensor`): so a kernel can be seen to compute an
address in 32 bits, which is wrong from 2^31 elements on, without a tensor of that size.

Left out: pointers to another type than their tensor's; they are checked by where they begin. Chapter 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[Any]

_REGION_BITS = 48  # region 0 is where real addresses are, so arguments are numbered from 1
FAR = 1 << 30  # elements; twice that, and the rows behind it, are too far for an offset of 32 bits


def region_of(addresses: Array) -> Array:
    """The number of the argument that each address was made from, or that of none. uint64 → uint64."""
    return addresses >> np.uint64(_REGION_BITS)


class AddressedTensor(Tensor):
    """A tensor that tells a kernel a made-up address; otherwise it is the tensor it was made from."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    address: int

    def data_ptr(self) -> int:
        return self.address


class FarTensor(Tensor):
    """A tensor that says that its rows (in dimension 0) are `FAR` elements apart; only `watch` finds them.

    Row 2 begins 2^31 elements behind row 0, or so a kernel is told. Example: `x.as_subclass(FarTensor)`.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def stride(self, dim: Any = None) -> Any:
        strides = (FAR, *super().stride()[1:])
        return strides if dim is None else strides[dim]


class Argument:
    """Tensor argument `number` (from 1) of a launch: its made-up addresses, and which of them are elements.

    An *offset* counts elements from the tensor's first, by the strides that the kernel was told: offset 16 of
    a contiguous [5, 8] is [2, 0].
    """

    def __init__(self, number: int, name: str, tensor: Tensor, strides: Sequence[int] = ()) -> None:
        self.name = name
        self.itemsize = tensor.element_size()
        self.shape, self.strides = tuple(tensor.shape), tuple(strides or tensor.stride())
        self._skipped = self.strides[0] - tensor.stride(0) if strides else 0  # elements a row, of a FarTensor
        self._made_up = (number << _REGION_BITS) + (1 << (_REGION_BITS - 1))
        self._real = tensor.data_ptr()
        self._dims = _outermost_first(self.shape, self.strides)
        self._merged = _merge([(stride, size) for _, stride, size in self._dims])

    def addressed(self, tensor: Tensor) -> AddressedTensor:
        """The tensor, to be given to the kernel."""
        made_up = tensor.as_subclass(AddressedTensor)
        made_up.address = self._made_up
        return made_up

    def real(self, addresses: Array) -> Array:
        """Where in memory the made-up addresses are. uint64 → uint64."""
        distances = (addresses - np.uint64(self._made_up)).astype(np.int64)
        return self.in_memory(distances, self.itemsize).astype(np.uint64) + np.uint64(self._real)

    def in_memory(self, distances: Array, itemsize: int = 1) -> Array:
        """How far from the tensor's first element it really is, in elements of `itemsize`. int64 → int64."""
        if not self._skipped:
            return distances
        return distances - distances // (FAR * itemsize) * (self._skipped * itemsize)

    def offsets(self, addresses: Array) -> Array:
        """How many elements lie between the tensor's first and each address. uint64 → int64."""
        return (addresses - np.uint64(self._made_up)).astype(np.int64) // self.itemsize

    def is_outside(self, offsets: Array) -> Array:
        """Which offsets are no element of the tensor: past an end of it, or in a gap. int64 → bool."""
        outside, rest = np.full(len(offsets), 0 in self.shape), offsets
        for stride, size in self._merged:
            index, rest = np.divmod(rest, stride)
            outside |= (index < 0) | (index >= size)
        return outside | (rest != 0)

    def describe(self, offset: int) -> tuple[str, tuple[int, ...]]:
        """The element at an offset, in or out of bounds, as text and as an index.

        Example: of a contiguous k of [5, 8], offset 40 is `("k[5, 0]", (5, 0))`, and offset -1 is
        `("k[-1, 7]", (-1, 7))`.
        """
        index = [0] * len(self.shape)
        for dim, stride, _ in self._dims:
            index[dim], offset = divmod(offset, stride)
        return f"{self.name}{index}" + f" + {offset}" * (offset > 0), tuple(index)


def _outermost_first(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int, int]]:
    """(dimension, stride, size), the largest stride first, without those in which nothing can move.

    Dimensions that overlap in memory, as a sliding window's do, are taken as one row of all elements.
    """
    dims = [
        (dim, stride, size)
        for dim, (stride, size) in enumerate(zip(strides, shape, strict=True))
        if size != 1 and stride
    ]
    dims.sort(key=lambda dim: dim[1], reverse=True)
    if any(outer < inner * size for (_, outer, _), (_, inner, size) in pairwise(dims)):
        return [(0, 1, 1 + sum((size - 1) * stride for _, stride, size in dims))]
    return dims or [(0, 1, 1)] * bool(shape)


def _merge(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stride, size), neighbours without a gap taken as one: a contiguous tensor is one row."""
    merged: list[tuple[int, int]] = []
    for stride, size in dims:
        if merged and merged[-1][0] == stride * size:
            size *= merged.pop()[1]
        merged.append((stride, size))
    return merged or [(1, 1)]
