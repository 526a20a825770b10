"""The course's contract as a table: what memory for K and V must do, and what each design was measured to do.

Chapter 02 sets it up with the traditional ways. Chapters 04 (block tables), 06 (copy-on-write) and 07 (prefix
cache) come back to it, each with a column of its own. Each chapter measures in its own cells, and passes the
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

Value = float | str | None

WANTED = {
    "pre_allocation": ("Waste by pre-allocation", "allocate on demand", "0 %"),
    "internal": ("Internal fragmentation", "less than one block per sequence", "below 4 %"),
    "external": ("External fragmentation", "any free piece of memory fits", "0 %"),
    "growth": ("Growth beyond the reservation", "grow without reserving or moving", "always"),
    "sharing": ("Sharing between sequences", "one copy of what is the same", "yes"),
}


@dataclass(frozen=True)
class Score:
    """One design's column. A float is a share of all slots (0.25 is shown as "25.0 %"), a text is shown as it
    is, None is shown as "–": not measured, or not yet.

    pre_allocation: slots set aside for tokens to come. internal: set aside, and never used. external: free,
    but in no single hole. growth: what happens to a sequence that gets longer than planned. sharing: between
    sequences that begin alike.

    Example: `Score("block tables", pre_allocation=0.0, internal=0.0054, external=0.0, growth="a block")`.
    """

    name: str
    pre_allocation: Value = None
    internal: Value = None
    external: Value = None
    growth: Value = None
    sharing: Value = None


class Scorecard:
    """Columns of scores beside the wish; in a notebook it shows as a table.

    >>> Scorecard(Score("reserve to the maximum", 0.04, 0.67, 0.0, "never", "no"))
    """

    def __init__(self, *scores: Score) -> None:
        self.scores = scores

    def markdown(self) -> str:
        """The table, a row for each wish."""
        return "\n".join(f"| {' | '.join(row)} |" for row in self._rows())

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def __repr__(self) -> str:
        return self.markdown()

    def _rows(self) -> Iterator[list[str]]:
        yield ["", "wanted", *(score.name for score in self.scores)]
        yield ["---"] * (2 + len(self.scores))
        for field in fields(Score)[1:]:
            title, wish, target = WANTED[field.name]
            values = [_show(getattr(score, field.name)) for score in self.scores]
            yield [f"**{title}**", f"{wish}: {target}", *values]


def _show(value: Value) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{100 * value:.1f} %"
