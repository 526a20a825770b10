"""`kv_cache` and `paged_attention` by Triton kernels: what the backend "triton" puts into an engine's parts.

Compiled on a GPU; on a CPU in Triton's interpreter, which is slow but gives the same tokens. The kernels
themselves are `minipaged.kernels.paged`; CUDA graphs are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from minipaged.kernels import triton_status
from minipaged.paged_attention import KVCache
from minipaged.parts import Parts


def with_kernels(parts: Parts, device: torch.device) -> Parts:
    """The parts with a cache and an attention made of kernels: those that `parts` has, else the package's.

    Raises ValueError where no kernel can run.
    """
    _check_triton_runs(device)
    from minipaged.kernels.paged import triton_decode, triton_fast  # here, because they need triton

    package_split = None if parts.paged_decode else triton_fast.paged_decode_split
    attention = TritonAttention(
        parts.paged_decode or triton_decode.paged_decode,
        parts.paged_decode_split or package_split,
        parts.paged_prefill or triton_fast.paged_prefill,
    )
    cache = triton_kv_cache(
        parts.store_kv or triton_decode.store_kv, parts.copy_blocks or triton_fast.copy_blocks
    )
    return replace(parts, kv_cache=cache, paged_attention=attention)


def _check_triton_runs(device: torch.device) -> None:
    status = triton_status()
    if not status.installed:
        raise ValueError(
            "attention_backend='triton' needs the package triton, which is not installed "
            "(pip install triton; there is one for Linux only); use 'torch'"
        )
    if device.type != "cuda" and not (device.type == "cpu" and status.interpret):
        raise ValueError(
            f"attention_backend='triton' compiles for the GPU here, and can't run on device {device}: use "
            f"'torch', or set TRITON_INTERPRET=1 before Python starts, to interpret the kernels on the CPU"
        )


def triton_kv_cache(store_kv: Callable[..., None], copy_blocks: Callable[..., None]) -> type[KVCache]:
    """A KVCache that writes and copies with these two kernels."""

    class TritonKVCache(KVCache):
        def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
            store_kv(k, v, self.k[layer], self.v[layer], slot_mapping)

        def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
            if copies:
                copy_blocks(self.k, self.v, torch.tensor(copies, device=self.k.device))

    return TritonKVCache


@dataclass(frozen=True)
class TritonPlan:
    """What all layers of a step share. is_decode: every sequence has exactly one new token."""

    is_decode: bool
    max_query_len: int
    num_splits: int


@dataclass(frozen=True)
class TritonAttention:
    """`paged_attention` by kernels, with the same arguments; its `plan` takes the place of `plan_attention`.

    A step of nothing but decodes goes to the decode kernel, split over the context if the GPU would otherwise
    idle; any other step goes to `paged_prefill` as a whole, for which a decode is a prompt's last token. A
    reader's `paged_decode` comes without a split one (None), which would take its place.
    """

    paged_decode: Callable[..., torch.Tensor]
    paged_decode_split: Callable[..., torch.Tensor] | None
    paged_prefill: Callable[..., torch.Tensor]

    def plan(
        self,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        k_cache: torch.Tensor,
    ) -> TritonPlan:
        """Which kernel, and how split: read from the tables once a step, because that waits for the GPU."""
        from minipaged.kernels.paged.triton_fast import choose_num_splits, num_processors

        query_lens = query_start_loc.diff().tolist()
        _, B, G, _ = k_cache.shape
        max_context_len, num_programs = block_tables.shape[1] * B, len(context_lens) * G
        num_splits = choose_num_splits(num_programs, max_context_len, num_processors(k_cache.device))
        return TritonPlan(set(query_lens) == {1}, max(query_lens, default=0), num_splits)

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        scale: float,
        plan: TritonPlan | None = None,
    ) -> torch.Tensor:
        """Shapes and meaning as in `minipaged.paged_attention.paged_attention`."""
        if plan is None:
            plan = self.plan(block_tables, context_lens, query_start_loc, k_cache)
        arguments = (q, k_cache, v_cache, block_tables, context_lens)
        if not plan.is_decode:
            return self.paged_prefill(*arguments, query_start_loc, scale, plan.max_query_len)
        if plan.num_splits > 1 and self.paged_decode_split is not None:
            return self.paged_decode_split(*arguments, scale, plan.num_splits)
        return self.paged_decode(*arguments, scale)
