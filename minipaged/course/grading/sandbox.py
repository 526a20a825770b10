"""What the operating system keeps a program from: students' code, and the tests that judge it.

On Linux with namespaces (as root, or where ordinary users may make them) a program gets a system of its own:
a root folder that holds Python and one folder to read, all read-only, and an empty /tmp; its own process
numbers, so that it sees no other process and takes all of its own with it when it ends; no network, not even
loopback; a user without rights. The course, and what is graded, are covered wherever they lie. The tools are
those of util-linux: unshare, mount, chroot, setpriv. Elsewhere less holds, `Isolation` says what, and there
is a grade only for who asks for it. docs/instructors.md says why it is not bubblewrap or another program.

There is no filter of system calls. A container or a virtual machine around the grader adds one.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

PROBE_S = 300.0  # for Python to start; a machine may be very busy, and no answer is no answer
LAST_UID = 2**31  # users of sandboxes are the last 40 million before it, above all ranges in common use
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/sys/devices/system/cpu"),
    *(f"/usr{local}/{name}" for local in ("", "/local") for name in ("bin", "sbin", "lib", "lib64")),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")
# $BOX is the program's folder, and $PATHS has lines of two words: "show" or "hide", and a path. No path is an
# argument, since others can read those.
_BUILD_ROOT = """
set -e
root=$BOX/root
mount -t tmpfs -o size=16m,mode=755 tmpfs "$root"
mkdir -p "$root/proc" "$root/tmp" "$root/view"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o size=64m,mode=1777,nosuid,nodev tmpfs "$root/tmp"
mount --bind "$BOX/view" "$root/view"
mount -o remount,bind,ro,nosuid,nodev "$root/view"
while read -r what path; do
    if [ "$what" = hide ]; then mount -t tmpfs -o size=1m,mode=755 tmpfs "$root$path"; continue; fi
    if [ -L "$path" ]; then cp -P "$path" "$root$path"; continue; fi
    mkdir -p "$(dirname "$root$path")"
    if [ -d "$path" ]; then mkdir -p "$root$path"; else : > "$root$path"; fi
    mount --rbind "$path" "$root$path"
    case $path in /dev/*) ;; *) mount -o remount,bind,ro,nosuid,nodev "$root$path" ;; esac
done <<END
$PATHS
END
while read -r what path; do
    if [ "$what" = hide ]; then mount -o remount,bind,ro "$root$path"; fi
done <<END
$PATHS
END
mount -o remount,bind,ro "$root"
# No shared memory of the old kind, which outlives its owner. Where that can't be, it ends with the namespace.
for what in shmmni semmni msgmni; do (echo 0 > /proc/sys/kernel/$what) 2> /dev/null || true; done
unset BOX PATHS
exec chroot "$root" "$@"
"""
_BOOT = """
import sys
sys.path[0] = sys.argv[1]
__import__(sys.argv[2], fromlist=["main"]).main()
"""
_PROBE = """
def main():
    import json, numpy, os, sys
    seen = []
    for path in json.loads(sys.stdin.readline())["hidden"]:
        try:
            seen += [os.path.join(path, name) for name in os.listdir(path)]
        except OSError:
            pass
    print(json.dumps([sys.base_prefix, os.geteuid(), seen]))
"""


@dataclass(frozen=True)
class Isolation:
    """What holds on this machine. level: "namespaces", "user" (a user of its own) or "limits" alone. hidden:
    folders that a program must not see, where files are hidden at all."""

    level: str
    holds: tuple[str, ...]
    lacks: tuple[str, ...]
    hidden: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return f"{self.level}: {', '.join(self.holds)}; not here: {', '.join(self.lacks)}"


_ALWAYS = ("a process of its own", "limits of time, output, memory, processes, files")
_LEVELS = {
    "namespaces": (
        (*_ALWAYS, "files hidden", "other processes hidden", "no network"),
        ("a filter of system calls",),
    ),
    "user": (
        (*_ALWAYS, "a user of its own", "nothing left of it"),
        ("files hidden", "other processes hidden", "no network", "a filter of system calls"),
    ),
    "limits": (_ALWAYS, ("files, processes or network kept from it", "a filter of system calls")),
}


def find_isolation(
    hidden: Iterable[Path] = (), allow_weak: bool = False, levels: Iterable[str] = tuple(_LEVELS)
) -> Isolation:
    """The most that works here, found out by trying, once: what begins with it goes on with it.

    hidden: folders that must not be seen. allow_weak: take less than namespaces. levels: those to try.

    Raises ValueError where a grade could be bought: below namespaces unless allowed, and always where
    students' code would run as root; RuntimeError if there was no answer in time.
    """
    if sys.platform == "win32":
        raise ValueError("grading needs Linux or macOS (on Windows: WSL); `minipaged check` works everywhere")
    folders = tuple(dict.fromkeys(path.resolve() for path in hidden))
    reasons, found = [], None
    for level in levels:
        one = Isolation(level, *_LEVELS[level], folders)
        reason = _why_not(one)
        if not reason:
            found = one
            break
        reasons.append(f"{level}: {reason}")
    tried = "".join(f"\n  {reason}" for reason in reasons)
    if found is None:
        raise ValueError(f"no grade: there is no way here to run students' code safely.{tried}")
    if found.level != "namespaces" and not allow_weak:
        raise ValueError(
            f"no grade: a submission can't be kept from files and processes here.{tried}\n"
            "docs/instructors.md says what to do; --allow-weak-isolation grades with what there is:\n"
            f"  {found}"
        )
    return found


def _why_not(isolation: Isolation) -> str:
    """Why this very interpreter doesn't start at a level, with its packages; empty if it does."""
    if isolation.level == "limits":
        return "students' code would run as root" if os.geteuid() == 0 else ""
    if isolation.level == "user" and os.geteuid() != 0:
        return "only root can give a submission a user of its own"
    with tempfile.TemporaryDirectory(prefix="minipaged-") as folder:
        os.chmod(folder, 0o711)
        box = Sandbox(isolation, Path(folder))
        (box.view / "probe.py").write_text(_PROBE)
        try:
            process = box.start("probe", {"hidden": [str(path) for path in isolation.hidden]})
            out, err = process.communicate(timeout=PROBE_S)
        except OSError as error:
            return str(error)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{isolation.level}: Python did not start within {PROBE_S:g} s") from None
        finally:
            box.stop()
    if process.returncode != 0:
        return (err.decode(errors="replace").strip().splitlines() or ["it ended at once"])[-1]
    prefix, uid, seen = json.loads(out)
    others = [path for path in seen if not any(Path(shown).is_relative_to(path) for shown in _python())]
    if others and isolation.level == "namespaces":
        return f"{others[0]} can't be hidden"
    if prefix != sys.base_prefix:
        return f"another user can't read the Python in {sys.base_prefix}"
    return "" if uid == box.inner_uid else f"it ran as user {uid}, not as {box.inner_uid}"


@dataclass(frozen=True)
class Usage:
    """What a sandbox has used: seconds of processors, bytes of memory at the moment; and whether its time now
    counts by the clock. It does if nothing in it wants to run, and if it has made processes, since those can
    end without anybody's knowing what they had used."""

    cpu_s: float
    memory: int
    by_clock: bool


class Sandbox:
    """A folder, a user and a process for one program.

    >>> box = Sandbox(isolation, scratch)
    >>> (box.view / "hello.py").write_text("def main(): print('hello')")
    >>> box.start("hello", {}).stdout.readline()
    >>> box.stop()
    """

    def __init__(self, isolation: Isolation, scratch: Path) -> None:
        self.isolation = isolation
        self.uid = _fresh_uid() if os.geteuid() == 0 else os.geteuid()
        # In a namespace of an ordinary user's, that user is called root, and has root's rights to nothing.
        self.inner_uid = 0 if isolation.level == "namespaces" and os.geteuid() != 0 else self.uid
        self.folder = Path(tempfile.mkdtemp(prefix="box-", dir=scratch))
        self.view, work = self.folder / "view", self.folder / "work"
        for folder in (self.view, work, self.folder / "root"):
            folder.mkdir(mode=0o755)
        if os.geteuid() == 0:
            os.chown(self.folder, self.uid, self.uid)
            os.chown(work, self.uid, self.uid)
        self.process: subprocess.Popen[bytes] | None = None
        self._cpu_s = 0.0

    def start(
        self, module: str, order: dict[str, Any], pass_fds: Sequence[int] = (), log: Any = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        """Run `main` of a module in `view`. Its first line on stdin is `order`, as JSON.

        log: where stdout and stderr go, if not to pipes.
        """
        is_private = self.isolation.level == "namespaces"
        command = [sys.executable, "-s", "-c", _BOOT, "/view" if is_private else "../view", module]
        paths = {"BOX": str(self.folder), "PATHS": _paths(self.isolation.hidden)} if is_private else {}
        with _starting:
            self.process = subprocess.Popen(
                [*self._prefix(), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=pass_fds,
                cwd="/" if is_private else self.folder / "work",
                env=ENVIRONMENT | paths,
            )
            _started.add(self.process.pid)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and whoever reads from it will see
            os.write(self.process.stdin.fileno(), json.dumps(order).encode() + b"\n")
        return self.process

    def look(self) -> Usage:
        """What it uses."""
        cpu_s, memory, statuses = 0.0, 0, set[str]()
        processes = self._processes()
        for process in processes:
            with suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                cpu_s += times.user + times.system
                cpu_s += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
                memory += process.memory_info().rss
                statuses.add(process.status())
        self._cpu_s = max(self._cpu_s, cpu_s)
        busy = {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP, psutil.STATUS_WAKING}
        has_children = len(processes) > (2 if self.isolation.level == "namespaces" else 1)  # unshare is one
        return Usage(self._cpu_s, memory, has_children or not statuses & busy)

    def stop(self) -> None:
        """End the program with all that it has started, close its pipes, and remove what it has left."""
        running, process, self.process = self._processes(), self.process, None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
            _wait_for_the_end(running)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            if self.isolation.level == "user":
                self._remove_all_of_its_user()
            elif self.isolation.level == "limits":
                _kill_orphans()
            _started.discard(process.pid)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _prefix(self) -> list[str]:
        """The start of the command line, which gives a program less than this process has."""
        level, is_root = self.isolation.level, os.geteuid() == 0
        if level == "limits":
            return []
        drop = ["setpriv", "--pdeathsig=KILL", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        drop += [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"] if is_root else []
        if level == "user":
            return drop
        # --pdeathsig and --kill-child: it also ends if this process is killed without a chance to end it.
        unshare = [
            "setpriv",
            "--pdeathsig=KILL",
            "unshare",
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
        ]
        unshare += [] if is_root else ["--user", "--map-root-user"]
        return [*unshare, "sh", "-c", _BUILD_ROOT, "sh", *drop]

    def _processes(self) -> list[psutil.Process]:
        if self.process is None:
            return []
        with suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            found = {own, *own.children(recursive=True)}
            if self.isolation.level == "user":
                found |= set(_processes_of(self.uid))
            return list(found)
        return []

    def _remove_all_of_its_user(self) -> None:
        while processes := _processes_of(self.uid):
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            _wait_for_the_end(processes)
        folders = [folder for folder in SHARED_FOLDERS if os.path.isdir(folder)]
        subprocess.run(["find", *folders, "-xdev", "-uid", str(self.uid), "-delete"], capture_output=True)
        for name, option in (("shm", "-m"), ("sem", "-s"), ("msg", "-q")):
            with suppress(OSError):
                head, *rows = Path("/proc/sysvipc", name).read_text().splitlines()
                for row in rows:
                    entry = dict(zip(head.split(), row.split(), strict=True))
                    if int(entry["uid"]) == self.uid:
                        subprocess.run(["ipcrm", option, row.split()[1]], capture_output=True)


# Where a submission has no user of its own, processes whose parent has ended become this one's children
# (Linux), so that those are found that left their group. Children that were started here are known.
_starting, _started = Lock(), set[int]()


def adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _kill_orphans() -> None:
    while True:
        with _starting:
            children = [child for child in psutil.Process().children() if child.pid not in _started]
        if not children:
            return
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1)


def _wait_for_the_end(processes: list[psutil.Process]) -> None:
    """What was killed ends soon; a zombie, whose parent has not asked what became of it, does not matter."""
    end = time.monotonic() + 10
    while any(map(_runs, processes)) and time.monotonic() < end:
        time.sleep(0.005)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _processes_of(uid: int) -> list[psutil.Process]:
    alive = [one for one in psutil.process_iter(["uids", "status"]) if one.info["uids"]]
    return [
        one for one in alive if one.info["uids"].real == uid and one.info["status"] != psutil.STATUS_ZOMBIE
    ]


def _fresh_uid() -> int:
    """A user id that is not in use. In a container that has a part of all users, one of its last ones."""
    ends = [0]
    with suppress(OSError):
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            first, _, count = map(int, line.split())
            ends.append(first + count)
    end = min(max(ends), LAST_UID)
    return end - 3 - secrets.randbelow(40_000_000 if end == LAST_UID else 5_000)


def _python() -> set[str]:
    """The folders that Python and its packages lie in."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    return {path for prefix in prefixes for path in (prefix, os.path.realpath(prefix))}


def _paths(hidden: Iterable[Path]) -> str:
    """What to show and to hide, a line each, and outer folders first. ValueError if it can't be done."""
    shown = {path for path in (*SYSTEM, *DEVICES, *_python()) if os.path.lexists(path)} - {"/", "/usr"}
    covered = set()
    for folder in hidden:
        if str(folder) in shown or any(Path(path).is_relative_to(folder) for path in (*SYSTEM, *DEVICES)):
            raise ValueError(f"{folder} can't be hidden from a submission: it holds the Python that runs it")
        if any(folder.is_relative_to(path) for path in shown):
            covered.add(str(folder))
    lines = sorted([(path, "show") for path in shown] + [(path, "hide") for path in covered])
    if any("\n" in path for path, _ in lines):
        raise ValueError("Python, or what is hidden below it, lies in a folder with a line break in its name")
    return "\n".join(f"{what} {path}" for path, what in lines)
