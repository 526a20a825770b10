"""The table in docs/instructors.md is of the attacks that are tried, and promises what was seen."""

from __future__ import annotations

import re
from pathlib import Path

from minipaged.course.tasks import import_path

ROOT = Path(__file__).resolve().parents[2]
table = import_path(ROOT / "tools" / "attack_table.py")
PAGE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")


def test_the_table_has_every_attack_and_none_that_broke_a_promise() -> None:
    assert table.is_complete(), "python tools/attack_table.py, as root on Linux"
    assert "BROKEN" not in PAGE


def test_what_namespaces_promise_is_held_and_what_is_not_promised_is_said_in_the_suite() -> None:
    suite = import_path(ROOT / "tests" / "grading" / "attacks.py")
    rows = dict(re.findall(r"^\| (.+?) \| ((?:held|no grade|\*\*).+) \|$", PAGE, re.MULTILINE))
    for attack in [*suite.ATTACKS, *suite.KERNEL_ATTACKS]:
        cells = rows[attack.name].split(" | ")
        assert len(cells) == len(table.COLUMNS)
        assert cells[0] == cells[1] == "held"
        for column, cell in zip(table.COLUMNS, cells, strict=True):
            assert cell != "**not promised**" or column in attack.lost


def test_at_least_twenty_attacks_are_no_variants_of_what_a_naive_grader_suffers() -> None:
    suite = import_path(ROOT / "tests" / "grading" / "attacks.py")
    assert sum(not attack.naive for attack in suite.ATTACKS) >= 20
    assert all(attack.naive or attack.worked for attack in suite.ATTACKS)
