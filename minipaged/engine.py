"""The engine: requests in, steps, tokens out.

Why it exists: it is the loop that every serving engine has. A step schedules, moves blocks, runs the model once over a
flat batch, samples, and takes in the new tokens; `Engine.step` is those lines.
What it leaves out: loading a model and a convenient front (`LLM`), a server, threads. Chapter 10
(vllm/v1/engine/core.py, EngineCore.step).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from minipaged.beam_search import advance_beams
from minipaged.block_manager import BlockManager
from minipaged.block_table import blocks_for
from minipaged.detokenizer import Detokenizer
from minipaged.invariants import check_writes
from minipaged.model import Batch, Llama
from minipaged.paged_attention import KVCache
from minipaged.params import BeamSearchParams, RequestOutput, SamplingParams
from minipaged.parts import Parts
from minipaged.request import Request, Sequence
from minipaged.sampler import SamplingRow, sample, top_logprobs, uniform
from minipaged.scheduler import Schedule, Work
from minipaged.tokenizer import Tokenizer


@dataclass(frozen=True)
class Stats:
    """What the engine holds now (blocks, requests) and has done so far (the rest).

    blocks_free includes the cached blocks that nobody uses; blocks_cached are all that a lookup could find. Prefix
    hits and queries are in tokens, times in seconds; forward_time is the part of step_time spent in the model.
    """

    num_blocks: int
    blocks_free: int
    blocks_used: int
    blocks_cached: int
    running: int
    waiting: int
    swapped: int
    steps: int
    preemptions: int
    prefix_hits: int
    prefix_queries: int
    copies: int
    computed_tokens: int
    output_tokens: int
    step_time: float
    forward_time: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of stepping."""
        return self.output_tokens / self.step_time if self.step_time else 0.0


class Engine:
    """Serves requests for one model with one pool of blocks. See `LLM` for what the parameters mean.

    >>> engine = LLM("tiny").engine
    >>> engine.add_request("a", "Hello", SamplingParams(max_tokens=2))
    >>> while engine.has_unfinished_requests():
    ...     outputs = engine.step()
    """

    def __init__(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        *,
        num_blocks: int,
        block_size: int = 16,
        num_cpu_blocks: int = 0,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        preemption_mode: str = "recompute",
        seed: int = 0,
        parts: Parts | None = None,
    ) -> None:
        self.parts = parts or Parts()
        self.model, self.tokenizer = model, tokenizer
        self.max_model_len = model.config.max_model_len if max_model_len is None else max_model_len
        _check_range("num_blocks", num_blocks, 1)
        _check_range("block_size", block_size, 1)
        _check_range("num_cpu_blocks", num_cpu_blocks, 0)
        _check_range("max_num_seqs", max_num_seqs, 1)
        _check_range("max_num_batched_tokens", max_num_batched_tokens, 1)
        _check_range("max_model_len", self.max_model_len, 2, model.config.max_model_len)
        if preemption_mode not in ("recompute", "swap"):
            raise ValueError(f"preemption_mode must be 'recompute' or 'swap', got {preemption_mode!r}")
        if preemption_mode == "swap" and num_cpu_blocks == 0:
            raise ValueError("preemption_mode='swap' needs a pool to swap to: set num_cpu_blocks above 0")
        self.memory = BlockManager(self.parts, num_blocks, block_size, num_cpu_blocks, enable_prefix_caching)
        self.scheduler = self.parts.scheduler(self.memory, max_num_batched_tokens, max_num_seqs, preemption_mode)
        self.kv_cache = self._new_cache(num_blocks, model.device)
        self.cpu_cache = self._new_cache(num_cpu_blocks, torch.device("cpu")) if num_cpu_blocks else None
        self.requests: dict[str, Request] = {}
        self.last_step = Schedule()
        self._seeds = random.Random(seed)
        self._num_added = 0
        self._counts = dict.fromkeys(("steps", "preemptions", "copies", "computed_tokens", "output_tokens"), 0)
        self._times = {"step_time": 0.0, "forward_time": 0.0}

    def _new_cache(self, num_blocks: int, device: torch.device) -> KVCache:
        config = self.model.config
        shape = (config.num_layers, num_blocks, self.memory.block_size, config.num_kv_heads, config.head_dim)
        return self.parts.kv_cache(*shape, dtype=self.model.dtype, device=device)

    # -- requests ----------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: str | SequenceOf[int],
        params: SamplingParams | BeamSearchParams | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a request: a text, or token ids. Lower priority numbers are served first.

        A request that could never be served (an empty prompt, one too long for the model or the pool, a token id that
        the vocabulary lacks, an id that is in use) is a ValueError with the numbers; the others go on.
        """
        params = params or SamplingParams()
        if request_id in self.requests:
            raise ValueError(f"request id {request_id!r} is in use by an unfinished request")
        token_ids = self._token_ids(prompt)
        self._check_request(token_ids, params)
        stop = params.stop if isinstance(params, SamplingParams) else ()
        root = Sequence(token_ids, len(token_ids), Detokenizer(self.tokenizer, stop))
        seed = params.seed if isinstance(params, SamplingParams) and params.seed is not None else None
        request = Request(
            request_id, prompt if isinstance(prompt, str) else None, list(token_ids), params, priority,
            arrival=self._num_added, sequences=[root], seed=self._seeds.getrandbits(63) if seed is None else seed,
        )  # fmt: skip
        self._num_added += 1
        self.requests[request_id] = request
        self.scheduler.add(request)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request in whatever state it is, and free all it holds. None if there is no such request (any more)."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        self.scheduler.remove(request)
        request.finish("abort")
        return request.output()

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def _token_ids(self, prompt: str | SequenceOf[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, SequenceOf) or not all(type(token_id) is int for token_id in prompt):
            raise ValueError(f"a prompt is a text or a list of token ids, got {type(prompt).__name__}: {prompt!r:.60}")
        return list(prompt)

    def _check_request(self, token_ids: list[int], params: SamplingParams | BeamSearchParams) -> None:
        if not isinstance(params, SamplingParams | BeamSearchParams):
            raise ValueError(f"params must be SamplingParams or BeamSearchParams, got {type(params).__name__}")
        if not token_ids:
            raise ValueError("the prompt is empty: 0 tokens, at least 1 is needed")
        vocab_size = self.model.config.vocab_size
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < vocab_size:
                raise ValueError(f"token id {token_id} is not in the vocabulary of {vocab_size}")
        if len(token_ids) >= self.max_model_len:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens; with at least 1 to generate, max_model_len="
                f"{self.max_model_len} allows {self.max_model_len - 1}"
            )
        num_blocks, block_size = self.memory.allocator.num_blocks, self.memory.block_size
        needed = blocks_for(len(token_ids), block_size)
        if needed > num_blocks:
            raise ValueError(
                f"the prompt of {len(token_ids)} tokens can never fit: it needs {needed} blocks of {block_size}, the "
                f"pool has {num_blocks}; raise num_blocks or kv_cache_memory_bytes"
            )
        branches = params.beam_width if isinstance(params, BeamSearchParams) else params.n
        most = min(self.scheduler.max_num_seqs, self.scheduler.max_num_batched_tokens)
        if branches > most:
            raise ValueError(
                f"{branches} branches must step together, but max_num_seqs={self.scheduler.max_num_seqs} and "
                f"max_num_batched_tokens={self.scheduler.max_num_batched_tokens} allow {most}"
            )

    # -- the step ----------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Advance every scheduled request by one step; returns those that have something new.

        If anything fails (Ctrl-C included), all running requests lose their blocks, wait in their old order and are
        recomputed by later steps: their slots were taken but perhaps never written.
        """
        started = time.perf_counter()
        try:
            step = self.last_step = self.scheduler.schedule()
            logits = self._execute(step)
            changed = step.out_of_capacity + self._take_in(logits, step)
        except BaseException:
            self._recover()
            raise
        for request in changed:
            if request.is_finished:
                self.scheduler.remove(request)
                del self.requests[request.request_id]
        self._count(step, time.perf_counter() - started)
        return [request.output() for request in changed]

    def _execute(self, step: Schedule) -> torch.Tensor:
        """Move blocks, run the model, publish what was filled. Returns the logits [sampled rows, V]."""
        check_writes(step, self.memory.allocator, self.memory.block_size)
        self._move_blocks(step)
        if not step.work:
            return torch.empty(0, self.model.config.vocab_size)
        started = time.perf_counter()
        logits = self.model.forward(self._batch(step.work), self.kv_cache, self.parts.paged_attention)
        self._times["forward_time"] += time.perf_counter() - started
        for work in step.work:
            self.memory.publish(work.request, work.sequence)
        return logits

    def _recover(self) -> None:
        for request in self.last_step.preempted:
            self.memory.drop(request)  # its blocks may not have been swapped out
        for request in list(self.scheduler.running):
            self.scheduler.preempt(request)

    def _move_blocks(self, step: Schedule) -> None:
        """Swap out, swap in, copy: in this order, and all before the step's first write."""
        if self.cpu_cache is not None:
            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)
            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)
        self.kv_cache.copy_blocks(step.copies)

    def _batch(self, work: list[Work]) -> Batch:
        """Lay the step's tokens one after another; a table row is padded with 0, which is never looked at."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, contexts, tables, rows = [0], [], [], []
        for item in work:
            seq, num_new = item.sequence, len(item.slots)
            end = seq.num_computed_tokens
            token_ids += seq.token_ids[end - num_new : end]
            positions += range(end - num_new, end)
            slots += item.slots
            starts.append(len(slots))
            contexts.append(end)
            tables.append(seq.table.block_ids if seq.table else [])
            if seq.num_uncomputed_tokens == 0:
                rows.append(len(slots) - 1)
        longest = max(map(len, tables))
        padded = [block_ids + [0] * (longest - len(block_ids)) for block_ids in tables]
        values = (token_ids, positions, slots, padded, contexts, starts, rows)
        return Batch(*(torch.tensor(value, dtype=torch.int64, device=self.model.device) for value in values))

    def _take_in(self, logits: torch.Tensor, step: Schedule) -> list[Request]:
        """Give every sequence whose tokens are all computed its next one; returns the requests that have more now."""
        rows: dict[Request, list[tuple[Sequence, int]]] = {}
        for work in step.work:
            if work.sequence.num_uncomputed_tokens == 0:
                row = sum(map(len, rows.values()))
                rows.setdefault(work.request, []).append((work.sequence, row))
        drawn: list[tuple[Request, Sequence, int]] = []
        for request, members in rows.items():
            if isinstance(request.params, BeamSearchParams):
                beam_logits = logits[[row for _, row in members]]
                eos = self.model.config.eos_token_ids
                advance_beams(request, request.params, beam_logits, eos, self.max_model_len)
                self._counts["output_tokens"] += len(request.live)
            else:
                drawn += [(request, branch, row) for seq, row in members for branch in self._branch(request, seq)]
        self._sample(logits, drawn)
        self._counts["output_tokens"] += len(drawn)
        return list(rows)

    def _branch(self, request: Request, seq: Sequence) -> list[Sequence]:
        """At the first token of n samples the prompt's sequence is forked; all of them draw from the same logits."""
        if len(request.sequences) < request.max_num_seqs:
            request.sequences += [seq.fork(index) for index in range(1, request.max_num_seqs)]
            return request.sequences
        return [seq]

    def _sample(self, logits: torch.Tensor, drawn: list[tuple[Request, Sequence, int]]) -> None:
        if not drawn:
            return
        logits = logits[[row for *_, row in drawn]]
        rows = [
            SamplingRow(request.params, seq.token_ids, uniform(request.seed, seq.index, seq.num_tokens))
            for request, seq, _ in drawn
        ]
        token_ids = sample(logits, rows)
        logprobs = top_logprobs(logits, rows, token_ids)
        for (request, seq, _), token_id, token_logprobs in zip(drawn, token_ids, logprobs, strict=True):
            if token_logprobs is not None:
                seq.logprobs.append(token_logprobs)
            self._append_token(request.params, seq, token_id)

    def _append_token(self, params: SamplingParams, seq: Sequence, token_id: int) -> None:
        """Take in one token and end the sequence if it must: a stop counts before a length."""
        seq.token_ids.append(token_id)
        is_stop_token = token_id in params.stop_token_ids or (
            token_id in self.model.config.eos_token_ids and not params.ignore_eos
        )
        if is_stop_token:
            seq.finish("stop")
        elif seq.detokenizer.append(token_id):
            seq.finish("stop")
        elif len(seq.output_token_ids) == params.max_tokens or seq.num_tokens == self.max_model_len:
            seq.finish("length")

    # -- what it has done --------------------------------------------------------------------------------------------

    def _count(self, step: Schedule, seconds: float) -> None:
        self._counts["steps"] += 1
        self._counts["preemptions"] += len(step.preempted)
        self._counts["copies"] += len(step.copies)
        self._counts["computed_tokens"] += step.num_tokens
        self._times["step_time"] += seconds

    def stats(self) -> Stats:
        """The engine's memory, queues and counters."""
        allocator, waiting = self.memory.allocator, self.scheduler.waiting
        return Stats(
            num_blocks=allocator.num_blocks,
            blocks_free=allocator.num_free,
            blocks_used=allocator.num_blocks - allocator.num_free,
            blocks_cached=self.memory.prefix_cache.num_blocks,
            running=len(self.scheduler.running),
            waiting=sum(not request.is_swapped for request in waiting),
            swapped=sum(request.is_swapped for request in waiting),
            prefix_hits=self.memory.prefix_hits,
            prefix_queries=self.memory.prefix_queries,
            **self._counts,
            **self._times,
        )


def _check_range(name: str, value: int, minimum: int, maximum: int | None = None) -> None:
    if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
        most = "" if maximum is None else f" and at most {maximum}"
        raise ValueError(f"{name} must be a whole number of at least {minimum}{most}, got {value!r}")
