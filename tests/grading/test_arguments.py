"""No grader takes its arguments back: what a layer does to them, or keeps of them, changes no verdict.

The solutions are judged with something behind them that spoils what they are given (`spoilers.py`).
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest

from minipaged.course.grader import TestResult, run_here
from minipaged.course.outline import Chapter
from minipaged.course.tasks import graded_chapters, import_path

ROOT = Path(__file__).resolve().parents[2]
spoilers = import_path(Path(__file__).with_name("spoilers.py"))


class Spoilt:
    """Counts how many arguments each test has lost."""

    def __init__(self, chapter: Chapter) -> None:
        self.module, self.of = f"minipaged_course_{chapter.file_stem}", dict[str, int]()

    def count(self) -> int:
        return getattr(sys.modules.get(self.module), "SPOILT", [0])[0]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        before = self.count()
        done = yield
        self.of[item.name] = self.count() - before
        return done


def forget_modules(chapter: Chapter) -> None:
    """A grader has lists among its constants, which may be spoilt; a grade has a process of its own."""
    for name in [name for name in sys.modules if name.endswith(chapter.file_stem)]:
        del sys.modules[name]


def judge_spoiling(chapter: Chapter, when: str, folder: Path) -> tuple[list[TestResult], Spoilt]:
    file = folder / f"{chapter.file_stem}.py"
    solution = (ROOT / "solutions" / file.name).read_text(encoding="utf-8")
    file.write_text(solution + spoilers.CODE.replace("WHEN", repr(when)), encoding="utf-8")
    spoilt = Spoilt(chapter)
    forget_modules(chapter)
    with io.StringIO() as sink, redirect_stdout(io.StringIO()):
        run_here(ROOT, chapter, str(file), None, sink, plugins=[spoilt])
        lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    forget_modules(chapter)
    return [TestResult(**line) for line in lines if "running" not in line], spoilt


@pytest.mark.parametrize("when", ["before", "after", "later"])
@pytest.mark.parametrize("chapter", graded_chapters(ROOT), ids=lambda chapter: chapter.key)
def test_arguments_that_are_spoilt(chapter: Chapter, when: str, tmp_path: Path) -> None:
    """An answer to other arguments than the test's passes no task. And no test breaks: it says what is
    wrong, or the error is the layer's own."""
    if chapter.key in ("ch11", "ch12") and find_spec("triton") is None:
        pytest.skip("needs the package triton, which Linux has")
    results, spoilt = judge_spoiling(chapter, when, tmp_path)
    assert results
    if when != "before":
        broken = [r for r in results if r.outcome == "error" and f" in {chapter.key}" not in r.message]
        assert broken == []
        return
    for task in {result.task for result in results}:
        own = [result for result in results if result.task == task and spoilt.of[result.name]]
        assert not own or any(result.outcome != "passed" for result in own), f"task {task} passed"
