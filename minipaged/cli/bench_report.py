"""What every benchmark's report begins with, and how it is written: the command, the machine, the date.

A number without these cannot be checked. `tools/results.py` makes a page of the files.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import torch

Report = dict[str, Any]


class OutputFile(click.Path):
    """A file that will be written in the end. If its folder is missing, the command fails at the start."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        folder = Path(value).parent
        if not folder.is_dir():
            self.fail(f"there is no folder {str(folder)!r} to write {Path(value).name!r} into", param, ctx)
        return super().convert(value, param, ctx)


json_option = click.option("--json", "json_file", type=OutputFile(), help="Write everything to this file.")
png_option = click.option("--png", type=OutputFile(), help="Draw it into this file.")


def machine() -> Report:
    """What the numbers were measured on, and when."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def begin_report(kind: str, options: Report) -> Report:
    """Example: `begin_report("soak", {"requests": 100})` has "kind", "command", "machine" and "options"."""
    # Where a file lies on this machine is private: its name is enough.
    arguments = [Path(each).name if Path(each).is_absolute() else each for each in sys.argv[1:]]
    command = shlex.join(["minipaged", *arguments])
    return {"kind": kind, "command": command, "machine": machine(), "options": options}


def write_report(report: Report, json_file: str | None) -> None:
    """Write a report to a file, if there is to be one."""
    if json_file:
        Path(json_file).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
