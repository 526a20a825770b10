"""The order of the course, and what each chapter builds. Nothing else in the project knows either.

Left out: the chapters themselves, which lie in notebooks/, exercises/, solutions/ and tests/.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """One chapter of the course.

    `stem` is what its module is called too: minipaged/<stem>.py. `parts` are the fields of `Parts` it builds;
    `other_modules` hold more of the code that its file has, under the package's own division.

    Example::

        chapter = Chapter(3, "block_allocator", "The block pool", ("block_allocator",))
        chapter.key        # "ch03"
        chapter.file_stem  # "ch03_block_allocator"
    """

    number: int
    stem: str
    title: str
    parts: tuple[str, ...] = ()
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


CHAPTERS: tuple[Chapter, ...] = (
    Chapter(0, "start", "Start here"),
    Chapter(1, "kv_memory", "The KV cache and its price", ("num_blocks_for",)),
    Chapter(2, "contiguous", "Contiguous allocation and its waste", ("block_allocator",)),
    Chapter(3, "block_allocator", "The block pool", ("block_allocator",)),
    Chapter(4, "block_table", "Block tables", ("block_table",)),
    Chapter(5, "paged_attention", "Paged attention", ("kv_cache", "paged_attention")),
    Chapter(6, "copy_on_write", "Sharing and copy-on-write", ("copy_on_write",)),
    Chapter(7, "prefix_cache", "The prefix cache", ("prefix_cache",)),
    Chapter(8, "scheduler", "Continuous batching", ("scheduler",)),
    Chapter(9, "preemption", "Preemption: recompute or swap", ("preemption",)),
    Chapter(10, "engine", "The engine", other_modules=("minipaged.sampler", "minipaged.detokenizer")),
    Chapter(11, "triton_decode", "Triton: storing K and V, decoding", ("store_kv", "paged_decode")),
    Chapter(
        12, "triton_fast", "Triton: making it fast", ("paged_decode_split", "paged_prefill", "copy_blocks")
    ),
    Chapter(13, "measure", "Measuring"),
    Chapter(14, "beyond", "Beyond"),
)
