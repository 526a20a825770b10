"""Wrong answers that chapter 13's grader must reject, and right ones that it must accept."""

from __future__ import annotations

from minipaged.course.answers import Answers

answers = Answers("ch13")

INTERPOLATED = "a value between two measurements: nobody waited that long"
RANK_TOO_HIGH = "one rank too high: the list begins at 0"
FLOAT_RANK = "the rank was computed in floats, which makes 8 of 7.000000000000001"
UNSORTED = "the values were not sorted"
IN_PLACE = "the list that was passed in was changed"
ABORT_LEFT_OUT = "the first token of an aborted request was left out: it had come, and counts"
ABORT_NORMALISED = "a request that was cut off got a normalised latency: it has no end"
ONLY_STOP = 'an answer that ended with "length" was left out: it came to its end'
NO_WAITING = "the waiting was left out: latency begins with the arrival"
NO_GAP_IS_ZERO = "a request with one token was given a gap of 0, which flatters"
FIRST_IS_A_GAP = "the time to first token was counted as a gap"
PER_GAP = "divided by the gaps, not by the tokens: that is the time per output token, another number"
MEAN_GAPS = "one mean gap for each request, not every gap: the slow ones drown"
NOT_COUNTED = "the requests that never got a token were not counted"
WHY_UNSERVED = "only those who gave up were counted: whoever got no token is unserved, for whatever reason"
ALWAYS_TWO_BYTES = "itemsize was taken to be 2, or to change the number of FLOPs"
READ_PER_TOKEN = "the matrices were read once for each token: they are read once for all, so batching pays"
QUERY_HEADS_READ = "as many heads were read as there are query heads: GQA has fewer of K and V"
KV_HEADS_COMPUTED = "only the KV heads were computed: every query head computes its own scores"
ONLY_SCORE = "only the score was counted: the weighted sum takes as much again"
IDLE_READS = "a step without tokens reads nothing"
SUM_OF_BOTH = "reading and computing were added: a part does both at the same time"
MAX_OF_SUMS = "the longer of the sums: a part can't be computed while another one is still being read"
LAUNCH_PER_PART = "the launches were counted for every part"
HIDDEN_LAUNCHES = "the launches were taken to hide behind the rest"
UPSIDE_DOWN = "the machine's two numbers changed places"
NO_HALF = "the 2 of a multiplication and an addition was lost"
ROUNDED_DOWN = "rounded down: with so few tokens the reading still takes longer"
SUMS_ONLY = "only the sums were compared: one engine had the long answers, the other the short ones"
FAILED_ALIKE = "two failures were taken for the same work: nothing was done"
CACHE_FORGOTTEN = "the cached tokens were not looked at: what comes from a cache is no work"
OTHER_WAY = "the other way round: above 1 shall mean that ours is faster"
WARM_UP_COUNTED = "the warm-up was counted"
UNEQUAL_COUNTED = "a round in which they did different work was counted"
BEST_OF_OURS = "the best round was taken instead of each one"
OTHER_ROUND = "runs of different rounds were compared: if one is missing, the next one is not its partner"
COMPUTED_ALIKE = "as many tokens computed are not the same work: answers and cache count each for itself"
SOME_TURNS = "two more is unfair, even if the other one began some rounds as well"
MISSING_CANCEL = "one run missing on each side are two, and don't make up for each other"
ROUND_LEFT_OUT = "a round in which nobody ran has no missing run: both or neither is fair"
WARMED_TWICE = "the runs of round 0 were counted: they may be of one engine"
OTHER_LENGTHS = "runs of different rounds were compared, or those of the warm-up"
WARM_UP_ONCE = "one engine's warm-up was enough: the other one began cold"
ONE_BY_ONE = "one round more for one engine was called unfair: an odd number can't be shared evenly"
BEGAN_BY_ROUND = "who begins was not read from `started`"
WARM_UP_BEGAN = "the warm-up was counted among the rounds that somebody began"
FAILED_AS_SHORT = "a request that failed was called an unequal length: it has a name of its own"
INCOMPLETE_FAILED = "a failure in a round without a partner was not seen: every run that counts is looked at"
WARM_UP_FAILED = "a failure in the warm-up was reported: nothing of it counts"
CACHE_AT_ALL = "tokens from the cache were called a fault although both engines had as many"
IN_ORDER = "the faults are not in the order of FAULTS"
RANGE = "always the smallest to the largest: with many rounds that is far wider than need be"
RANGE_OF_FEW = "the smallest to the largest, although so few rounds say too little"
ONE_SIDED = "only one side was counted: the true median can be missed on either side"
ONE_STEP_IN = "k is one too large: it misses more often than allowed"
ONE_STEP_OUT = "k is one too small: a narrower interval would still be sure enough"
MEDIAN_LOW = "of an even number of values the median is the mean of the two in the middle"
STRICT = "a chance of exactly 100 - percent % is allowed"
BY_MEAN = "judged by the mean: one round that went wrong moves it, and no interval"
NOT_CLEARLY = "a margin was asked for: 1.001 in every round is above 1"
BY_MEDIAN = "judged by the median alone: it may be chance"
TOUCHES = "an interval that ends at 1 holds 1"
TO_LAST_ARRIVAL = "measured up to the last arrival: those who came before are still inside"
LAST_ARRIVED_LEAVES = "the last to arrive was taken for the last to leave"
FROM_ZERO = "measured from 0 on: it begins with the first arrival"
LAST_RATE_BELOW = "the last measured rate below the limit: the knee is between two"
FIRST_RATE_ABOVE = "the first measured rate that is not below the limit: the knee is between two"
EXTRAPOLATED = "a rate that was not measured: beyond the last one, or before the first, nothing is known"
FLAT = "a line that stays where it is has no place at which it reaches the limit"
AT_THE_LIMIT = "a latency of exactly the limit has reached it"
LAST_CROSSING = "the last line that crosses the limit, not the first"
MEAN_OF_REQUESTS = "averaged over requests: one that stays longer counts for longer"
FINAL_SIZE = "what it holds in the end was counted for all its steps: paged, it grows"
NO_BLOCKS = "tokens were counted, not whole blocks"
ONE_TOKEN_LATE = "one token more: in its first step it holds its prompt, and no answer yet"
NO_BUDDY = "not rounded up to a power of two"
PARTIAL_BLOCK = "slots that make no whole block were used"
ROUNDED = "rounded: a mean need not be a whole number"

RANK = "return ranked[-(-percent * len(ranked) // 100) - 1]"
RANKED = """    ranked = sorted(values)
    if not ranked:
        raise ValueError("a percentile of no values")"""
UNSERVED = """            num_unserved += 1
            continue
"""
FIRST = "report.first_token.append(times[0] - arrival)"
GAPS = "report.between_tokens.extend(later - earlier for earlier, later in pairwise(times))"
ENDED = 'if finish_reason in ("stop", "length"):'
NORMALISED = "report.normalised.append((times[-1] - arrival) / len(times))"
LINEAR = "return Cost(num_parameters * itemsize, 2 * num_parameters * num_tokens)"
IDLE = """    if num_tokens == 0:
        return Cost(0, 0)
"""
KV = "kv_bytes = 2 * num_layers * num_kv_heads * head_dim * itemsize"
ATTENTION = "return Cost(num_read * kv_bytes, 4 * num_layers * num_heads * head_dim * num_pairs)"
LONGEST = "longest = (max(part.num_bytes / bytes_per_s, part.flops / flops_per_s) for part in parts)"
PRICE = "return sum(longest) + num_launches * launch_s"
BREAK_EVEN = "return math.ceil(itemsize * flops_per_s / (2 * bytes_per_s))"
SAME = 'return all(lens) and lens == theirs["output_lens"] and cached == theirs["cached"]'
RATIO = """        theirs["seconds"] / ours["seconds"] for ours, theirs in find_pairs(runs) if is_same_work(ours, theirs)
    ]"""
COUNTED = 'pairs, counted = find_pairs(runs), [run for run in runs if run["round"] > 0]'
BEGAN = 'began = [ours["started"] < theirs["started"] for ours, theirs in pairs]'
WARM_UP = 'len({run["engine"] for run in runs if run["round"] == 0}) < 2'
MISSING = "MISSING_RUN: len(counted) > 2 * len(pairs)"
TURNS = "abs(began.count(True) - began.count(False)) >= 2"
FAILED = 'any(0 in run["output_lens"] for run in counted)'
UNEQUAL = "any(a != b for a, b in lens if a and b)"
CACHE = 'any(ours["cached"] != theirs["cached"] for ours, theirs in pairs)'
FOUND = "return [fault for fault in FAULTS if found[fault]]"
SEARCH = "while 2 * num_missed * 100 <= (100 - percent) * 2**n:"
ENDS = "low, high = (ranked[k - 1], ranked[n - k]) if k else (-math.inf, math.inf)"
INTERVAL = "return Interval(low, median(ranked), high)"
VERDICT = 'return "faster" if low > 1 else "slower" if high < 1 else "no difference"'
JUDGED = "low, _, high = median_interval(ratios, percent)"
INSIDE = "return (sum(departures) - sum(arrivals)) / (max(departures) - min(arrivals))"
CROSSES = "if latency < limit <= next_latency:"
KNEE = "return rate + (next_rate - rate) * (limit - latency) / (next_latency - latency)"
BEYOND = """    # No guess beyond what was measured: not the last rate, and not a longer line.
    return None"""
HELD = "held = range(prompt_len, prompt_len + output_len)"
TAKEN = "taken += block_size * sum(-(-num_tokens // block_size) for num_tokens in held)"
RESERVED = "taken += output_len * next_power_of_two(size)"
USABLE = 'usable = num_slots // block_size * block_size if policy == "paged" else num_slots'
AT_ONCE = "return usable * sum(output_len for _, output_len in lengths) / taken"

# -- task 1 --------------------------------------------------------------------------------------------------

answers.wrong("the place is the rank", task=1, mistake=RANK_TOO_HIGH, edits=[(RANK, "return ranked[min(len(ranked) - 1, percent * len(ranked) // 100)]")])
answers.wrong("a rank in floats", task=1, mistake=FLOAT_RANK, edits=[(RANK, "return ranked[math.ceil(percent / 100 * len(ranked)) - 1]")])
answers.wrong("interpolated", task=1, mistake=INTERPOLATED, edits=[(RANK, "place = (len(ranked) - 1) * percent / 100\n    low = math.floor(place)\n    high = min(low + 1, len(ranked) - 1)\n    return ranked[low] + (place - low) * (ranked[high] - ranked[low])")])
answers.wrong("never sorted", task=1, mistake=UNSORTED, edits=[(RANKED, RANKED.replace("sorted(values)", "list(values)"))])
answers.wrong("sorted in place", task=1, mistake=IN_PLACE, edits=[(RANKED, RANKED.replace("ranked = sorted(values)", "values.sort()\n    ranked = values"))])
answers.wrong("no values are 0", task=1, edits=[('        raise ValueError("a percentile of no values")', "        return 0.0")])
answers.wrong("only finished requests have a first token", task=1, mistake=ABORT_LEFT_OUT, edits=[("        if not times:\n", '        if not times or finish_reason not in ("stop", "length"):\n')])
answers.wrong("an aborted request has a normalised latency", task=1, mistake=ABORT_NORMALISED, edits=[(ENDED, "if True:")])
answers.wrong("only stop is an end", task=1, mistake=ONLY_STOP, edits=[(ENDED, 'if finish_reason == "stop":')])
answers.wrong("normalised from the first token on", task=1, mistake=NO_WAITING, edits=[(NORMALISED, NORMALISED.replace("- arrival", "- times[0]"))])
answers.wrong("time per output token", task=1, mistake=PER_GAP, edits=[(NORMALISED, "report.normalised.append((times[-1] - times[0]) / max(1, len(times) - 1))")])
answers.wrong("the first token is a gap", task=1, mistake=FIRST_IS_A_GAP, edits=[(GAPS, GAPS.replace("pairwise(times)", "pairwise([arrival, *times])"))])
answers.wrong("a gap of 0 for one token", task=1, mistake=NO_GAP_IS_ZERO, edits=[(GAPS, GAPS + "\n        if len(times) == 1:\n            report.between_tokens.append(0.0)")])
answers.wrong("mean gaps", task=1, mistake=MEAN_GAPS, edits=[(GAPS, "if len(times) > 1:\n            report.between_tokens.append((times[-1] - times[0]) / (len(times) - 1))")])
answers.wrong("the unserved are forgotten", task=1, mistake=NOT_COUNTED, edits=[(UNSERVED, "            continue\n")])
answers.wrong("an iterator is used up by a look at it", task=1, edits=[(RANKED, RANKED.replace("ranked = sorted(values)", "given = list(values)\n    ranked = sorted(values) if given else []"))])
answers.wrong("a rank of milliseconds", task=1, edits=[(RANK, "return round(ranked[-(-percent * len(ranked) // 100) - 1], 3)")])
answers.wrong("only those who gave up are unserved", task=1, mistake=WHY_UNSERVED, edits=[(UNSERVED, '            num_unserved += finish_reason == "abort"\n            continue\n')])
answers.wrong("in the order of arrival", task=1, edits=[("    for arrival, times, finish_reason in requests:", "    for arrival, times, finish_reason in sorted(requests):")])
answers.wrong("tokens that come together have no gap", task=1, edits=[(GAPS, GAPS.replace("pairwise(times))", "pairwise(times) if later > earlier)"))])
answers.wrong("a token at 0 s is none", task=1, edits=[("        if not times:\n", "        if not any(times):\n")])

# -- task 2 --------------------------------------------------------------------------------------------------

answers.wrong("weights read for each token", task=2, mistake=READ_PER_TOKEN, edits=[(LINEAR, LINEAR.replace("* itemsize", "* itemsize * num_tokens"))])
answers.wrong("an idle step reads", task=2, mistake=IDLE_READS, edits=[(IDLE, "")])
answers.wrong("query heads are read", task=2, mistake=QUERY_HEADS_READ, edits=[(KV, KV.replace("num_kv_heads", "num_heads"))])
answers.wrong("KV heads are computed", task=2, mistake=KV_HEADS_COMPUTED, edits=[(ATTENTION, ATTENTION.replace("num_heads", "num_kv_heads"))])
answers.wrong("the scores alone", task=2, mistake=ONLY_SCORE, edits=[(ATTENTION, ATTENTION.replace("4 *", "2 *"))])
answers.wrong("read and compute in turn", task=2, mistake=SUM_OF_BOTH, edits=[(LONGEST, "longest = (part.num_bytes / bytes_per_s + part.flops / flops_per_s for part in parts)")])
answers.wrong("one roofline for all parts", task=2, mistake=MAX_OF_SUMS, edits=[(LONGEST, "parts = list(parts)\n    longest = [max(sum(part.num_bytes for part in parts) / bytes_per_s, sum(part.flops for part in parts) / flops_per_s)]")])
answers.wrong("launches for every part", task=2, mistake=LAUNCH_PER_PART, edits=[(PRICE, "times = list(longest)\n    return sum(times) + len(times) * num_launches * launch_s")])
answers.wrong("launches are hidden", task=2, mistake=HIDDEN_LAUNCHES, edits=[(PRICE, "return max(sum(longest), num_launches * launch_s)")])
answers.wrong("bytes over FLOPs a second", task=2, mistake=UPSIDE_DOWN, edits=[(LONGEST, LONGEST.replace("num_bytes / bytes_per_s", "num_bytes / flops_per_s").replace("flops / flops_per_s)", "flops / bytes_per_s)"))])
answers.wrong("break even without the 2", task=2, mistake=NO_HALF, edits=[(BREAK_EVEN, "return math.ceil(itemsize * flops_per_s / bytes_per_s)")])
answers.wrong("break even rounded down", task=2, mistake=ROUNDED_DOWN, edits=[(BREAK_EVEN, BREAK_EVEN.replace("math.ceil", "math.floor"))])
answers.wrong("break even as a float", task=2, edits=[(BREAK_EVEN, "return itemsize * flops_per_s / (2 * bytes_per_s)")])
answers.wrong("K and V have 2 bytes a number", task=2, mistake=ALWAYS_TWO_BYTES, edits=[(KV, KV.replace("itemsize", "2"))])
answers.wrong("without parts no launches", task=2, edits=[(PRICE, "times = list(longest)\n    return sum(times) + num_launches * launch_s if times else 0.0")])
answers.wrong("equal times once", task=2, edits=[(LONGEST, LONGEST.replace("(max(", "{max(").replace("in parts)", "in parts}"))])
answers.wrong("seconds to six digits", task=2, edits=[(PRICE, "return round(sum(longest) + num_launches * launch_s, 6)")])

# -- task 3 --------------------------------------------------------------------------------------------------

answers.wrong("sums of lengths", task=3, mistake=SUMS_ONLY, edits=[(SAME, SAME.replace('lens == theirs["output_lens"]', 'sum(lens) == sum(theirs["output_lens"])'))])
answers.wrong("failing alike is equal", task=3, mistake=FAILED_ALIKE, edits=[(SAME, SAME.replace("all(lens) and ", ""))])
answers.wrong("the cache does not matter", task=3, mistake=CACHE_FORGOTTEN, edits=[(SAME, SAME.replace(' and cached == theirs["cached"]', ""))])
answers.wrong("ours over theirs", task=3, mistake=OTHER_WAY, edits=[(RATIO, RATIO.replace('theirs["seconds"] / ours["seconds"]', 'ours["seconds"] / theirs["seconds"]'))])
answers.wrong("every pair counts", task=3, mistake=UNEQUAL_COUNTED, edits=[(RATIO, RATIO.replace(" if is_same_work(ours, theirs)", ""))])
answers.wrong("the warm-up is a round", task=3, mistake=WARM_UP_COUNTED, edits=[("rounds = sorted({number for number, _ in by_place if number > 0})", "rounds = sorted({number for number, _ in by_place})")])
answers.wrong("our best against each of theirs", task=3, mistake=BEST_OF_OURS, edits=[("    # Round by round: what makes a machine slow for a while makes it slow for both.\n", "    best = min(ours[\"seconds\"] for ours, _ in find_pairs(runs)) if find_pairs(runs) else 0\n"), (RATIO, RATIO.replace('ours["seconds"]', "best"))])
answers.wrong("one warm-up is enough", task=3, mistake=WARM_UP_ONCE, edits=[(WARM_UP, WARM_UP.replace("< 2", "< 1"))])
answers.wrong("strict turns", task=3, mistake=ONE_BY_ONE, edits=[(TURNS, TURNS.replace(">= 2", ">= 1"))])
answers.wrong("who begins is who stands first", task=3, mistake=BEGAN_BY_ROUND, edits=[(BEGAN, 'began = [runs.index(ours) < runs.index(theirs) for ours, theirs in pairs]')])
answers.wrong("the warm-up is one of the turns", task=3, mistake=WARM_UP_BEGAN, edits=[(BEGAN, BEGAN + '\n    first = {run["engine"]: run for run in runs if run["round"] == 0}\n    began += [first["ours"]["started"] < first["theirs"]["started"]] * 2 if len(first) == 2 else []')])
answers.wrong("a failure is an unequal length", task=3, mistake=FAILED_AS_SHORT, edits=[(UNEQUAL, UNEQUAL.replace(" if a and b", ""))])
answers.wrong("failures of pairs only", task=3, mistake=INCOMPLETE_FAILED, edits=[(FAILED, 'any(0 in run["output_lens"] for pair in pairs for run in pair)')])
answers.wrong("failures of the warm-up", task=3, mistake=WARM_UP_FAILED, edits=[(FAILED, FAILED.replace("in counted", "in runs"))])
answers.wrong("anything cached is a fault", task=3, mistake=CACHE_AT_ALL, edits=[(CACHE, 'any(any(run["cached"]) for run in counted)')])
answers.wrong("the warm-up's cache", task=3, mistake=WARM_UP_COUNTED, edits=[(CACHE, 'any(a["cached"] != b["cached"] for a in runs for b in runs if a["round"] == b["round"])')])
answers.wrong("no missing runs", task=3, edits=[(MISSING, "MISSING_RUN: False")])
answers.wrong("faults by name", task=3, mistake=IN_ORDER, edits=[(FOUND, "return sorted(fault for fault in FAULTS if found[fault])")])
answers.wrong("as many tokens computed", task=3, mistake=COMPUTED_ALIKE, edits=[(SAME, 'return all(lens) and all(theirs["output_lens"]) and [a - b for a, b in zip(lens, cached)] == [a - b for a, b in zip(theirs["output_lens"], theirs["cached"])]')])
answers.wrong("the n-th of ours with the n-th of theirs", task=3, mistake=OTHER_ROUND, edits=[(RATIO, RATIO.replace("find_pairs(runs)", 'zip(*([run for run in runs if run["engine"] == engine and run["round"]] for runs in [list(runs)] for engine in ("ours", "theirs")))'))])
answers.wrong("as many runs of each are complete", task=3, mistake=MISSING_CANCEL, edits=[(MISSING, 'MISSING_RUN: 2 * sum(run["engine"] == "ours" for run in counted) != len(counted)')])
answers.wrong("every number has its round", task=3, mistake=ROUND_LEFT_OUT, edits=[(MISSING, 'MISSING_RUN: len(pairs) < max((run["round"] for run in runs), default=0)')])
answers.wrong("two warm-ups, whosever", task=3, mistake=WARMED_TWICE, edits=[(WARM_UP, 'sum(run["round"] == 0 for run in runs) < 2')])
answers.wrong("turns if each began once", task=3, mistake=SOME_TURNS, edits=[(TURNS, "len(began) > 1 and len(set(began)) == 1")])
answers.wrong("turns up to two thirds", task=3, mistake=SOME_TURNS, edits=[(TURNS, "len(began) > 1 and 3 * max(began.count(True), began.count(False)) > 2 * len(began)")])
answers.wrong("the warm-up's lengths", task=3, mistake=OTHER_LENGTHS, edits=[(UNEQUAL, 'any(a != b for one in runs for other in runs if one["round"] == other["round"] for a, b in zip(one["output_lens"], other["output_lens"]) if a and b)')])
answers.wrong("one length for all rounds", task=3, mistake=OTHER_LENGTHS, edits=[(UNEQUAL, 'any(a != b for one in counted for other in counted for a, b in zip(one["output_lens"], other["output_lens"]) if a and b)')])
answers.wrong("the record is put in order", task=3, edits=[(COUNTED, 'runs.sort(key=lambda run: run["started"])\n    ' + COUNTED)])
answers.wrong("nothing to say without a pair", task=3, edits=[(COUNTED, COUNTED + "\n    if not pairs:\n        return []")])

# -- task 4 --------------------------------------------------------------------------------------------------

answers.wrong("the range", task=4, mistake=RANGE, edits=[(ENDS, "low, high = (ranked[0], ranked[-1]) if k else (-math.inf, math.inf)")])
answers.wrong("the range even of few", task=4, mistake=RANGE_OF_FEW, edits=[(ENDS, "low, high = ranked[max(k, 1) - 1], ranked[n - max(k, 1)]")])
answers.wrong("one side", task=4, mistake=ONE_SIDED, edits=[(SEARCH, SEARCH.replace("2 * num_missed", "num_missed"))])
answers.wrong("one step further in", task=4, mistake=ONE_STEP_IN, edits=[(ENDS, "low, high = (ranked[k], ranked[n - k - 1]) if k else (-math.inf, math.inf)")])
answers.wrong("one step further out", task=4, mistake=ONE_STEP_OUT, edits=[(ENDS, "low, high = (ranked[k - 2], ranked[n - k + 1]) if k > 1 else (-math.inf, math.inf)")])
answers.wrong("strictly less", task=4, mistake=STRICT, edits=[(SEARCH, SEARCH.replace("<=", "<"))])
answers.wrong("the lower median", task=4, mistake=MEDIAN_LOW, edits=[(INTERVAL, "return Interval(low, ranked[(n - 1) // 2], high)")])
answers.wrong("the mean", task=4, mistake="the mean", edits=[(INTERVAL, "return Interval(low, sum(ranked) / n, high)")])
answers.wrong("twice the standard error", task=4, edits=[(INTERVAL, "mean = sum(ranked) / n\n    spread = 2 * (sum((value - mean) ** 2 for value in ranked) / n / n) ** 0.5\n    return Interval(mean - spread, median(ranked), mean + spread)")])
answers.wrong("no values are an empty interval", task=4, edits=[('        raise ValueError("an interval of no values")', "        return Interval(-math.inf, 0.0, math.inf)")])
answers.wrong("judged by the median", task=4, mistake=BY_MEDIAN, edits=[(JUDGED, "_, low, _ = median_interval(ratios, percent)\n    high = low")])
answers.wrong("1 at the end is beside", task=4, mistake=TOUCHES, edits=[(VERDICT, VERDICT.replace("> 1", ">= 1").replace("< 1", "<= 1"))])
answers.wrong("the words the other way round", task=4, mistake=OTHER_WAY, edits=[(VERDICT, VERDICT.replace('"faster"', '"x"').replace('"slower"', '"faster"').replace('"x"', '"slower"'))])
answers.wrong("percent gets lost", task=4, mistake="percent was not passed on", edits=[(JUDGED, JUDGED.replace(", percent", ""))])
answers.wrong("coins in floats", task=4, edits=[(SEARCH, "while 2.0 * num_missed * 0.5**n <= 1 - percent / 100:")])
answers.wrong("whole per cents", task=4, mistake=ONE_STEP_IN, edits=[(SEARCH, "while round(200 * num_missed / 2**n) <= 100 - percent:")])
answers.wrong("the mean has the last word", task=4, mistake=BY_MEAN, edits=[(JUDGED, "ratios = list(ratios)\n    " + JUDGED), (VERDICT, 'mean = sum(ratios) / len(ratios)\n    return "no difference" if low <= 1 <= high else "faster" if mean > 1 else "slower"')])
answers.wrong("at least one per cent", task=4, mistake=NOT_CLEARLY, edits=[(VERDICT, VERDICT.replace("> 1", "> 1.01").replace("< 1", "< 0.99"))])

# -- task 5 --------------------------------------------------------------------------------------------------

answers.wrong("up to the last arrival", task=5, mistake=TO_LAST_ARRIVAL, edits=[(INSIDE, "return (sum(departures) - sum(arrivals)) / ((max(arrivals) - min(arrivals)) or 1)")])
answers.wrong("the last to arrive leaves last", task=5, mistake=LAST_ARRIVED_LEAVES, edits=[(INSIDE, "return (sum(departures) - sum(arrivals)) / (departures[-1] - min(arrivals))")])
answers.wrong("from 0 on", task=5, mistake=FROM_ZERO, edits=[(INSIDE, INSIDE.replace(" - min(arrivals)", ""))])
answers.wrong("the last rate below", task=5, mistake=LAST_RATE_BELOW, edits=[(KNEE, "return rate")])
answers.wrong("the first rate above", task=5, mistake=FIRST_RATE_ABOVE, edits=[(KNEE, "return next_rate")])
answers.wrong("beyond the last rate", task=5, mistake=EXTRAPOLATED, edits=[(BEYOND, "    return max(curve, default=None)")])
answers.wrong("before the first rate", task=5, mistake=EXTRAPOLATED, edits=[(CROSSES, "if limit <= next_latency:")])
answers.wrong("reached only beyond the limit", task=5, mistake=AT_THE_LIMIT, edits=[(CROSSES, "if latency <= limit < next_latency:")])
answers.wrong("the last crossing", task=5, mistake=LAST_CROSSING, edits=[(KNEE, "found = " + KNEE.removeprefix("return ")), ("    for (rate, latency), (next_rate, next_latency) in pairwise(curve.items()):", "    found = None\n    for (rate, latency), (next_rate, next_latency) in pairwise(curve.items()):"), (BEYOND, "    return found")])
answers.wrong("stays are sorted in place", task=5, edits=[("    stays = list(stays)\n", "    stays = stays if isinstance(stays, list) else list(stays)\n    stays.sort()\n")])
answers.wrong("stays are gone through twice", task=5, edits=[("    stays = list(stays)\n    if not stays:", "    if not list(stays):")])
answers.wrong("how far along, of every line", task=5, edits=[(CROSSES, "part = (limit - latency) / (next_latency - latency)\n        " + CROSSES)])

# -- task 6 --------------------------------------------------------------------------------------------------

answers.wrong("the final size for all steps", task=6, mistake=FINAL_SIZE, edits=[(TAKEN, "taken += output_len * block_size * -(-(held[-1] + 1) // block_size)")])
answers.wrong("tokens instead of blocks", task=6, mistake=NO_BLOCKS, edits=[(TAKEN, "taken += sum(held)")])
answers.wrong("a token too early", task=6, mistake=ONE_TOKEN_LATE, edits=[(HELD, "held = range(prompt_len + 1, prompt_len + output_len + 1)")])
answers.wrong("without the buddy system", task=6, mistake=NO_BUDDY, edits=[(RESERVED, "taken += output_len * size")])
answers.wrong("half a block is a block", task=6, mistake=PARTIAL_BLOCK, edits=[(USABLE, "usable = num_slots")])
answers.wrong("a whole number", task=6, mistake=ROUNDED, edits=[(AT_ONCE, AT_ONCE.replace("/ taken", "// taken"))])
answers.wrong("a mean over requests", task=6, mistake=MEAN_OF_REQUESTS, edits=[(TAKEN, "taken += block_size * sum(-(-num_tokens // block_size) for num_tokens in held) / output_len"), (AT_ONCE, "return usable * len(lengths) / taken")])
answers.wrong("reservations of whole blocks", task=6, edits=[(RESERVED, "taken += output_len * block_size * -(-next_power_of_two(size) // block_size)")])
answers.wrong("the answer before the prompt", task=6, edits=[("size = reservation(policy, prompt_len, output_len, max_model_len)", "size = reservation(policy, output_len, prompt_len, max_model_len)")])

# -- different, and right ------------------------------------------------------------------------------------

HEADER = '''from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from fractions import Fraction

from minipaged.contiguous import next_power_of_two, reservation
from minipaged.measure import FAULTS, Interval, Latencies, Cost

'''

answers.right("by counting, with fractions and plain loops", source=HEADER + '''
def percentile(values, percent):
    ordered = []
    for value in values:
        ordered.insert(bisect_left(ordered, value), value)
    if not ordered or percent < 1 or percent > 100:
        raise ValueError(f"no percentile: {percent} % of {len(ordered)} values")
    for place, value in enumerate(ordered, start=1):
        if Fraction(place, len(ordered)) >= Fraction(percent, 100):
            return value


def latencies(requests):
    requests = list(requests)
    served = [request for request in requests if request[1]]
    unserved = sum(1 for request in requests if not request[1])
    gaps = []
    for _, times, _ in served:
        for index in range(1, len(times)):
            gaps.append(times[index] - times[index - 1])
    ended = [(arrival, times) for arrival, times, why in served if why not in {"abort", "capacity"}]
    return Latencies(
        first_token=[times[0] - arrival for arrival, times, _ in served],
        between_tokens=gaps,
        normalised=[(times[-1] - arrival) / len(times) for arrival, times in ended],
        num_unserved=unserved,
    )


def linear_work(num_tokens, num_parameters, itemsize):
    work = Cost(num_parameters * itemsize, 0) if num_tokens else Cost(0, 0)
    for _ in range(num_tokens):
        work = Cost(work.num_bytes, work.flops + 2 * num_parameters)
    return work


def attention_work(num_read, num_pairs, num_layers, num_heads, num_kv_heads, head_dim, itemsize):
    layer = Cost(num_read * 2 * num_kv_heads * head_dim * itemsize, num_pairs * num_heads * 4 * head_dim)
    return Cost(layer.num_bytes * num_layers, layer.flops * num_layers)


def work_seconds(parts, bytes_per_s, flops_per_s, num_launches=0, launch_s=0.0):
    total = launch_s * num_launches
    for num_bytes, flops in parts:
        reading, computing = num_bytes / bytes_per_s, flops / flops_per_s
        total += reading if reading > computing else computing
    return total


def break_even_tokens(itemsize, bytes_per_s, flops_per_s):
    tokens = int(itemsize / 2 * flops_per_s / bytes_per_s)
    return tokens if 2 * tokens / flops_per_s >= itemsize / bytes_per_s else tokens + 1


def _by_round(runs):
    rounds = defaultdict(dict)
    for run in runs:
        rounds[run["round"]][run["engine"]] = run
    return rounds


def is_same_work(ours, theirs):
    keys = ("cached", "output_lens")
    return all(ours[key] == theirs[key] for key in keys) and min(ours["output_lens"]) > 0


def honest_ratios(runs):
    rounds, ratios = _by_round(runs), []
    for number in sorted(rounds):
        both = rounds[number]
        if number > 0 and len(both) == 2 and is_same_work(both["ours"], both["theirs"]):
            ratios.append(both["theirs"]["seconds"] / both["ours"]["seconds"])
    return ratios


def find_faults(runs):
    rounds = _by_round(runs)
    warm_up = rounds.pop(0, {})
    faults, firsts = set(), Counter()
    if len(warm_up) != 2:
        faults.add("no warm-up")
    for both in rounds.values():
        if any(length == 0 for run in both.values() for length in run["output_lens"]):
            faults.add("failed requests")
        if len(both) == 1:
            faults.add("a missing run")
            continue
        firsts[min(both.values(), key=lambda run: run["started"])["engine"]] += 1
        if both["ours"]["cached"] != both["theirs"]["cached"]:
            faults.add("a warm cache")
        for a, b in zip(both["ours"]["output_lens"], both["theirs"]["output_lens"]):
            if a * b != 0 and a != b:
                faults.add("unequal lengths")
    if abs(firsts["ours"] - firsts["theirs"]) > 1:
        faults.add("no turns")
    return sorted(faults, key=FAULTS.index)


def median_interval(values, percent=95):
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        raise ValueError("no values")
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    for k in range(n // 2 + 1, 0, -1):
        missed = Fraction(2 * sum(math.comb(n, i) for i in range(k)), 2**n)
        if missed <= Fraction(100 - percent, 100):
            return Interval(ordered[k - 1], middle, ordered[-k])
    return Interval(-math.inf, middle, math.inf)


def verdict(ratios, percent=95):
    interval = median_interval(ratios, percent)
    if interval.low <= 1 <= interval.high:
        return "no difference"
    return "faster" if interval.median > 1 else "slower"


def mean_inside(stays):
    stays = list(stays)
    events = sorted([(arrival, 1) for arrival, _ in stays] + [(departure, -1) for _, departure in stays])
    if not events:
        raise ValueError("nobody came")
    area, inside, before = 0.0, 0, events[0][0]
    for when, step in events:
        area += inside * (when - before)
        inside, before = inside + step, when
    return area / (events[-1][0] - events[0][0])


def sustained_rate(curve, limit):
    rates = list(curve)
    for left, right in zip(rates, rates[1:]):
        low, high = curve[left], curve[right]
        if low < limit and not high < limit:
            share = (limit - low) / (high - low)
            return left * (1 - share) + right * share
    return None


def predict_at_once(lengths, num_slots, policy, block_size=16, max_model_len=2048):
    unit = block_size if policy == "paged" else 1
    steps = held = 0
    for prompt_len, output_len in lengths:
        for step in range(output_len):
            if policy == "paged":
                held += (prompt_len + step + block_size - 1) // block_size
            else:
                held += next_power_of_two(reservation(policy, prompt_len, output_len, max_model_len))
        steps += output_len
    return (num_slots // unit) / (held / steps)
''')
answers.right("latencies in one pass each, and a nearest rank by negative places", edits=[
    (RANK, "return ranked[(percent * len(ranked) + 99) // 100 - 1]"),
    (GAPS, "for index in range(len(times) - 1):\n            report.between_tokens.append(times[index + 1] - times[index])"),
    (ENDED, 'if not (finish_reason == "abort" or finish_reason == "capacity"):'),
    (BREAK_EVEN, "return math.ceil((itemsize / bytes_per_s) / (2 / flops_per_s))"),
])
answers.right("faults as a list of conditions", edits=[
    (FOUND, "names = []\n    for fault in FAULTS:\n        if found[fault]:\n            names.append(fault)\n    return names"),
    (MISSING, 'MISSING_RUN: {(run["engine"], run["round"]) for run in counted} != {(engine, run["round"]) for run in counted for engine in ("ours", "theirs")}'),
    (TURNS, "not -2 < sum(1 if ours_began else -1 for ours_began in began) < 2"),
])
answers.right("the interval from outside in, and Little's law as rate times stay", edits=[
    (SEARCH + "\n        k += 1\n        num_missed += math.comb(n, k)", "for place in range(1, n // 2 + 1):\n        if 200 * sum(math.comb(n, i) for i in range(place)) <= (100 - percent) * 2**n:\n            k = place"),
    (INSIDE, "span = max(departures) - min(arrivals)\n    rate = len(stays) / span\n    return rate * (sum(end - start for start, end in stays) / len(stays))"),
    (AT_ONCE, "num_steps = sum(output_len for _, output_len in lengths)\n    return usable / (taken / num_steps)"),
])
