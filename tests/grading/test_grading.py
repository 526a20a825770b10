"""Grading in isolation: what passes between the processes, what a grade says, a class, a hand-out.

`tests/grading/test_attacks.py` has what must not pass.
With MINIPAGED_LONG=1, every solution, every different but
right answer and every fresh exercise is graded in isolation, and every wrong answer fails there too: hours.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import subprocess
import sys
import time
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner

from minipaged.cli import main
from minipaged.course.answers import Answer, load_answers
from minipaged.course.grader import TestResult, run_here
from minipaged.course.grading import class_run
from minipaged.course.grading.class_run import grade_class
from minipaged.course.grading.grade import grade_submission
from minipaged.course.grading.handout import make_gradescope, make_handout
from minipaged.course.grading.package_view import copy_package, hidden_functions, package_files
from minipaged.course.grading.remote import RemoteLayer
from minipaged.course.grading.results import to_junit
from minipaged.course.grading.sandbox import Limits, isolation
from minipaged.course.grading.submission import read_submission
from minipaged.course.grading.wire import Wire
from minipaged.course.outline import Chapter
from minipaged.course.seed import fill_new_memory
from minipaged.course.tasks import find_chapter, graded_chapters, load_tasks

ROOT = Path(__file__).resolve().parents[2]
CH03, CH06, CH09 = (find_chapter(ROOT, key) for key in ("ch03", "ch06", "ch09"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")
is_long = pytest.mark.skipif(os.environ.get("MINIPAGED_LONG") != "1", reason="hours; set MINIPAGED_LONG=1")


def source(chapter: Chapter, kind: str = "solutions") -> str:
    return (ROOT / kind / f"{chapter.file_stem}.py").read_text(encoding="utf-8")


# -- the wire ----------------------------------------------------------------------------------------------


class End(Wire):
    """One end, in this process; an object is named by its place in a list."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
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
    modules = (chapter.module, *chapter.other_modules)
    files = [tmp_path.joinpath(*module.split(".")).with_suffix(".py") for module in modules]
    if chapter.key != "ch06":  # its last task is not in the package
        texts = "".join(file.read_text(encoding="utf-8") for file in files)
        assert texts.count("raise NotImplementedError('ch") >= 3
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


def test_the_same_seed_gives_the_same_grade(tmp_path: Path) -> None:
    wrong = source(CH09).replace("return max(", "return min(", 1)
    assert wrong != source(CH09)
    (tmp_path / f"{CH09.file_stem}.py").write_text(wrong, encoding="utf-8")
    first, again = (grade_submission(ROOT, tmp_path, [CH09], seed=7) for _ in range(2))
    assert first == again and first["extra_data"]["seed"] == 7 and "seed 7" in first["output"]
    assert [test["status"] for test in first["tests"]].count("failed") == 1 and 0 < first["score"] < 100


def test_what_nobody_has_written_is_the_same_each_time(tmp_path: Path) -> None:
    """Else an answer that reads it would fail now and pass now, for all seeds."""
    torch.full((99,), 7.0)  # leaves something behind
    fill_new_memory()
    here = torch.empty(99)
    fill_new_memory(False)
    (tmp_path / f"{CH03.file_stem}.py").write_text("import torch\ntorch.full((99,), 7.0)")
    layer = RemoteLayer(ROOT, CH03, tmp_path / f"{CH03.file_stem}.py", Limits())
    layer.begin(1)
    there = layer.given("torch").empty(99)
    layer.close()
    assert here.isnan().all() and there.isnan().all()


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
def test_a_malformed_submission_gets_a_clear_line(name: str, exercise: Path) -> None:
    content, wanted = MALFORMED[name]
    exercise.unlink()
    if content is not None:
        exercise.write_bytes(content)
    submission = read_submission(exercise.parent, [CH03])
    if problem := submission.problems.get("ch03"):
        assert wanted in problem
        return
    with io.StringIO() as sink, redirect_stdout(io.StringIO()):
        run_here(ROOT, CH03, f"isolated:{exercise}", 1, sink)
        lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    results = [TestResult(**line) for line in lines if "running" not in line]
    assert results and all(result.outcome in ("failed", "error") for result in results)
    assert wanted in f"{results[0].message} {results[0].mismatch}"


def test_folders_and_pipes_are_no_files(tmp_path: Path) -> None:
    (tmp_path / f"{CH03.file_stem}.py").mkdir()
    os.mkfifo(tmp_path / f"{CH06.file_stem}.py")
    grade = grade_submission(ROOT, tmp_path, [CH03, CH06], seed=1)
    assert grade["score"] == 0
    assert all(test["output"].endswith("py is no ordinary file") for test in grade["tests"]), grade["tests"]


def test_the_command_writes_json_and_junit(
    exercise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise.unlink()
    (exercise.parent / "notes.txt").write_text("")
    monkeypatch.chdir(ROOT)
    files = ["--json", str(tmp_path / "out.json"), "--junit", str(tmp_path / "out.xml")]
    done = CliRunner().invoke(
        main, ["grade", str(exercise.parent), "--chapters", "ch03", "--seed", "5", *files]
    )
    assert done.exit_code == 0, done.output
    assert "0 of 100 points" in done.output and "not looked at: 'notes.txt'" in done.output
    grade = json.loads((tmp_path / "out.json").read_text())
    assert len(grade["tests"]) == 7 and {test["visibility"] for test in grade["tests"]} == {"visible"}
    suite = ElementTree.fromstring((tmp_path / "out.xml").read_bytes())
    assert suite.get("failures") == "7" and suite[0].get("classname") == "ch03"


def test_junit_takes_any_text() -> None:
    test = {
        "name": "ch03 task 1: <&>",
        "status": "failed",
        "score": 0,
        "max_score": 1,
        "output": "\x00\x1b\ufffe<&",
    }
    suite = ElementTree.fromstring(to_junit({"tests": [test], "output": "graded with seed 5\x00"}))
    assert suite[0][0].text == "???<&" and suite[1].text == "graded with seed 5?"


def test_a_hidden_check_shows_calls_and_values_but_nothing_that_it_expects(tmp_path: Path) -> None:
    """An instructor's own checks lie in tests/hidden/, and count for the task that they name."""
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

@pytest.mark.task(3)
def test_plainly(layer):
    assert layer.swap_seconds == 4242
""")
    submission = tmp_path / "ada"
    submission.mkdir()
    (submission / f"{CH09.file_stem}.py").write_text(source(CH09), encoding="utf-8")
    tests = grade_submission(course, submission, [CH09], seed=1)["tests"]
    assert [test["score"] == test["max_score"] for test in tests] == [n not in (1, 2) for n in range(7)]
    assert (
        ">>> recompute_flops(2, 3, 5, 7, 11)" in tests[1]["output"]
        and "this is a hidden check" in tests[1]["output"]
    )
    assert "4242" not in json.dumps(tests)


# -- a class -----------------------------------------------------------------------------------------------


def fake_grade(root: Path, folder: Path, chapters: list[Chapter], seed: int) -> dict[str, Any]:
    """Students called good… pass."""
    if folder.name.startswith("broken"):
        raise OSError("no space left on device")
    if folder.name.startswith("stop"):
        interrupt_main()  # Ctrl-C comes while this one is graded
        time.sleep(1)
    is_good = folder.name.startswith("good")
    mistake = None if is_good else "a leak"
    tests = [{"name": "ch03 task 1: a fresh pool", "score": 10 * is_good, "max_score": 10, "output": "",
              "status": "passed" if is_good else "failed", "extra_data": {"mistake": mistake}}]
    extra = {"student": folder.name, "max_score": 10, "seed": seed}
    extra["fingerprint"] = read_submission(folder, chapters).fingerprint
    return {"score": 10 * is_good, "tests": tests, "extra_data": extra}


@pytest.fixture
def school(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(class_run, "grade_submission", fake_grade)
    for name in ("good1", "good2", "bad1", "bad2", "bad3", "=sum(1)"):
        (tmp_path / "class" / name).mkdir(parents=True)
    return tmp_path / "class"


def test_a_class_has_a_table_a_report_and_a_picture(school: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = grade_class(ROOT, school, out, [CH03], seed=4, jobs=2)
    assert "| ch03 task 1: a fresh pool | 2 of 6 | 33 % | a leak (4 ×) |" in report and "seed 4" in report
    rows = list(csv.reader((out / "grades.csv").open()))
    assert rows[0] == ["student", "points", "of", "ch03 task 1"] and rows[1] == ["'=sum(1)", "0", "10", "0"]
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    tables = [(out / name).read_bytes() for name in ("grades.csv", "report.md")]
    grade_class(ROOT, school, tmp_path / "again", [CH03], seed=4, jobs=1)
    assert [(tmp_path / "again" / name).read_bytes() for name in ("grades.csv", "report.md")] == tables


def test_a_class_goes_on_where_it_was(school: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, graded = tmp_path / "out", list[str]()
    (school / "stop").mkdir()
    with pytest.raises(KeyboardInterrupt):
        grade_class(ROOT, school, out, [CH03], seed=None, jobs=1)
    assert "stop" not in {file.stem for file in (out / "students").iterdir()}
    first = json.loads((out / "run.json").read_text())

    def count(*args: Any) -> dict[str, Any]:
        graded.append(args[1].name)
        return fake_grade(*args)

    monkeypatch.setattr(class_run, "grade_submission", count)
    (school / "stop").rename(school / "good3")
    grade_class(ROOT, school, out, [CH03], seed=None, jobs=1)
    assert "good3" in graded and json.loads((out / "run.json").read_text()) == first, "the seed is the same"
    graded.clear()
    (school / "bad1" / f"{CH03.file_stem}.py").write_text("handed in again")
    (out / "students" / "bad2.json").write_text("half a res")
    grade_class(ROOT, school, out, [CH03], seed=None, jobs=1)
    assert sorted(graded) == ["bad1", "bad2"]
    with pytest.raises(ValueError, match="a run with other seed"):
        grade_class(ROOT, school, out, [CH03], seed=first["seed"] + 1, jobs=1)
    with pytest.raises(ValueError, match="a run with other chapters, tests"):
        grade_class(ROOT, school, out, [CH06], seed=None, jobs=1)


def test_a_grader_that_fails_stops_nobody_and_gives_no_grade(school: Path, tmp_path: Path) -> None:
    (school / "broken").mkdir()
    report = grade_class(ROOT, school, tmp_path / "out", [CH03], seed=1, jobs=2)
    assert "6 students" in report and "Not graded: 'broken': OSError: no space left on device" in report
    assert not (tmp_path / "out" / "students" / "broken.json").exists()


# -- what is handed out ------------------------------------------------------------------------------------


def test_a_hand_out_has_no_answers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_handout(ROOT, out)
    for chapter in graded_chapters(ROOT):
        assert (out / "exercises" / f"{chapter.file_stem}.py").read_text() == source(
            chapter, "exercises/.originals"
        )
        assert (out / "tests" / f"test_{chapter.file_stem}.py").is_file()
    assert not any((out / name).exists() for name in ("solutions", "tests/answers", "tests/hidden", ".git"))
    marked = [
        file for file in out.rglob("*") if file.is_file() and b"### BEGIN SOLUTION\n" in file.read_bytes()
    ]
    assert marked == []
    with pytest.raises(ValueError, match="needs a new folder"):
        make_handout(ROOT, out)
    with pytest.raises(ValueError, match="inside the course"):
        make_handout(ROOT, ROOT / "somewhere")


def test_gradescope_gets_scripts_that_a_shell_can_read(tmp_path: Path) -> None:
    make_gradescope(ROOT, tmp_path / "out", [CH03, CH06])
    for name in ("setup.sh", "run_autograder"):
        file = tmp_path / "out" / name
        assert subprocess.run(["bash", "-n", file]).returncode == 0 and os.access(file, os.X_OK)
    assert "--chapters ch03,ch06" in (tmp_path / "out" / "run_autograder").read_text()
    assert not (tmp_path / "out" / "course" / "solutions").exists()


# -- the whole of it, for those who have hours -------------------------------------------------------------


EVERY = [(chapter, answer) for chapter in graded_chapters(ROOT) for answer in load_answers(ROOT, chapter)]
RIGHT = [(chapter, Answer("the solution")) for chapter in graded_chapters(ROOT)]
RIGHT += [(chapter, answer) for chapter, answer in EVERY if answer.task is None]
WRONG = [(chapter, answer) for chapter, answer in EVERY if answer.task is not None]


def names(pairs: list[tuple[Chapter, Answer]]) -> list[str]:
    return [f"{chapter.key}-{answer.name}" for chapter, answer in pairs]


def text_of(chapter: Chapter, answer: Answer) -> str:
    return source(chapter) if answer.name == "the solution" else answer.text(source(chapter))


@is_long
@pytest.mark.parametrize(("chapter", "answer"), RIGHT, ids=names(RIGHT))
def test_a_right_answer_gets_all_points(chapter: Chapter, answer: Answer, tmp_path: Path) -> None:
    (tmp_path / f"{chapter.file_stem}.py").write_text(text_of(chapter, answer), encoding="utf-8")
    grade = grade_submission(ROOT, tmp_path, [chapter], seed=20261130)
    assert grade["score"] == grade["extra_data"]["max_score"], grade


@is_long
@pytest.mark.parametrize("chapter", graded_chapters(ROOT), ids=lambda chapter: chapter.key)
def test_a_fresh_exercise_gets_none(chapter: Chapter, tmp_path: Path) -> None:
    (tmp_path / f"{chapter.file_stem}.py").write_text(
        source(chapter, "exercises/.originals"), encoding="utf-8"
    )
    assert grade_submission(ROOT, tmp_path, [chapter], seed=20261130)["score"] == 0


@is_long
@pytest.mark.parametrize(("chapter", "answer"), WRONG, ids=names(WRONG))
def test_a_wrong_answer_fails_in_isolation_too(chapter: Chapter, answer: Answer, tmp_path: Path) -> None:
    file = tmp_path / f"{chapter.file_stem}.py"
    file.write_text(text_of(chapter, answer), encoding="utf-8")
    with io.StringIO() as sink, redirect_stdout(io.StringIO()):
        run_here(ROOT, chapter, f"isolated:{file}", answer.task, sink, max_failures=1)
        lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    outcomes = {line["outcome"] for line in lines if "running" not in line}
    assert outcomes & {"failed", "error", "missing"}


def test_what_isolates_here_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Which of the tests above had namespaces: `pytest -rA` shows it."""
    print(isolation())
    assert isolation().level in capsys.readouterr().out
