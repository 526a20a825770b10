"""The Triton kernels of paged attention; imported as `minipaged.kernels.paged`, never as `kernels.paged`.

Importing any module of this package first settles whether kernels are compiled or interpreted, and repairs
the interpreter if need be. `torch_twins` imports on every system; a module with a kernel needs the package
`triton`, which exists for Linux only.
"""

from __future__ import annotations

from minipaged.kernels import triton_status
from minipaged.kernels.interpreter import repair_interpreter

if triton_status().interpret:
    repair_interpreter()
