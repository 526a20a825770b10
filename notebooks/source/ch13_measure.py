# %% [markdown]
# # Chapter 13: Measuring
#
# The engine is complete. Is it fast? Every paper, every product page and every chapter of this course answers
# such questions with numbers, and most of these numbers are true. Whether they say what they seem to say is
# another matter. This chapter is about the arithmetic between a clock and a claim: what to expect before one
# measures, what to report afterwards, how sure to be of it, and how to find what is wrong with somebody
# else's numbers, or with one's own. On the way you make the paper's figures again, and explain where they
# come out differently.
#
# **The promise: your arithmetic judges the engine.** What you write here is what the simulator prices its
# steps with, and what `minipaged bench` reports its latencies with; at the end, yours does it.
#
# After this chapter you will be able to
#
# 1. predict what a step takes on a machine that you don't have, and where decoding is bound by memory;
# 2. report latencies and ratios that an honest opponent would accept;
# 3. read a figure of a paper, make it again, and say why yours differs.
#
# *Time: about 60 minutes with the tasks marked ★ and ★★. Chapters 1, 2 and 8 help. First hide the outputs:
# Edit → Clear Outputs of All Cells.*

# %%
import json
import random
from functools import partial
from itertools import pairwise

from minipaged import LLM, Engine, SamplingParams, measure
from minipaged.cli.bench_scaling import scheduling_seconds, slope
from minipaged.course import check, machine_note
from minipaged.course.chapters.ch13_measure.figures import draw_batches, load_paper_figure
from minipaged.course.chapters.ch13_measure.made_up_runs import made_up_runs
from minipaged.course.engine_map import draw_engine_map
from minipaged.course.tasks import find_root, import_path
from minipaged.loading.hub import is_fetched
from minipaged.pictures.draw import show
from minipaged.scheduler import Scheduler
from minipaged.simulation.cost_model import A100_40GB, H100, LLAMA3_8B, OPT_13B, CostModel, Device, ModelShape
from minipaged.simulation.paper_drawings import draw_paper_figure
from minipaged.simulation.paper_systems import NUM_SLOTS, SYSTEMS, Bench, lengths_of
from minipaged.simulation.simulator import SimulatedEngine, paged_memory, poisson, serve
from minipaged.simulation.traces import TraceRow

show(draw_engine_map())

# %% [markdown]
# No box is lit: this chapter builds no layer, it looks at all of them from outside.
#
# ## The problem, in numbers
#
# A service summarises documents: 20 of them, 600 tokens each, and each summary has 30 tokens. The engine is
# ours, its model OPT-13B, its machine an A100, which is simulated: the scheduler and the memory are the real
# ones, the time of a step is a formula. All requests are there at once, and the engine serves them twice.
#
# **Predict.** How many tokens a second does it make?

# %%
engine = SimulatedEngine(Bench(enable_prefix_caching=True).scheduler("vLLM"), Bench().cost.step_seconds)
documents = [TraceRow(0.0, prompt_len=600, output_len=30)] * 20
took = []
for _ in range(2):
    began = engine.now
    serve(engine, documents, lambda row, number: list(range(1000 * number, 1000 * number + row.prompt_len)))
    took.append(engine.now - began)
print(f"output tokens, first time:    {20 * 30 / took[0]:7,.0f} tokens/s")
print(f"all tokens, first time:       {20 * 630 / took[0]:7,.0f} tokens/s")
print(f"all tokens, second time:      {20 * 630 / took[1]:7,.0f} tokens/s")

# %% [markdown]
# **Explain.** One engine, one workload, three benchmarks, and the last is **49 times** the first. None of
# them lies. The second counts the prompts, which are tokens too and are processed. The third has been "warmed
# up", as everybody recommends, and so its prompts lie in the prefix cache. A benchmark says what it counted,
# or it says nothing.
#
# ## What a benchmark measures
#
# | word | what it is | in whose interest |
# |---|---|---|
# | throughput | output tokens (or requests) per second, of all together | whoever pays for the GPU |
# | time to first token (TTFT) | from arrival to first token, waiting included | a user who waits |
# | inter-token latency (ITL) | the gap between two tokens of one answer | a user who reads along |
# | normalised latency | (end − arrival) / output tokens, a mean over requests (paper, section 6.1) | both |
# | goodput | requests per second that were served within agreed limits | whoever has promised something |
#
# All of them come from the same raw data: when a request arrived, and when each of its tokens came.

# %%
requests = [(0.0, [0.8, 0.9, 1.0, 1.6], "stop"), (0.5, [1.0], "length"), (0.6, [2.0, 2.1], "abort"),
            (0.7, [], "abort")]

def small_latencies(requests):
    served = [(arrival, times) for arrival, times, _ in requests if times]
    ended = [(arrival, times) for arrival, times, reason in requests if reason in ("stop", "length")]
    first = [times[0] - arrival for arrival, times in served]
    gaps = [b - a for _, times in served for a, b in pairwise(times)]
    each = [(times[-1] - arrival) / len(times) for arrival, times in ended]
    return first, gaps, each, len(requests) - len(served)

assert small_latencies(requests) == measure.latencies(requests)
print([round(seconds, 3) for seconds in measure.latencies(requests).first_token])

# %% [markdown]
# The questions are not in the arithmetic but in *which requests count*. The third was aborted: its first
# token came all the same, so it has a time to first token; but its answer has no end, so no normalised
# latency. The second has one token, and so no gap; a gap of 0 would flatter. And the last one never got a
# token. It waited in vain, no list can hold it, and to leave it out without a word would make an overloaded
# server look *better*, the more users give up. So their number is part of the report.
#
# Then the lists become numbers. A mean hides what is rare, and what is rare is what users remember; so one
# gives the median and the 99th percentile: the smallest of the values that at least 99 % of them do not
# exceed.
#
# **Predict.** A hundred waiting times, of which 98 are 0.1 s, one is 3 s and one is 9 s. Mean, median, 99th
# percentile, maximum?

# %%
waits = [0.1] * 98 + [3.0, 9.0]
half, most = measure.percentile(waits, 50), measure.percentile(waits, 99)
print(f"mean {sum(waits) / 100:.2f}, median {half}, 99 % {most}, maximum {max(waits)}")
halves = [measure.percentile(waits[:50], 99), measure.percentile(waits[50:], 99)]
print(f"the 99th percentiles of the first and the second half: {halves}, and their mean {sum(halves) / 2}")

# %% [markdown]
# **Explain.** Mean **0.22** s, which nobody waited; median **0.1**; 99th percentile **3** s. And percentiles
# can't be averaged: from those of two halves, two servers or two minutes nothing follows for the whole. Keep
# the values, or counts of them.
#
# Open `exercises/ch13_measure.py`. **Task 1 ★ what raw times say (15 points, about 15 minutes).**

# %%
check("ch13", task=1)

# %% [markdown]
# ## Open and closed
#
# Who sends the requests? In a **closed** loop, N users each wait for their answer and then send the next
# request. In an **open** loop requests come when they come, as from a large number of users who don't know
# of each other. The simplest open loop is a Poisson process: the paper's experiments use it. Here are 24
# users in a closed loop, and then the same requests at the same *rate* in an open one.
#
# **Predict.** The median time to first token is nearly the same. What about the 99th percentile?

# %%
lengths = lengths_of("ShareGPT", 300)  # made up, with the paper's means: 161 tokens in, 338 out

def closed_loop(num_users):
    engine = SimulatedEngine(Bench().scheduler("vLLM"), Bench().cost.step_seconds)
    arrivals, times, to_send = [], [], iter(lengths)
    while True:
        while len(engine.requests) < num_users and (both := next(to_send, None)):
            params = SamplingParams(max_tokens=both[1])
            engine.add_request(str(len(times)), [-1 - len(times)] * both[0], params)
            arrivals.append(engine.now)
            times.append([])
        if not engine.has_unfinished_requests():
            return arrivals, times
        for request in engine.step():
            times[int(request.request_id)].append(engine.now)

# %%
arrivals, times = closed_loop(24)
closed = measure.latencies((arrival, each, "length") for arrival, each in zip(arrivals, times, strict=True))
rate = len(lengths) / max(each[-1] for each in times)
opened = Bench().run("vLLM", poisson(lengths, rate)).served
for name, first_token in (("closed, 24 users", closed.first_token), ("open", opened.first_token())):
    half, most = measure.percentile(first_token, 50), measure.percentile(first_token, 99)
    print(f"{name:<17} {rate:.2f} requests/s, first token: median {half:.2f} s, 99 % {most:.2f} s")

# %% [markdown]
# **Explain.** More than **six** times as long. In a closed loop a slow server gets fewer requests, just when
# it is slow: the benchmark waits politely, and the queue that would form outside is never measured. Neither
# is wrong. A batch job is closed, a public service is open (Schroeder and others, 2006). But a latency from a
# closed loop says nothing about a service, and "requests per second" without either word says little at all.
#
# ## What a step should take
#
# A measurement without an expectation can't be wrong, and so can't teach. So we write down what a step should
# take *before* anything runs. Two resources matter. A machine reads so many bytes a second, and it does so
# many operations a second; while it does one it can do the other. So a part of a step takes the longer of
#
# $$\frac{\text{bytes}}{\text{bytes per second}} \qquad\text{and}\qquad
# \frac{\text{FLOPs}}{\text{FLOPs per second}}$$
#
# This is the roofline of chapter 12, for a whole step. The matrices (P numbers of s bytes) are read once,
# P · s bytes, and each of T tokens takes 2 · P FLOPs with them. Of K and V, every token that somebody looks
# back at is read. And every kernel must be launched. (No kernel reaches the numbers of a data sheet: the
# simulator takes 80 % of both, `share_of_peak`, and so does the cell below.)
#
# **Predict.** Of OPT-13B on an A100, one sequence decodes, or 32 do: 32 times the work. By what factor does
# the step take longer?

# %%
def small_price(num_tokens, num_read, num_pairs, device, model):
    """Seconds of a step."""
    bytes_per_s = device.share_of_peak * device.memory_bytes_per_s
    flops_per_s = device.share_of_peak * device.flops_per_s
    P, H = model.num_parameters, model.num_layers * model.num_heads * model.head_dim
    matrices = max(P * model.itemsize / bytes_per_s, 2 * P * num_tokens / flops_per_s)
    attention = max(num_read * model.kv_bytes / bytes_per_s, 4 * H * num_pairs / flops_per_s)
    return matrices + attention + model.num_layers * model.kernels_per_layer * device.kernel_s

for device, model in ((A100_40GB, OPT_13B), (H100, LLAMA3_8B)):
    for num_tokens, num_read, num_pairs in ((1, 500, 500), (32, 16_000, 16_000), (512, 512, 512 * 513 // 2)):
        ours = CostModel(device, model).price(num_tokens, num_pairs, num_read, num_blocks=0).seconds
        price = small_price(num_tokens, num_read, num_pairs, device, model)
        assert abs(price - ours) < 1e-12
        print(f"{model.name} on {device.name}: {num_tokens:>3} tokens, {1000 * price:5.1f} ms")

# %% [markdown]
# **Explain.** By less than a factor of **1.5**: the matrices are read once for all, and 31 more sequences
# cost no more than the reading of their K and V. (The third step reads a prompt of 512 tokens, which is 512
# times the work of the first.) When does a step begin to wait for arithmetic? Multiplying grows with the
# tokens, reading the matrices does not.
#
# **Predict.** From how many tokens on does multiplying take longer? And how many sequences can a step have?

# %%
for device in (A100_40GB, H100):
    crossing = measure.break_even_tokens(2, device.memory_bytes_per_s, device.flops_per_s)
    print(f"{device.name}: from {crossing} tokens in a step on, multiplying takes longer than reading (fp16)")
show(draw_batches(CostModel(A100_40GB, OPT_13B), 500, NUM_SLOTS, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)))

# %% [markdown]
# **Explain.** On the A100 from **201** on: there the first two lines cross. But look at the dashed line. A
# sequence of 500 tokens holds 500 slots, of the 15,700 that the paper's A100 has beside the weights (Table 1
# there). So the memory ends at **31** sequences, long before the crossing.
# So on this machine such sequences never wait for arithmetic when they decode: they wait for memory, in both
# senses. First for its bytes per second, and then for room, since with more room every step would carry more
# tokens for little more time. That is why a paper about the *management* of memory is a paper about *speed*.
#
# **Task 2 ★★ what a step should take (20 points, about 15 minutes).**

# %%
check("ch13", task=2)

# %% [markdown]
# ## Predict your own machine
#
# The same for the machine you sit at. `Device.measure` takes its constants: a matrix times a vector that no
# cache holds gives the bytes per second, a product of large matrices the FLOPs per second, a small operator
# the price of a launch. From them we predict a decode step of a real model, and then we run it.
#
# **Predict.** Will the engine be faster or slower than the formula says, and by how much?

# %%
name = "smollm2-135m" if is_fetched("smollm2-135m") else "tiny"
llm = LLM(name, num_blocks=256, device="cpu", dtype="float32", attention_backend="torch")
shape = ModelShape.of(name, llm.model.config, llm.model.dtype)
heads = (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim)

def predicted(batch, context_len, here):
    """Seconds of a step in which `batch` sequences decode."""
    read = batch * context_len
    parts = [measure.linear_work(batch, shape.num_parameters, shape.itemsize),
             measure.attention_work(read, read, *heads, shape.itemsize)]
    launches = shape.num_layers * shape.kernels_per_layer
    return measure.work_seconds(parts, here.memory_bytes_per_s, here.flops_per_s, launches, here.kernel_s)

# %% tags=["timing"]
def measured(batch, context_len, num_steps=6):
    """The quickest of some decode steps of the real engine."""
    engine = Engine(llm.model, llm.tokenizer, num_blocks=256, enable_prefix_caching=False,
                    attention_backend="torch")
    for number in range(batch):
        params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
        engine.add_request(str(number), [(7 * number + i) % 256 for i in range(context_len)], params)
    times = []
    for _ in range(num_steps + 1):
        before = engine.stats().step_time
        engine.step()
        times.append(engine.stats().step_time - before)
    return min(times[1:])  # the first is the prefill

here = Device.measure()
crossing = measure.break_even_tokens(4, here.memory_bytes_per_s, here.flops_per_s)
print(f"{machine_note()}, {name}: {here.memory_bytes_per_s / 1e9:.1f} GB/s,",
      f"{here.flops_per_s / 1e9:.0f} GFLOP/s, {1e6 * here.kernel_s:.1f} µs a launch;",
      f"multiplying takes longer from {crossing} tokens on")
for batch in (1, 4, 16):
    says, took = (1000 * way(batch, 64) for way in (partial(predicted, here=here), measured))
    print(f"batch {batch:>2}: predicted {says:5.1f} ms, measured {took:5.1f} ms, {took / says:.2f} times")

# %% [markdown]
# **Explain.** Slower, by a factor of two or of a few. The formula knows no Python between the operators, no
# sampling, no attention in pieces, and takes every product to run at the best rate that one large product
# reached. A real engine can be slower than such a bound and never faster, so if yours *is* faster, suspect
# the measurement first. (On a machine with a large cache the tiny model's weights are never read from memory:
# then it is.) And a factor of fifty would mean that something is wrong, which no profiler had to be asked.
# What carries over to other machines is the *shape*: four times the batch costs far less than four times the
# step, until multiplying takes over.
#
# ## The real scheduler, in virtual time
#
# Who runs when, and who waits for memory, does not depend on what the tokens say. So the simulator takes the
# engine's own scheduler, pool, tables and preemption, and replaces the model by a formula for time. Does it
# really do the same? The real engine and the simulated one serve the same requests in a pool so small that
# somebody must give way.

# %%
small = {"num_blocks": 24, "block_size": 4}
prompts = {str(number): list(range(10 * number, 10 * number + 9 + 3 * number)) for number in range(4)}
real = Engine(llm.model, llm.tokenizer, **small, max_num_batched_tokens=32, max_num_seqs=8,
              enable_prefix_caching=False)
simulated = SimulatedEngine(Scheduler(paged_memory(*small.values()), 32, 8), lambda step: 0.01)
steps = {}
for engine in (real, simulated):
    for number, prompt in prompts.items():
        engine.add_request(number, prompt, SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
    steps[engine] = []
    while engine.has_unfinished_requests():
        engine.step()
        steps[engine].append((engine.last_step.num_tokens, len(engine.last_step.preempted)))
assert steps[real] == steps[simulated]
print(f"{len(steps[real])} steps, {sum(gone for _, gone in steps[real])} preemptions, the same in both;",
      "tokens of the first steps:", [tokens for tokens, _ in steps[real]][:8])

# %% [markdown]
# Step for step. So hours of traffic for a large model on a GPU that one doesn't have can be replayed on a
# laptop. What is *not* real is the time of a step, and everything that a formula leaves out. Whoever shows
# numbers from a simulator has to say so, each time.
#
# ## The paper's figures, made again
#
# `minipaged bench paper --figure N` simulates an experiment of the paper (Kwon et al., SOSP 2023): the
# scheduler is the same for all systems, only the memory differs. Orca (Max), (Pow2) and (Oracle) are chapter
# 2's three reservations, under the paper's names. Nothing is fitted to the paper's results. The paper's data
# sets were conversations; known are their mean lengths, and ours are made up with these means. The pictures
# below are drawn from the files in `docs/results/`, each with its date:

# %%
results = find_root() / "docs" / "results"

def show_figure(number):
    file = results / f"paper-{number}.json"
    report = json.loads(file.read_text(encoding="utf-8"))
    print(f"{report['command']}\n{report['machine']['date'][:10]}, a simulated A100-40GB")
    show(draw_paper_figure(load_paper_figure(file)))

show_figure("2")

# %% [markdown]
# **Figure 2: where the memory goes.** Black diamonds are the paper's values: 20.4, 26.8, 38.2 and 96.3 % of
# the slots hold a token. Ours come within three points. *Why not exactly:* made-up lengths, and another
# account of the rest. What the buddy system rounds up is waste inside a reservation here, and between
# reservations in the paper; so only the share that holds tokens can be compared. With paging, at 16 tokens a
# block, what is lost is the empty part of last blocks, and the few blocks that are free but too few for the
# next in the queue.
#
# Less waste means more requests at once:

# %%
show_figure("13")

# %% [markdown]
# **Figure 13: how many are served at once.** With a full queue (blue) the three traditional ways come within
# ten per cent of the paper, and so does vLLM on ShareGPT's lengths. The other three bars of vLLM ask for an
# explanation.
#
# **Predict.** With Alpaca's short requests the paper has 132 at once for vLLM; we have about 190 with a full
# queue, and some 40 at the paper's 30 requests a second (orange). With ShareGPT's, at the paper's 2 a second,
# we have 16 where it has 30. How can that be?
#
# **Explain.** At a given rate, the number inside is this rate times the time that each one stays: Little's
# law, below. Our A100 works at 80 % of its peaks with no Python between the steps, so each request leaves
# sooner than it did in the paper's engine of 2023, and fewer are inside. With a full queue, on the other
# hand, the memory is filled to the brim, and then only lengths matter. The paper's 30 are what a full memory
# holds, so most likely its ShareGPT requests piled up at a rate that ours still keeps up with. Its 132 lie
# between our two numbers: most likely they came fast enough to pile up, but not to fill the memory.
#
# Now the figure that the paper is known for:

# %%
show_figure("12")

# %% [markdown]
# **Figure 12: latency against rate.** Each curve is flat, and then it takes off: from some rate on requests
# come faster than they go, and the queue grows as long as the experiment lasts. The rate at that knee is what
# a system **sustains**. More requests at once (Figure 13) is more tokens a step for nearly the same price
# (the picture of the batches), which is a knee further to the right.

# %%
curves = {panel.title: panel.ours for panel in load_paper_figure(results / "paper-12.json").panels}
knees = {system: measure.sustained_rate(curve, limit=0.2) for system, curve in curves["ShareGPT"].items()}
for system, knee in knees.items():
    print(f"{system:<14} sustains {knee:.2f} requests/s, vLLM {knees['vLLM'] / knee:.1f} times as many")

# %% [markdown]
# The paper prints ratios, over its three models: on ShareGPT vLLM sustains 1.7 to 2.7 times the rate of Orca
# (Oracle) and 2.7 to 8 times that of Orca (Max) (section 6.2). Ours lie within both ranges, and that is less
# than it seems. *"Sustained" is not defined* in the paper; here it is 0.2 s a token, and another limit gives
# another ratio. *Between the rates that were tried* we draw straight lines. *The experiment is short:* some
# minutes, while the paper's traces run for an hour.
#
# **Predict.** Behind vLLM's knee, at 3.5 requests a second: what becomes of the latency if the experiment
# goes on for twice and for four times as long?

# %%
many = lengths_of("ShareGPT", 600)
for num_requests in (150, 300, 600):
    served = Bench().run("vLLM", poisson(many[:num_requests], 3.5)).served
    in_time = sum(seconds <= 1 for seconds in served.first_token()) / num_requests
    print(f"{served.arrivals[-1]:4.0f} s of arrivals: {served.normalised_latency():.3f} s/token, "
          f"{served.throughput():,.0f} tokens/s, first token within a second: {in_time:.0%}")

# %% [markdown]
# **Explain.** It grows with the experiment, and has no end. Behind the knee a latency measures how long one
# has waited before looking, and nothing else: "at 3.5 requests a second it is 0.04 s" and "it is 0.36 s" are
# both true. The throughput settles, because the machine always has work. But ever fewer requests get their
# first token within a second: throughput says how busy the machine is, and *goodput* whom it still serves as
# promised. What is robust in Figure 12 is the *order* of the curves, and where they leave the floor.

# %%
show_figure("16")

# %% [markdown]
# **Figure 16: a shared prefix.** Translation with one example in front of each request (80 tokens), and with
# five (341). vLLM keeps the prefix once. The paper finds 1.67 and 3.58 times the throughput of Orca (Oracle),
# we about 1.5 and 2.5 times. *Why ours differ:* the paper gives no lengths of the sentences, so ours are
# assumed; the shorter the sentence, the more a shared prefix saves. And we compare full queues, while they
# compare sustained rates.

# %%
show_figure("18b")

# %% [markdown]
# **Figure 18b: the block size.** **Predict.** What is bad about large blocks, and what about small ones?
#
# **Explain.** Large blocks waste memory: half a block for each request. Small ones cost time: a block is
# found through one entry of a table, and how many such look-ups can be under way at once is limited. The
# paper finds 16 to 128 best for ShareGPT and 16 to 32 for Alpaca (the grey bands, section 7.2); our curves
# are lowest from 2 to 8, and rise earlier. *Why:* a real kernel gives the tokens of a block to neighbouring
# threads, and a block of 2 leaves most of them idle. The formula knows only the look-ups. And at 1.2 times
# the full queue's rate ours are near the knee, where half a block for each request matters more. So from our
# curves one must **not** conclude that a block size of 4 is good on a GPU: the simulator leaves out the very
# effect that makes it bad. To know what a model leaves out is to know which questions not to ask it.

# %%
show_figure("19")

# %% [markdown]
# **Figure 19: recompute or swap.** As in the paper, swapping small blocks is slow, because every copy has to
# be started; and one recomputation costs the same with all of them (left). The paper finds both alike from 16
# to 64 (section 7.3, the grey band), and on the left ours cross there. *Why they never quite cross in whole
# runs, on the right:* alone, recomputing has to read the weights; in a run a step reads them anyway, so it
# comes cheaper. And with large blocks both grow, since memory is wasted and more requests give way: a run
# measures everything at once. (The paper prints no number of tokens for its preemption; we take 256.)
#
# One is left, **Figure 15**, the blocks that sharing saves. Chapter 6 took it apart:

# %%
for panel in load_paper_figure(results / "paper-15.json").panels:
    for data_set, points in panel.ours.items():
        printed = panel.paper[data_set]
        pairs = [f"{n}: {points[n]:.0f} (paper {value:.0f})" for n, value in printed.items()]
        print(f"{panel.title:<8} {data_set:<9} blocks saved, %, by number: {', '.join(pairs)}")

# %% [markdown]
# Samples agree within some points. Beams share more here, since they come from a random model, in which every
# beam draws its continuations alike.
#
# ## A benchmark that flatters
#
# Enough of others' numbers. Two engines serve the same six requests, round after round, and a harness writes
# a record. In truth **both are equally fast**: the record is made up, so we know. Here is the harness's last
# step. It has a plausible reason for each line.

# %%
def speed_up(runs):
    """How many times faster ours is."""
    ours = [run for run in runs if run["engine"] == "ours" and run["round"] > 0]
    theirs = [run for run in runs if run["engine"] == "theirs"]
    tokens = [sum(run["prompt_lens"]) + sum(run["output_lens"]) for run in ours]  # all we have processed
    best = max(count / run["seconds"] for count, run in zip(tokens, ours, strict=True))  # least disturbed
    answered = [sum(run["output_lens"]) for run in theirs if all(run["output_lens"])]  # failures aside
    seconds = sum(run["seconds"] for run in theirs)
    return best / (sum(answered) / seconds)

runs = made_up_runs(8, flattering=True)
print(f"ours is {speed_up(runs):.0f} times faster!")

# %% [markdown]
# **Predict.** How many faults can you find, in these lines and in the record? The record first:

# %%
print("round   ours: seconds, cached, answers      theirs")
for number in range(9):
    line = f"{number:>5}   "
    for engine in ("ours", "theirs"):
        run = next((run for run in runs if (run["engine"], run["round"]) == (engine, number)), None)
        text = f"{run['seconds']:4.1f} {sum(run['cached']):>4} {run['output_lens']}" if run else "-"
        line += f"{text:<37}"
    print(line.rstrip())

# %% [markdown]
# **Explain.** In the *arithmetic*: the warm-up is dropped for ours and counted for theirs; our best round
# stands against their mean; our tokens include the prompts, theirs don't; their failed round loses its tokens
# but keeps its seconds. These can be repaired afterwards, since the record is there.
#
# In the *experiment*: theirs had no warm-up at all; ours always ran first, while the machine was cool; ours
# finds its prompts in the cache of the round before; from round 3 on ours stops at the end of the text, and
# theirs was told to go on; a request of theirs failed; and in round 8 our run is missing. (It was an outlier,
# says the author.) No arithmetic repairs these.
#
# What *can* be compared? Rounds in which both did the **same work**: every request answered, as many tokens,
# as much from the cache. Then it doesn't matter what one counts, since tokens cancel out of the ratio of two
# speeds, and what is left is their seconds over ours.

# %%
print("rounds of the same work:", measure.honest_ratios(runs))
print("faults:", measure.find_faults(runs))
fair = made_up_runs(8)
ratios = measure.honest_ratios(fair)
print("a fair experiment:", [f"{ratio:.2f}" for ratio in ratios], measure.find_faults(fair))

# %% [markdown]
# Of the first experiment *nothing* can be saved. In the second one the engines take turns: whoever comes
# second is a few per cent slower, and that goes up and down with the rounds, instead of adding to one side.
#
# **Task 3 ★★ a benchmark that flatters (20 points, about 20 minutes).**

# %%
check("ch13", task=3)

# %% [markdown]
# ## How sure
#
# Ratios around 1 in eight rounds. Is ours a little faster? Runs scatter, and a median of few of them scatters
# too. How often would an honest benchmark of two *equal* engines claim a difference of 5 %?

# %%
rng = random.Random(0)
experiments = [[rng.lognormvariate(0, 0.15) for _ in range(8)] for _ in range(2000)]
middles = [measure.median_interval(ratios).median for ratios in experiments]
print(f"by the median alone: {sum(not 0.95 < middle < 1.05 for middle in middles) / 2000:.0%}")
print(f"by the best round:   {sum(max(ratios) > 1.05 for ratios in experiments) / 2000:.0%}")
claimed = sum(measure.verdict(ratios) != "no difference" for ratios in experiments)
print(f"by an interval:      {claimed / 2000:.1%}")

# %% [markdown]
# (Each ratio scatters by 15 % here, as timings on a shared machine may.) An **interval** says which true
# medians fit the rounds. The simplest one assumes nothing about how they scatter: each round lies above or
# below the true median like a coin that shows heads or tails. That all of n rounds lie on one side is as
# likely as n equal coins, 2 / 2ⁿ. (Of eight, 0.8 %: that is how often the interval was wrong.)
#
# **Predict.** How many rounds does one need at least, to be 95 % sure of anything?

# %%
for n in (3, 5, 6, 8, 12, 20):
    low, middle, high = measure.median_interval(range(1, n + 1))
    text = f"number {low} to number {high} of the sorted rounds" if low > 0 else "nothing is known"
    print(f"{n:>2} rounds, chance of one side {200 / 2**n:8.2g} %: {text}")

# %% [markdown]
# **Explain.** **Six**: five equal coins come up too often. So what about this project's own claims? The table
# in the README says that in float32 minipaged is about twice as fast as transformers, and by some per cent
# faster than vLLM's CPU build in eager mode. Its rounds are in the JSON file; they are read here, not typed.

# %%
report = json.loads((results / "serve-float32.json").read_text(encoding="utf-8"))
facts = report["machine"]
print(f"{report['command']}\n{facts['date'][:10]}, {facts['cpu']}, {report['options']['threads']} threads")
for engine, row in report["engines"].items():
    ratios = [seconds[engine] / seconds["minipaged"] for seconds in report["rounds"]]
    if engine != "minipaged":
        print(f"{engine:<10} {row['tokens_per_second']['median']:4.0f} tokens/s, ratios "
              f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}: {measure.verdict(ratios)}; "
              f"of the first three, {measure.verdict(ratios[:3])}")

# %% [markdown]
# (hf is transformers: `generate` with one padded batch and with a static cache, and its continuous batching.)
# Of three rounds, **no difference** can be claimed at 95 %, not even of a factor of two that shows in every
# one. That looks absurd, and it is the price of assuming nothing. Who is ready to assume that rounds scatter
# by some 20 % and not by a factor of two, may believe the factor of two, and should say so. Six rounds that
# all agree are enough without that assumption, even for vLLM's few per cent. But look at what is claimed:
# that the true ratio is *above 1*. The interval goes from the smallest ratio to the largest, and no further.
#
# What no interval covers: that the machine, the requests or the settings were special. It is about chance
# alone. (The table's engines gave the same tokens and had the same threads, weights and lengths; the machine
# was one.)
#
# **Task 4 ★★ how sure (15 points, about 15 minutes).**

# %%
check("ch13", task=4)

# %% [markdown]
# ## Little's law
#
# One law holds for every queue, whatever the arrivals, the order and the server: the number inside, on
# average, is the rate at which requests come, times the time that each one stays (Little, 1961).
#
# **Predict.** In the open loop above, requests came at the rate that 24 users in a closed loop had kept up.
# How many were inside at once, on average: fewer than 24, 24, or more?

# %%
stays = [(arrival, each[-1]) for arrival, each in zip(opened.arrivals, opened.token_times, strict=True)]
span = max(end for _, end in stays) - min(start for start, _ in stays)
mean_stay = sum(end - start for start, end in stays) / len(stays)
inside = measure.mean_inside(stays)
print(f"{len(stays) / span:.2f} requests/s · {mean_stay:.1f} s each = {inside:.1f} inside")

# %% [markdown]
# **Explain.** **Fewer.** The law fixes the product and not its factors. Requests that come at random leave
# the machine half empty at times; then a step is shorter, and each request stays for less than it did among
# 24. (And the span has an end in which nobody comes any more.) The law is good for checking: two of the three
# numbers of a report give the third, and if it doesn't fit, one of them is wrong.
#
# It is even better for predicting. With a full memory N requests are inside, Figure 13. Each stays for as
# many steps as its answer has tokens, 338 on average, and a step's price we know. So requests leave at a rate
# of N / (338 · price), and no higher rate can be sustained.
#
# **Predict.** How near will that come to the knees of Figure 12, which took six minutes of simulation?

# %%
used = load_paper_figure(results / "paper-2.json").panels[0].ours["used"]
at_once = load_paper_figure(results / "paper-13.json").panels[0].ours["a full queue"]
for system in SYSTEMS:
    read = NUM_SLOTS * used[system] / 100  # tokens whose K and V a step reads
    step_s = Bench().cost.price(at_once[system], read, read, num_blocks=0).seconds
    print(f"{system:<14} {at_once[system]:4.1f} at once, {1000 * step_s:.1f} ms a step: "
          f"{at_once[system] / (338 * step_s):.2f} requests/s; the knee was at {knees[system]:.2f}")

# %% [markdown]
# **Explain.** Within some ten per cent, from a count of slots and one formula. (Most are a little too high,
# since prompts take time as well.) Whoever can do that sum will not be taken in by a figure.
#
# **Task 5 ★★ how many at once, and where it ends (15 points, about 15 minutes).**

# %%
check("ch13", task=5)

# %% [markdown]
# ## A challenge: Figure 13 without a run
#
# If memory alone decides, no simulator is needed. Each request takes up so many slots for so many steps; add
# that up over all requests; the memory offers 15,700 slots in every step; and the rest is Little's law.
# **Task 6 ★★★ Figure 13 without a run (15 points, about 25 minutes).**

# %%
check("ch13", task=6)

# %% [markdown]
# Here are the numbers to beat: the paper's, and the simulation's, which took minutes. Yours appear beside
# them as soon as the task is written.

# %%
your_file = find_root() / "exercises" / "ch13_measure.py"

def your_prediction(data_set, system):
    lengths = lengths_of(data_set, 600 if data_set == "ShareGPT" else 4800)
    try:
        return f"{import_path(your_file).predict_at_once(lengths, NUM_SLOTS, SYSTEMS[system]):.1f}"
    except NotImplementedError:
        return "not written yet"
    except Exception as error:  # whatever your file may raise
        return f"{type(error).__name__}: {error}"

panels = load_paper_figure(results / "paper-13.json").panels
for data_set, panel in zip(("ShareGPT", "Alpaca"), panels, strict=True):
    simulated, (printed,) = panel.ours["a full queue"], panel.paper.values()
    for system in SYSTEMS:
        print(f"{data_set:<9}{system:<14} paper {printed[system]:6.2f}, simulated "
              f"{simulated[system]:5.1f}, your formula: {your_prediction(data_set, system)}")

# %% [markdown]
# (15,700 slots are 7.7 reservations of 2,048, but hold only 7 whole ones: there the formula is too high. With
# paging the simulation has more at once: it lets in more than will fit in the end, and preempts, so those who
# run are younger and hold less.)
#
# ## Measured
#
# What a simulator can't know has to be measured. Does our own part of a step stay small as things grow? On
# log-log paper a cost that doesn't depend on a size is flat, slope 0; one that grows like it has slope 1.
#
# **Predict.** The slopes of a step's scheduling against the batch, the context, and the size of the pool?

# %% tags=["timing"]
sweeps = {"batch": (16, 64, 256), "context": (256, 1024, 4096), "pool": (1_000, 10_000, 100_000)}
print(machine_note() + ", scheduler and memory of one decoding step, CPU time in µs")
for what, sizes in sweeps.items():
    spent = [scheduling_seconds(**{what: size}, tries=3) for size in sizes]
    points = ", ".join(f"{size:,}: {1e6 * each:.0f}" for size, each in zip(sizes, spent, strict=True))
    print(f"{what:<8} slope {slope(sizes, spent):5.2f}   {points}")

# %% [markdown]
# **Explain.** Against the batch 1, give or take a few tenths, for these are three short measurements each, on
# a shared machine: every sequence must be asked. Against context and pool about 0: a decoding sequence takes
# a block now and then, wherever it stands and however many there are. If a slope of the second kind were 1,
# an engine that is quick in every test would be slow on the first long day. (`minipaged bench scaling`
# measures four curves and the whole engine, at more sizes.)
#
# Memory can be counted: paged against reserved in the same slots, for generated lengths with ShareGPT's means
# and for a recorded trace (Azure's public conversation trace, 2023).

# %%
for file in ("memory-sharegpt.json", "memory-azure-conv.json"):
    report = json.loads((results / file).read_text(encoding="utf-8"))
    print(f"{report['command']}\n{report['machine']['date'][:10]}, {report['slots']:,} slots")
    for way, row in report["systems"].items():
        print(f"{way:<20} {row['requests_at_once']:5.1f} requests at once, {row['used']:5.1%} hold a token")
    print(f"empty in last blocks of 16: {report['tail_waste']['16']:.2%}\n")

# %% [markdown]
# These are counts, and counts need no interval: they come out the same on every machine.
#
# ## Your formula in the simulator
#
# The promise. The simulator asks a function for the seconds of each step. Here it is given one that is made
# of *your* task 2, and its latencies are *your* task 1; what is not written yet comes from the package.

# %%
def serve_and_report(layer):
    cost = CostModel(A100_40GB, OPT_13B)
    device, model, share = cost.device, cost.model, cost.device.share_of_peak
    machine = (share * device.memory_bytes_per_s, share * device.flops_per_s)
    launches = (model.num_layers * model.kernels_per_layer, device.kernel_s)
    heads = (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim, model.itemsize)

    def step_seconds(step):
        news = [(len(work.slots), work.sequence.num_computed_tokens) for work in step.work]
        pairs = sum(new * context - new * (new - 1) // 2 for new, context in news)
        parts = [layer.linear_work(step.num_tokens, model.num_parameters, model.itemsize),
                 layer.attention_work(sum(context for _, context in news), pairs, *heads)]
        return layer.work_seconds(parts, *machine, *launches)

    engine = SimulatedEngine(Bench().scheduler("vLLM"), step_seconds)
    served = serve(engine, poisson(lengths[:60], 2.0))
    ended = zip(served.arrivals, served.token_times, ["length"] * 60, strict=True)
    return [layer.percentile(seconds, 99) for seconds in layer.latencies(ended)[:3]]

# %%
expected = serve_and_report(measure)
try:
    got = serve_and_report(import_path(your_file))
    print("yours, the same as the package's:" if got == expected else f"yours, DIFFERENT from {expected}:")
except Exception as error:  # whatever your file may raise
    got = expected
    print(f"exercises/ch13 can't do it yet: {error}. With the package's:")
print("99 % of first tokens {:.3f} s, of gaps {:.4f} s, of normalised latencies {:.4f} s".format(*got))

# %% [markdown]
# And all tasks together:

# %%
check("ch13")

# %% [markdown]
# ## Recap
#
# * Say what was counted: output tokens or all, cold or warm, open or closed loop.
# * Percentiles of all values, by rank, waiting included. Who gave up is part of the report.
# * Expect before you measure. Bytes over bandwidth, FLOPs over rate, the longer of both for each part.
# * Decoding is bound by memory, first by its speed and then by its size.
# * Only equal work can be compared, in rounds that take turns; then only the seconds count.
# * Below six rounds nothing can be claimed at 95 %. "No difference" is a finding, too.
# * A figure made again differs. Say why; and know what the simulator leaves out.
#
# ## Questions
#
# 1. A provider reports "a median time to first token of 0.2 s". What else must you ask before you believe
#    that your users will wait 0.2 s?
# 2. A colleague runs each engine once an hour for a day, alternating, and takes the minimum of each. When is
#    the minimum the right number, and what does it hide?
# 3. Draw goodput (first token within 1 s) against the request rate for a system with a knee. Why does it
#    fall behind the knee, while the throughput does not?
# 4. On an H100 the crossing lies at 296 tokens, on an A100 at 201. What does that say about how the two
#    should be used? And what does halving the bytes of a weight do to the crossing?
# 5. With eight rounds, all of which favour you by 1 %, the verdict is "faster". What is wrong with a press
#    release that says no more than this?
# 6. The simulator has all requests end after exactly max_tokens. Which of the paper's figures would change if
#    they ended at random instead, with the same mean?
#
# Answers are in `solutions/ch13_measure.md`.
#
# ## What vLLM adds
#
# You hold an engine that works as vLLM does. What makes vLLM larger and faster, by file and symbol (names of
# vLLM 0.32, below `vllm/`):
#
# | what | where |
# |---|---|
# | a step is launched as one graph | `compilation/cuda_graph.py`, `CUDAGraphWrapper` |
# | which graph a batch gets | `v1/cudagraph_dispatcher.py`, `CudagraphDispatcher` |
# | the next step is scheduled while this one runs | `v1/core/sched/async_scheduler.py`, `AsyncScheduler` |
# | engine and API server in processes of their own | `v1/engine/core.py`, `EngineCoreProc` |
# | attention kernels for each device | `v1/attention/backends/`: `FlashAttentionBackend` and others |
# | the pool is sized by a trial run of the model | `v1/worker/gpu_worker.py`, `determine_available_memory` |
# | layers with other needs in one pool | `v1/kv_cache_interface.py`, `SlidingWindowSpec`, `MambaSpec` |
# | a layer on several GPUs | `model_executor/layers/linear.py`, `ColumnParallelLinear` |
# | several engines for one service | `v1/engine/core.py`, `DPEngineCoreProc` |
# | several tokens a step | `v1/spec_decode/`: `NgramProposer`, `EagleProposer` |
# | K and V in CPU memory | `distributed/kv_transfer/kv_connector/v1/`: `OffloadingConnector` |
# | K and V sent to other machines | the same folder, `nixl/connector.py`: `NixlPullConnector` |
# | 8-bit and other weights | `model_executor/layers/quantization/`: `Fp8Config`, `CompressedTensorsConfig` |
# | answers that obey a grammar | `v1/structured_output/`, `StructuredOutputManager` |
# | adapters per request | `lora/worker_manager.py`, `LRUCacheWorkerLoRAManager` |
# | bytes and FLOPs of its own steps | `v1/metrics/perf.py`, `ModelMetrics` |
# | its own latencies | `v1/metrics/stats.py`, `IterationStats` |
#
# ### The same experiment there
#
# ```python
# from vllm import LLM, SamplingParams
# llm = LLM("HuggingFaceTB/SmolLM2-135M-Instruct", block_size=16, num_gpu_blocks_override=512,
#           enable_prefix_caching=False)     # on by default: repeated runs would find their prompts
# llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
# ```
#
# ```
# vllm bench throughput --model HuggingFaceTB/SmolLM2-135M-Instruct --dataset-name random \
#     --random-input-len 161 --random-output-len 338 --num-prompts 200 --no-enable-prefix-caching
# vllm serve HuggingFaceTB/SmolLM2-135M-Instruct --no-enable-prefix-caching
# vllm bench serve --model HuggingFaceTB/SmolLM2-135M-Instruct --dataset-name random \
#     --random-input-len 161 --random-output-len 338 --num-prompts 200 --request-rate 2 --ignore-eos \
#     --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99 --goodput ttft:1000
# ```
#
# Read `vllm/benchmarks/serve.py` with this chapter in mind. `--request-rate` opens the loop (Poisson, unless
# `--burstiness` says otherwise), `--max-concurrency` closes it. `calculate_metrics` counts the failed
# requests and leaves them out of every latency. Its percentiles are interpolated. `--num-warmups` is 0
# unless you say more. "TPOT" is the mean gap of a request, "ITL" are all gaps. `minipaged bench serve --vs
# vllm` runs both engines side by side.
#
# ## References
#
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180): Figures 2, 12, 13, 15, 16, 18 and 19.
# * Williams, Waterman, Patterson, *Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures*, Communications of the ACM 52(4), 2009.
# * Little, *A Proof for the Queuing Formula: L = λW*, Operations Research 9(3), 1961.
# * Schroeder, Wierman, Harchol-Balter, *Open Versus Closed: A Cautionary Tale*, NSDI 2006.
# * Dixon, Mood, *The Statistical Sign Test*, Journal of the American Statistical Association 41, 1946.
# * Bailey, *Twelve Ways to Fool the Masses When Giving Performance Results on Parallel Computers*,
#   Supercomputing Review, 1991. Short, and still true.
# * Mytkowicz, Diwan, Hauswirth, Sweeney, *Producing Wrong Data Without Doing Anything Obviously Wrong!*,
#   ASPLOS 2009.
# * Zhong et al., *DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model
#   Serving*, OSDI 2024, [arXiv:2401.09670](https://arxiv.org/abs/2401.09670), for goodput.
# * NVIDIA's data sheets of the A100 and the H100.
#
# Next: chapter 14 looks at what lies beyond.
