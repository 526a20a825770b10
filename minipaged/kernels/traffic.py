"""The bytes that kernels move, as `sanitizer.watch` counts them: by launch, tensor and program.

Decoding is limited by memory: a kernel takes the time of the bytes it moves, and the best kernel moves each
byte that it needs once. Both numbers can be counted without a GPU; their ratio says how much is left to win.

Left out: caches. A byte asked for twice may come from the L2 cache the second time. Chapters 11 and 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

ProgramId: TypeAlias = tuple[int, int, int]


@dataclass
class Traffic:
    """What was moved: how many loads and stores ran, and the bytes they asked for.

    A load or store that is masked throughout counts nothing, and one that names an element in several lanes
    counts it once, as a GPU fetches it once.
    """

    loads: int = 0
    stores: int = 0
    bytes_loaded: int = 0
    bytes_stored: int = 0

    @property
    def bytes_moved(self) -> int:
        return self.bytes_loaded + self.bytes_stored


@dataclass
class TensorTraffic(Traffic):
    """The traffic of one argument; `bytes_needed` counts each element loaded once, and each stored once."""

    bytes_needed: int = 0

    @property
    def excess(self) -> float:
        """Bytes moved per byte needed. 1.0 is the best: nothing was loaded or stored twice."""
        return self.bytes_moved / self.bytes_needed if self.bytes_needed else 1.0


@dataclass
class Launch:
    """One launch: its traffic by argument name, and by the id of each program that touched memory."""

    kernel: str
    tensors: dict[str, TensorTraffic] = field(default_factory=dict)
    programs: dict[ProgramId, Traffic] = field(default_factory=dict)

    def __str__(self) -> str:
        programs = f"{len(self.programs)} program{'s' * (len(self.programs) != 1)}"
        title = f"{self.kernel}, {programs}"
        width = max(len(name) for name in (title, *self.tensors)) + 4
        rows = [f"{title:{width}}{'bytes loaded':>14}{'bytes stored':>14}{'moved / needed':>16}"]
        for name, traffic in self.tensors.items():
            numbers = f"{traffic.bytes_loaded:14,}{traffic.bytes_stored:14,}{traffic.excess:16.2f}"
            rows.append(f"  {name:{width - 2}}{numbers}")
        return "\n".join(rows)


@dataclass
class Report:
    """What the kernels did while they were watched, launch by launch; printed, it is a table for each."""

    launches: list[Launch] = field(default_factory=list)

    def __getitem__(self, tensor: str) -> TensorTraffic:
        """The traffic of the arguments of that name in all launches; KeyError, with the names, if none."""
        found = [launch.tensors[tensor] for launch in self.launches if tensor in launch.tensors]
        if not found:
            names = {name: None for launch in self.launches for name in launch.tensors}
            raise KeyError(f"no kernel that ran has a tensor {tensor!r}: {', '.join(names) or 'none ran'}")
        return TensorTraffic(*map(sum, zip(*(vars(traffic).values() for traffic in found), strict=True)))

    @property
    def bytes_moved(self) -> int:
        return sum(traffic.bytes_moved for launch in self.launches for traffic in launch.tensors.values())

    @property
    def bytes_needed(self) -> int:
        return sum(traffic.bytes_needed for launch in self.launches for traffic in launch.tensors.values())

    def __str__(self) -> str:
        return "\n".join(map(str, self.launches))
