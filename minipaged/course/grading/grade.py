"""One submission, graded: chapter after chapter, each in a grader process with a sandbox of its own.

The grade is plain data, in the form that Gradescope reads: a list of tasks with scores and words, the sum,
and under `extra_data` what a class's table needs. `results.py` has the other forms.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from minipaged.course.grader import TestResult, plain
from minipaged.course.grading.limits import Limits
from minipaged.course.grading.sandbox import Isolation
from minipaged.course.grading.submission import Submission, Unreadable, read_submission
from minipaged.course.grading.warden import judge
from minipaged.course.outline import Chapter
from minipaged.course.report import ChapterReport, TaskReport, explain, sort_results
from minipaged.course.tasks import load_tasks, original_file

Grade = dict[str, Any]


def fresh_seed() -> int:
    """A seed that can't be known in advance."""
    return secrets.randbelow(2**31)


def grade_submission(
    root: Path,
    folder: Path,
    chapters: list[Chapter],
    seed: int,
    isolation: Isolation,
    limits: Limits | None = None,
) -> Grade:
    """The grade of what lies in a folder. The same seed gives the same grade, but for the times in it. What
    ran out of time is graded again."""
    submission, student = read_submission(folder, chapters), folder.resolve().name
    grade = grade_texts(root, submission, student, chapters, seed, isolation, limits)
    if has_run_out_of_time(grade):
        grade = grade_again(root, submission, chapters, grade, isolation, limits)
    return grade


def grade_texts(
    root: Path,
    submission: Submission,
    student: str,
    chapters: list[Chapter],
    seed: int,
    isolation: Isolation,
    limits: Limits | None = None,
) -> Grade:
    """The same for what was read already, and once. `Unreadable` if not all could be read."""
    if submission.unreadable:
        raise Unreadable("; ".join(submission.unreadable))
    reports, notes = [], dict[str, str]()
    for chapter in chapters:
        report = _grade_chapter(root, chapter, submission, seed, isolation, limits or Limits())
        reports.append(report)
        if note := _note(root, report, submission):
            notes[chapter.key] = note
    tests = [_entry(report, task, submission) for report in reports for task in report.tasks]
    lines = [f"isolation {isolation}", f"graded with seed {seed}"]
    lines += [f"{key}: {note}" for key, note in notes.items()]
    if submission.ignored:
        lines.append(f"not looked at: {', '.join(map(ascii, submission.ignored[:10]))}")
    return {
        "score": sum(test["score"] for test in tests),
        "execution_time": round(sum(task.seconds for report in reports for task in report.tasks)),
        "output": plain("\n".join(lines)),
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {
            "student": student,
            "seed": seed,
            "isolation": isolation.level,
            "chapters": [chapter.key for chapter in chapters],
            "notes": notes,
            "fingerprint": submission.fingerprint,
            "max_score": sum(test["max_score"] for test in tests),
            "graded_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
    }


def has_run_out_of_time(grade: Grade) -> bool:
    return any(test["extra_data"]["state"] == "timed out" for test in grade["tests"])


def grade_again(
    root: Path,
    submission: Submission,
    chapters: list[Chapter],
    grade: Grade,
    isolation: Isolation,
    limits: Limits | None = None,
) -> Grade:
    """The grade with another try for every task that ran out of time. The words stay those of the first one:
    in the second, a submission may know what a hidden check of the first one has called, by what the machine
    still has in its caches."""
    late = {test["name"] for test in grade["tests"] if test["extra_data"]["state"] == "timed out"}
    wanted = [chapter for chapter in chapters if any(name.startswith(f"{chapter.key} ") for name in late)]
    again = grade_texts(root, submission, "", wanted, grade["extra_data"]["seed"], isolation, limits)
    second = {test["name"]: test for test in again["tests"] if test["name"] in late}
    tests = []
    for test in grade["tests"]:
        new = second.get(test["name"])
        if new is not None and new["extra_data"]["state"] != "timed out":
            extra = {**test["extra_data"], "state": new["extra_data"]["state"]}
            words = {"output": f"{test['output']}\ngraded again: {new['extra_data']['state']}"}
            test = {**test, "score": new["score"], "status": new["status"], **words, "extra_data": extra}
        tests.append(test)
    keys = ", ".join(chapter.key for chapter in wanted)
    output = f"{grade['output']}\ngraded again, since a task had run out of time: {keys}"
    return {**grade, "score": sum(test["score"] for test in tests), "tests": tests, "output": output}


def _grade_chapter(
    root: Path, chapter: Chapter, submission: Submission, seed: int, isolation: Isolation, limits: Limits
) -> ChapterReport:
    tasks = list(load_tasks(root, chapter))
    if problem := submission.problems.get(chapter.key):
        results = [TestResult("the file", task.number, "error", problem) for task in tasks]
        return sort_results(chapter, tasks, results)
    results = judge(root, chapter, submission.texts[chapter.key], seed, isolation, limits)
    broken = [result.message for result in results if result.outcome == "broken"]
    if broken:
        raise RuntimeError(f"the grader itself broke off: {broken[0]}")
    return sort_results(chapter, tasks, results)


def _note(root: Path, report: ChapterReport, submission: Submission) -> str:
    """What a reader of a table must know of a chapter beside its points, above all why there are none."""
    key = report.chapter.key
    original = original_file(root, report.chapter)
    operations = {result.mismatch.get("operation", "") for task in report.tasks for result in task.results}
    late = [str(task.task.number) for task in report.tasks if task.status == "timed out"]
    notes = [submission.problems[key]] if key in submission.problems else []
    notes += [submission.renamed[key]] if key in submission.renamed else []
    lines = original.read_text(encoding="utf-8").splitlines() if original.is_file() else None
    if lines is not None and submission.texts.get(key, "").splitlines() == lines:
        notes.append("untouched: the exercise as it came")
    elif any(operation.startswith("import ") for operation in operations):
        (first, *_) = [result for task in report.tasks for result in task.results if result.mismatch]
        notes.append(f"can't be imported: {first.mismatch['got'].splitlines()[0]}")
    elif {task.status for task in report.tasks} <= {"not written", "waiting"}:
        notes.append("nothing is written yet")
    elif report.points == 0 and key in submission.texts and not late:
        notes.append("no task passed")
    if late:
        notes.append(f"timed out in task {', '.join(late)}")
    return plain("; ".join(notes))


def _entry(report: ChapterReport, task: TaskReport, submission: Submission) -> dict[str, Any]:
    """A task in Gradescope's words. What a failure shows is the learner's own calls and values."""
    notes = {
        "passed": "all its tests passed",
        "not written": "not written yet",
        "skipped": "skipped",
        "waiting": f"waits for task {', '.join(map(str, task.waits_for))}",
    }
    lines = [notes[task.status]] if task.status in notes else explain(task)
    mistake = task.first_failure.mismatch.get("mistake") if task.first_failure else None
    state = "no file" if report.chapter.key in submission.problems else task.status
    return {
        "name": f"{report.chapter.key} task {task.task.number}: {task.task.title}",
        "score": task.points,
        "max_score": task.task.points,
        "status": "passed" if task.status == "passed" else "failed",
        "output": plain("\n".join(lines)),
        "visibility": "visible",
        "extra_data": {"state": state, "mistake": mistake, "seconds": round(task.seconds, 1)},
    }
