"""Made-up benchmarks of two engines that are equally fast, for chapter 13: a fair one, and one that flatters.

Whether a harness tells the truth can only be seen where the truth is known: here the ratio is 1.0. No engine
runs and no clock is read; how long a run takes is a formula with some noise.
"""

from __future__ import annotations

import random

from minipaged.measure import Run

PROMPT_LENS = [400, 300, 250, 350, 500, 200]
OUTPUT_LENS = [60, 80, 40, 90, 50, 70]
PREFILL_S, DECODE_S = 1 / 1000, 1 / 50  # a token, of both engines
COLD_S, FAILURE_S, SLOWER_SECOND, NOISE = 4.0, 3.0, 0.06, 0.03


def made_up_runs(num_rounds: int, flattering: bool = False, seed: int = 0) -> list[Run]:
    """The record of `num_rounds` rounds. In each the second run is 6 % slower: the machine has got warm.

    flattering: "theirs" isn't warmed up; "ours" always runs first, finds much of its prompts in the cache of
    the round before, and from round 3 on stops at the end of the text while theirs goes on; in round 2 a
    request of theirs fails, and one run of ours was slow and has been left out.

    >>> len(made_up_runs(3)), len(made_up_runs(3, flattering=True))      # theirs' warm-up, a run of ours
    (8, 7)
    """
    rng, runs, now = random.Random(seed), [], 0.0
    for number in range(num_rounds + 1):
        order = ("ours", "theirs") if flattering or number % 2 else ("theirs", "ours")
        for place, engine in enumerate(order):
            cached, lens = [0] * len(PROMPT_LENS), list(OUTPUT_LENS)
            is_cold, extra = number == 0, 0.0
            if flattering and engine == "theirs":
                is_cold = number == 1
                if number == 2:
                    lens[3], extra = 0, FAILURE_S
            elif flattering and number > 0:
                cached = [length // 16 * 16 - 16 for length in PROMPT_LENS]
                lens = [length - 20 for length in lens] if number > 2 else lens
            computed = sum(PROMPT_LENS) - sum(cached)
            seconds = PREFILL_S * computed + DECODE_S * sum(lens) + extra + (COLD_S if is_cold else 0.0)
            seconds *= (1 + SLOWER_SECOND * place) * (1 + rng.uniform(-NOISE, NOISE))
            runs.append(
                Run(
                    engine=engine,
                    round=number,
                    started=now,
                    seconds=seconds,
                    prompt_lens=list(PROMPT_LENS),
                    cached=cached,
                    output_lens=lens,
                )
            )
            now += seconds
    if flattering:
        left_out = {("theirs", 0), ("ours", num_rounds)}
        runs = [run for run in runs if (run["engine"], run["round"]) not in left_out]
    return runs
