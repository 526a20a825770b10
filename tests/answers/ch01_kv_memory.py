"""Wrong answers that chapter 1's grader must reject, and right ones that it must accept."""

from minipaged.course.answers import Answers

answers = Answers("ch01")

# -- task 1: what a token costs ------------------------------------------------------------------------------

MHA = "return 2 * num_layers * num_kv_heads * head_dim * itemsize"
MLA = "return num_layers * (kv_lora_rank + qk_rope_head_dim) * itemsize"

answers.wrong(
    "only K is counted", task=1, mistake="K and V are two vectors: only one was counted",
    edits=[(MHA, MHA.replace("2 * ", ""))],
)
answers.wrong(
    "one layer is counted", task=1,
    mistake="one layer was counted: a token leaves K and V in every layer",
    edits=[(MHA, MHA.replace("num_layers * ", ""))],
)
answers.wrong("a float comes out", task=1, edits=[(MHA, MHA.replace("* itemsize", "* itemsize / 1"))])
answers.wrong(
    "MLA is counted for K and for V", task=1,
    mistake="counted for K and for V: MLA keeps one vector, from which both are computed",
    edits=[(MLA, MLA.replace("return ", "return 2 * "))],
)
answers.wrong(
    "MLA without the part that RoPE turns", task=1,
    mistake="the part of the key that RoPE turns was left out",
    edits=[(MLA, MLA.replace(" + qk_rope_head_dim", ""))],
)

# -- task 2: how many blocks a budget buys -------------------------------------------------------------------

DIVIDE = "return budget_bytes // block_bytes"
BLOCK = "block_bytes = block_size * kv_bytes_per_token(config, dtype)"
CHECK_BLOCK = 'check_int("block_size", block_size, minimum=1)\n    # 2**60'
CHECK_BUDGET = 'check_int("kv_cache_memory_bytes", budget_bytes, minimum=1, maximum=2**60)'
TOO_SMALL = "if budget_bytes < block_bytes:"

answers.wrong(
    "rounded up", task=2, mistake="rounded up: the last block does not fit",
    edits=[(DIVIDE, "return -(-budget_bytes // block_bytes)")],
)
answers.wrong("rounded through a float", task=2, edits=[(DIVIDE, "return round(budget_bytes / block_bytes)")])
answers.wrong(
    "tokens are counted, not blocks", task=2, mistake="tokens were counted, not blocks",
    edits=[(DIVIDE, "return budget_bytes // kv_bytes_per_token(config, dtype)")],
)
answers.wrong(
    "fp32 whatever the dtype", task=2, mistake="a number in bf16 takes 2 bytes, not 4",
    edits=[(BLOCK, "block_bytes = block_size * kv_bytes_per_token(config, torch.float32)")],
)
answers.wrong(
    "query heads instead of KV heads", task=2, mistake="query heads were counted in place of KV heads",
    edits=[(BLOCK, "block_bytes = block_size * bytes_per_token(config.num_layers, config.num_heads, "
                   "config.head_dim, dtype.itemsize)")],
)
answers.wrong(
    "a pool of no blocks", task=2, mistake="a pool of 0 blocks serves nobody: this is an error",
    edits=[(TOO_SMALL, "if False:")],
)
answers.wrong("exactly one block is refused", task=2, edits=[(TOO_SMALL, "if budget_bytes <= block_bytes:")])
answers.wrong(
    "an error without the bytes of a block", task=2,
    edits=[(TOO_SMALL, f'{TOO_SMALL}\n        raise ValueError(f"{{budget_bytes}} is too small")\n    if False:')],
)
answers.wrong("no check of the block size", task=2, edits=[(CHECK_BLOCK, "# 2**60")])
answers.wrong("no check of the budget", task=2, edits=[(CHECK_BUDGET, "pass")])
answers.wrong(
    "less than one token is the error, not less than one block", task=2,
    edits=[(TOO_SMALL, "if budget_bytes < kv_bytes_per_token(config, dtype):")],
)
answers.wrong(
    "divided as floats", task=2,
    mistake="divided as floats, which have no room for all digits of so large a number: use //",
    edits=[(DIVIDE, "return int(budget_bytes / block_bytes)")],
)
answers.wrong(
    "the head size is worked out, not read", task=2,
    mistake="the head size is config.head_dim, not hidden_size // num_heads",
    edits=[(BLOCK, "block_bytes = block_size * bytes_per_token(config.num_layers, config.num_kv_heads, "
                   "config.hidden_size // config.num_heads, dtype.itemsize)")],
)
answers.wrong(
    "True is a block size", task=2,
    edits=[(CHECK_BLOCK, "if not isinstance(block_size, int) or block_size < 1:\n"
                         '        raise ValueError(f"block_size {block_size}")\n    # 2**60')],
)

# -- task 3: tokens computed ---------------------------------------------------------------------------------

CACHED = "return prompt_len + output_len - 1"
UNCACHED = "return output_len * prompt_len + output_len * (output_len - 1) // 2"

answers.wrong(
    "the last token goes in", task=3, mistake="the last token of the answer was counted: it never goes in",
    edits=[(CACHED, "return prompt_len + output_len")],
)
answers.wrong(
    "the prompt is free", task=3,
    mistake="the prompt was left out: its K and V must be computed once, too",
    edits=[(CACHED, "return output_len")],
)
answers.wrong(
    "only the prompt is computed again", task=3,
    mistake="the tokens of the answer go in again as well, not only the prompt",
    edits=[(UNCACHED, "return output_len * prompt_len")],
)
answers.wrong(
    "the sum starts one late", task=3,
    mistake="the first token of the answer is predicted from the prompt alone: 5 tokens, not 6",
    edits=[(UNCACHED, "return sum(prompt_len + i for i in range(1, output_len + 1))")],
)
answers.wrong(
    "with and without exchanged", task=3, mistake="this is the number with a cache",
    edits=[("    if is_cached:\n        return prompt", "    if not is_cached:\n        return prompt")],
)

# -- task 4: attention of one token --------------------------------------------------------------------------

SCORES = 'scores = torch.einsum("gid,cgd->gic", queries, k) * D**-0.5'
WEIGHTS = "weights = scores.softmax(dim=-1)"
RESULT = 'return torch.einsum("gic,cgd->gid", weights, v).reshape(H, D)'

answers.wrong(
    "not scaled", task=4, mistake="the scores were not scaled by 1 / √D",
    edits=[(SCORES, SCORES.replace(" * D**-0.5", ""))],
)
answers.wrong(
    "scaled by 1 / D", task=4, mistake="the scores were scaled by 1 / D, not by 1 / √D",
    edits=[(SCORES, SCORES.replace("D**-0.5", "1 / D"))],
)
answers.wrong(
    "KV heads are dealt out in turn", task=4,
    mistake="query head h used KV head h % G: neighbours share, h // (H / G)",
    edits=[("queries = q.reshape(G, H // G, D)", "queries = q.reshape(H // G, G, D).transpose(0, 1)"),
           (RESULT, 'return torch.einsum("gic,cgd->igd", weights, v).reshape(H, D)')],
)
answers.wrong(
    "every query head uses KV head 0", task=4, mistake="all query heads used KV head 0",
    edits=[("G = k.shape[1]", "G, k, v = 1, k[:, :1], v[:, :1]")],
)
answers.wrong("softmax over the query heads", task=4, edits=[(WEIGHTS, "weights = scores.softmax(dim=1)")])
answers.wrong(
    "softmax by hand overflows", task=4,
    edits=[(WEIGHTS, "weights = scores.exp() / scores.exp().sum(-1, keepdim=True)")],
)
answers.wrong(
    "one maximum for the softmax of all heads", task=4,
    edits=[(WEIGHTS, "scores = (scores - scores.max()).exp()\n"
                     "    weights = scores / scores.sum(-1, keepdim=True)")],
)
answers.wrong(
    "the weights are put on the keys", task=4,
    mistake="the weights were put on the keys, not on the values",
    edits=[(RESULT, RESULT.replace(", v)", ", k)"))],
)
answers.wrong(
    "the queries are scaled in place", task=4,
    edits=[("queries = q.reshape(G, H // G, D)", "queries = q.mul_(D**-0.5).reshape(G, H // G, D)"),
           (SCORES, SCORES.replace(" * D**-0.5", ""))],
)

# -- task 5: the same with a cache ---------------------------------------------------------------------------

FULL = "if end > max_tokens:"
WRITE_K = "self._kv[0, self.num_tokens : end] = k\n"
WRITE_V = "self._kv[1, self.num_tokens : end] = v\n"
COUNT = "        self.num_tokens = end\n"
STORE = "    cache.append(project(x_new, w_k), project(x_new, w_v))  # first: the token must see itself\n"
LOOK = "    return attend_one(project(x_new, w_q)[0], cache.k, cache.v)\n"
SCRATCH = "return attend_one(project(x[-1:], w_q)[0], project(x, w_k), project(x, w_v))"

answers.wrong("the last slot stays empty", task=5, edits=[(FULL, "if end >= max_tokens:")])
answers.wrong(
    "no check of what fits", task=5, mistake="there is no room for it: this is an error",
    edits=[(FULL, "if False:"),
           (WRITE_K, WRITE_K.replace("= k", "= k[: max_tokens - self.num_tokens]")),
           (WRITE_V, WRITE_V.replace("= v", "= v[: max_tokens - self.num_tokens]"))],
)
answers.wrong(
    "counted before the check", task=5,
    edits=[(FULL, "start, self.num_tokens = self.num_tokens, min(end, max_tokens)\n        " + FULL),
           (WRITE_K, "self._kv[0, start:end] = k\n"), (WRITE_V, "self._kv[1, start:end] = v\n")],
)
answers.wrong(
    "the count is set, not raised", task=5, mistake="the count was set to T, not raised by it",
    edits=[(COUNT, "        self.num_tokens = len(k)\n")],
)
answers.wrong(
    "K and V are moved, not copied", task=5,
    edits=[(COUNT, "        k.zero_(), v.zero_()\n" + COUNT)],
)
answers.wrong(
    "the tokens are scaled in place", task=5,
    edits=[(SCRATCH, "x.mul_(w_q.shape[-1] ** -0.25)\n    root = w_q.shape[-1] ** 0.25\n"
                     "    q, k, v = (project(x, w) * root for w in (w_q, w_k, w_v))\n"
                     "    return attend_one(q[-1], k, v)")],
)
answers.wrong(
    "the new token is scaled in place", task=5,
    edits=[(LOOK, "    return attend_one(project(x_new.mul_(2), w_q)[0] / 2, cache.k, cache.v)\n")],
)
answers.wrong("never counted", task=5, mistake="the new tokens were not counted", edits=[(COUNT, "")])
answers.wrong(
    "K and V exchanged", task=5, mistake="V was written where K belongs",
    edits=[(WRITE_K, "self._kv[1, self.num_tokens : end] = k\n"),
           (WRITE_V, "self._kv[0, self.num_tokens : end] = v\n")],
)
answers.wrong(
    "always at the front", task=5,
    edits=[(WRITE_K, "self._kv[0, : len(k)] = k\n"), (WRITE_V, "self._kv[1, : len(v)] = v\n")],
)
answers.wrong(
    "looks before it stores", task=5, mistake="the token did not look at itself: store first, then look",
    edits=[(STORE, ""),
           (LOOK, "    out = attend_one(project(x_new, w_q)[0], cache.k, cache.v)\n"
                  "    cache.append(project(x_new, w_k), project(x_new, w_v))\n    return out\n")],
)
answers.wrong(
    "looks at itself alone", task=5,
    mistake="the token looked at itself alone, not at the cache",
    edits=[(LOOK, LOOK.replace("cache.k, cache.v", "cache.k[-1:], cache.v[-1:]"))],
)
answers.wrong(
    "never stores the new token", task=5, mistake="the new token's K and V were not stored",
    edits=[(STORE, "    k = torch.cat((cache.k, project(x_new, w_k)))\n"
                   "    v = torch.cat((cache.v, project(x_new, w_v)))\n"),
           (LOOK, "    return attend_one(project(x_new, w_q)[0], k, v)\n")],
)
answers.wrong(
    "the queries of the first token", task=5, mistake="the queries are those of the first token",
    edits=[(SCRATCH, SCRATCH.replace("x[-1:], w_q", "x, w_q"))],
)
answers.wrong(
    "without a cache the token does not see itself", task=5, mistake="the token did not look at itself",
    edits=[(SCRATCH, "seen = x[:-1] if len(x) > 1 else x\n    "
                     "return attend_one(project(x[-1:], w_q)[0], project(seen, w_k), project(seen, w_v))")],
)

# -- task 6: FLOPs and bytes ---------------------------------------------------------------------------------

PAIRS = "pairs = num_new * context_len - num_new * (num_new - 1) // 2"
FLOPS = "flops = 4 * num_heads * head_dim * pairs"
BYTES = "num_bytes = 2 * context_len * num_kv_heads * head_dim * itemsize"

answers.wrong(
    "a multiplication and an addition are one", task=6,
    mistake="a multiplication and an addition are 2 FLOPs, and there are two products: 4·D",
    edits=[(FLOPS, FLOPS.replace("4", "2"))],
)
answers.wrong(
    "not causal", task=6,
    mistake="every new token was counted as seeing all of the context; attention is causal",
    edits=[(PAIRS, "pairs = num_new * context_len")],
)
answers.wrong(
    "the diagonal is missing", task=6, mistake="a token sees itself, too: the diagonal is missing",
    edits=[(PAIRS, "pairs = num_new * context_len - num_new * (num_new + 1) // 2")],
)
answers.wrong(
    "half of the rectangle", task=6,
    edits=[(PAIRS, "pairs = num_new * (context_len + 1) // 2 if num_new > 1 else context_len")],
)
answers.wrong(
    "K and V are read for every query head", task=6,
    mistake="K and V were read once for each query head; the heads of a group share them",
    edits=[(BYTES, BYTES.replace("num_kv_heads", "num_heads"))],
)
answers.wrong(
    "K and V are read for every new token", task=6,
    mistake="K and V were read once for every new token; they are read once for all",
    edits=[(BYTES, BYTES + " * num_new")],
)
answers.wrong(
    "FLOPs of the KV heads", task=6,
    mistake="KV heads were counted: the FLOPs are those of every query head",
    edits=[(FLOPS, FLOPS.replace("num_heads", "num_kv_heads"))],
)
answers.wrong(
    "only K is read", task=6, mistake="K and V are two vectors: only one was counted",
    edits=[(BYTES, BYTES.replace("2 * ", ""))],
)

# -- task 7: layers that look back only so far ---------------------------------------------------------------

SHIFT = "shift = min(block_size - 1, context_len - span)"
HELD = "return -(-(span + shift) // block_size)"

answers.wrong("the window lies as it likes", task=7, edits=[(SHIFT, "shift = 0")])
answers.wrong(
    "one block more, whatever the length", task=7, edits=[(HELD, "return -(-span // block_size) + 1")]
)
answers.wrong(
    "the worst shift even of a short sequence", task=7,
    edits=[(SHIFT, "shift = block_size - 1 if window is not None else 0")],
)
answers.wrong(
    "no window is a window of 1", task=7,
    edits=[("span = context_len if window is None else min(window, context_len)",
            "span = min(window or 1, context_len)")],
)
answers.wrong(
    "a block of all layers for each layer", task=7,
    edits=[("bytes_per_token(1, num_kv_heads,", "bytes_per_token(len(layer_windows), num_kv_heads,")],
)
answers.wrong(
    "the list of windows is emptied", task=7,
    edits=[("    num_blocks = sum(blocks_held(context_len, block_size, window) for window in layer_windows)\n",
            "    num_blocks = 0\n    while layer_windows:\n"
            "        num_blocks += blocks_held(context_len, block_size, layer_windows.pop())\n")],
)
answers.wrong(
    "one sequence at least", task=7,
    edits=[("return budget_bytes // (num_blocks * block_bytes)",
            "return max(1, budget_bytes // (num_blocks * block_bytes))")],
)

# -- right answers -------------------------------------------------------------------------------------------

answers.right(
    "loops that count, K and V repeated, an independent file",
    source='''
import torch

from minipaged.config import ModelConfig


def bytes_per_token(num_layers, num_kv_heads, head_dim, itemsize):
    total = 0
    for _ in range(num_layers):
        for _ in ("key", "value"):
            total += num_kv_heads * head_dim * itemsize
    return total


def mla_bytes_per_token(num_layers, kv_lora_rank, qk_rope_head_dim, itemsize):
    return sum((kv_lora_rank + qk_rope_head_dim) * itemsize for _ in range(num_layers))


def kv_bytes_per_token(config, dtype):
    return bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize)


def num_blocks_for(budget_bytes, block_size, config, dtype):
    if type(block_size) is not int or block_size < 1:
        raise ValueError(f"a block of {block_size} tokens")
    if type(budget_bytes) is not int or not 1 <= budget_bytes <= 2**60:
        raise ValueError(f"a budget of {budget_bytes} bytes")
    needed = kv_bytes_per_token(config, dtype) * block_size
    num_blocks, _ = divmod(budget_bytes, needed)
    if num_blocks == 0:
        raise ValueError(f"{needed} bytes are needed for a block, there are {budget_bytes}")
    return num_blocks


def tokens_computed(prompt_len, output_len, is_cached):
    goes_in = [prompt_len + i for i in range(output_len)]
    if is_cached:
        goes_in = [prompt_len] + [1] * (output_len - 1)
    return sum(goes_in)


def project(x, weight):
    return torch.einsum("th,hgd->tgd", x, weight)


def attend_one(q, k, v):
    group_size = q.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)
    weights = torch.softmax((q * k).sum(-1) / q.shape[1] ** 0.5, dim=0)
    return (weights[:, :, None] * v).sum(0)


class DenseCache:
    """Two lists of rows."""

    def __init__(self, max_tokens, num_kv_heads, head_dim):
        self.max_tokens, self.shape = max_tokens, (num_kv_heads, head_dim)
        self.rows = []

    @property
    def num_tokens(self):
        return len(self.rows)

    @property
    def k(self):
        return torch.stack([k for k, _ in self.rows]) if self.rows else torch.empty(0, *self.shape)

    @property
    def v(self):
        return torch.stack([v for _, v in self.rows]) if self.rows else torch.empty(0, *self.shape)

    @property
    def num_bytes(self):
        return 2 * self.max_tokens * self.shape[0] * self.shape[1] * 4

    def append(self, k, v):
        if len(self.rows) + len(k) > self.max_tokens:
            raise ValueError(f"{len(k)} more than {len(self.rows)} is more than {self.max_tokens}")
        self.rows += [(one.clone(), other.clone()) for one, other in zip(k, v)]


def decode_without_cache(x, w_q, w_k, w_v):
    return attend_one(project(x, w_q)[-1], project(x, w_k), project(x, w_v))


def decode_with_cache(x_new, cache, w_q, w_k, w_v):
    q, k, v = project(x_new, w_q), project(x_new, w_k), project(x_new, w_v)
    cache.append(k, v)
    return attend_one(q[-1], cache.k, cache.v)


def attention_cost(num_new, context_len, num_heads, num_kv_heads, head_dim, itemsize):
    pairs = sum(range(context_len - num_new + 1, context_len + 1))
    row = head_dim * itemsize
    return (2 * head_dim + 2 * head_dim) * num_heads * pairs, context_len * (num_kv_heads * row + num_kv_heads * row)


def blocks_held(context_len, block_size, window):
    held = 0
    for newest in range(context_len):
        oldest = 0 if window is None or newest < window else newest - window + 1
        held = max(held, newest // block_size - oldest // block_size + 1)
    return held


def max_sequences(budget_bytes, context_len, block_size, layer_windows, num_kv_heads, head_dim, itemsize):
    block_bytes = 2 * block_size * num_kv_heads * head_dim * itemsize
    one = sum(block_bytes * blocks_held(context_len, block_size, window) for window in layer_windows)
    count = 0
    while (count + 1) * one <= budget_bytes:
        count += 1
    return count
''',
)
answers.right(
    "PyTorch's own attention",
    edits=[(SCORES, "from torch.nn.functional import scaled_dot_product_attention\n"),
           (WEIGHTS, "k, v = k.transpose(0, 1), v.transpose(0, 1)"),
           (RESULT, "return scaled_dot_product_attention(queries, k, v).reshape(H, D)")],
)
answers.right(
    "a loop over query heads, softmax by hand with the maximum taken off",
    edits=[(SCORES, "heads = []\n    for head in range(H):\n"
                    "        scores = k[:, head * G // H] @ q[head] / D**0.5\n"
                    "        weights = (scores - scores.max()).exp()\n"
                    "        heads.append(weights / weights.sum() @ v[:, head * G // H])"),
           (WEIGHTS, "assert len(heads) == len(queries) * (H // G)"), (RESULT, "return torch.stack(heads)")],
)
answers.right(
    "the check of the budget in other words, the number of blocks first",
    edits=[(TOO_SMALL, "num_blocks = int(budget_bytes) // block_bytes\n    if not num_blocks:"),
           (DIVIDE, "return num_blocks")],
)
answers.right(
    "rows written one by one, keys and values counted as they come",
    edits=[(WRITE_K, "for one, other in zip(k, v):\n            self._kv[0, self.num_tokens] = one\n"),
           (WRITE_V, "    self._kv[1, self.num_tokens] = other\n            self.num_tokens += 1\n"),
           (COUNT, "")],
)
answers.right(
    "a triangle and a rectangle",
    edits=[(PAIRS, "pairs = (context_len - num_new) * num_new + num_new * (num_new + 1) // 2")],
)
