"""What a chapter asks of its reader: tasks with stars, points, minutes and hints.

They stand in the chapter's grader, tests/test_chNN_name.py, beside the tests that judge them, because the
grader is the one file that a reader has but does not edit. The specification is the docstring in the
exercise.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from minipaged.course.outline import CHAPTERS, Chapter

MAX_HINTS = 3


@dataclass(frozen=True)
class Task:
    """One task of a chapter.

    stars: 1 an easy step, 2 the heart of the layer, 3 a challenge beyond the engine. minutes: for a newcomer.
    hints: up to three, each nearer to the answer. compare: what to look at in the solution once it is passed.

    Example::

        Task(2, "take blocks", stars=2, points=15, minutes=10, hints=("What if n is 0?",),
             compare="where the check stands, before anything has changed")
    """

    number: int
    title: str
    stars: int
    points: int
    minutes: int
    hints: tuple[str, ...] = ()
    compare: str = ""

    def __post_init__(self) -> None:
        if not (self.number >= 1 and self.stars in (1, 2, 3) and self.points >= 1 and self.minutes >= 1):
            raise ValueError(f"not a task: {self}")
        if len(self.hints) > MAX_HINTS:
            raise ValueError(f"task {self.number} has {len(self.hints)} hints, at most {MAX_HINTS} are shown")

    @property
    def is_challenge(self) -> bool:
        """Whether it goes beyond the engine, so that only solutions/ has the answer."""
        return self.stars == 3

    def headline(self) -> str:
        """The line above its code: "Task 2 ★★ take blocks (15 points, about 10 minutes)"."""
        price = f"{self.points} points, about {self.minutes} minutes"
        return f"Task {self.number} {'★' * self.stars} {self.title} ({price})"

    def stub_message(self, file_stem: str) -> str:
        """What a stub says when it is called: "ch03_block_allocator, task 2: take blocks"."""
        return f"{file_stem}, task {self.number}: {self.title}"


def find_root(start: Path | None = None) -> Path:
    """The course's folder: the nearest one upwards that has exercises/ and tests/, else the package's own.

    Raises ValueError if it is missing, as in an installation without the course, or if its tests/ are.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents, Path(__file__).resolve().parents[2]):
        has_exercises = any((folder / "exercises").glob("ch[0-9][0-9]_*.py"))
        if has_exercises and not (folder / "tests").is_dir():
            raise ValueError(f"{folder} has exercises/ but no tests/, which judge them")
        if has_exercises:
            return folder
    raise ValueError(
        f"no course in {start} or above it (a folder with exercises/ and tests/); "
        "get it with `git clone`, and run this command inside it"
    )


def own_root() -> Path:
    """The course that the package belongs to, wherever one is. ValueError if it came without one."""
    root = Path(__file__).resolve().parents[2]
    if not any((root / "tests").glob("test_ch[0-9][0-9]_*.py")):
        raise ValueError(
            f"the package in {root} came without the course's tests; name a course with --course"
        )
    return root


def grader_file(root: Path, chapter: Chapter) -> Path:
    """tests/test_chNN_name.py, whether it exists or not."""
    return root / "tests" / f"test_{chapter.file_stem}.py"


def exercise_file(root: Path, chapter: Chapter) -> Path:
    """exercises/chNN_name.py, the reader's own, whether it exists or not."""
    return root / "exercises" / f"{chapter.file_stem}.py"


def original_file(root: Path, chapter: Chapter) -> Path:
    """exercises/.originals/chNN_name.py: the exercise as it came."""
    return root / "exercises" / ".originals" / f"{chapter.file_stem}.py"


def is_untouched(root: Path, chapter: Chapter) -> bool:
    """Whether the reader's exercise is still as it came."""
    exercise, original = exercise_file(root, chapter), original_file(root, chapter)
    return original.is_file() and exercise.is_file() and exercise.read_bytes() == original.read_bytes()


def hidden_file(root: Path, chapter: Chapter) -> Path:
    """tests/hidden/test_chNN_name.py: an instructor's further checks, for grades only and in no hand-out."""
    return root / "tests" / "hidden" / f"test_{chapter.file_stem}.py"


def graded_chapters(root: Path) -> list[Chapter]:
    """The chapters that have exercises, in the course's order."""
    return [chapter for chapter in CHAPTERS if grader_file(root, chapter).is_file()]


def find_chapter(root: Path, key: str) -> Chapter:
    """The chapter called "ch03" (or "3", or its file's stem); else ValueError with the known ones."""
    chapters = graded_chapters(root)
    for chapter in chapters:
        if key in (chapter.key, chapter.file_stem, str(chapter.number)):
            return chapter
    known = ", ".join(chapter.key for chapter in chapters) or "none yet"
    raise ValueError(f"no chapter {key!r} with exercises in {root}; these have some: {known}")


def load_tasks(root: Path, chapter: Chapter) -> tuple[Task, ...]:
    """The tasks of a chapter: `TASKS = (Task(…), …)` in its grader, read without importing the rest of it.

    Raises ValueError if they are missing or can't be read, as in a chapter that is still being written.
    """
    file = grader_file(root, chapter)
    try:
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "TASKS":
                tasks = eval(compile(ast.Expression(statement.value), str(file), "eval"), {"Task": Task})
                if tasks:
                    return tuple(tasks)
    except Exception as error:
        raise ValueError(f"{file}: TASKS can't be read: {type(error).__name__}: {error}") from error
    raise ValueError(f"{file} has no TASKS = (Task(…), …)")


def import_path(file: Path) -> ModuleType:
    """Run a Python file as a module of its own, anew each time."""
    spec = importlib.util.spec_from_file_location(f"minipaged_course_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look for the module of a class
    spec.loader.exec_module(module)
    return module
