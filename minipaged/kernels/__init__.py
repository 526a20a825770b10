"""Decides, before triton is imported, whether kernels are compiled for a GPU or interpreted on the CPU.

Triton reads TRITON_INTERPRET while it is being imported: set later, kernels that call library functions fail.
So every module with a kernel lives in the sub-package `minipaged.kernels.paged` (the folder kernels/paged),
whose `__init__` asks here first. Importing this module alone needs neither triton nor torch.

Chapters 11 and 12.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# In a clone, the kernels lie in kernels/paged at its root; in an installed package, beside this file.
_IN_CLONE = Path(__file__).resolve().parents[2] / "kernels"
if (_IN_CLONE / "paged" / "__init__.py").is_file():
    __path__.append(str(_IN_CLONE))


@dataclass(frozen=True)
class TritonStatus:
    """Whether Triton is `installed` here, and whether its kernels run in the interpreter (`interpret`)."""

    installed: bool
    interpret: bool


@cache
def triton_status() -> TritonStatus:
    """Say how Triton kernels run in this process, and set TRITON_INTERPRET=1 where there is no GPU.

    A value that the user set stays as it is. The answer is the same for the life of the process.

    Example, on a laptop with Linux and no GPU::

        triton_status()  # TritonStatus(installed=True, interpret=True)

    Raises RuntimeError when triton was imported before the decision could be made.
    """
    if find_spec("triton") is None:
        return TritonStatus(installed=False, interpret=False)
    if "TRITON_INTERPRET" not in os.environ and not _gpu_present():
        _refuse_late_decision()
        os.environ["TRITON_INTERPRET"] = "1"
    return TritonStatus(installed=True, interpret=_is_set(os.environ.get("TRITON_INTERPRET", "")))


def _gpu_present() -> bool:
    import torch  # here, because it takes a second that a machine without triton need not spend

    return torch.cuda.is_available()


def _is_set(value: str) -> bool:
    return value.lower() in ("1", "true", "on", "y", "yes")  # what triton itself takes for "yes"


def _refuse_late_decision() -> None:
    if "triton.language" in sys.modules:
        raise RuntimeError(
            "triton was imported before minipaged.kernels on a machine without a GPU: its kernels can't run; "
            "import minipaged.kernels.paged first, or set TRITON_INTERPRET=1 before starting Python"
        )
