"""Submissions that try to forge a grade, or to harm whoever grades them.

Each trick is first shown to work against a grader as they are often written: pytest, run in the folder of the
submission. Then the same submission is graded in isolation: nothing of it passes, the grader lives, and no
process or file is left. Bombs are bounded by themselves, and the network is a listener that the test opened.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from minipaged.course.grader import TestResult, run_here
from minipaged.course.grading.grade import grade_submission
from minipaged.course.grading.remote import Connection, SubmissionGone
from minipaged.course.grading.sandbox import FIRST_UID, Limits, isolation
from minipaged.course.tasks import find_chapter

ROOT = Path(__file__).resolve().parents[2]
CH03, CH06, CH11 = (find_chapter(ROOT, key) for key in ("ch03", "ch06", "ch11"))
FILE = f"{CH03.file_stem}.py"
STUB = (ROOT / "exercises" / ".originals" / FILE).read_text(encoding="utf-8")
LIMITS = {"answer_s": 3.0, "task_s": 6.0}
SLACK_S = 2.0

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")
LEVEL = isolation().level if sys.platform != "win32" else ""
needs_namespaces = pytest.mark.skipif(
    LEVEL != "namespaces", reason="needs namespaces: see docs/instructors.md"
)

NAIVE_TEST = f"""
from {CH03.file_stem} import BlockAllocator

def test_two_blocks():
    expected = [0, 1]
    pool = BlockAllocator(4)
    assert pool.allocate_many(2) == expected
    expected = 2
    assert pool.num_free == expected
"""
NAIVE_GRADER = """
import pathlib, pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", "test_naive.py"])
pathlib.Path("results.txt").write_text("passed" if code == 0 else "failed")
raise SystemExit(code)
"""


@dataclass
class Attack:
    """code: the submission's own file, behind a stub's. files: what else lies in its folder."""

    code: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, **values: object) -> Path:
        code = textwrap.dedent(self.code)
        for name, value in values.items():
            code = code.replace(f"<{name}>", str(value))
        (folder / FILE).write_text(f"{STUB}\n\n{code}", encoding="utf-8")
        for name, text in self.files.items():
            (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return folder / FILE


def naive_grade(folder: Path, timeout_s: float = 60.0) -> str:
    """What a grader says that runs pytest beside the submission: "passed" or "failed"."""
    (folder / "test_naive.py").write_text(NAIVE_TEST)
    (folder / "naive.py").write_text(NAIVE_GRADER)
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "naive.py"], cwd=folder, env=environment, timeout=timeout_s, capture_output=True
    )
    results = folder / "results.txt"
    if results.exists():
        return results.read_text()
    return "passed" if done.returncode == 0 else "failed"


def grade_isolated(file: Path, task: int = 2, chapter: str = "ch03") -> list[TestResult]:
    """What the tests of one task say, run here, about a file in a sandbox."""
    os.environ["MINIPAGED_LIMITS"] = json.dumps(LIMITS)
    try:
        with io.StringIO() as sink, redirect_stdout(io.StringIO()):
            run_here(ROOT, find_chapter(ROOT, chapter), f"isolated:{file}", task, sink)
            lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    finally:
        del os.environ["MINIPAGED_LIMITS"]
    return [TestResult(**line) for line in lines if "running" not in line]


def left_behind() -> list[psutil.Process]:
    """Processes of a submission that still run: those of this grader's users, and its own children.

    What has been killed may need a moment to be gone: a large one gives its memory back first.
    """
    own = psutil.Process().children(recursive=True)
    users = [one for one in psutil.process_iter(["uids"]) if one.info["uids"]
             and one.info["uids"].real == FIRST_UID + os.getpid()]
    _, alive = psutil.wait_procs({*own, *users}, timeout=2)
    return [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def expect_nothing(file: Path, task: int = 2, chapter: str = "ch03") -> list[TestResult]:
    """Graded in isolation, not one test passes, and nothing is left."""
    begin = time.monotonic()
    results = grade_isolated(file, task, chapter)
    took = time.monotonic() - begin
    assert len(results) >= 4 and {result.outcome for result in results} <= {"failed", "error", "missing"}
    assert took < 60  # several times the limits: a machine may be busy
    assert left_behind() == []
    return results


FORGERIES = {
    "it ends the process at import": Attack("import os; os._exit(0)"),
    "a conftest.py that turns reports around": Attack(files={"conftest.py": """
        import pytest
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(item, call):
            outcome = yield
            outcome.get_result().outcome = "passed"
        """}),
    "a pytest.py of its own": Attack(files={"pytest.py": "main = lambda *arguments: 0"}),
    "a pytest.ini that runs nothing": Attack(files={"pytest.ini": "[pytest]\naddopts = --collect-only\n"}),
    "a sitecustomize.py": Attack(files={"sitecustomize.py": """
        import os, sys
        if sys.argv[0].endswith("naive.py") or not sys.argv[0]:
            os._exit(0)
        import builtins; builtins.forged = True
        """}),
    "objects that equal everything": Attack("""
        class Yes:
            __eq__ = lambda self, other: True
            __ne__ = lambda self, other: False
            __hash__ = object.__hash__
            __bool__ = lambda self: True
        class BlockAllocator:
            def __init__(self, *_, **__): self.num_blocks = self.num_free = Yes()
            def __getattr__(self, name): return lambda *_, **__: Yes()
        """),
    "an int and a list that lie": Attack("""
        class Int(int):
            __eq__ = lambda self, other: True
            __ne__ = lambda self, other: False
            __hash__ = int.__hash__
        class List(list):
            __eq__ = lambda self, other: True
            __ne__ = lambda self, other: False
            __len__ = lambda self: 2
        class BlockAllocator:
            def __init__(self, *_, **__): self.num_blocks = self.num_free = Int(7)
            allocate = ref_count = lambda self, *_: Int(7)
            allocate_many = free_blocks = lambda self, *_: List()
            free = share = lambda self, *_: None
        """),
    "an array that lies": Attack("""
        import numpy
        class Array(numpy.ndarray):
            __eq__ = lambda self, other: True
            __bool__ = lambda self: True
        def array(*_): return numpy.zeros(2).view(Array)
        class BlockAllocator:
            def __init__(self, *_, **__): self.num_blocks = self.num_free = array()
            allocate = ref_count = allocate_many = free_blocks = free = share = array
        """),
    "pytest's own report class, patched": Attack("""
        try:
            from _pytest.reports import TestReport
            make = TestReport.from_item_and_call.__func__
            def passed(cls, item, call):
                report = make(cls, item, call)
                report.outcome, report.longrepr = "passed", None
                return report
            TestReport.from_item_and_call = classmethod(passed)
        except ImportError:
            pass
        """),
    "results written when the process ends": Attack("""
        import atexit
        atexit.register(lambda: open("results.txt", "w").write("passed"))
        """),
    "the package's own answer": Attack("from minipaged.block_allocator import BlockAllocator"),
    "the package's own answer, inherited": Attack("""
        import minipaged
        class BlockAllocator(minipaged.BlockAllocator): pass
        """),
    "the solution, read from the disk": Attack("""
        exec(compile(open("<root>/solutions/ch03_block_allocator.py").read(), "s", "exec"))
        """),
    "expected values, found in the callers' frames": Attack("""
        import sys
        class BlockAllocator:
            def __init__(self, *_, **__): pass
            def look(self, *_):
                frame = sys._getframe(1)
                while frame is not None:
                    if "expected" in frame.f_locals: return frame.f_locals["expected"]
                    frame = frame.f_back
            allocate = allocate_many = free_blocks = ref_count = look
            num_free = property(look)
        """),
    "a test that is changed through sys.modules": Attack("""
        import gc, sys, types
        for function in gc.get_objects():
            if isinstance(function, types.FunctionType) and function.__name__ == "pytest_pyfunc_call":
                function.__code__ = (lambda pyfuncitem: True).__code__
        """),
}
READS_DISK = "the solution, read from the disk"


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_grade(name: str, tmp_path: Path) -> None:
    if name == READS_DISK and LEVEL != "namespaces":
        pytest.skip("only namespaces hide files")
    file = FORGERIES[name].write(tmp_path, root=ROOT)
    shutil.copytree(tmp_path, tmp_path / "naive")
    assert naive_grade(tmp_path / "naive") == "passed", "the trick doesn't work even against a naive grader"
    expect_nothing(file)


KERNEL_FORGERIES = {
    "the package's own kernels": "from minipaged.kernels.paged.triton_decode import store_kv",
    "the kernels' PyTorch twins":
        "from minipaged.kernels.paged.torch_twins import store_kv_torch as store_kv",
    "the kernels of the solution, read from the disk": """
        from importlib.util import module_from_spec, spec_from_file_location
        spec = spec_from_file_location("solution", "<root>/solutions/ch11_triton_decode.py")
        solution = module_from_spec(spec)
        spec.loader.exec_module(solution)
        store_kv = solution.store_kv
        """,
}
NAIVE_KERNELS = """
import runpy, sys
import minipaged.kernels.paged, torch
for file in sys.argv[1:]:
    k, cache = torch.ones(1, 1, 4), torch.zeros(1, 2, 1, 4)
    runpy.run_path(file)["store_kv"](k, k, cache, cache, torch.tensor([1]))
    assert cache[0, 1].eq(1).all() and cache.sum() == 4
    print("passed")
"""


@pytest.fixture(scope="module")
def kernel_forgeries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Their files, each of which a naive grader has found right."""
    stub = (ROOT / "exercises" / ".originals" / f"{CH11.file_stem}.py").read_text(encoding="utf-8")
    files = {name: tmp_path_factory.mktemp("kernels") / f"{CH11.file_stem}.py" for name in KERNEL_FORGERIES}
    for name, file in files.items():
        code = textwrap.dedent(KERNEL_FORGERIES[name]).replace("<root>", str(ROOT))
        file.write_text(f"{stub}\n\n{code}", encoding="utf-8")
    command = [sys.executable, "-c", NAIVE_KERNELS, *map(str, files.values())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["passed"] * len(files), done.stderr
    return files


@pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton, which Linux has")
@pytest.mark.parametrize("name", KERNEL_FORGERIES)
def test_kernels_of_others(name: str, kernel_forgeries: dict[str, Path]) -> None:
    if "disk" in name and LEVEL != "namespaces":
        pytest.skip("only namespaces hide files")
    expect_nothing(kernel_forgeries[name], 5, "ch11")


def test_sys_exit_is_an_error_that_the_grade_names(tmp_path: Path) -> None:
    """pytest survives it, but a script that only asserts does not: its exit code is 0."""
    file = Attack("import sys; sys.exit(0)").write(tmp_path)
    script = f"from {CH03.file_stem} import BlockAllocator; assert BlockAllocator(4).num_free == 4"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == 0
    assert "SystemExit" in str(expect_nothing(file)[0])


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to(ROOT / "solutions" / FILE)
    assert naive_grade(tmp_path) == "passed"
    grade = grade_submission(ROOT, tmp_path, [CH03], seed=1)
    assert grade["score"] == 0 and "is a link, not a file" in grade["tests"][0]["output"]


def test_an_endless_loop_ends_in_time(tmp_path: Path) -> None:
    file = Attack("BlockAllocator.allocate_many = lambda *_: [1 for _ in iter(int, 1)]").write(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "naive")
    (tmp_path / "naive" / FILE).write_text(
        (tmp_path / FILE).read_text() + "\nBlockAllocator.__init__ = lambda *_: None"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        naive_grade(tmp_path / "naive", timeout_s=3)
    file.write_text(file.read_text() + "\nBlockAllocator.__init__ = lambda *_, **__: None")
    results = expect_nothing(file)
    assert "did not answer within" in results[0].message and "endless loop" in results[0].message
    assert len({result.message for result in results}) == 1, "one endless loop is enough for a task"


def test_a_file_that_imports_for_a_minute(tmp_path: Path) -> None:
    results = expect_nothing(Attack("import time; time.sleep(60)").write(tmp_path))
    assert "did not answer within 3 s" in results[0].mismatch["got"]


BOMBS = {
    "forks": """
        import os, time
        for _ in range(300):
            try:
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(6)
                    os._exit(0)
            except OSError:
                break
        """,
    "threads": """
        import threading, time
        for _ in range(100):
            try: threading.Thread(target=time.sleep, args=(6,)).start()
            except RuntimeError: break
        """,
}


@pytest.mark.parametrize("name", BOMBS)
def test_processes_and_threads_are_not_left(name: str, tmp_path: Path) -> None:
    file = Attack(BOMBS[name]).write(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "naive")
    naive = subprocess.Popen([sys.executable, FILE], cwd=tmp_path / "naive", start_new_session=True,
                             env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        most = 0
        for _ in range(100):
            running = [
                one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == str(tmp_path / "naive")
            ]
            most = max(most, sum(one.num_threads() for one in running))
            if most > 80:
                break
            time.sleep(0.05)
        assert most > 80, "the bomb doesn't go off"
    finally:
        for one in psutil.process_iter(["cwd"]):
            if one.info["cwd"] == str(tmp_path / "naive"):
                one.kill()
        naive.wait()
    expect_nothing(file)


def test_memory_has_an_end(tmp_path: Path) -> None:
    """6 GiB that are never touched: address space, no memory."""
    code = "import mmap\ntaken = mmap.mmap(-1, 6 << 30)\nprint('taken')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"taken\n"
    assert "Cannot allocate memory" in str(expect_nothing(Attack(code).write(tmp_path))[0])


def test_output_has_an_end(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(<times>):\n    os.write(1, b'x' * (1 << 20))"
    naive = subprocess.run([sys.executable, "-c", code.replace("<times>", "40")], capture_output=True)
    assert len(naive.stdout) == 40 << 20
    result = expect_nothing(Attack(code).write(tmp_path, times=1024))[0]
    assert "printed more than 16 MiB" in str(result) and len(str(result)) < 10_000


@needs_namespaces
def test_the_parent_lives(tmp_path: Path) -> None:
    code = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"
    wrapped = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    assert subprocess.run([sys.executable, "-c", wrapped]).returncode == -signal.SIGKILL
    expect_nothing(Attack(code).write(tmp_path))


@needs_namespaces
def test_nothing_is_written_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    code = "open('<outside>/mark', 'w').write('I was here')"
    subprocess.run([sys.executable, "-c", code.replace("<outside>", str(outside))])
    assert (outside / "mark").exists()
    (outside / "mark").unlink()
    expect_nothing(Attack(code).write(tmp_path, outside=outside))
    assert list(outside.iterdir()) == []
    everywhere = """
        import os, sys
        for top, folders, files in os.walk("/"):
            if top.count("/") > 3 or top.startswith(("/proc", "/tmp", "/dev")):
                folders.clear()
                continue
            for path in [os.path.join(top, "mark"), *(os.path.join(top, file) for file in files[:1])]:
                try:
                    open(path, "a").write("#")
                    os._exit(0)
                except OSError:
                    pass
        """
    results = expect_nothing(Attack(everywhere).write(tmp_path))
    assert {result.outcome for result in results} == {"missing"}, "it could write somewhere, or was stopped"


@needs_namespaces
def test_the_network_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        code = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 2)"
        subprocess.run([sys.executable, "-c", code])
        listener.accept()[0].close()
        expect_nothing(Attack(code).write(tmp_path))
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_answers_to_the_public_examples_are_worth_nothing(tmp_path: Path) -> None:
    """A table of all that the self-check asks passes it, for it asks the same every time. A grade doesn't."""
    solution = (ROOT / "solutions" / f"{CH06.file_stem}.py").read_text(encoding="utf-8")
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

    file.write_text(solution + record, encoding="utf-8")
    assert self_check() == {"passed"}
    known = {tuple(args): value for args, value in map(json.loads, table.read_text().splitlines())}
    stub = (ROOT / "exercises" / ".originals" / file.name).read_text(encoding="utf-8")
    file.write_text(f"{stub}\n\nblocks_saved = lambda *args: {known}.get(args, 0)\n", encoding="utf-8")
    assert self_check() == {"passed"}
    grade = grade_submission(ROOT, tmp_path, [CH06], seed=20261130)
    assert grade["score"] == 0 and "blocks_saved(" in grade["tests"][2]["output"]


NO_ANSWERS = (
    b"not json",
    b"[]",
    b"[[],[],{}]",
    b'[[],[],{"tuple":["value"]}]',
    b'[[],[],{"tuple":["value",{"shared":7}]}]',
    b'[[[5,"list",[],null]],[],null]',
    b'[[[-5,"set",[],null]],[],null]',
    b'[[[-5,"dict",[[{"shared":-5},1]],null]],[],null]',
    b'[[[-5,"tensor",["float32",[-1],""],["float32",[-1],[1]]]],[],null]',
    b'[[[-5,"tensor",["float32",[4],""],["float32",[99999999999],[1]]]],[],null]',
    b'[[],[],{"tuple":["value",{"named":[["__class__"],[1]]}]}]',
    b'[[],[],{"tuple":["value",{"dtype":"load"}]}]',
    b"[" * 30_000,
)


@pytest.mark.parametrize("message", NO_ANSWERS, ids=range(len(NO_ANSWERS)))
def test_a_message_that_makes_no_sense_is_the_last_one(message: bytes, tmp_path: Path) -> None:
    (tmp_path / "message").write_bytes(message + b"\n")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    talker = subprocess.Popen(
        ["sh", "-c", "cat message; exec sleep 60"], cwd=tmp_path, start_new_session=True, **pipes
    )
    with pytest.raises(SubmissionGone, match="its answer made no sense"):
        Connection(talker, Limits()).ask("settle")
    assert talker.returncode is not None


@pytest.mark.parametrize("message", [NO_ANSWERS[0], b'[[],[],{"tuple":["value",true]}]'])
def test_a_message_that_is_made_up_gives_nothing(message: bytes, tmp_path: Path) -> None:
    """The submission finds the pipe, and writes an answer of its own into it."""
    code = f"""
        import os
        for fd in range(3, 30):
            try:
                os.write(fd, {message!r} + b"\\n")
            except OSError:
                pass
        """
    expect_nothing(Attack(code).write(tmp_path))
