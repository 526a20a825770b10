"""Chapter 5: paged attention.

You write the layer that touches the bytes: `KVCache` stores K and V by slot, and `paged_attention_reference`
attends to contexts that lie scattered over blocks, one sequence after another. Dimension letters: T tokens in
the batch, S sequences, H query heads, G KV heads, D numbers per head, N blocks, B tokens per block, L layers;
Q new tokens and K tokens of context of one sequence. Every function has its specification in its docstring,
and steps to follow; `raise NotImplementedError` is where your code goes.

The engine looks for the names `KVCache` and `paged_attention` in this file; a line below gives your function
the second name too. The package's own `paged_attention` is a faster twin of what you write here.

`minipaged check ch05` grades this file, `minipaged hint ch05` helps, and
`minipaged demo --use exercises:ch05` serves a real model with what you wrote.
"""

from __future__ import annotations

from itertools import pairwise

import torch


class KVCache:
    """The bytes of the pool: `k` and `v` of [L, N, B, G, D].

    A slot is one token's place in every layer: slot = block id · B + offset. So slot 5 of blocks of 2 tokens
    is block 2, offset 1. Memory is not cleared: a slot holds garbage until it is written.

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
        """Given: room for `num_blocks` blocks in every layer."""
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        if min(shape) < 1:
            raise ValueError(f"every size of a cache [L, N, B, G, D] must be at least 1, got {list(shape)}")
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Given: bytes of the whole pool, 2 · L · N · B · G · D · element size."""
        return 2 * self.k.numel() * self.k.element_size()

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store K and V of T tokens in one layer: token t goes to slot slot_mapping[t].

        k, v: [T, G, D], of any dtype; they are stored in the cache's own. slot_mapping: [T] of int64, all
        different. A token with slot -1 is padding: it is not written, and nothing else changes for it. All T
        may be padding. Nothing but the given slots of this layer changes; what is passed in is only read.

        Example: blocks of 4 tokens, slot_mapping [6, -1, 0]: the first token goes to block 1, offset 2, the
        last to block 0, offset 0, and the one between nowhere.
        """
        # Task 1 ★ store K and V by slot (10 points, about 10 minutes)
        # 1. Leave the padding out: of k, of v and of slot_mapping.
        # 2. View one layer of the cache, [N, B, G, D], as slots: [N·B, G, D]. A view shares its memory.
        # 3. Write the rows of k and v at their slots.
        raise NotImplementedError("ch05_paged_attention, task 1: store K and V by slot")

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Given: copy blocks (src, dst) within this cache; see `copy_blocks_from`."""
        self.copy_blocks_from(self, copies)

    def copy_blocks_from(self, other: KVCache, copies: list[tuple[int, int]]) -> None:
        """Copy block src of `other` to block dst of this cache, K and V in every layer, for all (src, dst).

        All sources are read before any destination is written: with blocks holding a, b, c, the copies
        [(0, 1), (1, 2)] give a, a, b. No destination is listed twice; an empty list changes nothing. `other`
        may be this cache, or one of another number of blocks and on another device (a swap, chapter 9). The
        list is only read.
        """
        # Task 2 ★ copy blocks (10 points, about 10 minutes)
        # 1. Split the pairs into a list of sources and a list of destinations.
        # 2. Read all sources of all layers with one index, `x[:, sources]`: that makes a copy.
        # 3. Move it to this cache's device, and assign it to the destinations. Twice: K and V.
        raise NotImplementedError("ch05_paged_attention, task 2: copy blocks")


def gather_context(cache: torch.Tensor, block_table: torch.Tensor, context_len: int) -> torch.Tensor:
    """K or V of one sequence's first `context_len` tokens in order, in one piece: [context_len, G, D].

    cache: [N, B, G, D], one layer's K or V. block_table: [M] of int64, the sequence's blocks in order. Only
    its first ceil(context_len / B) entries count: the rest may be anything, -1 or a million. Offsets past the
    last token of the last block hold garbage and don't come out. The result is a copy; cache and table are
    only read.

    Example: B = 4, block_table [5, 2, 999], context_len 6: the four rows of block 5, then the first two of
    block 2.
    """
    # Task 3 ★ gather a context (10 points, about 10 minutes)
    # 1. For every position 0 … context_len - 1: its block is block_table[position // B], its offset
    #    position % B.
    # 2. Index the cache with both lists at once: cache[blocks, offsets].
    raise NotImplementedError("ch05_paged_attention, task 3: gather a context")


def causal_mask(query_len: int, context_len: int) -> torch.Tensor:
    """Who sees whom: [Q, K] of bool, True where the i-th of the Q newest tokens may look at position k.

    The Q = query_len new tokens are the last ones of the K = context_len, so the i-th (from 0) stands at
    position K - Q + i. It sees every position up to its own, itself included.

    >>> causal_mask(2, 4).int().tolist()        # a chunk: new tokens at positions 2 and 3
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    >>> causal_mask(1, 4).int().tolist()        # a decode
    [[1, 1, 1, 1]]
    """
    # Task 4 ★ who sees whom (10 points, about 5 minutes)
    # 1. The positions of the new tokens, as a column.
    # 2. Compare with the positions 0 … K - 1, as a row.
    raise NotImplementedError("ch05_paged_attention, task 4: who sees whom")


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one sequence's newest tokens, q [Q, H, D], to its context, k and v [K, G, D].

    For every new token i and query head h, with g = h // (H / G) its KV head (H is a multiple of G; heads 0
    and 1 of 4 share KV head 0 of 2):

        scores[k]  = scale · (q[i, h] · k[k, g])      for the positions k that token i sees (`causal_mask`)
        weights    = softmax(scores)                  they are positive and add up to 1
        out[i, h]  = Σ weights[k] · v[k, g]

    Returns [Q, H, D] in q's dtype. bf16 comes in and goes out; scores and sums are best computed in fp32.
    Positions that a token doesn't see have no weight at all. q, k and v are only read.

    Example: one new token in a context of 2, one head, D = 1, scale 1, q = 1. Keys ln 3 and 0 give weights
    of 3/4 and 1/4, so values of 8 and 4 give 7.
    """
    # Task 5 ★★ attention for grouped heads (20 points, about 15 minutes)
    # 1. View q as [Q, G, H // G, D]: the query heads, sorted by the KV head that they read.
    # 2. Scores [G, H // G, Q, K], times the scale; -inf where causal_mask says no; softmax over K.
    # 3. Weights times values, back to [Q, H, D] and to q's dtype.
    raise NotImplementedError("ch05_paged_attention, task 5: attention for grouped heads")


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
    """Causal attention of every sequence's newest tokens to its whole context, through its block table.

    q: [T, H, D], the new tokens of all S sequences, one sequence after another; sequence s owns the rows
    query_start_loc[s] up to, not including, query_start_loc[s + 1] of [S + 1]. k_cache, v_cache:
    [N, B, G, D], one layer; K and V of the new tokens are stored there already. block_tables: [S, M], a row
    as in `gather_context`. context_lens: [S], the tokens that each sequence attends to, its new ones
    included. `plan` is something that the fast twin prepares; ignore it.

    Returns [T, H, D] in q's dtype. A sequence with context 0 gives zeros, and one without new tokens has no
    rows. ValueError, with both numbers, if a sequence has more new tokens than context (of more than 0). All
    that is passed in is only read.

    Example: query_start_loc [0, 3, 4], context_lens [3, 9]: rows 0 to 2 are a whole prompt of 3 tokens, a
    prefill; row 3 is one new token of a sequence of 9, a decode. [0, 3, 7] and [3, 9]: a prefill, and a chunk
    of 4 tokens that sees 5 earlier ones.
    """
    # Task 6 ★★ prefill, decode and chunks in one call (20 points, about 15 minutes)
    # 1. Begin with zeros like q. For every sequence: its rows, its number of new tokens, its context.
    # 2. Nothing to do without context or without new tokens; refuse more new tokens than context.
    # 3. Gather K and V through the sequence's table, attend, put the result into its rows.
    raise NotImplementedError("ch05_paged_attention, task 6: prefill, decode and chunks in one call")


# The name under which the engine finds it.
paged_attention = paged_attention_reference


def fold_block(
    maximum: torch.Tensor,
    total: torch.Tensor,
    weighted: torch.Tensor,
    scores: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A challenge: one step of online softmax. Take a block's scores and values into what is known so far.

    maximum [H]: the largest score so far. total [H]: Σ exp(score - maximum). weighted [H, D]:
    Σ exp(score - maximum) · value. scores: [H, n], values: [n, H, D], of the block's n tokens, n at least 1.
    Returns the new (maximum, total, weighted); the arguments are not changed. At the beginning maximum is
    -inf, total and weighted are 0, and weighted / total is the attention at any time.

    Example with one head and D = 1: the first block has scores [1, 3] and values [10, 20]. Then maximum is 3,
    total exp(-2) + 1 = 1.135 and weighted 10 · exp(-2) + 20 = 21.353.
    """
    # Task 7 ★★★ block by block, with an online softmax (20 points, about 30 minutes)
    # 1. The new maximum. What was summed relative to the old one is exp(old - new) times too large.
    # 2. Rescale total and weighted, and add the block's.
    raise NotImplementedError("ch05_paged_attention, task 7: block by block, with an online softmax")


def attend_by_block(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_len: int,
    scale: float,
) -> torch.Tensor:
    """A challenge: one decode token, block by block, as a GPU kernel does it. Nothing is gathered.

    q: [H, D]. k_cache, v_cache: [N, B, G, D]. block_table, context_len (at least 1) as in `gather_context`;
    query head h uses KV head h // (H / G). Each block is looked at once, in its place, and folded in with
    `fold_block`; only running values are kept. Of the last block, only the tokens that exist. Returns [H, D]
    in q's dtype, equal to attention over the whole context, also where exp(score) would overflow. What is
    passed in is only read.

    Example: B = 4, block_table [5, 2, 999], context_len 6: the four tokens of block 5 are folded in, then the
    first two of block 2.
    """
    # Task 7
    # 1. Start values: -inf, 0 and 0, in fp32.
    # 2. For every block of the table: how many of its tokens exist; their scores [H, n]; fold them in.
    # 3. Divide at the end.
    raise NotImplementedError("ch05_paged_attention, task 7: block by block, with an online softmax")
