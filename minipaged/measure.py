"""Numbers that you can defend: what to expect of a step, what to report of a run, and how sure to be of it.

A benchmark writes down times; everything else about it is arithmetic, and there it flatters or not. Here is
that arithmetic, on plain numbers, so that it can be tested: latencies of requests, the price of a step in
bytes and FLOPs, ratios of equal work, an interval for a median, and Little's law. `minipaged bench` takes the
times, and `minipaged/simulation/cost_model.py` has the constants of machines and models. It imports no
PyTorch. Chapter 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple, TypedDict

# -- what to report of a run ---------------------------------------------------------------------------------


class Latencies(NamedTuple):
    """How long the requests of a run waited, in seconds.

    first_token: of each request that got a token, from its arrival. between_tokens: all gaps of all requests
    in one list. normalised: of each request that came to its end, seconds per output token, waiting included.
    num_unserved: requests that never got a token, and so are in none of the lists.
    """

    first_token: list[float]
    between_tokens: list[float]
    normalised: list[float]
    num_unserved: int


def percentile(values: Iterable[float], percent: int) -> float:
    """The smallest of the values that at least `percent` % of them do not exceed (the nearest rank).

    It is always a value that occurred. ValueError without values, or if percent is not in 1 … 100.

    >>> percentile([40, 10, 30, 20], 50), percentile([40, 10, 30, 20], 51), percentile([40, 10], 99)
    (20, 30, 40)
    """
    ranked = sorted(values)
    if not ranked:
        raise ValueError("a percentile of no values")
    if not 1 <= percent <= 100:
        raise ValueError(f"percent must be from 1 to 100, got {percent}")
    return ranked[-(-percent * len(ranked) // 100) - 1]


def latencies(requests: Iterable[tuple[float, Sequence[float], str]]) -> Latencies:
    """What a run's raw times say. A request is (arrival, the time of each of its tokens, finish_reason).

    A token that came counts, even if its request was aborted later. Only a request that came to its end, with
    finish_reason "stop" or "length", has a normalised latency (Kwon et al., SOSP'23, section 6.1).

    >>> latencies([(0.0, [2.0, 3.0], "stop"), (1.0, [4.0], "abort"), (1.0, [], "abort")])
    Latencies(first_token=[2.0, 3.0], between_tokens=[1.0], normalised=[1.5], num_unserved=1)
    """
    report = Latencies([], [], [], 0)
    num_unserved = 0
    for arrival, times, finish_reason in requests:
        if not times:
            num_unserved += 1
            continue
        report.first_token.append(times[0] - arrival)
        report.between_tokens.extend(later - earlier for earlier, later in pairwise(times))
        if finish_reason in ("stop", "length"):
            report.normalised.append((times[-1] - arrival) / len(times))
    return report._replace(num_unserved=num_unserved)


# -- what to expect of a step --------------------------------------------------------------------------------


class Cost(NamedTuple):
    """A part of a step: the bytes that it must read, and the operations that it must do (FLOPs)."""

    num_bytes: int
    flops: int


def linear_work(num_tokens: int, num_parameters: int, itemsize: int) -> Cost:
    """The model's matrices, for `num_tokens` tokens of all sequences together.

    The numbers are read once for all, `itemsize` bytes each; each token takes a multiplication and an
    addition with every one of them. No tokens, no work.

    >>> linear_work(3, num_parameters=1000, itemsize=2)
    Cost(num_bytes=2000, flops=6000)
    """
    if num_tokens == 0:
        return Cost(0, 0)
    return Cost(num_parameters * itemsize, 2 * num_parameters * num_tokens)


def attention_work(
    num_read: int,
    num_pairs: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
) -> Cost:
    """Attention: K and V of `num_read` tokens are read, and `num_pairs` (query, key it sees) are computed.

    A pair takes, in every head of every layer, head_dim multiplications and additions for the score, and as
    many for the weighted sum. K and V have KV heads, of which there may be fewer.

    >>> attention_work(10, 10, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, itemsize=2)
    Cost(num_bytes=1280, flops=2560)
    """
    kv_bytes = 2 * num_layers * num_kv_heads * head_dim * itemsize
    return Cost(num_read * kv_bytes, 4 * num_layers * num_heads * head_dim * num_pairs)


def work_seconds(
    parts: Iterable[Cost],
    bytes_per_s: float,
    flops_per_s: float,
    num_launches: int = 0,
    launch_s: float = 0.0,
) -> float:
    """Seconds for the parts one after the other, and for the launches.

    Reading and computing of one part go on at the same time, so a part takes the longer of the two (Williams
    et al., Roofline, 2009). One part doesn't begin before the last one has ended.

    >>> work_seconds([Cost(2000, 6000), Cost(1280, 2560)], bytes_per_s=1000, flops_per_s=2000)
    4.28
    """
    longest = (max(part.num_bytes / bytes_per_s, part.flops / flops_per_s) for part in parts)
    return sum(longest) + num_launches * launch_s


def break_even_tokens(itemsize: int, bytes_per_s: float, flops_per_s: float) -> int:
    """The fewest tokens in a step for which multiplying takes no less time than reading the matrices.

    Below it a step waits for memory, and one more token is nearly free. The model's size cancels out.

    >>> break_even_tokens(2, bytes_per_s=1.555e12, flops_per_s=312e12)      # an A100, fp16
    201
    """
    return math.ceil(itemsize * flops_per_s / (2 * bytes_per_s))


# -- two engines beside each other ---------------------------------------------------------------------------


class Run(TypedDict):
    """One engine serving the workload once, as a harness writes it down.

    engine: "ours" or "theirs". round: 0 to warm up, and from 1 on those that count. started: when, in seconds
    since the harness was started. seconds: how long it took. prompt_lens, cached, output_lens: of each
    request, in the same order everywhere, the tokens of its prompt, how many of them came from the prefix
    cache, and the tokens of its answer, 0 if the request failed.
    """

    engine: str
    round: int
    started: float
    seconds: float
    prompt_lens: list[int]
    cached: list[int]
    output_lens: list[int]


NO_WARM_UP = "no warm-up"
MISSING_RUN = "a missing run"
NO_TURNS = "no turns"
FAILED_REQUESTS = "failed requests"
UNEQUAL_LENGTHS = "unequal lengths"
WARM_CACHE = "a warm cache"
FAULTS = (NO_WARM_UP, MISSING_RUN, NO_TURNS, FAILED_REQUESTS, UNEQUAL_LENGTHS, WARM_CACHE)


def find_pairs(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """(ours, theirs) of every round that counts and in which both ran, by round."""
    by_place = {(run["round"], run["engine"]): run for run in runs}
    rounds = sorted({number for number, _ in by_place if number > 0})
    return [
        (by_place[number, "ours"], by_place[number, "theirs"])
        for number in rounds
        if (number, "ours") in by_place and (number, "theirs") in by_place
    ]


def is_same_work(ours: Run, theirs: Run) -> bool:
    """Whether every request was answered by both, with as many tokens, and as much from the cache.

    Example: answers of [8, 5] and [8, 4] tokens are not the same work, nor [8, 0] and [8, 0].
    """
    lens, cached = ours["output_lens"], ours["cached"]
    return all(lens) and lens == theirs["output_lens"] and cached == theirs["cached"]


def honest_ratios(runs: Iterable[Run]) -> list[float]:
    """How many times faster ours was, for each round in which both did the same work.

    The same work has the same tokens, however they are counted: they cancel out, and what is left is their
    seconds over our seconds. The warm-up does not count.

    Example: rounds of 10 and 20 s, and of 8 and 12 s, are [2.0, 1.5].
    """
    return [
        theirs["seconds"] / ours["seconds"] for ours, theirs in find_pairs(runs) if is_same_work(ours, theirs)
    ]


def find_faults(runs: Sequence[Run]) -> list[str]:
    """What is wrong with an experiment, as far as its record shows: those of `FAULTS` that hold, in order.

    * NO_WARM_UP: one of the engines has no run of round 0.
    * MISSING_RUN: in a round that counts only one engine ran.
    * NO_TURNS: of the rounds in which both ran, one engine began in at least two more than the other.
    * FAILED_REQUESTS: in a round that counts a request has no answer.
    * UNEQUAL_LENGTHS: in a round in which both ran, a request that both have answered has more tokens from
      one engine than from the other.
    * WARM_CACHE: in such a round a request has more tokens from the cache with one engine.
    """
    pairs, counted = find_pairs(runs), [run for run in runs if run["round"] > 0]
    began = [ours["started"] < theirs["started"] for ours, theirs in pairs]
    lens = [
        both
        for ours, theirs in pairs
        for both in zip(ours["output_lens"], theirs["output_lens"], strict=True)
    ]
    found = {
        NO_WARM_UP: len({run["engine"] for run in runs if run["round"] == 0}) < 2,
        MISSING_RUN: len(counted) > 2 * len(pairs),
        NO_TURNS: abs(began.count(True) - began.count(False)) >= 2,
        FAILED_REQUESTS: any(0 in run["output_lens"] for run in counted),
        UNEQUAL_LENGTHS: any(a != b for a, b in lens if a and b),
        WARM_CACHE: any(ours["cached"] != theirs["cached"] for ours, theirs in pairs),
    }
    return [fault for fault in FAULTS if found[fault]]


# -- how sure to be ------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A median, and the range in which the true one lies, if rounds scatter by chance alone."""

    low: float
    median: float
    high: float


def median_interval(values: Iterable[float], percent: int = 95) -> Interval:
    """The median of some measurements, and an interval for the true median: the sign test's.

    Each measurement lies below the true median with a chance of one half, so that all n lie on one side of it
    with a chance of 2 / 2ⁿ. From the k-th smallest to the k-th largest is an interval that misses it with a
    chance of 2 · P(fewer than k of n coins show heads). Here k is the largest number for which that is at
    most 100 - percent %; if there is none, nothing is known: (-inf, median, inf). Nothing is assumed about
    how the measurements scatter. ValueError without values.

    >>> median_interval([1.3, 1.1, 1.2, 1.5, 1.4, 1.6])         # six: 2 / 64 is 3 %
    Interval(low=1.1, median=1.35, high=1.6)
    >>> median_interval([1.3, 1.1, 1.2])                        # three: 2 / 8 is 25 %
    Interval(low=-inf, median=1.2, high=inf)
    """
    ranked = sorted(values)
    n = len(ranked)
    if n == 0:
        raise ValueError("an interval of no values")
    k, num_missed = 0, 1  # of the 2ⁿ ways in which n coins can fall, those with at most k heads
    while 2 * num_missed * 100 <= (100 - percent) * 2**n:
        k += 1
        num_missed += math.comb(n, k)
    low, high = (ranked[k - 1], ranked[n - k]) if k else (-math.inf, math.inf)
    return Interval(low, median(ranked), high)


def verdict(ratios: Iterable[float], percent: int = 95) -> str:
    """What may be said of ratios above 1 where ours is faster: "faster", "slower" or "no difference".

    No difference can be claimed as long as the interval holds 1.

    Example: six rounds from 1.1 to 1.6 are "faster"; three such rounds are "no difference".
    """
    low, _, high = median_interval(ratios, percent)
    return "faster" if low > 1 else "slower" if high < 1 else "no difference"


# -- how many at once ----------------------------------------------------------------------------------------


def mean_inside(stays: Iterable[tuple[float, float]]) -> float:
    """How many requests were inside at once, on average, from the first arrival to the last departure.

    A stay is (arrival, departure). This is Little's law: a rate, times the time that each one stays (Little,
    Operations Research 9(3), 1961). ValueError without stays.

    >>> mean_inside([(0.0, 4.0), (1.0, 3.0), (6.0, 10.0)])
    1.0
    """
    stays = list(stays)
    if not stays:
        raise ValueError("a mean over no requests")
    arrivals, departures = zip(*stays, strict=True)
    return (sum(departures) - sum(arrivals)) / (max(departures) - min(arrivals))


def sustained_rate(curve: Mapping[float, float], limit: float) -> float | None:
    """The request rate at which the latency reaches the limit, on the straight line between two measured
    rates; None if it does so at none of them or before the first.

    curve: latency by request rate, in the order of the rates.

    >>> sustained_rate({1.0: 0.1, 2.0: 0.3}, limit=0.2)
    1.5
    """
    for (rate, latency), (next_rate, next_latency) in pairwise(curve.items()):
        if latency < limit <= next_latency:
            return rate + (next_rate - rate) * (limit - latency) / (next_latency - latency)
    return None
