# %% [markdown]
# # Chapter 6: Sharing and copy-on-write
#
# One prompt, several answers: a coding assistant offers three completions, a translator searches with
# beams, a reward model picks the best of sixteen. All of these begin with the same tokens, and so with the
# same K and V. Keeping them once is easy. The hard question is what happens when one of the answers goes
# its own way, in the middle of a block that the others read.
#
# **The promise: the sharing you write here runs in the real engine**, under samples and beams, in this
# notebook's last cells.
#
# After this chapter you will be able to
#
# 1. read a reference count as ownership, and say who may write, who must copy, and who may stay;
# 2. derive what sharing saves, predict it for any prompt, and find the engine in agreement to the block;
# 3. follow a beam search through memory: forks, deaths, and copies, step by step.
#
# *Time: about 55 minutes with the ★ and ★★ tasks, 40 more for the ★★★ ones. You need chapter 0, and the end
# of chapter 4 (fork, shared tail) helps. First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import random
from itertools import permutations

from minipaged import LLM, BlockAllocator, Engine, OutOfBlocks, SamplingParams
from minipaged.block_table import blocks_for
from minipaged.copy_on_write import CopyOnWrite, blocks_saved
from minipaged.course import check, machine_note, serve_with, sketch_pool
from minipaged.course.chapters.ch06_copy_on_write.figures import draw_families, draw_savings, family_of
from minipaged.course.chapters.ch06_copy_on_write.serving import count_holdings, serve_branches_with
from minipaged.course.engine_map import draw_engine_map
from minipaged.params import BeamSearchParams
from minipaged.pictures.draw import show

# %%
show(draw_engine_map("copy_on_write"))

# %% [markdown]
# ## The problem, in numbers
#
# Llama 3 8B keeps 2 (K, V) · 32 layers · 8 KV heads · 128 numbers of 2 bytes for each token. A user sends a
# file of 2,048 tokens and wants 8 suggestions of 64 tokens each.

# %%
bytes_per_token = 2 * 32 * 8 * 128 * 2
n, prompt_len, output_len = 8, 2_048, 64
alone = n * (prompt_len + output_len) * bytes_per_token
once = (prompt_len + n * output_len) * bytes_per_token
print(f"eight requests that know nothing of each other: {alone / 2**20:,.0f} MiB")
print(f"the prompt kept once:                           {once / 2**20:,.0f} MiB")

# %% [markdown]
# More than a factor of six, and the prompt is computed once instead of eight times. The obstacle is that
# 2,048 is a friendly number: it is 128 full blocks of 16. With 2,050 tokens the last block holds two tokens
# of the prompt and, behind them, room for fourteen tokens of the answer. But of *whose* answer?
#
# ## Who owns a block
#
# In chapter 3 every block got a number of users, so that it could be freed by the last one. The same number
# answers a second question. A block with **one** user is that user's own, and may be written. A block with
# **several** belongs to all of them: everybody may read, and nobody may write. Whoever has to write moves
# out first, into a copy. This is **copy-on-write**, and here is all of it:

# %%
def small_fork(users, block_ids):
    for block_id in block_ids:
        users[block_id] += 1
    return list(block_ids)

def small_make_writable(users, free, block_ids, index):
    src = block_ids[index]
    if users[src] == 1:
        return None
    dst = free.pop(0)
    users[src], users[dst], block_ids[index] = users[src] - 1, 1, dst
    return src, dst

# %% [markdown]
# Is it the package's? A growing family of lists on each side forks and writes at random, a thousand times
# over.

# %%
random.seed(0)
for _ in range(1_000):
    pool = BlockAllocator(30)
    cow, package = CopyOnWrite(pool), [pool.allocate_many(3)]
    users, free, small = [1] * 3 + [0] * 27, list(range(3, 30)), [[0, 1, 2]]
    for size in range(1, 9):
        parent, writer, index = random.randrange(size), random.randrange(size), random.randrange(3)
        small.append(small_fork(users, small[parent]))
        package.append(cow.fork(package[parent]))
        copy = small_make_writable(users, free, small[writer], index)
        assert copy == cow.make_writable(package[writer], index)
    assert small == package and users == [pool.ref_count(block_id) for block_id in range(30)]
print("the same after 8,000 forks and 8,000 writes; the last family:", package)

# %% [markdown]
# **Predict.** Block 0 is half full, and A has it. B is a fork of A, C a fork of B, D a fork of C, and
# nobody has written yet. Now they write one after the other: C, A, D, B. How many copies are made, and who
# is left in block 0?

# %%
pool = BlockAllocator(6)
cow = CopyOnWrite(pool)
family = {"A": [pool.allocate()]}
for parent, child in ("AB", "BC", "CD"):
    family[child] = cow.fork(family[parent])
print(sketch_pool([pool.ref_count(block_id) for block_id in range(6)]))
for name in "CADB":
    print(f"{name} writes: copy {cow.make_writable(family[name], 0)}, now in block {family[name][0]}")

# %% [markdown]
# **Explain.** **Three** copies for four owners, and **B** stays, because it came last. It was neither the
# first nor the youngest: the pool knows a number, not a family tree. A fork of a fork of a fork is one user
# more, like any other. In general, k owners who all write need k − 1 copies: each writer sees what is true
# *at that moment*, and by the time of the last one, the others have left.
#
# Now you. In `exercises/ch06_copy_on_write.py`, **task 1 ★ fork (10 points, about 5 minutes)** and **task 2
# ★ who may write (5 points, about 5 minutes)**. The docstrings say everything that is tested. Save the
# file, and run the cells; `minipaged hint ch06` in a terminal helps if you are stuck.

# %%
check("ch06", task=1)

# %%
check("ch06", task=2)

# %% [markdown]
# ## Three answers, step by step
#
# Now with a real model, if you have fetched it, else with the tiny one, whose text is noise, but whose
# blocks are the same. Put in a prompt of your own if you like, of at least 10 tokens; the first 10 are
# used, in blocks of 4.

# %%
from minipaged.loading.hub import is_fetched

model = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
llm = LLM(model, num_blocks=1, device="cpu", dtype="float32")  # only for its model
my_prompt = "The best thing about a rainy Sunday in the country is"

def new_engine(num_blocks=60, block_size=4):
    sizes = {"num_blocks": num_blocks, "block_size": block_size}
    return Engine(llm.model, llm.tokenizer, enable_prefix_caching=False, **sizes)

def first(num_tokens, text):
    return llm.tokenizer.encode(text)[:num_tokens]

def samples(n, max_tokens):
    return SamplingParams(n=n, temperature=0.8, top_p=0.9, seed=3, max_tokens=max_tokens, ignore_eos=True)

# %% [markdown]
# (`new_engine` switches the prefix cache off, so that nothing is shared but by fork.) The first step
# computes the prompt, and then its sequence is forked into three. Each of them samples its own first token.
#
# **Predict.** How many blocks are held after step 1, how many after step 2, and how many at the end of step
# 7, when each branch has stored 6 tokens of its own?

# %%
engine, moments = new_engine(), []
engine.add_request("three", first(10, my_prompt), samples(3, max_tokens=12))
for step in range(1, 8):
    engine.step()
    if step in (1, 2, 7):
        moments.append(family_of(engine, "three", f"After step {step}"))
show(draw_families(moments))

# %% [markdown]
# **Explain.** Each row is a branch; a blue box that runs over several rows is *one* block with several
# owners, an orange one belongs to a single branch, and a thick frame marks a copy of this step. After step
# 1 there are **3** blocks behind nine table entries. In step 2 each branch writes its first own token, at
# position 10, in the middle of block 2: the first two of them get copies, the third stays. **5** blocks.
# After that nothing is copied any more: whatever else a branch needs, it takes fresh, and after step 7
# there are **8**. Blocks 0 and 1 are full. Nobody ever writes into them, so they are shared to the end.
#
# This is Figure 8 of the paper, on your own prompt. Note what the copy was made of: two tokens of the
# prompt. Copy-on-write copies one block per branch *once*, never the prompt.
#
# ## What it saves, before anything is measured
#
# From the picture one can read off a formula. n samples of a prompt of P tokens with O tokens each, blocks
# of B tokens. Without sharing they would hold
#
# $$n \left\lceil \frac{P+O}{B} \right\rceil$$
#
# blocks. Of the prompt's blocks, those that are full stay shared: one is held instead of n. The half-full
# one is lost to the copies, as soon as each branch has written. So at the end of generation sharing has
# saved
#
# $$(n-1) \left\lfloor \frac{P}{B} \right\rfloor .$$
#
# **Predict**, in blocks of 16: what share do 4 samples save for a prompt of 40 tokens and 24 tokens of
# output? And for a prompt of 15 tokens?

# %%
def predicted(n, prompt_len, output_len, block_size=16):
    saved = blocks_saved(n, prompt_len, output_len, block_size)
    total = n * blocks_for(prompt_len + output_len, block_size)
    return f"{saved} of {total} blocks saved, {100 * saved / total:.0f} %"

print("40 + 24 tokens:", predicted(4, 40, 24))
print("15 + 24 tokens:", predicted(4, 15, 24))

# %% [markdown]
# **Explain.** 3 · 2 of 4 · 4 blocks, **38 %**; and **nothing at all**, since a prompt of 15 tokens fills no
# block. That is the price of sharing by the block: up to B − 1 tokens of every prompt are kept n times.
# Smaller blocks share more. It is one more reason, beside the waste in last blocks (chapter 4), why blocks
# are not made large.
#
# **Task 3 ★ what sharing saves (10 points, about 10 minutes)** is this formula, with the one case that it
# leaves out: just after the fork, when nobody has written yet.

# %%
check("ch06", task=3)

# %% [markdown]
# A formula is a claim. Here are five requests of different shapes, served together by the engine, and for
# each of them the blocks it held in its last step, when each branch stored its last token. (A token that
# has been sampled is stored in the step after it. So an output of O stored tokens takes O + 1 sampled
# ones.)

# %%
shapes = [(2, 40, 24), (4, 40, 24), (4, 48, 17), (3, 15, 24), (6, 33, 9)]
engine = new_engine(num_blocks=200, block_size=16)
text = " ".join([my_prompt] * 10)
for shape in shapes:
    n, prompt_len, output_len = shape
    engine.add_request(str(shape), first(prompt_len, text), samples(n, output_len + 1))
held = count_holdings(engine)
for shape in shapes:
    last = held[str(shape)][-1]
    print(f"n, P, O = {shape}: {last.entries - last.blocks} of {last.entries} blocks saved,",
          "by the formula", predicted(*shape))
    assert last.entries - last.blocks == blocks_saved(*shape, 16)

# %% [markdown]
# To the block. And the time that the sharing itself takes? Forking counts users; the other way to start n
# branches is to give each a copy of the prompt's K and V. Here are both, for eight branches of 256 tokens
# and a cache of SmolLM2's shape.

# %% tags=["timing"]
import time

from minipaged import KVCache

cache = KVCache(num_layers=30, num_blocks=160, block_size=16, num_kv_heads=3, head_dim=64)
pool = BlockAllocator(160)
cow, prompt = CopyOnWrite(pool), pool.allocate_many(16)
fork_s, copy_s = [], []
for _ in range(3):
    start = time.perf_counter()
    branches = [cow.fork(prompt) for _ in range(8)]
    middle = time.perf_counter()
    cache.copy_blocks([(src, 16 * branch + src) for branch in range(1, 9) for src in prompt])
    fork_s, copy_s = [*fork_s, middle - start], [*copy_s, time.perf_counter() - middle]
print(machine_note())
print(f"8 forks: {1e6 * min(fork_s):,.0f} µs; 8 copies of 256 tokens: {1e6 * min(copy_s):,.0f} µs")

# %% [markdown]
# A fork touches a few numbers per block, whatever the model. A copy moves every byte of it, here 46,080 for
# each token, and in large models more. They are orders of magnitude apart, and the copy also needs the
# memory.
#
# ## First take, then give up
#
# `make_writable` does three things: take a fresh block, give up the shared one, exchange them in the list.
# Does the order matter? In this version, giving up comes first.

# %%
class HastyCopyOnWrite(CopyOnWrite):
    def make_writable(self, block_ids, index):
        if self.is_writable(block_ids[index]):
            return None
        old = block_ids[index]
        self.allocator.free(old)
        block_ids[index] = self.allocator.allocate()
        return old, block_ids[index]

# %% [markdown]
# **Predict.** The pool has two blocks, and parent and child share both. No block is free. The child wants
# to write into block 1, which must fail. What does the hasty version leave behind: how many users has block
# 1, and may the parent write into it?

# %%
for kind in (CopyOnWrite, HastyCopyOnWrite):
    pool = BlockAllocator(2)
    cow = kind(pool)
    parent = pool.allocate_many(2)
    child = cow.fork(parent)
    try:
        cow.make_writable(child, 1)
    except OutOfBlocks as error:
        print(f"{kind.__name__}: OutOfBlocks: {error}")
    print(f"   parent {parent}, child {child}; block 1 has {pool.ref_count(1)} users;",
          "the parent may write:", cow.is_writable(1))

# %% [markdown]
# **Explain.** Both raise the same error, and the lists look the same. But the hasty one has counted the
# child out of block 1, while its list still names it: **one** user, so the parent **may write**, and the
# child reads what the parent wrote. When the parent ends, block 1 goes to the free queue, and to a
# stranger, under the child's feet. *Check, then change*, as in chapters 3 and 4. (In our engine the block
# table counts what it needs before it asks for a copy, and would hide the mistake. A layer that is right
# only because another one is careful is a trap for whoever changes the other.)
#
# **Task 4 ★★ copy on write (20 points, about 15 minutes).**

# %%
check("ch06", task=4)

# %% [markdown]
# ## The copies of a step
#
# Copies are not made one by one. All sequences of a step ask for their slots first; the copies that come up
# are collected, and run as one batch per layer before the step's first write. On a GPU that is one kernel,
# and its threads run in any order. So a batch is only right if its order does not matter.
#
# A and B share the tail block 0, C and D share block 1, and all four write in this step. Here is a version
# in which *everybody* moves to a fresh block, also the last owner: a little wasteful, but harmless?

# %%
def everybody_moves(pool, block_ids, index):
    src, block_ids[index] = block_ids[index], pool.allocate()
    pool.free(src)
    return src, block_ids[index]

def copies_of_step(make_writable):
    pool = BlockAllocator(5)
    tails = {name: [block] for name, block in zip("ABCD", (0, 0, 1, 1), strict=True)}
    pool.allocate_many(2)
    pool.share(0)
    pool.share(1)
    copies = [make_writable(pool, tails[name], 0) for name in "ABCD"]
    return [copy for copy in copies if copy], [block_ids[0] for block_ids in tails.values()]

# %% [markdown]
# We run each batch in every possible order, and look at what the four read afterwards. **Predict.** How
# many copies does each version make, and in how many orders does somebody read a wrong block?

# %%
def package_moves(pool, block_ids, index):
    return CopyOnWrite(pool).make_writable(block_ids, index)

for make_writable in (everybody_moves, package_moves):
    copies, tails = copies_of_step(make_writable)
    orders, num_wrong = list(permutations(copies)), 0
    for order in orders:
        memory = {0: "AB's", 1: "CD's"}
        for src, dst in order:
            memory[dst] = memory.get(src)
        num_wrong += [memory[tail] for tail in tails] != ["AB's", "AB's", "CD's", "CD's"]
    print(f"{make_writable.__name__}: {copies}; wrong in {num_wrong} of {len(orders)} orders")

# %% [markdown]
# **Explain.** When B, the last owner of block 0, moves too, block 0 is free; and D, two copies later, gets
# it: **(1, 0)**. Now block 0 is a source *and* a destination in one batch, and whoever copies into it too
# early destroys what A and B still need. The package makes **two** copies, in which no destination is also
# a source, and any order is right. It has to be so: every destination was free when the step began, and a
# source can't become free, since its last owner stays. One rule, "the last owner writes in place", and both
# economy and safety follow from it. (`check_writes` in `minipaged/invariants.py` looks at this in every
# step. Our PyTorch path would forgive a bad batch, since it reads all sources before it writes any
# destination. A kernel would not.)
#
# But who counts the blocks? In a step with many writers, the third may find no block when two have moved
# already. **Task 5 ★★★ the copies of a whole step (20 points, about 20 minutes)** does it for all or for
# nobody. The engine does the same sum in `BlockManager.blocks_needed`.

# %%
check("ch06", task=5)

# %% [markdown]
# ## Beams
#
# *Beam search* looks for the likeliest answer. It keeps a few unfinished answers, the beams. In each step
# it looks at all continuations of all beams, and keeps the best. So one beam may have several children
# among the best, and another none: beams **split** and **die**, at every step. With block tables a split is
# a fork and a death is a free. Here are four beams on your prompt, as the paper's Figure 9 has it.

# %%
engine, moments = new_engine(), []
four = BeamSearchParams(beam_width=4, max_tokens=16, ignore_eos=True)
engine.add_request("beams", first(10, my_prompt), four)
for step in range(1, 14):
    engine.step()
    if step in (2, 4, 7, 13):
        moments.append(family_of(engine, "beams", f"After step {step}"))
show(draw_families(moments))

# %% [markdown]
# Read it from left to right, as history. The beams have their beginning in common: not only the prompt, as
# samples do, but as much of the *answer* as they inherited from their last common ancestor. Where a blue
# box ends and several begin, a beam has split, and both children are still alive. The numbers of the blocks
# jump, because many beams have come and gone in between; their blocks went back to the pool within the same
# step. (A copy whose destination is nowhere in the picture was made for a beam that has died by now.)
#
# **Predict.** One beam alone needs more blocks as its answer grows. The other beams need some more *beyond*
# those, for what they don't share with it. Does that number grow in the same way, or does it stay about the
# same? Here are longer answers. An entry is a place in a block table; without sharing, each would be a block.

# %%
text = "Write a short story about a lighthouse keeper who finds a letter in a bottle on the beach."
widths = (2, 4, 6)
engine = new_engine(num_blocks=400, block_size=16)
for width in widths:
    params = BeamSearchParams(beam_width=width, max_tokens=58, ignore_eos=True)
    engine.add_request(str(width), first(19, text), params)
held = count_holdings(engine)
for width in widths:
    steps = held[str(width)]
    some = [steps[at] for at in (9, 24, 39, -1)]
    blocks = ", ".join(f"{step.blocks:>2} of {step.entries:>2}" for step in some)
    beyond = [step.blocks - step.entries // width for step in some]
    print(f"{width} beams, blocks of entries in steps 10, 25, 40, {len(steps)}: {blocks}; beyond: {beyond}")

# %% [markdown]
# **Explain.** It stays about the same: roughly one block for each further beam, now and at the end. Sooner
# or later all living beams descend from *one* beam of some steps ago, and everything before it is common
# property. What is not shared is only the recent past, since the last common ancestor, and that does not
# get longer just because the answer does. So, unlike with samples, the share saved does not fall as the
# output grows. Over all steps:

# %%
from minipaged.simulation.sharing import PAPER_SAVINGS, replay_savings, saving

for width in widths:
    print(f"{width} beams: {100 * saving(held[str(width)]):.0f} % of the blocks saved")

# %% [markdown]
# What would it cost without block tables? The caches of all beams would be gathered anew at every step, to
# follow the survivors (in Hugging Face's transformers it is called `reorder_cache`). Count the tokens whose
# K and V move:

# %%
for width in widths:
    copied = 16 * sum(step.copies for step in held[str(width)])
    gathered = sum(width * (19 + at) for at in range(len(held[str(width)])))
    print(f"{width} beams: {copied:>5,} tokens in copied blocks; {gathered:>6,} if all were gathered")

# %% [markdown]
# The first number counts whole blocks, though most are not full when they are copied. It is still several
# times smaller, and the gap grows with the length, because a copy is one block however long the sequence.
#
# ## The paper's Figure 15
#
# The paper measured the saving on two data sets, for 2, 4 and 6 samples or beams: 6.1 to 9.8 % and 37.6 to
# 55.2 % on Alpaca (short instructions, 19 tokens of prompt and 58 of output on average), 16.2 to 30.5 % and
# 44.3 to 66.3 % on ShareGPT (conversations, 161 and 338 tokens). How near can we come without the data, and
# without a large model?
#
# * *Lengths*: generated, geometrically distributed with these means. Of the data sets nothing but the means
#   is used.
# * *Samples*: each branch gets the output's length. *Beams*: a random model stands in for the real one.
#   Every beam's next tokens get logits drawn from a normal distribution, and the best continuations
#   survive.
# * *Counted*: blocks saved of blocks without sharing, over all steps of all requests, block size 16, with
#   the package's own tables.
#
# Before you look: what is the formula most sensitive to, and what does a random model not have? The grey
# bands are the paper's ranges.

# %%
measured = replay_savings()
show(draw_savings(measured, PAPER_SAVINGS))

# %% [markdown]
# The pattern is the paper's: beams save several times what samples save, long prompts more than short ones,
# and each further branch adds less than the one before, as (n − 1)/n does. The digits are not.
#
# * *Samples*: a little below the paper with long prompts, and above it with short ones. What counts is
#   ⌊P/16⌋, and with a mean of 19 the question is how many prompts reach 16 tokens at all. A mean does not
#   tell. (Prompts of exactly 15 tokens would save nothing.)
# * *Beams*: above the paper, most so for 6. In our random model every beam draws its continuations
#   independently of the others, so one soon gets ahead, and all descend from it. In a language model two
#   beams that differ in an early word go on with much the same words, and much the same probabilities.
#   Neither gains on the other, and both live on. Compare with the three numbers above, from a real search
#   with one prompt of 19 tokens and 58 of output: with SmolLM2 they lie near the paper's.
#
# This is what reproduction is like when the data are missing: the mechanism can be checked, and it also
# says which unknown makes the difference.
#
# The scorecard of chapters 2 and 4 has a line for this. The last column is this chapter's: what 4 samples
# of a prompt save, on ShareGPT's lengths.

# %%
from minipaged.course.chapters.ch02_contiguous.replay import traditional_scores
from minipaged.course.chapters.ch04_block_table.replay import replay_tables, table_score
from minipaged.course.scorecard import Score, Scorecard

tables = table_score(replay_tables())
share = f"{100 * measured['ShareGPT', 'samples'][4]:.0f} % of the blocks of 4 samples"
waste = (tables.pre_allocation, tables.internal, tables.external)
Scorecard(*traditional_scores(), tables, Score("with copy-on-write", *waste, "as before", share))

# %% [markdown]
# ## The best of n, stopping early
#
# Suppose that only the likeliest of n samples is wanted. A branch's score is the sum of its tokens'
# log-probabilities. It can only fall. So when one branch has ended, every other one that is not above it is
# hopeless, and need not be computed to its end. And there is a finer point: those who stop should give up
# their blocks *before* the others write. Say that four branches share a half-full block, and three of them
# stop in this step.

# %%
for free_first in (False, True):
    pool = BlockAllocator(8)
    cow, lists = CopyOnWrite(pool), [pool.allocate_many(2)]
    lists += [cow.fork(lists[0]) for _ in range(3)]
    if free_first:
        for block_ids in lists[:3]:
            pool.free_many(reversed(block_ids))
    print("the others", "have stopped:" if free_first else "still hold it:", cow.make_writable(lists[3], 1))

# %% [markdown]
# In the right order, the survivor is the last owner and there is nothing to copy. **Task 6 ★★★ the best of
# n, stopping early (20 points, about 20 minutes)** goes beyond our engine.

# %%
check("ch06", task=6)

# %% [markdown]
# ## Your layer in the engine
#
# First as in every chapter: three prompts, in a small pool. But a single answer is never forked, so here
# your layer is only asked whether a tail may be written.

# %%
serve_with("ch06")

# %% [markdown]
# Then what this chapter is about: three samples of one prompt and three beams of another, in a pool so
# small that somebody may have to be preempted, branches and all. The tokens must be the same as with the
# package's own layers in a roomy pool.

# %%
serve_branches_with("ch06")

# %% [markdown]
# In a terminal, `minipaged demo --use exercises:ch06` shows your sharing at work, and `minipaged demo --use
# exercises:ch03,ch04,ch06` all that you have written of the block manager so far. And all tasks together:

# %%
check("ch06")

# %% [markdown]
# ## Recap
#
# * A reference count is ownership: one owner may write, several may only read.
# * A fork adds a user to each block. It copies nothing, allocates nothing, and so can't fail.
# * Whoever writes into a shared block first moves to a copy; the last owner stays. k owners, k − 1 copies.
# * First take, then give up: after `OutOfBlocks` everything is as it was.
# * The copies of a step are one batch. No destination is also a source, *because* the last owner stays.
# * n samples save (n − 1)⌊P/B⌋ blocks. Beams save more, since they share their past as well, and their
#   share does not fall as the answer grows.
#
# ## Questions
#
# 1. `fork` is never asked how full the last block is, and `is_writable` not either. Who makes sure that a
#    full shared block is not copied for nothing?
# 2. Copy-on-write copies a block of up to 15 tokens to write one. Would it be cheaper to copy at the fork,
#    as one then knows that each branch will write? Compare the two for n samples, and for beams.
# 3. For which prompt lengths do samples save nothing, however many there are? How would you change the
#    block size if all prompts had 15 tokens, and what would that cost?
# 4. Two *different requests* begin with the same 1,000 tokens. Why does this chapter's machinery not share
#    them, and what is missing?
# 5. The copy happens before the step's first write. What would go wrong if a layer ran its copies just
#    before its own writes, but after those of the layer before? And if copies ran after the writes?
# 6. A request of 4 samples is preempted by recompute, then comes back. Which blocks do its branches share
#    then, and how does the engine find out? (Look for `fork_tree` in `minipaged/block_manager.py`.)
#
# Model answers are in `solutions/ch06_copy_on_write.md`.
#
# ## In vLLM this is …
#
# * In its first engine, as here: `vllm/core/block/common.py`, `CopyOnWriteTracker`, whose
#   `cow_block_if_not_appendable` is `make_writable`, with a `RefCounter`, and `clear_cows` hands over the
#   copies of the step. It gave up first and took afterwards: that was safe only because the scheduler had
#   asked `can_append_slots` before.
# * That code is gone. In the present engine n samples are n requests
#   (`vllm/v1/engine/parallel_sampling.py`, `ParentRequest`), and they find each other's full blocks through
#   the prefix cache (chapter 7). Nobody ever writes into a shared block, so no copy is needed: the
#   half-full tail is computed n times instead.
# * Beam search was moved out of the engine, too (`vllm/beam_search.py`, and pull request 8726): every step
#   sends the beams as new requests, and the prefix cache spares what they share. There, on Llama 3 8B and
#   an H100, one benchmark went from 0.61 requests a second with fork and copy-on-write to 0.10 with whole
#   prompts sent anew, and to 1.08 when the prefix cache was on (the pull request's own numbers, 2024).
# * Forking with a copied tail is alive elsewhere: transformers' continuous batching has it for
#   `num_return_sequences` (pull request 42921 of huggingface/transformers).
#
# ## References
#
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180): section 4.4 with Figures 8 and 9, section
#   6.3 with Figure 15; the mean lengths are from Figure 11.
# * Bobrow, Burchfiel, Murphy, Tomlinson: *TENEX, a Paged Time Sharing System for the PDP-10*,
#   Communications of the ACM, 1972. Copy-on-write pages.
# * Freitag, Al-Onaizan: *Beam Search Strategies for Neural Machine Translation*, 2017,
#   [arXiv:1702.01806](https://arxiv.org/abs/1702.01806).
#
# Next: chapter 7 shares between requests that know nothing of each other, by recognising what is in a block.
