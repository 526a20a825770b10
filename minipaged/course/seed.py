"""The seed of a run of graders: none for oneself, and a fresh one for each grade.

Why it exists: if the tests' random numbers were always the same, answers to them could be written down. What
it leaves out: Hypothesis, which gets the same seed by an option (`grader.py`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VARIABLE = "MINIPAGED_SEED"


def run_seed() -> int | None:
    """The seed of a graded run; None if it is none."""
    text = os.environ.get(VARIABLE)
    return None if text is None else int(text)


def generator(number: int) -> torch.Generator:
    """A generator for a test's numbers: its own for each `number`, and for each graded run."""
    import torch

    return torch.Generator().manual_seed(number + 1_000_003 * (run_seed() or 0))
