"""A trace of prompts served by a pool with a prefix cache, without a model; and chapter 07's pictures.

How much a cache finds depends on what people send and on how many blocks there are, and no model is needed
to count that. A prompt is a list of numbers, one for each block; equal numbers mean the same block behind the
same beginning, as `hash_ids` in Mooncake's traces. Not modelled: time, requests that run at the same time,
and the rule that the last token is always computed, which such numbers can't tell.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minipaged.course.chapters.ch07_prefix_cache.ideas import PrefixPool
from minipaged.pictures.draw import GREY, INK, PALETTE, WIDTH

Prompts = Sequence[Sequence[int]]

# Hits in per cent of all 512-token blocks, by blocks of capacity (LRU), and with room for all. Computed from
# mooncake_conversation_trace.jsonl and mooncake_synthetic_trace.jsonl (kvcache-ai/Mooncake; Qin et al., FAST
# 2025). tests/course/test_prefix_replay.py computes them again where it finds the files.
MOONCAKE = {
    "Mooncake's conversations": {1000: 4.45, 5000: 11.18, 10_000: 21.16, 30_000: 32.57, 50_000: 35.46},
    "Mooncake's synthetic trace": {1000: 8.41, 5000: 27.93, 10_000: 42.39, 30_000: 62.42, 50_000: 63.96},
}
MOONCAKE_UNLIMITED = {"Mooncake's conversations": 36.64, "Mooncake's synthetic trace": 63.96}


class Hits(NamedTuple):
    """Blocks found, of all blocks of all prompts."""

    num_found: int
    num_blocks: int

    @property
    def percent(self) -> float:
        return 100 * self.num_found / max(1, self.num_blocks)


def synthetic_chats(num_chats: int, seed: int) -> list[list[int]]:
    """Prompts of made-up chats, in the order in which they come. Fitted to nothing: say so with its numbers.

    Every chat begins with one of three system prompts (2, 4 and 6 blocks). Its first message adds 8 blocks on
    average, and each later turn, half of the chats having one more each time, sends all that was said before
    and 4 blocks more. Chats start one after the other; a turn comes 30 starts after the one before, on
    average. The same arguments give the same prompts.
    """
    rng, fresh = np.random.default_rng(seed), count()
    systems = [[next(fresh) for _ in range(length)] for length in (2, 4, 6)]
    waiting: list[tuple[float, int, list[int]]] = []  # when, a number to break ties, the prompt so far
    for chat in range(num_chats):
        heapq.heappush(waiting, (float(chat), chat, list(systems[int(rng.integers(3))])))
    prompts: list[list[int]] = []
    while waiting:
        when, chat, so_far = heapq.heappop(waiting)
        mean = 4 if when > chat else 8
        prompts.append([*so_far, *(next(fresh) for _ in range(rng.geometric(1 / mean)))])
        if rng.random() < 0.5:
            heapq.heappush(waiting, (when + float(rng.exponential(30)) + 1e-6, chat, prompts[-1]))
    return prompts


def replay_prompts(prompts: Prompts, num_blocks: int, tail_first: bool = True) -> Hits:
    """Serve the prompts one after the other from a pool of `num_blocks` blocks, least recently used evicted
    first. tail_first=False: a prompt's blocks are given up head first instead. No prompt may have more than
    `num_blocks` blocks (`OutOfBlocks`).

    >>> replay_prompts([[1, 2], [1, 2, 3]], num_blocks=4)
    Hits(num_found=2, num_blocks=5)
    """
    pool, num_found = PrefixPool(num_blocks, block_size=1), 0
    for prompt in prompts:
        keys = [number.to_bytes(8, "little") for number in prompt]
        hits = pool.cache.match(keys, len(keys) + 1)  # as if a token stood behind the last block
        block_ids = pool.take(hits, len(keys) - len(hits))
        for block_id, key in zip(block_ids, keys, strict=True):
            pool.cache.publish(block_id, key)
        pool.release(block_ids if tail_first else block_ids[::-1])
        num_found += len(hits)
    return Hits(num_found, sum(map(len, prompts)))


def num_distinct(prompts: Prompts) -> int:
    """How many blocks a pool needs so that nothing is ever evicted."""
    return len({number for prompt in prompts for number in prompt})


def draw_chains(prompts: Mapping[str, Sequence[str]], keys: Mapping[str, Sequence[bytes]]) -> Figure:
    """A row for each prompt: its blocks' texts, their keys below, and each key an input of the next. Equal
    keys have the same colour."""
    colours: dict[bytes, str] = {}
    for one in (key for row in keys.values() for key in row):
        colours.setdefault(one, PALETTE[len(colours) % len(PALETTE)])
    figure = Figure(figsize=(WIDTH, 0.15 + 1.1 * len(prompts)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(figure.get_figheight(), 0))
    axes.set_axis_off()
    for row, (name, texts) in enumerate(prompts.items()):
        y = 0.15 + 1.1 * row
        axes.text(0.1, y + 0.2, name, fontsize=10, weight="bold", va="center", color=INK)
        for place, text in enumerate(texts):
            key = keys[name][place] if place < len(keys[name]) else None
            _draw_link(axes, 0.75 + 2.15 * place, y, text, key, colours)
    rows = [
        f"{name}: {' | '.join(prompts[name])}; keys {', '.join(key.hex()[:4] for key in row)}"
        for name, row in keys.items()
    ]
    figure.set_label(f"Blocks of {len(prompts)} prompts and their chained keys. {'. '.join(rows)}.")
    return figure


def _draw_link(
    axes: Axes, x: float, y: float, text: str, key: bytes | None, colours: Mapping[bytes, str]
) -> None:
    """One block, and its key with the arrows that lead to it; a block that is not full has none."""
    axes.add_patch(Rectangle((x, y), 1.8, 0.4, facecolor="white", edgecolor=INK, linewidth=1))
    axes.text(x + 0.9, y + 0.2, text, fontsize=9, ha="center", va="center", color=INK)
    if key is None:
        axes.text(x + 0.9, y + 0.75, "not full: no key", fontsize=8, ha="center", va="center", color=GREY)
        return
    box = Rectangle((x + 0.4, y + 0.6), 1.0, 0.3, facecolor=colours[key], alpha=0.45, edgecolor=INK)
    axes.add_patch(box)
    axes.text(x + 0.9, y + 0.75, f"{key.hex()[:4]}…", fontsize=9, ha="center", va="center", color=INK)
    arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (x + 0.9, y + 0.6), (x + 0.9, y + 0.4), arrowprops=arrow)
    axes.annotate("", (x + 0.4, y + 0.75), (x - 0.75 if x > 1 else x - 0.1, y + 0.75), arrowprops=arrow)


def draw_hit_rates(curves: Mapping[str, Mapping[int, float]], unlimited: Mapping[str, float]) -> Figure:
    """Blocks found in per cent against the blocks that a cache has (LRU); dashed: with room for all."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, curve), colour, marker in zip(curves.items(), PALETTE, "osD^", strict=False):
        axes.plot(list(curve), list(curve.values()), color=colour, marker=marker, linewidth=2, label=name)
        axes.hlines(unlimited[name], min(curve), max(curve), color=colour, linewidth=1.2, linestyle="--")
    axes.set(xscale="log", ylim=(0, 88), xlabel="blocks in the pool", ylabel="blocks found, %")
    ticks = [
        10**power for power in range(1, 7) if 10**power > min(min(curve) for curve in curves.values()) / 2
    ]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlim(right=2 * max(max(curve) for curve in curves.values()))
    axes.set_title("What a cache finds (dashed: with room for all)", fontsize=10, weight="bold", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", ncols=3)
    texts = [
        f"{name}: {', '.join(f'{rate:.1f} % with {size:,} blocks' for size, rate in curve.items())}, "
        f"{unlimited[name]:.1f} % with room for all"
        for name, curve in curves.items()
    ]
    figure.set_label(f"Blocks found against the size of the pool. {'. '.join(texts)}.")
    return figure
