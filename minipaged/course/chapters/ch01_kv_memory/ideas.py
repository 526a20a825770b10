"""The KV cache in its smallest form, one layer of one sequence: what it saves, what decoding waits for."""

from __future__ import annotations

import torch

# -- what a token costs ------------------------------------------------------------------------------------


def mla_bytes_per_token(num_layers: int, kv_lora_rank: int, qk_rope_head_dim: int, itemsize: int) -> int:
    """MLA keeps, per layer, one compressed vector for all heads, and the part of the key that RoPE turns.

    DeepSeek-V3: 61 · (512 + 64) · 2 = 70,272 bytes in bf16 (DeepSeek-V2, arXiv:2405.04434, section 2.1).
    """
    return num_layers * (kv_lora_rank + qk_rope_head_dim) * itemsize


# -- decoding one layer, without a cache and with one --------------------------------------------------------


def tokens_computed(prompt_len: int, output_len: int, is_cached: bool) -> int:
    """Tokens that the model computes to answer a prompt of `prompt_len` with `output_len` tokens.

    The last token of the answer is never computed: its successor isn't needed. 5 in, 3 out: 5 + 6 + 7 = 18
    without a cache, 5 + 1 + 1 = 7 with one.
    """
    if is_cached:
        return prompt_len + output_len - 1
    return output_len * prompt_len + output_len * (output_len - 1) // 2


def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, hidden] · weight [hidden, heads, D] -> [T, heads, D]: the queries, keys or values of T tokens."""
    return torch.tensordot(x, weight, dims=1)


def attend_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One token's queries q [H, D] look at C tokens, k and v of [C, G, D] -> [H, D].

    Query head h uses KV head h // (H / G). Scores are scaled by 1 / √D.
    """
    H, D = q.shape
    G = k.shape[1]
    queries = q.reshape(G, H // G, D)
    scores = torch.einsum("gid,cgd->gic", queries, k) * D**-0.5
    weights = scores.softmax(dim=-1)
    return torch.einsum("gic,cgd->gid", weights, v).reshape(H, D)


class DenseCache:
    """K and V of one sequence in one layer, in one piece: room for `max_tokens`, set aside at the start.

    Invariant: the first `num_tokens` rows are written, the others hold garbage. Rows are appended and never
    changed. Chapter 2 deals with the cost: `num_bytes` is taken from the start, however little is written.
    """

    def __init__(self, max_tokens: int, num_kv_heads: int, head_dim: int) -> None:
        self._kv = torch.empty(2, max_tokens, num_kv_heads, head_dim)
        self.num_tokens = 0

    @property
    def k(self) -> torch.Tensor:
        """The keys written so far, [num_tokens, G, D]: a view, nothing is copied."""
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
        """Store K and V of the next T tokens, [T, G, D] each. ValueError if they don't fit; then nothing is
        stored."""
        end, max_tokens = self.num_tokens + len(k), self._kv.shape[1]
        if end > max_tokens:
            raise ValueError(f"{self.num_tokens} tokens and {len(k)} more do not fit into {max_tokens}")
        self._kv[0, self.num_tokens : end] = k
        self._kv[1, self.num_tokens : end] = v
        self.num_tokens = end


def decode_without_cache(
    x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor
) -> torch.Tensor:
    """Attention of the last token of x [C, hidden], with K and V of all C computed for it -> [H, D]."""
    return attend_one(project(x[-1:], w_q)[0], project(x, w_k), project(x, w_v))


def decode_with_cache(
    x_new: torch.Tensor, cache: DenseCache, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor
) -> torch.Tensor:
    """The same for x_new [1, hidden], the next token: its K and V join those in the cache -> [H, D]."""
    cache.append(project(x_new, w_k), project(x_new, w_v))
    return attend_one(project(x_new, w_q)[0], cache.k, cache.v)


# -- why decoding waits for memory ---------------------------------------------------------------------------


def attention_cost(
    num_new: int, context_len: int, num_heads: int, num_kv_heads: int, head_dim: int, itemsize: int
) -> tuple[int, int]:
    """FLOPs, and bytes of K and V read, of one layer's attention: the last `num_new` of `context_len` tokens.

    A query and a key it sees cost 2·D FLOPs for their score and 2·D for the weighted value (a multiplication
    and an addition per number); softmax is left out. K and V are read once. One token of 1,000, 32 query and
    8 KV heads of 128, in fp16: 16,384,000 FLOPs and 4,096,000 bytes: 4 FLOPs per byte, the size of the group.
    """
    pairs = num_new * context_len - num_new * (num_new - 1) // 2
    flops = 4 * num_heads * head_dim * pairs
    num_bytes = 2 * context_len * num_kv_heads * head_dim * itemsize
    return flops, num_bytes
