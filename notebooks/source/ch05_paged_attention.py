# %% [markdown]
# # Chapter 5: Paged attention
#
# Your blocks lie anywhere in the pool, and your tables know their order. Now somebody must read them.
# Attention is the one operation of a language model that looks back at earlier tokens, and it used to be
# written for K and V that lie in one piece. In this chapter it learns to follow a table: prompts, next tokens
# and pieces of prompts, of many sequences, in one call.
#
# **The promise:** the attention you write serves the real model in the real engine, and what comes out is
# what dense attention gives.
#
# After this chapter you will be able to
#
# 1. write attention as a weighted look-up, and the same through a block table;
# 2. read `query_start_loc`, `context_lens` and `slot_mapping`, the language that vLLM's kernels speak;
# 3. derive the online softmax, and say why a GPU kernel needs neither a gathered copy nor a row of scores.
#
# *Time: about 60 minutes with the ★ tasks, and 30 more for the ★★ tasks. You need basic PyTorch and
# chapters 3 and 4. First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import inspect
import math
import time
from itertools import pairwise

import torch

from minipaged import LLM, Engine, KVCache, Parts, SamplingParams, load_parts
from minipaged import paged_attention as package
from minipaged.batch import Batch
from minipaged.course import check, machine_note, serve_with
from minipaged.course.chapters.ch05_paged_attention.figures import draw_batch, draw_weights
from minipaged.course.engine_map import draw_engine_map
from minipaged.course.tasks import find_root
from minipaged.kv_memory import bytes_per_token
from minipaged.loading.hub import is_fetched
from minipaged.pictures.draw import show

show(draw_engine_map("paged_attention"))

# %% [markdown]
# ## The problem in numbers
#
# Take SmolLM2-135M in fp32, and one sequence of 1,000 tokens in blocks of 16. How much does attention read
# for one new token, and in how many pieces does it lie?

# %%
per_token = bytes_per_token(num_layers=30, num_kv_heads=3, head_dim=64, itemsize=4)
blocks = -(-1000 // 16)
print(f"K and V of 1,000 tokens: {1000 * per_token / 1e6:.1f} MB, read for every new token")
print(f"in each of 30 layers: K and V in {blocks} blocks of {16 * per_token // 60:,} bytes each")

# %% [markdown]
# A kernel that wants one piece leaves two ways out: keep every sequence in one piece, with all the waste of
# chapter 2, or copy those megabytes into one piece before every token. Paged attention is the third: it
# takes the table along, and reads the blocks where they lie.
#
# ## Attention is a weighted look-up
#
# A Python dict finds one value by a key that fits exactly. Attention asks softly. Every earlier token
# offers a **key** and a **value**, two vectors. A new token comes with a **query**. How well the query fits
# each key is a number, the **score**, their dot product; a **softmax** turns the scores into weights that
# are positive and add up to 1; the answer is the mean of the values, with these weights.
#
# **Predict.** Below are three keys, and the query fits the second one best, with a score of 4 against two
# of 0. Which share of the answer comes from the second value: a third, half, or nearly all?

# %%
keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
values = torch.tensor([[10.0], [20.0], [60.0]])
query = torch.tensor([0.0, 4.0])

scores = keys @ query
weights = scores.softmax(dim=0)
print("scores ", scores.tolist())
print("weights", [f"{weight:.2f}" for weight in weights])
print("answer ", f"{float(weights @ values):.2f}")

# %% [markdown]
# **Explain.** Nearly all: 96 %, so the answer is close to 20. The softmax takes exponentials, and e⁴ is 55
# times e⁰; a score that is higher by 1 counts 2.7 times as much. Multiply the query by 10 and this becomes
# an exact look-up; multiply it by 0 and it is the plain mean.
#
# A model does this with many **heads**, each with its own queries, keys and values of D numbers, in every
# layer. Since a dot product of D random numbers grows like √D, scores are multiplied by a **scale**,
# usually 1 / √D. And the look-up is **causal**: a token sees itself and what came before it.
#
# Here is all of it for one sequence whose K and V lie in one piece. Q new tokens look at K tokens of
# context, of which they are the last.

# %%
def dense(q, k, v, scale):
    """q [Q, H, D], k and v [K, H, D] -> [Q, H, D]."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)

torch.manual_seed(0)
q, k, v = torch.randn(3, 4, 8), torch.randn(9, 4, 8), torch.randn(9, 4, 8)
torch.testing.assert_close(dense(q, k, v, 0.3), package.attend(q, k, v, 0.3))

# %% [markdown]
# The letters stay the same in all of the course: H query heads, G KV heads, D numbers per head, N blocks of
# B tokens, L layers, T tokens in a batch. The assertion holds these lines against the package's own.
#
# ## Who sees whom
#
# The mask is the only place where the order of tokens matters here, and the easiest place to get wrong.
# `tril(d)` keeps what lies on or below a diagonal; d says which.
#
# **Predict.** 3 new tokens, at the end of a context of 9. How many of the 27 pairs are seen? Count: the
# first of the three stands at position 6.

# %%
mask = torch.ones(3, 9, dtype=torch.int).tril(9 - 3)
print(mask.numpy())
print("seen:", int(mask.sum()), "of", mask.numel())
print("a decode sees all:", torch.ones(1, 9).tril(9 - 1).bool().all().item())

# %% [markdown]
# **Explain.** 7 + 8 + 9 = **24**. With `tril(0)`, the triangle of the textbooks, the first new token would
# see only position 0, as if the six tokens before it had never been. A **prefill** has all its tokens new
# (Q = K: a triangle), a **decode** one (Q = 1: a line), a **chunk** anything between. One formula serves
# the three.
#
# **Your turn**, in `exercises/ch05_paged_attention.py`: task 4 ★, `causal_mask` (10 points, about 5
# minutes). It stands fourth in the file, and may well be done first.

# %%
check("ch05", task=4)

# %% [markdown]
# ## Where K and V lie
#
# Let us watch the engine. Its pool has 12 blocks of 4 tokens. `spy` stands in the place of the paged
# attention layer: it notes what it is called with, and passes the call on. (The budget of 14 tokens a step
# will matter in a while.)

# %%
real = is_fetched("smollm2-135m")
llm = LLM("smollm2-135m" if real else "tiny", num_blocks=1, device="cpu", dtype="float32")
config = llm.model.config
print("model:", "SmolLM2-135M" if real else "the tiny random one; for the real one: minipaged fetch")
calls = []

def spy(q, k_cache, v_cache, *tables, plan=None):
    calls.append((q.clone(), *tables))
    return package.paged_attention(q, k_cache, v_cache, *tables, plan=plan)

engine = Engine(llm.model, llm.tokenizer, num_blocks=12, block_size=4, max_num_batched_tokens=14,
                enable_prefix_caching=False, parts=Parts(paged_attention=spy))

# %% [markdown]
# Two requests: A with a prompt of 6 tokens, B with one of 15. (`first` cuts a text to so many tokens, so
# that the counts hold for the tiny model too.)

# %%
def first(num_tokens, text):
    return llm.tokenizer.encode(text)[:num_tokens]

def go_on_for(num_tokens):
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)

text = "In the morning the market opens, and the farmers bring bread, apples and cheese to the square."
engine.add_request("A", first(6, "The old bridge across the river was"), go_on_for(20))
engine.add_request("B", first(15, text), go_on_for(9))
engine.step()
cache = engine.kv_cache
print("one layer of K:", list(cache.k[0].shape), "= blocks, tokens per block, KV heads, numbers per head")
print("called", len(calls), "times: once per layer")

# %% [markdown]
# Before it attends, every layer **stores** K and V of the new tokens. Where to is a list of slots, one per
# token, the **slot mapping**; slot = block · B + offset, as in chapter 4. Seen by slots, one layer of the
# pool is a plain table with N · B rows, and storing is one indexed assignment.

# %%
small = KVCache(num_layers=1, num_blocks=3, block_size=2, num_kv_heads=1, head_dim=1)
small.k.fill_(0)
by_slot = small.k[0].view(6, 1, 1)  # a view: the same memory, 6 slots instead of 3 blocks of 2
by_slot[torch.tensor([4, 1])] = torch.tensor([[[7.0]], [[8.0]]])
print("blocks:", small.k[0].flatten(1).tolist())

# %% [markdown]
# Two tokens, slots 4 and 1: block 2, offset 0, and block 0, offset 1.
#
# Sometimes a batch has more rows than tokens: a GPU prefers sizes it has seen before, so rows are added.
# Such padding has the slot **−1**, and nothing may be written for it.
#
# **Predict.** If the line above is run with the slots `[-1, 0]`, what happens to the row with −1: an error,
# nothing, or something else?

# %%
by_slot[torch.tensor([-1, 0])] = torch.tensor([[[99.0]], [[5.0]]])
print("blocks:", small.k[0].flatten(1).tolist())

# %% [markdown]
# **Explain.** Something else, and the worst of the three: to an index, −1 is the *last* row. Padding was
# written to the last slot of the pool, into whoever's block that is. There is no error, and a test with one
# short sequence does not notice; but when the pool is nearly full, somebody's answer goes wrong. So `write`
# takes the padding out first.
#
# **Your turn:** task 1 ★, `KVCache.write` (10 points, about 10 minutes), and task 2 ★, `copy_blocks_from`
# (10 points, about 10 minutes), which chapters 6 and 9 will need.

# %%
check("ch05", task=1)
check("ch05", task=2)

# %% [markdown]
# ## One call for everybody
#
# C arrives, with a prompt of 5 tokens. A decodes, and B's prompt is not through yet: the first step had room
# for 14 tokens, 6 of A and 8 of B.
#
# **Predict.** In the next step A has 1 new token, B the 7 that are left of its prompt, C all its 5. They go
# to the model as 13 rows, one sequence after another. At which rows does each one begin?

# %%
engine.add_request("C", first(5, "One, two, three, four,"), go_on_for(4))
calls.clear()
engine.step()
q, block_tables, context_lens, query_start_loc, scale = calls[0]
print("q:", list(q.shape), "= tokens, query heads, numbers per head")
print("query_start_loc:", query_start_loc.tolist())
print("context_lens:   ", context_lens.tolist())
print("block_tables:   ", block_tables.tolist())

# %% [markdown]
# **Explain.** At 0, 1 and 8; the last number, 13, says where the rows end. So sequence s has the rows from
# `query_start_loc[s]` up to `query_start_loc[s + 1]`. Three small tables tell everything about a batch:
# whose rows, how much context, in which blocks. (Tables of different length are padded; what the padding
# holds is never looked at.) Each row sees the positions up to its own:

# %%
show(draw_batch(query_start_loc.tolist(), context_lens.tolist(), ["A", "B", "C"]))

# %% [markdown]
# Everything else in the model, the large matrix products, treats these 13 rows alike and does not care
# whose they are. Only attention must know. That is why continuous batching (chapter 8) needs exactly one
# special layer.
#
# ## The same through a block table
#
# A few steps later C has ended, its blocks have gone back into the pool, and A has grown.

# %%
queries = []
for _ in range(11):
    calls.clear()
    engine.step()
    queries.append(calls[1][0][0])  # layer 1, first row: A's query
(sequence,) = engine.scheduler.running[0].sequences
table, context = sequence.table.block_ids, sequence.table.num_tokens
print(f"A: {context} tokens in blocks {table}")

# %% [markdown]
# To attend to A's context, walk through the table. Position p lies in block `table[p // B]`, at offset
# `p % B`.

# %%
rows = [cache.k[1][table[p // 4], p % 4] for p in range(context)]
k = torch.stack(rows)  # [K, G, D]: A's keys in order, in one piece
print("gathered:", list(k.shape), "from", list(cache.k[1].shape))
assert torch.equal(k, package.gather_context(cache.k[1], torch.tensor(table), context))

# %% [markdown]
# With the keys in order, the scores are those of any textbook. Here are the weights of one head of layer 1
# for A's last six tokens. Every column is a token of A's context, in the colour of the block that it lies
# in; below is the pool.

# %%
last_six, head, group = torch.stack(queries[-6:]), 2, config.num_heads // config.num_kv_heads
scores = last_six[:, head] @ k[:, head // group].T * scale
weights = scores.masked_fill(~package.causal_mask(6, context), -torch.inf).softmax(dim=-1)
words = [llm.tokenizer.decode([token]) for token in sequence.token_ids[:context]]
title = f"A's last six tokens look back (layer 1, head {head}); columns in the colour of their block"
show(draw_weights(weights, table, 4, 12, words, title))

# %% [markdown]
# The matrix does not know that its columns were scattered. The blocks' order in the pool (the last ones
# jump back to where C was) has no influence on any number in it: a sum may be taken in any order, and a
# softmax is a quotient of sums. *That* is why paging is possible at all. Keep this thought, it comes back
# with the online softmax. (With the real model: this head looks mostly at the token before.)
#
# ### What must not be read
#
# The last block is half full. Its free slots hold garbage: whatever was in that memory before. Why not read
# whole blocks, and give the garbage a weight of 0?

# %%
weights = torch.tensor([0.5, 0.5, 0.0, 0.0])
block = torch.tensor([3.0, 5.0, float("nan"), 7.0])
print("weight 0 for the garbage:", float(weights @ block))
print("only what is written:    ", float(weights[:2] @ block[:2]))

# %% [markdown]
# 0 · NaN is NaN, and memory that was never written may well hold one. Tests in this course therefore
# *poison* free slots with NaN: whoever reads one, can't hide it. The same for a table's padding: entries
# past the end may be −1, or a million, and must not even be used as an index.
#
# **Your turn:** task 3 ★, `gather_context` (10 points, about 10 minutes).

# %%
check("ch05", task=3)

# %% [markdown]
# ## Groups share what they look at
#
# `dense` above had as many KV heads as query heads. Most models of today have fewer: G < H, and
# H / G neighbouring query heads read the same K and V. It is called **grouped-query attention**.
#
# SmolLM2-135M has H = 9 and G = 3. Which KV head does each query head read?

# %%
H, G = 9, 3
print("query head:", list(range(H)))
print("KV head:   ", [head // (H // G) for head in range(H)])
print("not:       ", [head % G for head in range(H)], " (dealt out in turn: the classic mistake)")

# %% [markdown]
# There are two ways to compute it. One repeats K and V until there are H of them and calls `dense`. The
# other moves the group into the queries: 3 query heads at one KV head are 3 queries, and K and V are
# read once for all of them.

# %%
q, k, v = torch.randn(1, 9, 64), torch.randn(1000, 3, 64), torch.randn(1000, 3, 64)
repeated = dense(q, k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1), 0.125)

grouped = q.view(1, 3, 3, 64)  # [Q, G, H / G, D]
weights = (torch.einsum("qgrd,kgd->grqk", grouped, k) * 0.125).softmax(dim=-1)  # one token sees all
out = torch.einsum("grqk,kgd->qgrd", weights, v).reshape(1, 9, 64)
torch.testing.assert_close(out, repeated)
print(f"K and V, repeated: {2 * 1000 * 9 * 64 * 4:,} bytes; as they are: {2 * 1000 * 3 * 64 * 4:,} bytes")

# %% [markdown]
# The same numbers from a third of the bytes. For a prefill it hardly matters, since many queries share each
# key anyway. For a decode it is nearly everything, as we shall see.
#
# **Your turn:** task 5 ★★, `attend` (20 points, about 15 minutes), and task 6 ★★,
# `paged_attention_reference` (20 points, about 15 minutes). With these the layer is complete.

# %%
check("ch05", task=5)
check("ch05", task=6)

# %% [markdown]
# ## Equal to dense, on the real model
#
# Two runs of the same model over the same tokens. The first is dense: `DenseStore` keeps K and V of a layer
# just as they come, and attention is our `dense` (with K and V repeated). No block, no slot, no table.

# %%
class DenseStore(KVCache):
    """K and V of one sequence in the layer that is being computed, in one piece."""

    def write(self, layer, k, v, slot_mapping):
        self.latest = k, v

    def attend(self, q, *tables, plan=None):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in self.latest)
        return dense(q, k, v, tables[-1])

# %% [markdown]
# The model takes a `Batch`, the tables that you have just seen. This makes one for a piece of one sequence:

# %%
def part_of_batch(token_ids, start, end, table, block_size):
    """The tokens from start to end of one sequence, as the batch of a step; all logits are wanted."""
    positions = torch.arange(start, end)
    slots = table[positions // block_size] * block_size + positions % block_size
    lens, starts, wanted = torch.tensor([end]), torch.tensor([0, end - start]), torch.arange(end - start)
    return Batch(token_ids[start:end], positions, slots, table[None], lens, starts, wanted)

# %%
token_ids = torch.tensor(llm.tokenizer.encode(text + " " + text))
T, shape = len(token_ids), (config.num_kv_heads, config.head_dim)
store = DenseStore(config.num_layers, 1, T, *shape)
one_block = torch.tensor([0])
dense_logits = llm.model.forward(part_of_batch(token_ids, 0, T, one_block, T), store, store.attend)
print(f"{T} tokens, and for each a logit for every one of {config.vocab_size:,} possible next ones")

# %% [markdown]
# The second run is paged, and makes it hard for itself: blocks of 4 in random order, every free slot
# poisoned with NaN, the text in a prefill of 9 tokens, a chunk of 12, another chunk, and the last 5 tokens
# decoded one by one.

# %%
def paged_logits(attention, kv_cache=KVCache):
    """The logits of all tokens, computed in pieces, through a scattered block table."""
    num_blocks = -(-T // 4) + 3
    cache = kv_cache(config.num_layers, num_blocks, 4, *shape)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    table = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5))
    ends = [0, 9, 21, *range(T - 5, T + 1)]
    pieces = [part_of_batch(token_ids, start, end, table, 4) for start, end in pairwise(ends)]
    return torch.cat([llm.model.forward(piece, cache, attention) for piece in pieces])

def compare_with_dense(logits):
    off = (logits - dense_logits).abs().max()
    probs_off = (logits.softmax(dim=-1) - dense_logits.softmax(dim=-1)).abs().max()
    print(f"    largest difference of all logits below 1e-3: {bool(off < 1e-3)},")
    print(f"    of all probabilities below 1e-4: {bool(probs_off < 1e-4)}")

# %%
for attention in (package.paged_attention_reference, package.paged_attention):
    print(attention.__name__)
    compare_with_dense(paged_logits(attention))

# %% [markdown]
# Every logit of every token agrees, up to the last digits of fp32, which depend on the order of sums. (After
# all layers, that is; the grader compares attention alone, to 1e-5.) And not one NaN got in.
# The first of the two is the function that you write in task 6. The second is its fast twin.
#
# ## A softmax that never sees all its scores
#
# `gather_context` copies the whole context, for every token, in every layer. Can we attend block by block,
# and keep nothing but a few running numbers? The values are no obstacle: a weighted sum can be added up
# piece by piece. The softmax is. It divides by a sum over *all* scores, and something else is in the way:

# %%
scores = torch.tensor([2, 4, 1, 7, 3, 5]).double()
values = torch.tensor([10, 20, 30, 40, 50, 60]).double()
print("exp of a score of 100, in fp32:", torch.exp(torch.tensor(100.0)).item())
print("softmax, with the largest taken off first:", (scores + 100).softmax(dim=0).numpy().round(3))

# %% [markdown]
# Exponentials overflow. So every softmax takes the largest score off first: that changes no weight, since
# numerator and denominator shrink by the same factor, and no exponent is above 0 then. But block by block,
# the largest score is not known until the end.
#
# The way out: use the largest *so far*. When a larger one comes, everything that was summed is too large by
# one common factor, e^(old − new), and can be corrected afterwards.
#
# **Predict.** Blocks of 2: scores (2, 4), then (1, 7), then (3, 5). At which block must the old sums be
# corrected, and is the factor nearer to 1 or to 0?

# %%
maximum, total, weighted = -torch.inf, 0.0, 0.0
print("block  scores  max so far  factor    total  weighted  attention so far")
for index in range(3):
    s, v = scores[2 * index : 2 * index + 2], values[2 * index : 2 * index + 2]
    new = max(maximum, float(s.max()))
    factor = math.exp(maximum - new)
    w = torch.exp(s - new)
    total = total * factor + w.sum().item()
    weighted = weighted * factor + (w * v).sum().item()
    maximum = new
    print(f"{index:>5}  {s[0]:.0f}, {s[1]:.0f}{new:>13.0f}{factor:>10.3f}{total:>9.3f}"
          f"{weighted:>10.3f}{weighted / total:>18.3f}")

# %%
expected = scores.softmax(dim=0) @ values
print(f"all at once: {float(expected):.3f}")
assert abs(weighted / total - float(expected)) < 1e-9

# %% [markdown]
# **Explain.** At block 1, where the maximum jumps from 4 to 7: the factor is e⁻³ = 0.050. (Block 0 has a
# factor of e^(−∞) = 0, which is right: nothing was there before.) Block 2 brings nothing larger, so its
# factor is 1. At the end, the same number as all at once.
#
# Three running values, whatever the length: that is the **online softmax** (Milakov and Gimelshein, 2018).
# With it, attention can read a block where it lies, use it, and forget it. It needs no copy of the context
# and no row of scores. FlashAttention is built on it, and so is every paged kernel.
#
# Now on A's last token, in the live pool, for one head: blocks in the table's order, nothing gathered.

# %%
query = queries[-1][head]
maximum, total, weighted = -math.inf, 0.0, torch.zeros(config.head_dim)
for index, block_id in enumerate(table):
    n = min(4, context - 4 * index)  # of the last block, only what is written
    k, v = cache.k[1, block_id, :n, head // group], cache.v[1, block_id, :n, head // group]
    s = k @ query * scale  # [n]: the scores of one block
    new = max(maximum, float(s.max()))
    factor, w = math.exp(maximum - new), torch.exp(s - new)
    total = total * factor + float(w.sum())
    weighted = weighted * factor + w @ v
    maximum = new

# %%
k, v = (package.gather_context(x[1], torch.tensor(table), context) for x in (cache.k, cache.v))
expected = package.attend(queries[-1][None], k, v, scale)[0, head]
print("block by block, equal to dense within 1e-4:", torch.allclose(weighted / total, expected, atol=1e-4))

# %% [markdown]
# **A challenge:** task 7 ★★★, `fold_block` and `attend_by_block` (20 points, about 30 minutes). The same for
# all heads at once, and with scores near 1,500, which no exponential survives. In chapter 11 this loop
# becomes a GPU kernel.

# %%
check("ch05", task=7)

# %% [markdown]
# ## What a decode step has to move
#
# For one new token, every number of K and V is read once and used by the H / G query heads of its group. That
# is little work for much reading, so bytes are what counts (chapter 1). Three ways to get at a scattered
# context:
#
# * **in place**, block by block: every byte of K and V is read once;
# * **gathered**: read, written to one piece, read again;
# * **gathered and repeated** for every query head: what is written and read again is H / G times as large.

# %%
def moved(context, way, itemsize=4):
    """Bytes that attention of one new token moves, in all layers of SmolLM2-135M."""
    once = context * bytes_per_token(30, 3, 64, itemsize)
    return {"in place": once, "gathered": 3 * once, "gathered, repeated": once * (1 + 2 * 3)}[way]

print(f"{'context':>20}{'100':>12}{'1,000':>12}{'8,000':>12}")
for way in ("in place", "gathered", "gathered, repeated"):
    print(f"{way:>20}" + "".join(f"{moved(c, way) / 1e6:>9.1f} MB" for c in (100, 1000, 8000)))

# %% [markdown]
# A step also reads the model's weights, once for the whole batch.
#
# **Predict.** 16 sequences of 1,000 tokens each, all decoding. What is more: the weights of the model, or K
# and V of the batch?

# %%
layer_weights = 576 * (9 + 3 + 3) * 64 + 576 * 576 + 3 * 576 * 1536 + 2 * 576
parameters = 49152 * 576 + 30 * layer_weights + 576
print(f"weights: {parameters:,} numbers, {parameters * 4 / 1e6:.0f} MB")
print(f"K and V of 16 sequences of 1,000 tokens: {16 * moved(1000, 'in place') / 1e6:.0f} MB in place,")
print(f"                                        {16 * moved(1000, 'gathered') / 1e6:.0f} MB gathered")

# %% [markdown]
# **Explain.** K and V, even for so small a model with so few KV heads. Weights are shared by the batch, K
# and V are everybody's own: the larger the batch and the longer the contexts, the more attention decides,
# and gathering triples its part. The kernel of chapter 11 therefore gathers nothing: each program of it
# follows the table itself, reads K and V into registers, and folds them in as above.
#
# On a CPU the account is milder. The gathered piece may still be in the processor's cache when it is read
# again, and one large, contiguous product runs faster than many small ones. So the package's CPU path
# gathers, carefully. What does that cost here, for one layer of one sequence's decode?

# %%
def compared(context):
    """The same decode over a contiguous context, through a table, and through a table with the twin."""
    q, pool = torch.randn(1, 9, 64), torch.randn(2, 1024, 16, 3, 64)
    tables = torch.randperm(1024)[: context // 16][None], torch.tensor([context]), torch.tensor([0, 1])
    k, v = (package.gather_context(x, tables[0][0], context).transpose(0, 1).contiguous() for x in pool)
    plan, sdpa = package.plan_attention(*tables, pool[0]), torch.nn.functional.scaled_dot_product_attention
    return [
        lambda: sdpa(q.view(3, 3, 64), k, v, scale=0.125),
        lambda: package.paged_attention(q, *pool, *tables, 0.125, plan=plan),
        lambda: package.paged_attention_reference(q, *pool, *tables, 0.125),
    ]

# %% tags=["timing"]
def best_ms(run, repeats=30):
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return 1000 * best

print(machine_note() + "; H = 9, G = 3, D = 64, blocks of 16, fp32; best of 30, in ms")
print(f"{'context':>9}{'contiguous':>14}{'paged, fast':>14}{'paged, readable':>18}")
for context in (256, 1024, 4096):
    contiguous, fast, readable = map(best_ms, compared(context))
    print(f"{context:>9}{contiguous:>14.3f}{fast:>14.3f}{readable:>18.3f}")

# %% [markdown]
# The first two columns differ by the gathering (and a little bookkeeping).
# Paging has a price on the reading side, then. What it buys is the memory of chapters 2 to 4: batches
# several times as large. In the paper, the latency of the first paged kernel was 20 to 26 % above that of a
# contiguous one, and the throughput of the whole system 2 to 4 times that of the best before it (Kwon et
# al., 2023, section 7.1 and abstract).
#
# ## What the fast twin adds
#
# The function you write goes through the sequences one by one. Here is the package's fast one:

# %%
print(inspect.getsource(package.paged_attention).split('"""')[2].strip("\n"))

# %% [markdown]
# It computes the same, and earns its speed with bookkeeping:
#
# * **A plan per step.** Which slots to gather follows from the tables alone, and the tables are the same for
#   all layers. So `plan_attention` works it out once a step, and all layers use it: that is the argument
#   `plan` that your function ignores.
# * **Groups.** Decodes of similar length share one call. Their contexts are padded to the longest, by
#   repeating a slot that exists (never by reading garbage).
# * **Memory that is warm.** All layers gather into the same piece of memory, which the CPU has in its cache.
#
# None of this changes a result, and all of it makes the code harder to read. The readable one stays in the
# package, and tests hold the two together.
#
# ## Your attention in this engine
#
# All of `exercises/ch05_paged_attention.py`:

# %%
check("ch05")

# %% [markdown]
# Is it equal to dense attention, on the model above?

# %%
yours = load_parts(find_root() / "exercises", "ch05")
try:
    logits = paged_logits(yours.paged_attention, yours.kv_cache)
except NotImplementedError as missing:
    print("not yet:", missing)
else:
    compare_with_dense(logits)

# %% [markdown]
# And now the promise. Three requests, a pool so small that they compete for blocks, your `KVCache` and your
# `paged_attention` in the engine:

# %%
serve_with("ch05")

# %% [markdown]
# ## Recap
#
# * Attention is a weighted look-up: scores, softmax, weighted mean. The order of the keys does not matter
#   to it, only which value belongs to which key, and who may see whom.
# * So K and V may lie anywhere. Storing is an assignment by slot; reading follows the block table.
# * `query_start_loc`, `context_lens` and `block_tables` describe any batch. Prefill, decode and chunk are
#   one formula: new token i of Q, at context K, sees positions 0 … K − Q + i.
# * What is not written is not read, and −1 is not written: mistakes here are silent, hence the poison.
# * In GQA, query head h reads KV head h // (H / G), and K and V are read once per group.
# * The online softmax needs three running values and no row of scores: a kernel can use the blocks in place.
#
# ## Questions to think about
#
# 1. Two halves of a context are attended to separately, each with its own (maximum, total, weighted). How do
#    you join them? (Chapter 12 splits long contexts over many processors like this.)
# 2. A kernel for blocks of 1 token would be just as right. What would the table cost, and what would become
#    of reading 16 neighbouring tokens at once?
# 3. Keys are stored *after* their position has been rotated into them (RoPE). Could two requests share a
#    block that holds the same words at different positions?
# 4. Suppose two sequences share a block, half full (chapter 6). Which of your functions may do as before, and
#    which may not?
#
# ## In vLLM this is …
#
# | here | in vLLM |
# |---|---|
# | `KVCache.write` | `vllm/_custom_ops.py`, `reshape_and_cache_flash` (in C++: `csrc/cache_kernels.cu`) |
# | `paged_attention` | `vllm/v1/attention/backends/flash_attn.py`, `FlashAttentionImpl.forward` |
# | its plan | `vllm/v1/attention/backend.py`, `AttentionMetadataBuilder.build`, once a step |
# | the tables of a batch | the same file, `CommonAttentionMetadata` (`context_lens` is `seq_lens` there) |
# | `attend_by_block` | `csrc/attention/attention_kernels.cuh`, the paper's kernel |
# | the same in Triton | `vllm/v1/attention/ops/triton_unified_attention.py` |
# | joining two parts (question 1) | `vllm/v1/attention/ops/merge_attn_states.py` |
#
# ## References
#
# * Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Section 4.1 is this chapter.
# * Milakov, Gimelshein: *Online normalizer calculation for softmax*, 2018,
#   [arXiv:1805.02867](https://arxiv.org/abs/1805.02867).
# * Dao, Fu, Ermon, Rudra, Ré: *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*,
#   2022, [arXiv:2205.14135](https://arxiv.org/abs/2205.14135).
# * Ainslie, Lee-Thorp, de Jong, Zemlyanskiy, Lebrón, Sanghai: *GQA: Training Generalized Multi-Query
#   Transformer Models from Multi-Head Checkpoints*, 2023,
#   [arXiv:2305.13245](https://arxiv.org/abs/2305.13245).
