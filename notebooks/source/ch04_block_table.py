# %% [markdown]
# # Chapter 4: Block tables
#
# The pool of chapter 3 hands out blocks by number, in whatever order they became free. But a sequence is
# a run of positions 0, 1, 2, …, and the model wants K and V of all of them, in order. Between the two
# stands a list of block numbers, the **block table**. It is short, it is plain, and it is the reason why
# a sequence can grow without a reservation, lie anywhere, and share its beginning with another one.
#
# **The promise: the table you write here runs in the real engine**, in this notebook's last cells.
#
# After this chapter you will be able to
#
# 1. say for any token in which slot of the pool its K and V lie, and lay it out for a GPU;
# 2. let sequences grow block by block, all or nothing, and prove that each wastes less than one block;
# 3. fork a sequence without copying it, and copy just the one block that has to be.
#
# *Time: about 50 minutes with the ★ tasks, and 40 more for the ★★ tasks. You need chapter 0; chapter 3's
# exercises need not be done. First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import random

import torch

from minipaged import BlockAllocator, BlockTable, KVCache, OutOfBlocks
from minipaged.block_table import blocks_for
from minipaged.course import check, serve_with, sketch_table
from minipaged.course.chapters.ch04_block_table.figures import draw_block_sizes, draw_growth, draw_translation
from minipaged.course.engine_map import draw_engine_map
from minipaged.pictures.draw import show

# %%
show(draw_engine_map("block_table"))

# %% [markdown]
# ## The problem, in numbers
#
# Chapter 2 served a trace of requests from a memory of 32,768 slots. A slot is the place of one token's K
# and V. The model allows 4,096 tokens, so a careful engine reserves 4,096 slots for everybody. What do
# people really use? The trace is generated, fitted to the published figures of Azure's chat service.

# %%
from minipaged.simulation.traces import synthetic

lengths = [row.prompt_len + row.output_len for row in synthetic(1_000, seed=0)]
fitting = [length for length in lengths if length <= 4_096]
mean = sum(fitting) / len(fitting)
print(f"reserved for each: 4,096 slots, so {32_768 // 4_096} sequences fit")
print(f"used in the end:   {mean:,.0f} slots on average, so {32_768 // mean:.0f} would fit")

# %% [markdown]
# Between the two numbers lies a factor of three, and it is a factor in the *batch*: the number of
# sequences that a step serves for the price of reading the weights once. To get there, a sequence must
# take memory when a token needs it, not before. So it can't know beforehand where its next tokens will
# lie.
#
# ## An old idea
#
# Operating systems had this problem in the 1960s. A program sees one contiguous run of addresses; memory
# is handed out in *pages*, wherever one is free. An address is cut in two: the number of a page, and an
# offset in it. A **page table** says where the page lies. The offset stays as it is.

# %%
address, page_size = 107_252, 4_096
page, offset = divmod(address, page_size)
page_table = {26: 3}  # the program's page 26 lies in the memory's page 3
print(f"address {address:,} = page {page}, offset {offset}")
print(f"in memory: {page_table[page]} x {page_size:,} + {offset} = {page_table[page] * page_size + offset:,}")

# %% [markdown]
# Exactly the same arithmetic will do for K and V:
#
# | operating system | here |
# |---|---|
# | process | sequence |
# | page, of 4,096 bytes | block, of 16 tokens |
# | virtual address | position in the sequence |
# | page table | block table |
# | physical address | slot in the pool |
# | page fault: a page is needed and gets memory | `append` takes a block |
# | fork, and copy on write | fork, and copy on write (the end of this chapter) |
# | swapping | swapping (chapter 9) |
#
# One thing differs. In a computer, hardware translates every address. A GPU knows nothing of our blocks,
# so the attention kernel looks the blocks up itself. That is what *paged attention* means (chapter 5).
#
# ## A small version
#
# `slot` is the translation. `append` takes a block whenever the blocks so far are too few.

# %%
class SmallTable:
    def __init__(self, pool, block_size):
        self.pool, self.block_size = pool, block_size
        self.block_ids, self.num_tokens = [], 0

    def slot(self, position):
        index, offset = divmod(position, self.block_size)
        return self.block_ids[index] * self.block_size + offset

    def append(self, num_tokens):
        first, self.num_tokens = self.num_tokens, self.num_tokens + num_tokens
        while len(self.block_ids) * self.block_size < self.num_tokens:
            self.block_ids.append(self.pool.allocate())
        return [self.slot(position) for position in range(first, self.num_tokens)]

# %% [markdown]
# Is it the package's? Three tables of each kind grow in two pools, in a random order.

# %%
pools = BlockAllocator(500), BlockAllocator(500)
small = [SmallTable(pools[0], 4) for _ in range(3)]
package = [BlockTable(pools[1], 4) for _ in range(3)]
random.seed(0)
for _ in range(200):
    which, num_tokens = random.randrange(3), random.randrange(10)
    assert small[which].append(num_tokens) == package[which].append(num_tokens).slots
print("the same slots for", [table.num_tokens for table in package], "tokens")

# %% [markdown]
# **Predict.** Two sequences share a pool with blocks of 4 tokens. A gets 5 tokens, B gets 2, then A gets 4
# more. Which blocks does A hold, and in which slot lies A's token at position 8?

# %%
pool = BlockAllocator(8)
a, b = BlockTable(pool, block_size=4), BlockTable(pool, block_size=4)
a.append(5)
b.append(2)
print("A's new slots:", a.append(4).slots)
print("A's blocks:", a.block_ids, "- position 8 lies in slot", a.slot(8))

# %%
show(draw_translation({"A": a, "B": b}, "Two sequences in one pool"))

# %% [markdown]
# **Explain.** A holds the blocks **0, 1, 3**: when it needed a third one, block 2 was B's. Position 8 is
# offset 0 in A's logical block 2, that is the physical block 3, and 3 · 4 + 0 = **12**. A's tokens do not
# lie side by side, and A never notices: what it knows is positions, and the table does the rest.
#
# Now you. In `exercises/ch04_block_table.py`, **task 1 ★ how many blocks (5 points, about 5 minutes)**
# and **task 2 ★ where a token lies (10 points, about 5 minutes)**. The docstrings say everything that is
# tested. Save the file, and run the cell; `minipaged hint ch04` in a terminal helps if you are stuck.

# %%
check("ch04", task=1)

# %%
check("ch04", task=2)

# %% [markdown]
# ## The last block first
#
# A sequence that ends gives its blocks back to the pool. In which order? Here is A's end.

# %%
print("free before:", pool.free_blocks())
a.free()
print("free after: ", pool.free_blocks())

# %% [markdown]
# Those that were free before will be handed out first: the queue is first in, first out. Of A's blocks, 3
# comes next, the end of its sequence, and 0, its beginning, last of all. Why? A freed block keeps its K
# and V until it is handed out again, and the prefix cache (chapter 7) can bring it back to life. Now,
# what do two requests have in common? Their *beginnings*: a system prompt, the earlier turns of a chat.
# And the end is of no use once the beginning is gone, since K and V depend on all tokens before. So the
# end is to be overwritten first.
#
# **Task 3 ★ give the blocks back (10 points, about 5 minutes).**

# %%
check("ch04", task=3)

# %% [markdown]
# ## Growing, block by block
#
# **Predict.** A table grows by one token at a time, from nothing to 9 tokens, with blocks of 4. After which
# tokens does it take a block? (Somebody else is using the pool too, so the numbers jump.)

# %%
pool = BlockAllocator(16)
table, somebody = BlockTable(pool, 4), BlockTable(pool, 4)
for _ in range(9):
    (slot,) = table.append(1).slots
    somebody.append(2)
    print(f"slot {slot:>2}   {sketch_table('table', table.block_ids, table.num_tokens, 4)}")

# %% [markdown]
# **Explain.** With the **1st**, **5th** and **9th** token. Look at the fourth and the eighth line: a
# block is exactly full, and no other has been taken. It will be when the next token comes, if one comes.
# Off-by-one mistakes live here: `n // B + 1` is right for all lengths but the
# exactly full ones. The rule of this project is: n tokens hold **exactly** ⌈n / B⌉ blocks.
#
# What if the pool can't give what is asked? **Predict.** The pool has 3 blocks, a table holds 3 tokens in
# one, and asks for 20 more. How many blocks are free after the error? In `SmallTable`, and in the
# package's?

# %%
for kind in (SmallTable, BlockTable):
    pool = BlockAllocator(3)
    table = kind(pool, 4)
    table.append(3)
    try:
        table.append(20)
    except OutOfBlocks as error:
        print(f"{kind.__name__}: OutOfBlocks: {error}")
    print(f"    after it: {pool.num_free} free, {table.num_tokens} tokens in {len(table.block_ids)} blocks")

# %% [markdown]
# **Explain.** The small one took what there was, block by block, until there was **none**, and it had
# counted 20 tokens that have no place. The engine answers an `OutOfBlocks` by preempting somebody and
# trying again (chapter 9); after such an error it would try again with a table that is wrong. The package's
# asks first (`blocks_needed`), and then either everything happens or nothing: **2** are free, as before.
# *Check, then change.* The error also says what would have been enough.
#
# **Task 4 ★★ grow, block by block (20 points, about 15 minutes).**

# %%
check("ch04", task=4)

# %% [markdown]
# ## Less than one block
#
# What does a sequence waste now? Not what it might have needed, as in chapter 2, but the free slots of
# its last block. With n tokens and block size B, rounding up adds less than one block:
#
# $$0 \;\le\; B \left\lceil \frac{n}{B} \right\rceil - n \;\le\; B - 1$$
#
# The bound depends on neither the length nor the longest length nor the number of sequences. Here is a
# table that grows, beside a reservation for the longest (200 tokens here, so that it fits into a
# picture).

# %%
table, slots_held = BlockTable(BlockAllocator(100), block_size=16), []
for _ in range(120):
    table.append(1)
    slots_held.append(16 * len(table.block_ids))
assert all(0 <= held - tokens <= 15 for tokens, held in enumerate(slots_held, start=1))
stairs = {"reserved for the longest": [200] * 120, "in blocks of 16": slots_held}
show(draw_growth(stairs, "A sequence of 120 tokens, as it grows"))

# %% [markdown]
# What stands above the grey is waste. **Predict.** At block size 16, what share of all slots do the
# requests of the trace waste in their last blocks, when they end? A mean request has more than a thousand
# tokens.

# %%
waste, entries = {}, {}
for block_size in (8, 16, 32, 64, 128, 256):
    blocks = [blocks_for(length, block_size) for length in lengths]
    waste[block_size] = 100 * (1 - sum(lengths) / (block_size * sum(blocks)))
    entries[block_size] = sum(blocks) / len(blocks)
tails = [16 * blocks_for(length, 16) - length for length in lengths]
print(f"block size 16: {min(tails)} to {max(tails)} slots, {sum(tails) / len(tails):.1f} on average")
print(f"of all slots:  {waste[16]:.2f} %")

# %% [markdown]
# **Explain.** A length is as likely to end at one place in a block as at another, so on average half a
# block is wasted, about 7.5 slots. Of more than a thousand that is about half a per cent. The real trace,
# Azure's 19,366 conversations of 2023-11-16, gives 0.54 % (Azure/AzurePublicDataset,
# `AzureLLMInferenceTrace_conv.csv`; this project's tests compute it from that file where they find it).
#
# Why not smaller blocks, then? With blocks of one token nothing would be wasted.

# %%
show(draw_block_sizes(waste, entries))

# %% [markdown]
# Every block has an entry in the table, and attention looks up every entry, for every new token, in every
# layer. A small block is also a short piece of contiguous memory, and a GPU reads long pieces faster. And
# a block is the unit in which the prefix cache shares (chapter 7): with blocks of 256 tokens, two prompts
# with the same first 200 tokens share nothing. The paper's authors measured it (section 7.2): between 16
# and 128 for long conversations, 16 or 32 for short requests, where a large block is longer than the
# whole sequence. They chose 16, and so do we.

# %% [markdown]
# ## In the same bytes
#
# Now the experiment of chapter 2, by the same rules: the same 1,000 requests, the same 32,768 slots. Each
# step gives every running sequence a token; whoever does not fit waits. With reservations, 8 sequences
# ran at a time, since 8 times 4,096 is all there is.
#
# **Predict.** How many in blocks, on average, while others wait? And what share of the memory will hold a
# token?

# %%
from minipaged.course.chapters.ch04_block_table.replay import replay_tables

replay = replay_tables(block_size=16)
shares = replay.shares()
print(f"{replay.mean_running():.1f} sequences at a time")
names = {"used": "slots with a token", "tail": "wasted in last blocks", "free": "in free blocks"}
print(*[f"{names[kind]}: {100 * share:.1f} %" for kind, share in shares.items()], sep=", ")
print(f"the worst waste of any sequence at any time: {replay.worst_tail} slots")

# %% [markdown]
# **Explain.** More than three times as many, in the same bytes. The paper's Figure 2 has 96.3 % for vLLM,
# on another trace, where the best of the traditional ways has 38.2 %. Free blocks are not lost: they are
# too few for the long prompt at the head of the queue, and the running sequences will grow into them.
# There is no *external* fragmentation, because no free block is too small for anybody.
#
# And the price? Nobody's memory is reserved, so it may run out on the way. Then the request that came
# last is *preempted*: it gives everything back, waits, and is computed again.

# %%
for keep_free in (0, 20, 128):
    run = replay if keep_free == 0 else replay_tables(keep_free=keep_free)
    again = f"{100 * run.num_recomputed / run.num_tokens:4.1f} % computed again"
    print(f"{keep_free:>3} of {run.pool.num_blocks:,} blocks kept free: {run.mean_running():.1f} at a time, "
          f"{run.num_preempted:>3} preemptions, {again}")

# %% [markdown]
# If everybody is let in whose prompt just fits (0), there is no room to grow, and much is computed twice.
# Keeping one block in a hundred free at the door removes most of that at hardly any cost. Chapter 9 is
# about the rest. (25 of the 1,000 requests are longer than the 4,096 tokens that the model allows. They
# were refused in chapter 2, and are left out here too: that is the model's limit, and not the memory's.)
#
# Now the scorecard of chapter 2 gets its column:

# %%
from minipaged.course.chapters.ch02_contiguous.replay import traditional_scores
from minipaged.course.chapters.ch04_block_table.replay import table_score
from minipaged.course.scorecard import Scorecard

Scorecard(*traditional_scores(), table_score(replay))

# %% [markdown]
# ## Fork
#
# The last line of the scorecard says "by fork". Suppose that a user wants two different answers to one
# prompt. The prompt's K and V are the same for both. With a table, sharing them is copying a list of
# numbers, and adding one user to each block.

# %%
pool = BlockAllocator(8)
parent = BlockTable(pool, 4)
parent.append(6)
child = parent.fork()
show(draw_translation({"parent": parent, "child": child}, "After the fork"))

# %% [markdown]
# No block was taken, so a fork can't run out of memory. But each needs a list *of its own*, because each
# will grow in its own way. `child.block_ids = parent.block_ids` would look right until one of them
# appends a block to "its" list.
#
# **Task 5 ★★ fork (15 points, about 10 minutes).**

# %%
check("ch04", task=5)

# %% [markdown]
# ## A shared tail
#
# Both want to write their token at position 6 now, and position 6 is in block 1, which they share. What
# happens if they just do? Let the pool's memory be a dictionary.

# %%
memory = dict(enumerate(["The", "cat", "sat", "down", "on", "the"]))
tables = {"parent": [0, 1], "child": [0, 1]}
for name, word in (("child", "sofa"), ("parent", "roof")):
    block_ids = tables[name]
    memory[block_ids[6 // 4] * 4 + 6 % 4] = word
for name, block_ids in tables.items():
    print(f"{name}:", *[memory[block_ids[position // 4] * 4 + position % 4] for position in range(7)])

# %% [markdown]
# The child wrote "sofa" and reads "roof". No error was raised. In an engine it would be K and V instead
# of words, and the child's next token would be computed from somebody else's thought. So whoever wants to
# write into a shared block first gets a copy of it. **Predict.** The child appends first, then the
# parent. How many copies are made, one or two? And of how many blocks, in the end, for both of them
# together?

# %%
print("child: ", child.append(1))
print("parent:", parent.append(1))
show(draw_translation({"parent": parent, "child": child}, "After each has appended a token"))

# %% [markdown]
# **Explain.** **One** copy, of block 1 into block 2, and **three** blocks. When the child had its own
# copy, the parent was the last user of block 1 and could write in place. Block 0 is full; nobody will
# ever write into it, so it stays shared to the end. Only the last block can be shared *and* have room, so
# an append makes one copy at most, however long the sequence. This is **copy-on-write**, as your
# operating system does it when a process forks.
#
# The table moves no bytes. It says what has to be copied (`copies`), before the writes (`slots`); the
# engine collects both over all sequences of a step and does them in one go. Which block is copied, and
# who gives up what, `CopyOnWrite` decides; it is given here, and you will write it in chapter 6.
#
# The copy needs a block, too, and forgetting to count it is the mistake that is found last: when the pool
# is nearly full. **Task 6 ★★ write into a shared tail (20 points, about 15 minutes).** You go back to
# `blocks_needed` and `append` for it.

# %%
check("ch04", task=6)

# %% [markdown]
# ## How a GPU sees it
#
# Attention does not call `slot`. What goes to the device, once per step, is above all two tensors of whole
# numbers: the **block tables** of all sequences of the batch, padded to the longest, and the **slot
# mapping**, one slot for each new token.

# %%
pool = BlockAllocator(8)
a, b = BlockTable(pool, 4), BlockTable(pool, 4)
slots = a.append(5).slots + b.append(2).slots + a.append(4).slots
longest = max(len(table.block_ids) for table in (a, b))
block_tables = torch.tensor([t.block_ids + [0] * (longest - len(t.block_ids)) for t in (a, b)])
print(block_tables)

# %% [markdown]
# The translation of all tokens is one line, without a loop: pick each token's row and column, multiply,
# add.

# %%
row = torch.tensor([0] * 9 + [1] * 2)  # 9 tokens of A, 2 of B
position = torch.cat([torch.arange(9), torch.arange(2)])
slot_mapping = block_tables[row, position // 4] * 4 + position % 4
print(slot_mapping.tolist())
assert slot_mapping.tolist() == [a.slot(p) for p in range(9)] + [b.slot(p) for p in range(2)]

# %% [markdown]
# Written through the slot mapping, K of position 8 (here just the number 8; B's are 100 and 101) lands in
# A's third block. Read through the block table, it comes back in order, with the rest of the last block
# behind it: that must be masked, and `num_tokens` says where. (A real pool is not cleared; we fill it
# with −1.)

# %%
cache = KVCache(num_layers=1, num_blocks=8, block_size=4, num_kv_heads=1, head_dim=1)
cache.k.fill_(-1)
k = (100 * row + position).float().reshape(-1, 1, 1)
cache.write(0, k, k, slot_mapping)
print(cache.k[0, :4, :, 0, 0])
print("A, read through its table:", cache.k[0, block_tables[0]].flatten().int().tolist())

# %% [markdown]
# That gather, with a softmax in it, is chapter 5.
#
# ## A challenge: taking tokens back
#
# *Speculative decoding* has a small model guess several tokens, and the large one judges them all in one
# step. Their K and V are written before anybody knows whether they will stay, so a table must be able to
# shrink, to give back the blocks that it no longer needs, and never to write into somebody else's
# afterwards. **Task 7 ★★★ take tokens back (20 points, about 15 minutes)** is `truncate`. It goes beyond
# our engine.

# %%
check("ch04", task=7)

# %% [markdown]
# ## Your layer in the engine
#
# Three prompts, in a pool so small that somebody is preempted. The tokens must be those of the package's
# own layers in a roomy pool.

# %%
serve_with("ch04")

# %% [markdown]
# In a terminal, `minipaged demo --use exercises:ch04` shows your tables at work, step by step, and
# `minipaged demo --use exercises:ch03,ch04` your tables on your own pool. And all tasks together:

# %%
check("ch04")

# %% [markdown]
# ## Recap
#
# * A block table is a page table: position // B picks the entry, position % B stays as it is.
# * n tokens hold exactly ⌈n / B⌉ blocks, so a sequence wastes less than one block, whatever its length.
# * An append happens as a whole or not at all, and counts the copy that it may need.
# * Blocks are freed last one first, because beginnings are worth keeping.
# * A fork shares all blocks and copies nothing. The first who writes into a shared tail gets a copy of
#   that one block; the last owner writes in place.
# * The device gets two tensors of whole numbers, block tables and slot mapping, and no pointers.
#
# ## Questions
#
# 1. An operating system's page tables have several levels. Why is one list enough here?
# 2. Block tables are padded with 0, and block 0 is a block like any other. Why is nothing read from it by
#    mistake? (Look for `context_lens` in `minipaged/batch.py`.)
# 3. A prompt of 1,000 tokens is forked into 100 branches, and each gets one token. How many blocks of 16
#    are held, and how many copies made? How would it be with 1,008 tokens?
# 4. Block size 16, and all requests have exactly 17 tokens. What share is wasted? What would you change?
# 5. `fork` shares blocks that are half full. Why does the prefix cache (chapter 7) only ever share full
#    ones?
#
# ## In vLLM this is …
#
# * `vllm/v1/core/single_type_kv_cache_manager.py`, class `SingleTypeKVCacheManager`:
#   `get_num_blocks_to_allocate` is `blocks_needed`, `allocate_new_blocks` takes the blocks of `append`, and
#   `free` gives them back last one first.
# * `vllm/v1/core/kv_cache_manager.py`, `KVCacheManager.allocate_slots` is the check before the change: it
#   returns None if the blocks don't suffice, and the scheduler preempts.
# * `vllm/v1/worker/block_table.py`, class `BlockTable`, is what the device sees: one tensor with a row
#   per request, `append_row` for new blocks, and `compute_slot_mapping`, a Triton kernel with our one
#   line in it.
# * Forking tables, with copy-on-write, was in vLLM's first engine (`vllm/core/block/block_table.py`, now
#   gone). The present one shares full blocks only, through the prefix cache, and never writes into a
#   shared block.
#
# ## References
#
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180): sections 4.1 to 4.4, and 7.2 on the block
#   size.
# * Kilburn, Edwards, Lanigan, Sumner: *One-Level Storage System*, IRE Transactions on Electronic
#   Computers, 1962. The Atlas computer, with the first paged memory.
# * Patel et al., *Splitwise: Efficient Generative LLM Inference Using Phase Splitting*, ISCA 2024, with
#   which Azure published its traces.
#
# Next: chapter 5 reads K and V through these tables, and computes attention with them.
