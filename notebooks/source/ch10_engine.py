# %% [markdown]
# # Chapter 10: The engine
#
# You have the parts: a pool, tables, attention through them, sharing, a prefix cache, a scheduler, and
# somebody who gives way when memory runs out. This chapter puts them together. What is missing is smaller
# than one would think, and full of traps all the same: how a token is *chosen*, how tokens become *text* that
# can be shown while it is written, when an answer *ends*, and the loop that turns it all.
#
# **The promise: at the end of this notebook you talk with a model that is served by your own engine**, and
# your layers of the chapters 3 to 9, all at once, pass the final exam: the same tokens, one by one, as the
# package's.
#
# After this chapter you will be able to
#
# 1. write the step of a serving engine in ten lines, and say why no two of them may change places;
# 2. sample reproducibly, so that nobody's answer depends on who else is in the batch;
# 3. stream text that never breaks a character, never shows a stop text, and never takes anything back.
#
# *Time: about 50 minutes with the ★ tasks, and 45 more for the ★★ tasks. You need chapter 0, and it helps
# to have done chapters 3 to 9; but whatever you have not written comes from the package. First hide the
# outputs: Edit → Clear Outputs of All Cells.*

# %%
import math
import random
import time
from itertools import accumulate

from minipaged import LLM, Engine, KVCache, Parts, SamplingParams, check_invariants
from minipaged.batch import Batch
from minipaged.block_manager import BlockManager
from minipaged.course import check, machine_note, serve_with
from minipaged.course.chapters.ch10_engine.figures import draw_filters, draw_stream
from minipaged.course.chapters.ch10_engine.own_engine import own_engine
from minipaged.course.engine_map import draw_engine_map
from minipaged.detokenizer import Detokenizer
from minipaged.loading.hub import is_fetched
from minipaged.loading.tokenizer import Tokenizer
from minipaged.paged_attention import paged_attention
from minipaged.pictures.draw import show
from minipaged.pictures.player import play
from minipaged.pictures.recording import Arrival, Recorder
from minipaged.request import Request, Sequence
from minipaged.scheduler import Scheduler

# %%
show(draw_engine_map("engine"))

# %% [markdown]
# ## The problem, in numbers
#
# The model is the real one if it has been fetched, and else a tiny random one. Then the texts below are
# noise, but everything that is said about them still holds.

# %%
model = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
llm = LLM(model, num_blocks=1024, block_size=16, device="cpu", dtype="float32")
encode, decode = llm.tokenizer.encode, llm.tokenizer.decode
print("serving", model if model != "tiny" else "the tiny random model; for the real one: minipaged fetch")

# %% [markdown]
# Everything that an engine does besides running the model is overhead: scheduling, tables, sampling,
# text. It happens on the CPU, once per step, while an expensive device waits. How much is it?

# %% tags=["timing"]
prompts = ["The sea", "A garden", "Numbers", "My town", "Music", "Bread", "Winter", "The moon"]
llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))  # warms up
before = llm.engine.stats()
llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
after = llm.engine.stats()
steps, total = after.steps - before.steps, after.step_time - before.step_time
in_model = after.forward_time - before.forward_time
print(f"{steps} steps of {1000 * total / steps:.1f} ms; the model takes {1000 * in_model / steps:.1f} of it")
print(f"the engine's own part: {100 * (1 - in_model / total):.1f} %   ({machine_note()})")

# %% [markdown]
# With the real model a few per cent, since a CPU takes long over it. But the price is about the same whatever
# computes the model: beside one that does this step in a few milliseconds, it is a large part. Engines work
# hard to hide it (vLLM runs its core in a process of its own). So the loop must be lean. And it must be
# *right*, which is what the rest of this chapter is about.
#
# ## A small version
#
# Here is a whole step, greedy and without any comfort. Schedule, move blocks, run the model, and give
# every sequence whose tokens are all computed its next one.

# %%
def small_step(kv_cache, scheduler, max_tokens):
    step = scheduler.schedule()
    kv_cache.copy_blocks(step.copies)
    logits = llm.model.forward(Batch.of(step.work, llm.model.device), kv_cache, paged_attention)
    ready = [work for work in step.work if work.sequence.num_uncomputed_tokens == 0]
    for work, token_id in zip(ready, logits.argmax(dim=-1).tolist(), strict=True):
        work.sequence.token_ids.append(token_id)
        if len(work.sequence.output_token_ids) == max_tokens:
            scheduler.remove(work.request)
            work.request.finish("length")

# %% [markdown]
# It needs a memory, a scheduler, and requests that wait:

# %%
config = llm.model.config
memory = BlockManager(Parts(), num_blocks=64, block_size=4)
kv_cache = KVCache(config.num_layers, 64, 4, config.num_kv_heads, config.head_dim)
scheduler = Scheduler(memory, max_num_batched_tokens=8, max_num_seqs=4)
greedy = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
requests = []
for number, text in enumerate(["The capital of France is", "One, two, three, four,", "Roses are red"]):
    ids = encode(text)
    sequence = Sequence(list(ids), len(ids), Detokenizer(llm.tokenizer))
    requests.append(Request(str(number), text, ids, greedy, 0, number, [sequence]))
    scheduler.add(requests[-1])

# %% [markdown]
# Is it the package's? Ten tokens for each, with a budget of 8 tokens a step, so that prompts are cut in
# pieces:

# %%
num_steps = 0
while scheduler.waiting or scheduler.running:
    small_step(kv_cache, scheduler, max_tokens=10)
    num_steps += 1
got = [request.sequences[0].output_token_ids for request in requests]
expected = [output.outputs[0].token_ids for output in llm.generate([r.prompt for r in requests], greedy)]
assert got == expected
print("the same tokens;", memory.allocator.num_free, "of 64 blocks free at the end")

# %% [markdown]
# Look at `ready` again. What would come out if every sequence in `step.work` got a token, not only those
# whose tokens are all computed? A sequence whose prompt has been computed only in part has logits, too: what
# the model would say *there*, in the middle of the prompt. Appended at the end, it would be the answer to
# another question. This is the price of chunked prefill (chapter 8), and `Batch.logits_rows` pays it: only
# the rows that are wanted are computed.
#
# What else does it lack? Sampling, text, an end before the length, samples that branch, swapping, the
# prefix cache, and what happens when something fails. Let's go from the logits to the right.
#
# ## From logits to a token
#
# The model gives one number for each token of the vocabulary. `softmax` makes probabilities of them. How
# sure is a model? The set of the likeliest tokens that together reach 90 % is what `top_p=0.9` keeps.
#
# **Predict.** How many tokens are in that set after "The capital of France is", and how many after "My
# favourite food is"? The vocabulary of SmolLM2 has 49,152.

# %%
def distribution(prompt):
    everything = SamplingParams(temperature=0, max_tokens=1, logprobs=config.vocab_size)
    (logprobs,) = llm.generate([prompt], everything)[0].outputs[0].logprobs
    pairs = sorted(((math.exp(value), token_id) for token_id, value in logprobs.items()), reverse=True)
    return [p for p, _ in pairs], [decode([token_id]) for _, token_id in pairs]

for prompt in ("The capital of France is", "My favourite food is"):
    probs, words = distribution(prompt)
    size = next(n for n, reached in enumerate(accumulate(probs), start=1) if reached >= 0.9)
    print(f"{prompt!r}: {size} tokens reach 0.9; the likeliest is {words[0]!r} with {probs[0]:.2f}")

# %% [markdown]
# **Explain.** Where there is one good answer, the set is small; where there are many, it is large. (Except
# to the random model, which knows neither France nor food.) `top_k` keeps a fixed *number* of tokens,
# whether the model is sure or not; `top_p` keeps what *this* moment asks for. The temperature comes before
# both: it divides the logits, so below 1 it makes the likely likelier.

# %%
probs, words = distribution("Once upon a time, in a")

def after(temperature=1.0, top_k=None, top_p=1.0):
    weights = [p ** (1 / temperature) for p in probs][:top_k]
    goal = top_p * sum(weights)
    size = next((n for n, sum_ in enumerate(accumulate(weights), start=1) if sum_ >= goal), len(weights))
    left = sum(weights[:size])
    return [weight / left for weight in weights[:size]] + [0.0] * (10 - size)

filters = {"the model": after(), "temperature=0.5": after(0.5), "temperature=1.5": after(1.5),
           "top_k=3": after(top_k=3), "top_p=0.8": after(top_p=0.8)}
ten = {name: shares[:10] for name, shares in filters.items()}
show(draw_filters(words[:10], ten, "'Once upon a time, in a': the ten likeliest next tokens"))

# %% [markdown]
# Then comes the draw, and all it needs is **one number** u between 0 and 1. Lay the probabilities side by
# side on a line, in the order of their ids, and see where u falls:

# %%
probabilities = {"cat": 0.5, "dog": 0.3, "cow": 0.2}
ends = list(accumulate(probabilities.values()))
for u in (0.1, 0.49, 0.51, 0.79, 0.95):
    place = next(index for index, end in enumerate(ends) if end > u)
    print(f"u = {u}: {list(probabilities)[place]}")

# %% [markdown]
# In `exercises/ch10_engine.py` you write this for a whole batch of rows, each with its own parameters, as a
# few tensor operations: **task 2 ★ choose a token (15 points, about 15 minutes)**, and **task 4 ★★ top-k and
# top-p (15 points, about 15 minutes)**. Two traps wait there: a token of probability 0 must not be drawn even
# by u = 0, and the token that *crosses* p belongs to the set.

# %%
check("ch10", task=2)

# %%
check("ch10", task=4)

# %% [markdown]
# ## Whose random number?
#
# Where does u come from? The obvious answer is a random generator with a seed. But a generator has a
# *state*: every number drawn changes it. Suppose that the engine has one, and request A draws a number a
# step. Now B joins.

# %%
def numbers_of_a(with_b, steps=4):
    generator = random.Random(7)
    numbers = []
    for _ in range(steps):
        if with_b:
            generator.random()  # B's token
        numbers.append(round(generator.random(), 2))
    return numbers

print("A alone: ", numbers_of_a(with_b=False))
print("A with B:", numbers_of_a(with_b=True))

# %% [markdown]
# A's answer depends on a stranger. It can't be reproduced, and a bug that was seen once will not be seen
# again. A generator *per request* is better, but then its state must be copied when the request forks into
# n samples (or all of them say the same), and kept when it is preempted.
#
# So this engine has no generator at all. The number is a **function** of (seed, branch, position).
# **Predict.** A request with `n=2` and `seed=7` is sampled alone; then among five others; then in a pool so
# small that somebody is preempted and computed again. How many different outcomes are there?

# %%
wanted = SamplingParams(n=2, temperature=0.9, seed=7, max_tokens=12, ignore_eos=True)
stranger = SamplingParams(temperature=1.2, max_tokens=12, ignore_eos=True)

def outcome(num_others, num_blocks):
    engine = Engine(llm.model, llm.tokenizer, num_blocks=num_blocks, block_size=4)
    for number in range(num_others):
        engine.add_request(f"stranger {number}", encode("Somewhere else, people said")[:8], stranger)
    engine.add_request("me", encode("In the middle of the night")[:6], wanted)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == "me":
                mine = [completion.token_ids for completion in output.outputs]
    return mine, engine.stats().preemptions

# %%
alone, _ = outcome(0, 64)
among, _ = outcome(5, 64)
tight, preemptions = outcome(5, 14)
print("alone = among others:", alone == among, "| alone = in a tight pool:", alone == tight)
print("preemptions in the tight pool:", preemptions, "| the two samples differ:", alone[0] != alone[1])
for token_ids in alone:
    print(repr(decode(token_ids)))

# %% [markdown]
# **Explain.** One. Position 9 of branch 1 gets the same number whenever it is computed, in whatever
# company, for the first or for the second time. Nothing has to be stored, forked or saved; a preempted
# request could even be continued on another machine. (The *logits* must be the same too, which a batch may
# change in the last bits; see question 2.)
#
# **Task 1 ★ a number of one's own (10 points, about 5 minutes).** It is one line; the trap is the key.

# %%
check("ch10", task=1)

# %% [markdown]
# ## From tokens to text
#
# A token is a few *bytes*, and text is UTF-8, where a character takes one to four of them. **Predict.** What
# is printed if every token is decoded as it comes?

# %%
text = "Café 😀 日本!"
ids = encode(text)
print([decode([token_id]) for token_id in ids])
pieces = [llm.tokenizer.token_bytes(token_id) for token_id in ids]
print(pieces)

# %% [markdown]
# **Explain.** � stands for bytes that are no character. The emoji lies across two tokens and 日 across three,
# and none of the pieces is text. (To the random model's tokenizer every byte is a token, so even é is in two
# halves.) A stream that shows such a piece at once would have to take it back, and what has been sent to a
# user can't be taken back. So the bytes of an unfinished character wait (orange). The `Detokenizer` keeps
# them:

# %%
stream, visible = Detokenizer(llm.tokenizer), []
for token_id in ids:
    stream.append(token_id)
    visible.append(stream.visible)
show(draw_stream(pieces, visible, "A stream never breaks a character"))

# %% [markdown]
# (The figure's font has neither emoji nor Chinese characters, and draws □.) One token can do both: the blank
# before the emoji is shown as soon as it is there, and the rest of its token has to wait.
#
# **Task 3 ★ text that never breaks a character (10 points, about 10 minutes).** Python's `codecs` has what
# keeps half a character. The trap is `fork`: two samples of one prompt may part in the middle of an emoji.

# %%
check("ch10", task=3)

# %% [markdown]
# ## Where an answer ends
#
# An answer ends when the model says so (an end-of-text token), when it is long enough, or when a **stop
# text** appears that the user gave. The stop text is not part of the answer. **Predict.** The stop text is
# "END", and the tokens are single characters. What does the stream show after each character of "the ENemy
# ENDs"?

# %%
stream = Detokenizer(Tokenizer.byte_level(), stop=["END"])
for byte in b"the ENemy ENDs":
    ended = stream.append(byte)
    shown = stream.text if ended else stream.visible
    print(f"{chr(byte)!r}: {shown!r}" + ("   and here it ends" if ended else ""))
    if ended:
        break

# %% [markdown]
# **Explain.** "E" is held back, since it may be the beginning of "END", and so is "EN". With "e" it can't be
# any more, and all of it is shown at once. After "END" the answer is "the ENemy ". Two things must be right.
# *Finding*: a stop text begins in one token and ends in another, so looking at the newest token alone finds
# nothing. *Holding back*: just as much as may still become a stop text, and not more, or the last words of
# every answer come late.
#
# In a real tokenizer a token can hold the end of a stop text and more behind it. Both go.

# %%
(output,) = llm.generate(["One, two, three, four,"], SamplingParams(temperature=0, max_tokens=24))
answer = output.outputs[0].text
stop = answer[9:13]
(output,) = llm.generate(["One, two, three, four,"], SamplingParams(temperature=0, max_tokens=24, stop=stop))
print("without a stop text:", repr(answer))
print(f"with stop={stop!r}: {output.outputs[0].text!r}, finish_reason {output.outputs[0].finish_reason!r}")

# %% [markdown]
# If a token both stops the answer and is the last that `max_tokens` allows, the reason is "stop": the answer
# is complete, and nobody should be told that it was cut off. **Task 5 ★★ where an answer ends (15 points,
# about 15 minutes).**

# %%
check("ch10", task=5)

# %% [markdown]
# ## The step
#
# Between `schedule` and the new tokens, four things happen, always in this order: blocks are moved
# (`_move_blocks`: out to the CPU, back in, and then the copies), the step's tokens become one flat batch
# (`Batch.of`), the model runs on it, and the blocks that are full now are published, so that others may find
# them. A step without work moves its blocks and gives an empty tensor of logits. You write that in task 6;
# why the order matters is what comes next.
#
# Two samples of one prompt share its last block. The first that writes gets a copy of it (chapter 6):
# `step.copies` says from where to where, and `_move_blocks` does it. Suppose that somebody tidies up, and
# moves the copies behind the model's run.
#
# **Predict.** What happens? An error, the same text, or something else? Will `check_invariants` notice?

# %%
class LateCopies(Engine):
    def _execute(self, step):
        copies, step.copies = step.copies, []
        logits = super()._execute(step)
        self.kv_cache.copy_blocks(copies)
        return logits

def two_samples(kind):
    engine = kind(llm.model, llm.tokenizer, num_blocks=64, block_size=16)
    engine.kv_cache.k.fill_(0.0)  # a fresh pool holds anything; so that everybody sees the same
    engine.kv_cache.v.fill_(0.0)
    params = SamplingParams(n=2, temperature=0.3, seed=1, max_tokens=16, ignore_eos=True)
    engine.add_request("a", encode("My dog likes to sleep in the"), params)
    while engine.has_unfinished_requests():
        (output,) = engine.step()
        check_invariants(engine)
    return [decode(completion.token_ids) for completion in output.outputs]

# %%
right, late = two_samples(Engine), two_samples(LateCopies)
for number in range(2):
    print(f"sample {number}, copied before: {right[number]!r}")
    print(f"sample {number}, copied after:  {late[number]!r}")
print("the same:", [ours == theirs for ours, theirs in zip(right, late, strict=True)])

# %% [markdown]
# **Explain.** No error, every invariant holds, and one sample is as before: the last owner writes in place
# and needs no copy. The other one computed its second token from a block in which its prompt was not yet;
# and then the copy came and overwrote what the model had just written. Reference counts can't see this. The
# only test that does is the one that this course is built on: *compare the tokens.*
#
# The order of a step follows from what each line reads and writes:
#
# | line | must come after | because |
# |---|---|---|
# | swap out | schedule | the block may be given to somebody in the same step |
# | copy | swap out, swap in | it may write into a block just swapped out, or read one just swapped in |
# | run the model | all moves | it reads the copies and writes behind them |
# | publish | run the model | a block is findable once it holds what its key says |
# | take in tokens | run the model | they come out of it |
# | say goodbye | take in tokens | a token may be the last one |
#
# And if something fails half-way, Ctrl-C included? Nobody can tell what was written. The engine forgets the
# whole memory and lets everybody wait with the tokens they have: K and V can always be computed again. It is
# preemption, of everybody at once.
#
# **Task 6 ★★ the step (20 points, about 20 minutes).** Your `Engine` is the package's, with your step and
# your functions in it. It is graded on a toy model whose next token anybody can work out by hand, and that
# reads every token of the context through the block tables.

# %%
check("ch10", task=6)

# %% [markdown]
# ## Watch it run
#
# Four requests arrive at an engine with 16 blocks of 8 tokens; C wants two samples. `own_engine` takes from
# your exercises whatever serves, and says so. In JupyterLab this cell gives you a slider and a play button.
# Where those can't run you see five steps: an arrival that finds something in the prefix cache, a copy, a
# preemption, a return, and the end.

# %%
def cut(num_tokens, text):
    return encode(text)[:num_tokens]

go_on = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
branch = SamplingParams(n=2, temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
arrivals = [
    Arrival(0, "A", cut(24, "The history of bread is long. People have baked it for thousands of years, "
                            "first as flat cakes, and later"), go_on),
    Arrival(2, "B", cut(24, "The history of bread is long. People have baked it for thousands of years, "
                            "and in every country"), go_on),
    Arrival(5, "C", cut(11, "In the old house at the end of the street lived"), branch),
    Arrival(9, "D", cut(20, "A list of things that one needs for a long walk in the mountains: good shoes, "
                            "a map, water, and"), go_on),
]
frames = Recorder(own_engine(llm, num_blocks=16, block_size=8), arrivals).run()
play(frames)

# %% [markdown]
# Read it as a story: B finds A's first blocks in the prefix cache and shares them; C's two samples share
# a prompt, until one of them writes and gets its copy; D arrives, memory runs out, and whoever came last
# gives way and comes back. In a terminal, `minipaged demo` shows the same kind of run.

# %%
for frame in frames:
    for event in frame.events:
        print(f"step {frame.step:>2}: {event}")

# %% [markdown]
# ## A challenge: several tokens a step
#
# A decode step reads all of the weights to compute one token per sequence. Reading them for five tokens
# takes hardly longer: that is why batching pays (chapter 1). What if *one* sequence computed five tokens?
# It can't, since it doesn't know them. But it may *guess*: if the last three tokens have occurred before,
# the guess is what followed them then. The model judges all guesses in one step, and the right ones are
# kept. How long does such a step take?

# %% tags=["timing"]
def seconds_per_step(num_tokens, rounds=7):
    engine = Engine(llm.model, llm.tokenizer, num_blocks=64, block_size=16, enable_prefix_caching=False)
    times = []
    for number in range(rounds):
        engine.add_request(str(number), list(range(10, 10 + num_tokens)), SamplingParams(max_tokens=1))
        started = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - started)
    return sorted(times)[rounds // 2]

seconds_per_step(1)  # warms up
times = {num_tokens: seconds_per_step(num_tokens) for num_tokens in (1, 3, 5, 9)}
for num_tokens, seconds in times.items():
    print(f"{num_tokens} tokens of a sequence: {1000 * seconds:5.1f} ms, {seconds / times[1]:.1f} times one")
print(machine_note())

# %% [markdown]
# A step whose first guess is right yields two tokens for little more than the price of one. And the text is
# *exactly* the greedy one, whatever was guessed. **Task 7 ★★★ several tokens a step (15 points, about 20
# minutes)** has two functions:
# `propose`, which guesses, and `accept`, which says what the model's judgement is worth. They go beyond our
# engine, which would also have to give back the slots of wrong guesses (that is `truncate`, the challenge of
# chapter 4).

# %%
check("ch10", task=7)

# %% [markdown]
# ## The final exam
#
# Now all of your layers at once: pool, tables, attention, copy-on-write, prefix cache, scheduler,
# preemption, in a pool so small that somebody is preempted. Token for token as the package's, or not.

# %%
serve_with("ch03", "ch04", "ch05", "ch06", "ch07", "ch08", "ch09")

# %% [markdown]
# In a terminal, `minipaged demo --use exercises:all` does the same with more requests, and shows it. If a
# layer is missing, leave its chapter out of the list.
#
# ## A chat on your own engine
#
# And the loop is yours too. Here is a chat in one function. It streams: whatever is new in `text` is
# printed at once, and since text only ever grows, nothing is ever printed twice.

# %%
engine = own_engine(llm, num_blocks=256, block_size=16)

# %%
messages = []

def say(text, **options):
    messages.append({"role": "user", "content": text})
    params = SamplingParams(temperature=0, max_tokens=60, **options)
    engine.add_request("chat", llm.tokenizer.encode_chat(messages), params)
    print(f"> {text}")
    shown = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            print(output.outputs[0].text[shown:], end="", flush=True)
            shown = len(output.outputs[0].text)
    messages.append({"role": "assistant", "content": output.outputs[0].text})
    print(f"\n  [{len(output.prompt_token_ids)} tokens of prompt, {output.num_cached_tokens} of them cached]")

# %%
say("What is the capital of Italy? Answer in one sentence.")

# %% [markdown]
# **Predict.** The second turn sends the whole conversation again: the first question, the answer, and the new
# question. Its blocks have 16 tokens. How many tokens of the prompt will be found in the prefix cache?

# %%
say("And what is it famous for? Answer in one sentence.")

# %% [markdown]
# **Explain.** What the first turn has stored, in full blocks: prompt and answer, but for the last token,
# whose K and V were never computed, and the tail that fills no block. If you got a much smaller number,
# the text of the answer was cut into *other* tokens when it was encoded anew: a cache of tokens only finds
# equal tokens. Now it's your turn: `say("…")` in a new cell.
#
# At last, all tasks of the chapter:

# %%
check("ch10")

# %% [markdown]
# ## Recap
#
# * A step is: schedule, move blocks, run the model, publish, sample, take in. The order follows from what
#   each reads and writes, and a wrong order raises no error: only comparing tokens finds it.
# * A token is chosen by one number. If that is a function of (seed, branch, position), nobody's samples
#   depend on the batch, on preemption, or on time.
# * The temperature divides; top_k keeps a number of tokens, top_p a share of the probability, with the token
#   that crosses p.
# * A stream shows a character when its last byte is there, and holds back what may become a stop text.
# * Everything that can fail comes before the first change. If a step fails nevertheless, the memory is
#   forgotten and the tokens are kept.
#
# ## Questions
#
# 1. `random.Random(seed + branch + position)` is a function of its arguments, too. Which samples would look
#    alike, and who would notice?
# 2. The number u is the same in every batch. Yet on a GPU a sampled text may change with the batch. Why, and
#    in which moments?
# 3. vLLM holds back a fixed number of characters, that of its longest stop text minus one. What is the price,
#    and what does it gain?
# 4. Why are stop texts looked for in text, and not as sequences of tokens?
# 5. A user presses stop in the middle of an answer. Which line of this chapter frees the blocks, and what
#    stays behind in the prefix cache?
# 6. Why may `publish` come before the model runs, in this engine, without any test noticing? What would have
#    to change for it to be a disaster?
#
# Model answers are in `solutions/ch10_engine.md`.
#
# ## In vLLM this is …
#
# * `vllm/v1/engine/core.py`, `EngineCore.step`: schedule, execute, update from the output.
# * `vllm/v1/core/sched/utils.py`, `check_stop`: end of text, stop tokens, then lengths, as `append_token`.
# * `vllm/v1/sample/sampler.py`, class `Sampler`, and `vllm/v1/sample/ops/topk_topp_sampler.py`. A request
#   with a seed has a `torch.Generator` of its own there.
# * `vllm/v1/engine/detokenizer.py`: `IncrementalDetokenizer` and `check_stop_strings`, in the process that
#   talks to users and not in the core. A stop text is therefore found a moment late, and the core is told to
#   abort the request.
# * `vllm/v1/spec_decode/ngram_proposer.py`, class `NgramProposer`, is `propose`; `accept` is the greedy case
#   of `vllm/v1/sample/rejection_sampler.py`.
#
# ## References
#
# * Holtzman, Buys, Du, Forbes, Choi: *The Curious Case of Neural Text Degeneration*, ICLR 2020,
#   [arXiv:1904.09751](https://arxiv.org/abs/1904.09751). Top-p (nucleus) sampling.
# * Fan, Lewis, Dauphin: *Hierarchical Neural Story Generation*, ACL 2018,
#   [arXiv:1805.04833](https://arxiv.org/abs/1805.04833). Top-k sampling.
# * Leviathan, Kalman, Matias: *Fast Inference from Transformers via Speculative Decoding*, ICML 2023,
#   [arXiv:2211.17192](https://arxiv.org/abs/2211.17192).
# * Salmon, Moraes, Dror, Shaw: *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011. Random numbers as
#   functions of a counter.
#
# Next: chapter 11 writes the two kernels that a GPU runs in this loop.
