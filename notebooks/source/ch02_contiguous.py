# %% [markdown]
# # Chapter 2: Contiguous allocation and its waste
#
# K and V of a sequence grow by one token a step, and nobody knows when they will stop. A tensor, on the
# other hand, wants one piece of memory, side by side, whose size is fixed when it is made. For years engines
# solved this in the obvious way: when a request is admitted, set aside one piece that is long enough for all
# that it might ever write. This chapter builds that, serves a thousand requests with it, and keeps account of
# every slot. Two thirds of the memory will turn out to be gone.
#
# **The promise:** at the end your own allocator serves the real model, the traditional way, and you see how
# many sequences it has no room for.
#
# After this chapter you will be able to
#
# 1. name the three ways in which contiguous memory is wasted, and measure each of them;
# 2. write the two classical allocators, first fit and the buddy system, and say what each of them costs;
# 3. explain the famous Figure 2 of the PagedAttention paper, with bars of your own beside it.
#
# *Time: about 60 minutes with the ★ tasks, and 40 more for the ★★ tasks. You need Python; no PyTorch in
# this chapter. First hide the outputs: Edit → Clear Outputs of All Cells.*

# %%
import random

import numpy as np

from minipaged import contiguous as package
from minipaged.contiguous import POLICIES, Account, Arena, Buddy, reservation
from minipaged.course import check
from minipaged.course.chapters.ch02_contiguous.figures import (
    draw_arena,
    draw_memory_map,
    draw_shares,
    layout_of,
)
from minipaged.course.chapters.ch02_contiguous.replay import ArenaReplay
from minipaged.course.engine_map import draw_engine_map
from minipaged.pictures.draw import show
from minipaged.simulation.traces import TraceRow, synthetic

show(draw_engine_map("contiguous"))

# %% [markdown]
# ## The problem in numbers
#
# Take a model of 13 billion parameters with 40 layers and keys and values of 5,120 numbers, in fp16: from
# chapter 1, a token takes 819,200 bytes. Its weights take 26 GB. On a card of 80 GB, let 25 GiB be for K and
# V. The place of one token's K and V, in all layers, is a **slot**; from here on everything is counted in
# slots. No sequence may be longer than 4,096 tokens, which is what Llama-2-13B, a model of this shape,
# allows.
#
# What do people send? The requests of this chapter are *generated*, not recorded: lengths are drawn so that
# they have the mean and the percentiles of an hour of Azure's chat service. (The figures stand in
# `minipaged/simulation/traces.py`, which can also read the recorded file, if you want to repeat everything
# with that: `load_azure`.)

# %%
num_slots, longest = 25 * 2**30 // 819_200, 4_096
trace = synthetic(1_000, seed=0, kind="conv")
final_lens = np.array([row.prompt_len + row.output_len for row in trace])
output_lens = np.array([row.output_len for row in trace])
print(f"the arena: {num_slots:,} slots; the longest sequence: {longest:,}")
print(f"prompt + output: mean {final_lens.mean():,.0f}, median {np.median(final_lens):,.0f} tokens")
for share in (10, 50, 90, 99):
    print(f"output: {share} % are at most {np.percentile(output_lens, share):,.0f} tokens")

# %% [markdown]
# **Predict.** How many sequences can be in memory at once, if each sets aside the longest? How many of mean
# length would it be, if not one slot were wasted?

# %%
print(f"each sets aside the longest: {num_slots // longest}")
print(f"nothing wasted: {num_slots / final_lens.mean():.0f}")

# %% [markdown]
# **Explain.** 8 instead of 24. A decode step reads all the weights once, however many sequences share it
# (chapter 1), so that is about a third of the tokens per second that the same card could give.
#
# ## Three ways to reserve
#
# How many slots should a request set aside? It depends on how much one claims to know about its answer:
#
# * **max**: nothing. Take the longest that the model allows.
# * **pow2**: the output's length to within a factor of 2. Take the prompt, and the next power of two for the
#   output. (Perhaps from the user's `max_tokens`, perhaps from a model that guesses.)
# * **oracle**: everything. Nobody can have this, and that is why it is interesting: what it still wastes,
#   no guess will save.

# %%
def set_aside(policy, prompt_len, output_len, max_model_len):
    power = 1
    while power < output_len:
        power *= 2
    sizes = {"max": max_model_len, "oracle": prompt_len + output_len}
    return sizes.get(policy, min(prompt_len + power, max_model_len))

fitting = [row for row in trace if row.prompt_len + row.output_len <= longest]
for row in fitting:
    for policy in POLICIES:
        lengths = row.prompt_len, row.output_len, longest
        assert set_aside(policy, *lengths) == reservation(policy, *lengths)
print(f"{len(trace) - len(fitting)} of {len(trace):,} requests are longer than {longest:,} tokens in the end")

# %% [markdown]
# Those are refused: a first inflexibility, before anything has gone wrong. The package's `reservation` says
# so with a `ValueError`.
#
# **Your turn: task 1** ★ (10 points, about 5 minutes). Write `reservation` in
# `exercises/ch02_contiguous.py`. The docstring says all that is needed. Then run the next cell, as often as
# you like; `minipaged hint ch02` in a terminal gives hints, one at a time.

# %%
check("ch02", task=1)

# %% [markdown]
# ## Where every slot goes
#
# A request with a prompt of 1,000 tokens, whose answer will have 200, has written 50 of these by now. Here is
# what it holds under each policy:

# %%
rows = [(policy, [(0, reservation(policy, 1_000, 200, longest), 1_050, 1_200)], []) for policy in POLICIES]
show(draw_arena(longest, rows))

# %% [markdown]
# Dark blue slots hold a token. The others have names:
#
# * **Reserved** (light blue, hatched): will hold a token before the sequence ends. It is *waste by
#   pre-allocation*: somebody else could have used the slot until then.
# * **Internal fragmentation** (red): set aside, and never used. Nobody knows this while the sequence runs;
#   it can only be counted afterwards.
# * **External fragmentation**: slots that belong to nobody, enough for the request at the head of the queue,
#   but not side by side. To be seen soon.
#
# **Your turn: task 2** ★ (10 points, about 10 minutes). `account` sorts the slots of an arena into these
# kinds.

# %%
assert package.account([(4_096, 1_050, 1_200)], []) == Account(1_050, 150, 2_896, 0, 0)
check("ch02", task=2)

# %% [markdown]
# ## A thousand requests, reserved to the maximum
#
# `ArenaReplay` serves a trace without a model. Requests arrive at their times; the head of the queue is
# admitted as soon as a hole is long enough, and nobody overtakes it; every step gives each sequence in memory
# one token; one that is done leaves. After every step `account` says where the slots are.

# %%
def replay(policy, arena, requests=trace, max_model_len=longest, **options):
    def reserve(row):
        return reservation(policy, row.prompt_len, row.output_len, max_model_len)
    return ArenaReplay(requests, arena, reserve, **options).run()

# %% [markdown]
# **Predict.** Eight sequences at a time, and somebody always waits. On average over all steps, which share of
# the arena's slots holds a token: 70 %, 50 %, 30 %?

# %%
by_max = replay("max", Arena(num_slots), layout_every=10)
shares = by_max.shares()
print(", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items()))
show(draw_memory_map(by_max, "Reserved to the maximum"))

# %% [markdown]
# **Explain.** The picture is the whole arena from the first step to the last. Each band is a reservation;
# its lower, blue part is what its sequence wrote. **28.7 %** of the slots hold a token, on average over all
# steps in which somebody waited. 4.3 % are reserved for tokens to come, and **67.1 %**, the red sea, are
# never used by anybody. The prompts are longer than the answers here, so little is reserved for later; in a
# service with short prompts and long answers that part grows, as we shall see.
#
# There is no external fragmentation at all: all reservations are equally long, so every hole fits. Keep that
# in mind, it will come back in chapter 3 as the solution.
#
# ## Holes: first fit
#
# Whoever reserves less than the maximum gets pieces of different lengths, and the arena gets holes. **First
# fit** takes the first hole from the left that is long enough. The smallest version is a list with the owner
# of every slot:

# %%
def first_fit(owners, name, size):
    for start in range(len(owners) - size + 1):
        if owners[start:start + size] == [None] * size:
            owners[start:start + size] = [name] * size
            return start

def leave(owners, name):
    owners[:] = [None if owner == name else owner for owner in owners]

# %% [markdown]
# It does the same as the package's `Arena`, which keeps a list of holes instead and so doesn't look at every
# slot. Two hundred random operations agree:

# %%
owners, arena, live, dice = [None] * 40, Arena(40), [], random.Random(0)
for _ in range(200):
    if live and dice.random() < 0.5:
        start = live.pop(dice.randrange(len(live)))
        leave(owners, start)
        arena.release(start)
    else:
        size = dice.randint(1, 12)
        start = arena.reserve(size)
        assert first_fit(owners, start, size) == start
        live += [] if start is None else [start]
    assert owners.count(None) == arena.num_free

# %% [markdown]
# **Predict.** An arena of 10 slots. A reserves 4 slots, B 3, C 2; then A leaves. Five slots are free: does a
# reservation of 5 succeed? And after B has left too?

# %%
arena = Arena(10)
for size in (4, 3, 2):
    arena.reserve(size)
rows = [("A, B, C", layout_of(arena), arena.holes())]
for name, start in (("A leaves", 0), ("B leaves", 4)):
    arena.release(start)
    rows.append((name, layout_of(arena), arena.holes()))
    print(f"{name}: {arena.num_free} slots free, holes {arena.holes()}")
show(draw_arena(10, rows, needed=5))

# %% [markdown]
# **Explain.** First no: 4 slots here and 1 there are 5, but no run of 5. Then yes: B's slots and the hole
# beside them became *one* hole of 7. An allocator that forgets to join neighbours ends with an empty arena
# that is a row of little holes.
#
# **Your turn: tasks 3** ★ (10 points, about 10 minutes) **and 4** ★★ (20 points, about 15 minutes).
# `Arena.reserve` is first fit on a list of holes; `Arena.release` gives back and joins. Do not forget the
# case in which both neighbours are holes.

# %%
check("ch02", task=3)

# %%
check("ch02", task=4)

# %% [markdown]
# ## What even an oracle cannot save
#
# Now the thousand requests again, each with exactly the slots that it will need. Nothing can be internal
# waste.
#
# **Predict.** With no waste there would be 24 sequences in the arena, and the maximum policy had 8. How many
# does the oracle have, on average?

# %%
by_oracle = replay("oracle", Arena(num_slots), layout_every=10)
print(", ".join(f"{name} {100 * share:.1f} %" for name, share in by_oracle.shares().items()))
print(f"sequences in memory: {by_oracle.mean_running():.1f}; with the maximum {by_max.mean_running():.1f}")
show(draw_memory_map(by_oracle, "Reserved by an oracle, first fit"))

# %% [markdown]
# **Explain.** **19.3**. All of the red is gone, and yet 20.4 % of the slots are **external fragmentation**:
# the grey gaps between the bands. They were long enough for somebody who has left, and are too short for the
# one who waits. A tenth is still reserved for tokens to come.
#
# Here is the worst such moment. The replay is run again up to it, so what is drawn is the live arena.

# %%
stuck = max(by_oracle.moments, key=lambda moment: moment.account.external)
live = ArenaReplay(trace, Arena(num_slots), by_oracle.reserve, layout_every=1).run(stuck.step + 1)
holes, needed = live.arena.holes(), live.moments[-1].needed
print(f"step {stuck.step:,}: the head of the queue needs {needed:,} slots")
print(f"{live.arena.num_free:,} of {num_slots:,} are free, in {len(holes)} holes")
print(f"the longest hole has {max(size for _, size in holes):,}")
show(draw_arena(num_slots, [(f"step {stuck.step:,}", live.moments[-1].layout, holes)], needed))

# %% [markdown]
# More than half of the memory is free, more than four times what the request needs, and it has to wait. The
# bytes suffice, and no hole does.
#
# ## The buddy system
#
# There is an allocator in which holes fit together again. It hands out powers of two only: a chunk of 16 is
# halved into two of 8, one of these into two of 4, until the piece is just large enough. The two halves of a
# chunk are **buddies**, and when both are free they become one again. The buddy of the chunk of `size` slots
# at `start` begins at `start ^ size`, so that nothing needs to be searched for.
#
# **Predict.** From 16 slots: reserve 3, then 5, then 2; then the first one leaves. Which chunks are free at
# the end? Will a request for 5 slots fit, with 6 free?

# %%
buddy = Buddy(16)
rows = [("fresh", layout_of(buddy), buddy.holes())]
for size in (3, 5, 2):
    buddy.reserve(size)
    rows.append((f"reserve({size})", layout_of(buddy), buddy.holes()))
buddy.release(0)
rows.append(("release(0)", layout_of(buddy), buddy.holes()))
print("holes at the end:", buddy.holes(), "| reserve(5):", buddy.reserve(5))
show(draw_arena(16, rows))

# %% [markdown]
# **Explain.** A chunk of 4 and one of 2. They don't touch, and even if they did they would not be buddies,
# for those are equally large. So 5 slots don't fit, and besides they would have taken 8. That is the price:
# the buddy system pays for its tidiness with *internal* fragmentation. 3 slots took 4, and 5 took 8.
#
# **Your turn: task 5** ★★ (20 points, about 15 minutes). `Buddy.reserve` and `Buddy.release`, in a dozen
# lines together.

# %%
check("ch02", task=5)

# %% [markdown]
# **Predict.** The thousand requests under all three policies, with both allocators. Does the buddy system
# have less external fragmentation? Does it hold more tokens?

# %%
replays = {("max", Arena): by_max, ("oracle", Arena): by_oracle}
for policy, kind in ((policy, kind) for policy in POLICIES for kind in (Arena, Buddy)):
    if (policy, kind) not in replays:
        replays[policy, kind] = replay(policy, kind(num_slots))
names = {Arena: "first fit", Buddy: "buddies"}
bars = {f"{policy}, {names[kind]}": replays[policy, kind].shares()
        for policy in POLICIES for kind in (Arena, Buddy)}
show(draw_shares(bars, "Where the slots are, on average while somebody waits"))

# %% [markdown]
# **Explain.** Less external, yes: 13.1 instead of 20.4 % for the oracle. But a quarter of the arena is lost
# to rounding, so that in the end it holds *fewer* tokens than first fit. There is a law in this: memory that
# must be side by side is lost either between the pieces or within them, and a better allocator can only
# choose where.
#
# ## Figure 2
#
# The paper that brought paging to language models begins with this very measurement (Kwon et al., SOSP 2023,
# Figure 2). It compares vLLM with its own versions of an earlier engine, Orca, with the three policies above:
# 20.4 %, 26.8 % and 38.2 % of the memory held tokens, and 96.3 % in vLLM. Can we get these from our few
# lines?
#
# The circumstances (section 6.1, table 1, figure 11): OPT-13B on a card of 40 GB, with 12 GB for K and V;
# sequences of up to 2,048 tokens; the buddy system; conversations from ShareGPT, with 161.31 prompt and
# 337.99 output tokens on average. We don't have these conversations. So here lengths are *made up* with these
# two means: an exponential distribution, under which every token is as likely to be the last as any other.
#
# **Predict.** 12 GiB are 15,728 slots. How many sequences of 2,048 fit, and which share of the arena is left
# over?

# %%
paper_slots, rng = 12 * 2**30 // 819_200, np.random.default_rng(0)
lengths = np.ceil([rng.exponential(161.31, 600), rng.exponential(337.99, 600)]).astype(int).T.tolist()
chats = [TraceRow(0.0, prompt_len, output_len) for prompt_len, output_len in lengths]
paper_like = {policy: replay(policy, Buddy(paper_slots), chats, 2_048) for policy in POLICIES}
number = paper_slots // 2_048
print(f"{number} fit, and {1 - number * 2_048 / paper_slots:.1%} are left over")

# %%
figure_2 = {"Orca (Max)": 0.204, "Orca (Pow2)": 0.268, "Orca (Oracle)": 0.382, "vLLM": 0.963}
bars = {f"paper: {name}": {"used": share, "rest": 1 - share} for name, share in figure_2.items()}
bars |= {f"ours: {policy}": paper_like[policy].shares() for policy in POLICIES}
pairs = sorted(bars, key=lambda name: [*figure_2, *POLICIES].index(name.split(": ")[1]) % 4)
show(draw_shares({name: bars[name] for name in pairs}, "Figure 2 of the paper, and our arena"))

# %% [markdown]
# **Explain.** 21.5, 29.7 and 38.3 % beside 20.4, 26.8 and 38.2 %: from two means and an allocator of a dozen
# lines. (Another seed moves each of ours by a point or two. Try it.) So the waste is not some engine's
# sloppiness; it is in the idea of a contiguous piece.
#
# Of the paper's bars only the share that holds tokens is drawn here. It draws the border between internal and
# external differently: what the buddy system rounds up counts as external there. And vLLM's bar is not ours
# yet. We get there in chapter 4.
#
# Why is all of this so much worse than in our chats above? Because here the *answers* are the long part. A
# prompt is there from the first step on; an answer grows into its reservation slowly, and is half empty on
# average.
#
# ## A sequence that outgrows its reservation
#
# Neither pow2 nor the oracle exists: one doesn't know the output length. What one has is a guess. So guess
# the median: set aside the prompt and 129 slots for the answer. When that is full, ask for 128 more. The new,
# longer piece must be found *while the old one is still there*; then all tokens are copied over. If there is
# no such hole, the answer is cut short.
#
# **Predict.** Which share of the requests outgrows the median? Of the times that one of them asks for more,
# how often is the place right behind it free, so that it could simply grow? How many answers are cut short?

# %%
def guess_the_median(row):
    reservation("oracle", row.prompt_len, row.output_len, longest)  # refuses those that are too long
    return row.prompt_len + int(np.median(output_lens))

guessed = ArenaReplay(trace, Arena(num_slots), guess_the_median, grow_by=128).run()
outgrow = np.mean([row.output_len > np.median(output_lens) for row in fitting])
print(f"{outgrow:.0%} of the requests outgrow their reservation, {guessed.num_outgrown} times in all")
print(f"{guessed.num_in_place} times the place behind it was free; moved {guessed.num_moved} times")
print(f"{guessed.moved_tokens:,} tokens copied: {guessed.moved_tokens * 819_200 / 1e9:,.0f} GB")
print(f"cut short: {guessed.num_cut_short} of {len(fitting)} answers")

# %% [markdown]
# **Explain.** Half of them outgrow it, that is what a median is. Only in 169 of 907 cases was the place
# behind them free. The others had to move house, with all their furniture, or end: **221** users got a part
# of their answer. This is the third defect, **inflexibility**. It is also why engines reserved to the
# maximum, in spite of all that you have seen: of these policies it is the only one that needs no guess and
# breaks no promise.
#
# ## A leak
#
# One more thing can go wrong, in every allocator ever written: somebody forgets to give a piece back. In an
# engine it hides in rare paths: a client that hangs up, an error in the middle of a step. Say it happens to
# every 50th request.

# %%
leaky = replay("oracle", Arena(num_slots), forget_every=50)
for step in range(0, len(leaky.moments), 4_000):
    some = leaky.moments[step:step + 4_000]
    lost = num_slots - sum(some[-1].account)
    mean = np.mean([moment.num_running for moment in some])
    print(f"up to step {some[-1].step:6,}: {mean:4.1f} sequences on average, {lost:6,} slots lost by then")
print(f"all served after {len(leaky.moments):,} steps, without the leak after {len(by_oracle.moments):,}")

# %% [markdown]
# Nothing crashes. Every token is right. The service gets slower day by day, until somebody restarts it, and
# then it is fine for a while. To *see* a leak one has to compare two books: what the allocator thinks is in
# use, and who is really there. With a **reference count** for every piece, that is a subtraction:

# %%
arena = Arena(100)
sequences = {name: arena.reserve(size) for name, size in (("A", 30), ("B", 20), ("C", 25))}
del sequences["B"]  # B's client has hung up, and nobody has told the arena
counts = dict.fromkeys(arena.reservations(), 1)
package.find_leaks(counts, [[start] for start in sequences.values()])

# %% [markdown]
# The piece that begins at slot 30 has one user too many in the books. A negative number would be worse:
# somebody still uses what has been given back, and may be somebody else's by now. The engine of this course
# makes this comparison after every step of every test: the rule "Σ ref_count = Σ uses in live tables" in
# `minipaged/invariants.py`.
#
# **Your turn: task 6** ★★ (10 points, about 10 minutes). `find_leaks`, for pieces that may have several
# users: from chapter 6 on they will.

# %%
check("ch02", task=6)

# %% [markdown]
# ## Could one not tidy up?
#
# One could: slide all pieces to the left, so that the holes become one. Operating systems and garbage
# collectors do. Let us see what that would have cost at the moment above, when more than half of the arena
# was free. An A100 with 80 GB moves about 2 TB a second between its memory and its cores (NVIDIA's data
# sheet: 2,039 GB/s), and every byte moved is read and written.

# %%
first_hole = holes[0][0]
to_move = sum(size for start, size, _, _ in live.moments[-1].layout if start > first_hole)
seconds = 2 * to_move * 819_200 / 2.039e12
print(f"{to_move:,} slots to the right of the first hole: {to_move * 819_200 / 1e9:.1f} GB")
print(f"moved in {1000 * seconds:.0f} ms at best")
print(f"26 GB of weights, read once for a step: {26e12 / 2.039e12:.0f} ms")

# %% [markdown]
# About as long as a whole decode step, and everybody stands still meanwhile. Soon there are holes again.
#
# **Your turn: task 7** ★★★, a challenge (15 points, about 15 minutes). `compact` plans the moves: in which
# order can pieces slide, so that none runs over another?

# %%
check("ch02", task=7)

# %% [markdown]
# ## What a better way must do
#
# This is the course's contract. A memory manager for K and V should
#
# 1. **allocate on demand**: no slot is taken before a token needs it;
# 2. **waste next to nothing within a piece**: less than one block per sequence;
# 3. **not fragment**: any free piece of memory is as good as any other;
# 4. **grow without reserving**, and without moving what is already there;
# 5. **share**: sequences that begin alike hold that beginning once.
#
# And here is the scorecard, with what we have measured. Chapters 4, 6 and 7 add their columns to it.

# %%
from minipaged.course.chapters.ch02_contiguous.replay import traditional_score
from minipaged.course.scorecard import Scorecard

Scorecard(
    traditional_score("reserve the maximum", by_max),
    traditional_score("power of two, buddies", replays["pow2", Buddy]),
    traditional_score("oracle", by_oracle),
    traditional_score("guess the median", guessed),
)

# %% [markdown]
# Every column has its own weak spot, and the last row is the same for all: a contiguous piece has one owner.
# Two answers to the same prompt store the prompt twice.
#
# ## Your arena in the engine
#
# An arena with reservations to the maximum is a pool of blocks, each as long as the longest sequence. So the
# paged engine can serve the traditional way: `ArenaBlocks`, at the end of your exercise, hands out the
# engine's blocks from your arena. The same 16 requests, in the same 1,024 slots, once reserved to 256 tokens
# and once in blocks of 16.
#
# **Predict.** How many sequences run at once, in the one and in the other? Are the tokens the same?

# %%
from minipaged.course.chapters.ch02_contiguous.serving import serve_traditionally

serve_traditionally()

# %% [markdown]
# **Explain.** 1,024 / 256 = **4** against all **16**. The tokens are the same, for where K and V lie changes
# nothing in what they are. Only those who wait know the difference.
#
# (Until tasks 3 and 4 are written, the package's arena serves, and the output says so.)

# %%
check("ch02")

# %% [markdown]
# ## Recap
#
# * Contiguous memory must be reserved before anybody knows how much is needed. Reserved to the maximum, two
#   thirds of the arena were never used in our chats.
# * **Waste by pre-allocation**: slots for tokens to come. **Internal fragmentation**: slots that never hold
#   one. **External fragmentation**: free slots that are not side by side.
# * First fit loses memory between the pieces, the buddy system within them. Even an oracle loses a fifth or
#   more.
# * A guess that is too short breaks promises: a piece can rarely grow where it is.
# * A leak is invisible to everything but a comparison of the books with those who are there.
# * Equal pieces never fragment. If they were *small* as well, they would waste little. That is the next
#   chapter.
#
# ## Questions to think about
#
# 1. `max_tokens` in a request is a promise of the user's: never more than this. How much would a policy gain
#    that reserves prompt + max_tokens? And what would users do, once they notice?
# 2. Best fit takes the smallest hole that suffices, instead of the first. Would you expect more large holes
#    left, or more tiny ones? Try it: subclass `Arena`, and replay the oracle.
# 3. Nobody overtakes the head of the queue here. If a short request behind it were let in whenever it fits,
#    there would be fewer empty slots. What would happen to long requests?
# 4. An operating system gives every process contiguous *addresses* without contiguous memory. Could a GPU do
#    the same for K and V? (It can, and it has been done: see vAttention below.)
#
# ## In vLLM this is …
#
# … what it does *not* do. `StaticCache` of transformers is reserved to the maximum to this day; vLLM takes
# blocks as the tokens come.
#
# | here | elsewhere |
# |---|---|
# | reserve to the maximum | transformers: `src/transformers/cache_utils.py`, `StaticCache` |
# | `Arena` | vLLM: `vllm/v1/core/block_pool.py`, `BlockPool`: equal blocks, so every hole fits |
# | `reservation` | vLLM: `vllm/v1/core/kv_cache_manager.py`, `KVCacheManager.allocate_slots` |
# | `longest` | vLLM: `max_model_len`, a limit and no longer a reservation |
# | moving what has outgrown its place | vLLM: preemption, chapter 9 |
#
# ## References
#
# * Kwon et al.: *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP
#   2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Sections 3.1 and 6, Figures 2 and 3.
# * Yu et al.: *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI 2022.
# * Knuth: *The Art of Computer Programming*, volume 1, section 2.5: first fit, best fit, the buddy system,
#   and how many holes to expect.
# * Patel et al.: *Splitwise: Efficient Generative LLM Inference Using Phase Splitting*, ISCA 2024: the Azure
#   traces, CC-BY-4.0, https://github.com/Azure/AzurePublicDataset.
# * Prabhu et al.: *vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention*,
#   [arXiv:2405.04437](https://arxiv.org/abs/2405.04437): contiguous addresses over scattered memory.
