"""Everything about an engine but its model: sizes, limits, policies, and whose layers serve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minipaged.errors import check_int

if TYPE_CHECKING:
    from minipaged.parts import Parts  # at run time only where it is given: it imports PyTorch

ATTENTION_BACKENDS = ("auto", "torch", "triton", "numba")
PREEMPTION_MODES = ("recompute", "swap")


@dataclass(frozen=True)
class EngineConfig:
    """What `LLM` and `Engine` take by these names, checked when it is made; commands have most of them.

    >>> EngineConfig(block_size=16, num_blocks=512)

    block_size: tokens per block. num_blocks, or kv_cache_memory_bytes: the size of the pool (default: 512 MiB
    on a CPU, 80 % of the free memory of a GPU). max_num_seqs, max_num_batched_tokens: limits of one step; the
    tokens are 512 by default on a CPU, 2,048 on a GPU. max_model_len: the longest prompt + output (default:
    the model's). enable_prefix_caching: reuse the blocks of equal beginnings. preemption_mode: "recompute",
    or "swap" to `num_cpu_blocks` blocks of CPU memory. attention_backend: "torch"; "triton", the kernels (on
    a CPU interpreted: slow, for learning); "numba", loops compiled for decoding on a CPU, in float32 or
    bfloat16; or "auto": triton on a GPU, numba where it is installed and the model not tiny. seed: of
    requests that bring none, and of the tiny model's weights. parts: layers to use instead of the package's
    (`load_parts`).

    ValueError, with name and number, for a value that no engine could have.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    preemption_mode: str = "recompute"
    num_cpu_blocks: int = 0
    attention_backend: str = "auto"
    seed: int = 0
    parts: Parts | None = None

    def __post_init__(self) -> None:
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ValueError(
                f"give num_blocks={self.num_blocks} or kv_cache_memory_bytes={self.kv_cache_memory_bytes}, "
                f"not both"
            )
        check_int("block_size", self.block_size, 1)
        check_int("num_cpu_blocks", self.num_cpu_blocks, 0)
        check_int("max_num_seqs", self.max_num_seqs, 1)
        check_int("seed", self.seed, -(2**63), 2**63 - 1)
        for name, minimum, maximum in (
            ("num_blocks", 1, 2**31 - 1),
            ("kv_cache_memory_bytes", 1, 2**60),
            ("max_num_batched_tokens", 1, None),
            ("max_model_len", 2, None),
        ):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum, maximum)
        if not isinstance(self.enable_prefix_caching, bool):
            raise ValueError(
                f"enable_prefix_caching must be True or False, got {self.enable_prefix_caching!r}"
            )
        if self.preemption_mode not in PREEMPTION_MODES:
            raise ValueError(f"preemption_mode must be 'recompute' or 'swap', got {self.preemption_mode!r}")
        if self.preemption_mode == "swap" and self.num_cpu_blocks == 0:
            raise ValueError("preemption_mode='swap' needs a pool to swap to: set num_cpu_blocks above 0")
        if self.attention_backend not in ATTENTION_BACKENDS:
            known = ", ".join(ATTENTION_BACKENDS)
            raise ValueError(f"attention_backend must be one of {known}, got {self.attention_backend!r}")
        if self.parts is not None:
            from minipaged.parts import Parts

            if not isinstance(self.parts, Parts):
                got = type(self.parts).__name__
                raise ValueError(f"parts must be Parts, as load_parts gives them, got {got}")


def configure(config: EngineConfig | None, options: dict[str, Any]) -> EngineConfig:
    """`config`, or the defaults, with `options` replaced: what `LLM` and `Engine` make of their arguments.

    Raises ValueError for something else than an `EngineConfig`, TypeError for a name that it doesn't have.
    """
    if config is not None and not isinstance(config, EngineConfig):
        raise ValueError(f"config must be an EngineConfig, got {type(config).__name__}: {config!r:.60}")
    return replace(config or EngineConfig(), **options)
