"""`minipaged check`, `hint` and `reset`: the reader's loop.

These are for self-check and take the reader's word. `minipaged grade` grades a class, in isolation.
"""

from __future__ import annotations

import shutil
import time
from datetime import datetime
from pathlib import Path

import click

from minipaged.course.outline import Chapter
from minipaged.course.progress import Progress
from minipaged.course.report import WIDTH, ChapterReport, check_chapter, render, wrap
from minipaged.course.tasks import (
    Task,
    exercise_file,
    find_chapter,
    find_root,
    graded_chapters,
    load_tasks,
    original_file,
)

POLL_S = 0.3


@click.command()
@click.argument("chapters", nargs=-1, metavar="[chNN]...")
@click.option("--task", type=click.IntRange(1), help="Only this task of the chapter.")
@click.option("--watch", is_flag=True, help="Check again whenever the file is saved. Ctrl-C ends it.")
@click.option(
    "--impl",
    default="exercises",
    metavar="exercises|solutions|minipaged|PATH",
    show_default=True,
    help="Whose answers are judged.",
)
@click.pass_context
def check(ctx: click.Context, chapters: tuple[str, ...], task: int | None, watch: bool, impl: str) -> None:
    """Grade your exercises: points for each task, and what is wrong in the layer's own words.

    Without a chapter: how far you are. The exit code is 0 if every task but the challenges passed.
    Your code runs on this machine with your rights, beside the tests: this is for yourself, not for grades.

    \b
    Examples:
      minipaged check ch03
      minipaged check ch03 --task 2 --watch
      minipaged check
    """
    root = find_root()
    chosen = [find_chapter(root, key) for key in chapters]
    if not chosen and not (watch or task):
        click.echo(_overview(root))
        return
    if (watch or task is not None) and len(chapters) != 1:
        raise click.UsageError("--task and --watch take one chapter, as `minipaged check ch03 --watch`")
    if watch:
        _watch(root, chosen[0], task, impl)
    reports = [check_chapter(root, chapter, impl, task) for chapter in chosen]
    if impl == "exercises":
        _remember(root, reports)
    for report in reports:
        click.echo(render(report, root))
    if impl == "exercises" and task is None:
        click.echo(_overview(root))
    ctx.exit(0 if all(report.passed for report in reports) else 1)


@click.command()
@click.argument("chapter", metavar="chNN")
@click.argument("task", type=int, required=False)
def hint(chapter: str, task: int | None) -> None:
    """Show the next hint for a task: at most three, one at a time, each nearer to the answer.

    Without a task's number, the first one that `minipaged check` has not seen passed.

    \b
    Examples:
      minipaged hint ch03
      minipaged hint ch03 2
    """
    root = find_root()
    found = find_chapter(root, chapter)
    progress = Progress.load(root)
    chosen = _choose_task(load_tasks(root, found), task, progress.points.get(found.key, {}))
    seen = progress.hints.setdefault(found.key, {})
    count = min(seen.get(str(chosen.number), 0) + 1, len(chosen.hints))
    if not chosen.hints:
        click.echo(f"{chosen.headline()} has no hints: its docstring is all there is.")
        return
    seen[str(chosen.number)] = count
    progress.save(root)
    click.echo(f"{found.key}, {chosen.headline()}")
    for number, text in enumerate(chosen.hints[:count], start=1):
        click.echo("\n".join(wrap(f"  {number}. ", text, WIDTH)))
    left = len(chosen.hints) - count
    click.echo(f"{left} more: the same command again." if left else "That was the last hint.")


@click.command()
@click.argument("chapter", metavar="chNN")
@click.option("--yes", is_flag=True, help="Don't ask.")
def reset(chapter: str, yes: bool) -> None:
    """Start a chapter's exercise anew. Your file is kept as a backup beside it.

    \b
    Example:
      minipaged reset ch03
    """
    root = find_root()
    found = find_chapter(root, chapter)
    file, original = exercise_file(root, found), original_file(root, found)
    if not original.is_file():
        raise ValueError(f"{original} is missing; get it back with `git checkout -- exercises/.originals`")
    fresh = original.read_text(encoding="utf-8")
    if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == fresh:
        click.echo(f"{file.name} is as it was in the beginning; nothing to do.")
        return
    if not yes:
        click.confirm(f"Start {file.name} anew? Your version is kept in a backup", abort=True)
    if file.exists():
        click.echo(f"your version is in {_back_up(file).relative_to(root)}")
    file.unlink(missing_ok=True)  # a link must not be written through
    file.write_text(fresh, encoding="utf-8")
    progress = Progress.load(root)
    progress.forget(found.key)
    progress.save(root)
    click.echo(f"{file.relative_to(root)} is new")


def _back_up(file: Path) -> Path:
    """Copy a file, or what a link leads to, to exercises/backups under a name that nothing there has."""
    folder = file.parent / "backups"
    folder.mkdir(exist_ok=True)
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    backup, number = folder / f"{file.stem}.{stamp}.py", 1
    while backup.exists():
        backup, number = folder / f"{file.stem}.{stamp}-{number}.py", number + 1
    shutil.copyfile(file, backup)
    return backup


def _watch(root: Path, chapter: Chapter, task: int | None, impl: str) -> None:
    """Check again whenever the file changes, until Ctrl-C."""
    from minipaged.course.layer import subject_file

    file, last = subject_file(root, chapter, impl), None
    while True:
        stamp = file.stat().st_mtime_ns if file.exists() else 0
        if stamp != last:
            report = check_chapter(root, chapter, impl, task)
            if impl == "exercises":
                _remember(root, [report])
            click.clear()
            click.echo(render(report, root))
            click.echo(f"\nwatching {file.name}; Ctrl-C to stop")
            last = stamp
        time.sleep(POLL_S)


def _remember(root: Path, reports: list[ChapterReport]) -> None:
    progress = Progress.load(root)
    for report in reports:
        progress.take(report)
    progress.save(root)


def _overview(root: Path) -> str:
    """A bar for every chapter that has exercises, as of its last check; one that can't be judged says why."""
    progress, lines, reached, total = Progress.load(root), [""], 0, 0
    for chapter in graded_chapters(root):
        try:
            most = sum(task.points for task in load_tasks(root, chapter))
        except ValueError as error:
            lines.append(f"  {chapter.key} {error}")
            continue
        points = progress.of(chapter.key)
        reached, total = reached + points, total + most
        bar = "#" * round(20 * points / most)
        lines.append(f"  {chapter.key} {bar:·<20} {points:>4}/{most:<4} {chapter.title}")
    return "\n".join([*lines, f"  the course so far: {reached} of {total} points"])


def _choose_task(tasks: tuple[Task, ...], number: int | None, points: dict[str, int]) -> Task:
    if number is None:
        todo = [task for task in tasks if not points.get(str(task.number))]
        return todo[0] if todo else tasks[-1]
    by_number = {task.number: task for task in tasks}
    if number not in by_number:
        raise ValueError(f"no task {number}; the chapter has tasks {', '.join(map(str, by_number))}")
    return by_number[number]
