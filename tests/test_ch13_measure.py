"""Chapter 13's grader: measure. `minipaged check ch13` runs it on exercises/ch13_measure.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.course import Layer, Task, expect, expect_error

TASKS = (
    Task(
        1, "what raw times say", stars=1, points=15, minutes=15,
        hints=(
            "percentile: sort; the rank is percent · n / 100 rounded up, and the first rank is place 0.",
            "-(-a // b) is a / b rounded up, in whole numbers. latencies: one loop, three questions to each "
            "request: has it a token, which gaps, did it come to its end?",
            "first_token: times[0] - arrival. Gaps: later - earlier for earlier, later in pairwise(times). "
            "normalised: (times[-1] - arrival) / len(times).",
        ),
        compare="which requests each of the lists leaves out, and where that is said",
    ),
    Task(
        2, "what a step should take", stars=2, points=20, minutes=15,
        hints=(
            "Bytes: numbers times itemsize. FLOPs: 2 for a multiplication and an addition. K and V are two.",
            "Who reads the matrices once for all, and who is multiplied with them one by one? KV heads are "
            "read, query heads are computed.",
            "A part takes max(num_bytes / bytes_per_s, flops / flops_per_s); a step the sum of its parts and "
            "num_launches · launch_s. Break even: itemsize · P / bytes_per_s = 2 · P · T / flops_per_s.",
        ),
        compare="where num_tokens stands and where it does not: that is why batching pays",
    ),
    Task(
        3, "a benchmark that flatters", stars=2, points=20, minutes=20,
        hints=(
            "Two kinds of rounds: those that count (not 0), and those of them in which both ran, which "
            "find_pairs gives.",
            "The same work: no 0 among the lengths, the same lengths, the same cached. Ours is faster if "
            "theirs takes longer.",
            "A missing run: more runs count than are in pairs. Turns: count how often ours started before "
            "theirs. Lengths: compare only those that are both above 0.",
        ),
        compare="what can be repaired afterwards (leave the round out), and what has to be measured again",
    ),
    Task(
        4, "how sure", stars=2, points=15, minutes=15,
        hints=(
            "Work out five and six values by hand, as in the docstring, before you write the loop.",
            "With missed = C(n, 0) + … + C(n, k - 1): k is fine if 2 · missed · 100 <= (100 - percent) · 2ⁿ.",
            "The k-th smallest is ranked[k - 1], the k-th largest ranked[n - k]; for k = 0 there is neither.",
        ),
        compare="that everything is counted in whole numbers, and what becomes of too few rounds",
    ),
    Task(
        5, "how many at once, and where it ends", stars=2, points=15, minutes=15,
        hints=(
            "mean_inside: all the time that was spent inside, over the time that went by.",
            "sustained_rate: look at neighbours only; the first pair with latency < limit <= next_latency.",
            "rate + (next_rate - rate) · (limit - latency) / (next_latency - latency).",
        ),
        compare="what is said about rates that were not measured",
    ),
    Task(
        6, "Figure 13 without a run", stars=3, points=15, minutes=25,
        hints=(
            "A request takes up (slots that it holds) · (steps that it holds them). What do all of them take "
            "up, and how many steps does it take a memory of num_slots to offer that much?",
            "With a reservation a request takes up m · size. Paged, sum the whole blocks over the m steps.",
            "usable slots · sum of all m / sum of all slots · steps.",
        ),
        compare="how long a request counts, and whether a memory of whole reservations can be filled",
    ),
)

# -- task 1
INTERPOLATED = "a value between two measurements: nobody waited that long"
RANK_TOO_LOW = "rounded down: too few of the values are below it"
RANK_TOO_HIGH = "one rank too high: the list begins at 0"
FLOAT_RANK = "the rank was computed in floats, which makes 8 of 7.000000000000001"
UNSORTED = "the values were not sorted"
IN_PLACE = "the list that was passed in was changed"
LARGEST = "the largest value, whatever the percentile"
ABORT_LEFT_OUT = "the first token of an aborted request was left out: it had come, and counts"
ABORT_NORMALISED = "a request that was cut off got a normalised latency: it has no end"
ONLY_STOP = 'an answer that ended with "length" was left out: it came to its end'
NO_WAITING = "the waiting was left out: latency begins with the arrival"
NO_GAP_IS_ZERO = "a request with one token was given a gap of 0, which flatters"
FIRST_IS_A_GAP = "the time to first token was counted as a gap"
PER_GAP = "divided by the gaps, not by the tokens: that is the time per output token, another number"
MEAN_GAPS = "one mean gap for each request, not every gap: the slow ones drown"
NOT_COUNTED = "the requests that never got a token were not counted"
ZERO_FIRST = "a request without a token was given a time to first token"
WHY_UNSERVED = "only those who gave up were counted: whoever got no token is unserved, for whatever reason"
READ_ONCE = "with an iterator: it can be gone through once"

# -- task 2
READ_PER_TOKEN = "the matrices were read once for each token: they are read once for all, so batching pays"
NO_ADDITIONS = "a multiplication and an addition were counted as one: they are 2 FLOPs"
ONLY_K = "only K was read: V is as large"
QUERY_HEADS_READ = "as many heads were read as there are query heads: GQA has fewer of K and V"
KV_HEADS_COMPUTED = "only the KV heads were computed: every query head computes its own scores"
ONLY_SCORE = "only the score was counted: the weighted sum takes as much again"
BITS_OR_NUMBERS = "numbers were counted, not bytes: each has itemsize of them"
IDLE_READS = "a step without tokens reads nothing"
SHARED_HEAD = "layers were forgotten"
ALWAYS_TWO_BYTES = "itemsize was taken to be 2, or to change the number of FLOPs"
SUM_OF_BOTH = "reading and computing were added: a part does both at the same time"
MAX_OF_SUMS = "the longer of the sums: a part can't be computed while another one is still being read"
NO_LAUNCHES = "the launches were left out"
LAUNCH_PER_PART = "the launches were counted for every part"
HIDDEN_LAUNCHES = "the launches were taken to hide behind the rest"
UPSIDE_DOWN = "the machine's two numbers changed places"
NO_HALF = "the 2 of a multiplication and an addition was lost"
ROUNDED_DOWN = "rounded down: with so few tokens the reading still takes longer"

# -- task 3
SUMS_ONLY = "only the sums were compared: one engine had the long answers, the other the short ones"
FAILED_ALIKE = "two failures were taken for the same work: nothing was done"
CACHE_FORGOTTEN = "the cached tokens were not looked at: what comes from a cache is no work"
ORDER_FORGOTTEN = "the requests were compared in another order: each with itself"
OTHER_WAY = "the other way round: above 1 shall mean that ours is faster"
WARM_UP_COUNTED = "the warm-up was counted"
UNEQUAL_COUNTED = "a round in which they did different work was counted"
BEST_OF_OURS = "the best round was taken instead of each one"
OTHER_ROUND = "runs of different rounds were compared: if one is missing, the next one is not its partner"
COMPUTED_ALIKE = "as many tokens computed are not the same work: answers and cache count each for itself"
WARM_UP_ONCE = "one engine's warm-up was enough: the other one began cold"
ONE_BY_ONE = "one round more for one engine was called unfair: an odd number can't be shared evenly"
BEGAN_BY_ROUND = "who begins was not read from `started`"
SOME_TURNS = "two more is unfair, even if the other one began some rounds as well"
MISSING_CANCEL = "one run missing on each side are two, and don't make up for each other"
ROUND_LEFT_OUT = "a round in which nobody ran has no missing run: both or neither is fair"
WARMED_TWICE = "the runs of round 0 were counted: they may be of one engine"
OTHER_LENGTHS = "runs of different rounds were compared, or those of the warm-up"
WARM_UP_BEGAN = "the warm-up was counted among the rounds that somebody began"
FAILED_AS_SHORT = "a request that failed was called an unequal length: it has a name of its own"
INCOMPLETE_FAILED = "a failure in a round without a partner was not seen: every run that counts is looked at"
WARM_UP_FAILED = "a failure in the warm-up was reported: nothing of it counts"
CACHE_AT_ALL = "tokens from the cache were called a fault although both engines had as many"
IN_ORDER = "the faults are not in the order of FAULTS"

# -- task 4
RANGE = "always the smallest to the largest: with many rounds that is far wider than need be"
RANGE_OF_FEW = "the smallest to the largest, although so few rounds say too little"
ONE_SIDED = "only one side was counted: the true median can be missed on either side"
ONE_STEP_IN = "k is one too large: it misses more often than allowed"
ONE_STEP_OUT = "k is one too small: a narrower interval would still be sure enough"
BY_MEAN = "judged by the mean: one round that went wrong moves it, and no interval"
NOT_CLEARLY = "a margin was asked for: 1.001 in every round is above 1"
MEDIAN_LOW = "of an even number of values the median is the mean of the two in the middle"
STRICT = "a chance of exactly 100 - percent % is allowed"
BY_MEDIAN = "judged by the median alone: it may be chance"
TOUCHES = "an interval that ends at 1 holds 1"

# -- task 5
TO_LAST_ARRIVAL = "measured up to the last arrival: those who came before are still inside"
LAST_ARRIVED_LEAVES = "the last to arrive was taken for the last to leave"
FROM_ZERO = "measured from 0 on: it begins with the first arrival"
MEAN_STAY = "the mean stay: that is a time, not a number of requests"
EMPTY_TIME_CUT = "the time in which nobody was inside was left out"
LAST_RATE_BELOW = "the last measured rate below the limit: the knee is between two"
FIRST_RATE_ABOVE = "the first measured rate that is not below the limit: the knee is between two"
EXTRAPOLATED = "a rate that was not measured: beyond the last one, or before the first, nothing is known"
AT_THE_LIMIT = "a latency of exactly the limit has reached it"
LAST_CROSSING = "the last line that crosses the limit, not the first"
FLAT = "a line that stays where it is has no place at which it reaches the limit"
MIDDLE = "the middle between the two rates: it depends on where the limit lies between the latencies"

# -- task 6
MEAN_OF_REQUESTS = "averaged over requests: one that stays longer counts for longer"
FINAL_SIZE = "what it holds in the end was counted for all its steps: paged, it grows"
NO_BLOCKS = "tokens were counted, not whole blocks"
ONE_TOKEN_LATE = "one token more: in its first step it holds its prompt, and no answer yet"
NO_BUDDY = "not rounded up to a power of two"
PARTIAL_BLOCK = "slots that make no whole block were used"
ROUNDED = "rounded: a mean need not be a whole number"


def nine(value: Any) -> Any:
    """A number to nine digits behind the point: what differs there are floats, and no answers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value
    return round(float(value), 9)


def nines(value: Any) -> Any:
    """The same for what is in a tuple or list, at any depth."""
    if isinstance(value, list):
        return [nines(each) for each in value]
    return tuple(nines(each) for each in value) if isinstance(value, tuple) else nine(value)


# -- task 1: what raw times say ----------------------------------------------------------------------


# The values, the percentage, the answer, and wrong answers with the names of their mistakes.
PERCENTILES = [
    ([10, 20, 30, 40], 50, 20, {25.0: INTERPOLATED, 30: RANK_TOO_HIGH}),
    ([40, 10, 30, 20], 50, 20, {10: UNSORTED, 30: RANK_TOO_HIGH, 25.0: INTERPOLATED}),
    ([40, 10, 30, 20], 51, 30, {20: RANK_TOO_LOW, 40: RANK_TOO_HIGH}),
    ([1, 2, 3], 1, 1, {2: RANK_TOO_HIGH}),
    ([7], 99, 7, {}),
    ([5, 5, 1], 34, 5, {1: RANK_TOO_LOW}),
    ([4, 2], 100, 4, {2: UNSORTED}),
]


@pytest.mark.task(1)
def test_a_percentile_is_one_of_the_values(layer: Layer) -> None:
    for values, percent, answer, mistakes in PERCENTILES:
        passed = list(values)
        expect(f"percentile({values}, {percent})", layer.percentile(passed, percent), answer, mistakes)
        changed = [(list(passed), IN_PLACE)] if passed != values else []
        expect("the list that was passed in", passed, values, changed)


@pytest.mark.task(1)
def test_of_a_hundred_values_each_percentile_is_one(layer: Layer) -> None:
    values = list(range(100, 0, -1))
    got = [layer.percentile(values, percent) for percent in range(1, 101)]
    float_ranks = [math.ceil(percent / 100 * 100) for percent in range(1, 101)]
    times_ranks = [math.ceil(0.01 * percent * 100) for percent in range(1, 101)]
    wrong = [(float_ranks, FLOAT_RANK), (times_ranks, FLOAT_RANK), ([100] * 100, LARGEST)]
    what = "percentile(1 … 100 in falling order, p) for p = 1 … 100"
    expect(what, got, list(range(1, 101)), [each for each in wrong if each[0] != list(range(1, 101))])
    expect("percentile(1 … 101, 1)", layer.percentile(list(range(1, 102)), 1), 2, {1: RANK_TOO_LOW})


@pytest.mark.task(1)
@pytest.mark.parametrize("percent", [0, 101, -5])
def test_a_percent_that_is_none_is_refused(layer: Layer, percent: int) -> None:
    expect_error(
        f"percentile([1, 2], {percent})", ValueError, lambda: layer.percentile([1, 2], percent), [percent]
    )


@pytest.mark.task(1)
def test_no_values_have_no_percentile(layer: Layer) -> None:
    expect_error("percentile([], 50)", ValueError, lambda: layer.percentile([], 50))


def report_of(layer: Layer, *requests: tuple[float, list[float], str]) -> Any:
    got = layer.latencies(list(requests))
    return (*nines(tuple(got[:3])), *got[3:]) if isinstance(got, tuple) else got


@pytest.mark.task(1)
def test_one_answer_from_arrival_to_end(layer: Layer) -> None:
    got = report_of(layer, (1.0, [3.0, 3.5, 5.0, 5.25], "stop"))
    mistakes = [
        (([3.0], [0.5, 1.5, 0.25], [1.0625], 0), NO_WAITING),
        (([2.0], [0.5, 1.5, 0.25], [0.5625], 0), NO_WAITING),
        (([2.0], [0.5, 1.5, 0.25], [0.75], 0), PER_GAP),
        (([2.0], [2.0, 0.5, 1.5, 0.25], [1.0625], 0), FIRST_IS_A_GAP),
        (([2.0], [0.75], [1.0625], 0), MEAN_GAPS),
        (([2.0], [0.5, 1.5, 0.25], [nine(4.25 / 3)], 0), PER_GAP),
    ]
    expect(
        'latencies of (1.0, [3.0, 3.5, 5.0, 5.25], "stop")',
        got, ([2.0], [0.5, 1.5, 0.25], [1.0625], 0), mistakes,
    )


@pytest.mark.task(1)
def test_one_token_has_no_gap_and_an_end(layer: Layer) -> None:
    got = report_of(layer, (0.0, [2.0], "length"))
    mistakes = [
        (([2.0], [0.0], [2.0], 0), NO_GAP_IS_ZERO),
        (([2.0], [], [], 0), ONLY_STOP),
        (([2.0], [2.0], [2.0], 0), FIRST_IS_A_GAP),
    ]
    expect('latencies of (0.0, [2.0], "length")', got, ([2.0], [], [2.0], 0), mistakes)


@pytest.mark.task(1)
@pytest.mark.parametrize("reason", ["abort", "capacity"])
def test_what_came_before_an_answer_was_cut_off_counts(layer: Layer, reason: str) -> None:
    got = report_of(layer, (0.0, [1.0, 1.5], "stop"), (0.5, [2.5, 5.5], reason), (2.0, [3.0, 3.5], "length"))
    expected = ([1.0, 2.0, 1.0], [0.5, 3.0, 0.5], [0.75, 0.75], 0)
    mistakes = [
        (([1.0, 1.0], [0.5, 0.5], [0.75, 0.75], 0), ABORT_LEFT_OUT),
        (([1.0, 1.0], [0.5, 0.5], [0.75, 0.75], 1), ABORT_LEFT_OUT),
        (([1.0, 2.0, 1.0], [0.5, 3.0, 0.5], [0.75, 2.5, 0.75], 0), ABORT_NORMALISED),
        (([1.0, 2.0, 1.0], [0.5, 3.0, 0.5], [0.75], 0), ONLY_STOP),
    ]
    expect(f"latencies of three requests, the second of which ended with {reason!r}", got, expected, mistakes)


@pytest.mark.task(1)
def test_who_never_got_a_token_is_counted(layer: Layer) -> None:
    requests = [(0.0, [], "abort"), (1.0, [2.0], "stop"), (1.0, [], "capacity"), (2.0, [4.0, 5.0], "abort")]
    got = report_of(layer, *requests)
    mistakes = [
        (([1.0, 2.0], [1.0], [1.0], 0), NOT_COUNTED),
        (([0.0, 1.0, 0.0, 2.0], [1.0], [1.0], 2), ZERO_FIRST),
        (([1.0, 2.0], [1.0], [1.0], 1), WHY_UNSERVED),
    ]
    expect(f"latencies({requests})", got, ([1.0, 2.0], [1.0], [1.0], 2), mistakes)
    expect("latencies([])", report_of(layer), ([], [], [], 0))


@pytest.mark.task(1)
def test_requests_that_can_be_read_only_once_are_reported(layer: Layer) -> None:
    got = layer.percentile(iter([40, 10, 30, 20]), 50)
    expect(f"percentile(iter([40, 10, 30, 20]), 50), {READ_ONCE}", got, 20)
    got = layer.latencies(iter([(0.0, [], "abort"), (1.0, [2.0, 2.5], "stop")]))
    what = f'latencies(iter([(0.0, [], "abort"), (1.0, [2.0, 2.5], "stop")])), {READ_ONCE}'
    expect(what, got, ([1.0], [0.5], [0.75], 1))


@pytest.mark.task(1)
@settings(max_examples=40)
@given(
    numbers=st.lists(st.integers(-20, 20), min_size=1, max_size=12),
    unit=st.sampled_from([1, 1 / 16]),
    percent=st.integers(1, 100),
)
def test_any_percentile(layer: Layer, numbers: list[int], unit: float, percent: int) -> None:
    values = [unit * number for number in numbers]
    enough = [v for v in values if 100 * sum(each <= v for each in values) >= percent * len(values)]
    expect(f"percentile({values}, {percent})", layer.percentile(list(values), percent), min(enough))


@pytest.mark.task(1)
@settings(max_examples=40)
@given(
    drawn=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.lists(st.integers(0, 2), max_size=3),
            st.sampled_from(["stop", "length", "abort", "capacity"]),
        ),
        max_size=4,
    )
)
def test_any_waits(layer: Layer, drawn: list[tuple[int, list[int], str]]) -> None:
    """Arrivals, and how long each token lets one wait, in sixteenths of a second; some come at once."""
    requests = [
        (arrival / 16, [time / 16 for time in accumulate(waits, initial=arrival)][1:], reason)
        for arrival, waits, reason in drawn
    ]
    passed = [(arrival, list(times), reason) for arrival, times, reason in requests]
    ended = [waits for _, waits, reason in drawn if waits and reason in ("stop", "length")]
    expected = (
        [waits[0] / 16 for _, waits, _ in drawn if waits],
        [wait / 16 for _, waits, _ in drawn for wait in waits[1:]],
        nines([sum(waits) / 16 / len(waits) for waits in ended]),
        sum(not waits for _, waits, _ in drawn),
    )
    expect(f"latencies({requests})", report_of(layer, *passed), expected)
    expect("the requests that were passed in", passed, requests)


# -- task 2: what a step should take -----------------------------------------------------------------


@pytest.mark.task(2)
def test_the_matrices_are_read_once_for_all_tokens(layer: Layer) -> None:
    got = tuple(layer.linear_work(3, num_parameters=1000, itemsize=2))
    mistakes = [
        ((6000, 6000), READ_PER_TOKEN), ((2000, 3000), NO_ADDITIONS), ((1000, 6000), BITS_OR_NUMBERS),
        ((2000, 2000), "the FLOPs of one token: there are three"), ((6000, 2000), UPSIDE_DOWN),
    ]
    expect("linear_work(3, num_parameters=1000, itemsize=2)", got, (2000, 6000), mistakes)
    expect("linear_work(1, 1000, 4)", tuple(layer.linear_work(1, 1000, 4)), (4000, 2000))
    expect("linear_work(0, 1000, 2)", tuple(layer.linear_work(0, 1000, 2)), (0, 0), {(2000, 0): IDLE_READS})


@pytest.mark.task(2)
def test_attention_reads_kv_heads_and_computes_query_heads(layer: Layer) -> None:
    shape = {"num_layers": 3, "num_heads": 8, "num_kv_heads": 2, "head_dim": 16, "itemsize": 2}
    got = tuple(layer.attention_work(10, 7, **shape))
    mistakes = [
        ((1920, 10_752), ONLY_K), ((15_360, 10_752), QUERY_HEADS_READ), ((3840, 2688), KV_HEADS_COMPUTED),
        ((3840, 5376), ONLY_SCORE), ((1920 // 2, 10_752), BITS_OR_NUMBERS), ((1280, 10_752), SHARED_HEAD),
        ((3840, 3584), SHARED_HEAD), ((3840, 15_360), "the tokens that are read were taken for the pairs"),
        ((2688, 10_752), "the pairs were taken for the tokens that are read"),
    ]
    what = "attention_work(10, 7, num_layers=3, num_heads=8, num_kv_heads=2, head_dim=16, itemsize=2)"
    expect(what, got, (3840, 10_752), mistakes)
    expect("attention_work(0, 0, …)", tuple(layer.attention_work(0, 0, **shape)), (0, 0))
    got = tuple(layer.attention_work(10, 7, **shape | {"itemsize": 4}))
    mistakes = [((3840, 10_752), ALWAYS_TWO_BYTES), ((7680, 21_504), ALWAYS_TWO_BYTES)]
    expect("the same with itemsize=4", got, (7680, 10_752), mistakes)


@pytest.mark.task(2)
@settings(max_examples=30)
@given(
    num_read=st.integers(0, 3), num_pairs=st.integers(0, 3), num_layers=st.integers(1, 2),
    num_kv_heads=st.integers(1, 2), group=st.integers(1, 3), head_dim=st.integers(1, 3),
    itemsize=st.integers(1, 4),
)
def test_any_work_number_by_number(
    layer: Layer, num_read: int, num_pairs: int, num_layers: int, num_kv_heads: int, group: int,
    head_dim: int, itemsize: int,
) -> None:
    read = product("KV", *map(range, (num_read, num_layers, num_kv_heads, head_dim)))
    num_heads = group * num_kv_heads
    done = product("·+", ("score", "sum"), *map(range, (num_pairs, num_layers, num_heads, head_dim)))
    expected = (itemsize * len(list(read)), len(list(done)))
    arguments = (num_read, num_pairs, num_layers, num_heads, num_kv_heads, head_dim, itemsize)
    expect(f"attention_work{arguments}", tuple(layer.attention_work(*arguments)), expected)
    done = product("·+", *map(range, (num_pairs, head_dim)))
    expected = (itemsize * head_dim if num_pairs else 0, len(list(done)))
    arguments = (num_pairs, head_dim, itemsize)
    expect(f"linear_work{arguments}", tuple(layer.linear_work(*arguments)), expected)


@pytest.mark.task(2)
def test_a_large_model_exactly(layer: Layer) -> None:
    """OPT-13B decodes with 64 sequences of 1,000 tokens: 819,200 bytes and as many FLOPs for each."""
    matrices = tuple(layer.linear_work(64, 12_840_304_640, 2))
    expect("linear_work(64, 12_840_304_640, 2)", matrices, (25_680_609_280, 1_643_558_993_920))
    pairs = tuple(layer.attention_work(64_000, 64_000, 40, 40, 40, 128, 2))
    expect("attention_work(64_000, 64_000, 40, 40, 40, 128, 2)", pairs, (64_000 * 819_200, 64_000 * 819_200))


def seconds(layer: Layer, parts: Sequence[tuple[int, int]], *machine: float) -> Any:
    work = layer.given("minipaged.measure").Cost
    return nine(layer.work_seconds([work(*part) for part in parts], *machine))


@pytest.mark.task(2)
def test_a_part_takes_the_longer_of_reading_and_computing(layer: Layer) -> None:
    got = seconds(layer, [(2000, 6000)], 1000.0, 2000.0)
    expect(
        "work_seconds([Cost(2000, 6000)], 1000, 2000)", got, 3.0,
        {5.0: SUM_OF_BOTH, 2.0: "the shorter of the two", 6.0: UPSIDE_DOWN},
    )
    expect("the same with 4,000 bytes", seconds(layer, [(4000, 6000)], 1000.0, 2000.0), 4.0)
    expect("work_seconds([], 1000, 2000)", seconds(layer, [], 1000.0, 2000.0), 0.0)


@pytest.mark.task(2)
def test_parts_come_one_after_the_other_and_launches_besides(layer: Layer) -> None:
    parts = [(2000, 6000), (5000, 2000)]
    what = "work_seconds([Cost(2000, 6000), Cost(5000, 2000)], 1000, 2000)"
    mistakes = {7.0: MAX_OF_SUMS, 11.0: SUM_OF_BOTH, 5.0: "the longest part alone: the others take time too"}
    expect(what, seconds(layer, parts, 1000.0, 2000.0), 8.0, mistakes)
    mistakes = {
        8.0: NO_LAUNCHES,
        48.0: LAUNCH_PER_PART,
        8.5: "one launch: there are 40",
        20.0: HIDDEN_LAUNCHES,
    }
    got = seconds(layer, parts, 1000.0, 2000.0, 40, 0.5)
    expect(f"{what[:-1]}, num_launches=40, launch_s=0.5)", got, 28.0, mistakes)
    got = seconds(layer, parts, 1000.0, 2000.0, 6, 0.5)
    expect(f"{what[:-1]}, num_launches=6, launch_s=0.5)", got, 11.0)


@pytest.mark.task(2)
@settings(max_examples=40)
@given(
    parts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5),
    bytes_per_s=st.sampled_from([1e6, 2e6, 3e6]),
    launches=st.integers(0, 2),
)
def test_any_parts(layer: Layer, parts: list[tuple[int, int]], bytes_per_s: float, launches: int) -> None:
    """Some microseconds, which is what a real kernel takes, and parts that can be gone through once."""
    work = layer.given("minipaged.measure").Cost
    got = layer.work_seconds(iter([work(*part) for part in parts]), bytes_per_s, 2e6, launches, 5e-6)
    each = [max(Fraction(part[0], int(bytes_per_s)), Fraction(part[1], 2_000_000)) for part in parts]
    what = f"10⁶ · work_seconds(iter({parts}), {bytes_per_s:g}, 2e+06, {launches}, 5e-06)"
    micros = nine(1e6 * got) if isinstance(got, float | int) else got
    expect(what, micros, nine(float(10**6 * sum(each) + 5 * launches)))


# itemsize, bytes and FLOPs a second, the answer, and wrong answers with the names of their mistakes.
CROSSINGS = [
    (2, 1000.0, 2000.0, 2, {1: UPSIDE_DOWN, 4: NO_HALF}),
    (4, 1000.0, 2000.0, 4, {8: NO_HALF, 2: "itemsize was left out: larger numbers take longer to read"}),
    (2, 1.555e12, 312e12, 201, {200: ROUNDED_DOWN, 402: NO_HALF, 401: NO_HALF}),
    (2, 3.35e12, 989e12, 296, {295: ROUNDED_DOWN}),
    # Powers of two: in whatever order one divides, it comes out even.
    (4, 2.0**34, 2.0**37, 16, {17: "one token more: taking equally long is no less time"}),
    (2, 100.0, 1.0, 1, {0: ROUNDED_DOWN}),
]


@pytest.mark.task(2)
def test_where_the_two_lines_cross(layer: Layer) -> None:
    for itemsize, bytes_per_s, flops_per_s, tokens, mistakes in CROSSINGS:
        got = layer.break_even_tokens(itemsize, bytes_per_s, flops_per_s)
        as_float = {float(tokens): "a float: a number of tokens is whole"}
        what = f"break_even_tokens({itemsize}, {bytes_per_s:g}, {flops_per_s:g})"
        if isinstance(got, float):
            expect(what, got, tokens, [*as_float.items(), (got, "not rounded up to a whole number")])
        expect(what, got, tokens, mistakes)


@pytest.mark.task(2)
@settings(max_examples=30)
@given(num_tokens=st.integers(1, 9), context_len=st.integers(9, 40), launches=st.integers(0, 3))
def test_any_small_step(layer: Layer, num_tokens: int, context_len: int, launches: int) -> None:
    """A chunk at the end of a context, added up number by number."""
    pairs = sum(context_len - num_tokens + place for place in range(1, num_tokens + 1))
    times = [Fraction(0), Fraction(0), Fraction(0), Fraction(0)]
    times[0] = Fraction(500 * 2, 64)
    times[1] = Fraction(500 * 2 * num_tokens, 128)
    times[2] = Fraction(sum(2 * 2 * 4 * 2 for _ in range(context_len)) * 3, 64)  # K, V · heads · size · bytes
    times[3] = Fraction(sum(2 * 2 * 4 * 4 for _ in range(pairs)) * 3, 128)
    expected = float(max(times[0], times[1]) + max(times[2], times[3]) + Fraction(launches, 4))
    parts = [
        layer.linear_work(num_tokens, 500, 2),
        layer.attention_work(context_len, pairs, 3, 4, 2, 4, 2),
    ]
    got = nine(layer.work_seconds(parts, 64.0, 128.0, launches, 0.25))
    what = f"the price of a step of {num_tokens} tokens in a context of {context_len}, {launches} launches"
    expect(what, got, nine(expected))


# -- task 3: a benchmark that flatters ---------------------------------------------------------------


def make_run(
    engine: str, number: int, started: float, seconds: float, **changed: list[int]
) -> dict[str, Any]:
    run = {"engine": engine, "round": number, "started": started, "seconds": seconds}
    return run | {"prompt_lens": [30, 12], "cached": [0, 0], "output_lens": [8, 5]} | changed


def fair(num_rounds: int = 3, first: str = "ours") -> list[dict[str, Any]]:
    """A record without fault: a warm-up, then rounds in which the engines take turns; theirs takes longer."""
    runs, now = [], 0.0
    for number in range(num_rounds + 1):
        other = "theirs" if first == "ours" else "ours"
        for engine in (first, other) if number % 2 else (other, first):
            seconds = (8.0 if engine == "ours" else 10.0) + number
            runs.append(make_run(engine, number, now, seconds))
            now += seconds
    return runs


def change(runs: list[dict[str, Any]], engine: str, number: int, **changed: Any) -> list[dict[str, Any]]:
    """The same record with one run changed."""
    return [run | changed if (run["engine"], run["round"]) == (engine, number) else dict(run) for run in runs]


def without(runs: list[dict[str, Any]], engine: str, number: int) -> list[dict[str, Any]]:
    return [dict(run) for run in runs if (run["engine"], run["round"]) != (engine, number)]


# What is special about our run and about theirs, the answer, and the mistake of the other one.
SAME_OR_NOT = [
    ({}, {}, True, "equal work was not seen as such"),
    ({}, {"output_lens": [8, 4]}, False, UNEQUAL_COUNTED),
    ({}, {"output_lens": [5, 8]}, False, SUMS_ONLY),
    ({"output_lens": [8, 0]}, {"output_lens": [8, 0]}, False, FAILED_ALIKE),
    ({}, {"output_lens": [8, 0]}, False, UNEQUAL_COUNTED),
    ({"output_lens": [0, 5]}, {}, False, UNEQUAL_COUNTED),
    ({"cached": [16, 0]}, {}, False, CACHE_FORGOTTEN),
    ({"cached": [16, 0]}, {"cached": [0, 16]}, False, CACHE_FORGOTTEN),
    ({"cached": [16, 0]}, {"cached": [16, 0]}, True, CACHE_AT_ALL),
    ({"output_lens": [9, 5], "cached": [1, 0]}, {}, False, COMPUTED_ALIKE),
    ({}, {"cached": [0, 1], "output_lens": [8, 6]}, False, COMPUTED_ALIKE),
]


@pytest.mark.task(3)
def test_the_same_work_is_the_same_in_every_request(layer: Layer) -> None:
    for ours, theirs, same, mistake in SAME_OR_NOT:
        got = layer.is_same_work(
            make_run("ours", 1, 0.0, 8.0, **ours), make_run("theirs", 1, 8.0, 9.0, **theirs)
        )
        expect(f"is_same_work: ours {ours or 'as asked'}, theirs {theirs or 'as asked'}", got, same,
               {not same: mistake})


@pytest.mark.task(3)
def test_ratios_of_equal_work_are_those_of_the_seconds(layer: Layer) -> None:
    runs = fair()
    runs = change(change(runs, "ours", 1, seconds=10.0), "theirs", 1, seconds=20.0)
    runs = change(change(runs, "ours", 2, seconds=8.0), "theirs", 2, seconds=12.0)
    runs = change(change(runs, "ours", 3, seconds=8.0), "theirs", 3, seconds=4.0)
    runs = change(change(runs, "ours", 0, seconds=8.0), "theirs", 0, seconds=80.0)
    mistakes = [
        ([10.0, 2.0, 1.5, 0.5], WARM_UP_COUNTED), ([0.5, nine(2 / 3), 2.0], OTHER_WAY),
        ([2.5, 1.5, 0.5], BEST_OF_OURS), ([2.0], BEST_OF_OURS),
    ]
    expect("honest_ratios of three rounds", nines(layer.honest_ratios(runs)), [2.0, 1.5, 0.5], mistakes)
    what = "honest_ratios of the same runs in another order"
    expect(what, nines(layer.honest_ratios(runs[::-1])), [2.0, 1.5, 0.5])


@pytest.mark.task(3)
def test_a_round_of_unequal_work_is_left_out(layer: Layer) -> None:
    runs = change(fair(4), "theirs", 1, output_lens=[8, 4])
    runs = change(runs, "ours", 3, cached=[16, 0])
    runs = without(runs, "ours", 4)
    got = nines(layer.honest_ratios(runs))
    mistakes = [(nines([11 / 9, 1.2, 13 / 11]), UNEQUAL_COUNTED), (nines([1.2, 13 / 11]), CACHE_FORGOTTEN)]
    what = "honest_ratios of 4 rounds: one with unequal lengths, one with a warm cache, one without a run"
    expect(what, got, [1.2], mistakes)
    runs = without(without(fair(4), "ours", 2), "theirs", 3)
    mistakes = [(nines([11 / 9, 12 / 11, 14 / 12]), OTHER_ROUND)]
    what = "honest_ratios of 4 rounds: ours lacks round 2, theirs round 3"
    expect(what, nines(layer.honest_ratios(iter(runs))), nines([11 / 9, 14 / 12]), mistakes)
    expect("honest_ratios of a warm-up alone", layer.honest_ratios(fair(0)), [], [([1.25], WARM_UP_COUNTED)])


NONE = "a fair experiment was found faulty"


@pytest.mark.task(3)
def test_a_fair_experiment_has_no_faults(layer: Layer) -> None:
    for num_rounds, first in product((1, 2, 3, 4), ("ours", "theirs")):
        got = layer.find_faults(fair(num_rounds, first))
        mistakes = [(["no turns"], ONE_BY_ONE if num_rounds % 2 else WARM_UP_BEGAN)]
        expect(f"find_faults of a fair record, {num_rounds} rounds, {first} begin", got, [], mistakes)


def in_a_row(num_rounds: int, first: str) -> list[dict[str, Any]]:
    """One engine always runs first."""
    order = (first, "theirs" if first == "ours" else "ours")
    places = [(number, engine) for number in range(num_rounds + 1) for engine in order]
    return [make_run(engine, number, 10.0 * place, 9.0) for place, (number, engine) in enumerate(places)]


# What is special about a record, the record, its faults, and wrong answers with the names of their mistakes.
FAULTY: list[tuple[str, list[dict[str, Any]], list[str], list[tuple[list[str], str]]]] = [
    ("ours has no warm-up", without(fair(), "ours", 0), ["no warm-up"], [([], WARM_UP_ONCE)]),
    ("theirs has no warm-up", without(fair(), "theirs", 0), ["no warm-up"], [([], WARM_UP_ONCE)]),
    ("nobody has a warm-up", fair()[2:], ["no warm-up"], []),
    ("their run 2 is missing", without(fair(4), "theirs", 2), ["a missing run"], []),
    ("our run 3 is missing", without(fair(4), "ours", 3), ["a missing run"], []),
    ("ours always first", in_a_row(2, "ours"), ["no turns"], []),
    ("theirs always first", in_a_row(5, "theirs"), ["no turns"], []),
    ("ours first in its one round", in_a_row(1, "ours"), [], [(["no turns"], ONE_BY_ONE)]),
    ("all of ours, then all of theirs",
     [make_run(engine, number, 100.0 * place + 10 * number, 9.0)
      for place, engine in enumerate(("ours", "theirs")) for number in range(4)], ["no turns"], []),
    ("a request of ours fails", change(fair(), "ours", 2, output_lens=[0, 5]), ["failed requests"],
     [(["failed requests", "unequal lengths"], FAILED_AS_SHORT), (["unequal lengths"], FAILED_AS_SHORT)]),
    ("both fail at the same request",
     change(change(fair(), "ours", 2, output_lens=[8, 0]), "theirs", 2, output_lens=[8, 0]),
     ["failed requests"], []),
    ("a request of theirs fails in a round that ours lacks",
     without(change(fair(4), "theirs", 2, output_lens=[0, 5]), "ours", 2),
     ["a missing run", "failed requests"], [(["a missing run"], INCOMPLETE_FAILED)]),
    ("a request fails in the warm-up", change(fair(), "ours", 0, output_lens=[0, 5]), [],
     [(["failed requests"], WARM_UP_FAILED), (["unequal lengths"], WARM_UP_FAILED)]),
    ("theirs stops early", change(fair(), "theirs", 3, output_lens=[8, 3]), ["unequal lengths"], []),
    ("the answers' lengths are swapped", change(fair(), "ours", 1, output_lens=[5, 8]),
     ["unequal lengths"], []),
    ("one fails and the other one is short", change(fair(), "ours", 1, output_lens=[0, 4]),
     ["failed requests", "unequal lengths"], []),
    ("our cache is warm", change(fair(), "ours", 2, cached=[16, 0]), ["a warm cache"], []),
    ("both caches, of different prompts",
     change(change(fair(), "ours", 2, cached=[16, 0]), "theirs", 2, cached=[0, 16]),
     ["a warm cache"], []),
    ("both have the same from the cache",
     change(change(fair(), "ours", 2, cached=[16, 0]), "theirs", 2, cached=[16, 0]), [],
     [(["a warm cache"], CACHE_AT_ALL)]),
    ("the cache is warm in the warm-up", change(fair(), "ours", 0, cached=[16, 0]), [],
     [(["a warm cache"], WARM_UP_COUNTED)]),
    ("ours lacks round 2, theirs round 3", without(without(fair(4), "ours", 2), "theirs", 3),
     ["a missing run"], [([], MISSING_CANCEL)]),
    ("theirs lacks the only round that counts", without(fair(1), "theirs", 1), ["a missing run"], []),
    ("nobody ran in round 2", without(without(fair(4), "ours", 2), "theirs", 2), [],
     [(["a missing run"], ROUND_LEFT_OUT)]),
    ("ours was warmed up twice, theirs never",
     [make_run("ours", 0, -20.0, 9.0), *without(fair(), "theirs", 0)], ["no warm-up"], [([], WARMED_TWICE)]),
    ("ours began three of four rounds", fair(3) + in_a_row(4, "ours")[-2:], ["no turns"], [([], SOME_TURNS)]),
    ("theirs began four of six rounds",
     fair(4) + [run | {"started": 200 + run["started"]} for run in in_a_row(6, "theirs")[-4:]],
     ["no turns"], [([], SOME_TURNS)]),
    ("the warm-up has other lengths with ours", change(fair(), "ours", 0, output_lens=[7, 5]), [],
     [(["unequal lengths"], OTHER_LENGTHS)]),
    ("both have other lengths in round 2",
     change(change(fair(), "ours", 2, output_lens=[7, 9]), "theirs", 2, output_lens=[7, 9]), [],
     [(["unequal lengths"], OTHER_LENGTHS)]),
    ("an empty record", [], ["no warm-up"], []),
    ("they took turns, and the record is sorted by engine",
     sorted(fair(4), key=lambda run: str(run["engine"])), [], [(["no turns"], BEGAN_BY_ROUND)]),
]


@pytest.mark.task(3)
def test_every_fault_is_found_and_no_other(layer: Layer) -> None:
    for what, runs, faults, mistakes in FAULTY:
        passed = [dict(run) for run in runs]
        expect(f"find_faults: {what}", layer.find_faults(passed), faults, mistakes)
        expect("the record that was passed in", passed, runs)


ALL = ["no warm-up", "a missing run", "no turns", "failed requests", "unequal lengths", "a warm cache"]


@pytest.mark.task(3)
def test_all_faults_at_once_in_the_order_of_the_list(layer: Layer) -> None:
    runs = change(in_a_row(5, "ours"), "ours", 2, cached=[16, 0], output_lens=[0, 4])
    runs = without(without(runs, "theirs", 0), "theirs", 5)
    wrong = [(sorted(ALL), IN_ORDER), (ALL[::-1], IN_ORDER)]
    expect("find_faults of the worst record", layer.find_faults(runs), ALL, wrong)


@pytest.mark.task(3)
@settings(max_examples=40)
@given(data=st.data())
def test_any_record(layer: Layer, data: st.DataObject) -> None:
    """Records put together of faults that are known."""
    num_rounds = data.draw(st.integers(2, 5))
    turns = data.draw(st.booleans())
    runs = fair(num_rounds) if turns else in_a_row(num_rounds, "theirs")
    spoiled = data.draw(st.lists(st.tuples(st.integers(1, num_rounds), st.sampled_from("flc")), max_size=3))
    bad = dict(spoiled)
    lens = {"f": {"output_lens": [8, 0]}, "l": {"output_lens": [7, 5]}, "c": {"cached": [0, 12]}}
    for number, kind in bad.items():
        runs = change(runs, data.draw(st.sampled_from(["ours", "theirs"])), number, **lens[kind])
    is_cold = data.draw(st.booleans())
    if is_cold:
        runs = without(runs, "ours", 0)
    kinds = set(bad.values())
    holds = [is_cold, False, not turns, "f" in kinds, "l" in kinds, "c" in kinds]
    expected = [name for name, is_there in zip(ALL, holds, strict=True) if is_there]
    expect(f"find_faults({runs})", layer.find_faults(runs), expected)
    good = [number for number in range(1, num_rounds + 1) if number not in bad]
    ratios = [(10 + number) / (8 + number) if turns else 1.0 for number in good]
    expect(f"honest_ratios({runs})", nines(layer.honest_ratios(runs)), nines(ratios))


# -- task 4: how sure --------------------------------------------------------------------------------


def interval(layer: Layer, values: list[float], percent: int = 95) -> Any:
    got = layer.median_interval(values, percent)
    return nines(tuple(got)) if isinstance(got, tuple) else got


@pytest.mark.task(4)
def test_six_values_are_the_fewest_for_95_percent(layer: Layer) -> None:
    six = [1.3, 1.1, 1.2, 1.5, 1.4, 2.2]
    mistakes = [
        ((1.1, 1.3, 2.2), MEDIAN_LOW), ((1.1, 1.4, 2.2), MEDIAN_LOW), ((1.2, 1.35, 1.5), ONE_STEP_IN),
        ((-math.inf, 1.35, math.inf), ONE_STEP_OUT), ((1.1, nine(sum(six) / 6), 2.2), "the mean"),
        ((1.3, 1.35, 2.2), "the values were not sorted"),
    ]
    expect(f"median_interval({six})", interval(layer, six), (1.1, 1.35, 2.2), mistakes)
    five = six[:5]
    mistakes = [((1.1, 1.3, 1.5), RANGE_OF_FEW), ((1.2, 1.3, 1.4), ONE_STEP_IN)]
    expect(f"median_interval({five})", interval(layer, five), (-math.inf, 1.3, math.inf), mistakes)
    expect(f"median_interval({five}, 90)", interval(layer, five, 90), (1.1, 1.3, 1.5))


@pytest.mark.task(4)
def test_three_rounds_say_nothing_at_95_percent_and_one_never(layer: Layer) -> None:
    three = [2.07, 1.94, 2.26]
    unknown = (-math.inf, 2.07, math.inf)
    expect(f"median_interval({three})", interval(layer, three), unknown, [((1.94, 2.07, 2.26), RANGE_OF_FEW)])
    expect(
        f"median_interval({three}, 75)", interval(layer, three, 75), (1.94, 2.07, 2.26), [(unknown, STRICT)]
    )
    got = interval(layer, [3.0], 50)
    expect("median_interval([3.0], 50)", got, (-math.inf, 3.0, math.inf), [((3.0, 3.0, 3.0), RANGE_OF_FEW)])
    expect_error("median_interval([])", ValueError, lambda: layer.median_interval([]))


@pytest.mark.task(4)
def test_many_values_make_it_narrow(layer: Layer) -> None:
    """Tables of the sign test for 95 %: of 20 values the 6th to the 15th, of 25 the 8th to the 18th."""
    twenty = [float(value) for value in range(20, 0, -1)]
    mistakes = [
        ((1.0, 10.5, 20.0), RANGE), ((7.0, 10.5, 14.0), ONE_STEP_IN), ((5.0, 10.5, 16.0), ONE_STEP_OUT),
        ((6.0, 10.0, 15.0), MEDIAN_LOW), ((6.0, 11.0, 15.0), MEDIAN_LOW),
    ]
    expect("median_interval(1 … 20 in falling order)", interval(layer, twenty), (6.0, 10.5, 15.0), mistakes)
    values = [float(value) for value in range(1, 26)]
    mistakes = [((9.0, 13.0, 17.0), ONE_SIDED), ((7.0, 13.0, 19.0), ONE_STEP_OUT)]
    expect("median_interval(1 … 25)", interval(layer, values), (8.0, 13.0, 18.0), mistakes)
    eight = [float(value) for value in range(1, 9)]
    expect("median_interval(1 … 8)", interval(layer, eight), (1.0, 4.5, 8.0), [((2.0, 4.5, 7.0), ONE_SIDED)])
    expect("the beginning of the list that was passed in", twenty[:1], [20.0], [([1.0], IN_PLACE)])


def ends_by_throwing_coins(n: int, percent: int) -> tuple[int, int] | None:
    """Which places of n sorted values are the interval's ends, counted from 1; None if it has none."""
    ways = [1]  # in which the coins thrown so far show 0, 1, … heads
    for _ in range(n):
        ways = [tails + heads for tails, heads in zip([*ways, 0], [0, *ways], strict=True)]
    best, missed = None, 0
    for k in range(1, n + 1):
        missed += ways[k - 1] + ways[n - k + 1]  # fewer than k lie below the true median, or fewer above it
        if 100 * missed > (100 - percent) * 2**n:
            break
        best = (k, n + 1 - k)
    return best


@pytest.mark.task(4)
@settings(max_examples=60)
@given(
    numbers=st.lists(st.integers(-20, 20), min_size=1, max_size=40),
    percent=st.one_of(st.sampled_from([50, 75, 95]), st.integers(1, 99)),
)
def test_any_values_by_throwing_coins(layer: Layer, numbers: list[int], percent: int) -> None:
    values = [number / 16 for number in numbers]
    ranked, ends = sorted(values), ends_by_throwing_coins(len(values), percent)
    low, high = (ranked[ends[0] - 1], ranked[ends[1] - 1]) if ends else (-math.inf, math.inf)
    middle = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
    passed = list(values)
    what = f"median_interval({values}, {percent})"
    expect(what, interval(layer, passed, percent), nines((low, middle, high)))
    expect("the list that was passed in", passed, values, [(ranked, IN_PLACE)] if ranked != values else [])


@pytest.mark.task(4)
def test_more_values_than_floats_can_count(layer: Layer) -> None:
    """2¹⁰³⁰ is no float any more; still few enough for adding the sum up anew for each k. And a chance of a
    little more than 5 % is more than 5 %."""
    ends = ends_by_throwing_coins(1030, 95)
    assert ends
    got = nines(tuple(layer.median_interval(iter(range(1, 1031)))))
    what = f"median_interval(iter(range(1, 1031))), {READ_ONCE}"
    expect(what, got, (float(ends[0]), 515.5, float(ends[1])))
    for n in range(6, 40):
        ends = ends_by_throwing_coins(n, 95)
        assert ends
        got = interval(layer, [float(value) for value in range(1, n + 1)])
        mistakes = [((ends[0] + 1.0, (n + 1) / 2, ends[1] - 1.0), ONE_STEP_IN)]
        expect(f"median_interval(1 … {n})", got, (float(ends[0]), (n + 1) / 2, float(ends[1])), mistakes)


# Ratios, the verdict, and wrong ones with the names of their mistakes.
VERDICTS = [
    ([1.1, 1.2, 1.3, 1.4, 1.5, 1.6], "faster", {"slower": OTHER_WAY}),
    ([3.0, 4.0, 5.0, 0.99, 6.0, 7.0], "no difference", {"faster": BY_MEDIAN}),
    ([0.9, 0.8, 0.7, 0.6, 0.95, 0.5], "slower", {"faster": OTHER_WAY}),
    ([1.1, 1.2, 1.3], "no difference", {"faster": RANGE_OF_FEW}),
    ([1.0, 1.2, 1.3, 1.4, 1.5, 1.6], "no difference", {"faster": TOUCHES}),
    ([0.9, 0.8, 0.7, 0.6, 1.0, 0.5], "no difference", {"slower": TOUCHES}),
    ([1.0] * 12, "no difference", {"faster": TOUCHES, "slower": TOUCHES}),
    ([0.5] + [1.1] * 11, "faster", {"no difference": RANGE}),
    ([1.001] * 6, "faster", {"no difference": NOT_CLEARLY}),
    ([0.999] * 6, "slower", {"no difference": NOT_CLEARLY}),
    ([0.2] + [1.05] * 11, "faster", {"slower": BY_MEAN, "no difference": BY_MEAN}),
    ([9.0] + [0.95] * 11, "slower", {"faster": BY_MEAN, "no difference": BY_MEAN}),
]


@pytest.mark.task(4)
def test_a_difference_is_claimed_only_if_the_interval_lies_beside_1(layer: Layer) -> None:
    for ratios, answer, mistakes in VERDICTS:
        expect(f"verdict({ratios})", layer.verdict(ratios), answer, mistakes)


@pytest.mark.task(4)
def test_a_verdict_is_as_sure_as_one_asks(layer: Layer) -> None:
    ratios = [1.1, 1.2, 1.3, 1.4]
    wrong = {"no difference": "percent was not passed on"}
    expect(f"verdict({ratios}, 80)", layer.verdict(ratios, 80), "faster", wrong)
    expect(f"verdict({ratios})", layer.verdict(ratios), "no difference")


# -- task 5: how many at once, and where it ends -----------------------------------------------------


@pytest.mark.task(5)
def test_requests_inside_by_hand(layer: Layer) -> None:
    stays = [(0.0, 4.0), (1.0, 3.0), (6.0, 10.0)]
    mistakes = {
        nine(10 / 3): MEAN_STAY, nine(10 / 6): TO_LAST_ARRIVAL, 1.25: EMPTY_TIME_CUT,
    }
    expect(f"mean_inside({stays})", nine(layer.mean_inside(stays)), 1.0, mistakes)


@pytest.mark.task(5)
def test_from_the_first_arrival_to_the_last_departure(layer: Layer) -> None:
    stays = [(4.0, 20.0), (6.0, 8.0), (4.0, 12.0)]
    mistakes = {1.3: FROM_ZERO, nine(26 / 8): LAST_ARRIVED_LEAVES, 6.5: LAST_ARRIVED_LEAVES,
                13.0: TO_LAST_ARRIVAL, nine(26 / 3): MEAN_STAY}
    expect(f"mean_inside({stays})", nine(layer.mean_inside(stays)), 1.625, mistakes)
    expect("mean_inside([(2.0, 5.0)])", nine(layer.mean_inside([(2.0, 5.0)])), 1.0)
    expect_error("mean_inside([])", ValueError, lambda: layer.mean_inside([]))


@pytest.mark.task(5)
@settings(max_examples=30)
@given(stays=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_any_stays_quarter_by_quarter(layer: Layer, stays: list[tuple[int, int]]) -> None:
    """In quarters of a second."""
    spans = [(arrival, arrival + length) for arrival, length in stays]
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    inside = sum(start <= quarter < end for quarter in range(first, last) for start, end in spans)
    seconds = [(start / 4, end / 4) for start, end in spans]
    passed = list(seconds)
    expect(f"mean_inside({seconds})", nine(layer.mean_inside(passed)), nine(inside / (last - first)))
    expect("the list that was passed in", passed, seconds)
    what = f"mean_inside(iter({seconds})), {READ_ONCE}"
    expect(what, nine(layer.mean_inside(iter(seconds))), nine(inside / (last - first)))


# A curve, the limit, the answer, and wrong answers with the names of their mistakes.
KNEES = [
    ({1.0: 0.1, 2.0: 0.3}, 0.2, 1.5, {1.0: LAST_RATE_BELOW, 2.0: FIRST_RATE_ABOVE}),
    ({1.0: 0.1, 2.0: 0.2, 4.0: 0.6}, 0.3, 2.5,
     {2.0: LAST_RATE_BELOW, 4.0: FIRST_RATE_ABOVE, 3.0: MIDDLE, 2.2: "the line from the first rate"}),
    ({1.0: 0.1, 2.0: 0.3}, 0.3, 2.0, {None: AT_THE_LIMIT}),
    ({1.0: 0.1, 2.0: 0.15}, 0.2, None, {3.0: EXTRAPOLATED, 2.0: EXTRAPOLATED}),
    ({1.0: 0.5, 2.0: 0.9}, 0.2, None, {0.25: EXTRAPOLATED, 1.0: EXTRAPOLATED}),
    ({1.0: 0.2, 2.0: 0.4}, 0.2, None, {1.0: AT_THE_LIMIT}),
    ({1.0: 0.1, 2.0: 0.3, 3.0: 0.1, 4.0: 0.3}, 0.2, 1.5, {3.5: LAST_CROSSING}),
    ({1.0: 0.3, 2.0: 0.1, 3.0: 0.3}, 0.2, 2.5, {1.5: "a line that comes from above the limit"}),
    ({1.0: 0.1, 2.0: 0.1, 3.0: 0.3}, 0.2, 2.5, {1.5: FLAT, 2.0: LAST_RATE_BELOW}),
    ({1.0: 0.1, 2.0: 0.3, 3.0: 0.3}, 0.2, 1.5, {2.0: FIRST_RATE_ABOVE}),
    ({}, 0.2, None, {}),
    ({1.0: 0.1}, 0.2, None, {1.0: EXTRAPOLATED}),
]


@pytest.mark.task(5)
def test_the_knee_lies_where_the_line_reaches_the_limit(layer: Layer) -> None:
    for curve, limit, rate, mistakes in KNEES:
        passed = dict(curve)
        expect(f"sustained_rate({curve}, {limit})", nine(layer.sustained_rate(passed, limit)), rate, mistakes)
        expect("the curve that was passed in", passed, curve)


# -- task 6: the challenge ---------------------------------------------------------------------------


def at_once(layer: Layer, *arguments: Any) -> Any:
    return nine(layer.predict_at_once(*arguments))


@pytest.mark.task(6)
def test_two_requests_by_hand(layer: Layer) -> None:
    lengths = [(3, 2), (5, 4)]
    paged = {
        nine(64 / ((4 + 8) / 2)): MEAN_OF_REQUESTS, nine(64 * 6 / (8 * 2 + 12 * 4)): FINAL_SIZE,
        nine(64 * 6 / (7 + 26)): NO_BLOCKS, nine(64 * 6 / (12 + 36)): ONE_TOKEN_LATE,
        nine(64 * 6 / (8 + 36)): ONE_TOKEN_LATE, 9.0: ROUNDED, 10.0: ROUNDED,
        nine(64 / ((4 + 8) / 2)): MEAN_OF_REQUESTS,
    }
    what = f'predict_at_once({lengths}, 64, "paged", block_size=4)'
    expect(what, at_once(layer, lengths, 64, "paged", 4), 9.6, paged)
    oracle = {nine(64 * 6 / (5 * 2 + 9 * 4)): NO_BUDDY, nine(64 / 12): MEAN_OF_REQUESTS, 4.0: ROUNDED,
              5.0: ROUNDED, nine(64 * 6 / (4 * 2 + 8 * 4)): NO_BUDDY}
    what = f'predict_at_once({lengths}, 64, "oracle", block_size=4)'
    expect(what, at_once(layer, lengths, 64, "oracle", 4), 4.8, oracle)


@pytest.mark.task(6)
def test_every_policy_holds_what_chapter_2_says(layer: Layer) -> None:
    lengths = [(60, 3), (3, 2)]  # pow2: 60 + 4 and 3 + 2, so 64 and 8; never rounded to blocks of 16
    got, pow2 = at_once(layer, lengths, 1000, "pow2"), 1000 * 5 / (3 * 64 + 2 * 8)
    expect(f'predict_at_once({lengths}, 1000, "pow2")', got, nine(pow2), {
        nine(1000 * 5 / (3 * 128 + 2 * 8)): "the answer's length stood where the prompt's belongs",
        nine(1000 * 5 / (3 * 64 + 2 * 16)): "rounded up to whole blocks: only paging has them",
    })
    lengths = [(100, 25), (7, 60)]  # pow2: 132 and 71, so 256 and 128; oracle: 125 and 67, so 128 each
    pow2 = 1000 * 85 / (25 * 256 + 60 * 128)
    got = at_once(layer, lengths, 1000, "pow2")
    expect(f'predict_at_once({lengths}, 1000, "pow2")', got, nine(pow2),
           {nine(1000 * 85 / (25 * 132 + 60 * 71)): NO_BUDDY})
    expect(f'predict_at_once({lengths}, 1000, "oracle")', at_once(layer, lengths, 1000, "oracle"),
           nine(1000 / 128), {nine(1000 * 85 / (25 * 125 + 60 * 67)): NO_BUDDY})
    got = at_once(layer, lengths, 15_700, "max", 16, 2048)
    expect(f'predict_at_once({lengths}, 15_700, "max", 16, 2048)', got, nine(15_700 / 2048), {7.0: ROUNDED})
    got = at_once(layer, lengths, 1000, "max", 16, 200)
    expect(f'predict_at_once({lengths}, 1000, "max", 16, 200)', got, nine(1000 / 256), {5.0: NO_BUDDY})
    expect_error('predict_at_once(…, "best")', ValueError, lambda: at_once(layer, lengths, 1000, "best"))


@pytest.mark.task(6)
def test_paged_uses_whole_blocks_only(layer: Layer) -> None:
    got = at_once(layer, [(16, 1)], 1000, "paged", 16)
    expect('predict_at_once([(16, 1)], 1000, "paged", 16)', got, 62.0,
           {62.5: PARTIAL_BLOCK, 31.0: ONE_TOKEN_LATE, 31.25: ONE_TOKEN_LATE})
    got = at_once(layer, [(16, 1)], 10, "paged", 16)
    expect('predict_at_once([(16, 1)], 10, "paged", 16)', got, 0.0, {nine(10 / 16): PARTIAL_BLOCK})


@pytest.mark.task(6)
@settings(max_examples=30)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 2, 4]),
)
def test_any_lengths_step_by_step(layer: Layer, lengths: list[tuple[int, int]], block_size: int) -> None:
    """Blocks are counted one token at a time."""
    steps = block_steps = 0
    for prompt_len, output_len in lengths:
        num_tokens, blocks = 0, 0
        for _ in range(prompt_len):
            blocks += num_tokens % block_size == 0
            num_tokens += 1
        for _ in range(output_len):
            steps, block_steps = steps + 1, block_steps + blocks
            blocks += num_tokens % block_size == 0
            num_tokens += 1
    passed = list(lengths)
    got = at_once(layer, passed, 64, "paged", block_size)
    expect(f'predict_at_once({lengths}, 64, "paged", {block_size})', got,
           nine(64 / block_size * steps / block_steps))
    expect("the list that was passed in", passed, lengths)
