"""What students get, and what Gradescope gets: the course without solutions.

The package is not hidden: its layers are there to be read, and a chapter can't be run without the others. A
sandbox leaves out what a task asks for (`package_view.py`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from minipaged.course.outline import Chapter
from minipaged.course.tasks import exercise_file, graded_chapters, grader_file, hidden_file, original_file

COURSE = ("LICENSE", "pyproject.toml", "setup.py", "constraints.txt", "minipaged", "kernels")
FOR_STUDENTS = ("docs/glossary.md", "docs/install.md", "docs/results", "notebooks")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*.egg-info")

README = """\
# minipaged: the course, for students

How LLM serving manages memory, learnt by building it: one notebook a chapter, and exercises whose layers
run in a real engine.

    make learn      # environment, model, and JupyterLab on the notebooks; begin with ch00_start
    make ch03       # check your answers to chapter 3: points for each task, and what is wrong

`docs/install.md` helps on a machine without make, without a GPU, or behind a slow network. With the
environment active (`source .venv/bin/activate`), `minipaged hint ch03` gives hints, and `minipaged --help`
lists the rest.

You write in the files of `exercises/`: every function there has its specification in its docstring, and
numbered steps. Hand in the files that you are asked for, such as `exercises/ch03_block_allocator.py`, and
change nothing else: only those are looked at. Your own check takes your word; a grade is made elsewhere, with
other numbers. Where a notebook names `solutions/`, your teacher has them.

| chapter | notebook | you hand in |
|---|---|---|
{chapters}
"""
SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, when it builds the container.
set -e
apt-get update
apt-get install -y python3 python3-venv util-linux
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install {torch} --index-url https://download.pytorch.org/whl/cpu
/autograder/venv/bin/pip install -c /autograder/source/course/constraints.txt -e /autograder/source/course
"""
RUN = """\
#!/usr/bin/env bash
# Gradescope runs this for every submission, as root, in a container of its own, and without namespaces. So
# the submission gets a user of its own, who can't read the course.
chmod -R go= /autograder/source /autograder/submission
/autograder/venv/bin/minipaged grade /autograder/submission --chapters {chapters} --allow-weak-isolation \\
    --json /autograder/results/results.json
"""


def make_handout(root: Path, out: Path) -> str:
    """Copy the course to `out`, which must be new or empty: no solutions, answers or hidden checks, and all
    exercises fresh."""
    chapters = graded_chapters(root)
    _copy(root, out, (*COURSE, *FOR_STUDENTS), chapters)
    shutil.copyfile(root / "learn.mk", out / "Makefile")
    rows = [
        f"| {chapter.title} | `notebooks/{chapter.file_stem}.ipynb` | `exercises/{chapter.file_stem}.py` |"
        for chapter in chapters
    ]
    (out / "README.md").write_text(README.format(chapters="\n".join(rows)), encoding="utf-8")
    return f"{out}: {len(chapters)} chapters to write, no solutions, no hidden checks"


def make_gradescope(root: Path, out: Path, chapters: list[Chapter]) -> str:
    """Write what Gradescope wants in a zip file: setup.sh, run_autograder, the course, and hidden checks."""
    _copy(root, out / "course", (*COURSE, "README.md"), graded_chapters(root))
    for chapter in chapters:
        if hidden_file(root, chapter).is_file():
            _copy_file(root, out / "course", hidden_file(root, chapter))
    pinned = re.search(r"^torch==\S+", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    keys = ",".join(chapter.key for chapter in chapters)
    torch = pinned[0] if pinned else "torch"
    for name, text in (
        ("setup.sh", SETUP.format(torch=torch)),
        ("run_autograder", RUN.format(chapters=keys)),
    ):
        (out / name).write_text(text, encoding="utf-8")
        (out / name).chmod(0o755)
    return (
        f"{out}: zip what is in it (cd {out} && zip -r ../autograder.zip .) and upload that; it grades {keys}"
    )


def _copy(root: Path, out: Path, names: Iterable[str], chapters: list[Chapter]) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already; a hand-out needs a new folder")
    if root.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(f"{out} lies inside the course; choose a folder outside of {root}")
    for name in names:
        if (root / name).is_dir():
            shutil.copytree(root / name, out / name, ignore=_IGNORED)
        elif (root / name).is_file():
            _copy_file(root, out, root / name)
    _copy_file(root, out, root / "tests" / "conftest.py")
    for chapter in chapters:
        _copy_file(root, out, grader_file(root, chapter))
        original = original_file(root, chapter)
        _copy_file(root, out, original)
        shutil.copyfile(original, exercise_file(out, chapter))


def _copy_file(root: Path, out: Path, file: Path) -> None:
    copy = out / file.relative_to(root)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)
