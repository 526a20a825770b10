"""What a grader's run means to a reader: points per task, what is wrong and why, what to do next.

`grader.py` does the run. A report is lines of plain text without colours, for a terminal and a notebook
alike. They fit into 80 columns, but for pictures of blocks and what the reader's code printed.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from minipaged.course.grader import TestResult, run_grader
from minipaged.course.outline import Chapter
from minipaged.course.tasks import Task, is_untouched, load_tasks

WIDTH = 80
INDENT = 6  # of what is said about a task
LABEL = 18  # columns of "  known mistake:  " and the like
MARKS = {"passed": "✓", "failed": "✗", "not written": "·", "waiting": "–", "skipped": " ", "timed out": "✗"}


@dataclass
class TaskReport:
    """One task: its tests, and what they come to. All tests of a task pass, or it has no points."""

    task: Task
    results: list[TestResult] = field(default_factory=list)

    @property
    def status(self) -> str:
        """passed, failed, timed out (in a grade, and nothing else failed), not written (its own stub was
        called), waiting (another task's stub) or skipped."""
        outcomes = {result.outcome for result in self.results}
        if not outcomes or outcomes & {"failed", "error"}:
            return "failed"
        if "timeout" in outcomes:
            return "timed out"
        if "missing" in outcomes:
            return "waiting" if self.waits_for else "not written"
        return "skipped" if "skipped" in outcomes else "passed"

    @property
    def waits_for(self) -> list[int]:
        """The other tasks whose stubs its tests ran into; empty if its own is missing too."""
        numbers = {_missing_task(result.message) for result in self.results if result.outcome == "missing"}
        return [] if self.task.number in numbers else sorted(numbers)

    @property
    def failures(self) -> list[TestResult]:
        return [result for result in self.results if result.outcome in ("failed", "error", "timeout")]

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    @property
    def first_failure(self) -> TestResult | None:
        return self.failures[0] if self.failures else None

    @property
    def points(self) -> int:
        return self.task.points if self.status == "passed" else 0


@dataclass
class ChapterReport:
    """One chapter: its tasks, and failures that belong to none (a file that can't be imported)."""

    chapter: Chapter
    tasks: list[TaskReport]

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def total(self) -> int:
        return sum(task.task.points for task in self.tasks)

    @property
    def passed(self) -> bool:
        """Whether every task is passed; of several, the challenges may be left out."""
        needed = [task for task in self.tasks if not task.task.is_challenge] or self.tasks
        return all(task.status in ("passed", "skipped") for task in needed)

    @property
    def next_task(self) -> TaskReport | None:
        """The task to work on: the first that isn't passed and doesn't wait for another."""
        open_tasks = [task for task in self.tasks if task.status not in ("passed", "skipped")]
        return next((task for task in open_tasks if task.status != "waiting"), None)


def check_chapter(
    root: Path, chapter: Chapter, impl: str = "exercises", task: int | None = None
) -> ChapterReport:
    """Run a chapter's grader and sort the results by task. Raises ValueError if there is no such task.

    An exercise that is still as it came has nothing written in it, so nothing runs.
    """
    tasks = list(load_tasks(root, chapter))
    if task is not None and task not in [known.number for known in tasks]:
        raise ValueError(
            f"{chapter.key} has no task {task}; it has {', '.join(str(t.number) for t in tasks)}"
        )
    tasks = [known for known in tasks if task in (None, known.number)]
    if impl == "exercises" and is_untouched(root, chapter):
        stem = chapter.file_stem
        results = [TestResult("", t.number, "missing", t.stub_message(stem)) for t in tasks]
    else:
        results = run_grader(root, chapter, impl, task)
    return sort_results(chapter, tasks, results)


def sort_results(chapter: Chapter, tasks: list[Task], results: list[TestResult]) -> ChapterReport:
    """Every result to its task. A task that no test judged, because the run broke off before, has failed."""
    return ChapterReport(
        chapter, [TaskReport(task, [r for r in results if r.task == task.number]) for task in tasks]
    )


def render(report: ChapterReport, root: Path) -> str:
    """The report as text: a line per task, the first failure of each, and what to do next."""
    head = f"{report.chapter.key}  {report.chapter.title}"
    points = f"{report.points} of {report.total} points"
    lines = [f"{head}{points:>{WIDTH - len(head)}}", ""]
    shown: list[TestResult] = []
    for task in report.tasks:
        lines += [_task_line(task)]
        first = task.first_failure
        if first and any(first.says_the_same_as(other) for other in shown):
            lines.append(f"{'':{INDENT}}as above")
        elif task.status == "failed":
            lines += [f"{'':{INDENT}}{line}".rstrip() for line in explain(task)]
            shown += [first] if first else []
    return "\n".join([*lines, "", *_what_next(report, root)])


def explain(task: TaskReport) -> list[str]:
    """What the first failing test of a task has to say, as lines."""
    first, more = task.first_failure, len(task.failures) - 1
    if first is None:
        return ["no test judged it: the run broke off before"]
    lines = wrap("", f"{first.title}:")
    if first.mismatch:
        lines += _explain_mismatch(first)
    else:
        for line in first.message.splitlines():
            lines += wrap("  ", line)
    if first.printed:
        lines += ["your code printed:", *(f"  {line}" for line in first.printed.splitlines()[-20:])]
    return [*lines, f"and {more} more test{'s' * (more > 1)} of this task"] if more else lines


def _explain_mismatch(result: TestResult) -> list[str]:
    mismatch = result.mismatch
    lines = []
    for line in [*mismatch["history"], mismatch["operation"]]:
        lines += wrap("  >>> ", line)
    lines += _labelled("expected", mismatch["expected"]) + _labelled("got", mismatch["got"])
    if mismatch["mistake"]:
        lines += _labelled("known mistake", mismatch["mistake"])
    drawings = [("before", "before"), ("expected after", "wanted"), ("yours after", "came")]
    for title, key in drawings:
        drawing = mismatch[key].splitlines()
        lines += [f"{_label(title if number == 0 else '')}{line}" for number, line in enumerate(drawing)]
    return lines


def _labelled(label: str, text: str) -> list[str]:
    """A label and a text, its lines wrapped so that they stay beside the label."""
    first, *more = text.splitlines() or [""]
    return sum((wrap(_label(""), line) for line in more), wrap(_label(label), first))


def _label(title: str) -> str:
    return f"  {title + ':' if title else '':<{LABEL - 2}}"


def wrap(start: str, text: str, width: int = WIDTH - INDENT) -> list[str]:
    """A line, cut into several where it is too long; those after the first stand under its text."""
    hang = " " * (len(start) + len(text) - len(text.lstrip()))
    wrapped = textwrap.wrap(start + text, width, subsequent_indent=hang, break_on_hyphens=False)
    return wrapped or [start.rstrip()]


def _task_line(report: TaskReport) -> str:
    task, status = report.task, report.status
    waiting = f"waits for task {', '.join(map(str, report.waits_for))}"
    note = {"waiting": waiting, "not written": "not written yet", "skipped": "skipped"}.get(status, "")
    title = f"  {MARKS[status]} task {task.number} {'★' * task.stars:<3} {task.title}"
    result = f"{note} {report.points:>3}/{task.points:<3}"
    return f"{title}{result:>{WIDTH - len(title)}}".rstrip()


def _what_next(report: ChapterReport, root: Path) -> list[str]:
    """Which task to work on, and what to compare once the chapter, or the task asked for, has passed."""
    stem, key, todo = report.chapter.file_stem, report.chapter.key, report.next_task
    exercise = f"exercises/{stem}.py"
    if root not in (Path.cwd(), *Path.cwd().parents):  # somewhere else: say where
        exercise = str(root / exercise)
    passed = [task.task for task in report.tasks if task.status == "passed"]
    lines = []
    if report.passed and passed:
        lines.append("Passed.")
        if (root / "solutions" / f"{stem}.py").is_file():
            lines[0] += f" Compare with solutions/{stem}.py:"
            for task in passed:
                lines += wrap(f"  task {task.number}: ", task.compare, WIDTH)
    if todo is not None:
        what = "A challenge" if report.passed and todo.task.is_challenge else "Next"
        where = f"{exercise}, task {todo.task.number} (about {todo.task.minutes} minutes)"
        lines += [f"{what}: {where}.", f"A hint: minipaged hint {key} {todo.task.number}"]
    elif not report.passed:
        first = min(number for task in report.tasks for number in task.waits_for)
        lines.append(f"Next: {exercise}, task {first}, which this one needs.")
    return lines


def _missing_task(message: str) -> int:
    """The task that a stub's message names; 0 if it names none."""
    found = re.search(r"task (\d+)", message)
    return int(found.group(1)) if found else 0
