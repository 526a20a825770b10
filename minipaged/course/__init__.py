"""The course machine: exercises and their graders, feedback, progress.

Reading order: `tasks.py` (what a chapter asks) → `layer.py` (the subject under test) → `expectation.py` and
`comparison.py` (how a grader states what must hold) → `grader.py` (runs it in a child process) → `report.py`
(what came out, in points and words) → `stubs.py` (exercises from solutions) → `answers.py` (the graders'
test). For grades that others rely on: `grading/`.

The names below are all that a grader or a notebook imports; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.course.comparison import Replay, Step
    from minipaged.course.expectation import Mismatch, expect, expect_close, expect_error
    from minipaged.course.layer import Layer
    from minipaged.course.notebook import check, machine_note, serve_with
    from minipaged.course.seed import generator
    from minipaged.course.sketch import sketch_pool, sketch_table
    from minipaged.course.tasks import Task

_MODULE_OF = {
    "Layer": "layer",
    "Mismatch": "expectation",
    "Replay": "comparison",
    "Step": "comparison",
    "Task": "tasks",
    "check": "notebook",
    "expect": "expectation",
    "expect_close": "expectation",
    "expect_error": "expectation",
    "generator": "seed",
    "machine_note": "notebook",
    "serve_with": "notebook",
    "sketch_pool": "sketch",
    "sketch_table": "sketch",
}

__all__ = [
    "Layer",
    "Mismatch",
    "Replay",
    "Step",
    "Task",
    "check",
    "expect",
    "expect_close",
    "expect_error",
    "generator",
    "machine_note",
    "serve_with",
    "sketch_pool",
    "sketch_table",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'minipaged.course' has no attribute {name!r}")
    return getattr(import_module(f"minipaged.course.{_MODULE_OF[name]}"), name)
