"""Exercises from marked solutions: what stands between BEGIN SOLUTION and END SOLUTION becomes a stub.

The markers are nbgrader's. A line `# Task 2` above a region, in the same function, names its task, and
becomes the task's headline. A region that holds whole definitions is a helper of the solution's own, and
leaves no trace in the exercise. `tools/build.py` writes the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from minipaged.course.tasks import Task

_MARKER = re.compile(r"^ *### (BEGIN|END) SOLUTION$", re.MULTILINE)
_ALMOST = re.compile(r"^[ \t]*#+ *(BEGIN|END)\W*SOLUTION.*$", re.MULTILINE | re.IGNORECASE)
_REGION = re.compile(r"^( *)### BEGIN SOLUTION\n(.*?)^ *### END SOLUTION$", re.MULTILINE | re.DOTALL)
_TASK = re.compile(r"^( *)# Task (\d+)$", re.MULTILINE)
_DEF = re.compile(r"^ *(def|class) ", re.MULTILINE)


class MarkerError(ValueError):
    """A solution whose markers don't fit together; the message gives the file and the line."""


def make_stub(solution: str, file_stem: str, tasks: Iterable[Task]) -> str:
    """The exercise of a solution's text. `MarkerError` if it can't be made.

    Example: with task 2 called "take blocks", the lines `# Task 2`, `### BEGIN SOLUTION`, `return 1`,
    `### END SOLUTION` become `# Task 2 ★ take blocks (5 points, about 5 minutes)` and
    `raise NotImplementedError("ch03_block_allocator, task 2: take blocks")`.
    """
    by_number = {task.number: task for task in tasks}
    _check_markers(solution, file_stem)

    def replace(region: re.Match[str]) -> str:
        indent, code = region.groups()
        first = next(
            (line for line in code.splitlines() if line.strip() and not line.strip().startswith("#")), ""
        )
        is_in_function = len(indent) > _indent_of_definition_above(solution, region.start())
        if not is_in_function and first.strip().startswith(("def ", "class ", "@")):
            return ""
        task = by_number[_task_above(solution, region.start(), file_stem, set(by_number))]
        message = json.dumps(task.stub_message(file_stem), ensure_ascii=False)
        return f"{indent}raise NotImplementedError({message})"

    stub = _REGION.sub(replace, solution)
    marked = {int(number) for _, number in _TASK.findall(stub)}
    if marked != set(by_number):
        raise MarkerError(
            f"{file_stem}: tasks {sorted(marked)} are marked, the grader has {sorted(by_number)}"
        )
    for number, task in by_number.items():  # the headline once, above the task's first function
        found = re.search(rf"(?m)# Task {number}$", stub)
        assert found is not None
        stub = f"{stub[: found.start()]}# {task.headline()}{stub[found.end() :]}"
    return re.sub(r"\n{4,}", "\n\n\n", stub).rstrip() + "\n"


def _indent_of_definition_above(text: str, position: int) -> int:
    """How far the nearest `def` above is indented; a region not further in than that is outside of it."""
    found = list(re.finditer(r"^( *)def ", text[:position], re.MULTILINE))
    return len(found[-1][1]) if found else 10**6


def _check_markers(text: str, file_stem: str) -> None:
    """BEGIN and END must take turns, and be written exactly so."""
    for found in _ALMOST.finditer(text):
        if not _MARKER.match(text, found.start()):
            line = text.count("\n", 0, found.start()) + 1
            raise MarkerError(f"{file_stem}, line {line}: {found[0]!r} is no marker, but looks like one")
    markers = list(_MARKER.finditer(text))
    for index, marker in enumerate(markers):
        is_alone = index == len(markers) - 1 and marker[1] == "BEGIN"
        if is_alone or marker[1] != ("BEGIN", "END")[index % 2]:
            line = text.count("\n", 0, marker.start()) + 1
            raise MarkerError(f"{file_stem}, line {line}: BEGIN and END SOLUTION must come in pairs")


def _task_above(text: str, position: int, file_stem: str, known: set[int]) -> int:
    """The number of the last `# Task k` between the function's `def` and a region."""
    above = text[:position]
    start = max((found.start() for found in _DEF.finditer(above)), default=0)
    numbers = [int(number) for _, number in _TASK.findall(above[start:])]
    if not numbers or numbers[-1] not in known:
        line = text.count("\n", 0, position) + 1
        raise MarkerError(
            f"{file_stem}, line {line}: no line `# Task k`, with k in {sorted(known)}, above it"
        )
    return numbers[-1]
