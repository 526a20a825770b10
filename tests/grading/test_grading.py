"""Grading in isolation: what passes between the processes, what a grade says, a class, a hand-out.

`tests/grading/test_attacks.py` has what must not pass.
With MINIPAGED_LONG=1, every solution, every different but
right answer and every fresh exercise is graded in isolation, and every wrong answer fails there too: hours.
"""

from __future__ import annotations

import ast
import csv
import errno
import io
import json
import os
import socket
import subprocess
import sys
import time
from _thread import interrupt_main
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner

from minipaged.cli import main
from minipaged.course.answers import Answer, load_answers
from minipaged.course.grading import class_run, warden
from minipaged.course.grading.class_run import grade_class
from minipaged.course.grading.grade import grade_again, grade_submission, grade_texts
from minipaged.course.grading.handout import make_gradescope
from minipaged.course.grading.limits import Limits
from minipaged.course.grading.package_view import (
    _definitions,
    copy_package,
    hidden_functions,
    package_files,
)
from minipaged.course.grading.results import to_junit, write_whole
from minipaged.course.grading.sandbox import Isolation, find_isolation
from minipaged.course.grading.submission import (
    Submission,
    files_of_nobody,
    find_students,
    read_files,
    read_submission,
)
from minipaged.course.grading.warden import judge
from minipaged.course.grading.wire import IN_REQUESTS, Wire
from minipaged.course.outline import Chapter
from minipaged.course.tasks import find_chapter, graded_chapters, load_tasks

ROOT = Path(__file__).resolve().parents[2]
CH03, CH06, CH09 = (find_chapter(ROOT, key) for key in ("ch03", "ch06", "ch09"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")
is_long = pytest.mark.skipif(os.environ.get("MINIPAGED_LONG") != "1", reason="hours; set MINIPAGED_LONG=1")


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    return find_isolation([ROOT], allow_weak=True)


def source(chapter: Chapter, kind: str = "solutions") -> str:
    return (ROOT / kind / f"{chapter.file_stem}.py").read_text(encoding="utf-8")


# -- the wire ----------------------------------------------------------------------------------------------


class End(Wire):
    """One end, in this process; an object is named by its place in a list."""

    def __init__(self, step: int) -> None:
        super().__init__(step, IN_REQUESTS)
        self.objects: list[Any] = []

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, Iterator):  # as `Connection` sends them
            return {"iterator": [self.encode(item) for item in value]}
        self.objects.append(value)
        return {"object": [len(self.objects) - 1, "thing"]}

    def decode_object(self, handle: Any, name: Any) -> Any:
        return self.objects[handle]


def across(value: Any) -> Any:
    return End(-1).unpack(End(1).pack(value))


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(10**50), 1.5, float("inf"), "é\ud800", b"\x00\xff", (), (1, (2.0,)), [[1], []],
     {(1, "a"): [2]}, {1, 2}, frozenset({3}), range(1, 9, 2), slice(None, 2)],
    ids=repr,
)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    came = across(value)
    assert came == value and type(came) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_tensors_arrive_with_dtype_shape_and_numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).mul(9).to(dtype)
    came = across(x)
    assert came.dtype == dtype and torch.equal(came, x)


def test_a_view_keeps_its_strides() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    one = torch.ones(2)
    for view in (x.transpose(0, 2), x[:, 1:, ::2], x[:1].expand(5, 3, 4), one[:1].expand(7), one[::2]):
        came = across(view)
        assert torch.equal(came, view) and came.stride() == view.stride()


def test_a_named_tuple_arrives_with_its_names_and_a_subclass_of_a_plain_type_only_as_a_handle() -> None:
    from minipaged.block_table import Append

    class Lie(int):
        __eq__ = lambda self, other: True  # noqa: E731
        __hash__ = int.__hash__

    came = across(Append([1], [(2, 3)]))
    assert came == ([1], [(2, 3)]) and came.slots == [1]
    assert End(1).encode(Lie(3))["object"][1] == "thing"


def test_a_list_a_dict_and_a_tensor_are_one_thing_at_both_ends() -> None:
    ours, theirs = End(1), End(-1)
    numbers, names, x = [1, 2], {1: "a", 2: "b"}, torch.zeros(3)
    got, called, y = theirs.unpack(ours.pack([numbers, names, x]))
    got.append(7)
    called[0] = called.pop(1)
    y[1] = 5
    ours.unpack(theirs.pack(None))
    assert numbers == [1, 2, 7] and list(names.items()) == [(2, "b"), (0, "a")] and x.tolist() == [0, 5, 0]
    numbers.clear()
    names.clear()
    x += 1
    theirs.unpack(ours.pack(None))
    assert got == [] and called == {} and y.tolist() == [1, 6, 1]
    assert ours.unpack(theirs.pack(got)) is numbers, "given back, it is the same list"


def test_what_nobody_holds_is_forgotten_after_its_last_change_was_told() -> None:
    ours, theirs = End(1), End(-1)
    kept = [1]
    held = theirs.unpack(ours.pack((kept, [2]), drop_unused=True))
    theirs.unpack(ours.pack(None, drop_unused=True))
    assert len(ours._shared) == len(theirs._shared) == 1
    mine = [9]
    came = ours.unpack(theirs.pack(mine))
    came.append(10)
    del came
    theirs.unpack(ours.pack(None, drop_unused=True))
    assert mine == [9, 10] and len(theirs._shared) == len(ours._shared) == 1 and held == ([1], [2])


def test_lists_that_only_an_iterator_yields_arrive_and_are_forgotten() -> None:
    ours, theirs = End(1), End(-1)
    came = theirs.unpack(ours.pack(iter([(1, [2, [3]]), (4, [])]), drop_unused=True))
    assert list(came) == [(1, [2, [3]]), (4, [])]
    for _ in range(3):  # a list within a list goes one message later
        theirs.unpack(ours.pack(None, drop_unused=True))
    assert not ours._shared and not theirs._shared


# -- the package without the answers -----------------------------------------------------------------------


@pytest.mark.parametrize("chapter", graded_chapters(ROOT), ids=lambda chapter: chapter.key)
def test_what_a_chapter_asks_for_is_not_in_its_sandbox(chapter: Chapter, tmp_path: Path) -> None:
    for task in load_tasks(ROOT, chapter):
        hidden = hidden_functions(ROOT, chapter, task.number)
        assert any(f"task {task.number}:" in message for message in hidden.values())
    copy_package(tmp_path, chapter, hidden)
    taken = 0
    for file in tmp_path.rglob("*.py"):
        for name, function in _definitions(ast.parse(file.read_text(encoding="utf-8"))).items():
            if name in hidden:
                assert ast.unparse(function.body).startswith("raise NotImplementedError(")
                taken += 1
    assert taken >= 1 or chapter.key in ("ch02", "ch06"), "those build what the package has not"
    originals = package_files()
    for name in {file.relative_to(tmp_path / "minipaged").as_posix() for file in tmp_path.rglob("*.py")}:
        text = (tmp_path / "minipaged" / name).read_text(encoding="utf-8")
        if text != originals[name].read_text(encoding="utf-8"):
            ast.parse(text)


@pytest.mark.parametrize(("key", "has_kernels"), [("ch05", False), ("ch11", True), ("ch12", True)])
def test_the_same_answer_in_another_form_is_not_there_either(
    key: str, has_kernels: bool, tmp_path: Path
) -> None:
    """PyTorch twins, numba's loops, and for all chapters but theirs the kernels."""
    copy_package(tmp_path, find_chapter(ROOT, key), {})
    there = {file.relative_to(tmp_path / "minipaged").as_posix() for file in tmp_path.rglob("*.py")}
    kernels = {f"kernels/paged/triton_{name}.py" for name in ("decode", "fast")}
    assert there & kernels == (kernels if has_kernels else set())
    others = {"backends/numba_loops.py", "kernels/paged/torch_twins.py"}
    assert others <= package_files().keys() and not others & there


# -- one submission ----------------------------------------------------------------------------------------


@pytest.fixture
def exercise(tmp_path: Path) -> Path:
    """A submission: chapter 3's fresh exercise."""
    file = tmp_path / "ada" / f"{CH03.file_stem}.py"
    file.parent.mkdir()
    file.write_text(source(CH03, "exercises/.originals"), encoding="utf-8")
    return file


def test_the_same_seed_gives_the_same_grade(tmp_path: Path, isolation: Isolation) -> None:
    wrong = source(CH09).replace("return max(", "return min(", 1)
    assert wrong != source(CH09)
    (tmp_path / f"{CH09.file_stem}.py").write_text(wrong, encoding="utf-8")
    first, again = (grade_submission(ROOT, tmp_path, [CH09], 7, isolation) for _ in range(2))
    assert first["extra_data"]["seed"] == 7 and "seed 7" in first["output"]
    for grade in (first, again):  # all but the times
        for test in grade["tests"]:
            del test["extra_data"]["seconds"]
        del grade["execution_time"], grade["extra_data"]["graded_at"]
    assert first == again
    assert [test["status"] for test in first["tests"]].count("failed") == 1 and 0 < first["score"] < 100


def test_what_nobody_has_written_is_the_same_each_time(isolation: Isolation) -> None:
    """Else an answer that reads it would fail now and pass now, for all seeds."""
    code = "import torch\ntorch.full((99,), 7.0)\n"
    code += "def BlockAllocator(n): raise ValueError(str(torch.empty(9)))"
    result = judge(ROOT, CH03, code, 1, isolation, Limits(), 1)[0]
    assert result.message.count("nan") == 9


MALFORMED = {
    "missing": (None, "is missing"),
    "binary": (bytes(range(256)) * 9, "is no text in UTF-8: byte 128"),
    "ten megabytes": (b"# " + b"x" * (10 << 20), "has 10,485,762 bytes, more than 1,048,576"),
    "a syntax error": (b"def f(:\n", "SyntaxError: invalid syntax in line 1"),
    "empty": (b"", "BlockAllocator"),
    "a zero byte": (b"x = 1\x00", "null byte"),
    "another name": (b"class Allocator: pass", "none; it may have been renamed"),
    "a number": (b"BlockAllocator = 5", "'int' object is not callable"),
    "an error at import": (b"1 / 0", "ZeroDivisionError: division by zero"),
    "too deep": (b"x = " + b"(" * 5000 + b")" * 5000, "SyntaxError"),
    "its own error class": (
        b"class Odd(Exception):\n    def __str__(self): raise SystemExit\n"
        b"def BlockAllocator(*_): raise Odd\n", "its process ended"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_submission_gets_a_clear_line(name: str, exercise: Path, isolation: Isolation) -> None:
    content, wanted = MALFORMED[name]
    exercise.unlink()
    if content is not None:
        exercise.write_bytes(content)
    submission = read_submission(exercise.parent, [CH03])
    if problem := submission.problems.get("ch03"):
        assert wanted in problem
        return
    results = judge(ROOT, CH03, submission.texts["ch03"], 1, isolation, Limits(), 1)
    assert results and all(result.outcome in ("failed", "error") for result in results)
    assert wanted in f"{results[0].message} {results[0].mismatch}"


def test_folders_and_pipes_are_no_files(tmp_path: Path, isolation: Isolation) -> None:
    (tmp_path / f"{CH03.file_stem}.py").mkdir()
    os.mkfifo(tmp_path / f"{CH06.file_stem}.py")
    grade = grade_submission(ROOT, tmp_path, [CH03, CH06], 1, isolation)
    assert grade["score"] == 0
    assert all(test["output"].endswith("py is no ordinary file") for test in grade["tests"]), grade["tests"]


def grade_command(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["grade", *map(str, arguments)])


def test_the_command_writes_json_and_junit(
    exercise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (exercise.parent / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    files = ["--json", tmp_path / "out.json", "--junit", tmp_path / "out.xml"]
    done = grade_command(exercise.parent, "--chapters", "ch03", "--seed", 5, *files, "--fail-under", 1)
    assert done.exit_code == 1 and "fewer than 1 points" in done.output, done.output
    assert done.output.startswith("isolation ") and "not looked at: 'notes.txt'" in done.output
    assert "0 of 100 points" in done.output and "untouched: the exercise as it came" in done.output
    grade = json.loads((tmp_path / "out.json").read_text())
    assert len(grade["tests"]) == 7 and {test["visibility"] for test in grade["tests"]} == {"visible"}
    suite = ElementTree.fromstring((tmp_path / "out.xml").read_bytes())
    assert (suite.get("failures"), suite.get("errors")) == ("7", "0") and suite[0].get("classname") == "ch03"
    assert datetime.fromisoformat(str(suite.get("timestamp"))) and float(str(suite[0].get("time"))) >= 0
    exercise.unlink()
    done = grade_command(exercise.parent, "--chapters", "ch03", "--junit", tmp_path / "out.xml")
    assert done.exit_code == 0
    suite = ElementTree.fromstring((tmp_path / "out.xml").read_bytes())
    assert (suite.get("failures"), suite.get("errors")) == ("0", "7"), "there was nothing to judge"


def test_whose_tests_count(exercise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the course that the command belongs to: not those of a submission that looks like a course."""
    (exercise.parent / "exercises").mkdir()
    exercise.rename(exercise.parent / "exercises" / exercise.name)
    tests = exercise.parent / "tests" / f"test_{CH03.file_stem}.py"
    tests.parent.mkdir()
    mark = tmp_path / "mark"
    tests.write_text(f"""
from minipaged.course import Task
open({str(mark)!r}, "w")
TASKS = (Task(1, "mine", stars=1, points=100, minutes=1),)
""")
    monkeypatch.chdir(exercise.parent)
    done = grade_command(".", "--chapters", "ch03")
    assert done.exit_code == 0 and "0 of 100 points" in done.output and "a fresh pool" in done.output
    assert not mark.exists()
    done = grade_command(".", "--course", exercise.parent, "--chapters", "ch03")
    assert done.exit_code == 2 and "holds the course itself" in done.output
    done = grade_command(ROOT.parent, "--chapters", "ch03")
    assert done.exit_code == 2 and "holds the course itself" in done.output


def test_who_runs_out_of_time_is_told_so_and_graded_again(tmp_path: Path, isolation: Isolation) -> None:
    whole = source(CH03) + """
_share = BlockAllocator.share
def share(self, block_id):
    while block_id == 0: pass
    return _share(self, block_id)
BlockAllocator.share = share
"""
    (tmp_path / f"{CH03.file_stem}.py").write_text(whole)
    limits = Limits(answer_s=1.0, task_s=5.0)
    grade = grade_submission(ROOT, tmp_path, [CH03], 1, isolation, limits)
    states = [test["extra_data"]["state"] for test in grade["tests"]]
    assert states[3] == "timed out" and states[1] == "passed"
    assert grade["extra_data"]["notes"]["ch03"].startswith("timed out in task ")
    assert "graded again, since a task had run out of time: ch03" in grade["output"]
    assert "1 s of processor time, or asleep, were not enough" in grade["tests"][3]["output"]
    assert b"<error" in to_junit(grade)


def test_the_second_try_gives_points_and_no_words(
    tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second, what a submission says may come from a hidden check of the first, through the caches."""
    (tmp_path / f"{CH03.file_stem}.py").write_text("def BlockAllocator(n):\n    while True: pass\n")
    submission = read_submission(tmp_path, [CH03])
    limits = Limits(answer_s=0.5, task_s=1.0)
    first = grade_texts(ROOT, submission, "ada", [CH03], 1, isolation, limits)
    assert {test["extra_data"]["state"] for test in first["tests"]} == {"timed out"}
    submission.texts["ch03"] = source(CH03)
    second = grade_again(ROOT, submission, [CH03], first, isolation)
    assert second["score"] == 100 and all("graded again: passed" in t["output"] for t in second["tests"])
    submission.texts["ch03"] = "def BlockAllocator(n): raise ValueError('SECRET')"
    second = grade_again(ROOT, submission, [CH03], first, isolation)
    assert second["score"] == 0 and "SECRET" not in json.dumps(second)


def test_a_machine_that_is_busy_costs_nobody_points(isolation: Isolation) -> None:
    """An answer that gets a small part of a processor takes long by the clock and little of what counts."""
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop) for _ in range(8 * (os.cpu_count() or 1))]
    try:
        results = judge(ROOT, CH03, source(CH03), 1, isolation, Limits(answer_s=0.5, task_s=3.0), 1)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert {result.outcome for result in results} == {"passed"}


def test_junit_takes_any_text() -> None:
    extra = {"state": "failed", "seconds": 0.25}
    test = {"name": "ch03 task 1: <&>", "status": "failed", "score": 0, "max_score": 1,
            "output": "\x00\x1b\ufffe<&", "extra_data": extra}
    grade = {"tests": [test], "output": "graded with seed 5\x00", "execution_time": 3,
             "extra_data": {"graded_at": "2026-12-01T00:00:00+00:00"}}
    suite = ElementTree.fromstring(to_junit(grade))
    assert suite[0][0].text == "???<&" and suite[1].text == "graded with seed 5?"
    assert (suite.get("time"), suite[0].get("time")) == ("3.0", "0.2")


def test_a_file_is_written_whole_or_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_whole(tmp_path / ("x" * 251 + ".json"), "text")
    assert list(tmp_path.iterdir()) == []


def test_a_hidden_check_counts_for_its_task(tmp_path: Path, isolation: Isolation) -> None:
    """An instructor's own checks lie in tests/hidden/. What they show is in `test_attacks.py`."""
    course = tmp_path / "autograder" / "course"
    make_gradescope(ROOT, course.parent, [CH09])
    hidden = course / "tests" / "hidden" / f"test_{CH09.file_stem}.py"
    hidden.parent.mkdir()
    hidden.write_text("""
import pytest
from minipaged.course import expect

@pytest.mark.task(2)
def test_the_cost_of_no_tokens(layer):
    expect("recompute_flops(2, 3, 5, 7, 11)", layer.recompute_flops(2, 3, 5, 7, 11), 4242)
""")
    submission = tmp_path / "ada"
    submission.mkdir()
    (submission / f"{CH09.file_stem}.py").write_text(source(CH09), encoding="utf-8")
    tests = grade_submission(course, submission, [CH09], 1, isolation)["tests"]
    assert [test["score"] == test["max_score"] for test in tests] == [n != 1 for n in range(7)]
    assert ">>> recompute_flops(2, 3, 5, 7, 11)" in tests[1]["output"]


# -- a class -----------------------------------------------------------------------------------------------


def fake_grade(
    root: Path, submission: Submission, who: str, chapters: list[Chapter], seed: int, isolation: Isolation
) -> dict[str, Any]:
    """Students called good… pass."""
    if who.startswith("broken"):
        raise OSError("no space left on device")
    if who.startswith("stop"):
        interrupt_main()  # Ctrl-C comes while this one is graded
        time.sleep(1)
    is_good = who.startswith("good")
    state = {"mistake": None if is_good else "a leak", "state": "passed" if is_good else "failed"}
    tests = [{"name": "ch03 task 1: a fresh pool", "score": 10 * is_good, "max_score": 10, "output": "",
              "status": "passed" if is_good else "failed", "extra_data": state}]
    extra = {"student": who, "max_score": 10, "seed": seed, "isolation": "namespaces",
             "notes": dict(submission.problems), "fingerprint": submission.fingerprint}
    return {"score": 10 * is_good, "tests": tests, "extra_data": extra}


@pytest.fixture
def school(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(class_run, "grade_texts", fake_grade)
    for name in ("good1", "good2", "bad1", "bad2", "bad3", "=sum(1)"):
        (tmp_path / "class" / name).mkdir(parents=True)
    return tmp_path / "class"


def test_a_class_has_a_table_a_report_and_a_picture(
    school: Path, tmp_path: Path, isolation: Isolation
) -> None:
    out = tmp_path / "out"
    report = grade_class(ROOT, school, out, [CH03], 4, 2, isolation)
    assert "| ch03 task 1: a fresh pool | 2 of 6 | 33 % | 0 | a leak (4 ×) |" in report and "seed 4" in report
    assert f"6 students, isolation: {isolation.level}." in report
    rows = list(csv.reader((out / "grades.csv").open()))
    assert rows[0] == ["student", "points", "of", "isolation", "notes", "ch03 task 1"]
    assert rows[1] == ["'=sum(1)", "0", "10", "namespaces", f"ch03: {CH03.file_stem}.py is missing", "0"]
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    tables = [(out / name).read_bytes() for name in ("grades.csv", "report.md")]
    grade_class(ROOT, school, tmp_path / "again", [CH03], 4, 1, isolation)
    assert [(tmp_path / "again" / name).read_bytes() for name in ("grades.csv", "report.md")] == tables
    with pytest.raises(ValueError, match="would be taken for a student"):
        grade_class(ROOT, school, school / "out", [CH03], 4, 1, isolation)


def test_a_class_goes_on_where_it_was(
    school: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    out, graded = tmp_path / "out", dict[str, int]()
    (school / "stop").mkdir()
    with pytest.raises(KeyboardInterrupt):
        grade_class(ROOT, school, out, [CH03], None, 1, isolation)
    assert "stop" not in {file.stem for file in (out / "students").iterdir()}
    first = json.loads((out / "run.json").read_text())

    def note(*args: Any, **kwargs: Any) -> dict[str, Any]:
        graded[args[2]] = args[4]
        return fake_grade(*args, **kwargs)

    monkeypatch.setattr(class_run, "grade_texts", note)
    (school / "stop").rename(school / "good3")
    grade_class(ROOT, school, out, [CH03], None, 1, isolation)
    assert "good3" in graded and json.loads((out / "run.json").read_text()) == first, "the seed is the same"
    before = json.loads((out / "students" / "bad1.json").read_text())["extra_data"]["seed"]
    graded.clear()
    (school / "bad1" / f"{CH03.file_stem}.py").write_text("handed in again")
    (out / "students" / "bad2.json").write_text("half a res")
    grade_class(ROOT, school, out, [CH03], None, 1, isolation)
    assert set(graded) == {"bad1", "bad2"} and len(set(graded.values())) == 2
    assert graded["bad1"] != before, "who hands in again meets other numbers"
    with pytest.raises(ValueError, match="a run with other seed"):
        grade_class(ROOT, school, out, [CH03], first["seed"] + 1, 1, isolation)
    with pytest.raises(ValueError, match="a run with other chapters, tests"):
        grade_class(ROOT, school, out, [CH06], None, 1, isolation)


def test_a_grader_that_fails_stops_nobody_and_gives_no_grade(
    school: Path, tmp_path: Path, isolation: Isolation
) -> None:
    (school / "broken").mkdir()
    report = grade_class(ROOT, school, tmp_path / "out", [CH03], 1, 2, isolation)
    assert "6 students" in report and "Not graded: 'broken': OSError: no space left on device" in report
    assert not (tmp_path / "out" / "students" / "broken.json").exists()
    *_, last = csv.reader((tmp_path / "out" / "grades.csv").open())
    assert last == ["broken", "", "", "", "not graded: OSError: no space left on device", ""]


def test_what_can_t_be_read_is_not_graded_and_stops_nobody(
    school: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    out, file = tmp_path / "out", school / "good1" / f"{CH03.file_stem}.py"
    file.write_text("the answer")
    grade_class(ROOT, school, out, [CH03], 1, 2, isolation)

    def fake_or_real(root: Path, submission: Submission, *rest: Any) -> dict[str, Any]:
        return (grade_texts if submission.unreadable else fake_grade)(root, submission, *rest)

    def broken(path: Any, *rest: Any, **more: Any) -> int:
        if str(path) == str(file):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return works(path, *rest, **more)

    works = os.open
    monkeypatch.setattr(class_run, "grade_texts", fake_or_real)
    monkeypatch.setattr(os, "open", broken)
    report = grade_class(ROOT, school, out, [CH03], None, 2, isolation)
    reason = f"Unreadable: 'good1/{file.name}': Input/output error"
    assert "5 students" in report and f"* Not graded: 'good1': {reason}" in report
    *_, last = csv.reader((out / "grades.csv").open())
    assert last == ["good1", "", "", "", f"not graded: {reason}", ""]
    assert not (out / "students" / "good1.json").exists(), "of what was read before"
    refused = grade_command(file.parent, "--chapters", "ch03")
    assert refused.exit_code == 1 and "no grade: 'good1/ch03_block_allocator.py'" in refused.output
    monkeypatch.setattr(os, "open", works)
    assert "6 students" in grade_class(ROOT, school, out, [CH03], None, 2, isolation)


@pytest.mark.skipif(sys.platform == "win32", reason="other modes there")
def test_what_this_user_may_not_read_is_not_taken_for_missing() -> None:
    """A file, its folder, the student's folder. What is no file at all is the student's mistake."""
    with TemporaryDirectory(dir="/tmp") as folder:
        closed = {"ada": "", "bob": "exercises", "cyd": f"exercises/{CH03.file_stem}.py", "dee": "other"}
        for who, place in closed.items():
            for name in ("exercises", "other"):
                (Path(folder) / who / name).mkdir(parents=True)
            (Path(folder) / who / "exercises" / f"{CH03.file_stem}.py").write_text("text")
            (Path(folder) / who / place).chmod(0)
        (Path(folder) / "eve").mkdir()
        socket.socket(socket.AF_UNIX).bind(f"{folder}/eve/{CH03.file_stem}.py")
        os.chmod(folder, 0o755)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            found = {who: one.unreadable for who, one in read_class(Path(folder)).items()}
            socket_s = read_submission(Path(folder) / "eve", [CH03]).problems["ch03"]
        finally:
            os.seteuid(user)
            for who, place in closed.items():
                (Path(folder) / who / place).chmod(0o700)
    assert socket_s.endswith("is no ordinary file")
    told = {who: " ".join(lines) for who, lines in found.items()}
    assert all(f"{closed[who] or who}': Permission denied" in told[who] for who in closed) and not told["eve"]


@pytest.mark.parametrize(
    ("key", "missing", "reason"),
    [
        ("ch03", "errors.py", "the sandbox does not start"),
        ("ch03", "block_allocator.py", "the sandbox does not start"),
        ("ch08", "course/chapters/ch08_scheduler/dry_engine.py", "the sandbox lacks a part of the engine"),
    ],
)
def test_a_part_of_the_engine_that_is_missing_in_the_sandbox_is_the_grader_s_failure(
    key: str, missing: str, reason: str, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    def copy(target: Path, *rest: Any) -> None:
        copy_package(target, *rest)
        (target / "minipaged" / missing).unlink()

    chapter = find_chapter(ROOT, key)
    monkeypatch.setattr(warden, "copy_package", copy)
    with pytest.raises(RuntimeError, match=f"(?s){reason}.*{Path(missing).stem}"):
        grade_texts(ROOT, Submission({key: source(chapter)}), "ada", [chapter], 1, isolation)


def test_odd_names_of_students(school: Path, tmp_path: Path, isolation: Isolation) -> None:
    odd = ["\t=1+1", "\x1b[2J\x07", "-rf", "..hidden", "x" * 251, "a\nb", "+1", " =1", "grades.csv"]
    for name in odd:
        (school / name).mkdir()
    grade_class(ROOT, school, tmp_path / "out", [CH03], 1, 2, isolation)
    table = (tmp_path / "out" / "grades.csv").read_text()
    names = [row[0] for row in csv.reader(io.StringIO(table))][1:]
    assert len(names) == 6 + len(odd) and not any(c in table for c in "\x1b\x07")
    assert not any(name.lstrip("\t\n ").startswith(("=", "+", "-", "@")) for name in names)
    assert len(list((tmp_path / "out" / "students").iterdir())) == 6 + len(odd)
    assert not list((tmp_path / "out").rglob("*.part"))


def test_who_runs_out_of_time_in_a_class_is_graded_again_alone(
    school: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    running, alone, tries = set[str](), [], Counter[str]()

    def late(*args: Any) -> dict[str, Any]:
        tries[args[2]] += 1
        running.add(args[2])
        time.sleep(0.1)
        running.discard(args[2])
        grade = fake_grade(*args)
        if args[2].startswith("bad"):
            grade["tests"][0]["extra_data"]["state"] = "timed out"
        return grade

    def again(root: Path, submission: Submission, chapters: Any, grade: Any, isolation: Any) -> Any:
        who = grade["extra_data"]["student"]
        tries[who] += 1
        alone.append(not running)
        grade["tests"][0]["extra_data"]["state"] = "timed out" if who == "bad3" else "failed"
        return grade

    monkeypatch.setattr(class_run, "grade_texts", late)
    monkeypatch.setattr(class_run, "grade_again", again)
    report = grade_class(ROOT, school, tmp_path / "out", [CH03], 1, 3, isolation)
    assert alone == [True] * 3 and {who for who in tries if tries[who] == 2} == {"bad1", "bad2", "bad3"}
    assert "| 2 of 6 | 33 % | 1 |" in report


def read_class(folder: Path) -> dict[str, Submission]:
    found = find_students(folder, [CH03, CH06])
    return {who: read_files(files, [CH03, CH06]) for who, files in found.items()}


LAYOUTS = {
    "folders": {"ada/ch03_block_allocator.py": "ada", "bob/exercises/ch03_block_allocator.py": "bob"},
    "nbgrader": {"ada/hw3/ch03_block_allocator.py": "ada", "bob/hw3/ch03_block_allocator.py": "bob"},
    "Moodle, folders": {
        "Ada L_123_assignsubmission_file_/ch03_block_allocator.py": "Ada L_123_assignsubmission_file_"},
    "Moodle, files": {"Ada L_123_assignsubmission_file_ch03_block_allocator.py": "Ada L_123"},
    "Canvas": {"lovelaceada_12_67890_ch03_block_allocator.py": "lovelaceada_12",
               "bobb_LATE_13_67891_ch03_block_allocator-1.py": "bobb_13"},
    "Blackboard": {"HW3_ada_attempt_2026-11-30-10-00-00_ch03_block_allocator.py": "",
                   "HW3_ada_attempt_2026-12-01-10-00-00_ch03_block_allocator.py": "HW3_ada",
                   "HW3_j_smith_attempt_2026-12-01-10-00-00_ch03_block_allocator.py": "HW3_j_smith",
                   "HW3_a_smith_attempt_2026-12-01-10-00-00_ch03_block_allocator.py": "HW3_a_smith"},
    "Gradescope": {"submission_123/ch03_block_allocator.py": "submission_123",
                   "submission_metadata.yml": ""},
    "GitHub Classroom": {"hw3-ada/exercises/ch03_block_allocator.py": "hw3-ada",
                         "hw3-ada/tests/test_ch03_block_allocator.py": "",
                         "hw3-ada/solutions/ch03_block_allocator.py": "", "hw3-ada/.git/x.py": ""},
    "plain files": {"ada_ch03_block_allocator.py": "ada", "bob-ch03.py": "bob"},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_class_as_platforms_give_it(name: str, tmp_path: Path) -> None:
    for path in LAYOUTS[name]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    found = {who: one.texts.get("ch03") for who, one in read_class(tmp_path).items()}
    assert found == {who: path for path, who in LAYOUTS[name].items() if who}


NAMES = {
    "ch03_block_allocator (1).py": "read from", "Ch03_Block_Allocator.py": "read from",
    "ch3 block allocator.py": "read from", "ch03_block_allocator - Copy.py": "read from",
    "ch03_block_allocator.py.txt": "read from", "ada_ch03_block_allocator_v2.py": "read from",
    "ch03.py": "read from", "ch03_block_allocator.ipynb": "is missing; there is", "notes.py": "is missing",
    "test_ch03_block_allocator.py": "is missing", "ch03_block_table.py": "is missing",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_nearly_right_is_read_with_a_note_or_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("text")
    submission = read_submission(tmp_path, [CH03])
    assert NAMES[name] in {**submission.renamed, **submission.problems}["ch03"]


def test_files_that_are_nobody_s_are_named(tmp_path: Path) -> None:
    for name in ("ada_ch03_block_allocator.py", "hal_ch03_block_alocator.py", "ch03_block_allocator_fay.py"):
        (tmp_path / name).touch()
    assert files_of_nobody(tmp_path, [CH03]) == ["ch03_block_allocator_fay.py", "hal_ch03_block_alocator.py"]


def test_of_two_files_that_may_be_meant_none_is_guessed(tmp_path: Path) -> None:
    for name in ("ch03_block_allocator (1).py", "ch03_block_allocator (2).py"):
        (tmp_path / name).write_text(name)
    assert "which one is it?" in read_submission(tmp_path, [CH03]).problems["ch03"]
    (tmp_path / "ch03_block_allocator.py").write_text("this")
    submission = read_submission(tmp_path, [CH03])
    assert submission.texts["ch03"] == "this" and "not looked at" in submission.renamed["ch03"]


# -- the whole of it, for those who have hours -------------------------------------------------------------


EVERY = [(chapter, answer) for chapter in graded_chapters(ROOT) for answer in load_answers(ROOT, chapter)]
RIGHT = [(chapter, answer) for chapter, answer in EVERY if answer.task is None]
WRONG = [(chapter, answer) for chapter, answer in EVERY if answer.task is not None]


def names(pairs: list[tuple[Chapter, Answer]]) -> list[str]:
    return [f"{chapter.key}-{answer.name}" for chapter, answer in pairs]


def text_of(chapter: Chapter, answer: Answer) -> str:
    return answer.text(source(chapter))


@is_long
@pytest.mark.parametrize(("chapter", "answer"), RIGHT, ids=names(RIGHT))
def test_a_right_answer_gets_all_points(
    chapter: Chapter, answer: Answer, tmp_path: Path, isolation: Isolation
) -> None:
    (tmp_path / f"{chapter.file_stem}.py").write_text(text_of(chapter, answer), encoding="utf-8")
    grade = grade_submission(ROOT, tmp_path, [chapter], 20261130, isolation)
    assert grade["score"] == grade["extra_data"]["max_score"], grade


@is_long
@pytest.mark.parametrize("chapter", graded_chapters(ROOT), ids=lambda chapter: chapter.key)
def test_a_fresh_exercise_gets_none(chapter: Chapter, tmp_path: Path, isolation: Isolation) -> None:
    (tmp_path / f"{chapter.file_stem}.py").write_text(
        source(chapter, "exercises/.originals"), encoding="utf-8"
    )
    assert grade_submission(ROOT, tmp_path, [chapter], 20261130, isolation)["score"] == 0


@is_long
@pytest.mark.parametrize(("chapter", "answer"), WRONG, ids=names(WRONG))
def test_a_wrong_answer_fails_in_isolation_too(
    chapter: Chapter, answer: Answer, isolation: Isolation
) -> None:
    results = judge(ROOT, chapter, text_of(chapter, answer), 1, isolation, Limits(), answer.task)
    assert {result.outcome for result in results} & {"failed", "error", "missing", "timeout"}


def test_what_isolates_here_is_said(capsys: pytest.CaptureFixture[str], isolation: Isolation) -> None:
    """Which of the tests above had namespaces: `pytest -rA` shows it."""
    print(isolation)
    assert isolation.level in capsys.readouterr().out
