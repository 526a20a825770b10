"""Two repairs of Triton's interpreter: of an old Triton beside a new NumPy, and of its speed.

Up to Triton 3.6 a loop bound that was loaded is read as `int(array)` of an array with one element, which
NumPy 2.4 and later refuse ("only 0-dimensional arrays can be converted to Python scalars"), so every kernel
with such a loop fails. Triton 3.7 reads it as is done here. Common GPU images hold that pair. And at every
launch, and whenever a kernel calls a function (`tl.zeros` and `tl.max` are some, too), the interpreter looks
through all of `triton.language` for what it must replace: a third of a kernel's time.

Left out: what else the interpreter does unlike a GPU, bf16 first of all (`triton_decode.compute_dtypes`).
"""

from __future__ import annotations

from typing import Any


def repair_interpreter() -> None:
    """Let interpreted kernels loop up to a number that was loaded, and call functions fast. Call it once."""
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_repair(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor_and_repair
    interpreter._patch_lang = _once(interpreter._patch_lang, interpreter.tl)


def cause_of(error: BaseException) -> BaseException:
    """What a kernel's own line raised, if `error` is what the interpreter has wrapped around it.

    Any other error comes back as it is. Goes by the name of the type, as triton may not be here.
    """
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


class _NothingToRestore:
    def restore(self) -> None:
        """What a launch calls in the end, from Triton 3.6 on."""


def _once(patch_lang: Any, tl: Any) -> Any:
    """`patch_lang`, once for all functions that see the same modules: what was replaced stays replaced.

    Triton takes it back after a launch, for a process that compiles kernels as well. This one doesn't.
    """
    patched: set[frozenset[str]] = set()

    def patch(function: Any) -> _NothingToRestore:
        seen = function.__globals__.values()
        modules = frozenset(value.__name__ for value in seen if value is tl or value is tl.core)
        if modules not in patched:
            patch_lang(function)
            patched.add(modules)
        return _NothingToRestore()

    return patch
