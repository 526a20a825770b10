"""The solution of chapter 10 holds the package's own code, also where its home is not minipaged/engine.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_course import definitions

ROOT = Path(__file__).resolve().parent.parent
SOLUTION = definitions(ROOT / "solutions" / "ch10_engine.py")
HOMES = {
    "sampler": ("uniform", "sample", "draw", "keep_top_k", "keep_top_p"),
    "detokenizer": (
        "Detokenizer.__init__", "Detokenizer.append", "Detokenizer.visible", "Detokenizer.finish",
        "Detokenizer.fork", "find_stop", "overlap",
    ),
    "engine": (
        "append_token", "Engine.step", "Engine._execute", "Engine._move_blocks", "Engine._sample",
        "Engine._new_sequence",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("home", "name"), [(home, name) for home, names in HOMES.items() for name in names])
def test_the_solution_is_the_package_s_own_code(home: str, name: str) -> None:
    assert SOLUTION[name] == definitions(ROOT / "minipaged" / f"{home}.py")[name]


def test_every_other_function_of_the_solution_is_the_challenge() -> None:
    compared = {name for names in HOMES.values() for name in names}
    assert SOLUTION.keys() - compared == {"propose", "accept"}
