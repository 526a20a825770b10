"""The seed of a run of graders: none for a self-check, a fresh one for each grade. And what else is chance.

If the tests' random numbers were always the same, answers to them could be written down; and with the same
seed, a wrong answer must fail in the same way each time. Hypothesis gets the same seed by an option
(`grader.py`).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VARIABLE = "MINIPAGED_SEED"


def run_seed() -> int | None:
    """The seed of a graded run; None outside of one."""
    text = os.environ.get(VARIABLE)
    return None if text is None else int(text)


def generator(number: int) -> torch.Generator:
    """A generator for a test's numbers: its own for each `number`, and for each graded run."""
    import torch

    return torch.Generator().manual_seed(number + 1_000_003 * (run_seed() or 0))


def fill_new_memory(on: bool = True) -> None:
    """Have PyTorch, if it is loaded, fill what `torch.empty` gives with NaN or the largest integer.

    Otherwise an answer that reads unwritten memory would find what was there before, and would fail in some
    runs and pass in others.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_deterministic_debug_mode("warn" if on else "default")
