"""The grader's side: a `layer` for the tests of a chapter that lives in another process.

The tests ask it for names, construct, call, and read attributes, as they would with a layer beside them; each
of those is one message and its answer. It also owns the clock: a task may use so many seconds of the
submission's own time, and what the tests themselves compute doesn't count. The tests decide what is right.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from minipaged import errors
from minipaged.course.expectation import Mismatch
from minipaged.course.grading.limits import Limits
from minipaged.course.grading.package_view import BY_TASK
from minipaged.course.grading.wire import IN_ANSWERS, MAX_BYTES, Wire, WireError
from minipaged.course.layer import MissingName
from minipaged.course.outline import Chapter

MAX_SHOWN = 4000  # bytes kept of what the submission printed, the last ones
ENDED = "its process ended: it called exit, crashed, or went over a limit"
LATE = "{:.3g} s of processor time, or asleep, were not enough: an endless loop?"
START_S = 600.0  # by the clock, for Python to start and to import torch; a machine may be busy
LOOK_S = 0.25  # so often it is found out what the submission has used
MAX_ASKS = 50_000  # in a task; right answers need at most 16,310 in a chapter
MAX_DEATHS = 3  # then the rest of the chapter is not tried


class SubmissionGone(BaseException):
    """The submission can't answer any more: it took too long, ended, or said something that is not an answer.

    outcome: "timeout" or "error". Not an `Exception`, so that Hypothesis does not try for a shorter example:
    every try would take as long.
    """

    def __init__(self, reason: str, outcome: str = "error") -> None:
        super().__init__(reason)
        self.outcome = outcome


class NoSandbox(BaseException):
    """The grader's own failure."""

    outcome = "broken"


class StillGone(Exception):
    """`SubmissionGone` once more, for a later test of the task."""

    def __init__(self, reason: str, outcome: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Warden:
    """The process that has started this one, and starts, watches and ends sandboxes for it."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))

    def start(self, task: int) -> tuple[list[int], Limits]:
        """A new sandbox with the submission, for a task: its stdin, stdout and stderr, and its limits."""
        answer, pipes = self._ask({"ask": "start", "task": task}, 3)
        return pipes, Limits(**answer["limits"])

    def look(self) -> dict[str, Any]:
        """What the submission has used: "cpu_s", "by_clock"; "ended", why it was ended, if it was."""
        return self._ask({"ask": "look"})[0]

    def stop(self) -> None:
        """End the sandbox."""
        self._ask({"ask": "stop"})

    def _ask(self, request: dict[str, Any], num_fds: int = 0) -> tuple[dict[str, Any], list[int]]:
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        data, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, num_fds)
        if not data:
            raise NoSandbox("the process that started this one has gone")
        return json.loads(data), list(fds)


class Remote:
    """Something that lives in the sandbox. Equal to itself alone."""

    __slots__ = ("__weakref__", "_connection", "_handle", "_kind")

    def __init__(self, connection: Connection, handle: int, kind: str) -> None:
        self._connection, self._handle, self._kind = connection, handle, kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks an object
            raise AttributeError(name)
        if (self._kind, name) in self._connection.methods:
            return RemoteMethod(self, name)
        return self._connection.ask("get", of=self, name=name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._connection.ask("call", of=self, args=args, kwargs=tuple(kwargs.items()))

    def __bool__(self) -> bool:
        return True  # an object, whatever it says of itself

    def __len__(self) -> int:
        return RemoteMethod(self, "__len__")()

    def __getitem__(self, key: Any) -> Any:
        return RemoteMethod(self, "__getitem__")(key)

    __iter__ = None  # or it would be asked for one item after the other, for as long as it answers

    def __repr__(self) -> str:
        return f"<an object of class {self._kind.split('/')[0]}>"

    def __del__(self) -> None:
        self._connection.unused.append(self._handle)


class RemoteMethod:
    """A method of something in the sandbox: looked up there, and called, with one message."""

    def __init__(self, of: Remote, name: str) -> None:
        self.of, self.name = of, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        connection = self.of._connection
        return connection.ask("invoke", of=self.of, name=self.name, args=args, kwargs=tuple(kwargs.items()))


class Connection(Wire):
    """A running sandbox, and the wire to it."""

    def __init__(self, pipes: list[int], warden: Warden, limits: Limits) -> None:
        super().__init__(step=1, takes=IN_ANSWERS)
        self.stdin, self.stdout, self.stderr = pipes
        self.warden, self.limits, self.answer_s = warden, limits, limits.answer_s
        self.unused: list[int] = []  # handles of `Remote`s that are gone
        self.methods: set[tuple[str, str]] = set()  # class and name of what is known to be a method
        self._remotes: WeakValueDictionary[int, Remote] = WeakValueDictionary()
        self._received, self._printed, self._num_printed = bytearray(), b"", 0
        self.gone: SubmissionGone | None = None
        self._selector = selectors.DefaultSelector()
        os.set_blocking(self.stdin, False)
        for pipe in (self.stdout, self.stderr):
            self._selector.register(pipe, selectors.EVENT_READ)
        self._looked_at = self._cpu_s = 0.0
        self.begin_task()

    def begin_task(self) -> None:
        """From now on, what the submission uses counts for another task."""
        self._look()
        self._num_asks, self._task_wall_s, self._task_clock_s = 0, 0.0, 0.0
        self._task_cpu_s = self._cpu_s

    def encode_object(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return {"object": [value._handle, value._kind]}
        if isinstance(value, RemoteMethod):
            return {"method": [self.encode(value.of), value.name]}
        if isinstance(value, Iterator):
            return {"iterator": [self.encode(item) for item in value]}
        raise TypeError(f"a test can't pass {value!r} to a submission in another process")

    def decode_object(self, handle: Any, kind: Any) -> Any:
        if type(handle) is not int or type(kind) is not str:
            raise WireError("no handle")
        remote = self._remotes.get(handle)
        if remote is None:
            kind = re.sub(r"[^\w/]", "?", kind[:100])
            remote = self._remotes[handle] = Remote(self, handle, kind)
        return remote

    def ask(self, kind: str, **request: Any) -> Any:
        """Send a request and wait for its answer. Raises the submission's exception; `SubmissionGone`."""
        if self.gone is not None:
            raise self.gone
        unused, self.unused = self.unused, []
        let_go = tuple(handle for handle in unused if handle not in self._remotes)
        message = self.pack((*request.items(), ("kind", kind), ("let_go", let_go)), drop_unused=True)
        try:
            self._num_asks += 1
            if self._num_asks > MAX_ASKS:
                raise SubmissionGone(f"after {MAX_ASKS:,} answers, the tests still had questions")
            return self._take_in(self._exchange(message), request)
        except SubmissionGone as gone:
            self.gone = gone
            self.warden.stop()
            raise

    def prepare(self) -> None:
        """Wait until Python has started and has imported what is not the submission's, torch for one."""
        self.answer_s = START_S
        try:
            self.ask("ready")
        except SubmissionGone as gone:  # nothing of the submission has run yet
            raise NoSandbox(f"the sandbox does not start: {gone}\n{self.take_printed()[-600:]}") from None
        self.answer_s = self.limits.answer_s
        self.begin_task()

    def close(self) -> None:
        """Close this end's pipes."""
        self._selector.close()
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.close(pipe)

    def _take_in(self, line: bytes, request: dict[str, Any]) -> Any:
        try:
            kind, content = self.unpack(line)
            if kind == "value":
                return content
            if kind == "method" and type(request.get("of")) is Remote:
                self.methods.add((request["of"]._kind, request["name"]))
                return RemoteMethod(request["of"], request["name"])
            message, place, name = (str(content[part]) for part in ("message", "place", "name"))
            error = _rebuild(message, place, name, content["known"])
        except Exception as problem:  # whatever can be wrong with a forged answer
            raise SubmissionGone(f"its answer made no sense: {problem}") from None
        raise error

    def take_printed(self) -> str:
        """The end of what was printed since the last time."""
        printed, self._printed = self._printed, b""
        return printed.decode(errors="replace")

    def _exchange(self, message: bytes) -> bytes:
        """Write a message and read a line, within the time left; what is printed meanwhile is kept short."""
        begin = time.monotonic()
        if begin - self._looked_at > LOOK_S:
            self._look()
        cpu_s, clock_s = self._cpu_s, self._task_clock_s
        try:
            left, line = self._write(memoryview(message)), b""
            while left or not line:
                ready = self._selector.select(LOOK_S)
                if time.monotonic() - self._looked_at > LOOK_S:
                    self._check_time(begin, cpu_s, clock_s)
                for key, _ in ready:
                    if key.fd == self.stdin:
                        left = self._write(left)
                    elif key.fd == self.stderr:
                        self._take_in_printed(os.read(key.fd, 1 << 16))
                    else:
                        line = self._take_in_answer(os.read(key.fd, 1 << 20)) or line
            return line
        except BrokenPipeError:
            raise self._has_ended() from None
        finally:
            self._task_wall_s += time.monotonic() - begin

    def _check_time(self, begin: float, cpu_s: float, clock_s: float) -> None:
        """cpu_s, clock_s: what was used when the answer began. A process that wants to run and may not, since
        others do, uses nothing; one that sleeps could only wait for itself, so that counts like running, and
        so does all time in which it has processes of its own."""
        since = max(begin, self._looked_at)
        if self._look():
            self._task_clock_s += time.monotonic() - since
        answer = self._cpu_s - cpu_s + self._task_clock_s - clock_s
        task = self._cpu_s - self._task_cpu_s + self._task_clock_s
        if answer > self.answer_s:
            raise SubmissionGone(f"for one answer, {LATE.format(self.answer_s)}", "timeout")
        if self.answer_s == START_S:  # nothing of the submission runs yet
            return
        if task > self.limits.task_s:
            raise SubmissionGone(f"for the task, {LATE.format(self.limits.task_s)}", "timeout")
        wall_s, most = time.monotonic() - begin, self.limits.wall_factor
        if wall_s > self.answer_s * most or self._task_wall_s + wall_s > self.limits.task_s * most:
            raise SubmissionGone(
                f"it took {wall_s:.0f} s for an answer, and {self._task_wall_s + wall_s:.0f} s for the task, "
                f"by the clock",
                "timeout",
            )

    def _look(self) -> bool:
        """Find out what was used; returns whether the time counts by the clock."""
        usage = self.warden.look()
        self._looked_at, self._cpu_s = time.monotonic(), usage["cpu_s"]
        if usage["ended"]:
            raise SubmissionGone(usage["ended"])
        return bool(usage["by_clock"])

    def _has_ended(self) -> SubmissionGone:
        os.set_blocking(self.stderr, False)
        with suppress(BlockingIOError):
            while data := os.read(self.stderr, 1 << 16):  # its last words, which may say why
                self._take_in_printed(data)
        return SubmissionGone(self.warden.look()["ended"] or ENDED)

    def _write(self, data: memoryview) -> memoryview:
        """Write what the pipe takes; returns what is left, and waits for room only while something is."""
        is_waiting = self.stdin in self._selector.get_map()
        with suppress(BlockingIOError):
            data = data[os.write(self.stdin, data) :]
        if data and not is_waiting:
            self._selector.register(self.stdin, selectors.EVENT_WRITE)
        elif not data and is_waiting:
            self._selector.unregister(self.stdin)
        return data

    def _take_in_answer(self, data: bytes) -> bytes:
        if not data:
            raise self._has_ended()
        self._received += data
        if len(self._received) > MAX_BYTES:
            raise SubmissionGone(f"its answer is longer than {MAX_BYTES >> 20} MiB")
        if not data.endswith(b"\n"):
            return b""
        line, self._received = bytes(self._received), bytearray()
        return line

    def _take_in_printed(self, data: bytes) -> None:
        if not data:
            self._selector.unregister(self.stderr)
        self._printed = (self._printed + data)[-MAX_SHOWN:]
        self._num_printed += len(data)
        if self._num_printed > self.limits.printed_mib << 20:
            raise SubmissionGone(f"it printed more than {self.limits.printed_mib} MiB")


class RemoteGiven:
    """The rest of the engine, in the sandbox. A module that is missing there is the grader's failure."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        with self._is_there():
            return getattr(self._remote, name)

    def __call__(self, module: str) -> Any:
        with self._is_there():
            return self._remote(module)

    @contextmanager
    def _is_there(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise NoSandbox(f"the sandbox lacks a part of the engine: {error}") from None


class RemoteLayer:
    """The names of a submission's file as attributes, and `given`, the rest of the engine; see `Layer`.

    >>> layer = RemoteLayer(chapter, Warden(fd))
    >>> layer.begin(task=1)
    >>> layer.BlockAllocator(4).num_free
    """

    def __init__(self, chapter: Chapter, warden: Warden) -> None:
        self._chapter, self._warden = chapter, warden
        self._task, self._deaths = 0, list[SubmissionGone]()
        self._connection: Connection | None = None
        self._definitions: dict[str, Remote] = {}  # functions and classes of the file, asked for once
        self._is_hopeless: Exception | None = None  # the file can't be imported, or too much has gone wrong

    def begin(self, task: int) -> None:
        """Get ready for a test of a task: in the sandbox that runs, or in a new one.

        `Mismatch` if the file can't be imported; `StillGone` if an earlier test of the task has ended it.
        """
        if self._is_hopeless is not None:
            raise self._is_hopeless
        gone = self._connection.gone if self._connection else None
        if gone is not None and task == self._task:
            raise StillGone(str(gone), gone.outcome)
        is_new = task != self._task
        self._task = task
        if self._connection is None or gone is not None or (is_new and self._chapter.key in BY_TASK):
            self.close()
            self._start()
        elif is_new:
            self._connection.begin_task()
        assert self._connection is not None
        self._connection.forget_all()  # of the tests before; a failed one is kept by its traceback

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._definitions:
            return self._definitions[name]
        try:
            value = getattr(self._module, name)
        except AttributeError:
            wanted, came = f"a definition of {name}", "none; it may have been renamed"
            raise MissingName(f"{self._chapter.file_stem}.py: {name}", wanted, came) from None
        if isinstance(value, Remote):
            self._definitions[name] = value
        return value

    def settle(self) -> None:
        """Tell the submission, and hear from it, which lists, dictionaries and tensors have changed."""
        assert self._connection is not None
        self._connection.ask("settle")

    def take_printed(self) -> str:
        """What the submission has printed since the last time, or the end of it."""
        return self._connection.take_printed() if self._connection else ""

    def close(self) -> None:
        """End the sandbox."""
        if self._connection is not None:
            self._warden.stop()
            self._connection.close()
            self._definitions.clear()
            self._deaths += [self._connection.gone] if self._connection.gone else []
            self._connection = None

    def _start(self) -> None:
        if len(self._deaths) >= MAX_DEATHS:
            outcomes = {gone.outcome for gone in self._deaths}
            reason = f"not tried: it has ended, or taken too long, {MAX_DEATHS} times"
            self._is_hopeless = StillGone(reason, "timeout" if "timeout" in outcomes else "error")
            raise self._is_hopeless
        pipes, limits = self._warden.start(self._task)
        self._connection = Connection(pipes, self._warden, limits)
        self._connection.prepare()
        what = f"import {self._chapter.file_stem}.py"
        try:
            self._module, given = self._connection.ask("load")
            self.given = RemoteGiven(given)
        except SubmissionGone as gone:
            self._is_hopeless = Mismatch(what, "a file that can be imported", str(gone))
            if gone.outcome == "timeout":
                self._is_hopeless = StillGone(f"{what}: {gone}", gone.outcome)
        except Exception as error:
            came = f"{type(error).__name__}: {error}"
            self._is_hopeless = Mismatch(what, "a file that can be imported", came)
        if self._is_hopeless is not None:
            raise self._is_hopeless from None


def _rebuild(message: str, place: str, name: str, known: list[str]) -> Exception:
    """The submission's exception, as one of Python's or the package's that has the same name and message.

    known: the names of those of its classes that are Python's or the package's. One of the submission's own
    is made here, and is caught as the first of these.
    """
    kinds = {**vars(builtins), **vars(errors)}
    kind: Any = RuntimeError  # what SystemExit becomes, for one
    for one in known:
        found = kinds.get(str(one))
        if isinstance(found, type) and issubclass(found, Exception) and not str(one).endswith("Group"):
            kind = found
            break
    error = _error_class(re.sub(r"\W", "?", name[:100]), kind)()
    error.message, error.place = message, place
    return error


@lru_cache(256)
def _error_class(name: str, kind: type[Exception]) -> Any:
    """A class of that name; always the same one, by which Hypothesis knows an error again."""

    def show(self: Any) -> str:
        return str(self.message)

    return type(name, (kind,), {"__init__": lambda self: None, "__str__": show, "message": "", "place": ""})
