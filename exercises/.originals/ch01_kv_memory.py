"""Chapter 1: the KV cache and its price.

You compute what a token's K and V take in memory, and how many blocks a budget buys: your `num_blocks_for`
sizes the pool of the engine. You count what the cache saves, write attention for one new token without and
with a cache, and derive why decoding waits for memory. What stands here without a task is given.

How to work: one task at a time, from the top. `minipaged check ch01` grades this file, `minipaged hint ch01`
helps, and notebooks/ch01_kv_memory.ipynb explains. Letters for sizes: T new tokens, C tokens of context,
L layers, H query heads, G KV heads, D numbers per head.
"""

from __future__ import annotations

import torch

from minipaged.config import ModelConfig
from minipaged.errors import check_int

# -- what a token costs, and what a budget buys --------------------------------------------------------------


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """The bytes that K and V of one token take, in all layers together.

    In each layer a token leaves a key and a value for every KV head, each of `head_dim` numbers of `itemsize`
    bytes (4 in fp32, 2 in fp16 and bf16, 1 in fp8). How many *query* heads there are plays no part: with as
    many KV heads as query heads it is called MHA, with fewer GQA, with a single one MQA.

    Example, OPT-13B in fp16 (40 layers, 40 heads of 128)::

        bytes_per_token(40, 40, 128, 2)      # 819200
    """
    # Task 1 ★ what a token costs (15 points, about 10 minutes)
    # 1. Multiply: two vectors, in every layer, for every KV head, of `head_dim` numbers of `itemsize` bytes.
    raise NotImplementedError("ch01_kv_memory, task 1: what a token costs")


def mla_bytes_per_token(num_layers: int, kv_lora_rank: int, qk_rope_head_dim: int, itemsize: int) -> int:
    """The same for a model with multi-head latent attention (MLA).

    It keeps no keys and values. In each layer a token leaves one compressed vector of `kv_lora_rank` numbers,
    from which the keys and values of *all* heads can be computed again, and one vector of `qk_rope_head_dim`
    numbers: the part of the key that RoPE turns, which cannot be compressed. Neither exists twice.

    Example, DeepSeek-V3 in bf16::

        mla_bytes_per_token(61, 512, 64, 2)  # 70272
    """
    # Task 1
    # 1. Multiply again, but what does a token leave in each layer now?
    raise NotImplementedError("ch01_kv_memory, task 1: what a token costs")


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Given: `bytes_per_token` of a model of this engine.

    Example: SmolLM2-135M in fp32 has 2 · 30 layers · 3 KV heads · 64 · 4 = 46,080 bytes.
    """
    return bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize)


def num_blocks_for(budget_bytes: int, block_size: int, config: ModelConfig, dtype: torch.dtype) -> int:
    """How many whole blocks of `block_size` tokens fit into `budget_bytes`: the size of the engine's pool.

    A block holds K and V of its tokens in every layer. What is left of the budget stays unused.

    Raises ValueError, and the message contains the numbers, if

    * `block_size` is not a whole number of at least 1, or `budget_bytes` not one of 1 to 2**60 (`check_int`
      does this: `check_int("block_size", 0, minimum=1)` raises);
    * the budget is less than one block: the message gives the budget and the bytes of a block.

    Example, a model with 512 bytes per token (2 layers, 2 KV heads of 16, fp32), blocks of 4 tokens::

        num_blocks_for(8191, 4, ModelConfig.tiny(), torch.float32)  # 3: they are 6,144 bytes, four are 8,192
        num_blocks_for(2047, 4, ModelConfig.tiny(), torch.float32)  # ValueError: ... 2047 ... 2048 ...
    """
    # Task 2 ★ how many blocks a budget buys (15 points, about 10 minutes)
    # 1. Check the two numbers.
    # 2. How many bytes is a block? `kv_bytes_per_token` knows a token's.
    # 3. If the budget does not pay for one block, say so, with the numbers.
    # 4. Otherwise count the whole blocks.
    raise NotImplementedError("ch01_kv_memory, task 2: how many blocks a budget buys")


# -- decoding one layer, without a cache and with one --------------------------------------------------------


def tokens_computed(prompt_len: int, output_len: int, is_cached: bool) -> int:
    """How many tokens go through the model until a prompt has its answer. Both lengths are at least 1.

    Each token of the answer is predicted from all tokens before it. Without a cache, all of those go through
    the model each time. With one, only those do whose K and V are not there yet: the whole prompt at first,
    and from then on the token that came last. The last token of the answer never goes in.

    Example, a prompt of 5 tokens and 3 tokens out::

        tokens_computed(5, 3, is_cached=False)   # 18 = 5 + 6 + 7
        tokens_computed(5, 3, is_cached=True)    # 7  = 5 + 1 + 1
    """
    # Task 3 ★ tokens computed, uncached and cached (10 points, about 10 minutes)
    # 1. With a cache: which tokens go in, and when?
    # 2. Without: add up what goes in for the first, the second, … token of the answer (a loop or a formula).
    raise NotImplementedError("ch01_kv_memory, task 3: tokens computed, uncached and cached")


def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Given: x [T, hidden] · weight [hidden, heads, D] -> [T, heads, D], the queries, keys or values of T
    tokens. `project(x, w)[t, h]` is `x[t] @ w[:, h]`."""
    return torch.tensordot(x, weight, dims=1)


def attend_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of one token: its queries q [H, D] look at C tokens with keys k and values v [C, G, D].

    Returns [H, D]. Per query head: the score of each of the C tokens is the dot product of the query and the
    token's key, times 1 / √D; softmax over the C scores gives weights; the result is the sum of the values,
    each times its weight.

    H is a multiple of G. Query head h uses KV head h // (H / G): with 4 query and 2 KV heads, query heads 0
    and 1 share KV head 0, query heads 2 and 3 share KV head 1. The inputs are not changed.

    Example: two tokens with equal keys get equal weights::

        attend_one(torch.ones(1, 2), torch.ones(2, 1, 2), torch.tensor([[[0.0, 4.0]], [[2.0, 8.0]]]))
        # tensor([[1., 6.]])
    """
    # Task 4 ★★ attention of one token (15 points, about 15 minutes)
    # 1. Find the group: how many query heads share a KV head?
    # 2. Scores [H, C] (or [G, H / G, C]): every query head against all C keys of its KV head, times D**-0.5.
    # 3. Softmax over the C tokens.
    # 4. The weighted sum of the values, [H, D].
    raise NotImplementedError("ch01_kv_memory, task 4: attention of one token")


class DenseCache:
    """K and V of one sequence in one layer, in one piece of memory that is set aside at the start.

    `DenseCache(max_tokens, num_kv_heads, head_dim)` has room for `max_tokens` tokens, in fp32. `num_tokens`
    of them are written; `k` and `v` are those, [num_tokens, G, D]; `num_bytes` is what it takes, written or
    not. Given, all but `append`.

    Example::

        cache = DenseCache(8, num_kv_heads=1, head_dim=2)
        cache.append(torch.ones(3, 1, 2), torch.zeros(3, 1, 2))
        cache.num_tokens, cache.k.shape, cache.num_bytes     # 3, (3, 1, 2), 2 · 8 · 1 · 2 · 4 = 128
    """

    def __init__(self, max_tokens: int, num_kv_heads: int, head_dim: int) -> None:
        self._kv = torch.empty(2, max_tokens, num_kv_heads, head_dim)  # [0] is K, [1] is V
        self.num_tokens = 0

    @property
    def k(self) -> torch.Tensor:
        """The keys written so far, [num_tokens, G, D]."""
        return self._kv[0, : self.num_tokens]

    @property
    def v(self) -> torch.Tensor:
        """The values written so far, [num_tokens, G, D]."""
        return self._kv[1, : self.num_tokens]

    @property
    def num_bytes(self) -> int:
        """What the cache takes, written or not."""
        return self._kv.nbytes

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store K and V of the next T tokens, k and v of [T, G, D], after those that are there; T may be 0.

        They are copied, and stay as they were: changing k or v afterwards does not change the cache. If T
        more tokens do not fit, ValueError, whose message contains num_tokens, T and max_tokens; then nothing
        has changed.

        Example: with 6 of 8 tokens written, two more fit, and `append` of three says "6 tokens and 3 more do
        not fit into 8".
        """
        # Task 5 ★★ the same with a cache (20 points, about 15 minutes)
        # 1. Where will the last of the new tokens lie? If that is past the end, raise.
        # 2. Write K and V behind what is there.
        # 3. Count the new tokens.
        raise NotImplementedError("ch01_kv_memory, task 5: the same with a cache")


def decode_without_cache(
    x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor
) -> torch.Tensor:
    """Attention of the last of C tokens, computed from scratch.

    x [C, hidden] is what the layer gets for all tokens so far; w_q is [hidden, H, D], w_k and w_v are
    [hidden, G, D]. K and V are computed for all C tokens, the queries for the last one, which looks at all C,
    itself included. Returns [H, D]. The arguments are only read.

    Example: with x of [5, hidden], five tokens are turned into K and V, and one of them into queries.
    """
    # Task 5
    # 1. K and V of every token: `project`.
    # 2. The queries of the last token alone, [H, D].
    # 3. `attend_one`.
    raise NotImplementedError("ch01_kv_memory, task 5: the same with a cache")


def decode_with_cache(
    x_new: torch.Tensor, cache: DenseCache, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor
) -> torch.Tensor:
    """The same result for the next token, x_new [1, hidden], with the K and V of all before it in `cache`.

    Only the new token's queries, K and V are computed. Its K and V are in the cache afterwards, and it looks
    at itself, too. Returns [H, D]. Nothing but the cache is changed.

    Example: if `cache` holds K and V of x[:5], then `decode_with_cache(x[5:6], cache, ...)` equals
    `decode_without_cache(x[:6], ...)`, and cache.num_tokens is 6.
    """
    # Task 5
    # 1. The new token's K and V go into the cache.
    # 2. Its queries look at all that the cache holds now.
    raise NotImplementedError("ch01_kv_memory, task 5: the same with a cache")


# -- why decoding waits for memory ---------------------------------------------------------------------------


def attention_cost(
    num_new: int, context_len: int, num_heads: int, num_kv_heads: int, head_dim: int, itemsize: int
) -> tuple[int, int]:
    """What one layer's attention takes for the last `num_new` of `context_len` tokens: (FLOPs, bytes).

    FLOPs: a query and a key that it sees cost 2·D for their score (D multiplications, D additions) and 2·D to
    add the value, times its weight, to the result. Softmax is left out. Causal: the last token sees all
    `context_len` tokens, the one before it one less, and so on. `num_new` is 1 in a decode step and
    `context_len` in the prefill of a whole prompt; 1 ≤ num_new ≤ context_len.

    Bytes: K and V of all `context_len` tokens are read once, by all query heads of a group and all new tokens
    together, `itemsize` bytes a number. Queries and results are left out: they do not grow with the context.

    Examples, 4 query and 2 KV heads of 16, in fp32::

        attention_cost(1, 10, 4, 2, 16, 4)    # (2560, 2560):  10 pairs, 1 FLOP per byte
        attention_cost(10, 10, 4, 2, 16, 4)   # (14080, 2560): 55 pairs, 5.5 FLOPs per byte
    """
    # Task 6 ★★ FLOPs and bytes of attention (15 points, about 10 minutes)
    # 1. Count the pairs of a new token and a token that it sees.
    # 2. FLOPs: every pair, in every query head.
    # 3. Bytes: K and V of every token, in every KV head.
    raise NotImplementedError("ch01_kv_memory, task 6: FLOPs and bytes of attention")


# -- beyond the engine: layers that look back only so far ----------------------------------------------------


def blocks_held(context_len: int, block_size: int, window: int | None) -> int:
    """The most blocks that one layer holds at any moment while a sequence grows, token by token, from 1 to
    `context_len` tokens.

    `window` None: the layer sees all tokens, so every block is kept. Otherwise each token sees the last
    `window` tokens, itself included, and a block is given back as soon as none of its tokens is among those.

    Example, blocks of 4 and a window of 6. With 8 tokens, tokens 2 to 7 lie in blocks 0 and 1. With 9, tokens
    3 to 8 lie in blocks 0, 1 and 2: three blocks, although two would be enough for six tokens::

        blocks_held(8, 4, 6), blocks_held(100, 4, 6), blocks_held(100, 4, None)     # 2, 3, 25
    """
    # Task 7 ★★★ layers that look back only so far (10 points, about 20 minutes)
    # 1. How many tokens are kept at the end?
    # 2. By how many slots can they be shifted against the borders of blocks, at the worst moment?
    raise NotImplementedError("ch01_kv_memory, task 7: layers that look back only so far")


def max_sequences(
    budget_bytes: int,
    context_len: int,
    block_size: int,
    layer_windows: list[int | None],
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
) -> int:
    """How many sequences of `context_len` tokens a budget holds at once, whatever the moment of each.

    `layer_windows` has one entry per layer, as in `blocks_held`, and is only read. Every layer has blocks of
    its own; one of them takes block_size · 2 · num_kv_heads · head_dim · itemsize bytes. 0 if not even one
    sequence fits.

    Example: two layers, one of them with a window of 6; blocks of 4; 1 KV head of 2 in fp32, so 64 bytes per
    block of a layer. A sequence of 100 tokens needs 25 + 3 blocks, 1,792 bytes::

        max_sequences(4000, 100, 4, [None, 6], 1, 2, 4)     # 2
    """
    # Task 7
    # 1. The blocks of one sequence, over all layers.
    # 2. What they cost, and how often that goes into the budget.
    raise NotImplementedError("ch01_kv_memory, task 7: layers that look back only so far")
