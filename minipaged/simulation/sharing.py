"""Samples and beams of generated requests, without a model: what is shared, and what would be held if not.

The paper's Figure 15 gives the share of blocks saved on two data sets. What decides it are the lengths and,
for beams, which beam descends from which; no model is needed to count blocks. Tables, pool and copies are the
package's own. Left out: time, and other requests, since these share nothing here. Chapter 06.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable

# Mean tokens of prompt and output, Kwon et al., SOSP'23, Figure 11; block saving in per cent, section 6.3 and
# Figure 15 (OPT-13B, blocks of 16): the least and the most of 2, 4 and 6 samples or beams.
MEAN_LENGTHS = {"Alpaca": (19.31, 58.45), "ShareGPT": (161.31, 337.99)}
PAPER_SAVINGS = {
    ("Alpaca", "samples"): (6.1, 9.8),
    ("Alpaca", "beams"): (37.6, 55.2),
    ("ShareGPT", "samples"): (16.2, 30.5),
    ("ShareGPT", "beams"): (44.3, 66.3),
}
VOCAB_SIZE, SPREAD = 100, 3.0  # of the random model that stands in for a real one

Parents = Callable[[], list[int]]  # for every beam of the next step, the beam that it continues


class Holding(NamedTuple):
    """While a step is computed: entries in all block tables, blocks behind them, and the step's copies."""

    entries: int
    blocks: int
    copies: int


def lengths_like(name: str, num_requests: int, seed: int = 0) -> list[tuple[int, int]]:
    """Generated (prompt, output) lengths with the means of a data set: nothing else of it is known here."""
    return lengths_with_means(MEAN_LENGTHS[name], num_requests, seed)


def lengths_with_means(means: tuple[float, float], num_requests: int, seed: int = 0) -> list[tuple[int, int]]:
    """Generated (prompt, output) lengths with these means.

    Both are geometric, of all distributions with that mean the one that assumes least; drawn independently,
    one from each n-th part of the distribution, so that the mean of few is right too.
    """
    rng = np.random.default_rng(seed)
    columns = []
    for mean in means:
        u = (rng.permutation(num_requests) + rng.random(num_requests)) / num_requests
        columns.append(np.ceil(np.log1p(-u) / np.log1p(-1 / mean)).astype(int).clip(1).tolist())
    return list(zip(*columns, strict=True))


def replay_branches(
    prompt_len: int, output_len: int, n: int, block_size: int = 16, parents: Parents | None = None
) -> list[Holding]:
    """Fork a prompt into `n` branches that get a token a step; what is held in every step.

    parents: which beam each continues, for beams (`random_beams`); without it every branch continues itself.

    >>> saving(replay_branches(40, 24, n=4)[-1:])       # 6 of 16 blocks, as the formula says
    0.375
    """
    pool = BlockAllocator(n * -(-(prompt_len + output_len) // block_size) + n)
    tables = [BlockTable(pool, block_size)]
    tables[0].append(prompt_len)
    tables += [tables[0].fork() for _ in range(n - 1)]
    holdings = []
    for _ in range(output_len):
        if parents is not None:
            tables = _continue(tables, parents())
        copies = sum(len(table.append(1).copies) for table in tables)
        entries = sum(len(table.block_ids) for table in tables)
        holdings.append(Holding(entries, pool.num_blocks - pool.num_free, copies))
    return holdings


def _continue(tables: Sequence[BlockTable], parents: Sequence[int]) -> list[BlockTable]:
    """One table for every child, as the engine does it: fork all, then free the old ones."""
    children, handed_on = [], set()
    for parent in parents:
        # An only child would be a fork whose parent is freed: the same as to take over its table.
        children.append(tables[parent].fork() if parent in handed_on else tables[parent])
        handed_on.add(parent)
    for index, table in enumerate(tables):
        if index not in handed_on:
            table.free()
    return children


def random_beams(width: int, seed: int, spread: float = SPREAD) -> Parents:
    """Beam search over a random model: every beam's next token has logits from a normal distribution.

    The `width` best continuations by summed log-probability go on, as in `beam_search.py`. spread: the
    standard deviation of the logits; a larger one makes a surer model.
    """
    rng, scores = np.random.default_rng(seed), np.zeros(width)
    scores[1:] = -np.inf  # one prompt: the first step's beams all continue the same

    def parents() -> list[int]:
        nonlocal scores
        logits = rng.normal(0, spread, (width, VOCAB_SIZE))
        totals = scores[:, None] + logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        best = np.argsort(-totals, axis=None)[:width]
        scores = totals.flatten()[best]
        return (best // VOCAB_SIZE).tolist()

    return parents


def saving(holdings: Iterable[Holding]) -> float:
    """The share of blocks saved over all steps: 1 - blocks held / blocks that as many tables would hold."""
    sums = np.array([(one.blocks, one.entries) for one in holdings]).sum(axis=0)
    return float(1 - sums[0] / sums[1])


def replay_savings(num_requests: int = 40) -> dict[tuple[str, str], dict[int, float]]:
    """The saving on generated requests like those of both data sets, for 2, 4 and 6 samples and beams."""
    savings: dict[tuple[str, str], dict[int, float]] = {}
    for name, kind in PAPER_SAVINGS:
        num_tables = num_requests * (1 if kind == "beams" else 3)  # samples are quickly counted
        lengths = lengths_like(name, num_tables if name == "Alpaca" else num_tables // 2)
        for n in (2, 4, 6):
            holdings = []
            for seed, (prompt_len, output_len) in enumerate(lengths):
                parents = random_beams(n, seed) if kind == "beams" else None
                holdings += replay_branches(prompt_len, output_len, n, parents=parents)
            savings.setdefault((name, kind), {})[n] = saving(holdings)
    return savings
