"""A class, graded: some students at a time, each result written in one piece, and a table at the end.

A run that was interrupted goes on where it was: a student whose result is there, for the same file, the same
seed and the same tests, is not graded again. A submission can't stop the others, and a grader that fails says
so and leaves no result. Everything runs on one machine; for several, a container grades each submission
(`handout.py`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import Any

import psutil
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from minipaged.course.grader import kill_children
from minipaged.course.grading.grade import Grade, fresh_seed, grade_submission
from minipaged.course.grading.package_view import package_files
from minipaged.course.grading.results import to_json, write_whole
from minipaged.course.grading.submission import read_submission
from minipaged.course.outline import Chapter

TITLE = "Results of the class"


def grade_class(
    root: Path, folder: Path, target: Path, chapters: list[Chapter], seed: int | None, jobs: int
) -> str:
    """Grade every folder in `folder`, `jobs` at a time; results go to `target`. Returns the report.

    seed: None takes that of an earlier run into the same `target`, or a fresh one.
    """
    students = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not students:
        raise ValueError(f"{folder} has no folders: there must be one for each student")
    plan = _plan(root, target, chapters, seed)
    todo = [student for student in students if not _is_graded(target, student, chapters)]
    failures = _grade_all(root, target, todo, chapters, plan, jobs)
    grades = [grade for student in students if (grade := _load(target, student)) is not None]
    write_whole(target / "grades.csv", to_csv(grades))
    report = class_report(grades, failures)
    write_whole(target / "report.md", report)
    write_whole(target / "report.png", class_picture(grades))
    return f"{report}\nseed {plan['seed']}; results in {target}"


def _plan(root: Path, target: Path, chapters: list[Chapter], seed: int | None) -> dict[str, Any]:
    """What all students of a run have in common; kept in the results' folder, for the next time."""
    file = target / "run.json"
    old = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    chosen = old.get("seed", fresh_seed()) if seed is None else seed
    plan = {"seed": chosen, "chapters": [one.key for one in chapters], "tests": _version(root, chapters)}
    if old and old != plan:
        what = ", ".join(name for name in plan if plan[name] != old.get(name))
        raise ValueError(
            f"{target} holds results of a run with other {what}: choose another folder with --out"
        )
    write_whole(file, json.dumps(plan, indent=1) + "\n")
    return plan


def _version(root: Path, chapters: list[Chapter]) -> str:
    """A text that changes with the tests, and with what of the package may matter to them."""
    files = [file for _, file in sorted(package_files().items())]
    files += [file for one in chapters for file in sorted((root / "tests").rglob(f"test_{one.file_stem}.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _file(target: Path, student: Path) -> Path:
    return target / "students" / f"{student.name}.json"


def _load(target: Path, student: Path) -> Grade | None:
    try:
        return json.loads(_file(target, student).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_graded(target: Path, student: Path, chapters: list[Chapter]) -> bool:
    """Whether the result of this very submission is there; that it is of this run, `_plan` has seen to."""
    grade = _load(target, student)
    fingerprint = read_submission(student, chapters).fingerprint
    return grade is not None and grade["extra_data"]["fingerprint"] == fingerprint


def _grade_all(
    root: Path, target: Path, students: list[Path], chapters: list[Chapter], plan: dict[str, Any], jobs: int
) -> dict[str, str]:
    """Grade these students; returns those on whom the grader itself failed, and why."""
    stop, failures = Event(), dict[str, str]()

    def grade_one(student: Path) -> None:
        if not stop.is_set():
            grade = grade_submission(root, student, chapters, plan["seed"])
            if not stop.is_set():  # a grader that was killed half-way has no result
                write_whole(_file(target, student), to_json(grade))

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("grading", total=len(students))
        running = {pool.submit(grade_one, student): student for student in students}
        try:
            for future in as_completed(running):
                student = running.pop(future)
                if (error := future.exception()) is not None:
                    failures[student.name] = f"{type(error).__name__}: {error}"
                progress.advance(bar)
        except BaseException:  # Ctrl-C
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            while any(future.running() for future in running):  # one may be about to start another chapter
                kill_children(psutil.Process())
                time.sleep(0.1)
            raise
    return failures


# -- the table ---------------------------------------------------------------------------------------------


def to_csv(grades: list[Grade]) -> str:
    """A row for each student: the sum, and the points of each task."""
    names = [test["name"].split(":")[0] for test in grades[0]["tests"]] if grades else []
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["student", "points", "of", *names])
    for grade in grades:
        extra, points = grade["extra_data"], [test["score"] for test in grade["tests"]]
        writer.writerow([_cell(extra["student"]), grade["score"], extra["max_score"], *points])
    return table.getvalue()


def _cell(text: str) -> str:
    """A name that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def class_report(grades: list[Grade], failures: dict[str, str]) -> str:
    """A table in Markdown: for each task how many passed it, and the commonest mistake that has a name."""
    lines = [f"# {TITLE}", "", f"{len(grades)} students.", ""]
    lines += ["| task | passed | | commonest named mistake |", "|---|---|---|---|"]
    for name, tests in _by_task(grades).items():
        passed = sum(test["status"] == "passed" for test in tests)
        mistakes = Counter(test["extra_data"]["mistake"] for test in tests if test["extra_data"]["mistake"])
        commonest = [f"{mistake} ({count} ×)" for mistake, count in mistakes.most_common(1)]
        share = f"{passed} of {len(tests)} | {100 * passed / len(tests):.0f} %"
        lines.append(f"| {name} | {share} | {''.join(commonest).replace('|', '/')} |")
    lines += ["", *(f"Not graded: {name!a}: {reason}" for name, reason in sorted(failures.items()))]
    return "\n".join(lines) + "\n"


def class_picture(grades: list[Grade]) -> bytes:
    """The pass rates as bars, a PNG."""
    from matplotlib.figure import Figure

    tasks = _by_task(grades)
    rates = [100 * sum(test["status"] == "passed" for test in tests) / len(tests) for tests in tasks.values()]
    figure = Figure(figsize=(8, 1 + 0.25 * len(tasks)), layout="constrained")
    axes = figure.subplots()
    axes.barh(list(tasks), rates, color="#0072b2")
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"% of {len(grades)} students who passed")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    return picture.getvalue()


def _by_task(grades: list[Grade]) -> dict[str, list[dict[str, Any]]]:
    tasks: dict[str, list[dict[str, Any]]] = {}
    for grade in grades:
        for test in grade["tests"]:
            tasks.setdefault(test["name"], []).append(test)
    return tasks
