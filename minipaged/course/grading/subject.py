"""The sandbox's side: runs one submission, and answers calls about it until the other end hangs up.

Everything here runs beside the student's code and may be changed by it. That does no harm: whatever it says
is judged at the other end, and nothing here is worth stealing.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from pathlib import Path
from types import MethodType
from typing import Any

MAX_MESSAGE = 2000  # characters of an exception's message


def main() -> None:
    """Limit this process, load the submission, and serve. Orders and requests come in on stdin and answers go
    out on stdout; what the submission prints goes to stderr, and there is nothing for it to read."""
    sys.dont_write_bytecode = True
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    from minipaged.course.grading.limits import limit_this_process

    order = json.loads(requests.readline())
    limit_this_process(order["rlimits"])
    for module in ("minipaged.course.layer", order["module"]):  # what is not the submission's, torch for one
        try:
            importlib.import_module(module)
        except ImportError as error:  # triton is not everywhere; then the submission's import says so
            if (error.name or "").startswith("minipaged"):
                raise
    file = os.path.abspath(os.path.join(sys.path[0], order["file"]))
    from minipaged.course.grading.wire import IN_REQUESTS, Wire

    class Subject(Wire):
        """This end of the wire: hands out handles of what the submission makes."""

        def __init__(self) -> None:
            super().__init__(step=-1, takes=IN_REQUESTS)
            self.objects: dict[int, Any] = {}
            self.handles: dict[int, int] = {}
            self.last = 0

        def encode_object(self, value: Any) -> Any:
            handle = self.handles.get(id(value))
            if handle is None:
                self.last += 1
                handle = self.handles[id(value)] = self.last
                self.objects[handle] = value
            return {"object": [handle, f"{type(value).__name__}/{id(type(value))}"]}

        def decode_object(self, handle: Any, name: Any) -> Any:
            return self.objects[handle]

        def let_go(self, handles: tuple[int, ...]) -> None:
            for handle in handles:
                del self.handles[id(self.objects.pop(handle))]

    subject = Subject()
    for line in requests:  # what the tests ask
        request = dict(subject.unpack(line))
        subject.let_go(request["let_go"])
        try:
            message = subject.pack(_answer(request, file))
        except BaseException as error:  # the submission's, SystemExit too
            message = subject.pack(("error", _describe(error, file)))
        answers.write(message)
        answers.flush()


def _answer(request: dict[str, Any], file: str) -> tuple[str, Any]:
    kind, value = request["kind"], None
    if kind == "load":
        from minipaged.course.layer import Given
        from minipaged.course.seed import fill_new_memory
        from minipaged.course.tasks import import_path

        value = (import_path(Path(file)), Given())
        fill_new_memory()
    elif kind == "get":
        of, name = request["of"], request["name"]
        value = getattr(of, name)
        if isinstance(value, MethodType) and type(value.__self__) is type(of) and value.__self__ is of:
            return "method", None
    elif kind == "call":
        value = request["of"](*request["args"], **dict(request["kwargs"]))
    elif kind == "invoke":
        value = getattr(request["of"], request["name"])(*request["args"], **dict(request["kwargs"]))
    return "value", value


def _describe(error: BaseException, file: str) -> dict[str, Any]:
    """An exception as data: the names of its classes, its message, and where the submission raised it."""
    text = str(error)
    if isinstance(error, SyntaxError):
        text = f"{error.msg} in line {error.lineno}"
    errors = importlib.import_module("minipaged.errors")

    def is_known(kind: type) -> bool:
        """Whether it is Python's or the package's: the submission may call one of its own ValueError."""
        return kind in (getattr(builtins, kind.__name__, None), getattr(errors, kind.__name__, None))

    place, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            place = f"{Path(file).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return {
        "name": type(error).__name__,
        "known": [kind.__name__ for kind in type(error).__mro__ if is_known(kind)],
        "message": text[:MAX_MESSAGE],
        "place": place,
    }
