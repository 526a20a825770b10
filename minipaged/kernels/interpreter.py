"""A repair of Triton's interpreter, where an old Triton meets a new NumPy.

Why it exists: up to Triton 3.6 a loop bound that was loaded is read as `int(array)` of an array with one
element, which NumPy 2.4 and later refuse ("only 0-dimensional arrays can be converted to Python scalars"), so
every kernel with such a loop fails. Triton 3.7 reads it as is done here. Common GPU images hold that pair.

Left out: what else the interpreter does unlike a GPU, bf16 first of all (`triton_decode.compute_dtypes`).
"""

from __future__ import annotations

from typing import Any


def repair_interpreter() -> None:
    """Let interpreted kernels loop up to a number that was loaded, with any NumPy. Call it once."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_repair(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor_and_repair
