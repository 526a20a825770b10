"""A small, complete paged engine for LLM serving, to learn from.

docs/architecture.md follows a request through it in eight steps. Reading order: `llm.py` → `engine.py` →
`request.py` → `scheduler.py` → `block_manager.py` → `block_allocator.py`, `block_table.py`,
`copy_on_write.py`, `prefix_cache.py`, `preemption.py` → `paged_attention.py` → `model.py`.

The names below are imported when they are first used, so that `minipaged --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.block_allocator import BlockAllocator
    from minipaged.block_table import Append, BlockTable
    from minipaged.copy_on_write import CopyOnWrite
    from minipaged.engine import Engine
    from minipaged.engine_config import EngineConfig
    from minipaged.errors import ModelError, OutOfBlocks
    from minipaged.invariants import check_invariants
    from minipaged.llm import LLM
    from minipaged.paged_attention import KVCache
    from minipaged.params import BeamSearchParams, CompletionOutput, RequestOutput, SamplingParams
    from minipaged.parts import Parts, load_parts
    from minipaged.preemption import Preemption
    from minipaged.prefix_cache import PrefixCache
    from minipaged.scheduler import Scheduler
    from minipaged.stats import Stats

_NAMES = {
    "block_allocator": ("BlockAllocator",),
    "block_table": ("Append", "BlockTable"),
    "copy_on_write": ("CopyOnWrite",),
    "engine": ("Engine",),
    "engine_config": ("EngineConfig",),
    "errors": ("ModelError", "OutOfBlocks"),
    "invariants": ("check_invariants",),
    "llm": ("LLM",),
    "paged_attention": ("KVCache",),
    "params": ("BeamSearchParams", "CompletionOutput", "RequestOutput", "SamplingParams"),
    "parts": ("Parts", "load_parts"),
    "preemption": ("Preemption",),
    "prefix_cache": ("PrefixCache",),
    "scheduler": ("Scheduler",),
    "stats": ("Stats",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "LLM",
    "Append",
    "BeamSearchParams",
    "BlockAllocator",
    "BlockTable",
    "CompletionOutput",
    "CopyOnWrite",
    "Engine",
    "EngineConfig",
    "KVCache",
    "ModelError",
    "OutOfBlocks",
    "Parts",
    "Preemption",
    "PrefixCache",
    "RequestOutput",
    "SamplingParams",
    "Scheduler",
    "Stats",
    "check_invariants",
    "load_parts",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'minipaged' has no attribute {name!r}")
    return getattr(import_module(f"minipaged.{_MODULE_OF[name]}"), name)
