"""Chapter 13: measure.

You write the arithmetic of a benchmark: what raw times say (task 1), what a step should take (task 2), what
two engines' runs say about them and what is wrong with an experiment (task 3), how sure one can be (task 4),
and how many requests are there at once (task 5). Task 6 is a challenge: the paper's Figure 13, without a
single run. Everything is numbers in, numbers out; nothing here takes a time. An `Iterable` may be a
generator, which can be gone through once.

The simulator prices its steps with task 2, and `minipaged bench` reports with tasks 1, 4 and 5. Types and
the names of faults are given: see `minipaged/measure.py`, but not further down than its classes, for the
answers stand there too.

`minipaged check ch13` grades this file, `minipaged hint ch13` helps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from minipaged.contiguous import next_power_of_two, reservation
from minipaged.measure import (
    FAILED_REQUESTS,
    FAULTS,
    MISSING_RUN,
    NO_TURNS,
    NO_WARM_UP,
    UNEQUAL_LENGTHS,
    WARM_CACHE,
    Cost,
    Interval,
    Latencies,
    Run,
)


def percentile(values: Iterable[float], percent: int) -> float:
    """The smallest of the values that at least `percent` % of them do not exceed (the nearest rank).

    It is always a value that occurred: nothing is averaged. `values` stay as they are, in any order. percent
    is an int; ValueError if it is not from 1 to 100 (with the number), and if there are no values.

    Example: of [40, 10, 30, 20], 50 % do not exceed 20, so the 50th percentile is 20; for the 51st two values
    are too few, it is 30. The 99th percentile of 50 values is the largest, of 100 the second largest.
    """
    # Task 1 ★ what raw times say (15 points, about 15 minutes)
    # 1. Sort a copy. Refuse what has no answer.
    # 2. How many of the values must it be at least? Round up, but without floats: 0.07 · 100 is more than 7.
    # 3. The list begins at 0.
    raise NotImplementedError("ch13_measure, task 1: what raw times say")


def latencies(requests: Iterable[tuple[float, Sequence[float], str]]) -> Latencies:
    """What a run's raw times say: `Latencies(first_token, between_tokens, normalised, num_unserved)`.

    Each request is (arrival, the time of each of its tokens in order, finish_reason); all times are seconds
    since the run began. The lists are in the order of the requests.

    * first_token: time to first token, of each request that got one: from its arrival, waiting included. A
      token that came counts, whatever became of its request later.
    * between_tokens: inter-token latency: every gap between two tokens of one request, of all requests in
      one list. A request with one token has no gap.
    * normalised: of each request that came to its end, which is finish_reason "stop" or "length": the seconds
      from its arrival to its last token, divided by the number of its tokens (the paper, section 6.1). An
      answer that was cut off ("abort", "capacity") has no end that one could measure.
    * num_unserved: how many requests never got a token. They are in none of the lists, so whoever reports the
      lists has to report this number beside them.

    Example: (0.0, [2.0, 3.0], "stop"), (1.0, [4.0], "abort") and (1.0, [], "abort") are
    Latencies([2.0, 3.0], [1.0], [1.5], 1).
    """
    # Task 1
    # 1. Begin with empty lists. For each request without tokens: count it, and go on.
    # 2. The first token against the arrival; each token against the one before (itertools.pairwise).
    # 3. The end against the arrival, if it was one.
    raise NotImplementedError("ch13_measure, task 1: what raw times say")


def linear_work(num_tokens: int, num_parameters: int, itemsize: int) -> Cost:
    """What the model's matrices take in a step: `Cost(num_bytes, flops)`.

    The step computes `num_tokens` tokens, of all sequences together. The `num_parameters`
    numbers are read once for all tokens, `itemsize` bytes each. Each token takes a multiplication and an
    addition with every one of them. A step without tokens reads nothing. Both are ints.

    Example: 3 tokens, 1,000 parameters of 2 bytes are Cost(num_bytes=2000, flops=6000).
    """
    # Task 2 ★★ what a step should take (20 points, about 15 minutes)
    # 1. What does not depend on the number of tokens, and what does?
    raise NotImplementedError("ch13_measure, task 2: what a step should take")


def attention_work(
    num_read: int, num_pairs: int, num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int,
    itemsize: int,
) -> Cost:
    """What attention takes in a step: `Cost(num_bytes, flops)`, both ints.

    K and V of `num_read` tokens are read, of `itemsize` bytes a number: in each of `num_layers` layers,
    `num_kv_heads` heads of `head_dim` numbers for K, and as many for V. And `num_pairs` (query, key that it
    sees) are computed: in each layer and each of `num_heads` query heads, head_dim multiplications and
    additions for the score, and as many for the weighted sum. (The softmax is left out.)

    Example: 10 tokens read by one query, so 10 pairs; 2 layers, 4 heads, 2 KV heads of 8 numbers of 2 bytes:
    Cost(num_bytes=10 · 128, flops=10 · 256) = Cost(1280, 2560).
    """
    # Task 2
    # 1. The bytes of one token's K and V are chapter 1's. A pair's FLOPs are chapter 9's.
    raise NotImplementedError("ch13_measure, task 2: what a step should take")


def work_seconds(
    parts: Iterable[Cost], bytes_per_s: float, flops_per_s: float, num_launches: int = 0,
    launch_s: float = 0.0,
) -> float:
    """Seconds that a machine takes for the parts, one after the other, and for the launches.

    It reads `bytes_per_s` and does `flops_per_s`. Within a part it does both at the same time, so a part
    takes the longer of the two times. A part doesn't begin before the one in front of it has ended, and each
    of `num_launches` launches takes `launch_s` besides.

    Example: [Cost(2000, 6000), Cost(1280, 2560)] at 1,000 bytes and 2,000 FLOPs a second: the first takes
    max(2, 3) = 3 s, the second max(1.28, 1.28) = 1.28 s, together 4.28 s; with 6 launches of 0.5 s, 7.28 s.
    """
    # Task 2
    # 1. The longer time of each part, then their sum.
    # 2. The launches.
    raise NotImplementedError("ch13_measure, task 2: what a step should take")


def break_even_tokens(itemsize: int, bytes_per_s: float, flops_per_s: float) -> int:
    """The fewest tokens in a step for which multiplying takes no less time than reading the matrices.

    The model's size cancels out. An int, rounded up.

    Example: numbers of 2 bytes, 1,000 bytes and 2,000 FLOPs a second. A matrix of P numbers is read in
    2 · P / 1,000 s; T tokens are multiplied with it in 2 · P · T / 2,000 s. They are equal for T = 2. With an
    A100's 1.555e12 bytes and 312e12 FLOPs a second it is 201.
    """
    # Task 2
    # 1. Write both times down, as in the example, set them equal, and solve for T.
    raise NotImplementedError("ch13_measure, task 2: what a step should take")


def find_pairs(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """(ours, theirs) of every round that counts and in which both ran, by round. (Given.)

    A run is a dictionary; `minipaged.measure.Run` says what is in it. "engine" is "ours" or "theirs", and
    "round" is 0 for the warm-up.
    """
    by_place = {(run["round"], run["engine"]): run for run in runs}
    rounds = sorted({number for number, _ in by_place if number > 0})
    return [
        (by_place[number, "ours"], by_place[number, "theirs"])
        for number in rounds
        if (number, "ours") in by_place and (number, "theirs") in by_place
    ]


def is_same_work(ours: Run, theirs: Run) -> bool:
    """Whether every request was answered by both engines, with as many tokens, and as much from the cache.

    A request's answer has `output_lens` tokens, 0 if it failed; `cached` of its prompt's tokens came from the
    prefix cache. Both lists are in the order of the requests. True or False.

    Example: with nothing cached, answers of [8, 5] and [8, 5] tokens are the same work; [8, 5] and [8, 4] are
    not, [8, 5] and [5, 8] are not, and [8, 0] and [8, 0] are not.
    """
    # Task 3 ★★ a benchmark that flatters (20 points, about 20 minutes)
    # 1. Nothing failed. The lengths are the same. The cached tokens are the same.
    raise NotImplementedError("ch13_measure, task 3: a benchmark that flatters")


def honest_ratios(runs: Iterable[Run]) -> list[float]:
    """How many times faster ours was, in each round that counts and in which both did the same work.

    The same work has the same tokens, however one counts them. They cancel out of the ratio of two speeds,
    and what is left are `seconds`. Above 1: ours is faster. In the order of the rounds; [] if there is none.

    Example: in round 1 ours took 10 s and theirs 20, in round 2 it was 8 and 12 s: [2.0, 1.5].
    """
    # Task 3
    # 1. `find_pairs`, without those that aren't the same work.
    # 2. Whose seconds belong above the line?
    raise NotImplementedError("ch13_measure, task 3: a benchmark that flatters")


def find_faults(runs: Sequence[Run]) -> list[str]:
    """What is wrong with an experiment, as far as its record shows: those of `FAULTS` that hold, in order.

    A round *counts* if it is not 0. A round is *complete* if it counts and both engines ran: `find_pairs`.

    * NO_WARM_UP: one of the two engines has no run of round 0.
    * MISSING_RUN: only one engine ran in some round that counts. (Did somebody drop a slow one?)
    * NO_TURNS: of the complete rounds, one engine began in at least two more than the other. Who begins is
      whose "started" is smaller. (One round can't be shared, so 2 : 1 is fair.)
    * FAILED_REQUESTS: a request has no answer (an output length of 0) in a run that counts.
    * UNEQUAL_LENGTHS: in a complete round a request *that both have answered* has more tokens from one engine
      than from the other. (Did one stop at the end of the text, while the other was told to go on?)
    * WARM_CACHE: in a complete round some request has more tokens from the cache with one engine. (Did it
      remember the round before?)

    Example: a record of rounds 0, 1 and 2 in which ours always runs first, and in which everything else is as
    it should be, is [NO_TURNS]; rounds 0 and 1 alone are [].
    """
    # Task 3
    # 1. The complete rounds, and the runs that count: these are not the same.
    # 2. One condition for each fault. A dictionary from fault to condition keeps them readable.
    # 3. Those that hold, in the order of FAULTS.
    raise NotImplementedError("ch13_measure, task 3: a benchmark that flatters")


def median_interval(values: Iterable[float], percent: int = 95) -> Interval:
    """The median of n measurements, and an interval for the true median: `Interval(low, median, high)`.

    The true median is the value below which half of all measurements would fall, if one could go on for
    ever. So each measurement lies below it with a chance of one half, like a coin that shows heads. That the
    k-th smallest lies above it already means that fewer than k of n coins show heads, which has a chance of

        (C(n, 0) + C(n, 1) + … + C(n, k - 1)) / 2ⁿ

    where C is `math.comb`, and the same holds for the k-th largest lying below it. So the interval from the
    k-th smallest to the k-th largest value misses the true median with twice this chance. Take the largest k
    for which that is at most 100 - percent %. If there is none, not even k = 1, nothing is known: low is
    -math.inf and high is math.inf. The median of an even number of values is the mean of the two in the
    middle. ValueError without values. (This is the *sign test*; it assumes nothing about how the values
    scatter. Count in whole numbers: a rounding error must not decide.)

    Example: six values. k = 1 misses with a chance of 2 · 1 / 64, which is 3 %; k = 2 with 2 · (1 + 6) / 64,
    which is 22 %. At 95 % the interval goes from the smallest to the largest. Five values: k = 1 misses with
    2 · 1 / 32, which is 6 %: nothing is known at 95 %, but at 90 % it is the smallest to the largest.
    """
    # Task 4 ★★ how sure (15 points, about 15 minutes)
    # 1. Sort. Refuse no values.
    # 2. Raise k from 0 on, and beside it the sum of the C(n, i), while twice its share of 2ⁿ is small enough.
    # 3. The k-th smallest, the median (statistics.median), the k-th largest; mind k = 0.
    raise NotImplementedError("ch13_measure, task 4: how sure")


def verdict(ratios: Iterable[float], percent: int = 95) -> str:
    """What may be said of these ratios, above 1 where ours is faster: "faster", "slower" or "no difference".

    There is a difference to be claimed only if the `median_interval` of the ratios does not hold 1; its ends
    belong to it.

    Example: six ratios from 1.1 to 1.6 are "faster". From 1.0 to 1.6, or only three of them: "no difference".
    """
    # Task 4
    # 1. On which side of 1 does the interval lie?
    raise NotImplementedError("ch13_measure, task 4: how sure")


def mean_inside(stays: Iterable[tuple[float, float]]) -> float:
    """How many requests were inside at once, on average, from the first arrival to the last departure.

    A stay is (arrival, departure); they may be in any order. ValueError without stays.

    Example: stays of (0, 4), (1, 3) and (6, 10): for 1 s one is inside, for 2 s two, for 1 s one, for 2 s
    none, for 4 s one. That is 10 seconds of staying in 10 s: 1.0 on average.
    """
    # Task 5 ★★ how many at once, and where it ends (15 points, about 15 minutes)
    # 1. No need to go through time: add up how long each one stays.
    # 2. From when to when? The last departure need not be that of the last to arrive.
    raise NotImplementedError("ch13_measure, task 5: how many at once, and where it ends")


def sustained_rate(curve: Mapping[float, float], limit: float) -> float | None:
    """The request rate at which the latency reaches `limit`: the knee of the paper's Figure 12.

    `curve` is the measured latency by request rate, in the order of the rates. Between two rates that follow
    each other the latency is taken to lie on a straight line. The answer is on the first line that comes from
    below the limit and reaches it. None if there is no such line: if the limit is nowhere reached, or if no
    line begins below it, so that the knee lies before what was measured.

    Example: {1.0: 0.1, 2.0: 0.3} and a limit of 0.2: 1.5. With a limit of 0.3: 2.0. With 0.4, or with 0.1:
    None. {1.0: 0.3, 2.0: 0.1, 3.0: 0.3} and 0.2: 2.5, for the first line comes from above.
    """
    # Task 5
    # 1. Neighbours: itertools.pairwise of curve.items().
    # 2. Below the limit at the left end, not below it at the right end?
    # 3. How far along the line is the limit?
    raise NotImplementedError("ch13_measure, task 5: how many at once, and where it ends")


def predict_at_once(
    lengths: Sequence[tuple[int, int]],
    num_slots: int,
    policy: str,
    block_size: int = 16,
    max_model_len: int = 2048,
) -> float:
    """A challenge: how many requests run at once while a full queue is served, without running anything.

    `lengths` are (prompt_len, output_len) of the requests. One with an output of m tokens runs for m steps;
    suppose that every step takes equally long. In its j-th step, j = 1 … m, it holds K and V of
    prompt_len + j - 1 tokens. There are `num_slots` slots for tokens, and they are always full. What a
    request sets aside depends on the policy:

    * "paged": in each step only the blocks that its tokens need, block_size slots each. The slots that don't
      make a whole block are not used.
    * "max", "pow2" or "oracle": in all its steps what chapter 2's `reservation(policy, prompt_len,
      output_len, max_model_len)` says, rounded up to the next power of two, as the buddy system does.

    A float: don't round. ValueError for any other policy (`reservation` raises it).

    Example: requests of (3, 2) and (5, 4), 64 slots, blocks of 4. Paged, the first holds 1 block for 2 steps
    (3 and 4 tokens), the second 2 blocks for 4 steps (5 to 8 tokens): 40 slots times steps for 6 steps of
    requests, 6.67 on average, so 64 · 6 / 40 = 9.6 at once. With "oracle" they need 5 and 9 slots, which are
    rounded up to 8 for 2 steps and 16 for 4 steps, 80 together: 64 · 6 / 80 = 4.8.
    """
    # Task 6 ★★★ Figure 13 without a run (15 points, about 25 minutes)
    # 1. Little's law once more, with slots: all requests together take up so many slots times steps. The
    #    memory offers num_slots in every step. How many steps does that make?
    # 2. And how many steps do the requests have together?
    raise NotImplementedError("ch13_measure, task 6: Figure 13 without a run")
