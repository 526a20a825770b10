"""The grader's side: a `layer` for the tests of a chapter that lives in another process.

The tests ask it for names, construct, call, and read attributes, as they would with a layer beside them; each
of those is one message and its answer. It also owns the clock: a task may take so many seconds of waiting for
the submission, and what the tests themselves compute doesn't count. The tests decide what is right.
"""

from __future__ import annotations

import builtins
import os
import selectors
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from minipaged import errors
from minipaged.course.expectation import Mismatch
from minipaged.course.grading import sandbox
from minipaged.course.grading.package_view import Functions, copy_package, hidden_functions
from minipaged.course.grading.sandbox import Limits
from minipaged.course.grading.wire import MAX_BYTES, Wire, WireError
from minipaged.course.layer import MissingName
from minipaged.course.outline import Chapter

MAX_SHOWN = 4000  # bytes kept of what the submission printed, the last ones
ENDED = "its process ended: it called exit, crashed, or went over a limit"
START_S = 120.0  # seconds for Python to start and to import torch; a machine may be busy
MAX_DEATHS = 3  # then the rest of the chapter is not tried


class SubmissionGone(BaseException):
    """The submission can't answer any more: it took too long, ended, or said something that is not an answer.

    Not an `Exception`, so that Hypothesis does not try for a shorter example: every try would take as long.
    """


class NoSandbox(RuntimeError):
    """The grader's own failure."""


class StillGone(Exception):
    """`SubmissionGone` once more, for a later test of the task."""


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

    def __init__(self, process: Any, limits: Limits) -> None:
        super().__init__(step=1)
        self.process, self.limits = process, limits
        self.answer_s, self.seconds_left = limits.answer_s, limits.task_s
        self.unused: list[int] = []  # handles of `Remote`s that are gone
        self.methods: set[tuple[str, str]] = set()  # class and name of what is known to be a method
        self._remotes: WeakValueDictionary[int, Remote] = WeakValueDictionary()
        self._received, self._printed, self._num_printed = bytearray(), b"", 0
        self.gone: SubmissionGone | None = None
        self._selector = selectors.DefaultSelector()
        os.set_blocking(process.stdin.fileno(), False)
        for pipe in (process.stdout, process.stderr):
            self._selector.register(pipe, selectors.EVENT_READ)

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
            remote = self._remotes[handle] = Remote(self, handle, kind[:100])
        return remote

    def ask(self, kind: str, **request: Any) -> Any:
        """Send a request and wait for its answer. Raises the submission's exception; `SubmissionGone`."""
        if self.gone is not None:
            raise self.gone
        unused, self.unused = self.unused, []
        let_go = tuple(handle for handle in unused if handle not in self._remotes)
        message = self.pack((*request.items(), ("kind", kind), ("let_go", let_go)), drop_unused=True)
        try:
            return self._take_in(self._exchange(message))
        except SubmissionGone as gone:
            self.gone = gone
            sandbox.stop(self.process)
            raise

    def prepare(self, module: str) -> None:
        """Import what is not the submission's, torch for one, without counting the seconds."""
        self.answer_s = self.seconds_left = START_S
        try:
            self.ask("prepare", name=module)
        except SubmissionGone as gone:  # nothing of the submission has run yet
            raise NoSandbox(f"the sandbox does not start: {gone}\n{self.take_printed()}") from None
        self.answer_s, self.seconds_left = self.limits.answer_s, self.limits.task_s

    def _take_in(self, line: bytes) -> Any:
        try:
            kind, content = self.unpack(line)
            if kind == "value":
                return content
            if kind == "method":
                of, name = content
                self.methods.add((of._kind, name))
                return RemoteMethod(of, name)
            error = _rebuild(
                str(content["message"]), str(content["place"]), [str(x) for x in content["classes"]]
            )
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
        limit = min(self.answer_s, self.seconds_left)
        try:
            left, line = self._write(memoryview(message)), b""
            while left or not line:
                ready = self._selector.select(max(0.0, begin + limit - time.monotonic()))
                if not ready:
                    raise SubmissionGone(f"it did not answer within {limit:.3g} s: an endless loop?")
                for key, _ in ready:
                    if key.fileobj is self.process.stdin:
                        left = self._write(left)
                    elif key.fileobj is self.process.stderr:
                        self._take_in_printed(os.read(key.fd, 1 << 16))
                    else:
                        line = self._take_in_answer(os.read(key.fd, 1 << 20)) or line
            return line
        except BrokenPipeError:
            raise SubmissionGone(ENDED) from None
        finally:
            self.seconds_left -= time.monotonic() - begin

    def _write(self, data: memoryview) -> memoryview:
        """Write what the pipe takes; returns what is left, and waits for room only while something is."""
        pipe = self.process.stdin
        is_waiting = pipe in (key.fileobj for key in self._selector.get_map().values())
        with suppress(BlockingIOError):
            data = data[os.write(pipe.fileno(), data) :]
        if data and not is_waiting:
            self._selector.register(pipe, selectors.EVENT_WRITE)
        elif not data and is_waiting:
            self._selector.unregister(pipe)
        return data

    def _take_in_answer(self, data: bytes) -> bytes:
        if not data:
            raise SubmissionGone(ENDED)
        self._received += data
        if len(self._received) > MAX_BYTES:
            raise SubmissionGone(f"its answer is longer than {MAX_BYTES >> 20} MiB")
        if not data.endswith(b"\n"):
            return b""
        line, self._received = bytes(self._received), bytearray()
        return line

    def _take_in_printed(self, data: bytes) -> None:
        if not data:
            self._selector.unregister(self.process.stderr)
        self._printed = (self._printed + data)[-MAX_SHOWN:]
        self._num_printed += len(data)
        if self._num_printed > self.limits.printed_mib << 20:
            raise SubmissionGone(f"it printed more than {self.limits.printed_mib} MiB")


class RemoteLayer:
    """The names of a submission's file as attributes, and `given`, the rest of the engine; see `Layer`.

    >>> layer = RemoteLayer(root, chapter, Path("exercises/ch03_block_allocator.py"), Limits())
    >>> layer.begin(task=1)
    >>> layer.BlockAllocator(4).num_free
    """

    def __init__(self, root: Path, chapter: Chapter, file: Path, limits: Limits) -> None:
        self._root, self._chapter, self._file, self._limits = root, chapter, file, limits
        self._task, self._num_deaths = 0, 0
        self._hidden: Functions | None = None
        self._folder = Path()
        self._connection: Connection | None = None
        self._definitions: dict[str, Remote] = {}  # functions and classes of the file, asked for once
        self._is_hopeless: Exception | None = None  # the file can't be imported, or too much has gone wrong
        sandbox.adopt_orphans()

    def begin(self, task: int) -> None:
        """Get ready for a test of a task: in the sandbox that runs, or in a new one.

        `Mismatch` if the file can't be imported; `StillGone` if an earlier test of the task has ended it.
        """
        if self._is_hopeless is not None:
            raise self._is_hopeless
        gone = self._connection.gone if self._connection else None
        if gone is not None and task == self._task:
            raise StillGone(str(gone))
        hidden = hidden_functions(self._root, self._chapter, task)
        if gone is not None or hidden != self._hidden:
            self.close()
            self._start(hidden)
        assert self._connection is not None
        self._connection.forget_all()  # of the tests before; a failed one is kept by its traceback
        if task != self._task:
            self._task, self._connection.seconds_left = task, self._limits.task_s

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._definitions:
            return self._definitions[name]
        try:
            value = getattr(self._module, name)
        except AttributeError:
            wanted, came = f"a definition of {name}", "none; it may have been renamed"
            raise MissingName(f"{self._file.name}: {name}", wanted, came) from None
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
            sandbox.stop(self._connection.process)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._definitions.clear()
            self._num_deaths += self._connection.gone is not None
            self._connection = None
        if self._num_deaths >= MAX_DEATHS:
            self._is_hopeless = StillGone(f"not tried: it has ended, or taken too long, {MAX_DEATHS} times")

    def _start(self, hidden: Functions) -> None:
        if self._is_hopeless is not None:
            raise self._is_hopeless
        self._hidden, self._folder = hidden, Path(tempfile.mkdtemp(prefix="minipaged-grade-"))
        view, file = self._folder / "view", self._folder / "submission" / self._file.name
        copy_package(view, self._chapter, hidden)
        file.parent.mkdir()
        shutil.copyfile(self._file, file)
        self._connection = Connection(sandbox.start(view, file, self._folder, self._limits), self._limits)
        self._connection.prepare(self._chapter.module)
        what = f"import {self._file.name}"
        try:
            self._module, self.given = self._connection.ask("load")
        except SubmissionGone as gone:
            self._is_hopeless = Mismatch(what, "a file that can be imported", str(gone))
        except Exception as error:
            came = f"{type(error).__name__}: {error}"
            self._is_hopeless = Mismatch(what, "a file that can be imported", came)
        if self._is_hopeless is not None:
            raise self._is_hopeless from None


def _rebuild(message: str, place: str, classes: list[str]) -> Exception:
    """The submission's exception, as one of Python's or the package's that has the same name and message.

    An exception of its own is one of that name, made here, and is caught as the first class that is known.
    """
    known = {**vars(builtins), **vars(errors)}
    kind: Any = RuntimeError  # what SystemExit becomes, for one
    for name in classes:
        found = known.get(name)
        if isinstance(found, type) and issubclass(found, Exception) and not name.endswith("Group"):
            kind = found
            break
    error = _error_class(classes[0][:100], kind)()
    error.message, error.place = message, place
    return error


@cache
def _error_class(name: str, kind: type[Exception]) -> Any:
    """A class of that name; always the same one, by which Hypothesis knows an error again."""

    def show(self: Any) -> str:
        return str(self.message)

    return type(name, (kind,), {"__init__": lambda self: None, "__str__": show, "message": "", "place": ""})
