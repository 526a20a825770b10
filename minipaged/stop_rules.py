"""Where an answer ends: the one place that says so, for samples and for beams. Chapter 10
(vllm/v1/core/sched/utils.py, check_stop)."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from minipaged.params import SamplingParams
from minipaged.request import Sequence


def append_token(
    seq: Sequence,
    token_id: int,
    params: SamplingParams,
    eos_token_ids: SequenceOf[int],
    max_model_len: int,
    logprobs: dict[int, float] | None = None,
) -> None:
    """Give a sequence its next token, and end it if it must end: a stop counts before a length.

    First everything that can fail, then the change.
    """
    detokenizer = seq.detokenizer.fork()
    is_eos = token_id in eos_token_ids and not params.ignore_eos
    stops = is_eos or token_id in params.stop_token_ids or detokenizer.append(token_id)
    seq.token_ids.append(token_id)
    seq.detokenizer = detokenizer
    if logprobs is not None:
        seq.logprobs.append(logprobs)
    if stops:
        seq.finish("stop")
    elif len(seq.output_token_ids) == params.max_tokens or seq.num_tokens == max_model_len:
        seq.finish("length")
