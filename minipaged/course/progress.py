"""What a reader has reached: points per task and hints seen, in `.minipaged/progress.json` beside the course.

These are not grades: the file is the reader's own, to edit or to delete.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from minipaged.course.report import ChapterReport


@dataclass
class Progress:
    """points, hints: by chapter ("ch03") and task ("2"); points as of the last check, hints as a number seen.

    >>> progress = Progress.load(root)
    >>> progress.take(report); progress.save(root)
    """

    points: dict[str, dict[str, int]] = field(default_factory=dict)
    hints: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> Progress:
        """What the file says; nothing reached yet if it is missing or can't be read."""
        try:
            data = json.loads(_file(root).read_text(encoding="utf-8"))
            return cls(
                {k: {t: int(n) for t, n in v.items()} for k, v in data["points"].items()},
                {k: {t: int(n) for t, n in v.items()} for k, v in data["hints"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return cls()

    def save(self, root: Path) -> None:
        """Write the file in one piece, so that a process killed half-way loses nothing.

        Where it can't be written (a read-only folder), a warning says so; what was checked still stands.
        """
        file = _file(root)
        text = json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"
        try:
            file.parent.mkdir(exist_ok=True)
            with NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as draft:
                draft.write(text)
            os.replace(draft.name, file)
        except OSError as error:
            warnings.warn(f"progress is not kept: {error}", stacklevel=2)

    def take(self, report: ChapterReport) -> None:
        """Remember the points of the tasks that a check has judged; the others stay."""
        chapter = self.points.setdefault(report.chapter.key, {})
        chapter.update({str(task.task.number): task.points for task in report.tasks})

    def of(self, key: str) -> int:
        """The points of a chapter, as of its last check."""
        return sum(self.points.get(key, {}).values())

    def forget(self, key: str) -> None:
        """Start a chapter anew."""
        self.points.pop(key, None)
        self.hints.pop(key, None)


def _file(root: Path) -> Path:
    return root / ".minipaged" / "progress.json"
