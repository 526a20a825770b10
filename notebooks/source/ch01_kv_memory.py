# %% [markdown]
# # Chapter 1: The KV cache and its price
#
# A language model writes one token at a time, and each new token looks back at all tokens before it. It
# needs a *key* and a *value* of each of them, in every layer: **K** and **V**. They can be computed again
# every time, or kept. Every engine keeps them, in the **KV cache**. This chapter is about what that saves,
# what it costs, and why the memory it lives in decides how fast an engine is.
#
# **The promise:** at the end your own arithmetic sizes the memory of the engine that serves a real model.
#
# After this chapter you will be able to
#
# 1. say from a model's config how many bytes a token takes, and how many tokens fit into a memory;
# 2. write attention for one new token without a cache and with one, and show that they agree;
# 3. explain, with numbers measured on your own machine, why decoding waits for memory and not for
#    arithmetic.
#
# *Time: about 60 minutes with the ★ tasks, and 40 more for the ★★ tasks. You need basic PyTorch; attention
# is explained on the way. First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import torch

from minipaged import LLM, Engine, SamplingParams
from minipaged import kv_memory as package
from minipaged.course import check, machine_note, serve_with
from minipaged.course.chapters.ch01_kv_memory import ideas
from minipaged.course.engine_map import draw_engine_map
from minipaged.loading.hub import is_fetched
from minipaged.pictures.draw import GREY, INK, PALETTE, show

show(draw_engine_map("kv_memory"))

# %% [markdown]
# ## The problem in numbers
#
# Take OPT-13B, a model of 13 billion parameters. It has 40 layers; in each, a token has a key and a value
# of 5,120 numbers (40 heads of 128), in fp16, which is 2 bytes a number.
#
# **Predict.** How much memory do K and V of *one* token take? Of 32 conversations of 4,096 tokens each?
# (The model's weights take 26 GB.)

# %%
per_token = 2 * 40 * 5120 * 2  # K and V · layers · numbers · bytes
batch = 32 * 4096 * per_token
print(f"one token: {per_token:,} bytes")
print(f"4,096 tokens: {4096 * per_token / 1e9:.2f} GB ({4096 * per_token / 2**30:.3f} GiB)")
print(f"32 such conversations: {batch / 1e9:.1f} GB ({batch / 2**30:.0f} GiB)")

# %% [markdown]
# **Explain.** Four times the weights, for 32 users. Nothing here is large by itself: two vectors, 40
# layers, 4,096 tokens, 32 users. But they all multiply. (GB is 10⁹ bytes, GiB 2³⁰. Makers of memory count
# in one, programs in the other, and 7 % lie between them.)
#
# ## Fewer keys and values: MHA, GQA, MQA, MLA
#
# The only factor that the model's architects can choose freely is how many heads have keys and values of
# their own. A model has H *query* heads: H different ways to look back. They may share what they look at:
#
# * **MHA**, multi-head attention: as many KV heads as query heads, G = H.
# * **GQA**, grouped-query attention: a group of query heads shares one KV head, 1 < G < H.
# * **MQA**, multi-query attention: all query heads share a single KV head, G = 1.
# * **MLA**, multi-head latent attention: no keys and values are kept, but one short vector per layer, from
#   which those of all heads can be computed when they are needed, and a second one for position (RoPE).
#
# For the first three the price of a token is one formula, with D numbers per head and L layers:
#
# $$2 \cdot L \cdot G \cdot D \cdot \text{bytes per number}$$

# %%
assert 2 * 40 * 40 * 128 * 2 == package.bytes_per_token(40, 40, 128, 2) == per_token

# %% [markdown]
# **Your turn: task 1** ★ (15 points, about 10 minutes). Write `bytes_per_token` and `mla_bytes_per_token`
# in `exercises/ch01_kv_memory.py`. The docstrings say all that is needed. Then run the next cell, as often
# as you like; `minipaged hint ch01` in a terminal gives hints, one at a time.

# %%
check("ch01", task=1)

# %% [markdown]
# Now to real models. These numbers stand in their `config.json`, on huggingface.co under the name in the
# last column (Llama-3.1-405B: in its paper, arXiv:2407.21783, table 3). All with 2 bytes a number.
#
# **Predict.** Llama-3-70B is five times the size of OPT-13B. Does a token of it take more, or less?

# %%
MODELS = {  # layers, query heads, KV heads, numbers per head
    "OPT-13B": (40, 40, 40, 128, "facebook/opt-13b"),
    "Llama-2-13B": (40, 40, 40, 128, "meta-llama/Llama-2-13b-hf"),
    "Llama-3.1-405B": (126, 128, 8, 128, "meta-llama/Llama-3.1-405B"),
    "Llama-3-70B": (80, 64, 8, 128, "meta-llama/Meta-Llama-3-70B"),
    "Qwen2.5-72B": (80, 64, 8, 128, "Qwen/Qwen2.5-72B"),
    "Qwen3-8B": (36, 32, 8, 128, "Qwen/Qwen3-8B"),
    "Llama-3-8B": (32, 32, 8, 128, "meta-llama/Meta-Llama-3-8B"),
    "SmolLM2-135M": (30, 9, 3, 64, "HuggingFaceTB/SmolLM2-135M-Instruct"),
    "Falcon-7B": (32, 71, 1, 64, "tiiuae/falcon-7b"),
}
costs = {name: package.bytes_per_token(L, G, D, 2) for name, (L, _, G, D, _) in MODELS.items()}
costs["DeepSeek-V3"] = ideas.mla_bytes_per_token(61, 512, 64, 2)  # deepseek-ai/DeepSeek-V3

# %%
from IPython.display import Markdown


def kind_of(name):
    _, H, G, _, _ = MODELS.get(name, (61, 128, 0, 0, ""))
    return {0: "MLA", 1: "MQA", H: "MHA"}.get(G, "GQA")

columns = ("model", "", "layers", "query heads", "KV heads", "head size", "bytes per token", "config")
rows = [(name, kind_of(name), L, H, G, D, f"{costs[name]:,}", source)
        for name, (L, H, G, D, source) in MODELS.items()]
rows.append(("DeepSeek-V3", "MLA", 61, 128, "none", "512 + 64", f"{costs['DeepSeek-V3']:,}",
             "deepseek-ai/DeepSeek-V3"))
table = [columns, ["---"] * len(columns), *rows]
Markdown("\n".join(f"| {' | '.join(map(str, row))} |" for row in table))

# %% [markdown]
# The last column but one, drawn:

# %%
from matplotlib.figure import Figure

order = sorted(costs, key=lambda name: costs[name])
kinds = dict(zip(("MHA", "GQA", "MQA", "MLA"), PALETTE, strict=False))
figure = Figure(figsize=(9.5, 3.6), layout="constrained")
axes = figure.subplots()
labels = [f"{name} ({kind_of(name)})" for name in order]
widths = [costs[name] / 1000 for name in order]
bars = axes.barh(labels, widths, color=[kinds[kind_of(name)] for name in order])
axes.bar_label(bars, [f"{width:.1f}" for width in widths], padding=3)
axes.set_xlabel("kB of K and V per token, 2 bytes a number")
axes.spines[["top", "right"]].set_visible(False)
described = ", ".join(f"{label} {width:.1f}" for label, width in zip(labels, widths, strict=True))
figure.set_label(f"Bars: kB of K and V per token, from the smallest to the largest: {described}.")
show(figure)

# %% [markdown]
# **Explain.** Less: 327,680 bytes against 819,200. Eight query heads share one KV head, so it takes an
# eighth of what 64 KV heads would. That is why most open models since 2023 have GQA: not to save
# arithmetic, but this memory. MLA goes further: DeepSeek-V3, with 671 billion parameters, takes less than a
# model of 8 billion.
#
# Do we believe our own formula? These prices have been published, by Kwon et al. (section 3: "800 KB" with
# 1,024 bytes to the KB) and by DeepSeek-AI (arXiv:2505.09343, table 1, with 1,000):

# %%
published = {"OPT-13B": 800 * 1024, "Llama-3.1-405B": 516_096, "Qwen2.5-72B": 327_680,
             "DeepSeek-V3": 70_272}
print("all as published:", all(costs[name] == cost for name, cost in published.items()))

# %% [markdown]
# ## The bytes your own engine holds
#
# A formula is only a formula. The engine on your machine holds its K and V in two tensors of [layers,
# blocks, block size, KV heads, head size], set aside at the start. We give it a budget of 512 MiB.

# %%
model = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
budget = 512 * 2**20
llm = LLM(model, kv_cache_memory_bytes=budget, block_size=16, device="cpu", dtype="float32")
config, pool = llm.model.config, llm.engine.kv_cache
print("serving", model if model != "tiny" else "the tiny random model; for the real one: minipaged fetch")
print("K:", list(pool.k.shape), pool.k.dtype, "and V the same")

# %% [markdown]
# A block holds 16 tokens, and the engine takes as many whole blocks as fit. What it holds should be our
# formula's bytes, times the tokens that there is room for, and not a byte more or less.

# %%
per_token = package.kv_bytes_per_token(config, torch.float32)
held = pool.k.nbytes + pool.v.nbytes
num_blocks = budget // (16 * per_token)
print(f"one token {per_token:,} bytes, one block {16 * per_token:,}")
print(f"{num_blocks} blocks hold {held:,} bytes; left over: {budget - held:,}")
assert held == pool.k.shape[1] * 16 * per_token and pool.k.shape[1] == num_blocks

# %% [markdown]
# Formula and tensors agree to the byte. The budget is never exceeded, and missed by less than a block: what
# is left would not hold another one. From now on there is no other source of memory: when these blocks are
# used up, somebody has to wait.
#
# **Your turn: task 2** ★ (15 points, about 10 minutes): `num_blocks_for`, the function that sizes this
# pool. It has to refuse nonsense, too, and a budget that does not pay for a single block.

# %%
check("ch01", task=2)

# %% [markdown]
# ## What we get for it
#
# 100 GiB for 32 users: nobody pays that without a reason. So let us decode without a cache, and see.
#
# What a layer does with a token, in one head: three matrices turn it into a **query** (what it looks for),
# a **key** (what it is found by) and a **value** (what it has to say). The query of the newest token is
# compared with the keys of all tokens, itself included; the better the match, the more of that token's
# value goes into the result.

# %%
torch.manual_seed(0)
x = torch.randn(6, 8)  # what one layer gets: 6 tokens, 8 numbers each
w_q, w_k, w_v = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8, 4)  # one head of 4 numbers

def attend(q, k, v):
    weights = (k @ q / 4**0.5).softmax(dim=0)  # [tokens]: how much of each; they sum to 1
    return weights @ v

# %% [markdown]
# Without a cache: for each token, K and V of everything so far.

# %%
without, num_projected = [], 0
for t in range(1, 7):
    k, v = x[:t] @ w_k, x[:t] @ w_v
    num_projected += len(k)
    without.append(attend(x[t - 1] @ w_q, k, v))
print("tokens turned into K and V:", num_projected)

# %% [markdown]
# With a cache: only the newest token's K and V are computed, and join those that are there.

# %%
with_cache, num_projected, k, v = [], 0, torch.empty(0, 4), torch.empty(0, 4)
for t in range(1, 7):
    k, v = torch.cat((k, x[t - 1 : t] @ w_k)), torch.cat((v, x[t - 1 : t] @ w_v))
    num_projected += 1
    with_cache.append(attend(x[t - 1] @ w_q, k, v))
print("tokens turned into K and V:", num_projected)
print("the same results:", torch.allclose(torch.stack(without), torch.stack(with_cache), atol=1e-5))

# %%
one_head = [weight.unsqueeze(1) for weight in (w_q, w_k, w_v)]  # the package has a dimension for heads
cache = ideas.DenseCache(max_tokens=6, num_kv_heads=1, head_dim=4)
for t in range(6):
    assert torch.allclose(ideas.decode_without_cache(x[: t + 1], *one_head)[0], without[t], atol=1e-5)
    assert torch.allclose(ideas.decode_with_cache(x[t : t + 1], cache, *one_head)[0], without[t], atol=1e-5)

# %% [markdown]
# The same results, from 6 instead of 21 tokens. But may we always keep K and V? In this toy they depend on
# nothing but the token itself. In a real model a layer gets what the layer below made of the token *and of
# what it saw*. So let us look into the real one: its keys of 8 tokens, then once more with one of the 8
# replaced.
#
# **Predict.** If the *last* of the 8 tokens is replaced, how many of the 8 tokens get other keys? If the
# *first* is replaced?

# %%
def keys_of(token_ids):
    engine = Engine(llm.model, llm.tokenizer, num_blocks=1, block_size=16)
    engine.add_request("a", token_ids, SamplingParams(temperature=0, max_tokens=1))
    engine.step()
    return engine.kv_cache.k[:, 0, : len(token_ids)].clone()  # [L, tokens, G, D]: all lie in block 0

text = llm.tokenizer.encode("The old man looked at the sea and said nothing.")[:8]
for place, name in ((7, "last"), (0, "first")):
    other = [*text[:place], text[place] + 1, *text[place + 1 :]]
    difference = (keys_of(text) - keys_of(other)).abs().amax(dim=(0, 2, 3))  # over layers, heads, numbers
    print(f"the {name} replaced: other keys for {int((difference > 1e-4).sum())} of 8 tokens")

# %% [markdown]
# **Explain.** 1 and 8. Attention is **causal**: a token sees only those before it, so its K and V never
# change afterwards, whatever comes behind. That is what makes the cache right and not merely close. But
# they depend on *everything* before: K and V of "sea" are those of "sea" after exactly these words.
# (Chapter 7 will reuse K and V between requests, and for this reason only for equal beginnings.)
#
# ## With and without a cache, on the real engine
#
# An engine without a cache is easy to have: let the engine forget. Every token is a new request, whose
# prompt is everything so far.

# %%
def run(prompt, num_tokens):
    """The tokens of the answer, and how many tokens went through the model in each step."""
    engine = Engine(llm.model, llm.tokenizer, num_blocks=256, enable_prefix_caching=False)
    engine.add_request("a", prompt, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))
    computed = []
    while engine.has_unfinished_requests():
        (output,) = engine.step()
        computed.append(engine.last_step.num_tokens)
    return output.outputs[0].token_ids, computed

def run_and_forget(prompt, num_tokens):
    token_ids, computed = [], []
    for _ in range(num_tokens):
        new, now = run(prompt + token_ids, 1)
        token_ids, computed = token_ids + new, computed + now
    return token_ids, computed

# %% [markdown]
# **Predict.** A prompt of 5 tokens, an answer of 8. How many tokens go through the model, in all steps
# together, with the cache and without?

# %%
prompt = llm.tokenizer.encode("The capital of France is")[:5]
kept, computed = run(prompt, 8)
forgotten, computed_again = run_and_forget(prompt, 8)
print("with:   ", computed, "=", sum(computed))
print("without:", computed_again, "=", sum(computed_again))
print("the same answer:", kept == forgotten)

# %%
figure = Figure(figsize=(9.5, 3.1), layout="constrained")
for axes, title, steps in zip(
    figure.subplots(1, 2), ("without a cache", "with a cache"), (computed_again, computed), strict=True
):
    for step, num_computed in enumerate(steps):
        for token in range(5 + step):
            colour = PALETTE[5] if token >= 5 + step - num_computed else PALETTE[4]
            axes.barh(step + 1, 0.9, left=token + 0.05, height=0.9, color=colour)
    axes.set(title=f"{title}: {sum(steps)} computed", xlabel="token", ylabel="step", ylim=(8.6, 0.4))
    axes.set_xticks([token + 0.5 for token in range(12)], range(1, 13))
    axes.set_yticks(range(1, 9))
    axes.spines[["top", "right"]].set_visible(False)
axes.barh(0, 0, color=PALETTE[5], label="computed")
axes.barh(0, 0, color=PALETTE[4], label="K and V read from the cache")
figure.legend(loc="outside lower center", ncols=2, frameon=False)
figure.set_label("Two triangles of the tokens that each of 8 steps works on. Without a cache every token is "
                 f"computed in every step, {sum(computed_again)} in all. With a cache the first computes the "
                 f"prompt's 5 tokens, each later one its last token alone, {sum(computed)} in all; the rest "
                 "is read.")
show(figure)

# %% [markdown]
# **Explain.** With a cache 5 + 7 · 1 = 12 tokens, without 5 + 6 + … + 12 = 68. The last token of the answer
# is never computed, since nobody asks what follows it. For an answer of n tokens the one grows as n, the
# other as n². What is still there with a cache: each step *reads* the K and V of all tokens before. We come
# back to that.
#
# **Your turn: task 3** ★ (10 points, about 10 minutes): `tokens_computed`, for any lengths.

# %%
check("ch01", task=3)

# %%
for is_cached, steps in ((True, computed), (False, computed_again)):
    assert ideas.tokens_computed(5, 8, is_cached) == sum(steps)
for output_len in (10, 100, 1000):
    more, few = (ideas.tokens_computed(1000, output_len, is_cached) for is_cached in (False, True))
    print(f"1,000 tokens in, {output_len:>5,} out: {more / few:.0f} times as many without a cache")

# %% [markdown]
# **Your turn: task 4** ★★ (15 points, about 15 minutes): `attend_one`, attention of one token in all heads
# at once, with groups. It is the toy's `attend`, for H heads.

# %%
check("ch01", task=4)

# %% [markdown]
# **Task 5** ★★ (20 points, about 15 minutes): `DenseCache.append`, `decode_without_cache`,
# `decode_with_cache`. The cache is one piece of memory, set aside at the start. (The toy used `torch.cat`,
# which copies the whole cache for every token.)

# %%
check("ch01", task=5)

# %% [markdown]
# ## Time per token
#
# Fewer tokens computed is one thing, time another. We measure the real model: the prompts are cut from
# Python's own help texts, which everybody has on disk. The time for a prompt of C tokens *is* the time for
# one token at context C without a cache; the steps after it are the time with one.

# %%
import time
from pydoc_data.topics import topics

long_text = llm.tokenizer.encode("\n".join(topics.values())[:12_000])

def step_times(prompts, num_tokens=9):
    """Seconds of each step: first all prompts together, then a token for each."""
    engine = Engine(llm.model, llm.tokenizer, num_blocks=256, enable_prefix_caching=False)
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        engine.add_request(str(number), prompt, params)
    times = []
    while engine.has_unfinished_requests():
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
    return times

# %% [markdown]
# **Predict.** From a context of 64 to one of 1,024, 16 times as long: how much longer does a token take
# without a cache? And with one?

# %% tags=["timing"]
contexts = (64, 128, 256, 512, 1024)
step_times([long_text[:64]])  # the first run of everything is slower
measured = {C: step_times([long_text[:C]]) for C in contexts}
print(machine_note(), f"({model}, fp32), milliseconds per token")
print("context        " + "".join(f"{C:>9,}" for C in contexts))
print("without a cache" + "".join(f"{1000 * measured[C][0]:9.1f}" for C in contexts))
print("with a cache   " + "".join(f"{1000 * min(measured[C][1:]):9.1f}" for C in contexts))

# %% tags=["timing"]
figure = Figure(figsize=(7.5, 3.2), layout="constrained")
axes = figure.subplots()
for name, marker, colour, times in (
    ("without a cache", "o", PALETTE[5], [1000 * measured[C][0] for C in contexts]),
    ("with a cache", "s", PALETTE[0], [1000 * min(measured[C][1:]) for C in contexts]),
):
    axes.plot(contexts, times, marker=marker, color=colour, label=name)
axes.set(xlabel="context, in tokens", ylabel="milliseconds per token", ylim=0, title=machine_note())
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
described = "; ".join(f"at {C:,} tokens {1000 * measured[C][0]:.0f} without a cache and "
                      f"{1000 * min(measured[C][1:]):.0f} with one" for C in contexts)
figure.set_label(f"Milliseconds per token against the context: {described}.")
show(figure)

# %% [markdown]
# **Explain.** Without a cache the time grows with the context, because the work does. With one it is far
# shorter and moves little, although a step attends to 16 times as many tokens. So what does a step with a
# cache spend its time on, if not on the context? The rest of the chapter answers that.
#
# ## Decoding waits for memory
#
# A processor does two things: it computes, in FLOPs (additions and multiplications of numbers) per second,
# and it fetches what it computes with, in bytes per second. Both go on at the same time, so the slower one
# decides. Which one that is depends on how many FLOPs are done with a byte once it is there: the
# **arithmetic intensity**, in FLOPs per byte.
#
# For attention of one new token it can be counted. In one layer, with C tokens of context:
#
# * every query head takes, with each token, a dot product with its key and adds its value, times a weight:
#   2·D FLOPs each. Together 4·D·H·C FLOPs;
# * K and V of all C tokens are read: 2·C·G·D numbers.
#
# $$\frac{4\,D\,H\,C}{2\,C\,G\,D \cdot \text{bytes per number}} = \frac{2}{\text{bytes per number}} \cdot
# \frac{H}{G}$$
#
# Context and head size cancel. In fp32 it is ½ FLOP per byte, in fp16 1, times the size of the group.
# Nothing else helps: not a longer context, not a larger model, and not a larger batch, because every
# sequence has K and V of its own. In a prefill the T new tokens share what is read, and it grows with T.
#
# **Your turn: task 6** ★★ (15 points, about 10 minutes): `attention_cost`, for any number of new tokens.

# %%
check("ch01", task=6)

# %%
def intensity(num_new, context_len, H, G, D, itemsize):
    flops, num_bytes = ideas.attention_cost(num_new, context_len, H, G, D, itemsize)
    return flops / num_bytes

for name, H, G in (("OPT-13B (MHA)", 40, 40), ("Llama-3-70B (GQA)", 64, 8), ("Falcon-7B (MQA)", 71, 1)):
    decode, prefill = intensity(1, 2000, H, G, 128, 2), intensity(2000, 2000, H, G, 128, 2)
    print(f"{name:<17}  decode {decode:4.0f}   prefill of 2,000 tokens {prefill:8,.0f} FLOPs per byte")

# %% [markdown]
# Is that much or little? An A100 computes 312 · 10¹² FLOPs a second in bf16 and reads 2.039 · 10¹² bytes;
# an H100 989 · 10¹² and 3.35 · 10¹² (NVIDIA's data sheets, the SXM versions with 80 GB, without sparsity).
# Llama-3-70B decodes with 8 FLOPs for every byte of K and V. What share of the arithmetic can its attention
# keep busy at best?

# %%
for name, flops_per_s, bytes_per_s in (("A100", 312e12, 2.039e12), ("H100", 989e12, 3.35e12)):
    balance = flops_per_s / bytes_per_s
    print(f"{name}: balanced at {balance:.0f} FLOPs per byte; busy {8 / balance:.1%} of the time with 8, "
          f"{1 / balance:.1%} with 1 (MHA)")

# %% [markdown]
# About 5 % on an A100. For the other 95 % of the time the arithmetic units wait for K and V. And the
# tokens' way through the weights is no better: a weight is read and used for one multiplication and one
# addition per *sequence*. That is where the batch comes in: eight sequences in a step use each weight eight
# times for one reading. Decoding is **bound by memory bandwidth**, prefill by arithmetic.
#
# ## Measured here
#
# Now the same on your machine. First its two limits: how fast it reads a large tensor, and how fast it
# multiplies two matrices.

# %% tags=["timing"]
def fastest(call, rounds=5):
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)

large, square = torch.ones(2**26), torch.ones(1024, 1024)
read_rate = large.nbytes / fastest(large.sum)
flop_rate = 2 * 1024**3 / fastest(lambda: square @ square)
print(f"{machine_note()}: reads {read_rate / 1e9:.1f} GB/s, computes {flop_rate / 1e9:.0f} GFLOP/s,")
print(f"balanced at {flop_rate / read_rate:.1f} FLOPs per byte")

# %% [markdown]
# Then four things to set against them: attention alone, with 9 heads and a long context; a decode step of
# the whole model for one sequence and for eight; and the prefill of eight prompts of 64 tokens. The costs
# of a step are those of attention, plus each weight read once for all, with 2 FLOPs for every token. (The
# embedding comes in at the end alone, where it turns one row per sequence into logits.)

# %%
import math

from minipaged.loading.weights import expected_shapes

num_weights = sum(math.prod(shape) for shape in expected_shapes(config).values())
in_embedding = config.vocab_size * config.hidden_size
heads = (config.num_heads, config.num_kv_heads, config.head_dim)

def step_cost(batch, num_new, context_len):
    flops, num_bytes = ideas.attention_cost(num_new, context_len, *heads, 4)
    per_sequence = 2 * (num_new * (num_weights - in_embedding) + in_embedding) + config.num_layers * flops
    return batch * per_sequence, 4 * num_weights + batch * config.num_layers * num_bytes

# %% tags=["timing"]
q, k, v = torch.randn(9, 1, 64), torch.randn(9, 2**15, 64), torch.randn(9, 2**15, 64)
one, eight = (step_times([long_text[64 * i : 64 * i + 64] for i in range(batch)]) for batch in (1, 8))
points = {
    "attention of one token": (ideas.attention_cost(1, 2**15, 9, 9, 64, 4),
                               fastest(lambda: (q @ k.mT / 8).softmax(-1) @ v)),
    "decode, 1 sequence": (step_cost(1, 1, 68), min(one[1:])),
    "decode, 8 sequences": (step_cost(8, 1, 68), min(eight[1:])),
    "prefill, 512 tokens": (step_cost(8, 64, 64), eight[0]),
}
print(f"{machine_note()} ({model}, fp32)")
print(f"{'':<24}FLOPs/byte       ms    GB/s  of reading  GFLOP/s  of computing")
for name, ((flops, num_bytes), seconds) in points.items():
    bytes_per_s, flops_per_s = num_bytes / seconds, flops / seconds
    print(f"{name:<24}{flops / num_bytes:10.1f}{1000 * seconds:9.1f}{bytes_per_s / 1e9:8.1f}"
          f"{bytes_per_s / read_rate:12.0%}{flops_per_s / 1e9:9.1f}{flops_per_s / flop_rate:14.0%}")

# %% [markdown]
# One picture for all of it, the *roofline*. To the left of the ridge the slanted roof limits: reading. To
# the right the flat one: arithmetic.

# %% tags=["timing"]
figure = Figure(figsize=(8.5, 3.8), layout="constrained")
axes = figure.subplots()
ridge = flop_rate / read_rate
axes.plot([0.1, ridge, 1000], [0.1 * read_rate / 1e9, flop_rate / 1e9, flop_rate / 1e9], color=INK)
axes.text(0.1, 0.5 * read_rate / 1e9, "limit: reading", color=GREY)
axes.text(1000, 1.15 * flop_rate / 1e9, "limit: computing", color=GREY, ha="right")
for name, marker, colour in zip(points, "^osD", PALETTE, strict=False):
    (flops, num_bytes), seconds = points[name]
    axes.plot(flops / num_bytes, flops / seconds / 1e9, marker, color=colour, markersize=9, label=name)
axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="GFLOP/s", title=machine_note())
axes.set_xticks([0.1, 1, 10, 100, 1000], [0.1, 1, 10, 100, 1000])
axes.set_yticks([1, 10, 100], [1, 10, 100])
axes.minorticks_off()
axes.legend(loc="lower right", frameon=False)
axes.spines[["top", "right"]].set_visible(False)
described = ", ".join(f"{name}: {flops / num_bytes:.1f} FLOPs per byte, {flops / seconds / 1e9:.1f} GFLOP/s"
                      for name, ((flops, num_bytes), seconds) in points.items())
figure.set_label("Roofline: a slanted line for reading meets a flat one for computing at "
                 f"{ridge:.1f} FLOPs per byte. Points: {described}.")
show(figure)

# %% [markdown]
# **Explain.** The two points on the left do half a FLOP per byte, and so they would on any machine:
# decoding one sequence, the whole model reads 4 bytes for every 2 FLOPs. They lie under the slanted roof,
# and faster arithmetic would not lift it. (What they miss of it goes to the many small operators of a step,
# to Python, and to reading in less than one long run.) Eight sequences in a step move to the right and up:
# the weights are read once for all of them. The prefill is far to the right, under the flat roof. (With the
# tiny model a step is nearly all Python: its points lie far below.)
#
# So a decode step's time is mostly the weights' way through memory, which is why the context hardly showed
# above. But look at who grows: the weights are read once, however many sequences there are, and K and V
# once *for each*. With many sequences and long contexts K and V win:

# %%
weights, per_token = 4 * num_weights, package.kv_bytes_per_token(config, torch.float32)
for batch, context_len in ((1, 512), (8, 512), (8, 2048), (64, 2048)):
    kv_bytes = batch * context_len * per_token
    share = kv_bytes / (weights + kv_bytes)
    print(f"batch of {batch:>2}, {context_len:>5,} tokens each: {share:4.0%} of a step's bytes are K and V")

# %% [markdown]
# ## Written once, read over and over
#
# That makes the KV cache an unusual tenant. A token's K and V are written once, and read again in every
# step until the request ends. For a request of ordinary size (1,020 tokens in, 129 out are the medians of a
# public chat trace, see below):

# %%
prompt_len, output_len = 1020, 129
written = prompt_len + output_len - 1
read = sum(prompt_len + step for step in range(1, output_len))  # one sum for each step after the prefill
print(f"{written:,} tokens written; {read:,} tokens read, each {read / written:.0f} times on average")

# %% [markdown]
# ## Nobody knows how long it will get
#
# The worst is left. How much memory will a request need? Its prompt is known; how much it will write is
# not, not to the model either, until the end-of-text token comes. So how long are answers? These lengths
# are *generated*, to the published statistics of an hour of a chat service (Azure, 2023; 19,366 requests).

# %%
import numpy as np

from minipaged.simulation.traces import synthetic

requests = synthetic(10_000, seed=0, kind="conv")
outputs = np.array([request.output_len for request in requests])
totals = outputs + np.array([request.prompt_len for request in requests])
print(f"output: median {np.median(outputs):.0f}, mean {outputs.mean():.0f}, longest {outputs.max():,} tokens")
print(f"in all: median {np.median(totals):,.0f}, mean {totals.mean():,.0f}, longest {totals.max():,} tokens")

# %%
figure = Figure(figsize=(8.5, 2.8), layout="constrained")
axes = figure.subplots()
axes.hist(outputs, bins=np.arange(0, 1001, 25), color=PALETTE[0])
axes.axvline(np.median(outputs), color=PALETTE[5], linestyle="--", label=f"median: {np.median(outputs):.0f}")
axes.set(xlabel="tokens of the answer", ylabel="requests", xlim=0)
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure.set_label("Histogram of 10,000 generated answer lengths: two peaks, near 100 and near 400 tokens, and "
                 f"a thin tail up to 1,000; the median is {np.median(outputs):.0f}.")
show(figure)

# %% [markdown]
# **Predict.** A request has written 129 tokens so far, as many as half of all requests ever write. Is it
# about to end? How many more will it write, at the median?

# %%
for so_far in (0, 129, 300, 450):
    more = outputs[outputs > so_far] - so_far
    low, middle, high = np.percentile(more, (10, 50, 90))
    print(f"after {so_far:>3} tokens: {middle:3.0f} more at the median; of ten, one writes less than "
          f"{low:.0f}, one more than {high:.0f}")

# %% [markdown]
# **Explain.** It is not: the median of what is still to come is larger now than at the start. Whoever has
# written 129 tokens is writing one of the long answers. An engine learns about a request only by waiting.
# (Nor does the prompt tell: in the recorded hour the ranks of prompt and answer hardly correlate, 0.07.)
#
# Whoever wants to be safe sets aside room for the longest. How much of it would ever be used?

# %%
print(f"room for {totals.max():,} tokens each: {totals.mean() / totals.max():.0%} of it is ever written")

# %% [markdown]
# ## What a cache needs from its memory
#
# Put together, here is a tenant that
#
# 1. takes hundreds of gigabytes when there are many users, and always all that it can get: memory is the
#    batch, and the batch is the throughput;
# 2. comes in hundreds of separate sequences, each of which grows by one token in every step, to a length
#    that nobody knows;
# 3. writes every token once, never changes it, and reads all of them in every step, so it must lie in the
#    fastest memory there is;
# 4. gives everything back at once when a sequence ends, at a time that nobody knows;
# 5. often holds the same thing several times: equal beginnings have equal K and V.
#
# Chapter 2 gives it the kind of memory that engines had before paging, one contiguous piece per request,
# and measures what becomes of points 1, 2 and 4. From chapter 3 on we build what fits.
#
# ## Your function in the engine
#
# Three requests are served in a pool that your `num_blocks_for` has sized. It is so small that somebody has
# to be preempted, and still the answers must be those of the package, token for token. (As long as the stub
# stands, the package's function takes its place.)

# %%
serve_with("ch01")

# %%
check("ch01")

# %% [markdown]
# **The challenge, task 7** ★★★ (10 points, about 20 minutes). Some models let most of their layers look
# back only so far: in Gemma 3 1B, 22 of 26 layers see the last 512 tokens. What falls out of the window can
# be forgotten, but memory is given back in whole blocks, and a window does not care about their borders.
# How many blocks does such a layer hold at the worst moment, and how many sequences fit then?
#
# ## In vLLM this is …
#
# | here | in vLLM (its V1 engine) |
# |---|---|
# | bytes of a block, in one layer | `vllm/v1/kv_cache_interface.py`, `FullAttentionSpec.page_size_bytes` |
# | `mla_bytes_per_token` | the same file, `MLAAttentionSpec` |
# | task 7 | the same file, `SlidingWindowSpec` |
# | `num_blocks_for` | `vllm/v1/core/kv_cache_utils.py`, `get_num_blocks` |
# | the budget: what the model leaves | `vllm/v1/worker/gpu_worker.py`, `Worker.determine_available_memory` |
#
# ## Recap
#
# * A token costs 2 · L · G · D numbers: 819,200 bytes in OPT-13B. Sharing KV heads (GQA, MQA) and
#   compressing them (MLA) is how newer models bring it down.
# * Causal attention never changes the K and V of a token that is there. Keeping them turns the tokens
#   computed for an answer from n² into n.
# * The price is memory, and reading it: a decode step does about one FLOP per byte, far below what any
#   processor is balanced for. A larger batch helps with the weights, not with K and V.
# * How long a sequence gets is not known before it ends.
#
# ## Questions to think about
#
# 1. Nobody caches the queries. Why not?
# 2. Storing K and V in 8 bits halves the bytes of a token. What does it do to the FLOPs per byte of decode
#    attention, and to the number of users?
# 3. A prompt of 2,000 tokens is prefilled in four chunks of 500. Are the FLOPs the same as in one piece?
#    Are the bytes of K and V that are read?
# 4. At which batch would a decode step of your model reach the ridge of your roofline, if the contexts were
#    short? Why does it never get there when they are long?
#
# ## References
#
# * Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Sections 2 and 3.
# * Pope et al.: *Efficiently Scaling Transformer Inference*, MLSys 2023,
#   [arXiv:2211.05102](https://arxiv.org/abs/2211.05102). The arithmetic of decoding.
# * Shazeer: *Fast Transformer Decoding: One Write-Head is All You Need*, 2019,
#   [arXiv:1911.02150](https://arxiv.org/abs/1911.02150). MQA, and why it was wanted.
# * Ainslie et al.: *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*,
#   EMNLP 2023, [arXiv:2305.13245](https://arxiv.org/abs/2305.13245).
# * DeepSeek-AI: *DeepSeek-V2*, 2024, [arXiv:2405.04434](https://arxiv.org/abs/2405.04434): MLA; *Insights
#   into DeepSeek-V3*, ISCA 2025, [arXiv:2505.09343](https://arxiv.org/abs/2505.09343): bytes per token,
#   compared.
# * Williams, Waterman, Patterson: *Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures*, Communications of the ACM, 2009.
# * Patel et al.: *Splitwise: Efficient Generative LLM Inference Using Phase Splitting*, ISCA 2024: the
#   Azure traces.
