"""Runs a chapter's grader on somebody's file, in a child process, and collects what every test said.

Why a child: the reader's code may loop for ever, exhaust memory or call `sys.exit`, and it is imported anew
each time. This is self-check, and it is trust-based: the code under test runs beside the tests and could
cheat. What it leaves out: points and words (`report.py`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest

from minipaged.chapters import Chapter
from minipaged.course.pytest_plugin import ISOLATED
from minipaged.course.seed import run_seed
from minipaged.course.tasks import find_chapter, grader_file, hidden_file

TIMEOUT_S = 60
# One thread, the same order of sets every time, and no plugins that happen to be installed.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
HIDDEN = "not shown: this is a hidden check"
MAX_PRINTED = 2000  # characters of what the reader's code printed, the last ones
MAX_MESSAGE = 1000  # characters of an exception's message
_STUB = re.compile(r"ch\d\d_\w+, task \d+: ")  # what a stub says; torch raises NotImplementedError as well
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class TestResult:
    """What one test said.

    outcome: passed, failed (an expectation did not hold), error (an exception nobody expected), missing (a
    stub was called) or skipped. detail: the fields of a `Mismatch`, or one message. printed: what the code
    under test printed.
    """

    __test__ = False  # pytest takes everything called Test… for a test

    name: str
    task: int
    outcome: str
    message: str = ""
    mismatch: dict[str, Any] = field(default_factory=dict)
    printed: str = ""

    @property
    def title(self) -> str:
        """The test's name as words: "freeing twice is an error and changes nothing"."""
        return self.name.split("[")[0].removeprefix("test_").replace("_", " ")

    def says_the_same_as(self, other: TestResult) -> bool:
        """Whether two tests failed in the very same way, as all do if a file can't be imported."""
        return (self.message, self.mismatch) == (other.message, other.mismatch)


def run_grader(
    root: Path, chapter: Chapter, impl: str, task: int | None = None, timeout_s: float = TIMEOUT_S,
    environment: dict[str, str] | None = None,
) -> list[TestResult]:  # fmt: skip
    """Judge `impl` in a child process. A test that does not end within `timeout_s` is failed, and so is all
    after it."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        os.chmod(folder, 0o711)  # a sandbox is made in it, maybe for another user
        is_name = impl in ("minipaged", "solutions", "exercises") or impl.startswith(ISOLATED)
        subject = impl if is_name else str(Path(impl).resolve())
        arguments = [str(root), chapter.key, subject, str(results), str(task or 0)]
        child = subprocess.Popen(
            [sys.executable, "-m", "minipaged.course.grader", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True, cwd=root,
            env=os.environ | ENVIRONMENT | {"TMPDIR": folder} | (environment or {}),
        )  # fmt: skip
        try:
            output, _ = child.communicate(timeout=timeout_s)
            ending = f"the process ended with code {child.returncode}"
        except subprocess.TimeoutExpired:
            output, ending = "", f"it did not end within {timeout_s:g} s: an endless loop?"
        finally:
            _kill(child)
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return _read_results([json.loads(line) for line in lines], ending, output)


def run_here(
    root: Path, chapter: Chapter, impl: str, task: int | None, sink: TextIO, max_failures: int = 0
) -> int:
    """Judge `impl` in this process; what every test says goes to `sink` as it comes, a line of JSON each.

    max_failures: stop after so many; 0 for never.
    """
    collector = _Collector(task, sink)
    options = ["-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-q", "--tb=no"]
    options += [f"--maxfail={max_failures}"]
    if run_seed() is not None:
        options += ["-p", "_hypothesis_pytestplugin", f"--hypothesis-seed={run_seed()}"]
    plugin = ["-p", "minipaged.course.pytest_plugin", "--impl", impl, "--rootdir", str(root)]
    files = [str(grader_file(root, chapter))]
    if run_seed() is not None and hidden_file(root, chapter).is_file():
        files.append(str(hidden_file(root, chapter)))
    arguments = [*options, *plugin, "-c", str(root / "pyproject.toml"), *files]
    return int(pytest.main(arguments, plugins=[collector]))


class _Collector:
    """A pytest plugin that writes down what every test says."""

    def __init__(self, task: int | None, sink: TextIO) -> None:
        self.task, self.sink = task, sink

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.task is not None:
            items[:] = [item for item in items if _task_of(item) == self.task]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._write({"running": item.name, "task": _task_of(item)})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" or (call.when == "setup" and not report.passed):
            self._write(asdict(_result(item, call, report)))
        return report

    def _write(self, data: dict[str, Any]) -> None:
        print(json.dumps(data), file=self.sink, flush=True)


def _task_of(item: pytest.Item) -> int:
    marker = item.get_closest_marker("task")
    return marker.args[0] if marker else 0


def _result(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> TestResult:
    from minipaged.course.expectation import Mismatch

    error = call.excinfo.value if call.excinfo else None
    result = TestResult(item.name, _task_of(item), report.outcome)
    if report.skipped:
        result.message = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    elif isinstance(error, Mismatch):
        result.mismatch = error.as_data()
    elif isinstance(error, NotImplementedError) and _STUB.match(str(error)):
        result.outcome, result.message = "missing", str(error)
    elif error is not None:
        result.outcome = "error"
        name = "" if type(error).__name__ in ("SubmissionGone", "StillGone") else f"{type(error).__name__}: "
        result.message = f"{name}{_plain(str(error))[:MAX_MESSAGE]}{_place(call)}"
    if not report.passed:
        result.printed = _plain(report.capstdout)[-MAX_PRINTED:]
    return _without_expected(result) if item.get_closest_marker("hidden") else result


def _without_expected(result: TestResult) -> TestResult:
    """What a learner may know of a hidden check: their own calls and values, and their own errors."""
    if result.mismatch:
        result.mismatch |= {"expected": HIDDEN, "mistake": None, "before": "", "wanted": ""}
    elif result.message.startswith(("AssertionError", "Failed")):
        result.message = HIDDEN
    return result


def _plain(text: str) -> str:
    """Text without what would take a terminal apart."""
    return "".join(c for c in _ANSI.sub("", text) if c.isprintable() or c in "\n\t")


def _place(call: pytest.CallInfo[None]) -> str:
    """Where the reader's own file was when an exception came: the deepest of its lines in the traceback."""
    assert call.excinfo is not None
    if place := getattr(call.excinfo.value, "place", ""):  # it came from another process
        return f"\n  in {place}"
    for entry in reversed(call.excinfo.traceback):
        path = Path(str(entry.path))
        if path.parent.name in ("exercises", "solutions") or path.stem.startswith("ch"):
            return f"\n  in {path.name}, line {entry.lineno + 1}: {str(entry.statement).strip()}"
    return ""


def _read_results(lines: list[dict[str, Any]], ending: str, output: str) -> list[TestResult]:
    results = [TestResult(**line) for line in lines if "running" not in line]
    if not lines:
        raise RuntimeError(f"the grader could not run ({ending}):\n{output[-3000:]}")
    last = lines[-1]
    if "running" in last:  # a test began and never said anything
        results.append(TestResult(last["running"], last["task"], "error", f"while this test ran, {ending}"))
    return results


def _kill(child: subprocess.Popen[str]) -> None:
    """End the child and whatever it has started; it leads a process group of its own where there are any."""
    with suppress(psutil.Error):
        kill_children(psutil.Process(child.pid))
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def kill_children(process: psutil.Process) -> None:
    """End all that a process has started, sandboxes too, which lead groups of their own."""
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            child.kill()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, however that came: nobody would stop an endless loop then."""
    while os.getppid() == parent:
        time.sleep(1)
    kill_children(psutil.Process())
    os._exit(1)


def main(arguments: list[str]) -> int:
    """The child's side: root, chapter, subject, results file, task (0 for all)."""
    root, key, impl, results, task = arguments
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with open(results, "w", encoding="utf-8") as sink:
        return run_here(Path(root), find_chapter(Path(root), key), impl, int(task) or None, sink)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
