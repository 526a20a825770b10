"""What a student handed in: one Python file a chapter, and nothing else of it is looked at.

Other files, such as a conftest.py, a pytest.ini or a link to a file of the grader's, must not matter. So a
chapter's file is read once, if it is an ordinary file of ordinary size, and only its text goes on. Whether it
is Python is found out in the sandbox.

Students and the platforms they hand in with change names and folders, and that costs no points: what is
clearly meant is read, with a note. `find_students` knows the ways in which a class comes out of a platform.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from minipaged.course.outline import Chapter

MAX_SOURCE = 1 << 20  # bytes
MAX_DEPTH = 3  # of folders in a submission, such as nbgrader's STUDENT/ASSIGNMENT
MAX_FILES = 10_000  # that are looked at in a submission, by name
NOBODY = (".git", ".github", ".ipynb_checkpoints", ".venv", "__MACOSX")  # no student's folder
# How the platforms name a file, without the student's own part: Canvas, Moodle, Blackboard.
_PLATFORMS = (
    re.compile(r"(?P<who>.+?)(_LATE)?_(?P<id>\d+)_\d+_"),
    re.compile(r"(?P<who>.+?)_(?P<id>\d+)_assignsubmission_file_"),
    re.compile(r"(?P<who>.+)(?P<id>)_attempt_[\d-]+_"),
)


@dataclass
class Submission:
    """texts, problems: by the chapter's key; each chapter that was asked for is in one of them. renamed: a
    note on a file that had another name. ignored: the names of what else is there. unreadable: what this
    process may not read, or the disk doesn't give: there may be an answer in it, so there is no grade."""

    texts: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        """A text that changes with what was handed in."""
        parts = [*sorted(self.texts.items()), *sorted(self.problems.items()), *self.unreadable]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Unreadable(Exception):
    """What a student handed in can't be read."""


@dataclass
class Files:
    """groups: what a student handed in; a file is looked for in the first group, then in the next. errors:
    folders that could not be listed."""

    groups: list[list[Path]] = field(default_factory=list)
    errors: list[OSError] = field(default_factory=list)


def read_submission(folder: Path, chapters: list[Chapter]) -> Submission:
    """The files of these chapters: in the folder, or else in its exercises/, or else in a folder below."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    return read_files(_files_below(folder), chapters)


def read_files(files: Files, chapters: list[Chapter]) -> Submission:
    """The files of these chapters among all that a student handed in."""
    submission, read = Submission(unreadable=[_show_error(error) for error in files.errors]), set[Path]()
    for chapter in chapters:
        try:
            file, note = _find(files.groups, chapter)
            read.add(file)
            submission.texts[chapter.key] = _read(file)
        except ValueError as error:
            submission.problems[chapter.key] = str(error)
            continue
        except OSError as error:
            submission.unreadable.append(_show_error(error))
            continue
        if note:
            submission.renamed[chapter.key] = note
    submission.ignored = [file.name for group in files.groups for file in group if file not in read]
    return submission


def find_students(folder: Path, chapters: list[Chapter]) -> dict[str, Files]:
    """The students of a class and their files, by name: a folder for each, as Moodle, Gradescope, GitHub
    Classroom and nbgrader (submitted/STUDENT/ASSIGNMENT) give them; or files that have the student in their
    name, as Canvas, Blackboard and Moodle do. Raises ValueError if there is neither."""
    students: dict[str, Files] = {}
    for path in sorted(folder.iterdir()):
        if path.name in NOBODY:
            continue
        if path.is_dir():  # a link may lead to a neighbour's, so nothing behind it is anybody's
            files = Files() if path.is_symlink() else _files_below(path)
            files.groups += students.get(path.name, Files()).groups
            students[path.name] = files
            continue
        matches = (_match(path.name, chapter) for chapter in chapters)
        if who := next((_student(match["before"]) for match in matches if match), ""):
            groups = students.setdefault(who, Files([[]])).groups
            if "_attempt_" in path.name:  # Blackboard's, which sort by time: the last one counts
                groups.insert(0, [path])
            else:
                groups[0].append(path)
    if not students:
        raise ValueError(
            f"{folder} has no submissions: there must be a folder for each student, or files like "
            f"ada_{chapters[0].file_stem}.py"
        )
    return students


def files_of_nobody(folder: Path, chapters: list[Chapter]) -> list[str]:
    """The names of files in a class's folder that are no student's: they have other names than expected."""
    files = sorted(path.name for path in folder.iterdir() if not path.is_dir() and path.name not in NOBODY)
    matches = {name: [_match(name, chapter) for chapter in chapters] for name in files}
    return [name for name in files if not any(m and _student(m["before"]) for m in matches[name])]


def _files_below(folder: Path) -> Files:
    """Its files: those in it, those in its exercises/, those in an exercises/ below, all others. No links to
    folders are followed, and hidden folders are left out."""
    groups, errors = list[list[Path]]([[], [], [], []]), list[OSError]()
    for top, folders, names in os.walk(folder, onerror=errors.append):
        place = Path(top).relative_to(folder)
        depth = len(place.parts)
        # A folder that has a file's name is no file, and the student is told.
        paths = [Path(top) / name for name in sorted([*names, *(n for n in folders if n.endswith(".py"))])]
        folders[:] = sorted(name for name in folders if not name.startswith(".") and depth < MAX_DEPTH)
        rank = 0 if depth == 0 else 3 if place.name != "exercises" else min(depth, 2)
        groups[rank] += paths
        if sum(map(len, groups)) > MAX_FILES:
            break
    return Files(groups, errors)


def _find(groups: list[list[Path]], chapter: Chapter) -> tuple[Path, str]:
    """The one file that is meant, and a note if it has another name; ValueError with the reason."""
    name, similar = f"{chapter.file_stem}.py", list[str]()
    for group in groups:
        exact = [file for file in group if file.name == name]
        near = [file for file in group if file.name != name and _match(file.name, chapter)]
        chosen = exact or near
        if len(chosen) > 1:
            raise ValueError(f"{name}: which one is it? {_show(chosen)}")
        if exact:
            return exact[0], f"not looked at: {_show(near)}" if near else ""
        if near:
            return near[0], f"read from {_show(near)}"
        similar += [ascii(file.name) for file in group if chapter.key in file.name.lower()]
    raise ValueError(f"{name} is missing" + (f"; there is {', '.join(similar[:3])}" if similar else ""))


def _show_error(error: OSError) -> str:
    return f"{'/'.join(Path(str(error.filename)).parts[-2:])!a}: {error.strerror}"


def _show(files: list[Path]) -> str:
    return ", ".join(ascii("/".join(file.parts[-2:]) if len(files) > 1 else file.name) for file in files[:3])


def _match(name: str, chapter: Chapter) -> re.Match[str] | None:
    """Whether a file's name is nearly that of a chapter's: "Ada_ch03_block_allocator (1).py", "ch3.py"."""
    words = "[ _-]?".join(map(re.escape, chapter.stem.split("_")))
    stem = rf"ch0?{chapter.number}([ _-]?{words})?"
    again = r"[\W\d_]*(copy|final|new|v)?[\W\d_]*"  # "(1)", "-2", " - Copy"
    found = re.fullmatch(rf"(?P<before>(.*[ _-])?){stem}{again}\.py(\.txt)?", name[:300], re.IGNORECASE)
    return None if found is None or found["before"].startswith("test_") else found


def _student(before: str) -> str:
    """Whose file it is, from what stands before its own name."""
    for platform in _PLATFORMS:
        if found := platform.fullmatch(before):
            return "_".join(part for part in (found["who"], found["id"]) if part)
    return before.strip(" _-")


def _read(file: Path) -> str:
    """The text of an ordinary file; ValueError with the reason if it is not one, OSError if it can't be
    read."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        if file.is_symlink():
            raise ValueError(f"{file.name} is a link, not a file") from None
        if file.is_socket():
            raise ValueError(f"{file.name} is no ordinary file") from None
        raise
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
