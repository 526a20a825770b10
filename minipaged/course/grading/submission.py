"""What a student handed in: one Python file a chapter, and nothing else of it is looked at.

Other files, such as a conftest.py, a pytest.ini or a link to a file of the grader's, must not matter. So a
chapter's file is read once, if it is an ordinary file of ordinary size, and only its text goes on. Whether it
is Python is found out in the sandbox.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from minipaged.course.outline import Chapter

MAX_SOURCE = 1 << 20  # bytes


@dataclass
class Submission:
    """texts, problems: by the chapter's key; each chapter that was asked for is in one of them. ignored: the
    names of what else is there."""

    texts: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        """A text that changes with what was handed in."""
        parts = [*sorted(self.texts.items()), *sorted(self.problems.items())]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def read_submission(folder: Path, chapters: list[Chapter]) -> Submission:
    """The files of these chapters, in the folder or in its exercises/."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    inner = folder / "exercises"
    if inner.is_dir() and not inner.is_symlink():
        folder = inner
    submission = Submission()
    for chapter in chapters:
        try:
            submission.texts[chapter.key] = _read(folder / f"{chapter.file_stem}.py")
        except (OSError, ValueError) as error:
            submission.problems[chapter.key] = str(error)
    wanted = {f"{chapter.file_stem}.py" for chapter in chapters}
    submission.ignored = sorted(set(os.listdir(folder)) - wanted)
    return submission


def _read(file: Path) -> str:
    """The text of an ordinary file; ValueError with the reason if it is not one."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ValueError(f"{file.name} is missing") from None
    except OSError as error:
        reason = "is a link, not a file" if file.is_symlink() else f"can't be read: {error.strerror}"
        raise ValueError(f"{file.name} {reason}") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{file.name} is no ordinary file")
        if found.st_size > MAX_SOURCE:
            raise ValueError(f"{file.name} has {found.st_size:,} bytes, more than {MAX_SOURCE:,}")
        data = b"".join(iter(lambda: os.read(handle, MAX_SOURCE), b""))
    finally:
        os.close(handle)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is no text in UTF-8: byte {error.start} is no part of one") from None
