"""Chapter 10: the engine.

The layers of the chapters before are plugged into an engine. What is left is what stands around them: how the
next token is chosen, how tokens become text that can be shown, when an answer ends, and the loop that turns
it all. You write those, and your `Engine` below is the package's own with your pieces in it.

Given, and imported from the package:

* `SamplingRow(params, token_ids, uniform)`: what one row of logits is sampled with; `params` has the
  `temperature`, `top_k`, `top_p`, `min_p` and `is_greedy` of a request;
* `column(like, values)`: one number per row, as a tensor [R, 1];
* `penalise`, `top_logprobs`: the repetition penalty, and the log-probabilities that a user may ask for;
* `Tokenizer.token_bytes(token_id)`: the bytes of a token, maybe half a character;
* `Sequence`: `token_ids`, `output_token_ids`, `num_tokens`, `detokenizer`, and `finish(reason)`, which frees
  its blocks;
* the rest of the engine, which `Engine` inherits.

Letters: R rows of logits, V tokens in the vocabulary.

`minipaged check ch10` grades this file, and `minipaged hint ch10` helps. What serves a model here is not a
layer among others but the engine itself: the notebook runs it, and talks with it.
"""

from __future__ import annotations

import codecs
import copy
import random
import time
from collections.abc import Sequence as SequenceOf

import torch

from minipaged.batch import Batch
from minipaged.engine import Draw
from minipaged.engine import Engine as GivenEngine
from minipaged.invariants import check_writes
from minipaged.loading.tokenizer import Tokenizer
from minipaged.params import RequestOutput, SamplingParams
from minipaged.request import Sequence
from minipaged.sampler import SamplingRow, column, penalise, top_logprobs
from minipaged.scheduler import Schedule

# -- from logits to a token ----------------------------------------------------------------------------------


def uniform(seed: int, branch: int, position: int) -> float:
    """The random number in [0, 1) that decides one token: that of a request's branch at a position.

    It is a function of the three numbers and of nothing else. Called again with the same three, in any order,
    in another process, however many numbers have been drawn in between, it gives the same. Other numbers give
    another result: uniform(1, 0, 2) and uniform(0, 1, 2) have nothing to do with each other, nor have
    uniform(1, 1, 12) and uniform(1, 11, 2). Python's own generator (`random.seed`, `random.random`) is not
    disturbed: other code may be using it.

    So there is no state that would have to be kept for a request, copied when it forks, or put back when it
    is preempted; and what else is in the batch can't matter. Evenly spread: over many positions, a tenth of
    the numbers lies in each tenth of [0, 1).
    """
    # Task 1 ★ a number of one's own (10 points, about 5 minutes)
    # 1. Make one key of the three numbers, such that no other three have the same key.
    # 2. `random.Random(key)` is a generator of its own, and its key may be a text. Take its first number.
    raise NotImplementedError("ch10_engine, task 1: a number of one's own")


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    """Choose one token for every row of `logits` [R, V] in fp32, which stay as they are.

    A greedy row (`row.params.is_greedy`) takes its likeliest token; of several that are equally likely the
    one with the lowest id. The other rows are drawn, all together, by `draw`. A row's choice depends on its
    own logits and its own `SamplingRow` alone: not on which rows stand beside it, nor in which order.

    >>> greedy = SamplingRow(SamplingParams(temperature=0), [0], 0.9)
    >>> sample(torch.tensor([[0.0, 2.0, 1.0]]), [greedy])
    [1]
    """
    penalised = [index for index, row in enumerate(rows) if row.params.repetition_penalty != 1.0]
    if penalised:
        logits = logits.clone()
        for index in penalised:
            penalise(logits[index], rows[index])
    # Task 2 ★ choose a token (15 points, about 15 minutes)
    # 1. Take the likeliest token of every row: `argmax` gives the lowest id of several.
    # 2. Which rows are to be drawn? Call `draw` with those rows of logits, and those rows, if there are any.
    # 3. Put what was drawn in its places, and return a plain list of ints.
    raise NotImplementedError("ch10_engine, task 2: choose a token")


def draw(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    """Draw one token for every row of `logits` [R, V], none of them greedy.

    First each row's logits are divided by its temperature. Then the filters drop tokens: top_k, top_p, min_p,
    in this order. What is left is drawn by the row's number u in [0, 1): lay the probabilities of the tokens
    that are left side by side, in the order of their ids, on a line of length S, their sum. The token is the
    one on which u · S falls; a point between two belongs to the one on the right.

    Example: probabilities 0.5, 0.3, 0.2. Every u from 0 up to, but not including, 0.5 gives token 0; from 0.5
    up to 0.8 token 1; above that token 2. A token of probability 0 is never drawn, not even by u = 0 or by
    the largest number below 1. Add up in float64: a float32 is too coarse for a large vocabulary.
    """
    # Task 2
    # 1. Divide each row by its temperature: `column(logits, temperatures)` is a tensor [R, 1].
    raise NotImplementedError("ch10_engine, task 2: choose a token")
    top_k, top_p = [row.params.top_k for row in rows], [row.params.top_p for row in rows]
    if any(top_k):
        keep_top_k(logits, top_k)
    if min(top_p) < 1.0:
        keep_top_p(logits, top_p)
    probs = logits.softmax(dim=-1)
    least = probs.amax(dim=-1, keepdim=True) * column(logits, [row.params.min_p for row in rows])
    probs = probs.where(probs >= least, 0.0)
    # Task 2
    # 2. `probs` are what is left, [R, V]. Running sums along each row, in float64 (`double`, `cumsum`):
    #    sums[r, v] is where token v ends on the line. The last one is S.
    # 3. The token is the first whose sum lies above u · S: `torch.searchsorted(sums, target, right=True)`.
    #    For u close to 1, rounding may give V: that is the last token (`clamp`). Return a list of ints.
    raise NotImplementedError("ch10_engine, task 2: choose a token")


# -- from tokens to text -------------------------------------------------------------------------------------


class Detokenizer:
    """The text of one sequence's output, one token at a time, as far as it can be shown.

    What a stream has shown can't be taken back. So a character is shown when its last byte is there, and text
    that may still turn out to be a stop text is held back.

    >>> stream = Detokenizer(Tokenizer.byte_level(), stop=["END"])       # a token is a byte here
    >>> [stream.append(byte) or stream.visible for byte in "é EN!".encode()]
    ['', 'é', 'é ', 'é ', 'é ', 'é EN!']
    """

    def __init__(self, tokenizer: Tokenizer, stop: SequenceOf[str] = ()) -> None:
        """No text yet: `text` is "". `tokenizer.token_bytes(token_id)` gives a token's bytes."""
        self.text = ""
        self._tokenizer = tokenizer
        self._stop = stop
        # Task 3 ★ text that never breaks a character (10 points, about 10 minutes)
        # 1. Something must keep the bytes of a character that is not complete. Python has it:
        #    `codecs.getincrementaldecoder("utf-8")` is a class; make one with errors="replace".
        raise NotImplementedError("ch10_engine, task 3: text that never breaks a character")

    def append(self, token_id: int) -> bool:
        """Add one token to `text`; True if it completes a stop text, which is then cut off together with
        what follows it.

        Bytes that may become a character with the next token are kept and add nothing yet. Bytes that can't
        be UTF-8 any more become U+FFFD, the replacement character, as in `bytes.decode(errors="replace")`.

        Example, stop texts aside: "é" is the bytes C3 A9. After a token C3, `text` is as before; after
        another one, A9, it has grown by "é". If the tokens are C3 and 21 ("!") it has grown by "\\ufffd!".
        """
        first_new = len(self.text)
        # Task 3
        # 1. Get the token's bytes, give them to the decoder, and add to self.text what comes out.
        raise NotImplementedError("ch10_engine, task 3: text that never breaks a character")
        ends = [find_stop(self.text, stop, first_new) for stop in self._stop]
        found = [end for end in ends if end is not None]
        if found:
            self.text = self.text[: min(found)]
            self._decoder.reset()
        return bool(found)

    @property
    def visible(self) -> str:
        """The text that no later token can change: without what may be the beginning of a stop text."""
        return self.text[: len(self.text) - max((overlap(self.text, stop) for stop in self._stop), default=0)]

    def finish(self) -> str:
        """No more tokens: add what is left of a broken last character, as U+FFFD, and return all the text."""
        # Task 3
        # 1. `decode(b"", final=True)` has the decoder give up on the bytes it keeps.
        raise NotImplementedError("ch10_engine, task 3: text that never breaks a character")

    def fork(self) -> Detokenizer:
        """A copy that goes on by itself, also from the middle of a character."""
        # Task 3
        # 1. `copy.copy(self)` has the same attributes. Which of them must not be shared?
        # 2. A new decoder takes over where the old one is: `setstate` and `getstate`.
        raise NotImplementedError("ch10_engine, task 3: text that never breaks a character")


# -- filters -------------------------------------------------------------------------------------------------


def keep_top_k(logits: torch.Tensor, top_k: list[int]) -> None:
    """Set all but each row's k largest of `logits` [R, V] to -inf, in place; k = 0 keeps all, and so does a k
    of V or more.

    Tokens that are as likely as the k-th are kept too.

    Example: logits 3, 1, 2, 2 and k = 2 become 3, -inf, 2, 2.
    """
    # Task 4 ★★ top-k and top-p (15 points, about 15 minutes)
    # 1. For every row and its k, if k drops anything at all:
    # 2. the k-th largest is the last of `row.topk(k).values`;
    # 3. what is below it becomes -inf. `row[mask] = …` writes into `logits`, since a row is a view.
    raise NotImplementedError("ch10_engine, task 4: top-k and top-p")


def keep_top_p(logits: torch.Tensor, top_p: list[float]) -> None:
    """Set to -inf, in place, what is not in the smallest set of tokens whose probability reaches p.

    The set is filled from the likeliest token down; of equally likely ones the lower id comes first. The
    token that reaches p, or goes beyond it, is in the set. So it is never empty. p = 1 keeps all.

    Example: probabilities 0.5, 0.3, 0.15, 0.05. p = 0.6 keeps tokens 0 and 1 (0.5 alone does not reach it),
    and p = 0.4 keeps token 0.
    """
    # Task 4
    # 1. For every row and its p, if p is below 1:
    # 2. sort its probabilities, the likeliest first: `sort(descending=True, stable=True)` also says where
    #    each one came from.
    # 3. A token is dropped if the sum of those *before* it reaches p already.
    raise NotImplementedError("ch10_engine, task 4: top-k and top-p")


# -- where an answer ends ------------------------------------------------------------------------------------


def find_stop(text: str, stop: str, first_new: int) -> int | None:
    """Where in `text` a stop text begins that was completed by text[first_new:]; None if none was.

    Its beginning may lie before `first_new`: a stop text can begin in one token and end three tokens later.
    If it occurs twice, the first place counts. A stop text that was complete before is not looked for: the
    answer would have ended there.

    >>> find_stop("a thing", "th", first_new=3), find_stop("a thing", "th", first_new=4)
    (2, None)
    """
    # Task 5 ★★ where an answer ends (15 points, about 15 minutes)
    # 1. If its last character is at first_new or later, how early can its first one be? Not below 0.
    # 2. `text.find(stop, start)` is -1 if there is none.
    raise NotImplementedError("ch10_engine, task 5: where an answer ends")


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, though not all of it.

    So many characters have to be held back: the next token may make a stop text of them.

    >>> overlap("the E", "END"), overlap("the EN", "END"), overlap("the E N", "END")
    (1, 2, 0)
    """
    # Task 5
    # 1. Try the beginnings of `stop`, the longest first, but not the whole: does text end with one?
    raise NotImplementedError("ch10_engine, task 5: where an answer ends")


def append_token(
    seq: Sequence,
    token_id: int,
    params: SamplingParams,
    eos_token_ids: SequenceOf[int],
    max_model_len: int,
    logprobs: dict[int, float] | None = None,
) -> None:
    """Give a sequence its next token, and end it if it must end: a stop counts before a length.

    It ends with `seq.finish("stop")` if the token

    * is one of `eos_token_ids`, unless `params.ignore_eos`, or
    * is one of `params.stop_token_ids`, or
    * completes a stop text: `seq.detokenizer.append(token_id)` says so;

    and else with `seq.finish("length")` if it has `params.max_tokens` output tokens now, or `max_model_len`
    tokens in all.

    The token is appended to `seq.token_ids` in every case. Its text is not added to the detokenizer if it is
    an end of text or one of the stop tokens. `logprobs`, if there are any, are appended to `seq.logprobs`.
    """
    # Task 5
    # 1. First everything that can fail: fork the detokenizer. Does the token stop the answer? Ask the fork
    #    last, and only if nothing else stops it.
    # 2. Then the change: the token, the fork in the detokenizer's place, the logprobs if they are not None.
    # 3. End the sequence if it must: for a stop, or else for a length.
    raise NotImplementedError("ch10_engine, task 5: where an answer ends")


# -- the loop ------------------------------------------------------------------------------------------------


class Engine(GivenEngine):
    """The package's engine, with the step and what it calls taken from this file.

    What you inherit: `add_request`, `abort`, `has_unfinished_requests`, `stats`, and

    * `self.scheduler.schedule()`: decides the next step and takes its slots; gives a `Schedule` with `work`
      (one entry per sequence: `request`, `sequence`, `slots`), `copies`, `swap_out`, `swap_in` and
      `out_of_capacity` (requests that had to be ended: the whole pool can't hold them);
    * `self._take_in(logits, step)`: samples, and gives every sequence whose tokens are all computed its next
      one; returns the requests that have something new;
    * `self._recover()`: after a failure. The memory starts anew, and every request waits, with its tokens;
    * `self.memory.publish(request, sequence)`: lets the prefix cache find the blocks that are full now;
    * `self.kv_cache` and, if there is swapping, `self.cpu_cache` (else None). `a.copy_blocks(copies)` copies
      within `a`; `a.copy_blocks_from(b, copies)` copies from `b` into `a`.
    """

    def step(self) -> list[RequestOutput]:
        """Advance every scheduled request by one step; returns those that have something new.

        Schedule, execute, take in. A request that has ended is returned one last time, and is no longer in
        `self.requests`. If anything fails (Ctrl-C included), the memory starts anew, every request waits in
        its old order, with the tokens it has, and the error goes on to the caller.
        """
        # Task 6 ★★ the step (20 points, about 20 minutes)
        # 1. In a `try`: let the scheduler decide (a Schedule, say `step`); execute it (below), which gives
        #    the logits, a row for each sequence that gets a token; then `changed` are the requests whose end
        #    a failure has kept back (self._reported_late()), those that the pool can't hold, and those that
        #    take in a token, in this order.
        # 2. `except BaseException`: self._recover(), and raise it again.
        # 3. self.last_step is this step, and self._ended_in_failure is [] again.
        # 4. Forget the requests of `changed` that are finished.
        # 5. Count the step: self._count(step, seconds), the seconds by time.perf_counter().
        # 6. Return request.output() of each that changed.
        raise NotImplementedError("ch10_engine, task 6: the step")

    def _execute(self, step: Schedule) -> torch.Tensor:
        """Move blocks, run the model, publish what was filled. Returns the logits [sampled rows, V].

        A step without work does not run the model; but blocks may have to be moved in it all the same.
        """
        # Task 6
        # 1. `check_writes(step, self.memory)` raises if the step would write what it must not.
        # 2. Move the blocks. Before or after the model runs?
        # 3. Without work: return torch.empty(0, V), V = self.model.config.vocab_size.
        # 4. `Batch.of(step.work, self.model.device)` lays the work out as tensors. Run the model:
        #    self.model.forward(batch, self.kv_cache, self.parts.paged_attention). (The package also adds the
        #    seconds this takes to self._forward_time.)
        # 5. Publish every sequence that had work. Before or after the model runs?
        raise NotImplementedError("ch10_engine, task 6: the step")

    def _move_blocks(self, step: Schedule) -> None:
        """Swap out, swap in, copy: in this order, and all before the step's first write.

        `step.swap_out` are (block of the pool, CPU block), `step.swap_in` (CPU block, block of the pool),
        `step.copies` (src, dst) within the pool. A block that was swapped out may be given to somebody in the
        very same step.
        """
        # Task 6
        # 1. If there is a CPU cache: out of the pool into it, then out of it into the pool.
        # 2. The copies within the pool.
        raise NotImplementedError("ch10_engine, task 6: the step")

    # Given: the same as in the package, so that it is *your* sample, uniform, append_token and Detokenizer
    # that are called.

    def _sample(self, logits: torch.Tensor, drawn: list[Draw]) -> None:
        if not drawn:
            return
        logits = logits[[draw.row for draw in drawn]]
        rows = [
            SamplingRow(params, seq.token_ids, uniform(request.seed, branch, seq.num_tokens))
            for request, params, seq, branch, _ in drawn
        ]
        token_ids = sample(logits, rows)
        logprobs = top_logprobs(logits, rows, token_ids)
        branches = [self._branch(draw) for draw in drawn]
        eos = self.model.config.eos_token_ids
        for draw, seq, token_id, token_logprobs in zip(drawn, branches, token_ids, logprobs, strict=True):
            append_token(seq, token_id, draw.params, eos, self.max_model_len, token_logprobs)

    def _new_sequence(self, token_ids: list[int], stop: SequenceOf[str]) -> Sequence:
        detokenizer = Detokenizer(self.tokenizer, stop)
        return Sequence(token_ids, len(token_ids), detokenizer)  # type: ignore[arg-type]


# -- a challenge: several tokens a step ----------------------------------------------------------------------


def propose(token_ids: list[int], ngram_len: int, num_tokens: int) -> list[int]:
    """A challenge: guess the next tokens from the text itself, without a model.

    Look for the last `ngram_len` tokens earlier in the text; where they occurred last, what followed there is
    the guess, at most `num_tokens` tokens. The earlier occurrence must be followed by at least one token; it
    may overlap with the end itself. No earlier occurrence, or a text shorter than that: no guess, [].
    ValueError, with the number, for an `ngram_len` or `num_tokens` below 1.

    >>> propose([5, 6, 7, 8, 5, 6], ngram_len=2, num_tokens=3)          # 5 6 was followed by 7 8 5
    [7, 8, 5]
    >>> propose([9, 9, 9], ngram_len=2, num_tokens=3)                   # 9 9 begins at 0 too: then came 9
    [9]
    """
    # Task 7 ★★★ several tokens a step (15 points, about 20 minutes)
    # 1. Refuse numbers below 1.
    # 2. Go backwards over the places where the n-gram could begin, but for the end itself.
    # 3. At the first match, return what follows it.
    raise NotImplementedError("ch10_engine, task 7: several tokens a step")


def accept(proposed: list[int], logits: torch.Tensor) -> list[int]:
    """A challenge: which tokens a step yields that has computed the last token and `proposed` behind it.

    `logits` is [len(proposed) + 1, V]: row 0 is what the model says after the last token, row i what it says
    if the first i proposed tokens are right. The result is what greedy decoding would have given one by one:
    proposed tokens as long as the model agrees with them, and then one token more, the model's own. So a step
    always yields at least one token, and at most len(proposed) + 1.

    Example: the model says 7, 8, 1, 4 (the likeliest of each row) and [7, 8, 5] was proposed: [7, 8, 1]. The
    4 is worthless, since it was computed behind the wrong 5.
    """
    # Task 7
    # 1. The model's choice in each row.
    # 2. Compare: as long as they agree, a row more is worth something.
    raise NotImplementedError("ch10_engine, task 7: several tokens a step")
