"""The parts of the engine, and how a reader's own take their place.

The course's promise is that the layer you wrote runs in the real engine. Every layer that a chapter builds is
one field of `Parts`; whatever is not replaced is the package's own, so a wrong chapter never blocks the next.
Whether a part is right is for the graders to say.
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

from minipaged.block_manager import MemoryParts
from minipaged.kernels import triton_status
from minipaged.kv_memory import num_blocks_for
from minipaged.paged_attention import KVCache, paged_attention
from minipaged.scheduler import Scheduler

# The layers that a chapter's file holds, by the name behind its number: ch03_block_allocator.py. Where two
# hold the same one, the later file's stands for the layer.
LAYERS: dict[str, tuple[str, ...]] = {
    "kv_memory": ("num_blocks_for",),
    "contiguous": ("block_allocator",),
    "block_allocator": ("block_allocator",),
    "block_table": ("block_table",),
    "paged_attention": ("kv_cache", "paged_attention"),
    "copy_on_write": ("copy_on_write",),
    "prefix_cache": ("prefix_cache",),
    "scheduler": ("scheduler",),
    "preemption": ("preemption",),
    "triton_decode": ("store_kv", "paged_decode"),
    "triton_fast": ("paged_decode_split", "paged_prefill", "copy_blocks"),
}
KERNELS = LAYERS["triton_decode"] + LAYERS["triton_fast"]


@dataclass(frozen=True)
class Parts(MemoryParts):
    """One field per layer; `LLM(..., parts=Parts(block_allocator=MyAllocator))` runs the engine on yours."""

    num_blocks_for: Callable[..., int] = num_blocks_for
    kv_cache: type[KVCache] = KVCache
    paged_attention: Callable[..., torch.Tensor] = paged_attention
    scheduler: type[Scheduler] = Scheduler
    # Kernels; None is the package's own, which can't be imported where there is no triton.
    store_kv: Callable[..., None] | None = None
    paged_decode: Callable[..., torch.Tensor] | None = None
    paged_decode_split: Callable[..., torch.Tensor] | None = None
    paged_prefill: Callable[..., torch.Tensor] | None = None
    copy_blocks: Callable[..., None] | None = None


def load_parts(folder: str | Path, *chapters: str) -> Parts:
    """Take the layers of some chapters from a folder, and the rest from the package.

    >>> load_parts("exercises", "ch03", "ch06")

    "all" stands for every file in the folder that holds a layer, but for the kernels: they need triton, and
    are slow without a GPU, so they are taken by name. A chapter without such a file, a file that cannot be
    imported, and a class that lacks a public method raise ValueError naming file, class and method.
    """
    parts = Parts()
    for file in _files(Path(folder), chapters):
        names = LAYERS[_name(file)]
        if set(names) <= set(KERNELS):
            triton_status()  # decides how kernels run, which triton must know before the file imports it
        module = _import_file(file)
        parts = replace(parts, **{name: _take_part(module, name, file) for name in names})
    return parts


def _files(folder: Path, chapters: tuple[str, ...]) -> list[Path]:
    """The files of these chapters: ("ch03",) is folder/ch03_block_allocator.py."""
    layers = {
        file.name[:4]: file for file in sorted(folder.glob("ch[0-9][0-9]_*.py")) if _name(file) in LAYERS
    }
    if chapters == ("all",):
        latest = {
            part: file for file in layers.values() for part in LAYERS[_name(file)] if part not in KERNELS
        }
        chapters = tuple(dict.fromkeys(file.name[:4] for file in latest.values())) or chapters
    for key in chapters:
        if key not in layers:
            known = ", ".join(file.name for file in layers.values()) or "none"
            raise ValueError(
                f"{folder} has no file of chapter {key!r} with a layer of the engine; it has: {known}"
            )
    return [layers[key] for key in chapters]


def _name(file: Path) -> str:
    return file.stem[5:]


def _import_file(file: Path) -> ModuleType:
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
