# %% [markdown]
# # Chapter 12: Triton, making it fast
#
# The kernels of chapter 11 are right. Are they fast? That is two questions. Does a kernel move no byte more
# than it needs? And is the whole GPU at work on it? A decode of one long sequence answers the second with a
# plain no: it starts 8 programs, on a machine that runs hundreds. In this chapter you split its context, give
# many queries one program, and copy blocks in all layers by one launch.
#
# **The promise:** you make kernels better without a GPU, because what decides their speed can be counted;
# and the engine serves with your kernels, token for token as before.
#
# After this chapter you will be able to
#
# 1. read a roofline, and say from two numbers whether a kernel waits for memory or for arithmetic;
# 2. split a sum with a softmax in it over any number of processors, and merge the pieces exactly;
# 3. count the bytes that a kernel moves, compare them with those it needs, and find the rest.
#
# *Time: about 60 minutes with the ★ and ★★ tasks. You need chapters 5 and 11. First hide the outputs: Edit →
# Clear Outputs of All Cells.*

# %%
import math
from dataclasses import replace
from functools import partial

import torch
from matplotlib.figure import Figure

from minipaged import LLM, SamplingParams, load_parts
from minipaged.course import check
from minipaged.course.engine_map import draw_engine_map
from minipaged.course.kernel_run import run_kernel
from minipaged.course.tasks import find_root
from minipaged.kernels import triton_status
from minipaged.kernels.paged import torch_twins
from minipaged.pictures.draw import INK, PALETTE, WIDTH, show

status = triton_status()
show(draw_engine_map("triton_fast"))

# %% [markdown]
# Kernels run compiled if there is a GPU, and else in Triton's interpreter, where every load is counted.
# Without the package triton (it exists for Linux only) their PyTorch twins take their place here: the same
# results, but nothing to count, and the tasks can't be checked. (On a GPU, start JupyterLab with
# TRITON_INTERPRET=1 to see the counts.)

# %%
if status.installed:
    from minipaged.kernels.paged import triton_decode, triton_fast
else:
    print("triton is not installed: PyTorch twins run in the kernels' place, and the counts stay empty")

def kernel(name):
    """A kernel's wrapper by name, or its twin."""
    if not status.installed:
        return getattr(torch_twins, f"{name}_torch")
    return getattr(triton_fast, name, None) or getattr(triton_decode, name)

def counts(done, tensor="k_cache_ptr"):
    """(programs, bytes of one argument) of all launches that were watched."""
    launches = done["launches"]
    return sum(one["programs"] for one in launches), sum(one["loaded"].get(tensor, 0) for one in launches)

# %% [markdown]
# ## The problem in numbers
#
# One sequence of 131,072 tokens in bf16, with 8 KV heads of 128 and 32 query heads. Its next token must read
# all of K and V, in every layer. What is the least time that this takes, and how much of the GPU does
# `paged_decode` put to work on it? The data sheets give two ends: bytes a second, and operations a second.

# %%
# NVIDIA's data sheets: A100 80GB SXM; H100 SXM. bf16 on tensor cores, dense: the H100's sheet prints twice
# that, for matrices of which half is 0. Processors: the architecture white papers.
GPUS = {
    "A100": {"bandwidth": 2.039e12, "flops": 312e12, "processors": 108},
    "H100": {"bandwidth": 3.35e12, "flops": 989e12, "processors": 132},
}
S, H, G, D, context = 1, 32, 8, 128, 131_072
kv_bytes = 2 * context * G * D * 2
print(f"K and V of one layer: {kv_bytes / 1e6:.0f} MB")
for name, gpu in GPUS.items():
    least = kv_bytes / gpu["bandwidth"]
    print(f"{name}: at least {least * 1e6:.0f} µs a layer; {S * G} programs, {gpu['processors']} processors")

# %% [markdown]
# A processor (NVIDIA says *streaming multiprocessor*) can only ask for so many bytes at a time. 8 of 132
# can't keep the memory busy, so the least time is out of reach, however well each program is written.
#
# (No time in this chapter is measured: these are the data sheets' limits. What a GPU of your own makes of it,
# `minipaged bench kernels` says.)
#
# ## The roofline
#
# Bytes or arithmetic, which is the limit? A kernel's **intensity** is the number of operations it does per
# byte it moves. A GPU has such a number too, its operations a second over its bytes a second. Below it a
# kernel waits for memory, above it for arithmetic. For a decode, every element of K and V (2 bytes) meets R
# = H / G query heads, with one multiplication and one addition each.
#
# **Predict.** With R = 4, what is the intensity of a decode? And how large would a group have to be, for an
# H100 to wait for arithmetic: about 10, 100 or 300?

# %%
def decode_intensity(R, itemsize=2):
    return 2 * R / itemsize

print("decode, R = 4:", decode_intensity(4), "operations per byte")
for name, gpu in GPUS.items():
    print(f"{name} turns at {gpu['flops'] / gpu['bandwidth']:.0f} operations per byte")

# %% [markdown]
# **Explain.** 4 operations a byte, and a turning point of 295. In bf16 the intensity of a decode is R, so no
# usual group comes near. Neither does a larger batch help: every sequence brings K and V of its own. Decoding
# waits for memory, and the only ways to make it faster are to move fewer bytes and to ask for them from more
# places at once.
#
# A prefill is another matter. A program that takes a *tile* of queries uses each element of K for all of
# them:

# %%
def attainable(intensity, gpu):
    """Operations a second, at most."""
    return min(gpu["flops"], intensity * gpu["bandwidth"])

KERNELS = {"decode, R = 1": 1, "decode, R = 4": 4, "prefill, 16 rows": 16, "prefill, 128 rows": 128,
           "2,048 rows, K read once": 2048}
for what, intensity in KERNELS.items():
    share = attainable(intensity, GPUS["H100"]) / GPUS["H100"]["flops"]
    print(f"{what:>24}: {intensity:>5} per byte, {share:>6.1%} of the arithmetic that an H100 can do")

# %%
figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
axes = figure.subplots()
steps = [2 ** (i / 4) for i in range(49)]
for colour, (name, gpu) in zip(PALETTE, GPUS.items(), strict=False):
    axes.loglog(steps, [attainable(x, gpu) / 1e12 for x in steps], color=colour, label=name)
for what, intensity in KERNELS.items():
    axes.axvline(intensity, color=INK, linewidth=0.6, linestyle=":")
    axes.text(intensity * 1.06, 0.1, what, rotation=90, fontsize=8, va="bottom", color=INK)
axes.set(xlabel="operations per byte moved", ylabel="TFLOP/s, at most", ylim=(0.08, 2000))
axes.legend(loc="upper left")
figure.set_label("Two rooflines, log by log: rising with the intensity up to 153 operations a byte for an"
                 " A100 and 295 for an H100, flat behind it. Decodes stand far left, prefills right.")
show(figure)

# %% [markdown]
# This is also why a prefill is computed in tiles, and why the tile can't be too small. (A tile's K and V may
# come from the L2 cache when the next tile asks for them, which is faster than memory; the picture leaves
# that out.)
#
# ## How many pieces
#
# Give each sequence's context to several programs, and 8 programs become 264. How many pieces? Enough that
# every processor has two programs, so that one computes while the other waits. Not more: a piece costs a
# partial result, and a row of the merge. So no piece is shorter than 256 tokens.
#
# **Predict.** One sequence, 8 KV heads, 132 processors. Into how many pieces would you split 131,072 tokens?
# 1,024 tokens? And a batch of 64 sequences of 4,096 tokens?

# %%
def pieces_for(num_programs, max_context_len, num_processors):
    wanted = 2 * num_processors // max(1, num_programs)
    return max(1, min(wanted, max_context_len // 256, 128))

for batch, length in ((1, 131_072), (1, 1024), (64, 4096)):
    n = pieces_for(8 * batch, length, 132)
    print(f"batch {batch:>2}, context {length:>7,}: {n:>2} pieces, {8 * batch * n:>3} programs")
    if status.installed:
        assert n == triton_fast.choose_num_splits(8 * batch, length, 132)

# %% [markdown]
# **Explain.** 33, 4 and 1. The first is limited by the processors, the second by the shortest piece, and the
# batch keeps all processors busy without any split: 512 programs. So splitting is for few, long sequences.
#
# **Your turn**, in `exercises/ch12_triton_fast.py`: task 1 ★, `choose_num_splits` (10 points, about 5
# minutes).

# %%
check("ch12", task=1)

# %% [markdown]
# ## Merging what was split
#
# A plain sum could be split without a thought. The softmax divides by a sum over *all* scores, and no program
# sees them all. But chapter 5 has solved this: three running values can be corrected when a larger score
# comes. The same correction joins pieces, in any order and from any number of programs.
#
# Each program leaves two things. Its **piece** is an attention of its own: the weighted mean of its values,
# with weights that add up to 1. The piece's **weight** says how much this mean counts: the sum of e^score of
# its positions, as a logarithm, because the sum itself would overflow. (In base 2, since GPUs compute 2^x.)
#
# **Predict.** Two pieces are 10 and 20, their weights (as log2) 3 and 1. Is the merged value 12, 13.3 or 15?

# %%
def merge(pieces, weights):
    """pieces [P, D] and weights [P], log2 -> [D]."""
    factors = torch.exp2(weights - weights.max())
    return (factors[:, None] * pieces).sum(dim=0) / factors.sum()

print(merge(torch.tensor([[10.0], [20.0]]), torch.tensor([3.0, 1.0])).item())

# %% [markdown]
# **Explain.** 12. The pieces count 2³ = 8 and 2¹ = 2: (8 · 10 + 2 · 20) / 10. A mean of means is right only
# if each counts by its number, and here e^score takes the place of a number.
#
# Now a whole attention of 600 positions, in pieces of 256, 256 and 88:

# %%
torch.manual_seed(0)
scores, values = 4 * torch.randn(600), torch.randn(600, 16)
pieces, weights = [], []
for s, v in zip(scores.split(256), values.split(256), strict=True):
    pieces.append(s.softmax(dim=0) @ v)
    weights.append(s.logsumexp(dim=0) / math.log(2))
merged = merge(torch.stack(pieces), torch.stack(weights))
torch.testing.assert_close(merged, scores.softmax(dim=0) @ values, atol=1e-5, rtol=1e-5)
print("merged, and equal to the attention over all 600")
if status.installed:
    stacked = torch.stack(pieces)[None, None], torch.stack(weights)[None, None]
    run = run_kernel(triton_fast.merge_pieces, *stacked, torch.float32, gaps=False)
    torch.testing.assert_close(run["result"][0, 0], merged, atol=1e-5, rtol=1e-5)

# %% [markdown]
# A piece may be empty: every sequence gets the same number of pieces, and a short context, or none, has not
# enough tiles for all. Then the piece's weight is −∞ and its factor 2^(−∞) = 0. Two traps lie there. A
# sequence with no context at all has nothing but empty pieces: −∞ − (−∞) is NaN, and so is 0 / 0. And a tile
# is a power of two, so of 4 lanes one may stand for no piece; it must be loaded as −∞ too, because 0 would be
# a weight like any other.
#
# **Your turn:** task 3 ★★, the merge kernel (20 points, about 15 minutes).

# %%
check("ch12", task=3)

# %% [markdown]
# ## One piece per program
#
# The split kernel is `paged_decode` with a third program id. It computes its `start` and `end`, calls the
# same `attend`, and stores piece and weight instead of a result. Pieces are whole tiles long, so that no
# program begins in the middle of one.
#
# **Predict.** A batch of 2 sequences of 1,024 tokens, with 1, 2 and 4 pieces. How do the bytes of K that are
# read grow: not at all, with the pieces, or in between?

# %%
S, H, G, D, B, context = 2, 4, 2, 64, 16, 1024
pool = torch.randn(2, S * context // B, B, G, D)
tables = torch.randperm(len(pool[0])).view(S, -1)
decode = (torch.randn(S, H, D), *pool, tables, torch.full((S,), context), D**-0.5)
expected = torch_twins.paged_decode_torch(*decode)
print("pieces  programs  bytes of K, read / needed")
for n in (1, 2, 4):
    done = run_kernel(kernel("paged_decode_split"), *decode, n)
    torch.testing.assert_close(done["result"], expected, atol=1e-5, rtol=1e-5)
    programs, read = counts(done)
    print(f"{n:>6}{programs:>10}{read / (S * context * G * D * 4):>12.2f}")

# %% [markdown]
# **Explain.** Not at all. Each position belongs to one piece, so K is read once, whatever the number of
# pieces. (The programs of the merge are among those counted; with one piece there is none.) The price of
# splitting is the pieces themselves, written once and read once:

# %%
for length, n in ((1024, 4), (131_072, 33)):
    extra = 2 * n * 32 * (128 + 1) * 4  # S = 1, H = 32, D = 128, fp32
    kv = 2 * length * 8 * 128 * 2
    print(f"context {length:>7,} in {n:>2} pieces: {extra / kv:.2%} more bytes than K and V")

# %% [markdown]
# This is *Flash-Decoding* (Dao, Haziza, Massa and Sizov, 2023). vLLM's Triton backend does the same for small
# batches: always 16 pieces, whenever it would start at most 128 programs without.
#
# **Your turn:** task 4 ★★, the split kernel (20 points, about 20 minutes).

# %%
check("ch12", task=4)

# %% [markdown]
# ## Many queries, one program
#
# A prompt of 96 tokens is 96 queries of one sequence. `paged_decode` could do it: 96 rows, all with the same
# block table, and contexts of 1, 2, … 96 tokens. What would be wrong with that?
#
# **Predict.** How many times is each byte of K read, on average over the needed ones: about 1, 10 or 50?

# %%
T, H, G, D = 96, 4, 1, 64
pool = torch.randn(2, T // B, B, G, D)
table, q = torch.randperm(T // B)[None], torch.randn(T, H, D)
one_by_one = (q, *pool, table.expand(T, -1).contiguous(), torch.arange(1, T + 1), D**-0.5)
together = (q, *pool, table, torch.tensor([T]), torch.tensor([0, T]), D**-0.5)
slow, fast = run_kernel(kernel("paged_decode"), *one_by_one), run_kernel(kernel("paged_prefill"), *together)
torch.testing.assert_close(slow["result"], fast["result"], atol=1e-5, rtol=1e-5)
needed = T * G * D * 4
for name, done in (("paged_decode, query by query", slow), ("paged_prefill, in tiles", fast)):
    print(f"{name:>29}: {counts(done)[0]:>3} programs, K is read {counts(done)[1] / needed:5.2f} times")

# %% [markdown]
# **Explain.** (1 + 2 + … + 96) / 96 = 48.5 times. The prefill kernel gives a program a **tile** of queries.
# In the interpreter a tile is 256 rows here, 64 queries with 4 heads each; so 96 queries are two tiles. The
# first one's last query sees 64 positions, the second one's 96: (64 + 96) / 96 = 1.67 times. And all
# results agree.
#
# What is new against the decode is bookkeeping. Row r of the tile is query r // R, head r % R. Queries see
# different numbers of positions, which `attend` takes as `visible`, one number a row. And `end`, where the
# loop over K stops, is what the *last* query of the tile sees: for a long prompt that leaves out almost
# half.

# %%
def share_read(prompt, tile):
    """Tiles of K and V that are read, of all: queries in tiles of `tile`, positions one by one."""
    ends = [min(prompt, first + tile) for first in range(0, prompt, tile)]
    return sum(ends) / (len(ends) * prompt)

for prompt in (64, 256, 1024, 8192):
    print(f"prompt {prompt:>5,}, tiles of 64 queries: {share_read(prompt, 64):.1%} of the pairs of tiles")

# %% [markdown]
# For a chunk the queries stand at the end of a context that is longer than they are, so everything is shifted
# by the tokens before it, `context_len − query_len`, as in chapter 5's mask.
#
# **Your turn:** task 5 ★★, the causal logic of the prefill kernel (20 points, about 20 minutes).

# %%
check("ch12", task=5)

# %% [markdown]
# ## Copies
#
# Copy-on-write asks for copies of blocks, the same ones in every layer, K and V. PyTorch's indexing reads
# the sources into a new tensor and writes that to its place: each byte is moved four times, two of them for
# nothing. A kernel reads once and writes once, and one launch serves all layers. There is no arithmetic at
# all: this is an exercise in addresses.

# %%
L, N, B, G, D = 3, 6, 16, 2, 64
caches, copies = (torch.randn(L, N, B, G, D), torch.randn(L, N, B, G, D)), torch.tensor([[0, 4], [2, 5]])
done = run_kernel(kernel("copy_blocks"), *caches, copies)
assert torch.equal(done["arguments"][0][:, 5], caches[0][:, 2])
for launch in done["launches"]:
    moved = sum(launch["loaded"].values()) + sum(launch["stored"].values())
    least = 4 * len(copies) * L * B * G * D * 4
    print(f"{launch['programs']} programs, {moved:,} bytes; K and V read and written once are {least:,}")

# %% [markdown]
# (The few bytes more are the list of copies.)
#
# **Your turn:** task 2 ★★, the copy kernel (15 points, about 15 minutes).

# %%
check("ch12", task=2)

# %% [markdown]
# ## A challenge: the prefix that everybody shares
#
# Chapter 7 stores a system prompt once, for all who begin with it. But each of them still *reads* it, at
# every token. Can it be read once for all? You have all it takes. To a shared block, the heads of all
# sequences are what the heads of a group are to a KV head: many queries, one K. And what comes behind the
# shared part is one more piece, to be merged.

# %%
def bytes_read(num_sequences, shared, own, per_token=2 * 8 * 128 * 2):
    """K and V of one layer, a decode step: each sequence by itself, and with the prefix read once."""
    return num_sequences * (shared + own) * per_token, (shared + num_sequences * own) * per_token

for num_sequences in (1, 8, 64):
    apart, once = bytes_read(num_sequences, shared=2048, own=200)
    print(f"{num_sequences:>2} sequences: {apart / 1e6:>4.0f} MB; prefix read once: {once / 1e6:>3.0f} MB")

# %% [markdown]
# **Your turn:** task 6 ★★★, `paged_decode_shared` (15 points, about 30 minutes): no new kernel, only
# reshaping.

# %%
check("ch12", task=6)

# %% [markdown]
# ## What the compiler made of it
#
# Bytes are half of it; the other half is how they are asked for. The compiler needs no GPU (chapter 11). For
# the two kernels of a split decode, on an H100: does anything spill from registers to memory, and do loads
# fetch 128 bits at once?

# %%
if status.installed:
    from minipaged.kernels.compile_report import compile_report

    compiled = list(compile_report(["sm_90"], names=["paged_decode_split bf16 D128"]))
    for one in compiled:
        print(f"{one.kernel}: widest load {max(one.loads)} bits, {one.spilled} bytes spilled;",
              "problems:", one.problems or "none")

# %% [markdown]
# And how many programs can a processor hold at once? The threads of all of them share its 65,536 registers,
# 32 threads in each warp. The share of its places for warps that is taken, of 64 on an H100, is its
# **occupancy**. High is not good in itself: few warps that compute beat many that wait. But
# `choose_num_splits` counts on two programs at a time.
#
# **Predict.** A program has 4 warps, and its threads take 128 registers each. How many fit?

# %%
def programs_per_processor(registers_per_thread, num_warps=4, registers=65_536):
    return registers // (registers_per_thread * num_warps * 32)

for used in (64, 128, 255):
    n = programs_per_processor(used)
    print(f"{used:>3} registers a thread, 4 warps: {n} programs, occupancy {4 * n / 64:.0%}")

# %%
if status.installed:
    split = compiled[0]
    by_registers, by_memory = programs_per_processor(split.registers), 228 * 1024 // split.shared
    print(f"{split.kernel}: {by_registers} programs by its registers, {by_memory} by its shared memory")
    assert min(by_registers, by_memory) >= triton_fast.PROGRAMS_PER_PROCESSOR

# %% [markdown]
# **Explain.** 65,536 / (128 · 4 · 32) = 4. The split kernel leaves room for the two that the number of pieces
# counts on, in registers and in the 228 KB of shared memory (these limits: NVIDIA's *Hopper Tuning Guide*).
#
# ## Your kernels in the engine
#
# All of `exercises/ch12_triton_fast.py`:

# %%
check("ch12")

# %% [markdown]
# And now the promise. The tiny model, for the interpreter is slow; two answers to each prompt, so that blocks
# are shared and copied. On a CPU `choose_num_splits` would never split, so we insist on two pieces.

# %%
def serve(parts, backend):
    """Tokens of two prompts, twice each, and how many blocks were copied."""
    device = "cuda" if status.installed and not status.interpret else "cpu"
    llm = LLM("tiny", num_blocks=32, block_size=4, device=device, dtype="float32", parts=parts,
              attention_backend=backend)
    params = SamplingParams(n=2, temperature=0.7, seed=3, max_tokens=6, ignore_eos=True)
    outputs = llm.generate(["a split", "and a merge"], params)
    return [one.token_ids for output in outputs for one in output.outputs], llm.engine.stats().copies

# %%
expected, _ = serve(None, "torch")
try:
    yours = load_parts(find_root() / "exercises", "ch12")
    splitting = replace(yours, paged_decode=partial(yours.paged_decode_split, num_splits=2))
    tokens, copies = serve(splitting, "triton")
except Exception as error:  # whatever a layer may raise
    print(f"exercises/ch12 can't serve yet: {error.__cause__ or error}")
else:
    same = "the same" if tokens == expected else "DIFFERENT"
    print(f"{same} tokens as with PyTorch, {sum(map(len, tokens))} of them, with {copies} copies on the way")

# %% [markdown]
# (`minipaged demo --use exercises:ch12` serves with them on a GPU.) The package's own do:

# %%
if status.installed:
    split = partial(triton_fast.paged_decode_split, num_splits=2)
    from minipaged import Parts

    tokens, copies = serve(Parts(paged_decode=split), "triton")
    assert tokens == expected and copies > 0
    print(f"{sum(map(len, tokens))} of {sum(map(len, expected))} tokens the same, {copies} blocks copied")

# %% [markdown]
# ## Recap
#
# * A kernel waits for memory or for arithmetic; operations per byte say for which. Decoding waits for
#   memory, at R operations a byte; a prefill in large tiles waits for arithmetic.
# * A GPU is fast only as a whole. Few, long sequences are split; batches need no split.
# * Pieces of an attention merge exactly, by their weights: log2 of the sum of e^score. Empty ones weigh −∞.
# * Splitting reads no byte of K twice. A prefill in tiles reads K once a tile instead of once a query, and
#   stops where its last query sees no further.
# * What can be counted can be improved without a GPU: programs, bytes moved, bytes needed, widths of loads.
#
# ## Questions to think about
#
# 1. A batch holds one sequence of 100,000 tokens and 63 of 500. How does `choose_num_splits` treat it, and
#    what would you change?
# 2. Merging could run in the last program to finish, with a counter in memory, instead of in a second
#    kernel. What would that save, and what would it need?
# 3. The merge is exact in real numbers. Why may the last digits of a result still depend on the number of
#    pieces, and when does a user notice?
# 4. In a prefill, a tile that lies wholly before its first query needs no mask. How many of a long prompt's
#    tiles do? What would leaving the mask out save?
#
# ## In vLLM this is …
#
# (Names as in vLLM 0.32.)
#
# | here | in vLLM |
# |---|---|
# | `decode_pieces` | `vllm/v1/attention/ops/triton_unified_attention.py`, its kernel on a 3D grid |
# | `merge_pieces` | the same file, `reduce_segments` |
# | `paged_prefill` | the same kernel on a 2D grid: BLOCK_Q queries in BLOCK_M rows |
# | `choose_num_splits` | `vllm/v1/attention/backends/triton_attn.py`, `NUM_PAR_SOFTMAX_SEGMENTS` |
# | when it splits | the same file, `MIN_LAUNCH_GRID_SIZE_2D` |
# | two attentions merged | `vllm/v1/attention/ops/merge_attn_states.py` |
#
# A prefix that is read once for all was *cascade attention* in earlier versions; vLLM 0.32 has it no more.
#
# ## References
#
# * Dao, Haziza, Massa, Sizov: *Flash-Decoding for long-context inference*, 2023,
#   [crfm.stanford.edu](https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
# * Dao: *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning*, 2023,
#   [arXiv:2307.08691](https://arxiv.org/abs/2307.08691).
# * Williams, Waterman, Patterson: *Roofline: an insightful visual performance model for multicore
#   architectures*, Communications of the ACM 52(4), 2009.
# * Milakov, Gimelshein: *Online normalizer calculation for softmax*, 2018,
#   [arXiv:1805.02867](https://arxiv.org/abs/1805.02867).
# * NVIDIA: data sheets and architecture white papers of the A100 and H100 Tensor Core GPUs; *Hopper Tuning
#   Guide*, sections Occupancy and Shared Memory.
