"""docs/glossary.md: every term in one line, sorted, with a chapter that exists."""

from __future__ import annotations

from pathlib import Path

from minipaged.course.outline import CHAPTERS

GLOSSARY = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


def rows() -> list[list[str]]:
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_row_is_complete_and_terms_are_sorted() -> None:
    terms = [row[0] for row in rows()]
    assert len(terms) > 30 and terms == sorted(terms, key=str.lower) and len(set(terms)) == len(terms)
    for row in rows():
        assert len(row) == 8 and all(row) and row[1].endswith("."), row


def test_every_term_has_a_chapter() -> None:
    numbers = {str(chapter.number) for chapter in CHAPTERS}
    assert {row[3] for row in rows()} <= numbers


def test_the_words_of_the_design_are_all_there() -> None:
    words = {
        "block",
        "block size",
        "block table",
        "slot",
        "slot mapping",
        "prefill",
        "decode",
        "preemption",
        "request",
        "sequence",
    }
    assert words <= {row[0] for row in rows()}
