"""`minipaged kernels`: what the kernels become on GPUs that are not here, as a table.

The figures of the machine code are what can be seen of a kernel's speed without a GPU, and a spill, an
address that overflows or a failed compilation should be found before you rent one.
`minipaged/kernels/compile_report.py` computes the figures. Chapter 12.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from minipaged.kernels.compile_report import TARGETS, Compiled, compile_report

_ROW = "{:29} {:19} {:7}{:>10}{:>9}{:>9}  {:26} {}"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Default: all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with the assembly.")
@click.pass_context
def kernels(ctx: click.Context, names: tuple[str, ...], targets: Sequence[str], as_json: bool) -> None:
    """Compile the kernels for GPUs, without one, and show what they need.

    NAMES picks configurations whose name contains one of them. Loads and stores are the instructions for
    global memory in a thread's code, number × bits at once. The exit code is 1 if a kernel does not compile,
    spills, wants more shared memory than there is, or computes an address in 32 bits.

    \b
    Examples:
      minipaged kernels
      minipaged kernels paged_decode --target sm_90
    """
    if not as_json:
        titles = ("configuration", "kernel", "target", "registers", "spilled", "shared", "loads", "stores")
        click.secho(_ROW.format(*titles), bold=True)
    found_problems = False
    for kernel in compile_report(targets or tuple(TARGETS), names=names):
        click.echo(json.dumps(asdict(kernel) | {"problems": kernel.problems}) if as_json else _row(kernel))
        found_problems |= bool(kernel.problems)
        if not as_json:
            for problem in kernel.problems:
                click.secho("  " + problem.replace("\n", "\n  "), fg="red")
    ctx.exit(1 if found_problems else 0)


def _row(kernel: Compiled) -> str:
    numbers = (
        (f"{kernel.registers}", f"{kernel.spilled:,}", f"{kernel.shared:,}") if not kernel.error else "---"
    )
    return _ROW.format(
        kernel.name,
        kernel.kernel.strip("_").removesuffix("_kernel"),
        kernel.target,
        *numbers,
        _widths(kernel.loads),
        _widths(kernel.stores),
    )


def _widths(widths: dict[int, int]) -> str:
    return ", ".join(f"{count} × {bits}" for bits, count in widths.items())
