"""Runs a function that launches kernels, and says as plain data what it did to memory.

A grader judges kernels by their results, by what they touched and by how many bytes they moved; nothing is
judged here. Interpreted, kernels run under `sanitizer.watch` on tensors with gaps; on a GPU they run as they
are, and only results count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.addresses import FarTensor
from minipaged.kernels.interpreter import cause_of
from minipaged.kernels.sanitizer import KernelFault, guarded, watch


def run_kernel(
    function: Callable[..., Any],
    *arguments: Any,
    unwritten: Sequence[int] = (),
    gaps: bool = True,
    far: Sequence[int] = (),
) -> dict[str, Any]:
    """Call `function` on copies of the arguments.

    unwritten: the numbers of the arguments in which NaN marks what must not be read. gaps: put some between
    the rows of every tensor, so that an index past a row's end is found; False keeps their strides. far: the
    numbers of those that pretend to be so large that offsets need 64 bits (`FarTensor`).

    Returns "result"; "arguments", the copies as they are afterwards; "fault", what a kernel touched that it
    must not, or ""; "watched", whether kernels are interpreted, and so watched; and "launches", for each
    watched launch its "kernel", "programs" (how many touched memory) and "loaded" and "stored" (bytes by
    argument name).

    >>> run_kernel(copy_blocks, k_cache, v_cache, copies)["arguments"][0]
    """
    interpreted = triton_status().interpret
    copies = [_copy(argument, interpreted and gaps) for argument in arguments]
    if not interpreted:
        result = function(*copies)
        seen = {"fault": "", "watched": False, "launches": []}
        return {"result": _home(result), "arguments": _home(copies), **seen}
    given = [copy.as_subclass(FarTensor) if i in far else copy for i, copy in enumerate(copies)]
    from triton.runtime.errors import InterpreterError  # here, because there may be no triton

    result, fault = None, ""
    try:
        with watch(unwritten=[copies[number] for number in unwritten]) as report:
            result = function(*given)
    except KernelFault as error:
        fault = str(error)
    except InterpreterError as error:
        raise cause_of(error)  # noqa: B904
    launches = [
        {
            "kernel": launch.kernel,
            "programs": len(launch.programs),
            "loaded": {name: tensor.bytes_loaded for name, tensor in launch.tensors.items()},
            "stored": {name: tensor.bytes_stored for name, tensor in launch.tensors.items()},
        }
        for launch in report.launches
    ]
    seen = {"fault": fault, "watched": True, "launches": launches}
    return {"result": result, "arguments": copies, **seen}


def _copy(argument: Any, gaps: bool) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    if gaps:
        return guarded(argument)
    compiles = triton_status().installed and not triton_status().interpret
    device = "cuda" if compiles else argument.device  # without triton, PyTorch twins run where they are
    copy = torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device=device)
    return copy.copy_(argument)


def _home(value: Any) -> Any:
    """Tensors back from the GPU, in tuples and lists too."""
    if isinstance(value, Tensor):
        return value.cpu()
    return type(value)(map(_home, value)) if isinstance(value, (tuple, list)) else value
