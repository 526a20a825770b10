"""The graders' own test: wrong answers that must fail, different right ones that must pass.

Why it exists: a grader that a wrong answer passes teaches the mistake, and one that fails a right answer is
worse. Each chapter lists both, and the kill matrix (`python tools/kill_matrix.py`) holds the grader to them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from minipaged.course.grader import TestResult, run_here
from minipaged.course.outline import Chapter
from minipaged.course.report import ChapterReport, sort_results
from minipaged.course.tasks import import_path, load_tasks

Edits = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    """One answer: a whole file, or the solution with some lines changed.

    task: the task that must fail; None for a right answer. mistake: what the report must name, if anything.
    """

    name: str
    task: int | None = None
    edits: tuple[tuple[str, str], ...] = ()
    source: str = ""
    mistake: str = ""

    def text(self, solution: str) -> str:
        """The file's content. ValueError if an edit's old text is not there exactly once."""
        text = self.source or solution
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"answer {self.name!r}: {text.count(old)} places have {old!r}, expected 1")
            text = text.replace(old, new)
        if text == solution:
            raise ValueError(f"answer {self.name!r} is the solution itself")
        return text


class Answers:
    """The answers of one chapter, wrong and right.

    >>> answers = Answers("ch03")
    >>> answers.wrong("never runs out", task=2, edits=[("if n > self.num_free:", "if False:")])
    >>> answers.right("a deque", source="from collections import deque ...")
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.all: list[Answer] = []

    def wrong(self, name: str, task: int, edits: Edits = (), source: str = "", mistake: str = "") -> None:
        self.all.append(Answer(name, task, tuple(edits), source, mistake))

    def right(self, name: str, edits: Edits = (), source: str = "") -> None:
        self.all.append(Answer(name, None, tuple(edits), source))


@dataclass(frozen=True)
class Verdict:
    """What the grader said about an answer, and in what way that is wrong; empty if it is not."""

    answer: Answer
    report: ChapterReport
    results: list[TestResult]

    @property
    def failed_tasks(self) -> list[int]:
        return [task.task.number for task in self.report.tasks if task.status != "passed"]

    @property
    def mistakes(self) -> set[str]:
        """The known mistakes that the report names."""
        return {result.mismatch.get("mistake") or "" for result in self.results} - {""}

    @property
    def problem(self) -> str:
        answer = self.answer
        if answer.task is None:
            return f"a right answer, but tasks {self.failed_tasks} failed" if self.failed_tasks else ""
        if answer.task not in self.failed_tasks:
            return f"task {answer.task} passed" + (
                f", {self.failed_tasks} failed" if self.failed_tasks else ""
            )
        if answer.mistake and answer.mistake not in self.mistakes:
            return f"the mistake was not named; named: {sorted(self.mistakes)}"
        return ""


def load_answers(root: Path, chapter: Chapter) -> list[Answer]:
    """tests/answers/chNN_name.py, in the order written."""
    return import_path(root / "tests" / "answers" / f"{chapter.file_stem}.py").answers.all


def judge(root: Path, chapter: Chapter, answer: Answer, quick: bool = False) -> Verdict:
    """Run the chapter's grader on one answer, in this process.

    quick: of a wrong answer only the task that must fail, and only until it has, or until it is named.
    """
    solution = (root / "solutions" / f"{chapter.file_stem}.py").read_text(encoding="utf-8")
    tasks = [task for task in load_tasks(root, chapter) if not quick or answer.task in (None, task.number)]
    with TemporaryDirectory() as folder, io.StringIO() as sink, redirect_stdout(io.StringIO()):
        file = Path(folder) / f"{chapter.file_stem}.py"
        file.write_text(answer.text(solution), encoding="utf-8")
        plugins = [_UntilFailed(answer.mistake)] if quick and answer.task is not None else []
        run_here(root, chapter, str(file), answer.task if quick else None, sink, plugins=plugins)
        lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    results = [TestResult(**line) for line in lines if "running" not in line]
    return Verdict(answer, sort_results(chapter, tasks, results), results)


class _UntilFailed:
    """A pytest plugin that stops a run at the first failure, or at the first that names `mistake`."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if not self.mistake or getattr(call.excinfo and call.excinfo.value, "mistake", "") == self.mistake:
            node.session.shouldfail = "judged"  # not shouldstop: pytest would draw up where it was
