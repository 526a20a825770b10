"""From logits to tokens: greedy or drawn, each row with its own parameters.

A step's rows belong to different requests, and a request's samples must not depend on its neighbours. So a
draw uses one uniform number that is a function of (seed, branch, position) alone: there is no generator whose
state would have to be kept, forked with a branch, or restored after a preemption. Beams are
`beam_search.py`. Chapter 10.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from minipaged.params import SamplingParams


@dataclass(frozen=True)
class SamplingRow:
    """What one row of logits is sampled with: its parameters, its sequence's tokens so far, and a number in
    [0, 1)."""

    params: SamplingParams
    token_ids: list[int]
    uniform: float


def uniform(seed: int, branch: int, position: int) -> float:
    """The random number in [0, 1) that decides one token."""
    return random.Random(f"{seed}/{branch}/{position}").random()


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    """Choose one token for every row of `logits` [R, V] in fp32, which stay as they are."""
    penalised = [index for index, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    if penalised:
        logits = logits.clone()
        for index in penalised:
            penalise(logits[index], rows[index])
    token_ids = logits.argmax(dim=-1).tolist()
    drawn = [index for index, row in enumerate(rows) if not row.params.is_greedy]
    if drawn:
        for index, token_id in zip(drawn, draw(logits[drawn], [rows[i] for i in drawn]), strict=True):
            token_ids[index] = token_id
    return token_ids


def top_logprobs(
    logits: torch.Tensor, rows: list[SamplingRow], token_ids: list[int]
) -> list[dict[int, float] | None]:
    """For rows that ask for them: the log-probabilities of the likeliest tokens, likeliest first, and of the
    chosen one.

    They are the model's own, before temperature, penalties and filters.
    """
    result: list[dict[int, float] | None] = []
    for row, row_logits, token_id in zip(rows, logits, token_ids, strict=True):
        if row.params.logprobs is None:
            result.append(None)
            continue
        logprobs = row_logits.log_softmax(dim=-1)
        top = logprobs.topk(min(row.params.logprobs, len(logprobs)))
        best = dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        result.append(best | {token_id: logprobs[token_id].item()})
    return result


def penalise(logits: torch.Tensor, row: SamplingRow) -> None:
    """Make the tokens of prompt and output less likely, in place (Keskar et al., 2019, section 4.1)."""
    seen = torch.tensor(sorted(set(row.token_ids)), device=logits.device)
    scores = logits[seen]
    penalty = row.params.repetition_penalty
    logits[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)


def draw(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    """Temperature, then the filters in the order top_k, top_p, min_p, then one draw by the inverse of the
    sum."""
    logits = logits / column(logits, [row.params.temperature for row in rows])
    top_k, top_p = [row.params.top_k for row in rows], [row.params.top_p for row in rows]
    if any(top_k):
        keep_top_k(logits, top_k)
    if min(top_p) < 1.0:
        keep_top_p(logits, top_p)
    probs = logits.softmax(dim=-1)
    least = probs.amax(dim=-1, keepdim=True) * column(logits, [row.params.min_p for row in rows])
    probs = probs.where(probs >= least, 0.0)
    sums = probs.double().cumsum(dim=-1)
    target = sums[:, -1:] * column(sums, [row.uniform for row in rows])
    # right=True: the first sum above the target, so a token of probability 0 is never the one.
    drawn = torch.searchsorted(sums, target, right=True).clamp_(max=logits.shape[-1] - 1)
    return drawn.flatten().tolist()


def keep_top_k(logits: torch.Tensor, top_k: list[int]) -> None:
    """Set all but each row's k largest logits to -inf, in place; 0 keeps all."""
    for row, k in zip(logits, top_k, strict=True):
        if 0 < k < len(row):
            row[row < row.topk(k).values[-1]] = -torch.inf


def keep_top_p(logits: torch.Tensor, top_p: list[float]) -> None:
    """Set to -inf, in place, what is not in the smallest set of tokens whose probability reaches p."""
    for row, p in zip(logits, top_p, strict=True):
        if p < 1.0:
            probs, order = row.softmax(dim=-1).sort(descending=True, stable=True)
            reached_before = probs.cumsum(dim=-1) - probs >= p
            row[order[reached_before]] = -torch.inf


def column(like: torch.Tensor, values: list[float]) -> torch.Tensor:
    """One number per row, as a tensor [R, 1] of the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
