"""The parts of the engine, and how a reader's own take their place.

Why it exists: the course's promise is that the layer you wrote runs in the real engine. Every layer that a
chapter builds is one field here; whatever is not replaced is the package's own, so a wrong chapter never
blocks the next. What it leaves out: whether a part is right. The graders say that.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable
from minipaged.chapters import CHAPTERS, Chapter
from minipaged.copy_on_write import CopyOnWrite
from minipaged.kernels import triton_status
from minipaged.kv_memory import num_blocks_for
from minipaged.paged_attention import KVCache, paged_attention
from minipaged.preemption import Preemption
from minipaged.prefix_cache import PrefixCache
from minipaged.scheduler import Scheduler


@dataclass(frozen=True)
class Parts:
    """One field per layer; `LLM(..., parts=Parts(block_allocator=MyAllocator))` runs the engine on yours."""

    num_blocks_for: Callable[..., int] = num_blocks_for
    block_allocator: type[BlockAllocator] = BlockAllocator
    block_table: type[BlockTable] = BlockTable
    kv_cache: type[KVCache] = KVCache
    paged_attention: Callable[..., torch.Tensor] = paged_attention
    copy_on_write: type[CopyOnWrite] = CopyOnWrite
    prefix_cache: type[PrefixCache] = PrefixCache
    scheduler: type[Scheduler] = Scheduler
    preemption: type[Preemption] = Preemption
    # Kernels; None is the package's own, which can't be imported where there is no triton.
    store_kv: Callable[..., None] | None = None
    paged_decode: Callable[..., torch.Tensor] | None = None
    paged_decode_split: Callable[..., torch.Tensor] | None = None
    paged_prefill: Callable[..., torch.Tensor] | None = None
    copy_blocks: Callable[..., None] | None = None


def check_parts(parts: Parts | None) -> Parts:
    """The parts given, or the package's own for None; ValueError for anything else."""
    if parts is not None and not isinstance(parts, Parts):
        raise ValueError(f"parts must be Parts, as load_parts gives them, got {type(parts).__name__}")
    return parts or Parts()


def load_parts(folder: str | Path, *chapters: str) -> Parts:
    """Take the layers of some chapters from a folder, and the rest from the package.

    >>> load_parts("exercises", "ch03", "ch06")

    "all" stands for every chapter that builds a layer (chapter 3's allocator, not chapter 2's), but for the
    kernels: they need triton, and are slow without a GPU, so they are taken by name. A chapter that is not in
    the list, a file that is missing or cannot be imported, and a class that lacks a public method are a
    ValueError naming file, class and method.
    """
    parts = Parts()
    if chapters == ("all",):
        last = {part: chapter.key for chapter in CHAPTERS for part in chapter.parts if getattr(parts, part)}
        chapters = tuple(dict.fromkeys(last.values()))
    for key in chapters:
        chapter = _find_chapter(key)
        file = Path(folder) / f"{chapter.file_stem}.py"
        if chapter.module.startswith("minipaged.kernels"):
            triton_status()  # decides how kernels run, which triton must know before the file imports it
        module = _import_file(file)
        for name in chapter.parts:
            parts = replace(parts, **{name: _take_part(module, name, file)})
    return parts


def _find_chapter(key: str) -> Chapter:
    with_parts = {chapter.key: chapter for chapter in CHAPTERS if chapter.parts}
    if key not in with_parts:
        raise ValueError(
            f"no chapter {key!r} builds a layer of the engine; these do: {', '.join(with_parts)}"
        )
    return with_parts[key]


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"{file} does not exist; expected the chapter's exercise there")
    spec = importlib.util.spec_from_file_location(f"minipaged_parts_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look for the module of a class
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _take_part(module: ModuleType, part: str, file: Path) -> Any:
    """The object of the same name as the package's own, with at least its public methods."""
    own = getattr(Parts(), part)
    name = getattr(own, "__name__", part)
    theirs = getattr(module, name, None)
    if theirs is None:
        raise ValueError(f"{file} has no {name}")
    methods = vars(own) if isinstance(own, type) else {}
    for method, value in methods.items():
        is_method = not isinstance(value, property)  # which may as well be an attribute that __init__ sets
        if is_method and not method.startswith("_") and not hasattr(theirs, method):
            raise ValueError(f"{file}: class {name} has no {method}")
    return theirs
