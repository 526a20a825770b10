# %% [markdown]
# # Chapter 3: The block pool
#
# Chapter 2 ended with a list of what a better way must do: take memory when it is needed, in pieces that
# fit every hole, and give it back at once. The answer is the plainest allocator there is. All of the memory
# is cut into blocks of one size, and a **pool** hands them out by number. This chapter builds that pool. It
# is about a hundred lines, it never touches a tensor, and everything above it stands on it: one block in
# two hands, and two users read each other's conversation.
#
# **The promise: the pool you write here runs in the real engine**, in this notebook's last cells.
#
# After this chapter you will be able to
#
# 1. hand out and take back blocks in constant time, however large the pool is;
# 2. say what a reference count protects from, and show what happens without it;
# 3. write operations that either happen completely or not at all.
#
# *Time: about 60 minutes with the ★ tasks, and 25 more for the ★★ tasks. You need chapter 0, and to have read
# about contiguous allocation (chapter 2) helps. First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import random
from collections import Counter, OrderedDict

from minipaged import LLM, BlockAllocator, Engine, OutOfBlocks, SamplingParams
from minipaged.course import check, machine_note, serve_with, sketch_pool
from minipaged.course.chapters.ch03_block_allocator.figures import draw_free_queue
from minipaged.course.engine_map import draw_engine_map
from minipaged.pictures.draw import draw_pool, show

# %%
show(draw_engine_map("block_allocator"))

# %% [markdown]
# ## The problem, in numbers
#
# How many blocks is a pool, on a machine that serves for a living? Take Llama 3 8B: 32 layers, 8 KV heads of
# 128 numbers, two bytes each, with 60 GiB left for K and V beside the weights.

# %%
bytes_per_token = 2 * 32 * 8 * 128 * 2
bytes_per_block = 16 * bytes_per_token
print(f"one block of 16 tokens: {bytes_per_block / 2**20:.0f} MiB")
print(f"blocks in 60 GiB: {60 * 2**30 // bytes_per_block:,}")

# %% [markdown]
# Thirty thousand blocks. A step in which 256 sequences get one token each takes about 256 / 16 = 16 new
# blocks, and one request that ends may give back a hundred. All of this happens between two steps of the
# model, while the GPU waits. So the pool must be fast, and what it costs must not grow with its size. That
# rules out the obvious container, as we shall see below.
#
# And it must be *right*. A pool that hands out one block twice does not crash. It serves wrong text.
#
# ## A small version
#
# Free blocks wait in a queue. `allocate` takes the one at the head, `free` puts one back at the tail.

# %%
class SmallPool:
    def __init__(self, num_blocks):
        self.queue = list(range(num_blocks))

    def allocate(self):
        return self.queue.pop(0)

    def free(self, block_id):
        self.queue.append(block_id)

# %% [markdown]
# That is the whole idea. Is it the package's pool? We let both go through a long random history and compare
# every block that they hand out.

# %%
small, package, held = SmallPool(8), BlockAllocator(8), []
random.seed(0)
for _ in range(10_000):
    if held and (len(held) == 8 or random.random() < 0.5):
        block_id = held.pop(random.randrange(len(held)))
        small.free(block_id)
        package.free(block_id)
    else:
        held.append(package.allocate())
        assert small.allocate() == held[-1]
assert small.queue == package.free_blocks()
print("the same", package.num_free, "free blocks, in the same order:", small.queue)

# %% [markdown]
# For a well-behaved user they are the same. The rest of this chapter is about the others.
#
# ## First in, first out
#
# **Predict.** A fresh pool of 6 blocks. We take four, then give back block 2, then block 0. Which blocks do
# the next three `allocate()` give?

# %%
pool = BlockAllocator(6)
pool.allocate_many(4)
pool.free(2)
pool.free(0)
show(draw_free_queue(pool))

# %%
print([pool.allocate() for _ in range(3)])

# %% [markdown]
# **Explain.** 4, 5, and only then **2**. The fresh blocks were in the queue before; what is freed waits at
# the tail. A stack (last in, first out) would be as fast, and for a cache of *bytes* it is what one takes:
# the block freed last is still warm in the processor's cache. Here the opposite pays. A freed block keeps
# its K and V until somebody takes it, and the prefix cache of chapter 7 can still find them. First in,
# first out leaves the content of every freed block alone for as long as possible.
#
# Now you. Open `exercises/ch03_block_allocator.py`; it is the file that the engine will run. (Its methods
# stand as in the package, so the tasks are not quite in order there.)
#
# **Task 1 ★ a fresh pool (10 points, about 10 minutes)** and **task 2 ★ take blocks from the pool
# (15 points, about 10 minutes).** The docstrings say everything that is tested. Then run this cell; it judges
# the file as it is on disk, so save it first.

# %%
check("ch03", task=1)

# %%
check("ch03", task=2)

# %% [markdown]
# (In a terminal, `minipaged check ch03 --watch` does the same each time you save, and `minipaged hint ch03`
# helps if you are stuck: up to three hints a task, one at a time.)
#
# ## Everything or nothing
#
# A prompt needs its blocks all at once. **Predict.** Two blocks are free, and somebody asks for three. How
# many are free afterwards?

# %%
pool = BlockAllocator(4)
pool.allocate_many(2)
try:
    pool.allocate_many(3)
except OutOfBlocks as error:
    print(f"OutOfBlocks: {error}")
print("free now:", pool.num_free)

# %% [markdown]
# **Explain.** Still **two**. The error says what was needed and what there was, and nothing has changed. If
# the pool had handed out two blocks before it noticed, nobody would have them: the caller got an exception
# instead of a list. The rule is *check, then change*, and every method in this project follows it, since an
# engine must go on after an error. What it does here is preempt somebody and try again (chapter 9).
#
# ## One block in two hands
#
# What if a block is freed twice? In a small program that is a mistake that one finds. In an engine it can
# happen when two pieces of code each believe that they clean up, say an abort that arrives in the very step
# in which a request ends. **Predict** what `SmallPool` does.

# %%
small = SmallPool(4)
a = small.allocate()
small.free(a)
small.free(a)
print("the queue:", small.queue)

# %%
owners = {name: small.allocate() for name in ["B", "C", "D", "E", "F"]}
print(owners)

# %% [markdown]
# **Explain.** A pool of four blocks has served **five** owners, and two of them, E and F, hold the same
# block. Each writes its K and V over the other's. No exception is raised, not now and not later: what comes
# out is text about somebody else's question. Chapter 2's contiguous allocator could detect an overlap by
# comparing addresses; a queue of numbers cannot. So the pool counts.
#
# A **reference count** per block says how many users it has. `allocate` sets it to 1, `free` takes one away,
# and only at zero the block goes back to the queue. Freeing a block with count zero is an error.

# %%
pool = BlockAllocator(4)
a = pool.allocate()
pool.free(a)
try:
    pool.free(a)
except ValueError as error:
    print("ValueError:", error)
print(sketch_pool([pool.ref_count(block_id) for block_id in range(4)], pool.free_blocks()))

# %% [markdown]
# **Task 3 ★ give a block back (10 points, about 5 minutes).**

# %%
check("ch03", task=3)

# %% [markdown]
# ## Sharing is counting
#
# The count can do more than detect mistakes. If two sequences begin with the same tokens, their first blocks
# hold the same K and V, and one copy will do. `share` adds a user; nothing is copied and nothing allocated.
#
# **Predict.** Three sequences share the two blocks of one prompt. The first one ends and frees both. Then the
# second one does. How many blocks are free after each?

# %%
pool = BlockAllocator(4)
prompt = pool.allocate_many(2)
for _ in range(2):
    for block_id in prompt:
        pool.share(block_id)
free_after = []
for _ in range(3):
    pool.free_many(prompt)
    free_after.append(pool.num_free)
print("free after each:", free_after)

# %% [markdown]
# **Explain.** 2, 2, and **4** only after the third. Nobody has to know who else uses the block, or who is
# last. Files work like that (hard links), and so do Python's own objects. Chapters 6 and 7 do the rest: who
# may write into a shared block, and how a block is found by what it holds.
#
# The count also makes a *leak* visible. A block that nobody frees is not in the queue and has a user; the sum
# of all counts must equal the number of places in which block tables name a block. If it is larger, somebody
# forgot a `free`. `check_invariants` compares the two after every step of every test in this project.
#
# **Task 4 ★ share a block (5 points, about 5 minutes).**

# %%
check("ch03", task=4)

# %% [markdown]
# ## Out of the middle
#
# The prefix cache will sometimes find what it looks for in a block that is free: nobody uses it, but nobody
# has taken it either. Then that one block must come out of the queue, wherever in it, before it is handed
# out. We call it `revive`.

# %%
pool = BlockAllocator(8)
pool.revive(5)
print(pool.free_blocks())
show(draw_free_queue(pool))

# %% [markdown]
# With a list, `queue.remove(5)` looks at every block before it, and `pop(0)` moves every block after it.
# **Predict.** Per operation, how much slower is a list than a queue that is threaded through a hash table
# (`OrderedDict`), at a thousand blocks, and at a hundred thousand? Twice? Ten times?

# %% tags=["timing"]
import time

print(machine_note())
for num_blocks in (1_000, 10_000, 100_000):
    blocks, microseconds = random.sample(range(num_blocks), 500), {}
    for kind in (list, OrderedDict.fromkeys):
        queue = kind(range(num_blocks))
        start = time.perf_counter()
        for block_id in blocks:
            queue.remove(block_id) if kind is list else queue.pop(block_id)
        name = "list" if kind is list else "OrderedDict"
        microseconds[name] = 1e6 * (time.perf_counter() - start) / len(blocks)
    numbers = "   ".join(f"{name} {value:8.2f} µs" for name, value in microseconds.items())
    print(f"{num_blocks:>7,} blocks, one taken out of the middle:   {numbers}")

# %% [markdown]
# **Explain.** What the list costs grows with the pool; what the `OrderedDict` costs hardly does (a little,
# since the processor's caches hold less of a larger one). In the largest pool the list takes hundreds of
# times as long, for every hit in the prefix cache. An `OrderedDict` is a doubly linked list whose links are
# found by key, which is just what is needed: take the head, append at the tail, and take one out of the
# middle, all in constant time.
#
# **Task 5 ★★ take one particular free block (15 points, about 10 minutes).**

# %%
check("ch03", task=5)

# %% [markdown]
# ## Many at once, or none
#
# A request that ends gives back all of its blocks. **Predict.** Blocks 0, 1 and 2 are in use, each with one
# user, and block 3 is free. Which of these are errors: `free_many([2, 1])`, `free_many([0, 3])`,
# `free_many([0, 0])`? And what is free after an error?

# %%
for block_ids in ([2, 1], [0, 3], [0, 0]):
    pool = BlockAllocator(4)
    pool.allocate_many(3)
    try:
        pool.free_many(block_ids)
        print(block_ids, "→ free:", pool.free_blocks())
    except ValueError as error:
        print(block_ids, "→", error, "→ free:", pool.free_blocks())

# %% [markdown]
# **Explain.** The second list has a block that is free already; the third gives up two users of a block that
# has one. Each is right at its first entry, so a loop over `free` would have freed block 0 before it noticed.
# Checking every entry by itself is not enough either: both entries of `[0, 0]` look fine. What must be
# compared is how often a block is listed and how many users it has.

# %%
print(Counter([0, 0]), "against the count of block 0, which is 1")

# %% [markdown]
# **Task 6 ★★ give many back, or none (20 points, about 15 minutes).** The last test of this task invents
# histories of operations, compares your pool with a simple model after each of them, and shows the shortest
# history that goes wrong.

# %%
check("ch03", task=6)

# %% [markdown]
# **Task 7 ★★★ the free queue by hand (25 points, about 30 minutes)** is a challenge beyond the engine:
# build what `OrderedDict` did for you, a doubly linked list, out of two lists of numbers, as vLLM does.

# %%
check("ch03", task=7)

# %% [markdown]
# ## In the engine
#
# What does the pool do while a model is served? Here are two requests in a pool of 12 blocks, at three
# moments: both running; the first one done; and a third one that has taken what was freed.

# %%
from minipaged.loading.hub import is_fetched

model = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
llm = LLM(model, num_blocks=1, device="cpu", dtype="float32")  # only for its model
engine = Engine(llm.model, llm.tokenizer, num_blocks=12, block_size=4, enable_prefix_caching=False)

def add(name, num_prompt_tokens, max_tokens):
    prompt = llm.tokenizer.encode("The quick brown fox jumps over the lazy dog, again and again.")
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    engine.add_request(name, prompt[:num_prompt_tokens], params)

add("A", 9, 3)
add("B", 6, 12)
engine.step()
show(draw_pool(engine))

# %%
while "A" in engine.requests:
    engine.step()
show(draw_pool(engine))

# %% [markdown]
# **Predict.** C arrives with 12 tokens, which take 3 blocks. Blocks 0, 1 and 2 have just become free. Will C
# get them?

# %%
add("C", 12, 4)
engine.step()
show(draw_pool(engine))
print("C's blocks:", engine.requests["C"].live[0].table.block_ids)

# %% [markdown]
# **Explain.** No: those that were never used stand before them in the queue. (The engine frees a sequence's
# blocks from the last to the first; chapter 4 says why.)
#
# ## Your layer in the engine
#
# Three prompts, in a pool so small that somebody is preempted, so that your pool is asked to allocate, to
# free and to refuse. The tokens must be those of the package's own layers in a roomy pool.

# %%
serve_with("ch03")

# %% [markdown]
# In a terminal, `minipaged demo --use exercises:ch03` shows it at work, step by step. And all of the tasks
# together:

# %%
check("ch03")

# %% [markdown]
# ## Recap
#
# * All blocks have one size, so any free block will do, and no hole is ever too small.
# * Free blocks wait in a queue, first in, first out: their content lasts as long as it can.
# * A reference count per block makes a double free an error, sharing a matter of counting, and a leak
#   visible.
# * Head, tail and middle in O(1): a linked list whose links are found by key.
# * Check, then change: after an error, everything is as it was.
#
# ## Questions
#
# 1. The pool never looks at the bytes. Who guarantees that a block taken from the queue does not show its
#    next user the K and V of the last one? (Look at `KVCache.write`, and at what attention may read.)
# 2. Why does `revive` not call `on_reuse`, while `allocate` does?
# 3. Suppose that freed blocks went to the head. Which chapter's hit rate would suffer, and why?
# 4. Two threads call `allocate` at the same time. What can go wrong, and why does the engine not need a lock?
# 5. In a pool with blocks of 16 tokens, what is the most that *internal* fragmentation can cost per sequence?
#    And external?
#
# ## In vLLM this is …
#
# * `vllm/v1/core/block_pool.py`, class `BlockPool`: `get_new_blocks` is `allocate_many`, `free_blocks` is
#   `free_many`, and `touch` is `share` and `revive` in one.
# * `vllm/v1/core/kv_cache_utils.py`: `KVCacheBlock.ref_cnt` is the count, `FreeKVCacheBlockQueue` the linked
#   list by hand, with `popleft`, `remove` and `append`. It is written by hand so that no object is created
#   per operation: a block carries its own two links.
# * vLLM keeps block 0 out of the pool as a *null block*, to which skipped positions (sliding windows) point.
#   Ours keeps none back: a pool of N blocks holds N blocks.
#
# ## References
#
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), sections 4.2 and 4.3.
# * Knuth, *The Art of Computer Programming*, volume 1, section 2.5, on dynamic storage allocation and what
#   fragmentation is; section 2.2.5 on doubly linked lists.
# * Wilson et al., *Dynamic Storage Allocation: A Survey and Critical Review*, 1995, on why fixed-size pools
#   are an old and good idea.
#
# Next: chapter 4 gives each sequence its own view of the pool, the block table.
