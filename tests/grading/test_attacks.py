"""Submissions that try to forge a grade, or to harm whoever grades them (`attacks.py` has them).

Each is first shown to work against a grader as they are often written: pytest, run in the folder of the
submission. Then the same submission is graded in isolation: nothing of it passes, the grader lives, and no
process, file or segment is left. Bombs are bounded, and the network is a listener that the test opened. What
takes more than one submission, such as a class or a hidden check, comes after them.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from minipaged.course.grader import run_here
from minipaged.course.grading.grade import grade_submission
from minipaged.course.grading.limits import Limits
from minipaged.course.grading.sandbox import Isolation, find_isolation
from minipaged.course.grading.warden import judge
from minipaged.course.tasks import find_chapter, import_path

attacks = import_path(Path(__file__).with_name("attacks.py"))
ROOT = attacks.ROOT
CH03, CH04, CH06, CH12 = (find_chapter(ROOT, key) for key in ("ch03", "ch04", "ch06", "ch12"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    return find_isolation([ROOT], allow_weak=True)


def solution(chapter) -> str:
    return (ROOT / "solutions" / f"{chapter.file_stem}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("attack", [a for a in attacks.ATTACKS if a.naive], ids=lambda attack: attack.name)
def test_it_works_on_a_naive_grader(attack, tmp_path: Path) -> None:
    """Or it would be no attack."""
    assert attacks.naive_grade(attack, tmp_path, timeout_s=4) not in ("failed", "")


@pytest.mark.parametrize(
    "attack", [*attacks.ATTACKS, *attacks.KERNEL_ATTACKS], ids=lambda one: f"{one.chapter} {one.name}"
)
def test_an_attack(attack, tmp_path: Path, isolation: Isolation) -> None:
    if isolation.level in attack.lost:
        pytest.skip(f"not promised with {isolation.level} alone")
    if attack.chapter == "ch11" and find_spec("triton") is None:
        pytest.skip("needs the package triton, which Linux has")
    outcome = attacks.attempt(attack, isolation, tmp_path)
    assert not outcome.harm
    assert outcome.results or isolation.level == "limits"
    assert {result.outcome for result in outcome.results} <= {"failed", "error", "missing", "timeout"}


def test_the_oracle_sees_a_harm(tmp_path: Path, isolation: Isolation) -> None:
    """An answer that is right is none of a stub's, so it counts as forged; and what is left is seen."""
    whole = solution(CH03)
    right = SimpleNamespace(chapter="ch03", task=2, text=lambda **_: whole)
    assert "tests passed" in attacks.attempt(right, isolation, tmp_path).harm
    again = tmp_path / "again"
    again.mkdir()
    with attacks.victims(again) as what:
        (Path(what["outside"]) / "mark").touch()
        sleeper = subprocess.Popen(["sleep", "60"], env={"LEFT": attacks.MARK, "PATH": os.environ["PATH"]})
        harm = attacks.harm_to(what)
        sleeper.kill()
        sleeper.wait()
    assert "wrote outside" in harm and "left 1 processes" in harm


def test_a_link_is_not_followed(tmp_path: Path, isolation: Isolation) -> None:
    (tmp_path / f"{CH03.file_stem}.py").symlink_to(ROOT / "solutions" / f"{CH03.file_stem}.py")
    grade = grade_submission(ROOT, tmp_path, [CH03], 1, isolation)
    assert grade["score"] == 0 and "is a link, not a file" in grade["tests"][0]["output"]


# -- where the course lies ---------------------------------------------------------------------------------


@pytest.fixture
def own_isolation() -> Isolation:
    """With the course in a place that a sandbox shows: below the folder of Python's packages."""
    isolation = find_isolation([ROOT], allow_weak=True)
    if isolation.level != "namespaces":
        pytest.skip("only namespaces hide files")
    return isolation


def test_a_course_that_lies_within_what_is_shown_is_covered(own_isolation: Isolation) -> None:
    place = Path(sys.prefix) / f"{attacks.MARK}-course"
    place.mkdir()
    try:
        (place / "solutions").mkdir()
        (place / "solutions" / "secret.py").write_text("here")
        code = f"""
import os
found = [os.path.join(top, name) for top, _, names in os.walk({str(place)!r}) for name in names]
raise ValueError(f"{{os.path.isdir({str(place)!r})}} {{found}}")
"""
        shown = find_isolation([ROOT])
        covered = find_isolation([ROOT, place])
        for isolation, seen in ((shown, "secret.py"), (covered, "True []")):
            results = judge(ROOT, CH03, code, 1, isolation, Limits(), 1)
            assert seen in str(results[0]), results[0]
    finally:
        shutil.rmtree(place)


def test_a_course_that_holds_the_python_that_runs_it_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be hidden from a submission"):
        find_isolation([Path(sys.prefix)], levels=["namespaces"])


@pytest.mark.skipif(os.geteuid() != 0, reason="older systems let only root forbid it")
def test_there_is_no_shared_memory_that_is_nobody_s(own_isolation: Isolation) -> None:
    """It is counted for no process, so 28 segments of 256 MiB went beyond all limits."""
    code = "import ctypes\nraise ValueError(f'{ctypes.CDLL(None).shmget(0, 4096, 0o1666)}')"
    assert judge(ROOT, CH03, code, 1, own_isolation, Limits(), 1)[0].mismatch["got"] == "ValueError: -1"


# -- weak isolation ----------------------------------------------------------------------------------------


def test_less_than_namespaces_gives_no_grade_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from minipaged.course.grading import sandbox

    monkeypatch.setattr(sandbox, "_why_not", lambda one: "no tools" if one.level == "namespaces" else "")
    with pytest.raises(ValueError, match=r"(?s)no grade: .*namespaces: no tools.*--allow-weak-isolation"):
        find_isolation()
    assert find_isolation(allow_weak=True).level == "user"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run students' code as root")
def test_students_code_never_runs_as_root() -> None:
    with pytest.raises(ValueError, match="students' code would run as root"):
        find_isolation(allow_weak=True, levels=["limits"])


def test_a_probe_that_gets_no_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for "this does not work here", and the submission ran with less."""
    from minipaged.course.grading import sandbox

    monkeypatch.setattr(sandbox, "PROBE_S", 0.0)
    with pytest.raises(RuntimeError, match="did not start within 0 s"):
        find_isolation(allow_weak=True, levels=["namespaces"])


def test_no_process_of_a_grade_has_a_path_of_the_submission_among_its_arguments(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minipaged.course.grading import sandbox

    started, popen = [], subprocess.Popen

    def note(command, *args, **kwargs):
        started.append(command)
        return popen(command, *args, **kwargs)

    monkeypatch.setattr(sandbox.subprocess, "Popen", note)
    judge(ROOT, CH03, solution(CH03), 1, isolation, Limits(), 1)
    assert len(started) == 2
    assert not any(word in str(started) for word in (CH03.file_stem, "box-", "minipaged-"))


def test_the_examiner_runs_as_nobody_and_an_examiner_that_ends_has_said_nothing(
    isolation: Isolation, tmp_path: Path
) -> None:
    """A course whose test ends the process after others have passed, and says who it is."""
    course = tmp_path / "course"
    (course / "tests").mkdir(parents=True)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, course / name)
    text = (ROOT / "tests" / f"test_{CH03.file_stem}.py").read_text(encoding="utf-8")
    end = """

@pytest.mark.task(7)
def test_the_end():
    import os
    print("user", os.geteuid(), flush=True)
    os._exit(0)
"""
    (course / "tests" / f"test_{CH03.file_stem}.py").write_text(text + end, encoding="utf-8")
    originals = course / "exercises" / ".originals"
    originals.mkdir(parents=True)
    shutil.copy(ROOT / "exercises" / ".originals" / f"{CH03.file_stem}.py", originals)
    with pytest.raises(RuntimeError, match=r"the grader itself broke off while test_the_end ran"):
        judge(course, CH03, solution(CH03), 1, isolation, Limits())
    ask = text + end.replace("os._exit(0)", "raise ValueError(f'user {os.geteuid()}')")
    (course / "tests" / f"test_{CH03.file_stem}.py").write_text(ask, encoding="utf-8")
    *_, last = judge(course, CH03, solution(CH03), 1, isolation, Limits(), 7)
    assert last.message.startswith("ValueError: user ") and (
        os.geteuid() != 0 or "user 0" not in last.message
    )


# -- answers that are known already ------------------------------------------------------------------------


def test_answers_to_the_public_examples_are_worth_nothing(tmp_path: Path, isolation: Isolation) -> None:
    """A table of all that the self-check asks passes it, for it asks the same every time. A grade doesn't."""
    file, table = tmp_path / f"{CH06.file_stem}.py", tmp_path / "table.jsonl"
    record = f"""
_right = blocks_saved
def blocks_saved(*args):
    import json
    value = _right(*args)
    print(json.dumps([args, value]), file=open({str(table)!r}, "a"))
    return value
"""

    def self_check() -> set[str]:
        with io.StringIO() as sink, redirect_stdout(io.StringIO()):
            run_here(ROOT, CH06, str(file), 3, sink)
            lines = [json.loads(line) for line in sink.getvalue().splitlines()]
        return {line["outcome"] for line in lines if "running" not in line}

    file.write_text(solution(CH06) + record, encoding="utf-8")
    assert self_check() == {"passed"}
    known = {tuple(args): value for args, value in map(json.loads, table.read_text().splitlines())}
    stub = (ROOT / "exercises" / ".originals" / file.name).read_text(encoding="utf-8")
    file.write_text(f"{stub}\n\nblocks_saved = lambda *args: {known}.get(args, 0)\n", encoding="utf-8")
    assert self_check() == {"passed"}
    grade = grade_submission(ROOT, tmp_path, [CH06], 20261130, isolation)
    assert grade["score"] == 0 and "blocks_saved(" in grade["tests"][2]["output"]


# -- hidden checks -----------------------------------------------------------------------------------------


LEAKS = {
    "the value": "return f'{args} SECRET'",
    "a number that the distance to the right one is shown of": "return 0.5",
    "what it prints": "print(args, 'SECRET'); return 0",
    "an error's message": "raise ValueError(f'{args} SECRET')",
    "an error's name": "raise type(f'SECRET{args}'.replace(' ', ''), (ValueError,), {})",
    "a stub's message": "raise NotImplementedError(f'ch03_block_allocator, task {args[0]}: SECRET')",
    "an answer that makes no sense": """
        import os
        for fd in range(3, 9):
            try: os.write(fd, b'["SECRET 7919"]\\n')
            except OSError: pass""",
    "the end of the process": "import os; print(args); os._exit(args[0] % 256)",
    "the time that it takes": "import time; time.sleep(args[0] / 7919); return 0",
    "a public check that comes later": "HEARD.append(args); return 0",
}
HIDDEN = """
import psutil
import pytest
from minipaged.course import expect, expect_close

@pytest.mark.task(1)
def test_a_secret_number(layer):
    expect("a number of mine", layer.ask(7919, 104729), 611953)

@pytest.mark.task(1)
def test_a_secret_distance(layer):
    expect_close("a number of mine", layer.ask(7919, 104729), 611953.0, atol=1e-9)

@pytest.mark.task(1)
def test_plainly(layer):
    assert layer.ask(7919, 104729) == 611953
"""


@pytest.fixture(scope="module")
def course_with_a_hidden_check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    course = tmp_path_factory.mktemp("course")
    for name in ("pyproject.toml", "tests/conftest.py", f"tests/test_{CH03.file_stem}.py",
                 f"exercises/.originals/{CH03.file_stem}.py"):
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, course / name)
    hidden = course / "tests" / "hidden" / f"test_{CH03.file_stem}.py"
    hidden.parent.mkdir()
    hidden.write_text(HIDDEN)
    return course


@pytest.mark.parametrize("name", LEAKS)
def test_a_hidden_check_tells_nothing(
    name: str, isolation: Isolation, course_with_a_hidden_check: Path
) -> None:
    """Not what it expects, and not what it calls, by whatever a submission says."""
    body = LEAKS[name].replace("\n        ", "\n    ")
    code = f"""
HEARD = []
def ask(*args):
    {body}

class BlockAllocator:
    def __init__(self, n): raise ValueError(f"{{HEARD}}")
"""
    results = judge(course_with_a_hidden_check, CH03, code, 1, isolation, Limits(), 1)
    said = json.dumps([vars(result) | {"seconds": None} for result in results])  # any digits come in a time
    hidden = {"test_a_secret_number", "test_a_secret_distance", "test_plainly"}
    assert hidden <= {result.name for result in results}
    assert not any(result.outcome == "passed" for result in results)
    assert all(result.seconds == 0 for result in results if result.name in hidden)
    assert not any(word in said for word in ("7919", "104729", "611953", "6119", "SECRET", "611952"))


# -- a class -----------------------------------------------------------------------------------------------


def test_links_in_a_class_lead_to_nobody_else_s_answer(tmp_path: Path) -> None:
    from minipaged.course.grading.submission import find_students, read_files

    school = tmp_path / "class"
    for name in ("bob", "eve"):
        (school / name).mkdir(parents=True)
    (school / "bob" / f"{CH03.file_stem}.py").write_text("bob's")
    (school / "eve" / f"{CH03.file_stem}.py").symlink_to("../bob/" + f"{CH03.file_stem}.py")
    (school / "zed").symlink_to("bob")
    (school / "flat_ch03_block_allocator.py").symlink_to("bob/" + f"{CH03.file_stem}.py")
    (school / "kim").mkdir()
    (school / "kim" / "exercises").symlink_to("../bob")
    found = {who: read_files(files, [CH03]) for who, files in find_students(school, [CH03]).items()}
    assert set(found) == {"bob", "eve", "zed", "flat", "kim"}
    assert {who for who, one in found.items() if one.texts} == {"bob"}


def test_the_name_of_a_file_can_stall_nobody(tmp_path: Path) -> None:
    from minipaged.course.grading.submission import read_submission

    for name in ("ch03" + "-1_" * 70 + ".px", "ch03_" * 40 + "x.py", "_" * 240 + ".py", "ch03" * 60 + ".py"):
        (tmp_path / name).touch()
    begin = time.process_time()
    assert "is missing" in read_submission(tmp_path, [CH03]).problems["ch03"]
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_grader_that_is_told_to_end_leaves_nothing(number: int, tmp_path: Path) -> None:
    submission, scratch = tmp_path / "ada", tmp_path / "scratch"
    for folder in (submission, scratch):
        folder.mkdir()
    scratch.chmod(0o711)
    tmp_path.chmod(0o711)
    file = submission / f"{CH03.file_stem}.py"
    file.write_text("import os, time\nos.environ['LEFT'] = 'x'\ntime.sleep(99)")
    command = [sys.executable, "-m", "minipaged", "grade", str(submission), "--chapters", "ch03"]
    child = subprocess.Popen([*command, "--allow-weak-isolation"], cwd=ROOT, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(scratch)})
    for _ in range(600):
        if list(scratch.glob("minipaged-*/box-*/view/submission")):
            break
        time.sleep(0.05)
    time.sleep(0.5)
    children = psutil.Process(child.pid).children(recursive=True)
    assert len(children) >= 2
    child.send_signal(number)
    assert child.wait(timeout=30) != 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    assert number == signal.SIGKILL or list(scratch.iterdir()) == []
