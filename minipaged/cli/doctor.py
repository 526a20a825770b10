"""`minipaged doctor`: what this machine has, what it lacks, and what to do about it.

Most questions of a first hour are about the installation. Each check looks at one thing and says in a line
what it found; what is wrong comes with its remedy. It runs without torch, so that it can report torch as
missing. It repairs nothing; `make test` says whether the engine is right.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

import click

from minipaged.cli import REAL_MODEL

GIB = 2**30
REAL_MODEL_BYTES = 4 * 134_515_008  # its parameters in fp32
OVERHEAD_BYTES = 6 * GIB // 10  # torch itself and the tensors of a step
COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
INSTALL = "pip install -c constraints.txt"

# Runs in a child, because a kernel that goes wrong can take its process with it.
KERNEL_TEST = """
import torch
from minipaged.kernels import triton_status
from minipaged.kernels.paged.torch_twins import store_kv_torch
from minipaged.kernels.paged.triton_decode import store_kv
device = "cpu" if triton_status().interpret else "cuda"
k, v = torch.randn(2, 3, 2, 8, device=device)
slots = torch.tensor([6, -1, 1], device=device)
ours, twin = torch.zeros(2, 2, 2, 4, 2, 8, device=device)
store_kv(k, v, *ours, slots)
store_kv_torch(k, v, *twin, slots)
assert torch.equal(ours, twin), "store_kv and its PyTorch twin differ"
print("interpreted on the CPU" if triton_status().interpret else "compiled for the GPU")
"""


@dataclass(frozen=True)
class Finding:
    """What a check found: "ok", a "warning" (a part will not work), or a "problem" (nothing will).

    Example: `Finding("warning", "1.1 GiB available", remedy="Close something.")`.
    """

    status: str
    found: str
    remedy: str = ""


@click.command()
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Check this machine, and say what to do about each problem.

    The exit code is 1 if something stops the package from working, else 0.

    Example: minipaged doctor
    """
    width, indent, statuses = shutil.get_terminal_size().columns, " " * 18, []
    for name, check in CHECKS.items():
        finding = check()
        statuses.append(finding.status)
        click.secho(f"{finding.status:9}", fg=COLOURS[finding.status], nl=False)
        click.echo(click.wrap_text(f"{' ' * 9}{name:9}{finding.found}", width, "", indent)[9:])
        if finding.remedy:
            click.echo(click.wrap_text(finding.remedy, width, indent, indent))
    click.echo(f"problems: {statuses.count('problem')}, warnings: {statuses.count('warning')}")
    ctx.exit(int("problem" in statuses))


def _check_python() -> Finding:
    status = "ok" if sys.version_info >= (3, 10) else "problem"
    remedy = "" if status == "ok" else "Create the environment with Python 3.10 or newer."
    return Finding(status, f"{platform.python_version()} in {sys.prefix}", remedy)


def _check_torch() -> Finding:
    try:
        import torch
    except Exception as error:  # it is missing, or a library below it is broken
        return Finding("problem", f"cannot be imported: {error}", f"Install it: {INSTALL} torch")
    return Finding("ok", f"{torch.__version__}, threads: {torch.get_num_threads()}, CPUs: {os.cpu_count()}")


def _check_gpu() -> Finding:
    try:
        import torch
    except Exception:
        return Finding("warning", "unknown without torch", "See above.")
    if not torch.cuda.is_available():
        return Finding("ok", "none that torch can use: everything runs on the CPU, kernels are interpreted")
    free, total = torch.cuda.mem_get_info()
    return Finding("ok", f"{torch.cuda.get_device_name()}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")


def _check_triton() -> Finding:
    remedy = "Without it chapters 11 and 12 run PyTorch twins of their kernels."
    if find_spec("triton") is None:
        how = f" Install it: {INSTALL} triton" if sys.platform == "linux" else " It exists for Linux only."
        return Finding("warning", "not installed", remedy + how)
    version = metadata.version("triton")
    command = [sys.executable, "-c", KERNEL_TEST]
    try:
        test = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return Finding("warning", f"{version}, but a small kernel took more than 120 s", "Try again later.")
    if test.returncode:
        reason = "".join(test.stderr.strip().splitlines()[-1:]) or f"exit code {test.returncode}"
        found = f"{version}, but a kernel failed: {reason}"
        return Finding("warning", found, f"{remedy} Try again: {INSTALL} triton")
    return Finding("ok", f"{version}, store_kv equals its PyTorch twin, {test.stdout.strip()}")


def _check_numba() -> Finding:
    if find_spec("numba") is None:
        remedy = f"For its loops: {INSTALL} numba" if sys.platform == "linux" else ""
        return Finding("ok", "not installed: a CPU is slower without its compiled loops", remedy)
    try:
        import minipaged.backends.numba_loops  # noqa: F401
    except Exception as error:
        found = f"{metadata.version('numba')}, but its loops can't be used: {error}"
        return Finding("warning", found, "PyTorch's operators take their place, more slowly.")
    return Finding("ok", f"{metadata.version('numba')}, compiled loops for the CPU")


def _check_jupyter() -> Finding:
    missing = " ".join(name for name in ("jupyterlab", "ipykernel") if find_spec(name) is None)
    if missing:
        return Finding("warning", f"no {missing}", f"The notebooks need it: {INSTALL} {missing}")
    return Finding("ok", f"jupyterlab {metadata.version('jupyterlab')}")


def _check_model() -> Finding:
    from minipaged.loading.hub import cache_folder, find_model, is_fetched, model_source

    if not is_fetched(REAL_MODEL):
        remedy = "Run `minipaged fetch`. Until then a tiny random model takes its place."
        return Finding("warning", f"{REAL_MODEL} is not here", remedy)
    try:
        folder = find_model(REAL_MODEL)
    except ValueError as error:
        return Finding("warning", str(error), f"Delete {cache_folder() / REAL_MODEL}, run `minipaged fetch`.")
    return Finding("ok", f"{REAL_MODEL} in {folder} (from {model_source(folder) or 'you'})")


def _check_memory() -> Finding:
    try:
        import psutil

        from minipaged.engine import CPU_KV_BYTES
    except Exception as error:
        return Finding("warning", f"unknown: {error}", f"Install what is missing: {INSTALL} psutil torch")
    needed = REAL_MODEL_BYTES + CPU_KV_BYTES + OVERHEAD_BYTES
    available = psutil.virtual_memory().available
    found = f"{available / GIB:.1f} GiB available; {REAL_MODEL} and its pool need {needed / GIB:.1f}"
    if available < needed:
        return Finding("warning", found, "Close something, or use less: --num-blocks 128 --dtype bfloat16.")
    return Finding("ok", found)


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": _check_python,
    "torch": _check_torch,
    "GPU": _check_gpu,
    "triton": _check_triton,
    "numba": _check_numba,
    "Jupyter": _check_jupyter,
    "model": _check_model,
    "memory": _check_memory,
}
