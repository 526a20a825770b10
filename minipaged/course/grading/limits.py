"""What a submission may use, and how a process is held to it."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Seconds of processor time for one answer and for all answers of a task: a machine that is busy with
    other things costs nothing. Time asleep counts, too, and all time with processes of its own. wall_factor:
    so many times that by the clock, whatever happens. MiB: of memory of all its processes together (and of
    address space of each), of a file, of all that is printed. Threads count as processes.
    """

    answer_s: float = 10.0
    task_s: float = 60.0
    wall_factor: float = 10.0
    memory_mib: int = 4096
    file_mib: int = 16
    printed_mib: int = 16
    processes: int = 64

    def for_setrlimit(self) -> dict[str, int]:
        """The limits of one process, by their names."""
        return {
            "RLIMIT_CPU": int(self.task_s * self.wall_factor) + 1,
            "RLIMIT_AS": self.memory_mib << 20,
            "RLIMIT_FSIZE": self.file_mib << 20,
            "RLIMIT_NPROC": self.processes + _num_running(),
            "RLIMIT_NOFILE": 256,
            "RLIMIT_CORE": 0,
        }


def limit_this_process(limits: dict[str, int]) -> None:
    """Once and for all. A limit that the system doesn't know is skipped."""
    resource: Any = importlib.import_module("resource")  # not on Windows
    for name, value in limits.items():
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (value, value))


def _num_running() -> int:
    """Processes are counted per user. Where a submission has none of its own, those come on top that the user
    runs already."""
    if os.geteuid() == 0:
        return 0
    import psutil

    running = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            running += process.num_threads() if process.uids().real == os.getuid() else 0
    return running
