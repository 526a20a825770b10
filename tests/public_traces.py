"""Recorded traces, for the tests that compare with them; a test that finds none is skipped, and says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def find_trace(name: str) -> Path:
    """A public trace: from the folder $MINIPAGED_TRACES, else from shared/data beside the repository."""
    folder = Path(os.environ.get("MINIPAGED_TRACES") or SHARED)
    if not (folder / name).is_file():
        pytest.skip(f"needs the public trace {name}: set MINIPAGED_TRACES to the folder that has it")
    return folder / name
