"""`minipaged grade` and `minipaged handout`: for instructors.

Self-check, where the reader's code runs beside the tests, is in `course.py`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from minipaged.course.outline import Chapter
from minipaged.course.tasks import find_chapter, find_root, graded_chapters, own_root


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--all", "is_class", is_flag=True, help="FOLDER holds a class, as a platform gives it.")
@click.option("--chapters", multiple=True, metavar="chNN", help="Only these; several with commas. Else all.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write Gradescope's results.json.",
)
@click.option(
    "--junit", "junit_file", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML."
)
@click.option(
    "--fail-under", type=click.IntRange(0), metavar="POINTS", help="Exit with 1 below so many points."
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    help="Use the seed of an earlier run.  [default: a fresh one]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --all: the folder for results.  [default: FOLDER-grades]",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="With --all: how many at a time.  [default: one per CPU]"
)
@click.option(
    "--course",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Whose tests count.  [default: those of the course that this program belongs to]",
)
@click.option(
    "--allow-weak-isolation",
    is_flag=True,
    help="Give grades also where a submission could buy one: see docs/instructors.md.",
)
def grade(
    folder: Path,
    is_class: bool,
    chapters: tuple[str, ...],
    json_file: Path | None,
    junit_file: Path | None,
    fail_under: int | None,
    seed: int | None,
    out: Path | None,
    jobs: int | None,
    course: Path | None,
    allow_weak_isolation: bool,
) -> None:
    """Grade a submission in isolation: its code runs in a sandbox, and the tests outside of it.

    FOLDER holds files like ch03_block_allocator.py, or an exercises/ that does. With --all it holds a class:
    a folder for each student, or files with the student in their names; the results go to files, and a run
    that was interrupted goes on where it was.
    A check (`minipaged check`) takes the reader's word; only this gives a grade.

    \b
    Examples:
      minipaged grade exercises --chapters ch03,ch04
      minipaged grade submission --json results.json --junit results.xml
      minipaged grade --all class --chapters ch03
    """
    from minipaged.course.grading.grade import fresh_seed, grade_submission
    from minipaged.course.grading.results import to_json, to_junit, to_text, write_whole
    from minipaged.course.grading.sandbox import find_isolation
    from minipaged.course.grading.submission import Unreadable

    root = own_root() if course is None else find_root(course)
    if root.resolve().is_relative_to(folder.resolve()):
        raise click.UsageError(f"{folder} holds the course itself ({root}), so it is no submission")
    chosen = _chapters(root, chapters)
    if is_class and (json_file or junit_file or fail_under is not None):
        raise click.UsageError("--json, --junit and --fail-under are for one submission")
    if not is_class and (out or jobs):
        raise click.UsageError("--out and --jobs go with --all")
    target = out or folder.resolve().parent / f"{folder.resolve().name}-grades"
    # As on Ctrl-C, what was begun is ended, and nothing is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    isolation = find_isolation([root, own_root(), folder, target], allow_weak_isolation)
    if is_class:
        from minipaged.course.grading.class_run import grade_class

        click.echo(grade_class(root, folder, target, chosen, seed, jobs or os.cpu_count() or 1, isolation))
        return
    try:
        result = grade_submission(root, folder, chosen, fresh_seed() if seed is None else seed, isolation)
    except (RuntimeError, Unreadable) as error:  # no mistake of the student's
        raise click.ClickException(f"no grade: {error}") from error
    click.echo(to_text(result))  # first, for a file may not be writable
    if json_file:
        write_whole(json_file, to_json(result))
    if junit_file:
        write_whole(junit_file, to_junit(result))
    if fail_under is not None and result["score"] < fail_under:
        click.echo(f"fewer than {fail_under} points", err=True)
        sys.exit(1)


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--gradescope", is_flag=True, help="Instead: what Gradescope's container needs, without answers."
)
@click.option(
    "--chapters", multiple=True, metavar="chNN", help="With --gradescope: what it grades. Else all."
)
def handout(out: Path, gradescope: bool, chapters: tuple[str, ...]) -> None:
    """Make a copy of the course for students, without solutions and hidden checks.

    \b
    Examples:
      minipaged handout ../course-for-students
      minipaged handout ../autograder --gradescope --chapters ch03
    """
    from minipaged.course.grading.handout import make_gradescope, make_handout

    root = find_root()
    if chapters and not gradescope:
        raise click.UsageError("--chapters goes with --gradescope; a hand-out has the whole course")
    made = make_gradescope(root, out, _chapters(root, chapters)) if gradescope else make_handout(root, out)
    click.echo(made)


def _chapters(root: Path, keys: tuple[str, ...]) -> list[Chapter]:
    names = [name.strip() for key in keys for name in key.split(",") if name.strip()]
    return [find_chapter(root, name) for name in dict.fromkeys(names)] or graded_chapters(root)
