"""Compiles kernels for GPUs that are not here, and reads from the machine code what decides their speed.

A compiler needs no device: in seconds a kernel becomes the code of an A100 (sm_80), an H100 (sm_90) or an
MI300X (gfx942). That code says what the interpreter can't: whether the kernel compiles at all, whether the
registers of a thread suffice (a value that is *spilled* goes to memory and back), whether the shared memory
does, and whether a load fetches 128 bits at once or 16. The compiler runs in a process of its own, because
one in which kernels are interpreted can't compile them.

It does not say how fast a kernel is. Chapters 11 and 12.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from minipaged.kernels import triton_status
from minipaged.kernels.narrow_offsets import narrow_offsets

SHIPPED = "minipaged.kernels.paged.configs"


@dataclass(frozen=True)
class Target:
    """A kind of GPU: Triton's name for it, and the most shared memory that one program can have, in bytes."""

    backend: str
    arch: int | str
    warp_size: int
    shared_limit: int


# Shared memory: NVIDIA's CUDA programming guide, table of compute capabilities; AMD's CDNA 3 ISA guide (LDS).
TARGETS = {
    "sm_80": Target("cuda", 80, 32, 166_912),
    "sm_90": Target("cuda", 90, 32, 232_448),
    "gfx942": Target("hip", "gfx942", 64, 65_536),
}


@dataclass(frozen=True)
class Compiled:
    """A kernel in one configuration, compiled for one target; or `error`, why it could not be.

    name: of the configuration; kernel: of the function. registers: of a thread. spilled, shared: bytes, of a
    thread and of a program. loads, stores: instructions for global memory in the code of a thread, as bits at
    once → how many. narrow_offsets: lines whose 32-bit product becomes an address. assembly: PTX, or AMD's.
    """

    name: str
    kernel: str
    target: str
    error: str = ""
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    loads: dict[int, int] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)
    narrow_offsets: list[str] = field(default_factory=list)
    assembly: str = field(default="", repr=False)

    @property
    def problems(self) -> list[str]:
        """What a shipped kernel must not have, each as a line of text."""
        limit = TARGETS[self.target].shared_limit
        return [
            *[f"doesn't compile: {self.error}"] * bool(self.error),
            *[f"spills {self.spilled} bytes of registers a thread"] * (self.spilled > 0),
            *[f"needs {self.shared:,} bytes of shared memory of {limit:,}"] * (self.shared > limit),
            *(
                f"an address from a 32-bit product, which can overflow: {line}"
                for line in self.narrow_offsets
            ),
        ]


def compile_report(
    targets: Sequence[str] = tuple(TARGETS), *, names: Sequence[str] = (), source: str | Path = SHIPPED
) -> Iterator[Compiled]:
    """Compile kernels for targets, in a process of its own, and yield each when it is done, in order.

    names: only those configurations whose name contains one of these texts; if none is given, all. source:
    the module, or the path of a Python file, whose `SHIPPED` lists them (see kernels/paged/configs.py).

    Example::

        for kernel in compile_report(["sm_90"], names=["store_kv bf16 D128"]):
            print(kernel.registers, kernel.loads)  # 31 {128: 2, 64: 1}
            print(kernel.assembly)                 # the PTX

    Raises ValueError for an unknown target, for names that fit nothing, and without triton; RuntimeError,
    with what the process said, when it fails.
    """
    for target in targets:
        if target not in TARGETS:
            raise ValueError(f"target {target!r} is not known; use one of {', '.join(TARGETS)}")
    if not triton_status().installed:
        raise ValueError("triton is not installed, so no kernel can be compiled; it exists for Linux only")
    command = [sys.executable, "-m", __name__, json.dumps([str(source), list(names), list(targets)])]
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(_cache_folder(source))}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        assert child.stdout is not None
        found = False
        try:
            for line in child.stdout:
                yield _from_json(json.loads(line))
                found = True
        except BaseException:  # the rest is not wanted
            child.kill()
            raise
        errors.seek(0)
        if child.wait():
            raise RuntimeError(f"the kernels of {source} were not compiled:\n{errors.read()}")
        if not found:
            raise ValueError(f"{source} has no configuration named {' or '.join(names)}")


def _cache_folder(source: str | Path) -> Path:
    """Where Triton keeps what it compiled, for this copy of the kernels alone: the lines that it names in
    there would otherwise be those of another copy with the same text."""
    folder = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    copy = f"{__file__} {Path(source).absolute()}"
    return Path(folder) / f"minipaged-{hashlib.sha256(copy.encode()).hexdigest()[:16]}"


def _from_json(row: dict[str, Any]) -> Compiled:
    for key in ("loads", "stores"):  # JSON has no numbers as keys
        row[key] = {int(bits): count for bits, count in row[key].items()}
    return Compiled(**row)


# -- in the process that compiles ------------------------------------------------------------------


def _main(source: str, names: list[str], targets: list[str]) -> None:
    with redirect_stdout(sys.stderr):  # stdout is for the results
        shipped = _load(source).SHIPPED
    chosen = [one for one in shipped if any(name in one.name for name in names) or not names]
    tasks = [(one, target) for one in chosen for target in targets]
    # Forked, because a kernel can't be sent to a process, and so that none has to import torch again.
    with ProcessPoolExecutor(None, get_context("fork"), _tasks.extend, (tasks,)) as pool:
        for compiled in pool.map(_compile_task, range(len(tasks))):
            print(json.dumps(asdict(compiled)), flush=True)


_tasks: list[tuple[Any, str]] = []  # in a worker: (configuration, target)


def _compile_task(index: int) -> Compiled:
    return _compile(*_tasks[index])


def _load(source: str) -> Any:
    if not source.endswith(".py"):
        return import_module(source)
    spec = spec_from_file_location(Path(source).stem, source)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def _compile(shipped: Any, target_name: str) -> Compiled:
    import triton  # here, because the process that asks must be able to interpret kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = TARGETS[target_name]
    labels = {"name": shipped.name, "kernel": shipped.kernel.__name__, "target": target_name}
    arguments = list(shipped.signature)
    attrs = {(arguments.index(name),): [["tt.divisibility", 16]] for name in shipped.aligned}
    try:
        compiled = triton.compile(
            ASTSource(shipped.kernel, shipped.signature, shipped.constexprs, attrs),
            target=GPUTarget(target.backend, target.arch, target.warp_size),
            # The default of the fusion of a product and a sum depends on the version of Triton.
            options={
                "num_warps": shipped.num_warps,
                "num_stages": shipped.num_stages,
                "enable_fp_fusion": True,
            },
        )
    except (
        Exception
    ) as error:  # of many kinds: Triton's, the assembler's, or whatever the kernel's own code raised
        return Compiled(**labels, error=str(error).strip() or type(error).__name__)
    is_nvidia = target.backend == "cuda"
    assembly = compiled.asm["ptx" if is_nvidia else "amdgcn"]
    registers, spilled = _nvidia_usage(compiled.asm["cubin"]) if is_nvidia else _amd_usage(assembly)
    return Compiled(
        **labels,
        registers=registers,
        spilled=spilled,
        shared=compiled.metadata.shared,
        loads=_widths(assembly, "ld" if is_nvidia else "load"),
        stores=_widths(assembly, "st" if is_nvidia else "store"),
        narrow_offsets=narrow_offsets(compiled.asm["ttir"]),
        assembly=assembly,
    )


def _nvidia_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread; a kernel has a stack for spilled registers."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage)


def _amd_usage(assembly: str) -> tuple[int, int]:
    return _number(r"\.vgpr_count: +(\d+)", assembly), _number(
        r"\.private_segment_fixed_size: +(\d+)", assembly
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"no {pattern} in what the compiler's tools say: {text:.200}")
    return int(found[1])


_PTX_ACCESS = re.compile(r"\b(ld|st)\.global(?:\.[\w:]+?)*?(?:\.v(\d))?\.[busf](\d+)\b")
_PTX_ASYNC_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global[^,]*,[^,]*, (\w+)")
_AMD_ACCESS = re.compile(r"\b(?:global|buffer|flat)_(load|store)_(?:lds_)?[us]?(byte|short|dword)(?:x(\d))?")
_AMD_BITS = {"byte": 8, "short": 16, "dword": 32}


def _widths(assembly: str, kind: str) -> dict[int, int]:
    """Bits at once → number of instructions, the widest first. kind: PTX's ld or st, AMD's load or store."""
    ptx = [int(count or 1) * int(bits) for what, count, bits in _PTX_ACCESS.findall(assembly) if what == kind]
    copied = [8 * int(size, 0) for size in _PTX_ASYNC_COPY.findall(assembly) if kind == "ld"]
    amd = [_AMD_BITS[unit] * int(n or 1) for what, unit, n in _AMD_ACCESS.findall(assembly) if what == kind]
    return dict(sorted(Counter([*ptx, *copied, *amd]).items(), reverse=True))


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
