"""Wrong answers that chapter 5's grader must reject, and right ones that it must accept."""

from minipaged.course.answers import Answers

PADDING_LAST = "a token with slot -1 was written to the last slot: to an index, -1 is the last place"
ALL_OR_NOTHING = "one padding token kept the others from being written, or its neighbour took its place"
WRITES_A_COPY = "nothing was written: the tokens went to a copy of the cache, not to a view"
LAYER_ZERO = "layer 0 was written, whatever layer was given"
SPLIT_WRONG = "the slot was split the wrong way: block = slot // B, offset = slot % B"
V_IS_K = "K was stored as V"
ONE_BY_ONE = "copies were made one after another: a source had been overwritten before it was read"
BACKWARDS = "copies ran from the second to the first: the pairs are (source, destination)"
TABLE_IGNORED = "the positions themselves were taken for slots: the block table was not used"
WHOLE_BLOCKS = "whole blocks came out: the rows past the last token hold garbage"
SORTED_BLOCKS = "blocks were taken in order of their ids, not in the table's order"
FROM_ZERO = "the new tokens were counted from position 0: the context before them was forgotten"
NOT_ITSELF = "a token does not see itself"
UPSIDE_DOWN = "the mask is the wrong way round: True is where a token may look"
NO_MASK = "new tokens see tokens that come after them: the causal mask was not applied"
ROUND_ROBIN = "query heads were dealt out in turn (h % G): neighbours share a KV head, h // (H // G)"
FIRST_HEAD = "all query heads read KV head 0"
OWN_SCALE = "scores were scaled by 1 / √D, not by the scale that was given"
NO_SCALE = "the scores were not scaled"
READ_UNWRITTEN = "something was read that no token has been written to (it is NaN here)"
ONLY_NEW = "a sequence attended to its new tokens only, not to its whole context"
EMPTY_CONTEXT = "a softmax over nothing gave NaN: a sequence without context gives zeros"
NOT_RESCALED = "the maximum grew, and what was summed relative to the old one was not rescaled"
NO_MAXIMUM = "the maximum was not subtracted, and exp(score) overflowed"
CHANGED = "what was passed in was changed: the caller still needs it"
ONE_MAXIMUM = "one maximum was subtracted from all scores: every head of every token has its own"

FILTER = """        if padding.any():
            k, v, slot_mapping = k[~padding], v[~padding], slot_mapping[~padding]
"""
STORE = "            cache.view(-1, *new.shape[1:]).index_copy_(0, slot_mapping, new.to(cache.dtype))\n"
K_AND_V = "for cache, new in ((self.k[layer], k), (self.v[layer], v)):"
COPY_K = "            self.k[:, dst] = other.k[:, src].to(self.k.device)\n"
COPY_V = "            self.v[:, dst] = other.v[:, src].to(self.v.device)\n"
GATHER = "    return cache[block_table[positions // block_size], positions % block_size]\n"
QUERIES = "    query_positions = torch.arange(context_len - query_len, context_len)\n"
COMPARE = "    return torch.arange(context_len) <= query_positions[:, None]\n"
VIEW = "    queries = q.float().reshape(Q, G, H // G, D)\n"
SCORES = '    scores = torch.einsum("qgrd,kgd->grqk", queries, k.float()) * scale\n'
MASK = '    scores = scores.masked_fill(~causal_mask(Q, K).to(q.device), float("-inf"))\n'
SOFTMAX = "    weights = scores.softmax(dim=-1)\n"
RESULT = '    return torch.einsum("grqk,kgd->qgrd", weights, v.float()).reshape(Q, H, D).to(q.dtype)\n'
SKIP = "        if context_len == 0 or query_len == 0:\n            continue\n"
REFUSE = """        if query_len > context_len:
            raise ValueError(f"sequence {seq} has {query_len} new tokens, but a context of {context_len}")
"""
OF_SEQ = "        k = gather_context(k_cache, block_tables[seq], context_len)\n"
OF_SEQ_V = "        v = gather_context(v_cache, block_tables[seq], context_len)\n"
PUT = "        out[start:end] = attend(q[start:end], k, v, scale)\n"
LOOP = "    for seq, (start, end) in enumerate(pairwise(query_start_loc.tolist())):\n"
TOTAL = "    total = total * rescale + weights.sum(dim=-1)\n"
WEIGHTED = '    weighted = weighted * rescale[:, None] + torch.einsum("hn,nhd->hd", weights, values)\n'
NEW_MAXIMUM = "    new_maximum = torch.maximum(maximum, scores.amax(dim=-1))\n"
LAST_BLOCK = "        num_tokens = min(block_size, context_len - index * block_size)\n"
FOLD = "        maximum, total, weighted = fold_block(maximum, total, weighted, scores, v)\n"
DIVIDE = "    return (weighted / total[:, None]).to(q.dtype)\n"

answers = Answers("ch05")

# -- task 1: write -----------------------------------------------------------------------------------

answers.wrong("padding goes to the last slot", task=1, mistake=PADDING_LAST, edits=[
    (FILTER, ""),
    (STORE, "            cache.view(-1, *new.shape[1:])[slot_mapping] = new.to(cache.dtype)\n"),
])
answers.wrong(
    "padding is sent to slot 0", task=1,
    edits=[(FILTER, "        slot_mapping = slot_mapping.clamp(min=0)\n")],
)
answers.wrong(
    "a step with padding is skipped", task=1, mistake=ALL_OR_NOTHING,
    edits=[(FILTER, "        if padding.any():\n            return\n")],
)
answers.wrong(
    "the padding is cut off at the end, wherever it is", task=1,
    edits=[(FILTER, "        n = int((~padding).sum())\n        k, v, slot_mapping = k[:n], v[:n], slot_mapping[~padding]\n")],
)
answers.wrong("everything goes to layer 0", task=1, mistake=LAYER_ZERO, edits=[
    (K_AND_V, "for cache, new in ((self.k[0], k), (self.v[0], v)):"),
])
answers.wrong("everything goes to every layer", task=1, edits=[
    (K_AND_V, "for cache, new in [(c, n) for i in range(len(self.k)) for c, n in ((self.k[i], k), (self.v[i], v))]:"),
])
answers.wrong("V is never written", task=1, edits=[(K_AND_V, "for cache, new in ((self.k[layer], k),):")])
answers.wrong("K is stored twice", task=1, mistake=V_IS_K, edits=[
    (K_AND_V, "for cache, new in ((self.k[layer], k), (self.v[layer], k)):"),
])
answers.wrong("writes to a copy", task=1, mistake=WRITES_A_COPY, edits=[
    (STORE, "            cache.flatten(0, 1)[slot_mapping].copy_(new)\n"),
])
answers.wrong("block and offset are exchanged", task=1, mistake=SPLIT_WRONG, edits=[
    (STORE, "            N = cache.shape[0]\n            cache[slot_mapping % N, slot_mapping // N] = new.to(cache.dtype)\n"),
])
answers.wrong("changes the caller's slot_mapping", task=1, mistake=CHANGED, edits=[
    (FILTER, "        given = slot_mapping\n" + FILTER + "        given.clamp_(min=0)\n"),
])
answers.wrong("zeros the padding of the caller's k", task=1, mistake=CHANGED, edits=[
    (FILTER, "        k[padding] = 0\n" + FILTER),
])
answers.wrong("does not convert", task=1, edits=[("new.to(cache.dtype))", "new)")])

# -- task 2: copy ------------------------------------------------------------------------------------

answers.wrong("a loop of copies", task=2, mistake=ONE_BY_ONE, edits=[
    (COPY_K + COPY_V, "            for s, d in copies:\n                self.k[:, d] = other.k[:, s]\n                self.v[:, d] = other.v[:, s]\n"),
])
answers.wrong("source and destination exchanged", task=2, mistake=BACKWARDS, edits=[
    ("src, dst = (list(ids)", "dst, src = (list(ids)"),
])
answers.wrong("only K is copied", task=2, edits=[(COPY_V, "")])
answers.wrong("only the first layer is copied", task=2, edits=[
    (COPY_K, COPY_K.replace("[:, ", "[0, ")), (COPY_V, COPY_V.replace("[:, ", "[0, ")),
])
answers.wrong("layers are taken for blocks", task=2, edits=[
    (COPY_K, COPY_K.replace("[:, ", "[")), (COPY_V, COPY_V.replace("[:, ", "[")),
])
answers.wrong("empties the caller's list", task=2, mistake=CHANGED, edits=[(COPY_V, COPY_V + "            copies.clear()\n")])
answers.wrong("an empty list is too many", task=2, edits=[("        if copies:\n", "        if True:\n")])
answers.wrong("always copies within itself", task=2, edits=[
    (COPY_K, COPY_K.replace("other", "self")), (COPY_V, COPY_V.replace("other", "self")),
])

# -- task 3: gather ----------------------------------------------------------------------------------

answers.wrong("positions are taken for slots", task=3, mistake=TABLE_IGNORED, edits=[
    (GATHER, "    return cache.flatten(0, 1)[positions]\n"),
])
answers.wrong("whole blocks come out", task=3, mistake=WHOLE_BLOCKS, edits=[
    (GATHER, "    return cache[block_table[: -(-context_len // block_size)]].flatten(0, 1)\n"),
])
answers.wrong("the whole table is used as an index", task=3, edits=[
    (GATHER, "    return cache[block_table].flatten(0, 1)[:context_len]\n"),
])
answers.wrong("blocks in order of their ids", task=3, mistake=SORTED_BLOCKS, edits=[
    (GATHER, "    block_table = block_table[: -(-context_len // block_size)].sort().values\n" + GATHER),
])
answers.wrong("a last block that is not full is left out", task=3, edits=[
    (GATHER, "    return cache[block_table[: context_len // block_size]].flatten(0, 1)\n"),
])
answers.wrong("one block too many where the last one is full", task=3, edits=[
    (GATHER, "    return cache[block_table[: context_len // block_size + 1]].flatten(0, 1)[:context_len]\n"),
])
answers.wrong("replaces what the table holds past its end", task=3, mistake=CHANGED, edits=[
    (GATHER, "    block_table.clamp_(0, len(cache) - 1)\n" + GATHER),
])
answers.wrong("a view where one block is enough", task=3, edits=[
    (GATHER, "    if context_len <= block_size:\n        return cache[int(block_table[0]), :context_len]\n" + GATHER),
])

# -- task 4: the mask --------------------------------------------------------------------------------

answers.wrong("the triangle of a prefill, always", task=4, mistake=FROM_ZERO, edits=[
    (QUERIES, "    query_positions = torch.arange(query_len)\n"),
])
answers.wrong("strictly before", task=4, mistake=NOT_ITSELF, edits=[(COMPARE, COMPARE.replace("<=", "<"))])
answers.wrong("True where it may not look", task=4, mistake=UPSIDE_DOWN, edits=[(COMPARE, COMPARE.replace("<=", ">"))])
answers.wrong("numbers instead of bool", task=4, edits=[
    (COMPARE, "    return (torch.arange(context_len) <= query_positions[:, None]).float()\n"),
    ("~causal_mask(Q, K).to(q.device)", "causal_mask(Q, K).to(q.device) == 0"),
])
answers.wrong("transposed", task=4, edits=[
    (COMPARE, "    return torch.arange(context_len)[:, None] <= query_positions\n"),
])

# -- task 5: attention -------------------------------------------------------------------------------

answers.wrong("no mask", task=5, mistake=NO_MASK, edits=[(MASK, "")])
answers.wrong("no scale", task=5, mistake=NO_SCALE, edits=[(SCORES, SCORES.replace(" * scale", ""))])
answers.wrong("the usual scale", task=5, mistake=OWN_SCALE, edits=[(SCORES, SCORES.replace(" * scale", " * D**-0.5"))])
answers.wrong("query heads dealt out in turn", task=5, mistake=ROUND_ROBIN, edits=[
    (VIEW, "    queries = q.float().reshape(Q, H // G, G, D).transpose(1, 2)\n"),
    (RESULT, RESULT.replace('"grqk,kgd->qgrd"', '"grqk,kgd->qrgd"')),
])
answers.wrong("repeat instead of repeat_interleave", task=5, mistake=ROUND_ROBIN, edits=[
    (VIEW, "    k, v = k.repeat(1, H // G, 1), v.repeat(1, H // G, 1)\n    queries = q.float()[:, :, None]\n"),
])
answers.wrong("one KV head for all", task=5, mistake=FIRST_HEAD, edits=[
    (VIEW, "    k, v = k[:, :1].expand(-1, G, -1), v[:, :1].expand(-1, G, -1)\n" + VIEW),
])
answers.wrong("softmax over the queries", task=5, edits=[(SOFTMAX, SOFTMAX.replace("dim=-1", "dim=-2"))])
answers.wrong("0 after the softmax", task=5, edits=[
    (MASK, ""),
    (SOFTMAX, SOFTMAX + "    weights = weights * causal_mask(Q, K).to(q.device)\n"),
])
answers.wrong("masked with a number that is not small enough", task=5, edits=[
    (MASK, MASK.replace('float("-inf")', "-10.0")),
])
answers.wrong("exp without the maximum", task=5, mistake=NO_MAXIMUM, edits=[
    (SOFTMAX, "    weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)\n"),
])
for over, maximum in (
    ("everything", "scores.amax()"),
    ("the heads of a token", "scores.amax(dim=(0, 1, 3), keepdim=True)"),
    ("the heads of a group", "scores.amax(dim=(1, 3), keepdim=True)"),
    ("the tokens of a head", "scores.amax(dim=(2, 3), keepdim=True)"),
):
    answers.wrong(f"one maximum over {over}", task=5, mistake=ONE_MAXIMUM, edits=[
        (SOFTMAX, f"    weights = (scores - {maximum}).exp()\n    weights = weights / weights.sum(dim=-1, keepdim=True)\n"),
    ])
answers.wrong("scales q in place", task=5, mistake=CHANGED, edits=[
    (VIEW, VIEW.replace("q.float()", "q.float().mul_(scale)")), (SCORES, SCORES.replace(" * scale", "")),
])
answers.wrong("weighs the values in place", task=5, mistake=CHANGED, edits=[
    (RESULT, '    out = torch.einsum("grqk,kgd->qgrd", weights, v.float()).reshape(Q, H, D).to(q.dtype)\n    v.mul_(0)\n    return out\n'),
])
answers.wrong("the result is written into q", task=5, mistake=CHANGED, edits=[
    (RESULT, RESULT.replace("return ", "return q.copy_(").rstrip() + ")\n"),
])
answers.wrong("comes back in fp32", task=5, edits=[(RESULT, RESULT.replace(".to(q.dtype)", ""))])
answers.wrong("K times weights", task=5, edits=[(RESULT, RESULT.replace("v.float()", "k.float()"))])

# -- task 6: the whole call --------------------------------------------------------------------------

answers.wrong("every sequence through the first table", task=6, edits=[
    (OF_SEQ, OF_SEQ.replace("[seq]", "[0]")),
    (OF_SEQ_V, OF_SEQ_V.replace("[seq]", "[0]")),
])
answers.wrong("attends to the new tokens alone", task=6, mistake=ONLY_NEW, edits=[
    (PUT, "        out[start:end] = attend(q[start:end], k[-query_len:], v[-query_len:], scale)\n"),
])
answers.wrong("reads to the end of the last block", task=6, mistake=READ_UNWRITTEN, edits=[
    (OF_SEQ, OF_SEQ.replace("context_len)", "-(-context_len // k_cache.shape[1]) * k_cache.shape[1])")),
    (OF_SEQ_V, OF_SEQ_V.replace("context_len)", "len(k))")),
    (PUT, "        k[context_len:] = 0  # they are given no weight, but 0 * NaN is NaN\n        causal = q.new_zeros(len(k) - context_len, *q.shape[1:])\n"
          "        out[start:end] = attend(torch.cat([q[start:end], causal]), k, v, scale)[:query_len]\n"),
])
answers.wrong("a softmax over nothing", task=6, mistake=EMPTY_CONTEXT, edits=[
    (SKIP, "        if query_len == 0:\n            continue\n        if context_len == 0:\n            out[start:end] = float('nan')\n            continue\n"),
])
answers.wrong("uninitialised rows for an empty context", task=6, edits=[
    ("    out = torch.zeros_like(q)\n", "    out = torch.full_like(q, 7.0)\n"),
])
answers.wrong("more new tokens than context is let through", task=6, edits=[
    (REFUSE, "        query_len = min(query_len, context_len)\n        end = start + query_len\n"),
])
answers.wrong("only the first sequence is checked", task=6, edits=[
    (REFUSE, REFUSE.replace("if query_len", "if seq == 0 and query_len")),
])
answers.wrong("several new tokens without context are refused", task=6, edits=[
    (SKIP + REFUSE, REFUSE.replace("> context_len:", "> max(context_len, 1):") + SKIP),
])
answers.wrong("the result is written into q, row by row", task=6, mistake=CHANGED, edits=[
    ("    out = torch.zeros_like(q)\n", "    out = q\n"),
    (SKIP, SKIP.replace("            continue", "            out[start:end] = 0\n            continue")),
])
answers.wrong("replaces what the tables hold past their end", task=6, mistake=CHANGED, edits=[
    (LOOP, "    block_tables.clamp_(0, len(k_cache) - 1)\n" + LOOP),
])
answers.wrong("NaN is cleared out of the cache", task=6, mistake=CHANGED, edits=[
    (LOOP, "    k_cache.nan_to_num_(), v_cache.nan_to_num_()\n" + LOOP),
])
answers.wrong("one row per sequence", task=6, edits=[
    (PUT, "        out[end - 1] = attend(q[end - 1 : end], k, v, scale)[0]\n"),
])
answers.wrong("row s belongs to sequence s", task=6, edits=[
    (LOOP, "    for seq in range(len(context_lens)):\n        start, end = seq, seq + 1\n"),
])
answers.wrong("stops at the first sequence without context", task=6, edits=[
    (SKIP, SKIP.replace("continue", "break")),
])
answers.wrong("an error that does not name the numbers", task=6, edits=[
    ('ValueError(f"sequence {seq} has {query_len} new tokens, but a context of {context_len}")', 'ValueError("too many")'),
])
answers.wrong("does not take the plan", task=6, edits=[("    scale: float,\n    plan: object = None,\n", "    scale: float,\n")])
answers.wrong("V is read from the cache of K", task=6, edits=[("v = gather_context(v_cache", "v = gather_context(k_cache")])

# -- task 7: the challenge ---------------------------------------------------------------------------

answers.wrong("the sum is not rescaled", task=7, mistake=NOT_RESCALED, edits=[(TOTAL, TOTAL.replace(" * rescale", ""))])
answers.wrong("the weighted sum is not rescaled", task=7, mistake=NOT_RESCALED, edits=[
    (WEIGHTED, WEIGHTED.replace(" * rescale[:, None]", "")),
])
answers.wrong("no maximum at all", task=7, mistake=NO_MAXIMUM, edits=[
    (DIVIDE, "    scores = [(k_cache[block_table[i // block_size], i % block_size].float().repeat_interleave(H // G, dim=0) * q.float()).sum(-1) * scale for i in range(context_len)]\n"
             "    weights = torch.stack(scores, dim=1).exp()\n"
             "    return (weighted * torch.exp(maximum)[:, None] / weights.sum(dim=1)[:, None]).to(q.dtype)\n"),
])
answers.wrong("the maximum starts at 0", task=7, edits=[
    ('maximum, total = torch.full((H,), float("-inf"), device=q.device),', "maximum, total = torch.zeros(H, device=q.device),"),
])
answers.wrong("the maximum is that of the last block", task=7, edits=[
    (NEW_MAXIMUM, "    new_maximum = scores.amax(dim=-1)\n"),
])
answers.wrong("the last block is read to its end", task=7, mistake=READ_UNWRITTEN, edits=[
    (LAST_BLOCK, "        num_tokens = block_size\n"),
])
answers.wrong("running values in the dtype of the query", task=7, edits=[
    (FOLD, FOLD.replace("fold_block", "(x.to(q.dtype) for x in fold_block").rstrip() + ")\n"),
])
answers.wrong("never divides", task=7, edits=[(DIVIDE, "    return weighted.to(q.dtype)\n")])
answers.wrong("changes what it was given", task=7, edits=[
    (TOTAL, "    total.mul_(rescale).add_(weights.sum(dim=-1))\n"),
])
answers.wrong("scales q in place, once for each block", task=7, mistake=CHANGED, edits=[
    ('        scores = torch.einsum("hd,nhd->hn", q.float(), k) * scale\n',
     '        scores = torch.einsum("hd,nhd->hn", q.mul_(scale) if index == 0 else q, k)\n'),
])
answers.wrong("leaves the last block out if it is not full", task=7, edits=[
    ("range(-(-context_len // block_size))", "range(max(1, context_len // block_size))"),
])

# -- right answers -----------------------------------------------------------------------------------

CACHE = """
import torch


class KVCache:
    def __init__(self, num_layers, num_blocks, block_size, num_kv_heads, head_dim, dtype=torch.float32, device="cpu"):
        self.k = torch.zeros(num_layers, num_blocks, block_size, num_kv_heads, head_dim, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)

    @property
    def num_bytes(self):
        return self.k.nbytes + self.v.nbytes

    def copy_blocks(self, copies):
        self.copy_blocks_from(self, copies)
"""
ONLINE = """

def fold_block(maximum, total, weighted, scores, values):
    joined = torch.cat([maximum[:, None], scores], dim=1)
    new = joined.max(dim=1).values
    factor = torch.where(maximum.isinf(), 0.0, (maximum - new).exp())
    weights = (scores - new.unsqueeze(1)).exp()
    return (
        new, factor * total + weights.sum(1),
        factor.unsqueeze(1) * weighted + (weights.T.unsqueeze(-1) * values).sum(0),
    )
"""

answers.right(
    "token by token and head by head, with Python loops",
    source=CACHE + """
    def write(self, layer, k, v, slot_mapping):
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot != -1:
                block, offset = divmod(slot, self.k.shape[2])
                self.k[layer, block, offset] = k[token]
                self.v[layer, block, offset] = v[token]

    def copy_blocks_from(self, other, copies):
        read = [(dst, other.k[:, src].clone(), other.v[:, src].clone()) for src, dst in copies]
        for dst, k, v in read:
            self.k[:, dst] = k
            self.v[:, dst] = v


def gather_context(cache, block_table, context_len):
    N, B, G, D = cache.shape
    out = cache.new_empty(context_len, G, D)
    for position in range(context_len):
        out[position] = cache[int(block_table[position // B]), position % B]
    return out


def causal_mask(query_len, context_len):
    mask = torch.zeros(query_len, context_len, dtype=torch.bool)
    for i in range(query_len):
        mask[i, : context_len - query_len + i + 1] = True
    return mask


def attend(q, k, v, scale):
    out = torch.empty_like(q)
    mask = causal_mask(len(q), len(k))
    for i in range(len(q)):
        for h in range(q.shape[1]):
            g = h * k.shape[1] // q.shape[1]
            seen = mask[i]
            weights = torch.softmax(k[seen, g].double() @ q[i, h].double() * scale, dim=0)
            out[i, h] = (weights @ v[seen, g].double()).to(q.dtype)
    return out


def paged_attention(q, k_cache, v_cache, block_tables, context_lens, query_start_loc, scale, plan=None):
    pieces = []
    for s in range(len(context_lens)):
        rows, context = q[query_start_loc[s] : query_start_loc[s + 1]], int(context_lens[s])
        if context and len(rows) > context:
            raise ValueError(f"{len(rows)} > {context}")
        k, v = (gather_context(cache, block_tables[s], context) for cache in (k_cache, v_cache))
        pieces.append(attend(rows, k, v, scale) if context else rows * 0)
    return torch.cat(pieces)


paged_attention_reference = paged_attention
""" + ONLINE + """

def attend_by_block(q, k_cache, v_cache, block_table, context_len, scale):
    H, D = q.shape
    state = torch.full((H,), -torch.inf), torch.zeros(H), torch.zeros(H, D)
    for position in range(context_len):  # a block may be taken in token by token
        block, offset = int(block_table[position // k_cache.shape[1]]), position % k_cache.shape[1]
        heads = [h * k_cache.shape[2] // H for h in range(H)]
        k, v = k_cache[block, offset][heads].float(), v_cache[block, offset][heads].float()
        state = fold_block(*state, (q.float() * k).sum(-1, keepdim=True) * scale, v[None])
    return (state[2] / state[1][:, None]).to(q.dtype)
""",
)
answers.right(
    "whole blocks cut to length, tril, repeat_interleave and PyTorch's own attention",
    source=CACHE + """
    def write(self, layer, k, v, slot_mapping):
        (keep,) = torch.where(slot_mapping >= 0)
        slots, size = slot_mapping[keep], self.k.shape[2]
        self.k[layer][slots // size, slots % size] = k[keep].to(self.k.dtype)
        self.v[layer][slots // size, slots % size] = v[keep].to(self.v.dtype)

    def copy_blocks_from(self, other, copies):
        pairs = torch.tensor(copies, dtype=torch.int64).reshape(-1, 2)
        self.k.index_copy_(1, pairs[:, 1], other.k.index_select(1, pairs[:, 0]))
        self.v.index_copy_(1, pairs[:, 1], other.v.index_select(1, pairs[:, 0]))


def gather_context(cache, block_table, context_len):
    num_blocks = (context_len + cache.shape[1] - 1) // cache.shape[1]
    return cache[block_table[:num_blocks]].flatten(0, 1)[:context_len]


def causal_mask(query_len, context_len):
    return torch.ones(query_len, context_len, dtype=torch.bool).tril(context_len - query_len)


def attend(q, k, v, scale):
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    mask = causal_mask(q.shape[1], k.shape[1])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(0, 1)


def paged_attention_reference(q, k_cache, v_cache, block_tables, context_lens, query_start_loc, scale, plan=None):
    starts, contexts, out = query_start_loc.tolist(), context_lens.tolist(), q.new_zeros(q.shape)
    for table, context, start, end in zip(block_tables, contexts, starts, starts[1:]):
        if context and end > start:
            if end - start > context:
                raise ValueError("a sequence has %d new tokens of %d" % (end - start, context))
            k, v = gather_context(k_cache, table, context), gather_context(v_cache, table, context)
            out[start:end] = attend(q[start:end], k, v, scale)
    return out


def paged_attention(*args, **kwargs):
    return paged_attention_reference(*args, **kwargs)
""" + ONLINE + """

def attend_by_block(q, k_cache, v_cache, block_table, context_len, scale):
    (H, D), G = q.shape, k_cache.shape[2]
    state, left = (torch.full((H,), float("-inf")), torch.zeros(H), torch.zeros(H, D)), context_len
    for block in block_table.tolist():
        n = min(left, k_cache.shape[1])
        if n <= 0:
            break
        k = k_cache[block][:n].float()
        scores = torch.einsum("gid,ngd->gin", q.float().reshape(G, H // G, D), k).reshape(H, n) * scale
        values = v_cache[block][:n].float()[:, :, None].expand(n, G, H // G, D).reshape(n, H, D)
        state, left = fold_block(*state, scores, values), left - n
    return (state[2] / state[1].unsqueeze(1)).to(q.dtype)
""",
)
answers.right(
    "all of it one matrix: every token of the pool is a column, and most are masked",
    source=CACHE + """
    def write(self, layer, k, v, slot_mapping):
        if not len(slot_mapping):
            return
        k, v, slot_mapping = k.to(self.k.dtype), v.to(self.v.dtype), slot_mapping.clone()
        real = slot_mapping >= 0
        flat_k, flat_v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
        flat_k[slot_mapping[real]] = k[real]
        flat_v[slot_mapping[real]] = v[real]

    def copy_blocks_from(self, other, copies):
        k, v = other.k.clone(), other.v.clone()
        for src, dst in copies:
            self.k[:, dst], self.v[:, dst] = k[:, src], v[:, src]


def _slots(block_table, block_size, context_len):
    return [int(block_table[p // block_size]) * block_size + p % block_size for p in range(context_len)]


def gather_context(cache, block_table, context_len):
    flat = cache.reshape(-1, *cache.shape[2:])
    return flat[_slots(block_table, cache.shape[1], context_len)]


def causal_mask(query_len, context_len):
    rows = [[True] * (context_len - query_len + 1 + i) + [False] * (query_len - 1 - i) for i in range(query_len)]
    return torch.tensor(rows)


def attend(q, k, v, scale):
    (Q, H, D), G = q.shape, k.shape[1]
    heads = torch.arange(H) // (H // G)
    scores = torch.einsum("qhd,khd->qhk", q.float(), k.float()[:, heads]) * scale
    scores = torch.where(causal_mask(Q, len(k))[:, None], scores, -torch.inf)
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    out = torch.einsum("qhk,khd->qhd", weights, v.float()[:, heads])
    return (out / weights.sum(dim=-1, keepdim=True)).to(q.dtype)


def paged_attention(q, k_cache, v_cache, block_tables, context_lens, query_start_loc, scale, plan=None):
    (T, H, D), (N, B, G, _) = q.shape, k_cache.shape
    sees = torch.zeros(T, N * B, dtype=torch.bool)
    for s, context in enumerate(context_lens.tolist()):
        start, end = int(query_start_loc[s]), int(query_start_loc[s + 1])
        if context == 0 or start == end:
            continue
        if end - start > context:
            raise ValueError(f"sequence {s}: {end - start} of {context}")
        slots = torch.tensor(_slots(block_tables[s], B, context))
        for row in range(start, end):
            sees[row, slots[: context - (end - 1 - row)]] = True
    used = sees.any(dim=0)  # what nobody sees is never read: it may be NaN
    heads = torch.arange(H) // (H // G)
    k, v = (c.reshape(N * B, G, D)[used].float()[:, heads] for c in (k_cache, v_cache))
    scores = torch.einsum("qhd,khd->qhk", q.float(), k) * scale
    scores = scores.masked_fill(~sees[:, used][:, None], -torch.inf)
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    return torch.einsum("qhk,khd->qhd", weights, v).to(q.dtype)


paged_attention_reference = paged_attention
""" + ONLINE + """

def attend_by_block(q, k_cache, v_cache, block_table, context_len, scale):
    H, B, G = len(q), k_cache.shape[1], k_cache.shape[2]
    heads, state = [h // (H // G) for h in range(H)], None
    for start in range(0, context_len, B):
        n, block = min(B, context_len - start), block_table[start // B]
        k, v = k_cache[block, :n][:, heads].float(), v_cache[block, :n][:, heads].float()
        scores = (q.float() * k).sum(dim=-1).T * scale
        if state is None:
            weights = (scores - scores.amax(1, keepdim=True)).exp()
            state = scores.amax(1), weights.sum(1), torch.einsum("hn,nhd->hd", weights, v)
        else:
            state = fold_block(*state, scores, v)
    return (state[2] / state[1][:, None]).to(q.dtype)
""",
)
answers.right("the mask by tril, the write by index_put, bfloat16 all the way", edits=[
    (COMPARE, "    del query_positions\n    return torch.tril(torch.ones(query_len, context_len), context_len - query_len) > 0\n"),
    (STORE, "            cache.view(-1, *new.shape[1:])[slot_mapping] = new.to(cache.dtype)\n"),
    (VIEW, "    queries = q.reshape(Q, G, H // G, D)\n"),
    (SCORES, SCORES.replace("k.float()", "k")),
    (RESULT, '    return torch.einsum("grqk,kgd->qgrd", weights, v).reshape(Q, H, D)\n'),
])
