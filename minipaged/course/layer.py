"""The subject under test: a chapter's file, wherever it lies, behind one object.

The same tests judge the package, the solutions, a reader's exercises and every known wrong answer. A test
asks the layer for names, constructs, calls, and reads attributes; since all that goes in and out is plain
data, the same test can also judge a layer in another process.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

import minipaged
from minipaged.course.expectation import Mismatch, is_tensor
from minipaged.course.outline import Chapter
from minipaged.course.tasks import import_path

PACKAGE = "minipaged"


class Given:
    """The rest of the engine: `given.BlockAllocator(8)`, or a module by name, `given("minipaged.config")`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(minipaged, name)

    def __call__(self, module: str) -> ModuleType:
        return importlib.import_module(module)


class MissingName(Mismatch, AttributeError):
    """A name that a file lacks: a reader's mistake, and to Python an attribute that isn't there."""


class Layer:
    """The names of one chapter's file as attributes, and `given`, the rest of the engine.

    A name that the file lacks is a `Mismatch`, because it is the reader's mistake and not the test's.

    >>> layer = load_layer(root, chapter, "exercises")
    >>> pool = layer.BlockAllocator(4)
    """

    def __init__(self, *modules: ModuleType) -> None:
        self._modules = modules
        self.given = Given()

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                return getattr(module, name)
        file = Path(str(self._modules[0].__file__)).name
        raise MissingName(f"{file}: {name}", f"a definition of {name}", "none; it may have been renamed")

    def settle(self) -> None:
        """Tell a subject in another process which lists, dictionaries and tensors a test has changed, and
        hear which the subject has. Here, in one process, both hold the same objects."""


def subject_file(root: Path, chapter: Chapter, impl: str) -> Path:
    """The file that `--impl` names: minipaged, solutions, exercises, or the path of a file or a folder."""
    if impl == PACKAGE:
        return Path(str(importlib.import_module(chapter.module).__file__))
    path = root / impl if impl in ("solutions", "exercises") else Path(impl)
    return path if path.suffix == ".py" else path / f"{chapter.file_stem}.py"


def load_layer(root: Path, chapter: Chapter, impl: str) -> Layer:
    """Import the subject, anew each time. `Mismatch` if it can't be: missing, or an error while it runs."""
    file = subject_file(root, chapter, impl)
    if impl == PACKAGE:
        return Layer(*map(importlib.import_module, (chapter.module, *chapter.other_modules)))
    if not file.is_file():
        raise Mismatch(f"import {file.name}", f"the file {file}", "no such file")
    linecache.checkcache(str(file))
    sys.dont_write_bytecode = True  # two edits within one second would otherwise run the first one's bytecode
    try:
        return Layer(import_path(file))
    except Exception as error:
        line = _line_of(error, file)
        came = f"{type(error).__name__}{f' in line {line}' if line else ''}: {error}"
        raise Mismatch(f"import {file.name}", "a file that can be imported", came) from error


def _line_of(error: Exception, file: Path) -> int | None:
    """The line of a file that could not be imported because of it, as far as that can be told."""
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    content = file.read_bytes()
    if b"\0" in content:  # Python refuses such a file without a word on where
        return content.count(b"\n", 0, content.index(b"\0")) + 1
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return lines[-1] if lines else None


def call_each(function: Callable[..., Any], arguments: Iterable[Sequence[Any]]) -> list[Any]:
    """`[function(*each) for each in arguments]`, on the subject's side: thousands of calls in one message.

    >>> layer.given("minipaged.course.layer").call_each(layer.uniform, [(42, 0, 0), (42, 0, 1)])
    """
    return [function(*each) for each in arguments]


def copied(value: Any) -> Any:
    """A copy of lists, dictionaries, tuples and tensors (with their strides), all the way down: for arguments
    from which a test computes what it expects, since a subject may change what it is given."""
    if is_tensor(value):
        torch = sys.modules["torch"]
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return {key: copied(item) for key, item in value.items()} if type(value) is dict else value


class Log:
    """A list that a subject can be given to write into, and that lives on the subject's side."""

    def __init__(self) -> None:
        self._entries: list[Any] = []

    def append(self, entry: Any) -> None:
        self._entries.append(entry)

    def entries(self) -> list[Any]:
        """What was appended, in order, as a new list."""
        return list(self._entries)
