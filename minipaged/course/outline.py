"""The order of the course, and which modules hold each chapter's code. Only this module knows either.

The chapters themselves lie in notebooks/, exercises/, solutions/ and tests/.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """One chapter of the course.

    `stem` is what its module is called too: minipaged/<stem>.py. `other_modules` hold more of the code that
    its file has: what the engine never calls, and what the package has divided otherwise. The layers of the
    engine that a chapter's file holds are listed in minipaged/parts.py.

    Example::

        chapter = Chapter(3, "block_allocator", "The block pool")
        chapter.key        # "ch03"
        chapter.file_stem  # "ch03_block_allocator"
    """

    number: int
    stem: str
    title: str
    other_modules: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What a reader types: `minipaged check ch03`."""
        return f"ch{self.number:02d}"

    @property
    def file_stem(self) -> str:
        """The name, without its ending, of the chapter's notebook, exercise, solution and test."""
        return f"{self.key}_{self.stem}"

    @property
    def module(self) -> str:
        """The package's own code for this chapter: minipaged.<stem>, or a kernel module of that name."""
        package = "minipaged.kernels.paged" if self.stem.startswith("triton") else "minipaged"
        return f"{package}.{self.stem}"


_CHAPTERS = "minipaged.course.chapters"

CHAPTERS: tuple[Chapter, ...] = (
    Chapter(0, "start", "Start here"),
    Chapter(1, "kv_memory", "The KV cache and its price", (f"{_CHAPTERS}.ch01_kv_memory.ideas",)),
    Chapter(2, "contiguous", "Contiguous allocation and its waste"),
    Chapter(3, "block_allocator", "The block pool"),
    Chapter(4, "block_table", "Block tables"),
    Chapter(5, "paged_attention", "Paged attention"),
    Chapter(6, "copy_on_write", "Sharing and copy-on-write"),
    Chapter(7, "prefix_cache", "The prefix cache", (f"{_CHAPTERS}.ch07_prefix_cache.ideas",)),
    Chapter(8, "scheduler", "Continuous batching", (f"{_CHAPTERS}.ch08_scheduler.ideas",)),
    Chapter(9, "preemption", "Preemption: recompute or swap", ("minipaged.simulation.preemption_costs",)),
    Chapter(
        10, "engine", "The engine", ("minipaged.sampler", "minipaged.detokenizer", "minipaged.stop_rules")
    ),
    Chapter(11, "triton_decode", "Triton: storing K and V, decoding"),
    Chapter(12, "triton_fast", "Triton: making it fast"),
    Chapter(13, "measure", "Measuring"),
    Chapter(14, "beyond", "Beyond"),
)
