"""Paged attention in PyTorch: store K/V by slot, and attend to a context that lies scattered over blocks.

The kernels that came before read one contiguous run of K/V per sequence. Here a sequence's context is
gathered through its block table, and one call serves prefills, decodes and chunks of a prompt together. It
comes twice: `paged_attention_reference` to read, `paged_attention` to run, fast enough for CPUs. The GPU
kernels (`minipaged.kernels.paged`) are tested against both. Chapter 05 (Kwon et al., SOSP'23, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F

# Tokens of context that may be read in vain to attend to more sequences in one call (SmolLM2 on 2 cores: a
# call costs as much as some 500 tokens; 128 to 1,024 measured alike).
MAX_PADDING = 512


class KVCache:
    """The bytes of the pool: `k` and `v` of [L, N, B, G, D].

    A slot is one token's place in every layer: slot = block id · B + offset. Memory is not cleared, so a slot
    holds garbage until it is written; nothing may read it before.

    >>> cache = KVCache(num_layers=1, num_blocks=4, block_size=2, num_kv_heads=1, head_dim=2)
    >>> cache.write(0, torch.ones(1, 1, 2), torch.ones(1, 1, 2), torch.tensor([5]))
    >>> cache.k[0, 2, 1, 0].tolist()        # slot 5 = block 2, offset 1
    [1.0, 1.0]
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        if min(shape) < 1:
            raise ValueError(f"every size of a cache [L, N, B, G, D] must be at least 1, got {list(shape)}")
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool: 2 · L · N · B · G · D · element size."""
        return 2 * self.k.numel() * self.k.element_size()

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store `k` and `v` of [T, G, D] at the slots of [T] (int64) in one layer. Slot -1 is padding: not
        written."""
        padding = slot_mapping < 0
        if padding.any():
            k, v, slot_mapping = k[~padding], v[~padding], slot_mapping[~padding]
        for cache, new in ((self.k[layer], k), (self.v[layer], v)):
            cache.view(-1, *new.shape[1:]).index_copy_(0, slot_mapping, new.to(cache.dtype))

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy blocks (src, dst) in every layer. All sources are read before any destination is written."""
        self.copy_blocks_from(self, copies)

    def copy_blocks_from(self, other: KVCache, copies: list[tuple[int, int]]) -> None:
        """Copy block src of `other` to block dst of this cache: a swap, when the two are on different
        devices."""
        if copies:
            src, dst = (list(ids) for ids in zip(*copies, strict=True))
            self.k[:, dst] = other.k[:, src].to(self.k.device)
            self.v[:, dst] = other.v[:, src].to(self.v.device)


def gather_context(cache: torch.Tensor, block_table: torch.Tensor, context_len: int) -> torch.Tensor:
    """K or V of one sequence's first tokens, in order: [N, B, G, D] -> [context_len, G, D], a copy.

    Block size 4, block_table [5, 2, …], context_len 6: the rows of block 5, then two rows of block 2.
    """
    positions = torch.arange(context_len, device=cache.device)
    block_size = cache.shape[1]
    return cache[block_table[positions // block_size], positions % block_size]


def causal_mask(query_len: int, context_len: int) -> torch.Tensor:
    """Who sees whom: [Q, K] of bool, True where the i-th of the Q newest tokens may look at position k.

    2 new tokens of 4: the first stands at position 2 and sees 0, 1, 2; the second sees all four.
    """
    query_positions = torch.arange(context_len - query_len, context_len)
    return torch.arange(context_len) <= query_positions[:, None]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one sequence's newest tokens, q [Q, H, D], to its context, k and v [K, G, D].

    Query head h uses KV head h // (H / G). Computed in fp32, returned in q's dtype: [Q, H, D].
    """
    (Q, H, D), (K, G, _) = q.shape, k.shape
    queries = q.float().reshape(Q, G, H // G, D)  # the H / G heads of a group read one K/V head, once
    scores = torch.einsum("qgrd,kgd->grqk", queries, k.float()) * scale
    scores = scores.masked_fill(~causal_mask(Q, K).to(q.device), float("-inf"))
    weights = scores.softmax(dim=-1)
    return torch.einsum("grqk,kgd->qgrd", weights, v.float()).reshape(Q, H, D).to(q.dtype)


def paged_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    plan: object = None,
) -> torch.Tensor:
    """The readable twin of `paged_attention`: same arguments, same result, one sequence after another.

    `plan` is what the fast one has prepared; it is not used.
    """
    out = torch.zeros_like(q)
    for seq, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        query_len, context_len = end - start, int(context_lens[seq])
        if context_len == 0 or query_len == 0:
            continue
        if query_len > context_len:
            raise ValueError(f"sequence {seq} has {query_len} new tokens, but a context of {context_len}")
        k = gather_context(k_cache, block_tables[seq], context_len)
        v = gather_context(v_cache, block_tables[seq], context_len)
        out[start:end] = attend(q[start:end], k, v, scale)
    return out


@dataclass(frozen=True)
class AttentionGroup:
    """Sequences that attend in one call: S of them, each with Q new tokens and at most K tokens of context.

    rows: [S·Q], which rows of q they are. slots: [S·K], where their context lies; a place past a sequence's
    end repeats its first slot, so that nothing unwritten is read. workspace: [2, S·K, G, D], where each layer
    gathers its K and V: memory that was just used is faster than fresh memory. bias: [S, 1, Q, K], 0 where a
    query may look and -inf where not, or None when the mask is plain causal over Q = K tokens (`is_causal`)
    or when every query sees all K.
    """

    num_seqs: int
    rows: torch.Tensor
    slots: torch.Tensor
    workspace: torch.Tensor
    bias: torch.Tensor | None
    is_causal: bool


def plan_attention(
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    k_cache: torch.Tensor,
) -> list[AttentionGroup]:
    """What `paged_attention` computes from the tables alone, once a step, so that all layers share it.

    Arguments as in `paged_attention`; of `k_cache` only shape, dtype and device matter.
    """
    query_lens = query_start_loc.diff()
    too_short = (context_lens < query_lens) & (context_lens > 0)
    if bool((query_lens < 0).any()) or bool(too_short.any()):
        raise ValueError(
            f"a context holds its queries, but query lengths are {query_lens.tolist()}, "
            f"contexts {context_lens.tolist()}"
        )
    groups = _group(query_lens.tolist(), context_lens.tolist())
    _, B, G, D = k_cache.shape
    most = max((len(seqs) * int(context_lens[seqs].max()) for seqs in groups), default=0)
    workspace = k_cache.new_empty(2, most, G, D)
    return [
        _plan_group(
            block_tables[seqs],
            context_lens[seqs],
            query_start_loc[seqs],
            int(query_lens[seqs[0]]),
            B,
            workspace,
        )
        for seqs in groups
    ]


def _group(query_lens: list[int], context_lens: list[int]) -> list[list[int]]:
    """Which sequences attend in one call: each prefill or chunk alone, decodes with others of similar length.

    Decodes are taken longest first, and padded to the longest of their group. A new group begins where the
    padding would come to more than MAX_PADDING: a call costs about as much as that many tokens of context.
    """
    groups = [[seq] for seq, query_len in enumerate(query_lens) if query_len > 1 and context_lens[seq] > 0]
    decodes = [seq for seq, query_len in enumerate(query_lens) if query_len == 1 and context_lens[seq] > 0]
    padding = MAX_PADDING + 1
    for seq in sorted(decodes, key=lambda seq: -context_lens[seq]):
        if padding <= MAX_PADDING:
            padding += context_lens[groups[-1][0]] - context_lens[seq]
        if padding > MAX_PADDING:
            groups.append([])
            padding = 0
        groups[-1].append(seq)
    return [sorted(group) for group in groups]


def _plan_group(
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    first_rows: torch.Tensor,
    query_len: int,
    block_size: int,
    workspace: torch.Tensor,
) -> AttentionGroup:
    longest = int(context_lens.max())
    key_positions = torch.arange(longest, device=context_lens.device)
    exists = key_positions < context_lens[:, None]  # [S, K]
    # subtle: entries of a table row past the sequence's end may hold anything: they are no index.
    block_ids = block_tables.long()[:, key_positions // block_size].where(exists, block_tables[:, :1].long())
    slots = block_ids * block_size + torch.where(exists, key_positions % block_size, 0)
    new = torch.arange(query_len, device=context_lens.device)
    is_causal = query_len == longest and query_len > 1
    bias = None
    if not is_causal and not (query_len == 1 and bool(exists.all())):
        query_positions = context_lens[:, None] - query_len + new  # [S, Q]
        visible = key_positions <= query_positions[:, None, :, None]  # [S, 1, Q, K]
        bias = workspace.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))
    rows = (first_rows[:, None] + new).flatten()
    return AttentionGroup(len(slots), rows, slots.flatten(), workspace[:, : slots.numel()], bias, is_causal)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    plan: list[AttentionGroup] | None = None,
) -> torch.Tensor:
    """Causal attention of every sequence's newest tokens to its whole context, through its block table.

    q: [T, H, D], the new tokens of all sequences one after another; sequence s owns rows query_start_loc[s]
    up to query_start_loc[s+1] of [S+1]. k_cache, v_cache: [N, B, G, D], one layer, H a multiple of G, of q's
    dtype. block_tables: [S, M] block ids, padded with anything. context_lens: [S], tokens each sequence
    attends to, its new ones included (their K/V is stored already). `plan` is `plan_attention` of the same
    tables. Returns [T, H, D]; a sequence without context gives zeros.

    Query i of m at context length c sees positions 0 … c - m + i. One new token is a decode, m = c a whole
    prefill, anything between a chunk.
    """
    if plan is None:
        plan = plan_attention(block_tables, context_lens, query_start_loc, k_cache)
    if len(plan) == 1 and len(plan[0].rows) == len(q):  # rows are in order, so these are all of q as it is
        return _attend(q, k_cache, v_cache, plan[0], scale)
    out = torch.zeros_like(q)
    for group in plan:
        out[group.rows] = _attend(q[group.rows], k_cache, v_cache, group, scale)
    return out


def gather_slots(cache: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Copy rows `slots` of [N, B, G, D] to `out` of [len(slots), G, D]: a scattered context in one piece."""
    return torch.index_select(cache.flatten(0, 1), 0, slots, out=out)


def _attend(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, group: AttentionGroup, scale: float
) -> torch.Tensor:
    """One group's queries, [S·Q, H, D] -> [S·Q, H, D]."""
    S, (H, D), G = group.num_seqs, q.shape[1:], k_cache.shape[2]
    k = gather_slots(k_cache, group.slots, out=group.workspace[0]).view(S, -1, G, D).transpose(1, 2)
    v = gather_slots(v_cache, group.slots, out=group.workspace[1]).view(S, -1, G, D).transpose(1, 2)
    if (
        len(q) == S
    ):  # the H / G heads that share a K/V head become its queries: it is read once for all of them
        q = q.view(S, G, H // G, D)
        return F.scaled_dot_product_attention(q, k, v, group.bias, scale=scale).reshape(-1, H, D)
    q = q.view(S, -1, H, D).transpose(1, 2)  # [S, H, Q, D]
    out = F.scaled_dot_product_attention(
        q, k, v, group.bias, is_causal=group.is_causal, scale=scale, enable_gqa=H != G
    )
    return out.transpose(1, 2).reshape(-1, H, D)
