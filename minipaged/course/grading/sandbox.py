"""What the operating system keeps a submission from.

On Linux with namespaces (as root, or where ordinary users may make them) the submission gets a system of its
own: a root folder that holds Python, the package and its one file, all read-only, and an empty /tmp; its own
process numbers, so that it sees no other process and takes all of its own with it when it ends; no network,
not even loopback; a user without rights. Elsewhere only the limits of setrlimit hold, and `isolation()` says
so. The tools are those of util-linux: unshare, mount, chroot, setpriv.

There is no filter of system calls, and no limit that several processes share (cgroups). A container or a
virtual machine around the grader adds those.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

MAX_PROCESSES = 64  # threads count, too
FIRST_UID = 2_000_000  # far above any real user's; each grader has its own
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/sys/devices/system/cpu")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# $1 is an empty folder, $2 the number of paths to show in it, then come those paths, and then a command.
_BUILD_ROOT = """
set -e
root=$1; shift; count=$1; shift
mount -t tmpfs -o size=16m,mode=755 tmpfs "$root"
mkdir -p "$root/proc" "$root/tmp"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o size=64m,mode=1777,nosuid,nodev tmpfs "$root/tmp"
while [ "$count" -gt 0 ]; do
    path=$1; shift; count=$((count - 1))
    if [ -L "$path" ]; then cp -P "$path" "$root$path"; continue; fi
    mkdir -p "$(dirname "$root$path")"
    if [ -d "$path" ]; then mkdir -p "$root$path"; else : > "$root$path"; fi
    mount --rbind "$path" "$root$path"
    case $path in /dev/*) ;; *) mount -o remount,bind,ro,nosuid,nodev "$root$path" ;; esac
done
[ ! -d "$root$HIDDEN" ] || mount -t tmpfs -o size=1m,mode=755 tmpfs "$root$HIDDEN"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Limits:
    """What a submission may use. Seconds for which the grader waits: for one answer, and for all answers of a
    task; cpu_s: CPU seconds of a process. Then MiB: address space of a process, a file, all that is printed.
    """

    answer_s: float = 10.0
    task_s: float = 60.0
    cpu_s: int = 120
    memory_mib: int = 4096
    file_mib: int = 16
    printed_mib: int = 16


@dataclass(frozen=True)
class Isolation:
    """What holds on this machine. level: "namespaces", "user" (a user of its own) or "limits" alone."""

    level: str
    holds: tuple[str, ...]
    lacks: tuple[str, ...]

    def __str__(self) -> str:
        missing = f"; not here: {', '.join(self.lacks)}" if self.lacks else ""
        return f"{self.level}: {', '.join(self.holds)}{missing}"


_ALWAYS = ("a process of its own", "limits of time, output, CPU, files")
_LEVELS = (
    Isolation(
        "namespaces",
        (*_ALWAYS, "memory and processes", "files", "other processes", "network"),
        ("a filter of system calls", "one limit for the memory of all its processes"),
    ),
    Isolation(
        "user",
        (*_ALWAYS, "memory and processes", "others' files, for writing", "other processes"),
        ("files hidden from it", "network", "a filter of system calls"),
    ),
    Isolation(
        "limits",
        (*_ALWAYS, "memory and processes (Linux)"),
        ("files", "other processes", "network", "a filter of system calls"),
    ),
)


@cache
def isolation() -> Isolation:
    """The most that works here, found out by trying."""
    if sys.platform == "win32":
        raise ValueError("grading needs Linux or macOS (on Windows: WSL); `minipaged check` works everywhere")
    return next(level for level in _LEVELS if level.level == "limits" or _works(level.level))


def _works(level: str) -> bool:
    """Whether this very interpreter starts at a level, with its packages."""
    try:
        with TemporaryDirectory() as folder:
            probe = [sys.executable, "-I", "-c", "import json, numpy, sys; print(sys.base_prefix)"]
            command = _wrap(level, probe, [], Path(folder))
            done = subprocess.run(command, capture_output=True, timeout=30, env=_environment(), text=True)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout == f"{sys.base_prefix}\n"


def start(view: Path, file: Path, scratch: Path, limits: Limits) -> subprocess.Popen[bytes]:
    """Start a submission's file: requests on stdin, answers on stdout, what it prints on stderr.

    view: the folder with its copy of the package. scratch: a folder, in which it runs at the lower levels.
    """
    level = isolation().level
    root = scratch / "root"
    root.mkdir()
    script = view / "minipaged" / "course" / "grading" / "subject.py"
    command = [sys.executable, "-I", str(script), str(view), str(file), json.dumps(_rlimits(level, limits))]
    is_private = level == "namespaces"
    work = scratch / "work"
    work.mkdir()
    for folder in (view.parent, scratch, work):
        folder.chmod(0o755 if folder != work else 0o777)
    return subprocess.Popen(
        _wrap(level, command, [str(view), str(file)], root),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/" if is_private else work,
        env=_environment(),
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a submission with all that it has started, and close its pipes."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    while isolation().level != "namespaces" and _kill_orphans():
        pass
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def adopt_orphans() -> None:
    """Where there are no namespaces: processes whose parent has ended become this one's children (Linux), so
    that `stop` finds those that left their group."""
    if sys.platform == "linux" and isolation().level != "namespaces":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _kill_orphans() -> bool:
    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=5)
    return bool(children)


def _wrap(level: str, command: list[str], shown: list[str], root: Path) -> list[str]:
    """The command line that runs `command` at a level. shown: paths to be seen, beside the system's."""
    if level == "limits":
        return command
    is_root = os.geteuid() == 0
    drop = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
    if is_root:
        uid = str(FIRST_UID + os.getpid())
        drop += [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    if level == "user":
        return [*drop, *command] if is_root else ["false"]
    unshare = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
    unshare += [] if is_root else ["--user", "--map-root-user"]
    paths = [*SYSTEM, *_interpreter(), *DEVICES, *shown]
    paths = [path for path in dict.fromkeys(paths) if os.path.lexists(path)]
    return [*unshare, "sh", "-c", _BUILD_ROOT, "sh", str(root), str(len(paths)), *paths, *drop, *command]


def _interpreter() -> list[str]:
    """The folders that Python and its packages lie in, if not below /usr."""
    prefixes = [sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)]
    return [path for path in prefixes if not path.startswith("/usr/") and path not in ("/", "/usr")]


def _environment() -> dict[str, str]:
    from minipaged.course.grading.package_view import PACKAGE

    return ENVIRONMENT | {"HIDDEN": str(PACKAGE)}


def _rlimits(level: str, limits: Limits) -> dict[str, int]:
    """The limits by their names for setrlimit. Processes are counted per user, so where it has none of its
    own, those that the user runs already come on top."""
    running = 0
    if not (os.geteuid() == 0 and level != "limits"):
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                running += process.num_threads() if process.uids().real == os.getuid() else 0
    return {
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_AS": limits.memory_mib << 20,
        "RLIMIT_FSIZE": limits.file_mib << 20,
        "RLIMIT_NPROC": running + MAX_PROCESSES,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
