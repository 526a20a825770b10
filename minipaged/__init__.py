"""A small, complete paged engine for LLM serving, to learn from.

Reading order: `llm.py` → `engine.py` → `scheduler.py` → `block_manager.py` → `block_allocator.py`, `block_table.py`,
`copy_on_write.py`, `prefix_cache.py`, `preemption.py` → `paged_attention.py` → `model.py`.
"""

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import Append, BlockTable
from minipaged.copy_on_write import CopyOnWrite
from minipaged.engine import Engine, Stats
from minipaged.errors import ModelError, OutOfBlocks
from minipaged.invariants import check_invariants
from minipaged.llm import LLM
from minipaged.paged_attention import KVCache, paged_attention
from minipaged.params import BeamSearchParams, CompletionOutput, RequestOutput, SamplingParams
from minipaged.parts import Parts, load_parts
from minipaged.prefix_cache import PrefixCache
from minipaged.preemption import Preemption
from minipaged.scheduler import Scheduler

__all__ = [
    "LLM", "Append", "BeamSearchParams", "BlockAllocator", "BlockTable", "CompletionOutput", "CopyOnWrite", "Engine",
    "KVCache", "ModelError", "OutOfBlocks", "Parts", "Preemption", "PrefixCache", "RequestOutput", "SamplingParams",
    "Scheduler", "Stats", "check_invariants", "load_parts", "paged_attention",
]  # fmt: skip
