# %% [markdown]
# # Chapter 7: The prefix cache
#
# Most prompts begin like another prompt. Every question to a chat service stands behind the same page of
# instructions, the *system prompt*; every turn of a chat sends all earlier turns again. K and V of those
# tokens have been computed before, and often they still lie in the pool. This chapter finds them. What it
# takes is one dictionary, if its keys say exactly what they must: no less, or one user reads another
# one's thoughts, and no more, or nothing is ever found.
#
# **The promise: the cache you write here runs in the real engine**, in this notebook's last cells.
#
# After this chapter you will be able to
#
# 1. say when the K and V of one request may be used for another, and put exactly that into a key;
# 2. have freed blocks found again, and the least recently used ones overwritten first, in O(1);
# 3. measure what a cache brings: time to the first token, and hits on a trace of prompts.
#
# *Time: about 50 minutes with the ★ tasks, and 30 more for the ★★ tasks. You need chapters 0, 3 and 4.
# First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import os
import random
import time
from pathlib import Path

import torch

import minipaged.block_manager
from minipaged import LLM, Engine, SamplingParams
from minipaged.course import check, machine_note, serve_with
from minipaged.course.chapters.ch07_prefix_cache.ideas import PrefixPool, block_keys
from minipaged.course.chapters.ch07_prefix_cache.replay import draw_chains
from minipaged.course.engine_map import draw_engine_map
from minipaged.loading.hub import is_fetched
from minipaged.pictures.draw import draw_pool, show
from minipaged.prefix_cache import ROOT_KEY, PrefixCache, block_key, extra_keys

show(draw_engine_map("prefix_cache"))

# %% [markdown]
# ## The problem, in numbers
#
# A service puts 1,000 tokens of instructions before every question of 50 tokens. The model is Llama 3 8B:
# about 2 floating-point operations per parameter and token, 131,072 bytes of K and V per token (chapter 1).

# %%
system, question, parameters, kv_bytes = 1_000, 50, 8.03e9, 131_072
print(f"computed for each question: {2 * parameters * (system + question) / 1e12:.1f} TFLOP,")
print(f"of which the same as always: {system / (system + question):.0%}")
print(f"stored for 100 users at once: {100 * system * kv_bytes / 1e9:.1f} GB, 100 times the same")

# %% [markdown]
# Nineteen twentieths of the work before the first token is repeated, and so is 13 GB of memory. A user
# notices the first as *time to first token*; the operator notices the second as users who have to wait.
#
# ## What may be shared
#
# A first idea: keep a dictionary from the tokens of a block to the block that holds their K and V. Same
# tokens, same K and V? Two prompts begin differently and go on with the same words. We have the engine
# compute both, and compare the K of a block that has the same tokens, at the same positions, in both.
#
# The real model if it has been fetched, else the tiny one, whose text is noise:

# %%
model = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
llm = LLM(model, num_blocks=1, device="cpu", dtype="float32")  # only for its model
encode = llm.tokenizer.encode

def new_engine(num_blocks=64, block_size=8, **options):
    return Engine(llm.model, llm.tokenizer, num_blocks=num_blocks, block_size=block_size, **options)

def serve(engine, prompt, num_tokens=1, **options):
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **options)
    engine.add_request("it", prompt, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[0]

# %%
sea = encode("Cold grey sea is all around our house")[:8]
desert = encode("Hot dry desert is all around our house")[:8]
view = ", and from the window of my room I can see nothing else. In the evening, when I look out, I see"
view = encode(view)[:24]
for start in (sea, desert):
    print(repr(llm.tokenizer.decode(start)), "+", repr(llm.tokenizer.decode(view)))

# %% [markdown]
# **Predict.** Blocks have 8 tokens, so the second block of both prompts holds the same 8 words. The model
# has many layers, each with its own K. In which layers is the K of that block the same in both: in all, in
# none, or in some?

# %%
engine = new_engine()
for start in (sea, desert):
    serve(engine, start + view)
cache, k = engine.memory.prefix_cache, engine.kv_cache.k  # k: [L, N, B, G, D]
one, other = (cache.match(block_keys(start + view, 8), 99)[1] for start in (sea, desert))
same = [layer for layer in range(len(k)) if torch.allclose(k[layer, one], k[layer, other], atol=1e-4)]
print(f"blocks {one} and {other}: K is the same in layers {same} of {len(k)}")

# %% [markdown]
# **Explain.** In the **first** layer only. There, K is made from the token itself and its position. But
# what goes into the second layer has been through attention, which has looked at all tokens before. "And
# from the window" behind a sea is not the same thought as behind a desert. So:
#
# > K and V of a block may be used again if its tokens **and all tokens before it** are the same.
#
# ## A small version
#
# Then let the key be just that: all tokens from the beginning to the block's end.

# %%
class SmallCache:
    def __init__(self, block_size):
        self.block_size, self.block_of = block_size, {}

    def publish(self, tokens, block_ids):
        for index, block_id in enumerate(block_ids):
            self.block_of.setdefault(tuple(tokens[: (index + 1) * self.block_size]), block_id)

    def match(self, tokens):
        hits = []
        for end in range(self.block_size, len(tokens), self.block_size):
            if tuple(tokens[:end]) not in self.block_of:
                break
            hits.append(self.block_of[tuple(tokens[:end])])
        return hits

# %% [markdown]
# It is right, and it is slow: the key of the hundredth block is a hundred blocks long, so a prompt of n
# blocks stores and compares about n²/2 of them. The way out is a *chain of hashes*: the key of a block is
# a hash of its own tokens and of **the key of the block before**, which stands for all tokens before that.
# However long the prompt, a key has 32 bytes.

# %%
vocabulary = {}

def number(words):
    return [vocabulary.setdefault(word, len(vocabulary)) for word in words.split()]

texts = {
    "A": "You are a poet . Write about the rain please",
    "B": "You are a poet . Answer in French now please",
    "C": "You are a cook . Write about the rain please",
}
keys = {name: block_keys(number(text), 3) for name, text in texts.items()}
blocks = {
    name: [" ".join(text.split()[start : start + 3]) for start in range(0, len(text.split()), 3)]
    for name, text in texts.items()
}
show(draw_chains(blocks, keys))

# %% [markdown]
# Equal colours are equal keys. All three have the first block in common. C's second block differs from A's in
# one word. Its third block has the same tokens as A's, and yet another key, because the second key went
# into it. (The last word fills no block and has no key; we shall see why.)
#
# sha256 never gives two different inputs the same key, as far as anybody knows. That matters: whoever could
# make two texts with one key would be served from somebody else's K and V. Python's `hash()` would be
# faster and can be fooled at will.
#
# Is the chain as good as the small version's long keys? Random prompts of few different tokens, so that
# many begin alike:

# %%
random.seed(0)
small, package, next_block, num_hits = SmallCache(4), PrefixCache(4), 0, 0
for _ in range(500):
    tokens = [random.randrange(2) for _ in range(random.randrange(30))]
    keys_of_prompt = block_keys(tokens, 4)
    assert small.match(tokens) == package.match(keys_of_prompt, len(tokens))
    num_hits += len(small.match(tokens))
    block_ids = range(next_block, next_block + len(keys_of_prompt))
    next_block += len(keys_of_prompt)
    small.publish(tokens, block_ids)
    for block_id, key in zip(block_ids, keys_of_prompt, strict=True):
        package.publish(block_id, key)
print(f"the same {num_hits} hits in 500 prompts")

# %% [markdown]
# Now you. In `exercises/ch07_prefix_cache.py`, **task 1 ★ what else must be equal (5 points, about 5
# minutes)** and **task 2 ★ a key for every full block (15 points, about 15 minutes)**. The first is about
# what else may tell two requests apart (we come to it below). Save the file, and run the cells;
# `minipaged hint ch07` in a terminal helps if you are stuck.

# %%
check("ch07", task=1)

# %%
check("ch07", task=2)

# %% [markdown]
# ## Without the parent
#
# What if somebody forgets the parent, and hashes the tokens of each block alone? Nothing crashes, and most
# tests pass. Three requests: the house by the sea with its view; the house in the desert, with something
# else behind it; and then the house in the desert with the same view as the first.
#
# **Predict.** How many of the third one's tokens are found, with right keys and with keys that lack the
# parent? (`desert` has 8 tokens, `view` has 24, blocks have 8.)

# %%
def ask_in_the_desert():
    engine = new_engine()
    serve(engine, sea + view + encode(" the")[:1])
    serve(engine, desert + encode(" but not for long")[:4])
    return serve(engine, desert + view + encode(" the")[:1], num_tokens=14)

right = ask_in_the_desert()
minipaged.block_manager.block_key = lambda parent, tokens, extra: block_key(ROOT_KEY, tokens, extra)
wrong = ask_in_the_desert()
minipaged.block_manager.block_key = block_key  # back again
for name, output in (("right keys", right), ("no parent ", wrong)):
    print(f"{name}: {output.num_cached_tokens:>2} found, '… I see the{output.outputs[0].text}'")

# %% [markdown]
# **Explain.** **8** and **32**. Of the third prompt only the first block has been computed before, in the
# second request. With the wrong keys the three blocks of the view are found too, but these were computed
# behind the sea, and their K and V remember it. What comes out is a fluent answer, and not the right one:
# no error, no warning, a hit rate to be proud of. Had the first request been another user's, it would be
# their words that shine through.
#
# ## When a block is published
#
# A key may be entered only when the block's K and V have been written, so the engine *publishes* after the
# step that filled a block. Watch a prompt of 6 tokens grow, with blocks of 4:

# %%
engine = new_engine(block_size=4)
prompt = encode("One, two, three, four, five, six, seven")[:6]
engine.add_request("it", prompt, SamplingParams(temperature=0, max_tokens=7, ignore_eos=True))
while engine.has_unfinished_requests():
    (output,) = engine.step()
    stored = len(prompt) + len(output.outputs[0].token_ids) - 1  # the newest is not stored yet
    print(f"{stored:>2} tokens stored, {engine.stats().blocks_cached} blocks can be found")

# %% [markdown]
# A block appears with the 4th, the 8th and the 12th token: only **full** blocks have keys. The tail is still
# being written, so its content changes with each token, and with it the key would. And whoever shared it
# would want to write into it next, which means a copy. A full block is never written again; it can be
# shared for ever. The price is that less than one block per request is computed again.
#
# Note that the second block is half prompt and half answer. It makes no difference: K and V do not know who
# wrote a token. That is why the next turn of a chat finds the answer of the last one.
#
# `publish` and `forget` keep two maps that mirror each other. Two requests may compute the same block in
# the same step; then the first one published stays, and the other block just has no key.
# **Task 3 ★★ publish and forget (15 points, about 10 minutes).**

# %%
check("ch07", task=3)

# %% [markdown]
# ## Something must be left to compute
#
# **Predict.** A prompt of exactly 8 tokens, blocks of 4. It is served, and then the very same prompt comes
# again. How many of its tokens are found: 8, 7 or 4?

# %%
engine = new_engine(block_size=4)
prompt = encode("What is the capital of France, please?")[:8]
serve(engine, prompt)
again = serve(engine, prompt)
print(f"{len(prompt)} tokens, {again.num_cached_tokens} found, {engine.last_step.num_tokens} computed")

# %% [markdown]
# **Explain.** **4**. All eight have K and V in the pool, but the answer begins with the *logits* of the last
# token, the model's opinion on what comes next, and these are not kept. So at least one token must go
# through the model. Its K and V must not be written into a shared block; so the whole last block is
# computed again. A lookup returns at most (n − 1) // B blocks. For 9 tokens that would be 2.
#
# **Task 4 ★ find a prompt's beginning (10 points, about 10 minutes).**

# %%
check("ch07", task=4)

# %% [markdown]
# ## Freed is not forgotten
#
# Who keeps the blocks of a request that has ended? Nobody. They are free, and count as free. But the pool
# hands out free blocks from the head of its queue and takes them back at the tail (chapter 3), so a freed
# block stays as it is for as long as possible, and as long as it does, it can be found.

# %%
engine = new_engine(num_blocks=16, block_size=4)
serve(engine, encode("The quick brown fox jumps over the lazy dog, again and again.")[:14], num_tokens=3)
show(draw_pool(engine))

# %% [markdown]
# Hatched blocks are free and can be found. A hit takes its block out of the middle of the queue (`revive`),
# keeps what is in it, and makes it nobody's to overwrite. Together that is LRU, *least recently used*: the
# block that nobody has used for longest stands at the head, and is overwritten first. There is no list of
# ages, no clock, no clean-up. The order of the queue *is* the age, and all of it is O(1).
#
# One choice is left: in which order does a request give its blocks back? **Predict.** A pool of 4 blocks is
# full of one request's blocks, and the request ends. Then somebody takes *one* block. How many of the 4 can
# a repeated prompt still use, if the last block was given back first? And if the first one was?

# %%
tokens = list(range(17))
for order in ("last block first", "first block first"):
    pool, keys_of_prompt = PrefixPool(num_blocks=4, block_size=4), block_keys(tokens, 4)
    block_ids = pool.take([], 4)
    for block_id, key in zip(block_ids, keys_of_prompt, strict=True):
        pool.cache.publish(block_id, key)
    pool.release(block_ids if order == "last block first" else block_ids[::-1])
    pool.take([], 1)
    num_found = len(pool.cache.match(keys_of_prompt, len(tokens)))
    print(f"{order}: {pool.cache.num_blocks} blocks have a key, {num_found} are found")

# %% [markdown]
# **Explain.** **3** and **0**. In both cases three blocks keep their keys. But a match is a run from the
# start: without the first block the other three are of no use, and take up room until they are overwritten,
# too. So the tail goes first.
#
# `PrefixPool` is not in the engine, where requests have branches and come in batches. It is the smallest
# thing that shows how an allocator and a cache work together, and it has the two traps in it that the
# engine's `BlockManager` had to avoid. Hits must be secured *before* fresh blocks are taken, or a fresh
# block may be one of the hits. And a hit that is free counts twice: it is one of the free blocks, *and* it
# is needed. **Task 5 ★★ least recently used (20 points, about 15 minutes).**

# %%
check("ch07", task=5)

# %% [markdown]
# ## Time to first token
#
# Now the measurement that users feel. A system prompt of some length, a question behind it: how long until
# the first token of the answer? Without the cache, and with it, when somebody else has asked before.
#
# **Predict.** With 512 tokens of instructions and about a dozen of question, how many times faster is the
# first token?

# %% tags=["timing"]
rules = encode("You are the assistant of a small library. Answer in short sentences. " * 80)
first_question, second_question = encode(" Hello?"), encode(" On which shelf are the books about the sea?")
print(machine_note())
for length in (64, 256, 512):
    milliseconds = {}
    for caching in (False, True):
        engine = new_engine(num_blocks=128, block_size=16, enable_prefix_caching=caching)
        serve(engine, rules[:length] + first_question)
        start = time.perf_counter()
        serve(engine, rules[:length] + second_question)
        milliseconds[caching] = 1000 * (time.perf_counter() - start)
    ratio = milliseconds[False] / milliseconds[True]
    print(f"{length:>4} tokens of system prompt: {milliseconds[False]:6.0f} ms without, "
          f"{milliseconds[True]:5.0f} ms with the cache ({ratio:.1f} times faster)")

# %% [markdown]
# **Explain.** Without the cache the time grows with the system prompt. With it, the question is all there is
# to compute, and the time hardly grows (attention still reads all of K and V). So the longer the common
# beginning, the larger the gain. It is never as large as the number of tokens says, since a step has a
# price of its own: the weights must be read, for one token as for hundreds (chapter 1). And nothing is
# gained *after* the first token; decoding is as fast as before.
#
# It costs nearly nothing. No memory, because what is kept are blocks that are free; and for each block one
# sha256, of 170 bytes when blocks have 16 tokens.
#
# ## Many users, one copy
#
# If requests with the same beginning run *at the same time*, memory is saved as well. A has been computed;
# B and C arrive while it is still running.

# %%
engine = new_engine(num_blocks=32, block_size=8)
rules_24 = rules[:24]

def ask(name, text):
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    engine.add_request(name, rules_24 + encode(text)[:7], params)

ask("A", " Where is the door, my dear friend?")
engine.step()
ask("B", " What can I read on a rainy day?")
ask("C", " Who wrote the book about the whale?")
engine.step()
show(draw_pool(engine))

# %%
tables = [request.live[0].table.block_ids for request in engine.scheduler.running]
in_use = {block_id for table in tables for block_id in table}
print(f"{sum(map(len, tables))} entries in {len(tables)} tables, {len(in_use)} blocks")

# %% [markdown]
# The three blocks of the instructions have three users each (×3). This is sharing as after a fork, with the
# same reference counts, only that nobody forked: three strangers were found to begin alike. Copy-on-write
# has nothing to do here, because shared blocks are full, and full blocks are not written.
#
# (B and C came one step after A. Had all three come in the same step, each would have computed its own: a
# key is published when the step is over.)
#
# ## Whose block is it?
#
# Sharing between strangers has a dark side. Whoever sends a guess of somebody else's prompt and measures
# the time to the first token learns whether it was right: if it is fast, it was in the cache. Such
# differences were measured on the public interfaces of real services (Gu et al., see below). The remedy is
# a **salt** in the key: requests share only with those that bring the same salt, one per user or per
# company. It is the first of the *extra keys* of task 1. The other is the name of an adapter: a fine-tuned
# variant of the model, which computes other K and V for the same tokens.

# %%
engine = new_engine()
secret = encode("My password for the library is swordfish, but I will never tell it to anybody.")[:17]
serve(engine, secret, cache_salt="Anna")
for salt in ("Anna", "Ben", None):
    output = serve(engine, secret, cache_salt=salt)
    print(f"the same prompt with the salt {salt!r}: {output.num_cached_tokens} tokens found")

# %% [markdown]
# And each value stands with its domain in the key. Otherwise an adapter that somebody calls "Anna" would be
# Anna's salt.

# %%
for extra in (extra_keys(), extra_keys(cache_salt="Anna"), extra_keys(adapter="Anna")):
    print(block_key(ROOT_KEY, [1, 2, 3, 4], extra).hex()[:8], extra)

# %% [markdown]
# ## Hits on a trace
#
# How much is found in the long run depends on what people send, and on how many blocks there are. We replay
# prompts through `PrefixPool`, one after the other, and count blocks. Without a real trace these chats are
# **made up**, fitted to nothing: three system prompts, chats of one or more turns, each turn sending all
# earlier ones again. If you have Mooncake's traces (kvcache-ai/Mooncake), name their folder in the
# environment variable `MINIPAGED_TRACES` before you start, and the first is read instead.

# %%
from minipaged.course.chapters.ch07_prefix_cache.replay import num_distinct, replay_prompts, synthetic_chats
from minipaged.simulation.traces import load_mooncake

folder = os.environ.get("MINIPAGED_TRACES")
if folder:
    name = "Mooncake's conversations, read here"
    rows = load_mooncake(Path(folder) / "mooncake_conversation_trace.jsonl")
    prompts = [row.block_hashes for row in rows]
else:
    name, prompts = "made-up chats", synthetic_chats(1_000, seed=0)
distinct = num_distinct(prompts)
print(f"{name}: {len(prompts):,} prompts, {sum(map(len, prompts)):,} blocks, {distinct:,} of them different")

# %% [markdown]
# **Predict.** With room for all different blocks, what share of the blocks is found? And if the pool has only
# a tenth, or a hundredth, of that room?

# %%
sizes = [distinct // part for part in (100, 50, 20, 10, 5, 2)]
curve = {size: replay_prompts(prompts, size).percent for size in sizes}
unlimited = replay_prompts(prompts, distinct).percent
for size, percent in {**curve, distinct: unlimited}.items():
    print(f"{size:>7,} blocks: {percent:5.1f} % found")

# %% [markdown]
# **Explain.** With room for all, everything that came before is found: what is missing are first sights.
# Less room costs hits, but much less than in proportion: a tenth of the room keeps most of them, since what
# is asked again is mostly what was asked a moment ago, and LRU keeps just that. A system prompt that
# everybody uses is never evicted at all.
#
# These chats come back soon, as we made them. Real ones, beside them: Mooncake's two traces, in blocks of 512
# tokens, computed from the public files (this project's tests compute them again where the files are).

# %%
from minipaged.course.chapters.ch07_prefix_cache.replay import MOONCAKE, MOONCAKE_UNLIMITED, draw_hit_rates

curves = {name: curve, **MOONCAKE}
show(draw_hit_rates(curves, {name: unlimited, **MOONCAKE_UNLIMITED}))

# %% [markdown]
# In Mooncake's hour of conversations 105,710 of 288,500 blocks could be found, 36.64 %, but only with tens
# of thousands of blocks. 30,000 of them are 15 million tokens, far more than one GPU's memory holds: the
# hour brings about 80 blocks a second, and between two turns of a chat there are minutes. That is why large
# services move cold blocks to CPU memory and disks instead of overwriting them.
#
# And the order in which blocks are given back? In the smallest pool:

# %%
smallest = min(curve)
head_first = replay_prompts(prompts, smallest, tail_first=False).percent
print(f"{smallest} blocks: tail first {curve[smallest]:.1f} %, head first {head_first:.1f} %")

# %% [markdown]
# It makes a difference of a point or two, not the 3 against 0 of the example above. At any time only the
# *one* prompt at the head of the queue is being eaten up, and the others are whole. In Mooncake's
# conversations it is less still: 11.18 against 11.04 % with 5,000 blocks. Tail first is right, it is free,
# and it is no big thing. Without the measurement, one would have believed the example.
#
# ## The scorecard
#
# Chapter 2 asked for one copy of what is the same. Here is the column of block tables (chapter 4, measured
# there) and that of this chapter. A prefix cache takes no memory of its own, so the other lines stay.

# %%
from minipaged.course.chapters.ch04_block_table.replay import replay_tables, table_score
from minipaged.course.scorecard import Score, Scorecard

tables = table_score(replay_tables())
found = f"by content: {unlimited:.0f} % of {name}' blocks found, with room for all"
Scorecard(tables, Score("with a prefix cache", 0.0, tables.internal, 0.0, "as before", found))

# %% [markdown]
# ## Two challenges
#
# **Task 6 ★★★ a radix tree (20 points, about 30 minutes).** SGLang keeps no keys. Its cache is a tree whose
# paths are the prompts, and finding a prefix is walking down. The hits are the same; what is gained is that
# one sees which beginnings are in the cache, and can serve requests in the order in which they share.

# %%
check("ch07", task=6)

# %% [markdown]
# **Task 7 ★★★ the cache that knows the future (15 points, about 30 minutes).** Is LRU good? One needs a
# ruler. Nobody can evict better than someone who knows which block will be used again latest (Bélády, 1966).
# On a recorded trace, the future is known.

# %%
check("ch07", task=7)

# %%
from minipaged.course.tasks import find_root, import_path

try:
    mine = import_path(find_root() / "exercises" / "ch07_prefix_cache.py")
    for size in curve:
        best = 100 * mine.clairvoyant_hits(prompts, size) / sum(map(len, prompts))
        print(f"{size:>7,} blocks: LRU {curve[size]:5.1f} %, with the future known {best:5.1f} %")
except NotImplementedError as error:
    print("to come:", error)

# %% [markdown]
# On Mooncake's conversations the gap is wide: with 10,000 blocks LRU finds 21.16 %, and whoever knows the
# future finds 36.64 %, all there is. Three quarters of its different blocks come once and never again, and
# LRU keeps each of them as long as any other. So there is something to gain from a policy that guesses
# better; question 6 is about that.
#
# ## Your layer in the engine
#
# Three prompts, in a pool so small that somebody is preempted. What the preempted request had computed is
# then found again by your cache, as far as it was not overwritten. The tokens must be those of the package's
# own layers in a roomy pool. (The engine plugs in your class `PrefixCache`; the keys it computes itself.)

# %%
serve_with("ch07")

# %% [markdown]
# In a terminal, `minipaged demo --use exercises:ch07` shows it at work, and
# `minipaged demo --use exercises:ch03,ch04,ch07` together with your pool and your tables. And all tasks:

# %%
check("ch07")

# %% [markdown]
# ## Recap
#
# * K and V of a block can be used again if its tokens and all tokens before it are the same, and so are the
#   model, the adapter and, if users are to be kept apart, the salt.
# * A chain of sha256 says that in 32 bytes: each key is a hash of the block and of the key before it.
# * Only full blocks are published, after the step that filled them. At least one token is computed.
# * A freed block can be found until it is overwritten. The free queue is the LRU list, and the tail of a
#   sequence goes first.
# * Hits are secured before fresh blocks are taken, and a free hit counts as needed.
# * The gain is in the time to first token, and in memory while requests with a common beginning run.
#
# ## Questions
#
# 1. vLLM puts the salt into the key of the *first* block only. Why is that enough?
# 2. A service puts the date and the time, to the second, at the beginning of its system prompt. What does
#    that do to its cache, and what would you change?
# 3. Blocks of 16 tokens or of 256: what does a larger block do to the hits, and to the work of finding them?
# 4. Two requests with the same prompt of 1,000 tokens arrive in the same step. How many times is it computed,
#    and what could a scheduler do about it?
# 5. Our prefix cache forgets a block when it is handed out. What would happen if it forgot it when it is
#    *freed*? And if it never forgot?
# 6. Most blocks are used once and never again. How could a cache guess which, and keep these for a shorter
#    time?
#
# (Model answers: `solutions/ch07_prefix_cache.md`.)
#
# ## In vLLM this is …
#
# * `vllm/v1/core/kv_cache_utils.py`: `hash_block_tokens` is `block_key`, `generate_block_hash_extra_keys` is
#   `extra_keys` (there also for images), `get_request_block_hasher` makes the chain, `NONE_HASH` is
#   `ROOT_KEY`, and `FreeKVCacheBlockQueue` the queue.
# * `vllm/v1/core/block_pool.py`, class `BlockPool`: `get_cached_block` looks a key up, `cache_full_blocks`
#   publishes, `touch` secures a hit, and `get_new_blocks` evicts. Its map keeps *all* blocks that have the
#   same key; ours keeps the first.
# * `vllm/v1/core/kv_cache_manager.py`, `KVCacheManager.get_computed_blocks` is the lookup, with
#   `request.num_tokens - 1` in it for the token that must be computed. `allocate_slots` counts free hits as
#   needed.
#
# ## References
#
# * Zheng et al., *SGLang: Efficient Execution of Structured Language Model Programs*, NeurIPS 2024,
#   [arXiv:2312.07104](https://arxiv.org/abs/2312.07104): RadixAttention, section 3.
# * Qin et al., *Mooncake: Trading More Storage for Less Computation – A KVCache-centric Architecture for
#   Serving LLM Chatbot*, FAST 2025; the traces are in github.com/kvcache-ai/Mooncake.
# * Gu et al., *Auditing Prompt Caching in Language Model APIs*, 2025,
#   [arXiv:2502.07776](https://arxiv.org/abs/2502.07776).
# * Bélády, *A study of replacement algorithms for a virtual-storage computer*, IBM Systems Journal, 1966.
# * Merkle, *A Digital Signature Based on a Conventional Encryption Function*, CRYPTO 1987: keys over keys.
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180): shared prefix in section 4.4.
#
# Next: chapter 8 decides who runs, and when.
