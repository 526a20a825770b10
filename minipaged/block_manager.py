"""The memory of the engine as the scheduler sees it: requests in, blocks and slots out.

Allocator, block tables, copy-on-write, prefix cache and preemption each know one thing. This class joins them
and answers the scheduler's questions: what would it cost to admit this request, to run this step, and what
does preempting give back. There are no tensors here, only block ids. vLLM's counterpart is KVCacheManager
(vllm/v1/core/kv_cache_manager.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import Append, BlockTable, blocks_for
from minipaged.copy_on_write import CopyOnWrite
from minipaged.errors import OutOfBlocks
from minipaged.preemption import Preemption
from minipaged.prefix_cache import ROOT_KEY, PrefixCache, block_key, extra_keys
from minipaged.request import Request, Sequence

Copies = list[tuple[int, int]]


@dataclass(frozen=True)
class MemoryParts:
    """The layers that a `BlockManager` joins, none of which touches a tensor. `Parts` adds the others."""

    block_allocator: type[BlockAllocator] = BlockAllocator
    block_table: type[BlockTable] = BlockTable
    copy_on_write: type[CopyOnWrite] = CopyOnWrite
    prefix_cache: type[PrefixCache] = PrefixCache
    preemption: type[Preemption] = Preemption


class BlockManager:
    """One pool of `num_blocks` blocks, a second one of `num_cpu_blocks` for swapped requests, and who uses
    them.

    prefix_queries and prefix_hits count the tokens of all admissions and those found in the prefix cache.
    """

    def __init__(
        self,
        parts: MemoryParts,
        num_blocks: int,
        block_size: int,
        num_cpu_blocks: int = 0,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.parts = parts
        self.num_blocks, self.num_cpu_blocks, self.block_size = num_blocks, num_cpu_blocks, block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_queries = self.prefix_hits = 0
        self.reset()

    def reset(self) -> None:
        """Start with empty pools and an empty prefix cache; tables made before must not be used any more."""
        self.prefix_cache = self.parts.prefix_cache(self.block_size)
        self.allocator = self.parts.block_allocator(self.num_blocks, on_reuse=self.prefix_cache.forget)
        self.copy_on_write = self.parts.copy_on_write(self.allocator)
        has_cpu_pool = self.num_cpu_blocks > 0
        self.cpu_allocator = self.parts.block_allocator(self.num_cpu_blocks) if has_cpu_pool else None

    # -- admission -------------------------------------------------------------------------------------------

    def blocks_to_admit(self, request: Request) -> int:
        """Free blocks that a waiting request needs to compute all the tokens it has.

        A cached block without users counts, because reviving it takes it from the free ones.
        """
        live = request.live
        if request.is_swapped:
            distinct = {block_id for seq in live for block_id in self._table(seq).block_ids}
            return len(distinct) + self.blocks_needed([(seq, seq.num_uncomputed_tokens) for seq in live])
        in_use = sum(self.allocator.ref_count(block_id) > 0 for block_id in self._match(request, live[0]))
        total = sum(
            self._blocks_to_compute(seq, fork_of[1] if fork_of else 0) for seq, fork_of in fork_tree(live)
        )
        return total - in_use

    def admit(self, request: Request) -> Copies:
        """Give a waiting request its tables: swapped in, or with what the prefix cache has. Returns swap-in
        copies."""
        if request.is_swapped:
            request.is_swapped = False
            assert self.cpu_allocator is not None
            return self._move(request, self.cpu_allocator, self.allocator)
        root = request.live[0]
        hits = self._match(request, root)
        for block_id in hits:
            revive_or_share = (
                self.allocator.share if self.allocator.ref_count(block_id) else self.allocator.revive
            )
            revive_or_share(block_id)
        root.table = self._new_table(self.allocator)
        root.table.adopt(hits, len(hits) * self.block_size)
        root.num_published = len(hits)
        for seq, fork_of in fork_tree(request.live):
            seq.fork_of = fork_of
        self.prefix_queries += root.num_tokens
        self.prefix_hits += root.num_computed_tokens
        if not root.output_token_ids:
            request.num_cached_tokens = root.num_computed_tokens
        self.fork_ready(request)
        return []

    def fork_ready(self, request: Request) -> None:
        """Start the branches of a recomputed request whose common prefix has been stored by now."""
        for seq in request.sequences:
            if seq.fork_of is not None:
                parent, shared = seq.fork_of
                if parent.table is not None and parent.table.num_tokens >= shared:
                    seq.table, seq.fork_of = parent.table.fork(shared), None

    # -- growth ----------------------------------------------------------------------------------------------

    def blocks_needed(self, work: list[tuple[Sequence, int]]) -> int:
        """Blocks that a step takes for these sequences and numbers of tokens, copies of shared tails
        included.

        Three branches that share one half-filled block and all write need 2 copies: the last owner writes in
        place.
        """
        if len(work) == 1:  # nearly always, and then its table knows
            seq, num_tokens = work[0]
            return self._table(seq).blocks_needed(num_tokens)
        needed = 0
        writers: Counter[int] = Counter()
        users: dict[int, int] = {}
        for seq, num_tokens in work:
            table = self._table(seq)
            needed += blocks_for(table.num_tokens + num_tokens, self.block_size) - len(table.block_ids)
            if table.num_tokens % self.block_size:
                tail = table.block_ids[-1]
                writers[tail] += 1
                users[tail] = table.allocator.ref_count(tail)
        return needed + sum(min(count, users[tail] - 1) for tail, count in writers.items())

    def append(self, work: list[tuple[Sequence, int]]) -> list[Append]:
        """Take slots for every sequence's new tokens, or for none of them (`OutOfBlocks`)."""
        if len(work) == 1:
            seq, num_tokens = work[0]
            return [self._table(seq).append(num_tokens)]
        if (needed := self.blocks_needed(work)) > self.allocator.num_free:
            raise OutOfBlocks(needed, self.allocator.num_free, self.allocator.num_blocks)
        return [self._table(seq).append(num_tokens) for seq, num_tokens in work]

    def blocks_promised(self, request: Request) -> int:
        """Blocks that an admitted request still needs for the tokens it already has (chunks of its prompt to
        come)."""
        return sum(self._blocks_to_compute(seq, seq.fork_of[1] if seq.fork_of else 0) for seq in request.live)

    def publish(self, request: Request, seq: Sequence) -> None:
        """Make the blocks findable that the last step has filled."""
        if not self.enable_prefix_caching or seq.table is None:
            return
        num_full = seq.table.num_tokens // self.block_size
        if num_full > seq.num_published:
            keys = self._keys(request, seq, num_full)
            for index in range(seq.num_published, num_full):
                self.prefix_cache.publish(seq.table.block_ids[index], keys[index])
            seq.num_published = num_full

    # -- preemption ------------------------------------------------------------------------------------------

    def preempt(self, request: Request, swap: bool) -> Copies:
        """Take all blocks of a running request: swapped out if `swap` and there is room, else to be
        recomputed."""
        live = request.live
        distinct = {block_id for seq in live if seq.table for block_id in seq.table.block_ids}
        all_stored = all(seq.table is not None for seq in live)
        if swap and all_stored and self.cpu_allocator and len(distinct) <= self.cpu_allocator.num_free:
            request.is_swapped = True
            return self._move(request, self.allocator, self.cpu_allocator)
        for seq in live:
            seq.release()
        return []

    def _move(self, request: Request, source: BlockAllocator, target: BlockAllocator) -> Copies:
        tables = [self._table(seq) for seq in request.live]
        moved, copies = self.parts.preemption.move_blocks([t.block_ids for t in tables], source, target)
        for seq, old, block_ids in zip(request.live, tables, moved, strict=True):
            seq.table = self._new_table(target)
            seq.table.adopt(block_ids, old.num_tokens)
            seq.num_published = 0
        return copies

    # -- small helpers ---------------------------------------------------------------------------------------

    def _match(self, request: Request, seq: Sequence) -> list[int]:
        """The cached blocks that this sequence's tokens begin with."""
        if not self.enable_prefix_caching:
            return []
        keys = self._keys(request, seq, (seq.num_tokens - 1) // self.block_size)
        return self.prefix_cache.match(keys, seq.num_tokens)

    def _keys(self, request: Request, seq: Sequence, num_blocks: int) -> list[bytes]:
        """The keys of the sequence's first `num_blocks` blocks, each computed once."""
        extra = extra_keys(cache_salt=request.params.cache_salt)
        for index in range(len(seq.block_keys), num_blocks):
            parent = seq.block_keys[-1] if seq.block_keys else ROOT_KEY
            tokens = seq.token_ids[index * self.block_size : (index + 1) * self.block_size]
            seq.block_keys.append(block_key(parent, tokens, extra))
        return seq.block_keys[:num_blocks]

    def _blocks_to_compute(self, seq: Sequence, num_shared_tokens: int) -> int:
        """Blocks still to be taken before all tokens of a sequence have a slot.

        Without a table yet, the full blocks of what it will share with another branch are not taken again.
        """
        total = blocks_for(seq.num_tokens, self.block_size)
        if seq.table is None:
            return total - num_shared_tokens // self.block_size
        return total - len(seq.table.block_ids)

    def _new_table(self, allocator: BlockAllocator) -> BlockTable:
        copy_on_write = self.copy_on_write if allocator is self.allocator else None
        return self.parts.block_table(allocator, self.block_size, copy_on_write)

    def _table(self, seq: Sequence) -> BlockTable:
        if seq.table is None:
            raise RuntimeError("a sequence without a block table was scheduled")
        return seq.table


def fork_tree(sequences: list[Sequence]) -> list[tuple[Sequence, tuple[Sequence, int] | None]]:
    """For every branch the earlier branch that it has the longest beginning in common with, and its length.

    Recomputing the branches in this order, each as a fork of the other, restores at least the sharing they
    had. The last token of a branch is never shared: it is computed by each, for its logits.
    """
    tree: list[tuple[Sequence, tuple[Sequence, int] | None]] = []
    for index, seq in enumerate(sequences):
        common = [
            (other, min(seq.common_prefix_len(other), seq.num_tokens - 1, other.num_tokens - 1))
            for other in sequences[:index]
        ]
        tree.append((seq, max(common, key=lambda pair: pair[1], default=None)))
    return tree
