"""The graders' own test: wrong answers that must fail, different right ones that must pass.

A grader that passes a wrong answer teaches the mistake, and one that fails a right answer is worse. Each
chapter lists both, and the kill matrix (`python tools/kill_matrix.py`) holds the grader to them.
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

from minipaged.course.grader import Collector, TestResult, pytest_options, task_of
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
    """What the grader said about an answer. `problem`: in what way that is wrong, or ""."""

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
        if any(result.mismatch.get("operation", "").startswith("import ") for result in self.results):
            return "it cannot be imported, so its mistake was never made"
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


def judge(root: Path, chapter: Chapter, answers: Iterable[Answer], quick: bool = False) -> list[Verdict]:
    """Run the chapter's grader on each answer, in one session of pytest in this process.

    quick: of a wrong answer only the task that must fail, and only until it has, or until it is named.
    """
    with TemporaryDirectory() as folder:
        in_turn = _InTurn(root, chapter, Path(folder), list(answers), quick)
        options = pytest_options(root, chapter, folder)
        with redirect_stdout(io.StringIO()) as printed:
            code = pytest.main(options, plugins=[in_turn, in_turn.collector])
    if len(in_turn.verdicts) != len(in_turn.answers):
        raise RuntimeError(
            f"the grader of {chapter.key} could not run ({code!r}): {printed.getvalue()[-3000:]}"
        )
    return in_turn.verdicts


class _InTurn:
    """A pytest plugin that runs the collected tests on one answer after the other; each is imported once."""

    def __init__(
        self, root: Path, chapter: Chapter, folder: Path, answers: list[Answer], quick: bool
    ) -> None:
        self.chapter, self.answers, self.quick = chapter, answers, quick
        self.solution = (root / "solutions" / f"{chapter.file_stem}.py").read_text(encoding="utf-8")
        self.file = folder / f"{chapter.file_stem}.py"
        self.tasks = load_tasks(root, chapter)
        self.collector = Collector(None, io.StringIO())
        self.verdicts: list[Verdict] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for answer in self.answers:
            self.file.write_text(answer.text(self.solution), encoding="utf-8")
            only = answer.task if self.quick else None
            tasks = [task for task in self.tasks if only in (None, task.number)]
            results = self._results(session, answer, only)
            self.verdicts.append(Verdict(answer, sort_results(self.chapter, tasks, results), results))
        return True

    def _results(self, session: pytest.Session, answer: Answer, only: int | None) -> list[TestResult]:
        results: list[TestResult] = []
        items = [item for item in session.items if only in (None, task_of(item))]
        for item, next_item in zip(items, [*items[1:], None], strict=True):
            self.collector.sink = sink = io.StringIO()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=next_item)
            lines = [json.loads(line) for line in sink.getvalue().splitlines()]
            new = [TestResult(**line) for line in lines if "running" not in line]
            results += new
            if only is not None and any(_settles(answer, result) for result in new):
                session._setupstate.teardown_exact(None)  # else the next answer's tests would get this one
                break
        return results


def _settles(answer: Answer, result: TestResult) -> bool:
    """Whether a test has rejected a wrong answer, by the name of its mistake if it must be named."""
    if result.outcome in ("passed", "skipped"):
        return False
    return not answer.mistake or result.mismatch.get("mistake") == answer.mistake
