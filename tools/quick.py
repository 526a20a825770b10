"""The inner loop, in about 90 s on 2 cores: the engine's tests, and those of the chapters that you touched.

    python tools/quick.py           what `make quick` runs after ruff and mypy
    python tools/quick.py --list    only say which tests that would be

A chapter is touched if one of its files has changed since the last commit, or in it if nothing has: its
layer, solution, exercise, grader, answers or folder. Left out: notebooks, other chapters, grading in
isolation and the command line. `make test` has them all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from minipaged.course.outline import CHAPTERS, Chapter

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ["tests/engine", "tests/project/test_imports.py", "tests/project/test_layout.py"]
SLOW = ["tests/engine/test_exactness.py"]
OPTIONS = ["-q", "-n", "2", "--dist", "loadscope", *(f"--ignore={path}" for path in SLOW)]


def changed_files() -> list[str]:
    """Paths that differ from the last commit, new ones included; of a clean tree, that commit's."""
    commands = (
        ["git", "diff", "--name-only", "HEAD"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    changed = [path for command in commands for path in _lines(command)]
    return changed or _lines(["git", "diff", "--name-only", "HEAD~1", "HEAD"])


def _lines(command: list[str]) -> list[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def is_touched(chapter: Chapter, paths: list[str]) -> bool:
    """Whether a path is the chapter's: `is_touched(CHAPTERS[3], ["minipaged/block_allocator.py"])`."""
    modules = {module.removeprefix("minipaged.").split(".")[-1] for module in _modules(chapter)}
    return any(
        chapter.file_stem in path
        or (path.startswith(("minipaged/", "kernels/")) and Path(path).stem in modules - {"ideas"})
        for path in paths
    )


def _modules(chapter: Chapter) -> tuple[str, ...]:
    return (chapter.module, *chapter.other_modules)


def tests_of(chapter: Chapter) -> list[list[str]]:
    """Arguments of pytest for a chapter: its grader on the package and on the solution, and its answers."""
    grader = f"tests/test_{chapter.file_stem}.py"
    if not (ROOT / grader).exists():
        return []
    course = ["tests/course/test_answers.py", "tests/course/test_course.py", "-k", chapter.key]
    return [[grader], [grader, "--impl", "solutions"], course]


def main(is_list: bool) -> int:
    """Run the tests, or only list them; 1 if any fails."""
    touched = [chapter for chapter in CHAPTERS if is_touched(chapter, changed_files())]
    runs = [ALWAYS, *(run for chapter in touched for run in tests_of(chapter))]
    failed = 0
    for run in runs:
        print(f"pytest {' '.join(run)}", flush=True)
        if not is_list:
            command = [sys.executable, "-m", "pytest", *OPTIONS, *run]
            failed |= subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode
    return int(failed != 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The engine's tests, and those of the chapters you touched.")
    parser.add_argument("--list", action="store_true", help="only say which")
    sys.exit(main(parser.parse_args().list))
