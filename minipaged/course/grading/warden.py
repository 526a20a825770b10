"""The process that neither students' code nor the tests can touch: it starts both and takes the results.

    this process ── a socket ── the examiner (pytest and the tests, in a sandbox)
         │                          │  stdin, stdout and stderr
         └── starts and ends ── the subject (a submission, in another sandbox)

The examiner asks for a subject and for what it uses; this process decides everything that costs the machine
something. An examiner that ends before it says that it is done has given no results.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minipaged.course.grader import TestResult
from minipaged.course.grading.limits import Limits
from minipaged.course.grading.package_view import PACKAGE, copy_package, hidden_functions
from minipaged.course.grading.sandbox import Isolation, Sandbox, adopt_orphans
from minipaged.course.outline import Chapter
from minipaged.course.tasks import grader_file, hidden_file, load_tasks

CHAPTER_S = 4 * 3600.0  # by the clock, whatever happens
TEST_S = 100.0  # of processor time, for what a test itself does; waiting for the submission doesn't count
# What an examiner may use: it reads what a submission says, so that has an end too.
EXAMINER = {"RLIMIT_DATA": 4 << 30, "RLIMIT_FSIZE": 16 << 20, "RLIMIT_NOFILE": 256, "RLIMIT_CORE": 0}
LOOK_S = 0.25  # so often the memory of a submission is looked at
MAX_SUBJECTS = 40  # of a chapter: one for each task, or for each that has ended
MAX_LINE = 1 << 20


def judge(
    root: Path,
    chapter: Chapter,
    text: str,
    seed: int,
    isolation: Isolation,
    limits: Limits,
    task: int | None = None,
) -> list[TestResult]:
    """What every test of a chapter, or of one task, says about the text of a file. RuntimeError if the
    examiner broke off: then nothing that it has said counts."""
    with TemporaryDirectory(prefix="minipaged-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # the sandboxes in it belong to others, who can't list them
        if isolation.level == "limits":
            adopt_orphans()
        with _Warden(root, chapter, text, isolation, limits, Path(folder)) as warden:
            return warden.judge(seed, task)


class _Warden:
    """One chapter of one submission."""

    def __init__(
        self, root: Path, chapter: Chapter, text: str, isolation: Isolation, limits: Limits, scratch: Path
    ) -> None:
        self.root, self.chapter, self.text, self.limits = root, chapter, text, limits
        self.isolation, self.scratch = isolation, scratch
        self.ours, self.theirs = socket.socketpair()
        self.examiner = Sandbox(isolation, scratch)
        self.subject: Sandbox | None = None
        self.num_subjects, self.first_task = 0, 0
        self.ended = ""  # why this process has ended the subject

    def __enter__(self) -> _Warden:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_subject()
        self.examiner.stop()
        self.ours.close()
        self.theirs.close()

    def judge(self, seed: int, task: int | None) -> list[TestResult]:
        self.first_task = task or load_tasks(self.root, self.chapter)[0].number
        _copy_course(self.root, self.chapter, self.examiner.view)
        order = {
            "key": self.chapter.key,
            "task": task,
            "seed": seed,
            "socket": self.theirs.fileno(),
            "rlimits": EXAMINER,
            "test_s": TEST_S,
            # While a test waits for the submission, the clock goes on.
            "wall_factor": 1 + self.limits.task_s * self.limits.wall_factor / TEST_S * 2,
        }
        module = "minipaged.course.grading.examiner"
        self._make_subject(self.first_task)
        with open(self.scratch / "log", "wb+") as log:
            self.examiner.start(module, order, pass_fds=[self.theirs.fileno()], log=log)
            self.theirs.close()
            results: list[TestResult] = []
            begin, place, is_hidden = time.monotonic(), "it began", True
            for line in self._lines(time.monotonic() + CHAPTER_S):
                message = json.loads(line)
                if "ask" in message:
                    self._answer(message)
                elif "running" in message:
                    begin, place = time.monotonic(), f"{message['running']} ran"
                    is_hidden = message["hidden"]  # how long it takes could tell what it calls
                elif "done" in message and message["done"] in (0, 1):  # pytest: all passed, some failed
                    return results
                elif "outcome" in message:
                    result = TestResult(**message)
                    result.seconds = 0.0 if is_hidden else time.monotonic() - begin
                    results.append(result)
            log.seek(max(0, log.tell() - 3000))
            output = log.read().decode(errors="replace")
        raise RuntimeError(f"the grader itself broke off while {place}:\n{output}")

    def _lines(self, end: float) -> Iterator[bytes]:
        """What the examiner says, until it hangs up; looks at the subject in between."""
        received = bytearray()
        self.ours.settimeout(LOOK_S)
        while time.monotonic() < end and len(received) < MAX_LINE:
            try:
                data = self.ours.recv(1 << 16)
            except TimeoutError:
                self._look()
                continue
            except ConnectionError:
                return
            if not data:
                return
            received += data
            *lines, rest = bytes(received).split(b"\n")
            received = bytearray(rest)
            yield from lines

    def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {}
        pipes: list[Any] = []
        if request["ask"] == "start":
            pipes = self._start_subject(int(request["task"]))
            answer = {"limits": asdict(self.limits)}
        elif request["ask"] == "look":
            answer = self._look()
        elif request["ask"] == "stop":
            self._stop_subject()
        with suppress(ConnectionError):
            socket.send_fds(self.ours, [json.dumps(answer).encode()], [pipe.fileno() for pipe in pipes])
        for pipe in pipes:
            pipe.close()

    def _start_subject(self, task: int) -> list[Any]:
        """A sandbox with the submission in it; returns its stdin, stdout and stderr."""
        if self.num_subjects != 1 or task != self.first_task:  # the first one starts beside the examiner
            self._stop_subject()
            self._make_subject(task)
        assert self.subject is not None and self.subject.process is not None
        self.first_task, process = 0, self.subject.process
        return [process.stdin, process.stdout, process.stderr]

    def _make_subject(self, task: int) -> None:
        self.num_subjects += 1
        if self.num_subjects > MAX_SUBJECTS:
            raise RuntimeError(f"the examiner asked for more than {MAX_SUBJECTS} sandboxes")
        self.subject, self.ended = Sandbox(self.isolation, self.scratch), ""
        copy_package(self.subject.view, self.chapter, hidden_functions(self.root, self.chapter, task))
        file = self.subject.view / "submission" / f"{self.chapter.file_stem}.py"
        file.parent.mkdir()
        file.write_text(self.text, encoding="utf-8")
        order = {
            "rlimits": self.limits.for_setrlimit(),
            "file": str(file.relative_to(self.subject.view)),
            "module": self.chapter.module,
        }
        self.subject.start("minipaged.course.grading.subject", order)

    def _stop_subject(self) -> None:
        if self.subject is not None:
            self.subject.stop()
            self.subject = None

    def _look(self) -> dict[str, Any]:
        """What the subject uses. One that uses too much memory is ended."""
        if self.subject is None:
            return {"cpu_s": 0.0, "by_clock": True, "ended": self.ended}
        usage = self.subject.look()
        if usage.memory > self.limits.memory_mib << 20:
            self.ended = f"its processes used more than {self.limits.memory_mib:,} MiB of memory together"
            self._stop_subject()
        return {"cpu_s": usage.cpu_s, "by_clock": usage.by_clock, "ended": self.ended}


def _copy_course(root: Path, chapter: Chapter, target: Path) -> None:
    """What an examiner needs of the course: the package, with what Python has compiled, and the tests."""
    kernels = PACKAGE.parent / "kernels" / "paged"
    shutil.copytree(PACKAGE, target / "minipaged")
    if kernels.is_dir():
        shutil.copytree(kernels, target / "kernels" / "paged")
    for file in (
        root / "pyproject.toml",
        root / "tests" / "conftest.py",
        grader_file(root, chapter),
        hidden_file(root, chapter),
    ):
        if file.is_file():
            copy = target / file.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
    for file in target.rglob("*"):  # also where the course is its owner's alone
        file.chmod(0o755 if file.is_dir() else 0o644)
