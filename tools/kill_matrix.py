"""The graders' own grades: every wrong answer must be rejected, every right one accepted.

    python tools/kill_matrix.py            every chapter that has answers
    python tools/kill_matrix.py ch03       one of them

Prints, for each answer, which tasks failed, and exits with 1 if a wrong answer survived its task, a right one
was rejected, or a known mistake was not called by its name. The tests run the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from minipaged.course.answers import Verdict, judge, load_answers
from minipaged.course.tasks import find_chapter, graded_chapters, load_tasks

ROOT = Path(__file__).resolve().parent.parent


def main(keys: list[str]) -> int:
    """Print the matrix of the chapters named, or of all; 1 if an answer was judged wrongly."""
    chapters = [find_chapter(ROOT, key) for key in keys] or graded_chapters(ROOT)
    num_problems = 0
    for chapter in chapters:
        tasks = load_tasks(ROOT, chapter)
        if not (ROOT / "tests" / "answers" / f"{chapter.file_stem}.py").exists():
            print(f"{chapter.key} has no tests/answers/{chapter.file_stem}.py")
            num_problems += 1
            continue
        verdicts = judge(ROOT, chapter, load_answers(ROOT, chapter))
        print(matrix(chapter.key, [task.number for task in tasks], verdicts), flush=True)
        num_problems += sum(bool(verdict.problem) for verdict in verdicts)
    print(f"{num_problems} answers judged wrongly" if num_problems else "no survivor and no false alarm")
    return int(num_problems > 0)


def matrix(key: str, tasks: list[int], verdicts: list[Verdict]) -> str:
    """A row per answer, a column per task: x where the task failed, . where it passed."""
    wrong = [verdict for verdict in verdicts if verdict.answer.task is not None]
    caught = sum(not verdict.problem for verdict in wrong)
    right, accepted = (
        len(verdicts) - len(wrong),
        sum(not v.problem for v in verdicts if v.answer.task is None),
    )
    lines = [
        f"{key}: {caught} of {len(wrong)} wrong answers caught, {accepted} of {right} right ones accepted"
    ]
    lines.append(f"  {'task':<64}{' '.join(map(str, tasks))}")
    for verdict in verdicts:
        answer, failed = verdict.answer, verdict.failed_tasks
        row = " ".join("x" if number in failed else "." for number in tasks)
        kind = f"wrong, task {answer.task}" if answer.task else "right"
        lines.append(f"  {kind:<14}{answer.name[:48]:<50}{row}  {verdict.problem}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Grade the graders with the answers in tests/answers/.")
    parser.add_argument("chapters", nargs="*", metavar="chNN", help="chapters (default: all)")
    sys.exit(main(parser.parse_args().chapters))
