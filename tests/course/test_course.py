"""The course machine: exercises made from solutions, graders that say what is wrong, progress and hints.

The chapters themselves are judged by their graders, tests/test_chNN_name.py; those by
tests/course/test_answers.py.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from minipaged.course.answers import Answer, judge
from minipaged.course.grader import TestResult, run_grader
from minipaged.course.outline import CHAPTERS, Chapter
from minipaged.course.progress import Progress
from minipaged.course.report import check_chapter, render, sort_results
from minipaged.course.stubs import MarkerError, make_stub
from minipaged.course.tasks import Task, find_chapter, find_root, graded_chapters, load_tasks

ROOT = Path(__file__).resolve().parents[2]
GRADED = graded_chapters(ROOT)
each_chapter = pytest.mark.parametrize("chapter", GRADED, ids=lambda chapter: chapter.key)
CH03 = find_chapter(ROOT, "ch03")
# What the solutions have and the package has not: the challenges, and chapter 11's first kernels.
BEYOND = {
    "ch01": {"blocks_held", "max_sequences"},
    "ch02": {"compact"},
    "ch03": {"LinkedFreeQueue"},
    "ch04": {"BlockTable"},
    "ch05": {"attend_by_block", "fold_block"},
    "ch06": {"BestOf", "make_step_writable"},
    "ch07": {"RadixTree", "_Node", "clairvoyant_hits"},
    "ch08": {"AgingScheduler"},
    "ch09": {"swap_in_own", "swap_out_own"},
    "ch10": {"accept", "propose"},
    "ch11": {
        "_add_kernel", "_attend_alone_kernel", "_gather_rows_kernel", "_logsumexp_rows_kernel",
        "_scale_rows_kernel", "_store_and_decode_kernel", "add", "attend_alone", "gather_rows",
        "logsumexp_rows", "scale_rows", "store_and_decode",
    },
    "ch12": {"paged_decode_shared"},
    "ch13": {"predict_at_once"},
}


def solution_of(chapter: Chapter) -> str:
    return (ROOT / "solutions" / f"{chapter.file_stem}.py").read_text(encoding="utf-8")


def stub_of(chapter: Chapter) -> str:
    return make_stub(solution_of(chapter), chapter.file_stem, load_tasks(ROOT, chapter))


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course's folder with exercises that nobody has touched, whatever a reader did to the real ones."""
    root = tmp_path_factory.mktemp("course")
    for name in ("tests", "solutions"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "exercises" / ".originals").mkdir(parents=True)
    for chapter in GRADED:
        for folder in (root / "exercises", root / "exercises" / ".originals"):
            (folder / f"{chapter.file_stem}.py").write_text(stub_of(chapter), encoding="utf-8")
    return root


def minipaged(root: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minipaged", *arguments]
    return subprocess.run(command, cwd=root, input=given, capture_output=True, text=True, env=os.environ)


# -- what every chapter must keep ----------------------------------------------------------------------------


@each_chapter
def test_every_solution_passes_every_task_alone(chapter: Chapter, course: Path, tmp_path: Path) -> None:
    """With every other exercise not even a Python file, a chapter's solution has all its points."""
    for other in GRADED:
        (tmp_path / f"{other.file_stem}.py").write_text("this is no Python", encoding="utf-8")
    (tmp_path / f"{chapter.file_stem}.py").write_text(solution_of(chapter), encoding="utf-8")
    report = check_chapter(course, chapter, str(tmp_path))
    assert report.points == report.total, render(report, course)


@each_chapter
def test_every_stub_fails_with_its_own_message_and_has_no_points(chapter: Chapter) -> None:
    (verdict,) = judge(ROOT, chapter, [Answer("the stub", source=stub_of(chapter))])
    report = verdict.report
    assert report.points == 0 and not report.passed
    for task in report.tasks:
        assert task.status in ("not written", "waiting"), render(report, ROOT)
    messages = {result.message for task in report.tasks for result in task.results}
    own = {task.stub_message(chapter.file_stem) for task in load_tasks(ROOT, chapter)}
    assert messages <= own, messages - own


def test_an_untouched_exercise_is_not_written_and_one_character_has_it_judged(course: Path) -> None:
    report = check_chapter(course, CH03)
    assert report.points == 0 and {task.status for task in report.tasks} == {"not written"}
    assert len(check_chapter(course, CH03, task=2).tasks) == 1 < len(report.tasks)
    exercise = course / "exercises" / f"{CH03.file_stem}.py"
    exercise.write_text(stub_of(CH03) + "#\n", encoding="utf-8")
    try:
        (task,) = check_chapter(course, CH03, task=1).tasks
    finally:
        exercise.write_text(stub_of(CH03), encoding="utf-8")
    assert task.status == "not written" and "" not in {result.name for result in task.results}


@each_chapter
def test_every_task_is_described_hinted_and_judged(chapter: Chapter) -> None:
    tasks = load_tasks(ROOT, chapter)
    assert [task.number for task in tasks] == list(range(1, len(tasks) + 1))
    for task in tasks:
        assert 1 <= len(task.hints) <= 3 and task.compare, f"task {task.number} lacks hints or `compare`"
    grader = (ROOT / "tests" / f"test_{chapter.file_stem}.py").read_text(encoding="utf-8")
    tests = [
        node
        for node in ast.parse(grader).body
        if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"
    ]
    judged = [
        [ast.unparse(mark) for mark in test.decorator_list if "mark.task" in ast.unparse(mark)]
        for test in tests
    ]
    assert all(len(marks) == 1 for marks in judged), "a test belongs to exactly one task"
    assert {int(marks[0].split("(")[1][:-1]) for marks in judged} == {task.number for task in tasks}


@each_chapter
def test_a_solution_is_the_package_s_own_code(chapter: Chapter) -> None:
    """Function by function, in whichever of the chapter's modules it lies; only challenges go beyond them."""
    package: dict[str, str] = {}
    for module in (chapter.module, *chapter.other_modules):
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None
        package |= definitions(Path(spec.origin))
    solution = definitions(ROOT / "solutions" / f"{chapter.file_stem}.py")
    shared = package.keys() & solution.keys()
    assert shared, "they have no function in common"
    for name in sorted(shared):
        assert solution[name] == package[name], f"{name} differs between the package and the solution"
    assert {name.split(".")[0] for name in solution.keys() - shared} == BEYOND.get(chapter.key, set())


def definitions(file: Path) -> dict[str, str]:
    """Every function and method of a file as code without docstrings and comments, by qualified name."""
    found: dict[str, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                body = child.body[1:] if ast.get_docstring(child) is not None else child.body
                child.body = body or [ast.Pass()]
                found[prefix + child.name] = ast.unparse(child)
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(file.read_text(encoding="utf-8")), "")
    return found


def test_what_the_comparison_of_solution_and_package_sees(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('class A:\n    def f(self):\n        """Text."""\n        # comment\n        return 1\n')
    assert definitions(file) == {"A.f": "def f(self):\n    return 1"}


@each_chapter
def test_the_exercises_that_reset_restores_are_those_of_the_solutions(chapter: Chapter) -> None:
    original = ROOT / "exercises" / ".originals" / f"{chapter.file_stem}.py"
    assert original.read_text(encoding="utf-8") == stub_of(chapter), "run python tools/build.py --exercises"


# -- stubs ---------------------------------------------------------------------------------------------------

TASK = Task(2, "take blocks", stars=1, points=5, minutes=5)
MARKED = """\
def take(n):
    \"\"\"Take n.\"\"\"
    # Task 2
    # 1. Count.
    ### BEGIN SOLUTION
    return helper(n)
    ### END SOLUTION


### BEGIN SOLUTION
def helper(n):
    return n


### END SOLUTION
def given():
    return 0
"""


def test_a_region_becomes_a_stub_and_a_helper_leaves_no_trace() -> None:
    stub = make_stub(MARKED, "ch99_name", [TASK])
    assert stub == (
        'def take(n):\n    """Take n."""\n'
        "    # Task 2 ★ take blocks (5 points, about 5 minutes)\n    # 1. Count.\n"
        '    raise NotImplementedError("ch99_name, task 2: take blocks")\n\n\ndef given():\n    return 0\n'
    )


def test_a_region_in_a_function_is_a_stub_even_if_it_begins_with_a_definition() -> None:
    nested = MARKED.replace(
        "    return helper(n)\n", "    # why\n    def inner():\n        return n\n\n    return inner()\n"
    )
    commented = nested.replace("### BEGIN SOLUTION\ndef helper", "### BEGIN SOLUTION\n# why\ndef helper")
    assert make_stub(commented, "ch99_name", [TASK]) == make_stub(MARKED, "ch99_name", [TASK])


def test_a_title_may_hold_quotes_and_backslashes() -> None:
    task = Task(2, 'the "last" one, \\1', stars=1, points=5, minutes=5)
    stub = make_stub(MARKED, "ch99_name", [task])
    with pytest.raises(NotImplementedError, match=r'task 2: the "last" one, \\1$'):
        namespace: dict[str, Any] = {}
        exec(stub, namespace)
        namespace["take"](1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    ### BEGIN SOLUTION\n    return",
            "    ### Begin solution \n    return",
            "line 5: .* is no marker",
        ),
        ("    ### END SOLUTION\n\n", "    ### END SOLUTION \n\n", "line 7: .* is no marker"),
        ("    ### END SOLUTION\n", "", "line 9: BEGIN and END"),
        ("    # Task 2\n", "", r"line 4: no line `# Task k`"),
        ("# Task 2", "# Task 3", r"line 5: no line `# Task k`, with k in \[2\]"),
    ],
)
def test_markers_that_do_not_fit_are_named_with_their_line(old: str, new: str, message: str) -> None:
    with pytest.raises(MarkerError, match=message):
        make_stub(MARKED.replace(old, new), "ch99_name", [TASK])


def test_a_task_without_code_is_an_error() -> None:
    other = Task(3, "give back", stars=1, points=5, minutes=5)
    with pytest.raises(MarkerError, match=r"tasks \[2\] are marked, the grader has \[2, 3\]"):
        make_stub(MARKED, "ch99_name", [TASK, other])


# -- running a grader ----------------------------------------------------------------------------------------


def answer(tmp_path: Path, *edits: tuple[str, str]) -> str:
    """A file of chapter 3 with a few lines changed."""
    text = solution_of(CH03)
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    file = tmp_path / f"{CH03.file_stem}.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_failure_shows_the_shortest_history_the_mistake_and_the_state(tmp_path: Path) -> None:
    check = "if self.ref_count(block_id) < times:"
    wrong = answer(tmp_path, (check, check.replace("times", "1")))
    report = check_chapter(ROOT, CH03, wrong, task=6)
    text = render(report, ROOT)
    assert "known mistake:  a block listed twice was checked once" in text
    (history,) = [
        r.mismatch["history"] for r in report.tasks[0].results if r.name.startswith("test_any_history")
    ]
    assert history == ["pool = BlockAllocator(4)", "pool.allocate_many(1)"]  # and then free_many([0, 0])
    assert "minipaged hint ch03 6" in text


def test_a_file_that_cannot_be_imported_says_where(tmp_path: Path) -> None:
    wrong = answer(
        tmp_path, ("        self.num_blocks = num_blocks\n", "        self.num_blocks = = num_blocks\n")
    )
    report = check_chapter(ROOT, CH03, wrong)
    assert report.points == 0
    text = render(report, ROOT)
    assert "SyntaxError in line" in text and text.count("SyntaxError") == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x = '\0'", "line 5"),
        ("int('x')", "ValueError in line 5"),
        ("json.loads('')", "JSONDecodeError in line 5"),
    ],
)
def test_a_line_that_stops_the_import_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / f"{CH03.file_stem}.py"
    file.write_text(f"import json\n\nx = 0\n# next\n{line}\n", encoding="utf-8")
    assert words in render(check_chapter(ROOT, CH03, str(file), task=1), ROOT)


def test_an_exception_nobody_expected_is_shown_with_the_reader_s_line(tmp_path: Path) -> None:
    wrong = answer(
        tmp_path,
        (
            "        self._on_reuse = on_reuse\n",
            "        self._on_reuse = on_reuse\n        print('here'); 1 // 0\n",
        ),
    )
    text = render(check_chapter(ROOT, CH03, wrong, task=1), ROOT)
    assert "ZeroDivisionError" in text and "in ch03_block_allocator.py, line" in text
    assert "your code printed:" in text and "here" in text


def test_a_not_implemented_error_that_is_no_stub_s_is_an_error_like_any_other(tmp_path: Path) -> None:
    message = '"softmax" not implemented for Long, see task 6'
    wrong = answer(
        tmp_path,
        ("        self._ref_counts[block_id] += 1\n", f"        raise NotImplementedError({message!r})\n"),
    )
    report = check_chapter(ROOT, CH03, wrong, task=4)
    assert report.tasks[0].status == "failed"
    text = render(report, ROOT)
    assert message in text and "line" in text and "waits" not in text


def test_the_same_failure_is_told_once_and_the_end_of_what_was_printed_is_shown(tmp_path: Path) -> None:
    loud = "        for number in range(3000):\n            print('line', number)\n"
    loud += "        raise KeyError('x' * 9000)\n"
    wrong = answer(tmp_path, ("        self._on_reuse = on_reuse\n", loud))
    text = render(check_chapter(ROOT, CH03, wrong), ROOT)
    assert "as above" in text and "line 2999" in text and len(text) < 10_000


def test_the_grader_ends_when_whoever_started_it_is_gone(tmp_path: Path) -> None:
    wrong = answer(tmp_path, ("        if n < 0:\n", "        while True: pass\n        if n < 0:\n"))
    command = [sys.executable, "-m", "minipaged", "check", "ch03", "--task", "2", "--impl", wrong]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as checking:
        parent = psutil.Process(checking.pid)
        while not (children := parent.children()):
            time.sleep(0.1)
        time.sleep(3)
        checking.kill()
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert gone and not alive


def test_progress_that_cannot_be_kept_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".minipaged").write_text("a file where a folder should be")
    with pytest.warns(UserWarning, match="progress is not kept"):
        Progress().save(tmp_path)


def test_a_missing_class_is_the_reader_s_mistake(tmp_path: Path) -> None:
    file = tmp_path / f"{CH03.file_stem}.py"
    file.write_text("class Allocator: pass\n")
    text = render(check_chapter(ROOT, CH03, str(file), task=1), ROOT)
    assert "a definition of BlockAllocator" in text


# In `revive`, which is task 5; of the other tasks only 6 uses it, in its history.
REVIVE = "        del self._free_queue[block_id]"


@pytest.mark.parametrize(
    ("line", "words"),
    [("while True: pass", "did not end in time"),
     ("import itertools; sum(itertools.count())", "did not end in time"),  # in C, out of a signal's reach
     ("import sys; sys.exit(0)", "SystemExit"), ("input('why? ')", "the grader has none"),
     ("breakpoint()", "the grader has none"), ("import pdb; pdb.set_trace()", "the grader has none")],
)
def test_code_that_never_returns_is_shown_with_its_line_and_function(
    tmp_path: Path, line: str, words: str
) -> None:
    wrong = answer(tmp_path, (REVIVE, f"        {line}\n{REVIVE}"))
    result = run_grader(ROOT, CH03, wrong, task=5, limit_s=3)[0]  # of processor time
    assert result.outcome == "error" and words in result.message
    place = rf"in ch03_block_allocator.py, line \d+ \(revive\): {re.escape(line)}"
    assert re.search(place, result.message), result.message


def test_code_that_ends_the_process_costs_its_task_and_no_other(tmp_path: Path) -> None:
    wrong = answer(tmp_path, (REVIVE, f"        import os; os._exit(0)\n{REVIVE}"))
    report = check_chapter(ROOT, CH03, wrong)
    assert [task.task.number for task in report.tasks if task.status != "passed"] == [5, 6]
    assert "ended with code 0" in report.tasks[4].results[0].message


def test_a_task_that_no_test_judged_has_not_passed() -> None:
    report = sort_results(CH03, [TASK], [])
    assert report.points == 0 and report.tasks[0].status == "failed"
    one = sort_results(CH03, [TASK], [TestResult("test_a", 2, "passed")])
    assert one.points == 5
    both = sort_results(CH03, [TASK], [TestResult("test_a", 2, "passed"), TestResult("test_b", 2, "error")])
    assert both.points == 0


def test_an_edit_within_the_same_second_is_seen(tmp_path: Path) -> None:
    wrong = answer(tmp_path, ("if num_blocks < 1:", "if num_blocks < 0:"))
    assert check_chapter(ROOT, CH03, wrong, task=1).points == 0
    right = answer(tmp_path)
    assert check_chapter(ROOT, CH03, right, task=1).points == 10


# -- the commands --------------------------------------------------------------------------------------------


@pytest.fixture
def reader(course: Path) -> Path:
    """The course of a reader who begins."""
    shutil.rmtree(course / ".minipaged", ignore_errors=True)
    shutil.rmtree(course / "exercises" / "backups", ignore_errors=True)
    shutil.copytree(course / "exercises" / ".originals", course / "exercises", dirs_exist_ok=True)
    return course


def test_check_gives_points_and_remembers_them(reader: Path) -> None:
    done = minipaged(reader, "check", "ch03")
    assert done.returncode == 1 and "0 of 100 points" in done.stdout and "not written yet" in done.stdout
    shutil.copy(reader / "solutions" / f"{CH03.file_stem}.py", reader / "exercises")
    done = minipaged(reader / "tests", "check", "ch03")  # from a folder further down
    assert done.returncode == 0 and "100 of 100 points" in done.stdout
    assert f"Compare with solutions/{CH03.file_stem}.py" in done.stdout
    assert Progress.load(reader).of("ch03") == 100
    assert "ch03 ####################  100/100" in done.stdout


def test_watch_checks_again_when_the_file_is_saved(reader: Path) -> None:
    # A job in the background ignores Ctrl-C, and so would its children: preexec_fn gives the signal back.
    exercise = reader / "exercises" / f"{CH03.file_stem}.py"
    command = [sys.executable, "-u", "-m", "minipaged", "check", "ch03", "--task", "1", "--watch"]
    with subprocess.Popen(
        command, cwd=reader, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as watching:
        assert watching.stdout is not None
        try:
            seen = [next(line for line in watching.stdout if "task 1" in line)]
            exercise.write_text(solution_of(CH03))
            next(line for line in watching.stdout if "watching" in line)
            seen.append(next(line for line in watching.stdout if "task 1" in line))
            watching.send_signal(signal.SIGINT)
            _, stderr = watching.communicate(timeout=60)
        finally:
            watching.kill()
    assert "not written yet" in seen[0] and "10/10" in seen[1]
    assert watching.returncode == 130, stderr


def test_hints_come_one_at_a_time(reader: Path) -> None:
    hints = load_tasks(ROOT, CH03)[0].hints
    for number in (1, 2, 3, 3):
        shown = " ".join(minipaged(reader, "hint", "ch03").stdout.split())
        assert [hint in shown for hint in hints] == [index < number for index in range(3)]
    assert minipaged(reader, "hint", "ch03", "6").stdout.count("1. ") == 1
    failed = minipaged(reader, "hint", "ch03", "99")
    assert failed.returncode == 1 and "no task 99" in failed.stderr


def test_reset_asks_and_keeps_a_backup(reader: Path) -> None:
    exercise = reader / "exercises" / f"{CH03.file_stem}.py"
    original = exercise.read_text()
    assert "nothing to do" in minipaged(reader, "reset", "ch03").stdout
    exercise.write_text("my work\n")
    refused = minipaged(reader, "reset", "ch03", given="n\n")
    assert refused.returncode == 1 and exercise.read_text() == "my work\n"
    assert minipaged(reader, "reset", "ch03", given="y\n").returncode == 0
    assert exercise.read_text() == original
    exercise.write_text("more work\n")
    assert minipaged(reader, "reset", "ch03", "--yes").returncode == 0
    backups = sorted(path.read_text() for path in (reader / "exercises" / "backups").iterdir())
    assert backups == ["more work\n", "my work\n"]


@pytest.mark.parametrize(
    "arguments", [["check", "ch99"], ["hint", "ch99"], ["reset", "ch99"], ["check", "ch03", "--task", "9"]]
)
def test_an_unknown_chapter_or_task_is_one_line(reader: Path, arguments: list[str]) -> None:
    done = minipaged(reader, *arguments)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "ch03" in done.stderr


def test_a_link_is_kept_as_its_text_and_never_written_through(reader: Path, tmp_path: Path) -> None:
    exercise = reader / "exercises" / f"{CH03.file_stem}.py"
    elsewhere = tmp_path / "mine.py"
    elsewhere.write_text("my work\n")
    exercise.unlink()
    exercise.symlink_to(elsewhere)
    assert minipaged(reader, "reset", "ch03", "--yes").returncode == 0
    assert elsewhere.read_text() == "my work\n" and not exercise.is_symlink()
    (backup,) = (reader / "exercises" / "backups").iterdir()
    assert backup.read_text() == "my work\n" and not backup.is_symlink()


def test_a_terminal_that_knows_no_star_is_shown_the_rest(reader: Path) -> None:
    command = [sys.executable, "-m", "minipaged", "check", "ch03", "--task", "1"]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, cwd=reader, capture_output=True, env=environment)
    assert done.returncode == 1 and b"not written yet" in done.stdout and not done.stderr


def test_exercises_without_their_tests_are_not_another_folder_s(tmp_path: Path) -> None:
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "ch03_block_allocator.py").write_text("")
    with pytest.raises(ValueError, match="no tests/"):
        find_root(tmp_path)


def test_without_a_chapter_check_says_how_far_one_is_and_runs_nothing(reader: Path) -> None:
    done = minipaged(reader, "check")
    assert done.returncode == 0 and "the course so far: 0 of" in done.stdout


def test_a_chapter_that_somebody_still_writes_does_not_hide_the_others(reader: Path) -> None:
    grader = reader / "tests" / "test_ch02_contiguous.py"
    text = grader.read_text(encoding="utf-8")
    try:
        for unfinished in ("", "TASKS = ()", "TASKS = (Task(1),)", "TASKS = ("):
            grader.write_text(unfinished, encoding="utf-8")
            done = minipaged(reader, "check")
            assert done.returncode == 0 and "the course so far: 0 of" in done.stdout, done.stderr
            assert "  ch02 " in done.stdout and "test_ch02_contiguous.py" in done.stdout
    finally:
        grader.write_text(text, encoding="utf-8")


def test_progress_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / ".minipaged").mkdir()
    for text in ("", "[]", '{"points": 3, "hints": {}}', '{"points": {"ch03": {"1": "x"}}, "hints": {}}'):
        (tmp_path / ".minipaged" / "progress.json").write_text(text)
        assert Progress.load(tmp_path) == Progress()


def test_the_course_is_found_from_any_folder_in_it(course: Path) -> None:
    assert find_root(course / "exercises" / ".originals") == course
    assert find_root(Path("/")) == ROOT
    assert find_chapter(course, "3") == find_chapter(course, "ch03_block_allocator") == CHAPTERS[3]
