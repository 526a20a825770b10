"""The graders' own grades: each wrong answer fails its task, each right one passes.

`python tools/kill_matrix.py` shows the whole matrix.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from minipaged.course.answers import Answer, judge, load_answers
from minipaged.course.outline import Chapter
from minipaged.course.tasks import graded_chapters, load_tasks

ROOT = Path(__file__).resolve().parents[2]
GRADED = graded_chapters(ROOT)
ALL = [(chapter, answer) for chapter in GRADED for answer in load_answers(ROOT, chapter)]


@cache
def problems(chapter: Chapter) -> dict[str, str]:
    """What is wrong with the verdict on each answer of a chapter, all of them judged in one go."""
    verdicts = judge(ROOT, chapter, load_answers(ROOT, chapter), quick=True)
    return {verdict.answer.name: verdict.problem for verdict in verdicts}


@pytest.mark.parametrize(
    ("chapter", "answer"),
    ALL,
    ids=[f"{chapter.key}-{answer.name}" for chapter, answer in ALL],
)
def test_an_answer_is_judged_as_it_deserves(chapter: Chapter, answer: Answer) -> None:
    assert problems(chapter)[answer.name] == ""


@pytest.mark.parametrize("chapter", GRADED, ids=lambda chapter: chapter.key)
def test_a_chapter_has_eight_wrong_answers_and_three_right_ones(chapter: Chapter) -> None:
    answers = load_answers(ROOT, chapter)
    assert len({answer.name for answer in answers}) == len(answers)
    wrong = [answer for answer in answers if answer.task is not None]
    assert len(wrong) >= 8 and len(answers) - len(wrong) >= 3
    assert {answer.task for answer in wrong} == {task.number for task in load_tasks(ROOT, chapter)}


def test_a_right_answer_called_wrong_is_a_survivor() -> None:
    """The matrix itself can fail: an answer that is right must not count as caught."""
    chapter = next(chapter for chapter in GRADED if chapter.key == "ch03")
    harmless = (("a pool needs at least 1 block", "a pool needs some blocks"),)
    broken = (("if num_blocks < 1:", "if num_blocks < 0:"),)
    answers = [
        Answer("only another text", 1, harmless),
        Answer("called right", None, broken),
        Answer("named otherwise", 1, broken, mistake="no such mistake"),
        Answer("no file that runs", 1, source="import nowhere"),
    ]
    unchanged, called_right, unnamed, unimportable = judge(ROOT, chapter, answers, quick=True)
    assert unchanged.problem == "task 1 passed"
    assert "failed" in called_right.problem
    assert unnamed.problem.startswith("the mistake was not named")
    assert unimportable.problem.startswith("it cannot be imported")
