"""One submission, graded: chapter after chapter, each in a grader process with a sandbox of its own.

The grade is plain data, in the form that Gradescope reads: a list of tasks with scores and words, the sum,
and under `extra_data` what a class's table needs. `results.py` has the other forms.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minipaged.course.grader import TestResult, run_grader
from minipaged.course.grading.sandbox import Limits, isolation
from minipaged.course.grading.submission import Submission, read_submission
from minipaged.course.outline import Chapter
from minipaged.course.pytest_plugin import ISOLATED
from minipaged.course.report import ChapterReport, TaskReport, explain, sort_results
from minipaged.course.seed import VARIABLE
from minipaged.course.tasks import load_tasks

CHAPTER_S = 600.0  # for a chapter by the clock, whatever happens
# Of processor time, for what the tests themselves do; a submission's own loops end by the sandbox's `Limits`.
JUDGE_S = 100.0

Grade = dict[str, Any]


def fresh_seed() -> int:
    """A seed that can't be known in advance."""
    return secrets.randbelow(2**31)


def grade_submission(
    root: Path, folder: Path, chapters: list[Chapter], seed: int, limits: Limits | None = None
) -> Grade:
    """The grade of what lies in a folder. The same seed gives the same grade."""
    submission = read_submission(folder, chapters)
    reports = [_grade_chapter(root, chapter, submission, seed, limits or Limits()) for chapter in chapters]
    tests = [_entry(report, task) for report in reports for task in report.tasks]
    lines = [f"graded with seed {seed}, isolation {isolation()}"]
    if submission.ignored:
        lines.append(f"not looked at: {', '.join(map(ascii, submission.ignored[:10]))}")
    return {
        "score": sum(test["score"] for test in tests),
        "output": "\n".join(lines),
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {
            "student": folder.resolve().name,
            "seed": seed,
            "isolation": isolation().level,
            "chapters": [chapter.key for chapter in chapters],
            "fingerprint": submission.fingerprint,
            "max_score": sum(test["max_score"] for test in tests),
        },
    }


def _grade_chapter(
    root: Path, chapter: Chapter, submission: Submission, seed: int, limits: Limits
) -> ChapterReport:
    tasks = list(load_tasks(root, chapter))
    if problem := submission.problems.get(chapter.key):
        results = [TestResult("the file", task.number, "error", problem) for task in tasks]
        return sort_results(chapter, tasks, results)
    environment = {VARIABLE: str(seed), "MINIPAGED_LIMITS": json.dumps(asdict(limits))}
    with tempfile.TemporaryDirectory(prefix="minipaged-submission-") as folder:
        file = Path(folder) / f"{chapter.file_stem}.py"
        file.write_text(submission.texts[chapter.key], encoding="utf-8")
        results = run_grader(root, chapter, f"{ISOLATED}{file}", None, JUDGE_S, CHAPTER_S, environment)
    _check_grader(results)
    return sort_results(chapter, tasks, results)


def _check_grader(results: list[TestResult]) -> None:
    """Raise RuntimeError if the grader itself has failed: then there is no grade."""
    for result in results:
        # At the level "limits", a submission may have killed its grader: no points. Elsewhere it can't.
        is_lost = result.message.startswith("while this test ran, the process ended")
        if result.message.startswith("NoSandbox") or (is_lost and isolation().level != "limits"):
            raise RuntimeError(f"the grader itself broke off: {result.message}")


def _entry(report: ChapterReport, task: TaskReport) -> dict[str, Any]:
    """A task in Gradescope's words. What a failure shows is the learner's own calls and values."""
    notes = {
        "passed": "all its tests passed",
        "not written": "not written yet",
        "skipped": "skipped",
        "waiting": f"waits for task {', '.join(map(str, task.waits_for))}",
    }
    lines = explain(task) if task.status == "failed" else [notes[task.status]]
    mistake = task.first_failure.mismatch.get("mistake") if task.first_failure else None
    return {
        "name": f"{report.chapter.key} task {task.task.number}: {task.task.title}",
        "score": task.points,
        "max_score": task.task.points,
        "status": "passed" if task.status == "passed" else "failed",
        "output": "\n".join(lines),
        "visibility": "visible",
        "extra_data": {"state": task.status, "mistake": mistake},
    }
