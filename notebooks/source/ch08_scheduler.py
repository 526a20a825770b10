# %% [markdown]
# # Chapter 8: Continuous batching
#
# The chapters so far asked where K and V lie. This one asks who computes next. Requests come when they
# like and end when the model likes; in between stands a **scheduler** that decides, before every single
# step, which of them compute how many tokens in it. It is a few dozen lines of plain Python, and it
# decides how fast an engine feels.
#
# **The promise: the scheduler you write here runs in the real engine**, in this notebook's last cells.
#
# After this chapter you will be able to
#
# 1. say why batches that start and end together starve the hardware, and by how much;
# 2. predict throughput, time to first token and time per token from a formula with two numbers, which you
#    measure;
# 3. write a scheduler that shares out a budget of tokens, cuts long prompts into chunks, lets nobody
#    overtake, and lets nobody starve.
#
# *Time: about 55 minutes with the ★ tasks, and 40 more for the ★★ tasks. You need chapter 0; no exercises
# of other chapters. First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import random
import time
from statistics import median
from types import SimpleNamespace

import numpy as np

from minipaged import LLM, Engine, Parts, SamplingParams, Scheduler
from minipaged.course import check, machine_note, serve_with
from minipaged.course.chapters.ch08_scheduler.dry_engine import DryEngine
from minipaged.course.chapters.ch08_scheduler.figures import (
    assign_seats,
    draw_curves,
    draw_timelines,
    draw_token_times,
)
from minipaged.course.chapters.ch08_scheduler.replay import Served, serve_trace
from minipaged.course.engine_map import draw_engine_map
from minipaged.loading.hub import is_fetched
from minipaged.pictures.draw import show
from minipaged.simulation.traces import TraceRow, synthetic

# %%
show(draw_engine_map("scheduler"))

# %% [markdown]
# ## The problem, in numbers
#
# What does a step cost? The engine reads all weights, whether it computes one token or a hundred, and
# then it computes. So let us try a formula with two numbers: **a step of T tokens takes a + b · T
# seconds**. We measure steps of several sizes on the real model (the tiny one, if the real one has not
# been fetched), and lay a line through them.
#
# **Predict.** A step that gives 16 sequences a token each, beside one that gives one sequence its token:
# does it take 16 times as long?

# %%
model = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
llm = LLM(model, num_blocks=1, device="cpu", dtype="float32")  # only for its model
text = llm.tokenizer.encode("The quick brown fox jumps over the lazy dog, again and again. " * 20)

def new_engine(**options):
    roomy = {"num_blocks": 128, "block_size": 16, "enable_prefix_caching": False} | options
    return Engine(llm.model, llm.tokenizer, **roomy)

def go_on_for(num_tokens):
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)

# %% tags=["timing"]
def step_times(num_seqs, prompt_len):
    engine = new_engine()
    for number in range(num_seqs):
        engine.add_request(str(number), text[:prompt_len], go_on_for(4))
    while engine.has_unfinished_requests():
        start = time.perf_counter()
        engine.step()
        yield engine.last_step.num_tokens, time.perf_counter() - start

best = {}
for num_seqs, prompt_len in ((1, 8), (1, 8), (4, 8), (16, 4), (1, 128)):  # the first to warm up
    for tokens, seconds in step_times(num_seqs, prompt_len):
        best[tokens] = min(seconds, best.get(tokens, seconds))
b, a = np.polyfit(list(best), list(best.values()), 1)
print(machine_note(), "-", model)
for tokens, seconds in sorted(best.items()):
    print(f"T = {tokens:>3}: {1e3 * seconds:7.1f} ms, the line says {1e3 * (a + b * tokens):7.1f} ms")
print(f"a = {1e3 * a:.1f} ms a step, b = {1e3 * b:.2f} ms a token, so a / b = {a / b:.0f} tokens")

# %% [markdown]
# **Explain.** Far less than 16 times. The last number says it best: a / b is how many tokens can be
# computed in the time that a step costs anyway. A step with fewer tokens than that pays mostly for having
# been made. (The line is a rough one. It leaves out that attention takes longer over a longer context,
# and processors do small products less well than large ones.)
#
# On a GPU the ratio is larger still, since it computes so much faster than it reads. On paper, for Llama
# 3 8B in bfloat16 on an H100 (NVIDIA's data sheet for the SXM version: 3.35 TB/s, 989 TFLOP/s dense):

# %%
num_weights = 8.03e9
read_weights = 2 * num_weights / 3.35e12
compute_token = 2 * num_weights / 989e12
print(f"reading all weights:  {1e3 * read_weights:.1f} ms a step")
print(f"computing one token:  {1e3 * compute_token:.3f} ms at the peak, {2e3 * compute_token:.3f} at half")
print(f"a / b: {read_weights / compute_token:.0f} tokens, or {read_weights / compute_token / 2:.0f}")
kv_bytes = 2 * 32 * 8 * 128 * 2 * 32 * 1_200  # K and V, layers, KV heads, head dim, bytes; 32 x 1,200 tokens
print(f"left out: K and V of 32 sequences of 1,200 tokens, {1e3 * kv_bytes / 3.35e12:.1f} ms a step")

# %% [markdown]
# Wherever this chapter replays hundreds of requests, it uses round numbers of that size, **a = 5 ms and b
# = 0.03 ms**, so that everybody sees the same results. It is a model of time, not a measurement; put your
# own numbers in and run it again. What it leaves out is not nothing, as the last line shows: reading K
# and V.

# %%
def step_seconds(num_tokens, a_ms=5, b_ms=0.03):
    return (a_ms + b_ms * num_tokens) / 1000

for num_seqs in (1, 8, 32):
    seconds = step_seconds(num_seqs)
    speed = num_seqs / seconds
    print(f"{num_seqs:>2} sequences: a step of {1e3 * seconds:.2f} ms, {speed:6,.0f} tokens a second")

# %% [markdown]
# So the way to serve fast is to have many sequences in every step. The step with 32 makes 27 times as
# many tokens a second as the step with one, and each of the 32 users waits hardly longer for the next
# token. The question is how to keep the seats full.
#
# ## Batches that begin and end together
#
# Eight requests are there, with answers of these lengths, and the engine has 4 seats (`max_num_seqs=4`).
# The old way: fill the seats, run until *all* of them are done, take the next four. Nobody knows
# beforehand who will be long.
#
# **Predict.** How many steps do the eight take? And how many if a seat is given to the next request as
# soon as it is free? A request needs a step for each of its tokens (the first comes with the prefill).

# %%
output_lens = [3, 12, 5, 4, 9, 2, 6, 3]

class StaticScheduler(Scheduler):
    """Admits only when nobody runs any more."""

    def _admit_waiting(self, step, budget):
        if not self.running:
            super()._admit_waiting(step, budget)

# %% [markdown]
# We run both on the engine, and write down who computed what in which step, and when it was done.

# %%
def run(scheduler):
    engine = new_engine(max_num_seqs=4, parts=Parts(scheduler=scheduler))
    for name, output_len in zip("ABCDEFGH", output_lens, strict=True):
        engine.add_request(name, text[:8], go_on_for(output_len))
    steps, clock, start = [], [], time.perf_counter()
    while engine.has_unfinished_requests():
        engine.step()
        steps.append({work.request.request_id: len(work.slots) for work in engine.last_step.work})
        clock.append(time.perf_counter() - start)
    return steps, clock

runs = {"static": run(StaticScheduler), "continuous": run(Scheduler)}
print({name: f"{len(steps)} steps" for name, (steps, _) in runs.items()})

# %%
show(draw_timelines({name: steps for name, (steps, _) in runs.items()}, num_seats=4))

# %% [markdown]
# **Explain.** Static: 12 steps for the first batch, since B is the longest, and 9 for the second, **21**
# in all. Continuous: **12**. From step 3 on some of the static seats stay empty, because their request
# has ended and B goes on. And E to H wait for B, with whom they have nothing to do. The hatched area is
# weights read for nobody. (The dark part of a bar is the step that computes the prompt.)
#
# The fix is to decide anew before *every* step. It was Orca (Yu et al., 2022) that did so first for
# language models, and called it iteration-level scheduling; today everybody says **continuous batching**.
# It needs two things that older engines had not: a model that takes a batch in which one sequence is at
# its prompt and another one at its hundredth token (chapter 5 has it), and memory that can be given and
# taken at any time (chapters 3 and 4).
#
# In seconds, on this machine (the better of two more runs each):

# %% tags=["timing"]
print(machine_note(), "-", model)
for name, scheduler in (("static", StaticScheduler), ("continuous", Scheduler)):
    steps, clock = min((run(scheduler) for _ in range(2)), key=lambda result: result[1][-1])
    firsts = [clock[first] for _, _, first, _ in assign_seats(steps)]
    print(f"{name:<11}{sum(output_lens) / clock[-1]:6.1f} tokens a second; "
          f"first token after {np.mean(firsts):.2f} s on average, {max(firsts):.2f} s at most")

# %% [markdown]
# In steps the gain is 21 / 12, or 1.75. In seconds, on a machine that does nothing else meanwhile, expect
# a little less, because fuller steps take longer: that is b. On a GPU, where a / b is larger, more of it
# remains.
#
# Now you, on paper first. In `exercises/ch08_scheduler.py`, **task 1 ★ two timetables (10 points, about
# 10 minutes)**: both plans as functions of the lengths alone. The package's own agree with what the
# engine just did:

# %%
from minipaged.course.chapters.ch08_scheduler.ideas import continuous_timeline, static_timeline

for name, timeline in (("static", static_timeline), ("continuous", continuous_timeline)):
    ran = [(first, end) for _, _, first, end in sorted(assign_seats(runs[name][0]))]
    assert timeline(output_lens, 4) == ran
    print(f"{name:<11}{ran}")

# %%
check("ch08", task=1)

# %% [markdown]
# ## What a user feels
#
# Three numbers describe how an engine serves:
#
# * **throughput**: output tokens per second, of all users together. What the owner pays for.
# * **time to first token**: from the moment a request arrives until its first token; waiting and prefill.
# * **time per token**: the time between two tokens of one answer. People read about 240 words a minute
#   (Brysbaert 2019), which is a word in 250 ms.
#
# They pull in different directions, and a single mean hides the worst. So now a service: 150 requests
# with lengths fitted to the published figures of Azure's chat service (the trace is generated), at
# several rates of arrival, on the model of time from above, with 32 seats. The scheduler and the memory
# are the real ones; only the model is missing, which decides nothing here. `DryEngine` does that.
#
# **Predict.** At 3 requests a second both ways keep up. How long does the median request wait for its
# first token, in a static batch and in a continuous one? (A mean prompt takes 1,155 · 0.03 = 35 ms to
# compute; a mean answer has 211 tokens.)

# %%
def requests_at(rate):
    return [row._replace(arrival_s=row.arrival_s * 5.53 / rate) for row in synthetic(150, seed=0)]

def replay(scheduler, rate, budget):
    return serve_trace(DryEngine(scheduler, 30_720, 16, budget, 32), requests_at(rate), step_seconds)

rates = (3, 6, 9, 12)
static = [replay(StaticScheduler, rate, budget=10**6) for rate in rates]  # a batch's prompts all at once
continuous = [replay(Scheduler, rate, budget=2048) for rate in rates]
for name, served in (("static", static[0]), ("continuous", continuous[0])):
    print(f"{name}: first token after {median(served.first_token()):.2f} s (median) at 3 requests a second")

# %%
curves = {
    title: {"static": [number(one) for one in static], "continuous": [number(one) for one in continuous]}
    for title, number in (
        ("time to first token, median, in s", lambda served: median(served.first_token())),
        ("output tokens per second", lambda served: served.throughput()),
    )
}
show(draw_curves(curves, rates, "requests per second", log=["time to first token, median, in s"]))

# %% [markdown]
# **Explain.** Forty times as long and more, and not because the machine is too slow: who comes while a
# batch runs must wait for its longest answer, whatever is free. As the rate grows, the static engine
# stops keeping up first: its curve of tokens per second becomes flat, and the queue grows as long as
# requests come. The continuous one goes on. (This even flatters the static one. A real one pads all
# prompts of a batch to the longest, and computes padding for those who have ended.)
#
# Does static batching have nothing for it? Look at the times between two tokens.

# %%
def worst(values, share=0.99):
    return np.quantile(values, share)

for name, served in (("static", static[1]), ("continuous", continuous[1])):
    gaps = [1e3 * gap for gap in served.gaps()]
    middle, bad = median(gaps), worst(gaps)
    print(f"{name:<11}{middle:5.1f} ms between two tokens (median), {bad:5.1f} ms (99th percentile)")

# %% [markdown]
# It has: once a static batch decodes, nothing disturbs it. In the continuous one new prompts keep coming
# into the steps in which you wait for your next token, and a prompt is a thousand tokens. We come back to
# that.
#
# ## A step is a budget
#
# Here is the whole idea in a few lines. Every request has tokens *to do*: all of its prompt at first,
# then one at a time. There is no "prefill phase" and no "decode phase". A step has room for `budget`
# tokens and `max_num_seqs` sequences; those who run get theirs first, in their order, and then whoever
# waits at the head of the queue.

# %%
def small_step(running, waiting, budget, max_num_seqs):
    while waiting and len(running) < max_num_seqs and sum(one.to_do for one in running) < budget:
        running.append(waiting.pop(0))
    tokens = {}
    for request in running:
        num_tokens = min(request.to_do, budget - sum(tokens.values()))
        if num_tokens > 0:
            tokens[request.name] = num_tokens
    return tokens

# %% [markdown]
# After the step, a request with nothing left to do gets its next token, which is the next thing to do. Is
# it the package's scheduler? With plenty of memory it should be, step by step, in a hundred random
# histories:

# %%
def small_take_in(running, tokens):
    for request in list(running):
        request.to_do -= tokens.get(request.name, 0)
        if request.to_do == 0:
            request.to_do, request.left = 1, request.left - 1
            if request.left == 0:
                running.remove(request)

# %%
random.seed(0)
for _ in range(100):
    budget, seats = random.randint(1, 40), random.randint(1, 5)
    package, running, waiting = DryEngine(Scheduler, 500, 4, budget, seats), [], []
    for number in range(60):
        if number < 12 and random.random() < 0.7:
            prompt_len, max_tokens = random.randint(1, 50), random.randint(1, 8)
            package.add(str(number), prompt_len, max_tokens)
            waiting.append(SimpleNamespace(name=str(number), to_do=prompt_len, left=max_tokens))
        tokens = small_step(running, waiting, budget, seats)
        small_take_in(running, tokens)
        assert tokens == package.step()["tokens"]
print("the same tokens in 6,000 steps")

# %% [markdown]
# What it lacks is memory, and that is where the rest of the package's code goes. **Task 3 ★ the queue (10
# points, about 5 minutes)** keeps requests in order of (priority, arrival), and **task 4 ★★ running
# first, within the budget (15 points, about 10 minutes)** is the loop over those who run. (Task 2 comes
# next.) The file's first lines say what is given: the memory, and the requests.

# %%
check("ch08", task=3)

# %%
check("ch08", task=4)

# %% [markdown]
# ## Long prompts, in chunks
#
# Four users read their answers, a token every 5 ms. At 50 ms a fifth one comes with a prompt of 4,000
# tokens. **Predict.** With a budget that takes the whole prompt in one step: how long do the four wait
# for their next token? And with 512 tokens a step, of which the four take 4: in how many steps is the
# prompt computed, and how long does each of them take?

# %%
rows = [TraceRow(0.0, 16, 80)] * 4 + [TraceRow(0.05, 4000, 8)]
names = ["user 1", "user 2", "user 3", "user 4", "long prompt"]
moments = {}
for budget in (8192, 512, 128):
    served = serve_trace(DryEngine(Scheduler, 1000, 16, budget, 32), rows, step_seconds)
    gap, first = 1e3 * max(served.gaps()), 1e3 * served.first_token()[-1]
    print(f"budget {budget:>4}: the others wait up to {gap:5.1f} ms, the long prompt {first:.0f} ms")
    title = f"at most {budget:,} tokens a step"
    moments[title] = dict(zip(names, [[1e3 * t for t in times] for times in served.token_times], strict=True))

# %%
show(draw_token_times(moments, end_ms=400))

# %% [markdown]
# **Explain.** In one step: 5 + 0.03 · 4,004 = **125 ms**, in which nobody gets anything; on a screen, the
# text stops and jumps. With 512 tokens a step the prompt gets 508 of them, so it takes **8 steps of 20
# ms**. The four go on, somewhat slower, and the long prompt's first token comes later, since its eight
# steps cost eight times a instead of once. With 128 tokens the four hardly notice, and the long prompt
# pays for it.
#
# `max_num_batched_tokens` is the knob between the two. How to cut is arithmetic: **task 2 ★ a prompt in
# chunks (5 points, about 5 minutes)**.

# %%
check("ch08", task=2)

# %% [markdown]
# On the whole service, at 6 requests a second, the same trade in percentiles:

# %%
budgets = (128, 512, 2048, 8192)
chunked = [continuous[1] if budget == 2048 else replay(Scheduler, 6, budget) for budget in budgets]
curves = {}
for title, values in (("between tokens", Served.gaps), ("to first token", Served.first_token)):
    curves[f"time {title}, in ms"] = {
        name: [1e3 * worst(values(one), share) for one in chunked]
        for name, share in (("the longest", 1.0), ("99th percentile", 0.99), ("median", 0.5))
    }
show(draw_curves(curves, [str(budget) for budget in budgets], "tokens a step"))

# %%
for budget, served in zip(budgets, chunked, strict=True):
    speed, longest = served.throughput(), 1e3 * max(served.gaps())
    print(f"{budget:>5} tokens a step: {speed:,.0f} tokens a second, longest gap {longest:.0f} ms")

# %% [markdown]
# The larger the budget, the longer the *longest* gap between two tokens that anybody sees: with 8,192 it
# is a whole prompt of many thousand tokens in one step. (The 99th percentile even falls a little in the
# end: there are fewer such steps, but they are worse.) The smaller the budget, the later come the first
# tokens, since every chunk pays a once more. Throughput hardly changes, as long as the machine keeps up.
# The idea is from Sarathi (Agrawal et al.): prompts in chunks, and every chunk's step carries everybody's
# next token along.
#
# The real engine does the same, at small scale: two users, and a prompt of 192 tokens, whole or in chunks
# of 32.

# %% tags=["timing"]
def longest_gap(budget):
    engine = new_engine(max_num_batched_tokens=budget)
    for name in "ab":
        engine.add_request(name, text[:8], go_on_for(12))
    engine.step()
    engine.add_request("long", text[:192], go_on_for(1))
    gaps = []
    while engine.has_unfinished_requests():
        start = time.perf_counter()
        engine.step()
        gaps.append(time.perf_counter() - start)
    return max(gaps), min(gaps)

print(machine_note(), "-", model)
for budget in (256, 34):
    slow, quick = longest_gap(budget)
    print(f"budget {budget:>3}: a step of {1e3 * slow:6.0f} ms at most, {1e3 * quick:5.0f} ms at least")

# %% [markdown]
# The longest step shrinks to a fraction, and there are six of them instead of one.
#
# ## At the door
#
# Memory decides who may come in. A request is admitted when there are blocks for *all* of the tokens that
# it has, not only for its first chunk: or a long prompt would come in, find no block half-way, and what
# it has computed by then would be for nothing. What its answer will need nobody knows, and nobody
# reserves it.
#
# And if the head of the queue does not fit, but the one behind it would? A pool of 8 blocks; small
# requests come one a step, each with room for it most of the time. In step 5 comes a big one, which needs
# 5 blocks at once. **Predict.** How many steps does the big one wait if nobody may overtake? And how many
# if the smallest goes first?

# %%
class SmallestFirst(Scheduler):
    def _admit_waiting(self, step, budget):
        self.waiting = sorted(self.waiting, key=self.memory.blocks_to_admit)
        super()._admit_waiting(step, budget)

def steps_waited(scheduler):
    engine, came, began = DryEngine(scheduler, num_blocks=8, block_size=4), {}, {}
    for number in range(100):
        if number < 60:
            name = "big" if number == 5 else f"small {number}"
            engine.add(name, prompt_len=20 if name == "big" else 4, max_tokens=4)
            came[name] = number
        for name in engine.step()["tokens"]:
            began.setdefault(name, number)
    return {name: began[name] - came[name] for name in came}

# %%
for title, scheduler in (("first come, first served", Scheduler), ("smallest first", SmallestFirst)):
    waited = steps_waited(scheduler)
    big, small = waited.pop("big"), np.mean(list(waited.values()))
    print(f"{title:<25} big waits {big:>2} steps, the small ones {small:.1f} on average")

# %% [markdown]
# **Explain.** Smallest first is better for 59 of 60, and the big one starves: it gets in when the small
# ones stop coming, and not before. Without overtaking the small ones wait a little, because the blocks
# that become free are kept for the head, and stand empty until there are enough. This is called
# **head-of-line blocking**, and it is the price of a promise: whoever waits will be served, after a time
# that depends on those before and not on those behind. The engine keeps the promise.
#
# **Task 5 ★★ admission (20 points, about 15 minutes).**

# %%
check("ch08", task=5)

# %% [markdown]
# ## When it gets tight
#
# Nothing is reserved, so a running request may need a block when none is free. Then somebody gives way:
# the last in the order of (priority, arrival), who has waited the least. It gives back all of its blocks,
# and goes to the queue, where it is older than others and so before them. (What is lost, and whether to
# recompute or to swap, is chapter 9.)

# %%
engine = DryEngine(Scheduler, num_blocks=3, block_size=4)
engine.add("a", prompt_len=4, max_tokens=4)
engine.add("b", prompt_len=8, max_tokens=2)
for number in range(5):
    step = engine.step()
    notes = "".join(f"   {name} gives way" for name in step["preempted"])
    print(f"step {number}: {step['tokens']}, free blocks after it: {engine.state()['free blocks']}{notes}")

# %% [markdown]
# In step 1 `a` needs a second block for its fifth token, and `b` has the last two. In that step nobody is
# admitted: what has become free is for those who run, or `b` would come back at once and be thrown out
# again. When `a` has ended, `b` computes its 8 tokens again, and with them the ninth, which it had
# sampled already.
#
# **Task 6 ★★ make room (20 points, about 15 minutes).** Its last test invents histories of requests,
# compares your scheduler with a simple model after every step, and shows the shortest history that goes
# wrong.

# %%
check("ch08", task=6)

# %% [markdown]
# ## Who starves
#
# Priorities come before arrival: an interactive user before a nightly job. **Predict.** One seat, and
# each step somebody of priority 0 comes, with a question of one step. In which step is the job served
# that came first, but with priority 1?

# %%
engine = DryEngine(Scheduler, num_blocks=8, block_size=4, max_num_seqs=1)
engine.add("job", prompt_len=4, max_tokens=1, priority=1)
served = []
for number in range(50):
    engine.add(f"user {number}", prompt_len=4, max_tokens=1)
    served += engine.step()["tokens"]
print("the first three:", served[:3], "- the job is among the first 50:", "job" in served)

# %% [markdown]
# **Explain.** In none of them, and not in the next thousand. Strict priorities promise nothing to the
# lower ones. An old remedy from operating systems is **aging**: whoever waits gains in priority, so that
# after a known time they are first. **Task 7 ★★★ priorities without starvation (20 points, about 20
# minutes)** is a challenge beyond our engine.

# %%
check("ch08", task=7)

# %% [markdown]
# ## Your scheduler in the engine
#
# Three prompts, in a pool so small that somebody is preempted. Whatever the order, the chunks and the
# victims: the tokens must be those of the package's own layers in a roomy pool. That is what makes
# scheduling safe to play with.

# %%
serve_with("ch08")

# %% [markdown]
# In a terminal, `minipaged demo --use exercises:ch08` shows it at work, step by step. And all tasks
# together:

# %%
check("ch08")

# %% [markdown]
# ## Recap
#
# * A step costs a + b · T. Below a / b tokens it pays mostly for being made, so full steps are
#   throughput.
# * Static batches wait for their longest answer, twice: their own seats stay empty, and the queue stands
#   still.
# * Decide anew before every step. Prefill and decode are the same thing: tokens to do, within a budget.
# * The budget is a knob: large for time to first token, small for the time between tokens of everybody
#   else.
# * Admit when all of the tokens fit; nobody overtakes the head; the last one who came gives way.
# * First come, first served does not starve anybody. Smallest first and strict priorities do.
#
# ## Questions
#
# Model answers are in `solutions/ch08_scheduler.md`.
#
# 1. In which case does static batching need no more steps than continuous batching?
# 2. With an a / b of 150 tokens, 20 sequences decode. How large may the chunks of a prompt be if nobody's
#    step is to take more than twice as long as without it?
# 3. Among requests of one sequence each, why can there be at most one with an unfinished prompt among
#    those that run? And why is `blocks_promised` needed all the same?
# 4. The victim is the last that came. What would happen if it were the first?
# 5. A request that is alone and outgrows the pool ends with "capacity". Why not preempt it and try again
#    later?
# 6. In what ways could a user cheat this scheduler, and what would you count instead of requests?
#
# ## In vLLM this is …
#
# * `vllm/v1/core/sched/scheduler.py`, `Scheduler.schedule`: a `token_budget`, first the loop over
#   `self.running`, then, `if not preempted_reqs`, the loop over `self.waiting`. Its first comment says it
#   as we did: there is no decoding phase nor prefill phase.
# * `vllm/v1/core/sched/request_queue.py`: `FCFSRequestQueue` is a deque, `PriorityRequestQueue` a heap
#   over (priority, arrival time). A preempted request is put back to the front.
# * `Scheduler._preempt_request` is our `preempt`, always by recomputing. Under the priority policy vLLM's
#   victim may be one that has its slots in this step already; its tokens are then taken out of the step
#   again. Ours are in order, so that cannot happen.
# * `SchedulerConfig` (`vllm/config/scheduler.py`) has `max_num_batched_tokens`, `max_num_seqs`, and
#   `long_prefill_token_threshold`, which keeps one prompt from taking all of the budget.
#
# ## References
#
# * Yu, Jeong, Kim, Kim, Chun: *Orca: A Distributed Serving System for Transformer-Based Generative
#   Models*, OSDI 2022. Section 3 on scheduling by iteration.
# * Agrawal, Kedia, Panwar, Mohan, Kwatra, Gulavani, Tumanov, Ramjee: *Taming Throughput-Latency Tradeoff
#   in LLM Inference with Sarathi-Serve*, OSDI 2024, [arXiv:2403.02310](https://arxiv.org/abs/2403.02310).
#   Chunked prefills.
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), section 4.5.
# * Patel et al., *Splitwise*, ISCA 2024, with which Azure published its traces.
# * Brysbaert, *How many words do we read per minute?*, Journal of Memory and Language 109, 2019: 238
#   words for non-fiction.
# * Silberschatz, Galvin, Gagne: *Operating System Concepts*, the chapter on CPU scheduling, on starvation
#   and aging.
#
# Next: chapter 9 looks at the one who gave way.
