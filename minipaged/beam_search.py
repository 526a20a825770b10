"""Beam search by fork and free.

Every step the best continuations are chosen over all beams, so some beams split and others die. With a block
table a split is a fork that copies nothing, and a death is a free; other systems move whole caches around.
Left out: diverse beams and constraints. Chapter 06 (Kwon et al., SOSP'23, section 4.4, Figure 9).
"""

from __future__ import annotations

import torch

from minipaged.params import BeamSearchParams, SamplingParams
from minipaged.request import Request, Sequence
from minipaged.stop_rules import append_token


def advance_beams(
    request: Request,
    params: BeamSearchParams,
    logits: torch.Tensor,
    eos_token_ids: tuple[int, ...],
    max_model_len: int,
) -> None:
    """Replace the live beams by the best continuations; `logits` [number of live beams, V], in their order.

    A beam that ends joins the finished ones if it is among the best `beam_width` candidates. The search ends
    when no live beam can beat the worst of `beam_width` finished ones at its present length, or at
    max_tokens; then the best `beam_width` are kept, best first.
    """
    beams = request.live
    ends = SamplingParams(max_tokens=params.max_tokens, ignore_eos=params.ignore_eos)
    eos = () if params.ignore_eos else eos_token_ids
    children: list[Sequence] = []
    num_live = 0
    for rank, (beam, token_id, total) in enumerate(
        _candidates(beams, logits, params.beam_width * (1 + len(eos)))
    ):
        if num_live == params.beam_width or (token_id in eos and rank >= params.beam_width):
            continue
        child = beam.fork(index=0)
        append_token(child, token_id, ends, eos_token_ids, max_model_len)
        child.cumulative_logprob = total
        child.score = total / len(child.output_token_ids) ** params.length_penalty
        num_live += child.finish_reason is None
        children.append(child)
    for beam in beams:
        beam.release()
    request.keep([seq for seq in request.sequences if seq not in beams] + children)
    _prune(request)


def _prune(request: Request) -> None:
    """Keep the best finished beams, and drop the live ones if none of them can still become better."""
    live, finished = request.live, request.best_beams()
    is_full = len(finished) == request.max_num_seqs
    if live and is_full and finished[-1].rank() >= max(seq.rank() for seq in live):
        for seq in live:
            seq.release()
        live = []
    request.keep(finished + live)


def _candidates(beams: list[Sequence], logits: torch.Tensor, count: int) -> list[tuple[Sequence, int, float]]:
    """The `count` likeliest (beam, next token, summed log-probability), best first."""
    vocab_size = logits.shape[-1]
    totals = logits.log_softmax(dim=-1)
    totals += torch.tensor([beam.cumulative_logprob for beam in beams], device=logits.device)[:, None]
    best = totals.flatten().topk(min(count, totals.numel()))
    return [
        (beams[index // vocab_size], index % vocab_size, total)
        for index, total in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
