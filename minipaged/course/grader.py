"""Runs a chapter's grader on a file, in a child process, and collects what every test said.

It is a child because the reader's code may loop for ever, exhaust memory or end the process, and because it
must be imported anew each time. A test that never reports has failed, and another child judges the tasks that
are left. This is self-check and trust-based: the code under test runs beside the tests and could cheat.
`report.py` turns the results into points and words.
"""

from __future__ import annotations

import builtins
import faulthandler
import gc
import json
import linecache
import os
import pdb
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Generator, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

import psutil
import pytest

from minipaged.course.expectation import Mismatch
from minipaged.course.outline import Chapter
from minipaged.course.seed import run_seed
from minipaged.course.tasks import find_chapter, grader_file, hidden_file

TEST_LIMIT_S = 10.0  # of processor time for one test; the slowest of a right answer takes a second or two
SLEEP_FACTOR = 6  # so many times that by the clock, for a test that sleeps, and on a busy machine
TIMEOUT_S = 300.0  # for a chapter, by the clock
# One thread, the same order of sets every time, and no plugins that happen to be installed.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
ORDER, RESULTS, STACK = "order.json", "results.jsonl", "stack.txt"  # what parent and child pass each other
HIDDEN = "not shown: this is a hidden check"
MAX_PRINTED = 2000  # characters of what the reader's code printed, the last ones
MAX_MESSAGE = 1000  # characters of an exception's message
_STUB = re.compile(r"ch\d\d_\w+, task \d+: ")  # what a stub says; torch raises NotImplementedError as well
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')  # how faulthandler shows one


@dataclass
class TestResult:
    """What one test said.

    outcome: passed, failed (an expectation did not hold), error (an unexpected exception), missing (a stub
    was called) or skipped; in a grade also timeout, or broken (the grader itself has failed). mismatch: the
    fields of a `Mismatch`; else there is a message. printed: what the code under test printed. seconds: by
    the clock, in a grade, and 0 for a hidden check.
    """

    __test__ = False  # pytest takes everything called Test… for a test

    name: str
    task: int
    outcome: str
    message: str = ""
    mismatch: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The test's name as words: "freeing twice is an error and changes nothing"."""
        return self.name.split("[")[0].removeprefix("test_").replace("_", " ")

    def says_the_same_as(self, other: TestResult) -> bool:
        """Whether two tests failed in the very same way, as all do if a file can't be imported."""
        return (self.message, self.mismatch) == (other.message, other.mismatch)


def run_grader(
    root: Path,
    chapter: Chapter,
    impl: str,
    task: int | None = None,
    limit_s: float = TEST_LIMIT_S,
    timeout_s: float = TIMEOUT_S,
    environment: dict[str, str] | None = None,
) -> list[TestResult]:
    """Judge `impl` in a child process, and in another one what is left if a test has ended the first.

    A test that takes more than `limit_s` of processor time has failed, and so has one that ends the process;
    the other tests of its task are left out then, and those of other tasks, which may well run into the same
    loop, get a third of the time. `timeout_s` is for all together: what has not been judged by then is not.
    `environment` is added to the children's.
    """
    is_name = impl in ("minipaged", "solutions", "exercises")
    subject = impl if is_name else str(Path(impl).resolve())
    end = time.monotonic() + timeout_s
    results: list[TestResult] = []
    lost: list[int] = []  # tasks of tests that never said anything
    while time.monotonic() < end:
        order = {
            "root": str(root),
            "key": chapter.key,
            "impl": subject,
            "task": task,
            "limit_s": limit_s / 3 if lost else limit_s,
            "judged": [result.name for result in results],
            "lost": lost,
        }
        lines, ending, output = _run_child(root, order, end, environment or {})
        if not lines and not results:
            raise RuntimeError(f"the grader could not run ({ending}):\n{output[-3000:]}")
        results += [TestResult(**line) for line in lines if "running" not in line]
        if not lines or "running" not in lines[-1]:
            break
        name, number = lines[-1]["running"], lines[-1]["task"]
        results.append(TestResult(name, number, "error", f"while this test ran, {ending}"))
        lost.append(number)
    return results


def _run_child(
    root: Path, order: dict[str, Any], end: float, environment: dict[str, str]
) -> tuple[list[dict[str, Any]], str, str]:
    """What one child wrote, line by line, how it ended, and what it printed besides."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
        results, stack = Path(folder) / RESULTS, Path(folder) / STACK
        (Path(folder) / ORDER).write_text(json.dumps(order), encoding="utf-8")
        child = subprocess.Popen(
            [sys.executable, "-m", "minipaged.course.grader", folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            cwd=root,
            env=os.environ | ENVIRONMENT | {"TMPDIR": scratch} | environment,
        )
        try:
            output, _ = child.communicate(timeout=max(0.0, end - time.monotonic()))
            ending = f"the process ended with code {child.returncode}"
        except subprocess.TimeoutExpired:
            output, ending = "", "the time for the whole chapter ran out"
        finally:
            _kill(child)
        frames = stack.read_text(encoding="utf-8", errors="replace") if stack.exists() else ""
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    if frames and "fatal" not in frames.partition("\n")[0].lower():  # no crash, so it was stopped
        ending = "it did not end in time: an endless loop?"
    places = [(path, int(line), function) for path, line, function in _FRAME.findall(frames)]
    return [json.loads(line) for line in lines], ending + _reader_s_place(places), output


def run_here(
    root: Path,
    chapter: Chapter,
    impl: str,
    task: int | None,
    sink: TextIO,
    max_failures: int = 0,
    judged: Collection[str] = (),
    lost: Collection[int] = (),
    plugins: Iterable[object] = (),
) -> int:
    """Judge `impl` in this process; what every test says goes to `sink` as it comes, a line of JSON each.

    max_failures: stop after so many; 0 for never. judged, lost: tests and tasks to leave out. plugins: more
    of pytest's. Returns pytest's exit code.
    """
    options = [*pytest_options(root, chapter, impl), f"--maxfail={max_failures}"]
    return pytest.main(options, plugins=[Collector(task, sink, judged, lost), *plugins])


def pytest_options(root: Path, chapter: Chapter, impl: str) -> list[str]:
    """How pytest is called to run a chapter's grader, and nothing else, on `impl`."""
    # Plain asserts: to rewrite them, Hypothesis' own among them, takes a second, and tests say `expect` here.
    options = ["-o", "addopts=", "--import-mode=importlib", "--assert=plain", "-q", "--tb=no"]
    # The exception hooks run the garbage collector three times: half a second beside a loaded PyTorch.
    off = ("cacheprovider", "faulthandler", "debugging", "unraisableexception", "threadexception")
    for name in (*(f"no:{plugin}" for plugin in off), "minipaged.course.pytest_plugin"):
        options += ["-p", name]
    subject = ["--impl", impl, "--rootdir", str(root), "-c", str(root / "pyproject.toml")]
    files = [grader_file(root, chapter)]
    if run_seed() is not None:  # it counts
        options += ["-p", "_hypothesis_pytestplugin", f"--hypothesis-seed={run_seed()}"]
        files += [file for file in (hidden_file(root, chapter),) if file.is_file()]
    return [*options, *subject, *map(str, files)]


class Collector:
    """A pytest plugin that writes down what every test says."""

    def __init__(
        self,
        task: int | None,
        sink: TextIO,
        judged: Collection[str] = (),
        lost: Collection[int] = (),
    ) -> None:
        self.task, self.sink, self.judged, self.lost = task, sink, judged, lost

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.task is not None:
            items[:] = [item for item in items if task_of(item) == self.task]
        items[:] = [i for i in items if i.name not in self.judged and task_of(i) not in self.lost]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        hidden = item.get_closest_marker("hidden") is not None
        self._write({"running": item.name, "task": task_of(item), "hidden": hidden})

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


def task_of(item: pytest.Item) -> int:
    marker = item.get_closest_marker("task")
    return marker.args[0] if marker else 0


def _result(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> TestResult:
    error = call.excinfo.value if call.excinfo else None
    result = TestResult(item.name, task_of(item), report.outcome)
    if report.skipped:
        result.message = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    elif isinstance(error, Mismatch):
        result.mismatch = error.as_data()
    elif isinstance(error, NotImplementedError) and _STUB.match(str(error)):
        result.outcome, result.message = "missing", str(error)
    elif error is not None:
        # Those of the grader itself have an outcome. One that comes from a submission is made anew there, and
        # has none; one in a self-check was made elsewhere.
        is_own = type(error).__module__ == "minipaged.course.grading.remote" and hasattr(error, "outcome")
        result.outcome = getattr(error, "outcome") if is_own else "error"  # noqa: B009
        name = "" if is_own else f"{type(error).__name__}: "
        result.message = f"{name}{str(error)[:MAX_MESSAGE]}{_place(call)}"
    if not report.passed:
        result.printed = report.capstdout[-MAX_PRINTED:]
    if item.get_closest_marker("hidden"):
        result = _without_what_it_shows(result)
    return TestResult(**{name: plain(value) for name, value in vars(result).items()})


def _without_what_it_shows(result: TestResult) -> TestResult:
    """What a learner may know of a hidden check: that it failed, in which way, and the text that its author
    gave it. All else could tell what it expects, or what it calls: a submission can put an argument into a
    value, into a message, into the name of an error, into what it prints."""
    if result.mismatch:
        what = result.mismatch["operation"]
        result.mismatch = vars(Mismatch(what, HIDDEN, HIDDEN))
    elif result.outcome == "missing":
        result.message = f"task {result.task}"
    elif result.outcome == "error":
        result.message = f"an error: {HIDDEN}"
    result.printed = ""
    return result


def plain(value: Any) -> Any:
    """A text, or the texts in a list or a dictionary, with nothing that would take a terminal apart."""
    if isinstance(value, str):
        return escaped(_ANSI.sub("", value), kept="\n\t")
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def escaped(text: str, kept: str = "") -> str:
    """A text in which what can't be printed is seen, so that two that differ look different."""
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def _place(call: pytest.CallInfo[None]) -> str:
    """Where the reader's own file was when an exception came, in whichever process."""
    assert call.excinfo is not None
    if place := getattr(call.excinfo.value, "place", ""):
        return f"\n  in {place}"
    return _reader_s_place((str(f.path), f.lineno + 1, f.name) for f in reversed(call.excinfo.traceback))


def _reader_s_place(frames: Iterable[tuple[str, int, str]]) -> str:
    """Where the reader's own file was: the first of its frames (file, line, function), the deepest coming
    first."""
    for name, line, function in frames:
        file = Path(name)
        if file.parent.name in ("exercises", "solutions") or file.stem.startswith("ch"):
            linecache.checkcache(name)  # the reader edits it
            return f"\n  in {file.name}, line {line} ({function}): {linecache.getline(name, line).strip()}"
    return ""


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
    """End this process when its parent has ended for any reason, since nothing would stop an endless loop."""
    while os.getppid() == parent:
        time.sleep(1)
    kill_children(psutil.Process())
    os._exit(1)


class Watch:
    """A pytest plugin that ends the process when a test takes too long; `stack` says where it was then.

    It is written by faulthandler, which gets through even where C code never comes back to Python. Windows
    has no timer of processor time, and goes by the clock.
    """

    def __init__(self, limit_s: float, stack: TextIO, wall_factor: float = SLEEP_FACTOR) -> None:
        self.limit_s, self.stack, self.wall_factor = limit_s, stack, wall_factor
        faulthandler.enable(stack)  # also where it was when it crashed
        self.has_timer = hasattr(signal, "setitimer")
        if self.has_timer:
            faulthandler.register(signal.SIGPROF, stack, chain=True)  # and then the signal ends the process

    def pytest_collection_finish(self) -> None:
        gc.freeze()  # all that was imported stays, and needn't be looked through
        gc.enable()

    def pytest_runtest_setup(self) -> None:
        by_clock = self.limit_s
        if self.has_timer:
            signal.setitimer(signal.ITIMER_PROF, self.limit_s)
            by_clock *= self.wall_factor
        faulthandler.dump_traceback_later(by_clock, file=self.stack, exit=True)

    def pytest_runtest_teardown(self) -> None:
        if self.has_timer:
            signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


class NoKeyboard(BaseException):
    """The code waits for input that can't come. Not an `Exception`, so that nothing on the way catches it."""


def _refuse(*_: object, **__: object) -> NoReturn:
    raise NoKeyboard(
        "your code waits for the keyboard (input or breakpoint), and the grader has none. "
        "What you print is shown with a failure; to step through it, run it in a Python of your own"
    )


def main(folder: Path) -> None:
    """The child's side: `folder` has the order, and takes what the tests say."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    gc.disable()  # imports leave no garbage, but looking for it takes half a second
    builtins.input = sys.breakpointhook = pdb.set_trace = _refuse
    order = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    root, limit_s = Path(order.pop("root")), order.pop("limit_s")
    chapter = find_chapter(root, order.pop("key"))
    with open(folder / RESULTS, "w", encoding="utf-8") as sink, open(folder / STACK, "w") as stack:
        run_here(root, chapter, sink=sink, plugins=[Watch(limit_s, stack)], **order)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
