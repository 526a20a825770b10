# %% [markdown]
# # Chapter 11: Triton, storing K and V, decoding
#
# Chapter 5 ended with a promise: a GPU kernel follows the block table itself, reads K and V where they lie,
# and forgets them. In this chapter you write it, in Triton, a language for kernels that looks like Python.
# You need no GPU. Triton's interpreter runs kernels on the CPU, under the eyes of a watch that says what is
# wrong and counts every byte; and its compiler shows what a GPU would run.
#
# **The promise:** two kernels of yours, `store_kv` and `paged_decode`, serve a model in the real engine, and
# the tokens are those of PyTorch.
#
# After this chapter you will be able to
#
# 1. write a Triton kernel: programs, tiles, pointers, strides, masks;
# 2. find the mistakes that a GPU does not report: wild addresses, garbage, two programs that meet;
# 3. count what a kernel moves, and read in the compiled code how it does so.
#
# *Time: about 60 minutes with the ★ tasks, and 60 more for the ★★ tasks. You need chapters 4 and 5. First
# hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import linecache
import os
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported; with a GPU, too, in this notebook

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged import LLM, Parts, SamplingParams, load_parts
from minipaged.course import check
from minipaged.course.engine_map import draw_engine_map
from minipaged.course.tasks import find_root
from minipaged.kernels import triton_status
from minipaged.kernels.paged import torch_twins
from minipaged.kernels.sanitizer import KernelFault, watch
from minipaged.paged_attention import paged_attention
from minipaged.pictures.draw import GREY, PALETTE, WIDTH, show

show(draw_engine_map("triton_decode"))

# %% [markdown]
# Triton exists for Linux only. Without it you can still read on: kernels are defined but not run, PyTorch
# twins compute what they would, and each cell says what is missing.

# %%
if triton_status().installed:
    import triton
    import triton.language as tl

    from minipaged.kernels.paged.triton_decode import paged_decode, store_kv
else:
    print("triton is not installed: PyTorch twins run in the kernels' place, and nothing is counted")
    triton, tl = SimpleNamespace(jit=lambda kernel: kernel), SimpleNamespace(constexpr=int)
    paged_decode, store_kv = torch_twins.paged_decode_torch, torch_twins.store_kv_torch

# %% [markdown]
# `watched` runs something with all its loads and stores watched. It gives a report, or tells what went wrong.

# %%
def watched(run, *arguments, unwritten=(), **constants):
    """The report of a call that launches kernels; None, with a line of explanation, if it can't be had."""
    if not triton_status().interpret:
        print("not run: this needs triton's interpreter")
        return None
    try:
        with watch(unwritten=unwritten) as report:
            run(*arguments, **constants)
    except KernelFault as fault:
        print(f"{type(fault).__name__}: {fault.args[0]}")
        print(f"  in program {fault.program[0]}: {linecache.getline(fault.file, fault.line).strip()}")
        return None
    return report

def launch(kernel, programs, *arguments, unwritten=(), **constants):
    """The same for one launch of a kernel, by so many programs."""
    return watched(lambda: kernel[programs](*arguments, **constants), unwritten=unwritten)

# %% [markdown]
# ## The problem in numbers
#
# A decode reads all of K and V for each new token. A kernel that wants them in one piece must have them
# gathered first: read, written, and read again. What does that cost, for a context of 4,096 tokens with 8 KV
# heads of 128 in bf16?

# %%
once = 2 * 4096 * 8 * 128 * 2  # K and V, tokens, heads, elements, bytes
for name, bandwidth in (("A100", 2.039e12), ("H100", 3.35e12)):  # NVIDIA's data sheets, SXM, 80 GB
    print(f"{name}: {once / 1e6:.1f} MB in {once / bandwidth * 1e6:4.1f} µs a layer at least;"
          f" gathered first {3 * once / bandwidth * 1e6:4.1f} µs")

# %% [markdown]
# These are limits, not measurements. (What a GPU of your own does, `minipaged bench kernels` says.) The way
# to come near the first number is to move no byte twice, and that can be counted on any laptop.
#
# ## What a GPU is made of
#
# About a hundred *processors* (NVIDIA: streaming multiprocessors; 108 in an A100, 132 in an H100) and one
# large memory, far from all of them. A processor computes on *registers*, 65,536 places of 32 bits, and has a
# little *shared memory* of its own, about 200 kB. All that a kernel computes on must come from the large
# memory first, and go back to it in the end; an access takes hundreds of cycles. So a processor keeps
# many threads at hand, and whenever some wait for memory, others compute. Threads go in *warps*: 32 of them
# that take every instruction together.
#
# Triton spares you threads and warps. You write what a group of them does as a whole, and the compiler deals
# it out.
#
# ## Programs and lanes
#
# A kernel is a function that is run many times at once. Each run is a **program** (in CUDA: a thread block).
# One processor runs it, with 4 or 8 warps, and the only thing that tells one program from another is its
# number, `tl.program_id(0)`. A program does not work on single numbers but on **tiles**, small arrays whose
# size is a power of two; we call their places *lanes*. Tiles live in registers.
#
# `@triton.jit` makes a kernel of a function. An argument that is a `tl.constexpr` is known when the kernel is
# compiled, as the size of a tile must be.

# %%
@triton.jit
def who_kernel(out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    number = tl.program_id(0)
    tl.store(out_ptr + number * BLOCK + lanes, 10 * number + lanes)

# %% [markdown]
# A tensor comes as a **pointer** to its first element. `out_ptr + 5` points to the element 5 places further,
# whatever its type. A pointer plus a tile is a tile of pointers, and `tl.store` stores to all of them.
#
# How many programs there are is said in brackets: `who_kernel[(3,)](out, BLOCK=4)` starts three. Our helper
# `launch` below does just that, watched.
#
# **Predict.** 3 programs with tiles of 4. What does `out` hold afterwards, at places 4 to 7?

# %%
out = torch.zeros(12, dtype=torch.int64)
launch(who_kernel, (3,), out, BLOCK=4)
print(out.tolist())

# %% [markdown]
# **Explain.** 10, 11, 12, 13: program 1 writes there. There is no loop over the programs anywhere. On a GPU
# they run at the same time, on as many processors as there are, in no order that anybody promises. (The
# interpreter takes one after the other.)
#
# ## Masks
#
# 10 elements do not fill 3 tiles of 4. Here is the sum of two vectors, written as one might at first:

# %%
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, x + y)

# %% [markdown]
# **Predict.** What happens to the two lanes of the last program that have no element: an error, zeros, or
# something else?

# %%
x, y, out = torch.arange(10.0), torch.ones(10), torch.zeros(10)
report = launch(add_kernel, (3,), x, y, out, BLOCK=4)

# %% [markdown]
# **Explain.** Something else, on a GPU: it reads whatever lies behind `x`, and writes to whatever lies behind
# `out`, somebody's weights perhaps. Mostly there is no error at all. The watch knows where each tensor ends,
# and stops the kernel first.
#
# A **mask** says which lanes count: `tl.load(pointers, mask=offs < n)`. The others load nothing, and hold
# anything at all, unless one says `other=0.0`.

# %%
figure = Figure(figsize=(WIDTH, 1.5), layout="constrained")
axes = figure.subplots()
for lane in range(12):
    program, exists = lane // 4, lane < 10
    look = {"facecolor": PALETTE[program]} if exists else {"facecolor": "white", "hatch": "//"}
    axes.add_patch(Rectangle((lane + 0.4 * program, 0), 0.9, 0.9, edgecolor=GREY, **look))
    axes.text(lane + 0.4 * program + 0.45, 0.45, lane, ha="center", va="center", backgroundcolor="white")
for program in range(3):
    axes.text(4.4 * program, 1.05, f"program {program}")
axes.set(xlim=(-0.1, 13), ylim=(-0.1, 1.5))
axes.axis("off")
figure.set_label("Three programs with four lanes each for ten elements. Lanes 10 and 11, in the last program,"
                 " are hatched: masked.")
show(figure)

# %% [markdown]
# **Your turn**, in `exercises/ch11_triton_decode.py`: task 1 ★, the sum of two vectors (5 points, about 5
# minutes).

# %%
check("ch11", task=1)

# %% [markdown]
# ## Strides
#
# Memory has one dimension. A tensor of two has two **strides**: how far it is to the next row, and to the
# next column. A kernel gets them as plain numbers, and does the address itself.
#
# **Predict.** `a` is contiguous, [3, 5]; `b` is its transpose, [5, 3]. Both begin at the same pointer. How
# far from it is `b[1, 2]`: 5, 7 or 11 elements?

# %%
a = torch.arange(15.0).view(3, 5)
b = a.T
print("strides of a:", a.stride(), " of b:", b.stride())
print("b[1, 2] is", b[1, 2].item(), "at", 1 * b.stride(0) + 2 * b.stride(1))

# %% [markdown]
# **Explain.** 1 · 1 + 2 · 5 = 11. In a contiguous [5, 3] it would be 1 · 3 + 2 = 5. Transposing moved
# nothing, it exchanged the strides. In the engine k is a part of a wider product, and rows of it do not
# follow each other in memory. Who forgets a stride reads a neighbour, inside the tensor, where no watch can
# see that it is wrong.
#
# **Your turn:** task 2 ★, scaling rows (10 points, about 10 minutes).

# %%
check("ch11", task=2)

# %% [markdown]
# ## An address from memory
#
# Paging needs one thing more: to read a number, and go where it points. In a kernel that is two loads.

# %%
@triton.jit
def gather_kernel(table_ptr, index_ptr, out_ptr, D: tl.constexpr):
    i, columns = tl.program_id(0), tl.arange(0, D)
    row = tl.load(index_ptr + i).to(tl.int64)
    values = tl.load(table_ptr + row * D + columns)
    tl.store(out_ptr + i * D + columns, values)

table = torch.arange(8.0).view(4, 2)
out = torch.zeros(3, 2)
report = launch(gather_kernel, (3,), table, torch.tensor([2, 0, 2]), out, D=2)
print(out.tolist() if report else table[[2, 0, 2]].tolist())

# %% [markdown]
# `.to(tl.int64)` matters in a large pool. A block's number times its stride passes 2³¹ in a cache of more
# than two billion elements, and in 32 bits it becomes negative: the kernel reads memory before the cache.
# Tests with small caches don't show it. (The grader's caches are small, too, but they claim strides of 2³⁰,
# and the watch plays along.)
#
# **Predict.** And if the index holds −1, for "nothing"?

# %%
report = launch(gather_kernel, (3,), table, torch.tensor([2, -1, 2]), out, D=2)

# %% [markdown]
# **Explain.** In PyTorch −1 is the last row. A kernel knows no rows: it goes one row *before* the table. So a
# lane must be masked for two reasons, because its column doesn't exist or because its row doesn't, and
# `other` says what it holds then.
#
# **Your turn:** task 3 ★, gathering rows (10 points, about 10 minutes).

# %%
check("ch11", task=3)

# %% [markdown]
# ## Storing K and V
#
# `store_kv` is that gather turned round. One program takes one token, reads its slot, and copies G · D
# elements of K and of V to there. If all is contiguous, slot s is simply row s:

# %%
@triton.jit
def small_store_kernel(k_ptr, cache_ptr, slots_ptr, SIZE: tl.constexpr):
    token, lanes = tl.program_id(0), tl.arange(0, SIZE)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:  # -1 is padding
        tl.store(cache_ptr + slot * SIZE + lanes, tl.load(k_ptr + token * SIZE + lanes))

torch.manual_seed(0)
k, slots = torch.randn(3, 2, 8), torch.tensor([6, -1, 0])  # 3 tokens, G = 2, D = 8
caches = torch.zeros(3, 4, 4, 2, 8)  # ours, and K's and V's of the package; 4 blocks of 4
report = launch(small_store_kernel, (3,), k, caches[0], slots, SIZE=16)
store_kv(k, k, caches[1], caches[2], slots)
if report:
    assert torch.equal(caches[0], caches[1])
    print(f"{report['k_ptr'].bytes_loaded} bytes loaded: 2 tokens of {k[0].numel() * 4}, none for padding")

# %% [markdown]
# Two slots may never be the same, or two programs write there at once, and what remains is a matter of luck.
# The engine takes care of that (chapter 4). A kernel that mixes up its addresses does it by itself:

# %%
report = launch(small_store_kernel, (2,), k, caches[0], torch.tensor([5, 5]), SIZE=16)

# %% [markdown]
# The interpreter would have shown nothing, since it runs programs in turn. The watch remembers who touched
# what.
#
# **Your turn:** task 5 ★★, `store_kv` for any strides (15 points, about 15 minutes).

# %%
check("ch11", task=5)

# %% [markdown]
# ## A softmax in a loop
#
# A program's tiles must fit into its processor's registers, so a long context comes in several. Chapter 5's
# online softmax needs no more than a highest score, a total and a weighted sum, and corrects them when a
# higher score comes. In a kernel it looks like this, for one query head and contiguous tensors:

# %%
@triton.jit
def one_head_kernel(q_ptr, k_ptr, v_ptr, table_ptr, out_ptr, context_len, scale, H, G,
                    B: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr):
    head, d = tl.program_id(0), tl.arange(0, D)
    q = tl.load(q_ptr + head * D + d)
    highest, total = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
    acc = tl.zeros([D], tl.float32)
    for first in range(0, context_len, TILE):
        position = first + tl.arange(0, TILE)
        exists = position < context_len
        block = tl.load(table_ptr + position // B, mask=exists, other=0)
        row = (block * B + position % B) * G + head // (H // G)
        offs, mask = row[:, None] * D + d[None, :], exists[:, None]
        scores = tl.sum(q[None, :] * tl.load(k_ptr + offs, mask=mask, other=0.0), axis=1) * scale
        scores = tl.where(exists, scores, float("-inf"))
        new = tl.maximum(highest, tl.max(scores, axis=0))
        weights, shrink = tl.exp(scores - new), tl.exp(highest - new)
        total = total * shrink + tl.sum(weights, axis=0)
        v = tl.load(v_ptr + offs, mask=mask, other=0.0)
        acc, highest = acc * shrink + tl.sum(weights[:, None] * v, axis=0), new
    tl.store(out_ptr + head * D + d, acc / total)

# %% [markdown]
# One program for each of 8 query heads, on a context of 100 tokens in scattered blocks. What was never
# written is NaN, and the watch refuses to load it.

# %%
H, G, D, B, context = 8, 2, 64, 16, 100
pool = torch.full((2, 12, B, G, D), torch.nan)
block_table = torch.randperm(12)[: -(-context // B)]
where = block_table[torch.arange(context) // B], torch.arange(context) % B
for cache in pool:
    cache[where] = torch.randn(context, G, D)
q, scale = torch.randn(1, H, D), D**-0.5
tables, lens, starts = block_table[None], torch.tensor([context]), torch.tensor([0, 1])
expected = paged_attention(q, *pool, tables, lens, starts, scale)  # chapter 5's

# %%
out = torch.full((1, H, D), torch.nan)
arguments = (q, *pool, block_table, out, context, scale, H, G)
report = launch(one_head_kernel, (H,), *arguments, unwritten=list(pool), B=B, D=D, TILE=64)
if report:
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    print("equal to chapter 5's attention")

# %% [markdown]
# What if the mask of K forgets where the context ends? Say we take it for 4 tokens longer than it is:

# %%
wrong = (q, *pool, block_table, out, context + 4, scale, H, G)
ignored = launch(one_head_kernel, (H,), *wrong, unwritten=list(pool), B=B, D=D, TILE=64)

# %% [markdown]
# 256 elements are those 4 tokens, of one head. On a GPU they would have joined the mean, whatever they are.
#
# **Your turn:** task 4 ★★, the loop alone, on rows of numbers (15 points, about 15 minutes).

# %%
check("ch11", task=4)

# %% [markdown]
# ## Read once, not four times
#
# The kernel is right. Is it good? K of this context has 100 · 2 · 64 elements of 4 bytes.
#
# **Predict.** H = 8, G = 2. How many bytes of K does the kernel above load for each byte that it needs?

# %%
if report:
    print(report)

# %% [markdown]
# **Explain.** Four. Four query heads share a KV head, and each has a program of its own, which reads all of K
# and V for itself. (A GPU's L2 cache may soften that; the table counts what is asked for.) Grouped-query
# attention was invented to make K and V small, and here nothing of it is left.
#
# The way out is chapter 5's: the group are the *rows of a matrix*. A program takes a KV head and its
# R = H / G query heads at once, as a tile [R, D]. Scores become a matrix product, `tl.dot`, for which GPUs
# have units of their own (NVIDIA: tensor cores). They take no side smaller than 16, so R is padded; rows that
# don't exist cost arithmetic, which a decode has to spare.

# %%
packed = []
grouped = watched(lambda: packed.append(paged_decode(q, *pool, tables, lens, scale)), unwritten=list(pool))
twin = torch_twins.paged_decode_torch(q, *pool, tables, lens, scale)
torch.testing.assert_close(twin, expected, atol=1e-5, rtol=1e-5)
if report and grouped:
    torch.testing.assert_close(packed[0], expected, atol=1e-5, rtol=1e-5)
    print(grouped)
    print(f"{report['k_ptr'].excess:.2f} against {grouped['k_cache_ptr'].excess:.2f} bytes per byte needed")

# %% [markdown]
# 1.00: nothing is loaded twice, and the result is the twin's and chapter 5's. (The small tables are read by
# each of the two programs.) The same numbers hold on a GPU: they follow from the addresses alone.
#
# **Your turn:** task 6 ★★, `attend`, the loop over a context (20 points, about 25 minutes), and task 7 ★★,
# the kernel around it (15 points, about 15 minutes).

# %%
check("ch11", task=6)
check("ch11", task=7)

# %% [markdown]
# ## What the compiler makes of it
#
# A compiler needs no GPU either. It turns a kernel into **PTX**, NVIDIA's portable assembly, and that into
# machine code. (In a process of its own: one that interprets kernels can't compile them.) For an H100, and
# bf16 with heads of 128:

# %%
compiled = {}
if triton_status().installed:
    from minipaged.kernels.compile_report import compile_report

    for one in compile_report(["sm_90"], names=["store_kv bf16 D128", "paged_decode bf16 D128"]):
        compiled[one.name] = one
        print(f"{one.name}: loads of up to {max(one.loads)} bits, {one.spilled} bytes spilled;",
              "problems:", one.problems or "none")

# %% [markdown]
# A thread of an H100 loads at most 128 bits with one instruction. The compiler does so only if it can prove
# that 8 neighbouring bf16 lie together and begin at a multiple of 16 bytes: strides that are multiples of 16,
# and a last stride of 1, prove it. **Spilled** would mean that the registers of a thread did not suffice, and
# values go to memory and back. Which instructions for global memory does `store_kv` consist of?

# %%
if compiled:
    words = {word for line in compiled["store_kv bf16 D128"].assembly.splitlines() for word in line.split()}
    print(sorted(word for word in words if word.startswith(("ld.global", "st.global"))))

# %% [markdown]
# `v4.b32` is four times 32 bits at once, and `b64` the slot's number. And what does the interpreter not tell?
#
# | the interpreter | a GPU |
# |---|---|
# | runs programs one after the other | at once: races show, or don't |
# | takes any shape for `tl.dot` | sides of 16 at least |
# | a masked load without `other` gives 0 (the watch makes it NaN) | anything at all |
# | multiplies fp32 in full | `tl.dot` in tf32, with 10 bits of 23, unless `input_precision="ieee"` |
# | has memory without end | registers and shared memory are limited |
#
# `minipaged kernels` prints this report for every kernel and three GPUs, and finds 32-bit offsets as well.
#
# ## A challenge: store and decode in one
#
# A decode step stores one row and then reads it back, in two launches. Could one kernel do both? Its program
# can't simply load what it has just stored: other threads of it do the loading, and nobody makes them wait.
# But it has the row in its registers.
#
# **Your turn:** task 8 ★★★, `store_and_decode` (10 points, about 30 minutes).

# %%
check("ch11", task=8)

# %% [markdown]
# ## Your kernels in the engine
#
# All of `exercises/ch11_triton_decode.py`:

# %%
check("ch11")

# %% [markdown]
# And now the promise. The tiny model, because the interpreter is slow; prompts go through the package's
# prefill kernel (chapter 12), each further token through your two.

# %%
def serve(parts, backend):
    llm = LLM("tiny", num_blocks=32, block_size=4, device="cpu", dtype="float32", parts=parts,
              attention_backend=backend)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    outputs = llm.generate(["a block", "and its table"], params)
    return [output.outputs[0].token_ids for output in outputs]

expected_tokens = serve(None, "torch")
try:
    tokens = serve(load_parts(find_root() / "exercises", "ch11"), "triton")
except Exception as error:  # whatever a layer may raise
    while error.__cause__:
        error = error.__cause__
    print(f"exercises/ch11 can't serve yet: {error}")
else:
    same = "the same" if tokens == expected_tokens else "DIFFERENT"
    print(f"{same} tokens as with PyTorch, {sum(map(len, tokens))} of them")

# %% [markdown]
# (`minipaged demo --model tiny --use exercises:ch11` shows every step of it.) The package's own kernels do:

# %%
if triton_status().installed:
    tokens = serve(Parts(), "triton")
    assert tokens == expected_tokens
    print(f"{sum(map(len, tokens))} tokens, the same as with PyTorch")

# %% [markdown]
# ## Recap
#
# * A kernel is run by many programs at once; its number is all that a program knows of itself. It works on
#   tiles whose sizes are powers of two, and masks what is too many.
# * A tensor is a pointer and strides. An address is a sum, in 64 bits, and nobody checks it on a GPU.
# * Paging is two loads: the block's number, and then what lies there. −1 and what is unwritten are masked.
# * The online softmax is the loop that makes any context fit into registers.
# * The heads of a group are the rows of a matrix: K and V are read once, 1.00 against 4.00.
# * Bytes can be counted, and widths of loads can be read, without a GPU.
#
# ## Questions to think about
#
# 1. `store_kv` starts one program per token. Why not one per token and head, or one for all tokens?
# 2. The mask of K covers positions behind the end of the context. Why is `other=0.0` needed there too, if
#    their scores are −∞ and their weights 0?
# 3. A block table of 32-bit ids, a cache of 3 · 10⁹ elements. Which line of `attend` would break without
#    `.to(tl.int64)`, for which blocks, and what would one see?
# 4. Blocks of 1 token or of 256: what changes in `attend`, and what does not?
#
# ## In vLLM this is …
#
# (Names as in vLLM 0.32.)
#
# | here | in vLLM |
# |---|---|
# | `store_kv` | `vllm/v1/attention/ops/triton_reshape_and_cache_flash.py`, `reshape_and_cache_kernel_flash` |
# | its programs | there: a token, and up to 2,048 of its G · D elements (512 before the H100) |
# | the same in C++ | `vllm/_custom_ops.py`, `reshape_and_cache_flash` |
# | `paged_decode`, `attend` | `vllm/v1/attention/ops/triton_unified_attention.py`, its one kernel |
# | the group as rows | the same file: BLOCK_M rows, `num_queries_per_kv` heads for each query |
#
# ## References
#
# * Tillet, Kung, Cox: *Triton: an intermediate language and compiler for tiled neural network computations*,
#   MAPL 2019, [doi:10.1145/3315508.3329973](https://doi.org/10.1145/3315508.3329973).
# * Milakov, Gimelshein: *Online normalizer calculation for softmax*, 2018,
#   [arXiv:1805.02867](https://arxiv.org/abs/1805.02867).
# * Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Section 5.1 is about kernels.
# * NVIDIA: *Parallel Thread Execution ISA*; data sheets and architecture white papers of the A100 and H100
#   Tensor Core GPUs (bandwidth; processors); *Hopper Tuning Guide* (registers, shared memory, warps).
