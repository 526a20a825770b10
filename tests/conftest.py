"""What every test gets: one thread, a fixed seed, no deadlines, and the real model if it asks for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

MODEL = "smollm2-135m"

settings.register_profile("minipaged", deadline=None)  # a busy machine is no bug
settings.load_profile("minipaged")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # two threads collapse when a neighbour is busy


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of the fetched SmolLM2-135M. Without it a test is skipped, or fails where it has to run."""
    from minipaged.hub import find_model, is_fetched

    if is_fetched(MODEL):
        return find_model(MODEL)
    reason = f"needs the real model, which isn't fetched: run `minipaged fetch {MODEL}`"
    if os.environ.get("MINIPAGED_REQUIRE_MODEL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
