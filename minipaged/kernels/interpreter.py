"""Two repairs of Triton's interpreter: of an old Triton beside a new NumPy, and of its speed.

Why it exists: up to Triton 3.6 a loop bound that was loaded is read as `int(array)` of an array with one
element, which NumPy 2.4 and later refuse ("only 0-dimensional arrays can be converted to Python scalars"), so
every kernel with such a loop fails. Triton 3.7 reads it as is done here. Common GPU images hold that pair.
And whenever a kernel calls a function (`tl.zeros` and `tl.max` are some, too), the interpreter looks through
all of `triton.language` for what it must replace, though the launch has replaced it already: a third of the
time that a kernel takes.

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
    interpreter._patch_lang = _once_a_launch(interpreter._patch_lang, interpreter.tl)


def _once_a_launch(patch_lang: Any, tl: Any) -> Any:
    """`patch_lang`, but for a function whose modules this launch has patched already: then nothing.

    Since Triton 3.7 it returns a scope, with which the launch takes everything back in the end; before, it
    returns None, and what is patched stays patched.
    """
    patched: set[frozenset[str]] = set()

    def patch(function: Any) -> Any:
        modules = frozenset(value.__name__ for value in function.__globals__.values()
                            if value is tl or value is tl.core)  # fmt: skip
        if modules in patched:
            return _NothingToRestore()
        scope = patch_lang(function)
        patched.add(modules)
        if scope is not None:
            restore = scope.restore

            def restore_all() -> None:
                patched.clear()
                restore()

            scope.restore = restore_all
        return scope

    return patch


class _NothingToRestore:
    def restore(self) -> None:
        pass
