"""What every test gets: one thread, a fixed seed, no deadlines, and the real model if it asks for it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from minipaged.course.seed import run_seed

MODEL = "smollm2-135m"
UNITS = ("test_answers.py", "test_build.py")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads collapse when a neighbour is busy

# No deadline, for a busy machine is not a bug; the same examples every time, but for grades; and one failure,
# the shortest. No phase "explain": it takes longer than all others together, and tells a reader nothing.
settings.register_profile(
    "minipaged", deadline=None, derandomize=run_seed() is None, database=None, report_multiple_bugs=False,
    print_blob=False, phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
settings.load_profile("minipaged")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that two processes end together."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of one file stay in one process, with what they share; but a chapter's answers, and a notebook,
    are a unit each. (xdist's own groups, `--dist loadgroup`, have no effect under pytest 9.)"""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            unit = re.search(r"\[(ch\d\d)[-\]]", test) if file.endswith(UNITS) else None
            return f"{file} {unit[1]}" if unit else file

    return ByUnit(config, log)


@pytest.fixture(autouse=True)
def seed() -> None:
    if "torch" in sys.modules:  # the graders of the first chapters do without, and answer the sooner
        sys.modules["torch"].manual_seed(run_seed() or 0)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of the fetched SmolLM2-135M. Without it a test is skipped, or fails where it has to run."""
    from minipaged.loading.hub import find_model, is_fetched

    if is_fetched(MODEL):
        return find_model(MODEL)
    reason = f"needs the real model, which isn't fetched: run `minipaged fetch {MODEL}`"
    if os.environ.get("MINIPAGED_REQUIRE_MODEL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
