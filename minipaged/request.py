"""A request and its sequences: what the user asked for, and the branches that answer it.

One prompt can have many continuations (n samples, beams). The request is what is queued, admitted and
preempted; each of its sequences has tokens and a block table of its own. Which blocks, says `BlockManager`;
when, `Scheduler`.

A sequence's tokens while a step is under way; "cached" were found by the prefix cache at its admission:

    |            prompt             |  output so far   |
    | cached | computed | this step's |    to come      |
    |<---- num_computed_tokens ---->|<- uncomputed  ->|

The sequence gets its next token in the step that leaves nothing to come.

Who writes a field once it is made (tests/engine/test_request.py compares fields and modules with the code):

    field                               written by                    when
    token_ids, detokenizer, logprobs    stop_rules                    a step gives the sequence a token
    token_ids                           simulation/simulator          the same, with made-up tokens
    cumulative_logprob, score           beam_search                   a step continues a beam
    index, sequences                    request                       branches fork; beams are ranked anew
    table, fork_of, num_published       block_manager                 admission, preemption, a full block
    table, fork_of, num_published       request                       blocks given back, or lost in a failure
    table                               simulation/contiguous_memory  admission, in the block manager's place
    block_keys                          block_manager                 a key is asked for the first time
    num_cached_tokens                   block_manager                 admission
    is_swapped                          block_manager                 swapped out, swapped in
    is_swapped                          request                       blocks are lost in a failure
    finish_reason                       request                       once, at the end
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from minipaged.block_table import BlockTable
from minipaged.detokenizer import Detokenizer
from minipaged.params import BeamSearchParams, CompletionOutput, RequestOutput, SamplingParams


@dataclass(eq=False)
class Sequence:
    """One branch: prompt and output tokens, and the table of those whose K/V is stored.

    table is None while nothing is stored: before admission, after preemption by recompute, and when finished.
    fork_of: (sequence, tokens in common) to fork from as soon as those tokens are stored; only for branches
    that come back after a preemption. block_keys: the prefix-cache keys of its full blocks, as far as they
    were needed; num_published of them have been published.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    detokenizer: Detokenizer
    index: int = 0
    table: BlockTable | None = None
    fork_of: tuple[Sequence, int] | None = None
    block_keys: list[bytes] = field(default_factory=list)
    num_published: int = 0
    logprobs: list[dict[int, float]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    score: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose K/V is stored, or has a slot in the step under way."""
        return self.table.num_tokens if self.table is not None else 0

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens without a slot; after the last of them is computed, the sequence gets its next one."""
        return len(self.token_ids) - (0 if self.table is None else self.table.num_tokens)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def fork(self, index: int) -> Sequence:
        """A second branch with the same tokens so far, sharing every block."""
        return Sequence(
            token_ids=list(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            detokenizer=self.detokenizer.fork(),
            index=index,
            table=self.table.fork() if self.table else None,
            block_keys=list(self.block_keys),
            num_published=self.num_published,
            logprobs=list(self.logprobs),
            cumulative_logprob=self.cumulative_logprob,
        )

    def release(self) -> None:
        """Give its blocks back, if it has any; what was computed will have to be computed again."""
        if self.table is not None:
            self.table.free()
        self.forget_blocks()

    def forget_blocks(self) -> None:
        """Drop the table without giving its blocks back: their pool has been made anew."""
        self.table, self.fork_of, self.num_published = None, None, 0

    def finish(self, reason: str) -> None:
        self.release()
        self.detokenizer.finish()
        self.finish_reason = reason

    def rank(self) -> float:
        """What beams are compared by; a beam without a token yet comes last."""
        return -math.inf if self.score is None else self.score

    def common_prefix_len(self, other: Sequence) -> int:
        """How many tokens two branches share from the start."""
        shorter = min(self.num_tokens, other.num_tokens)
        return next((n for n in range(shorter) if self.token_ids[n] != other.token_ids[n]), shorter)


@dataclass(eq=False)
class Request:
    """What was asked, in the order it is served: by (priority, arrival), lower first."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams | BeamSearchParams
    priority: int
    arrival: int
    sequences: list[Sequence]
    seed: int = 0
    is_swapped: bool = False
    num_cached_tokens: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.arrival

    @property
    def live(self) -> list[Sequence]:
        """The branches still being generated."""
        return [seq for seq in self.sequences if seq.finish_reason is None]

    @property
    def is_finished(self) -> bool:
        return not self.live

    @property
    def max_num_seqs(self) -> int:
        """Branches it may have at once: n, or the beam width."""
        return self.params.beam_width if isinstance(self.params, BeamSearchParams) else self.params.n

    @property
    def num_seqs(self) -> int:
        """Branches it counts for now: before its first token, all that it will fork into."""
        has_forked = len(self.sequences) > 1
        return (
            len(self.live)
            if has_forked and not isinstance(self.params, BeamSearchParams)
            else self.max_num_seqs
        )

    def next_tokens(self, budget: int) -> list[tuple[Sequence, int]]:
        """Which branches would compute how many tokens in a step that has `budget` left.

        One branch takes as much of its prompt as fits. Several branches take their next token together or not
        at all, and those that come back from a preemption first catch up to their last token.
        """
        live = self.live
        if len(live) == 1:
            num_tokens = min(live[0].num_uncomputed_tokens, budget)
            return [(live[0], num_tokens)] if num_tokens > 0 else []
        if all(seq.num_uncomputed_tokens == 1 for seq in live):
            work = [(seq, 1) for seq in live] if len(live) <= budget else []
        else:
            work = []
            for seq in live:
                num_tokens = min(seq.num_uncomputed_tokens - 1, budget) if seq.table is not None else 0
                work.append((seq, num_tokens))
                budget -= num_tokens
        return [(seq, num_tokens) for seq, num_tokens in work if num_tokens > 0]

    def finish(self, reason: str) -> None:
        """End every branch that still runs."""
        for seq in self.live:
            seq.finish(reason)
        if isinstance(self.params, BeamSearchParams):
            self.keep(self.best_beams())

    def forget_blocks(self) -> None:
        """Drop every table without giving its blocks back: the pools have been made anew."""
        self.is_swapped = False
        for seq in self.live:
            seq.forget_blocks()

    def add_branch(self, parent: Sequence, index: int) -> Sequence:
        """Fork `parent` into one more branch of the request, and return it."""
        child = parent.fork(index)
        self.sequences.append(child)
        return child

    def keep(self, sequences: list[Sequence]) -> None:
        """Keep these branches and no others, numbered in this order."""
        self.sequences = sequences
        for index, seq in enumerate(sequences):
            seq.index = index

    def best_beams(self) -> list[Sequence]:
        """The finished beams with the highest scores, best first, at most beam_width."""
        ended = [seq for seq in self.sequences if seq.finish_reason is not None]
        return sorted(ended, key=Sequence.rank, reverse=True)[: self.max_num_seqs]

    def output(self) -> RequestOutput:
        """A snapshot for the user."""
        logprobs_wanted = isinstance(self.params, SamplingParams) and self.params.logprobs is not None
        outputs = [
            CompletionOutput(
                index=seq.index,
                text=seq.detokenizer.text if seq.finish_reason else seq.detokenizer.visible,
                token_ids=seq.output_token_ids,
                finish_reason=seq.finish_reason,
                logprobs=[dict(each) for each in seq.logprobs] if logprobs_wanted else None,
                score=seq.score,
            )
            for seq in self.sequences
        ]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=list(self.prompt_token_ids),
            outputs=outputs,
            finished=self.is_finished,
            num_cached_tokens=self.num_cached_tokens,
        )
