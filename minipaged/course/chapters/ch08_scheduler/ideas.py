"""Continuous batching on plain numbers: what it wins over static batches, and the chunks of a long prompt."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from heapq import heapreplace

from minipaged.errors import check_int


def static_timeline(output_lens: SequenceOf[int], max_num_seqs: int) -> list[tuple[int, int]]:
    """For each request its first step and the step after its last, if one batch must end before the next.

    >>> static_timeline([3, 5, 2, 4], max_num_seqs=2)
    [(0, 3), (0, 5), (5, 7), (5, 9)]
    """
    check_int("max_num_seqs", max_num_seqs, minimum=1)
    timeline: list[tuple[int, int]] = []
    start = 0
    for first in range(0, len(output_lens), max_num_seqs):
        batch = output_lens[first : first + max_num_seqs]
        timeline += [(start, start + output_len) for output_len in batch]
        start += max(batch)
    return timeline


def continuous_timeline(output_lens: SequenceOf[int], max_num_seqs: int) -> list[tuple[int, int]]:
    """The same if the next request takes a seat in the very step in which it has become free.

    >>> continuous_timeline([3, 5, 2, 4], max_num_seqs=2)
    [(0, 3), (0, 5), (3, 5), (5, 9)]
    """
    check_int("max_num_seqs", max_num_seqs, minimum=1)
    timeline: list[tuple[int, int]] = []
    free_from = [0] * max_num_seqs
    for output_len in output_lens:
        start = free_from[0]
        heapreplace(free_from, start + output_len)
        timeline.append((start, start + output_len))
    return timeline


def chunk_sizes(prompt_len: int, num_decoding: int, max_num_batched_tokens: int) -> list[int]:
    """The chunks in which a prompt is computed while others take a token each of every step's budget.

    ValueError, with both numbers, if they leave nothing of it.

    >>> chunk_sizes(20, num_decoding=2, max_num_batched_tokens=8)
    [6, 6, 6, 2]
    """
    room = max_num_batched_tokens - num_decoding
    if room < 1:
        raise ValueError(f"{num_decoding} tokens of {max_num_batched_tokens} are taken: no room for a prompt")
    return [min(room, prompt_len - done) for done in range(0, prompt_len, room)]
