"""A class, graded: some students at a time, each result written in one piece, and a table at the end.

A run that was interrupted goes on where it was: a student whose result is there, for the same files, the same
seed and the same tests, is not graded again. A submission can't stop the others, and a grader that fails says
so and leaves no result. Everything runs on one machine; for several, a container grades each submission
(`handout.py`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import psutil
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from minipaged.course.grader import escaped, kill_children, plain
from minipaged.course.grading.grade import (
    Grade,
    fresh_seed,
    grade_again,
    grade_texts,
    has_run_out_of_time,
)
from minipaged.course.grading.package_view import package_files
from minipaged.course.grading.results import to_json, write_whole
from minipaged.course.grading.sandbox import Isolation
from minipaged.course.grading.submission import (
    Submission,
    files_of_nobody,
    find_students,
    read_files,
)
from minipaged.course.outline import Chapter

TITLE = "Results of the class"
MAX_NAME = 200  # bytes of a result's file name, without its ending


def grade_class(
    root: Path,
    folder: Path,
    target: Path,
    chapters: list[Chapter],
    seed: int | None,
    jobs: int,
    isolation: Isolation,
) -> str:
    """Grade every student in `folder`, `jobs` at a time; results go to `target`. Returns the report.

    seed: None takes that of an earlier run into the same `target`, or a fresh one. Each submission gets a
    seed of its own, made of this one and of what was handed in: who has seen the numbers of a first try meets
    others in the second.
    """
    if target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{target} lies in {folder}, and would be taken for a student: use --out")
    submissions = {who: read_files(files, chapters) for who, files in find_students(folder, chapters).items()}
    plan = _plan(root, target, chapters, seed, isolation)
    todo = {who: one for who, one in submissions.items() if not _is_graded(target, who, one)}
    failures = _grade_all(root, target, todo, chapters, plan["seed"], isolation, jobs)
    first = {who: grade for who in todo if (grade := _load(target, who)) and has_run_out_of_time(grade)}
    if first:  # alone: perhaps only the machine was busy
        late = {who: todo[who] for who in first}
        failures |= _grade_all(root, target, late, chapters, plan["seed"], isolation, 1, first)
    grades = [grade for who in submissions if (grade := _load(target, who)) is not None]
    write_whole(target / "grades.csv", to_csv(grades, failures))
    report = class_report(grades, failures, isolation.level, files_of_nobody(folder, chapters))
    write_whole(target / "report.md", report)
    write_whole(target / "report.png", class_picture(grades))
    return f"{report}\nseed {plan['seed']}; results in {target}"


def _plan(
    root: Path, target: Path, chapters: list[Chapter], seed: int | None, isolation: Isolation
) -> dict[str, Any]:
    """What all students of a run have in common; kept in the results' folder, for the next time."""
    file = target / "run.json"
    try:
        old = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): choose another folder with --out") from None
    plan = {
        "seed": old.get("seed", fresh_seed()) if seed is None else seed,
        "chapters": [one.key for one in chapters],
        "tests": _version(root, chapters),
        "isolation": isolation.level,
    }
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


def _seed_of(seed: int, student: str, submission: Submission) -> int:
    text = f"{seed} {student} {submission.fingerprint}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big") >> 1


def _file(target: Path, student: str) -> Path:
    """Where a student's result is: under the name, if a file can be called so."""
    name = re.sub(r"[\x00-\x1f/\\]", "_", student)
    if name != student or len(name.encode("utf-8", "surrogateescape")) > MAX_NAME:
        mark = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        name = f"{name[: MAX_NAME // 4]}-{mark}"
    return target / "students" / f"{name}.json"


def _load(target: Path, student: str) -> Grade | None:
    try:
        return json.loads(_file(target, student).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_graded(target: Path, student: str, submission: Submission) -> bool:
    """Whether the result of this very submission is there; that it is of this run, `_plan` has seen to."""
    grade = _load(target, student)
    return grade is not None and grade["extra_data"]["fingerprint"] == submission.fingerprint


def _grade_all(
    root: Path,
    target: Path,
    submissions: dict[str, Submission],
    chapters: list[Chapter],
    seed: int,
    isolation: Isolation,
    jobs: int,
    first: dict[str, Grade] | None = None,
) -> dict[str, str]:
    """Grade these students, or grade again what ran out of time in their `first` grades; returns those on
    whom the grader itself failed, and why. They have no result."""
    stop, failures = Event(), dict[str, str]()

    def grade_one(who: str, submission: Submission) -> None:
        if not stop.is_set():
            if first is None:
                own_seed = _seed_of(seed, who, submission)
                grade = grade_texts(root, submission, who, chapters, own_seed, isolation)
            else:
                grade = grade_again(root, submission, chapters, first[who], isolation)
            if not stop.is_set():  # a grader that was killed half-way has no result
                write_whole(_file(target, who), to_json(grade))

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("grading", total=len(submissions))
        running = {pool.submit(grade_one, who, one): who for who, one in submissions.items()}
        try:
            for future in as_completed(running):
                who = running.pop(future)
                if (error := future.exception()) is not None:
                    failures[who] = f"{type(error).__name__}: {error}"
                    with suppress(OSError):
                        _file(target, who).unlink(missing_ok=True)  # of an earlier submission
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


def to_csv(grades: list[Grade], failures: dict[str, str]) -> str:
    """A row for each student: the sum, the isolation, what there is to know beside the points (why there are
    none, for one), and the points of each task. Who could not be graded has no points, not 0."""
    names = [test["name"].split(":")[0] for test in grades[0]["tests"]] if grades else []
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["student", "points", "of", "isolation", "notes", *names])
    for grade in grades:
        extra, points = grade["extra_data"], [test["score"] for test in grade["tests"]]
        notes = "; ".join(f"{key}: {note}" for key, note in extra["notes"].items())
        row = [extra["student"], grade["score"], extra["max_score"], extra["isolation"], notes, *points]
        writer.writerow([_cell(value) for value in row])
    for who, reason in sorted(failures.items()):
        row = [who, "", "", "", f"not graded: {reason.splitlines()[0]}", *("" for _ in names)]
        writer.writerow([_cell(value) for value in row])
    return table.getvalue()


def _cell(value: object) -> object:
    """A text that a spreadsheet does not take for a formula, whatever comes before it."""
    if not isinstance(value, str):
        return value
    text = escaped(value)
    return f"'{text}" if re.match(r"\W*[=+\-@]", text) else text


def class_report(grades: list[Grade], failures: dict[str, str], isolation: str, ignored: list[str]) -> str:
    """A table in Markdown: for each task how many passed it, and the commonest mistake that has a name; then
    what there is to know of single students."""
    lines = [f"# {TITLE}", "", f"{_count(len(grades), 'student')}, isolation: {isolation}.", ""]
    lines += ["| task | passed | | timed out | commonest named mistake |", "|---|---|---|---|---|"]
    for name, tests in _by_task(grades).items():
        states = Counter(test["extra_data"]["state"] for test in tests)
        mistakes = Counter(test["extra_data"]["mistake"] for test in tests if test["extra_data"]["mistake"])
        commonest = [f"{mistake} ({count} ×)" for mistake, count in mistakes.most_common(1)]
        share = f"{states['passed']} of {len(tests)} | {100 * states['passed'] / len(tests):.0f} %"
        lines.append(f"| {name} | {share} | {states['timed out']} | {''.join(commonest).replace('|', '/')} |")
    notes = [
        (g["extra_data"]["student"], g["extra_data"]["notes"]) for g in grades if g["extra_data"]["notes"]
    ]
    lines += ["", *(f"* {who!a}: {key}: {text}" for who, one in notes for key, text in one.items())]
    lines += [f"* Not graded: {name!a}: {reason}" for name, reason in sorted(failures.items())]
    lines += [f"* No student's, by its name: {name!a}" for name in ignored]
    return plain("\n".join(lines)) + "\n"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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
    axes.set_xlabel(f"% of {_count(len(grades), 'student')} who passed")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    return picture.getvalue()


def _by_task(grades: list[Grade]) -> dict[str, list[dict[str, Any]]]:
    tasks: dict[str, list[dict[str, Any]]] = {}
    for grade in grades:
        for test in grade["tests"]:
            tasks.setdefault(test["name"], []).append(test)
    return tasks
