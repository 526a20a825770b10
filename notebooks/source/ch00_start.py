# %% [markdown]
# # Chapter 0: Start here
#
# A language model answers one token at a time, and for each token it looks back at all the tokens before.
# What it needs of every one of them, a *key* and a *value* in each layer (**K** and **V**), is kept in
# memory. How well that memory is used decides how many people one machine can serve. This course builds the
# engine that manages it: small enough to read in an afternoon, complete enough to serve a real model.
#
# **The promise: the layer you wrote runs in the real engine.** Your allocator, your block table, your
# scheduler are plugged into the engine that answers below, and the text that comes out must be the same,
# token for token.
#
# After this chapter you will be able to
#
# 1. have the finished engine answer, on your own machine;
# 2. read a picture of its memory: who owns which block, what is shared, what is wasted;
# 3. step the engine by hand, and say beforehand what the next step will do to the pool.
#
# *Time: about 30 minutes. You need Python, but no GPU and no knowledge of serving.*

# %% [markdown]
# Three to six times a chapter you will be asked to **predict** what the next cell prints. Do it, with a
# number on paper: a wrong guess is worth more than a right answer that was only read. This notebook comes
# with its outputs, so hide them first: *Edit → Clear Outputs of All Cells*. Then run cell after cell with
# Shift+Enter.

# %%
from minipaged import LLM, BlockAllocator, Engine, Parts, SamplingParams, check_invariants
from minipaged.course.engine_map import draw_engine_map
from minipaged.pictures.draw import draw_pool, draw_tables, show

# %% [markdown]
# ## The engine
#
# This picture opens every chapter, with the chapter's layer lit up. Follow one request from left to right.

# %%
show(draw_engine_map())

# %% [markdown]
# * A **request** is a prompt and what is wanted of it. It waits until the **scheduler** takes it into the
#   batch.
# * The scheduler asks the **block manager** for memory. Memory comes in **blocks** of a few tokens each, all
#   from one **pool**. A **block table** says which blocks hold a sequence's tokens, in order.
# * The **model** computes the batch: for each new token it writes K and V into the pool, and **paged
#   attention** reads those of the tokens before, wherever their blocks lie.
# * The **sampler** picks each sequence's next token. It goes out as **text** and back to the scheduler for
#   the next step.

# %% [markdown]
# ## The finished engine answers
#
# The real model is SmolLM2-135M-Instruct: small enough for a laptop, and good for a sentence. If it has not
# been fetched, a tiny random model takes its place: its text is noise and its memory small, but the steps
# and the pictures below are the same, block for block. (Anything missing? `minipaged doctor`, in a terminal,
# says what, and what to do about it.)

# %%
from minipaged.loading.hub import is_fetched

model = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
# All four are defaults on a machine without a GPU; given here, so that everybody sees the same numbers.
llm = LLM(model, kv_cache_memory_bytes=512 * 2**20, block_size=16, device="cpu", dtype="float32")
print("serving", model if model != "tiny" else "the tiny random model; for the real one: minipaged fetch")

# %% [markdown]
# `temperature=0` is greedy: always the likeliest token, so that everybody gets the same answer.

# %%
greedy = SamplingParams(temperature=0, max_tokens=40)
question = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
answer = llm.chat([question], greedy)[0]
print(answer.outputs[0].text)

# %% [markdown]
# One at a time is not what an engine is for. Here are four questions at once, served in one batch: every
# step gives each of them one more token, and those that end leave the others running.

# %%
questions = ["Name three fruits.", "How many days are in a week?",
             "Who wrote Hamlet? Answer in one sentence.", "What is a triangle? Answer in one sentence."]
prompts = [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in questions]
answers = llm.generate(prompts, greedy)
for text, request in zip(questions, answers, strict=True):
    print(f"{text}\n    {request.outputs[0].text!r}")

# %% [markdown]
# ## The problem, in numbers
#
# How much memory does one token's K and V take, and how much has this engine set aside?

# %%
from minipaged.kv_memory import kv_bytes_per_token

config, pool = llm.model.config, llm.engine.stats()
per_token = kv_bytes_per_token(config, llm.model.dtype)
shape = f"2 (K, V) x {config.num_layers} layers x {config.num_kv_heads} heads x {config.head_dim} numbers"
print(f"one token: {shape} x 4 bytes = {per_token:,} bytes")
print(f"the pool: {pool.num_blocks} blocks of 16 tokens = {pool.num_blocks * 16:,} tokens")

# %% [markdown]
# Nobody knows how long an answer will get. Before paging, engines were careful: they set aside, for every
# request, one contiguous piece of memory for the longest sequence that the model allows. For SmolLM2 that is
# 8,192 tokens.
#
# **Predict.** How many requests can this pool serve at once if each sets aside its longest? How many if each
# holds only the blocks that it uses, like the four above?

# %%
longest = config.max_model_len
lengths = [len(request.prompt_token_ids) + len(request.outputs[0].token_ids) for request in answers]
blocks = [-(-length // 16) for length in lengths]
print(f"set aside: {pool.num_blocks * 16 // longest} x {longest:,} tokens")
print(f"in blocks: the four took {lengths} tokens, which is {blocks} blocks")
print(f"           so there is room for {pool.num_blocks * len(blocks) // sum(blocks)} like them")

# %% [markdown]
# **Explain.** Set aside for the longest sequence, memory is gone, whether it is ever written or not. In
# blocks of 16, a request wastes at most the 15 free slots of its last block. More requests in memory means
# bigger batches, and since a step reads all of the model's weights however many sequences it serves, bigger
# batches are more tokens a second. That is the whole business case of paging; chapter 2 measures it on real
# conversations.

# %% [markdown]
# ## A pool of blocks, step by step
#
# Now the same model again, with a pool that fits into a picture: 16 blocks of 4 tokens. We leave `LLM` aside
# and step its engine by hand.

# %%
engine = Engine(llm.model, llm.tokenizer, num_blocks=16, block_size=4)
show(draw_pool(engine))

# %% [markdown]
# Two helpers: `first` takes a text's first tokens, so that the counts hold for the tiny model too;
# `go_on_for` asks for a number of new tokens, even if the model wants to stop earlier.

# %%
def first(num_tokens, text):
    return llm.tokenizer.encode(text)[:num_tokens]

def go_on_for(num_tokens):
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)

# %% [markdown]
# Request A arrives with a prompt of 5 tokens.

# %%
engine.add_request("A", first(5, "The capital of France is"), go_on_for(12))
print(engine.stats().waiting, "waiting,", engine.stats().blocks_used, "blocks used")

# %% [markdown]
# It waits and holds nothing yet. One step computes the whole prompt at once, the **prefill**, and samples a
# sixth token.
#
# **Predict.** After that step, how many blocks does A hold, and how many slots in them are filled: 5 or 6?

# %%
(output,) = engine.step()
print("new text:", repr(output.outputs[0].text))
show(draw_pool(engine))

# %%
show(draw_tables(engine))

# %% [markdown]
# **Explain.** Two blocks, and **5** slots. K and V of a token exist once the model has *read* it. The sixth
# token has only been sampled; it is the input of the next step, and takes its slot then. The second picture
# is A's block table: its logical blocks 0 and 1 lie in the physical blocks 0 and 1. (␣ is a blank; tokens
# are words or pieces of them.)
#
# From now on A needs one slot a step: the **decode**. **Predict.** Its second block has 3 slots left. At
# which of the next steps will A take a third block?

# %%
for step in range(2, 4):
    engine.step()
    (sequence,) = engine.scheduler.running[0].sequences
    print(f"step {step}: {sequence.table.num_tokens} tokens stored in blocks {sequence.table.block_ids}")

# %% [markdown]
# Not yet. Before we go on, a second request arrives: B, with 8 tokens, which is exactly two blocks. It does
# not wait for A to end; it joins the very next step, where A decodes and B is prefilled in one batch. This
# is **continuous batching**.

# %%
engine.add_request("B", first(8, "One, two, three, four,"), go_on_for(8))
for step in range(4, 7):
    engine.step()
    tables = {request.request_id: request.live[0].table.block_ids for request in engine.scheduler.running}
    print(f"step {step}: {tables}")

# %%
show(draw_pool(engine))
show(draw_tables(engine))

# %% [markdown]
# **Explain.** Step 4 filled the last slot of A's second block, so A took its third at step **5**, and by
# then blocks 2 and 3 belonged to B: it got block 4. A's tokens no longer lie side by side, and nothing
# minds, because the table has their order. No block is taken before a token needs it, and any free block
# will do.

# %% [markdown]
# ## Two answers, one prompt
#
# C wants two different continuations (`n=2`) of a prompt of 6 tokens, sampled with a temperature.
#
# **Predict.** C1 and C2 have the same prompt, but each goes its own way. How many blocks do they hold
# together after the prefill, and how many after one more step?

# %%
two = SamplingParams(n=2, temperature=0.8, top_p=0.9, seed=2, max_tokens=8, ignore_eos=True)
engine.add_request("C", first(6, "In my garden there is a"), two)
engine.step()
show(draw_pool(engine))

# %%
engine.step()
print("copied in this step, (from, to):", engine.last_step.copies)
show(draw_pool(engine))
show(draw_tables(engine))

# %% [markdown]
# **Explain.** After the prefill: two blocks for both of them, each with two owners (×2). Forking a sequence
# copies no K and no V; it counts one more owner. After the next step: **three**. Each branch wants to write
# its seventh token into the half-full block they share. The first to write takes a fresh block and copies
# the shared one into it; the other is then the only owner left, and writes in place. The full block stays
# shared to the end, since a full block is never written again. This is **copy-on-write**, as an operating
# system does it when a process forks.

# %% [markdown]
# ## Freed is not forgotten
#
# Let them all finish.

# %%
finished = {}
while engine.has_unfinished_requests():
    finished |= {output.request_id: output for output in engine.step() if output.finished}
show(draw_pool(engine))

# %% [markdown]
# Every block is free again, but those that were full keep their content, hatched in the picture, until
# somebody needs the block. Now suppose B's user comes back: D's prompt is B's prompt and the first six
# tokens of B's answer. That is what the second turn of every chat looks like: the old conversation, sent
# again.
#
# **Predict.** Of D's 14 tokens, how many does the model have to compute?

# %%
print("B said:", repr(finished["B"].outputs[0].text))
second_turn = finished["B"].prompt_token_ids + finished["B"].outputs[0].token_ids[:6]
engine.add_request("D", second_turn, go_on_for(8))
(output,) = engine.step()
computed = engine.last_step.num_tokens
print(f"{len(second_turn)} tokens, {output.num_cached_tokens} of them found, {computed} computed")

# %%
show(draw_pool(engine))

# %% [markdown]
# **Explain.** Three full blocks of B hold exactly D's first 12 tokens, so D took those very blocks back and
# computed the other **2**. The prefix cache (chapter 7) finds them by a hash of their tokens and of all
# tokens before. B's own answer counts as much as its prompt: K and V of a token do not depend on who wrote
# it.

# %%
while engine.has_unfinished_requests():
    finished |= {output.request_id: output for output in engine.step() if output.finished}
for name, request in finished.items():
    print(name, [output.text for output in request.outputs])

# %% [markdown]
# ## Memory may run out; the answer may not change
#
# Alone, A needs 3 blocks for all of its tokens in the end, and B needs 4. Here they meet in a pool of 5. The
# engine admits both, since it cannot know how long they will get.

# %%
def serve(**options):
    small = Engine(llm.model, llm.tokenizer, block_size=4, **options)
    small.add_request("A", first(5, "The capital of France is"), go_on_for(8))
    small.add_request("B", first(8, "One, two, three, four,"), go_on_for(8))
    token_ids = {}
    while small.has_unfinished_requests():
        token_ids |= {output.request_id: output.outputs[0].token_ids for output in small.step()}
        check_invariants(small)
    return token_ids, small.stats().preemptions

# %% [markdown]
# **Predict.** Served in 64 blocks, and in 5: will it crash, will somebody's answer be cut short, or what
# else?

# %%
roomy, _ = serve(num_blocks=64)
tight, preemptions = serve(num_blocks=5)
print("the same tokens:", tight == roomy, "| preemptions:", preemptions)

# %% [markdown]
# **Explain.** When no block was left, the request that came last was **preempted**: it gave all its blocks
# back, waited, and was computed again later, from its prompt and the tokens it had so far (what the prefix
# cache still held of them was found there). That costs time,
# not correctness. It is the rule that this whole course is tested by: *greedy output does not depend on the
# number of blocks, the block size, the batch, or preemption.* And `check_invariants`, after every step,
# found each block free or owned, never both.

# %% [markdown]
# ## Your layer in this engine
#
# A layer is a class with a few methods, and `Parts` puts yours in place of the package's. This one allocates
# like the original, and talks about it.

# %%
class TalkingAllocator(BlockAllocator):
    def allocate_many(self, n):
        block_ids = super().allocate_many(n)
        if block_ids:
            print("took", block_ids)
        return block_ids

talking, _ = serve(num_blocks=64, parts=Parts(block_allocator=TalkingAllocator))
print("the same tokens:", talking == roomy)

# %% [markdown]
# In chapter 3 you will write all of `BlockAllocator`, and run it in this engine in the same way.
#
# ## The loop that you have been turning
#
# One turn of it is `Engine.step`. Here an engine says which of its parts a turn calls, and in which order:

# %%
class TalkingEngine(Engine):
    def _execute(self, step):
        print("a step, tokens to compute:", sum(len(work.slots) for work in step.work))
        return super()._execute(step)

    def _move_blocks(self, step):
        print("  move blocks, copies:", len(step.copies))
        super()._move_blocks(step)

    def _take_in(self, logits, step):
        print("  take in logits, shape:", list(logits.shape))
        return super()._take_in(logits, step)

engine = TalkingEngine(llm.model, llm.tokenizer, num_blocks=16, block_size=4)
engine.add_request("A", first(5, "The capital of France is"), go_on_for(3))
while engine.has_unfinished_requests():
    engine.step()

# %% [markdown]
# The scheduler chooses, its choice is executed (blocks are moved first, then the model runs), and the new
# tokens are taken in from the logits: that is what you have seen at work. In chapter 10 you write this
# method. The rest of it says goodbye to those that have finished, and cleans up when something fails.

# %% [markdown]
# ## Where you are
#
# The chapters build on each other, but a wrong layer never blocks you: whatever you have not written comes
# from the package.

# %%
from pathlib import Path

from IPython.display import Markdown

from minipaged.course.outline import CHAPTERS

rows = ["| chapter | | here now |", "|---|---|---|"]
for chapter in CHAPTERS:
    is_here = Path("source", f"{chapter.file_stem}.py").exists()
    title = f"[{chapter.title}]({chapter.file_stem}.ipynb)" if is_here else chapter.title
    rows.append(f"| {chapter.number} | {title} | {'yes' if is_here else 'to come'} |")
Markdown("\n".join(rows))

# %% [markdown]
# ## In vLLM this is …
#
# | here | in vLLM (its V1 engine) |
# |---|---|
# | `LLM.generate` | `vllm/entrypoints/llm.py`, `LLM.generate` |
# | `Engine.step` | `vllm/v1/engine/core.py`, `EngineCore.step` |
# | `Scheduler.schedule` | `vllm/v1/core/sched/scheduler.py`, `Scheduler.schedule` |
# | `BlockManager` | `vllm/v1/core/kv_cache_manager.py`, `KVCacheManager` |
# | `BlockAllocator`, `PrefixCache` | `vllm/v1/core/block_pool.py`, `BlockPool` |
#
# The words are the same on purpose: block, block table, slot, prefill, decode, preempt. Once you can read
# this engine, you can find your way in that one.
#
# ## Recap
#
# * K and V of every token are kept; that memory limits the batch, and the batch is the throughput.
# * Memory is a pool of equal blocks. A sequence takes one when a token needs it, and a table keeps their
#   order.
# * A block can have several owners: two samples of one prompt, or a later request that begins like an
#   earlier one.
# * A step is: schedule, compute, sample. Requests join and leave between any two steps.
# * When memory runs out somebody waits. What comes out stays the same.
#
# ## Questions to think about
#
# 1. Why not blocks of one token, which would waste nothing? And why not of 1,000?
# 2. D's prompt had 14 tokens. Had it been only the first 12 of them, the engine would have computed 4,
#    although all three blocks were there to be found. Why must it compute at least one token?
# 3. After C1 and C2 forked, would it have been simpler to copy both blocks at once? What would `n=100` have
#    cost?
#
# ## How to go on
#
# In a terminal, `minipaged demo` draws a pool while it serves, and `minipaged chat` lets you talk to the
# model and says what the prefix cache saved. Then take the next chapter in the table above, or start reading
# the engine: the README has the order of its files.
#
# ## References
#
# * Kwon, Li, Zhuang, Sheng, Zheng, Yu, Gonzalez, Zhang, Stoica: *Efficient Memory Management for Large
#   Language Model Serving with PagedAttention*, SOSP 2023,
#   [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Sections 3 and 4 are this chapter.
# * Yu, Jeong, Kim, Kim, Chun: *Orca: A Distributed Serving System for Transformer-Based Generative Models*,
#   OSDI 2022. Batches that change from step to step.
