"""The engine: requests in, steps, tokens out.

This is the loop that every serving engine has. A step schedules, moves blocks, runs the model once over a
flat batch, samples, and takes in the new tokens; `Engine.step` is those lines. `LLM` loads a model and is the
convenient front; there is no server here, and no threads. Chapter 10 (vllm/v1/engine/core.py,
EngineCore.step).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

import torch

from minipaged.backends.choice import with_attention_backend
from minipaged.batch import Batch
from minipaged.beam_search import advance_beams
from minipaged.block_manager import BlockManager
from minipaged.block_table import blocks_for
from minipaged.detokenizer import Detokenizer
from minipaged.engine_config import EngineConfig, configure
from minipaged.errors import check_int
from minipaged.invariants import check_writes
from minipaged.kv_memory import kv_bytes_per_token
from minipaged.loading.tokenizer import Tokenizer
from minipaged.model import Llama
from minipaged.paged_attention import KVCache
from minipaged.params import BeamSearchParams, RequestOutput, SamplingParams
from minipaged.parts import Parts
from minipaged.request import Request, Sequence
from minipaged.sampler import SamplingRow, sample, top_logprobs, uniform
from minipaged.scheduler import Schedule
from minipaged.stats import Stats
from minipaged.stop_rules import append_token

CPU_KV_BYTES = 512 * 2**20
GPU_KV_FRACTION = 0.8  # of the free memory
# Of a step, on a CPU and on a GPU. A CPU is as fast as it gets by then, and its caches hold what passes.
BATCHED_TOKENS = (512, 2048)


class Draw(NamedTuple):
    """One token to sample, from a row of the step's logits, for a branch of the request: the sequence's own,
    or one that will be forked from it."""

    request: Request
    params: SamplingParams
    sequence: Sequence
    branch: int
    row: int


class Engine:
    """Serves requests for one model with one pool of blocks.

    >>> engine = LLM("tiny").engine
    >>> engine.add_request("a", "Hello", SamplingParams(max_tokens=2))
    >>> while engine.has_unfinished_requests():
    ...     outputs = engine.step()
    """

    def __init__(
        self, model: Llama, tokenizer: Tokenizer, config: EngineConfig | None = None, **options: Any
    ) -> None:
        """options: fields that replace those of `config`, or the defaults without one: `num_blocks=512`.

        Raises ValueError if max_model_len is more than the model's, or if the pool does not fit into memory.
        """
        config = configure(config, options)
        self.model, self.tokenizer = model, tokenizer
        self.parts = with_attention_backend(config.parts or Parts(), config.attention_backend, model.device)
        self.max_model_len = config.max_model_len or model.config.max_model_len
        check_int("max_model_len", self.max_model_len, 2, model.config.max_model_len)
        num_blocks = self._num_blocks(config)
        self.kv_cache = self._new_cache(num_blocks, config.block_size, model.device)
        self.cpu_cache: KVCache | None = None
        if config.num_cpu_blocks:
            self.cpu_cache = self._new_cache(config.num_cpu_blocks, config.block_size, torch.device("cpu"))
        self.memory = BlockManager(
            self.parts, num_blocks, config.block_size, config.num_cpu_blocks, config.enable_prefix_caching
        )
        max_num_batched_tokens = config.max_num_batched_tokens or BATCHED_TOKENS[model.device.type == "cuda"]
        self.scheduler = self.parts.scheduler(
            self.memory, max_num_batched_tokens, config.max_num_seqs, config.preemption_mode
        )
        self.requests: dict[str, Request] = {}
        self.last_step = Schedule()
        self._ended_in_failure: list[Request] = []
        self._seeds = random.Random(config.seed)
        self._num_added = 0
        self._num_steps = self._num_preemptions = self._num_copies = 0
        self._computed_tokens = self._output_tokens = 0
        self._step_time = self._forward_time = 0.0

    def _num_blocks(self, config: EngineConfig) -> int:
        """As many as were asked for, or as fit into the bytes asked for, or into a default for the device."""
        if config.num_blocks is not None:
            return config.num_blocks
        budget, device = config.kv_cache_memory_bytes, self.model.device
        if budget is None and device.type == "cuda":
            budget = int(GPU_KV_FRACTION * torch.cuda.mem_get_info(device)[0])
        budget = budget or CPU_KV_BYTES
        return self.parts.num_blocks_for(budget, config.block_size, self.model.config, self.model.dtype)

    def _new_cache(self, num_blocks: int, block_size: int, device: torch.device) -> KVCache:
        config = self.model.config
        shape = (config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        try:
            return self.parts.kv_cache(*shape, dtype=self.model.dtype, device=device)
        except RuntimeError as error:  # what PyTorch raises when memory runs out
            needed = num_blocks * block_size * kv_bytes_per_token(config, self.model.dtype)
            raise ValueError(
                f"a pool of {num_blocks} blocks is {needed:,} bytes, which do not fit into memory ({error}); "
                f"lower num_blocks or kv_cache_memory_bytes"
            ) from None

    # -- requests --------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: str | SequenceOf[int],
        params: SamplingParams | BeamSearchParams | None = None,
        priority: int = 0,
    ) -> None:
        """Queue a request: a text, or token ids. Lower priority numbers are served first.

        A request that could never be served (an empty prompt, one too long for the model or the pool, a token
        id that the vocabulary lacks, an id that is in use) raises ValueError with the numbers; the others go
        on.
        """
        params = SamplingParams() if params is None else params
        check_int("priority", priority)
        if not isinstance(request_id, str):
            raise ValueError(f"a request id is a text, got {request_id!r}")
        if request_id in self.requests:
            raise ValueError(f"request id {request_id!r} is in use by an unfinished request")
        token_ids = self._token_ids(prompt)
        self._check_request(token_ids, params)
        stop = params.stop if isinstance(params, SamplingParams) else ()
        given_seed = params.seed if isinstance(params, SamplingParams) else None
        request = Request(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=list(token_ids),
            params=params,
            priority=priority,
            arrival=self._num_added,
            sequences=[self._new_sequence(token_ids, stop)],
            seed=self._seeds.getrandbits(63) if given_seed is None else given_seed,
        )
        self._num_added += 1
        self.requests[request_id] = request
        self.scheduler.add(request)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request in whatever state it is, and free all it holds. None if there is no such request (any
        more)."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        if not request.is_finished:
            self.scheduler.remove(request)
            request.finish("abort")
        return request.output()

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def _token_ids(self, prompt: str | SequenceOf[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, list | tuple) or not all(type(token_id) is int for token_id in prompt):
            raise ValueError(
                f"a prompt is a text or a list of token ids, got {type(prompt).__name__}: {prompt!r:.60}"
            )
        return list(prompt)

    def _new_sequence(self, token_ids: list[int], stop: SequenceOf[str]) -> Sequence:
        detokenizer = Detokenizer(self.tokenizer, stop)
        return Sequence(token_ids, len(token_ids), detokenizer)

    def _check_request(self, token_ids: list[int], params: SamplingParams | BeamSearchParams) -> None:
        if not isinstance(params, SamplingParams | BeamSearchParams):
            raise ValueError(
                f"params must be SamplingParams or BeamSearchParams, got {type(params).__name__}"
            )
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
                f"the prompt can never fit: {len(token_ids)} tokens need {needed} blocks of {block_size}, "
                f"the pool has {num_blocks}; raise num_blocks or kv_cache_memory_bytes"
            )
        branches = params.beam_width if isinstance(params, BeamSearchParams) else params.n
        most = min(self.scheduler.max_num_seqs, self.scheduler.max_num_batched_tokens)
        if branches > most:
            raise ValueError(
                f"{branches} branches must step together, but max_num_seqs={self.scheduler.max_num_seqs} and "
                f"max_num_batched_tokens={self.scheduler.max_num_batched_tokens} allow {most}"
            )

    # -- the step --------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Advance every scheduled request by one step; returns those that have something new.

        If anything fails (Ctrl-C included), the memory starts anew and every request waits in its old order,
        with the tokens it has, to be recomputed: whatever was half done, nothing of it is kept.
        """
        started = time.perf_counter()
        try:
            step = self.scheduler.schedule()
            logits = self._execute(step)
            changed = self._reported_late() + step.out_of_capacity + self._take_in(logits, step)
        except BaseException:
            self._recover()
            raise
        self.last_step, self._ended_in_failure = step, []
        for request in changed:
            if request.is_finished:
                del self.requests[request.request_id]
        self._count(step, time.perf_counter() - started)
        return [request.output() for request in changed]

    def _execute(self, step: Schedule) -> torch.Tensor:
        """Move blocks, run the model, publish what was filled. Returns the logits [sampled rows, V]."""
        check_writes(step, self.memory)
        self._move_blocks(step)
        if not step.work:
            return torch.empty(0, self.model.config.vocab_size)
        batch = Batch.of(step.work, self.model.device)
        started = time.perf_counter()
        logits = self.model.forward(batch, self.kv_cache, self.parts.paged_attention)
        self._forward_time += time.perf_counter() - started
        for work in step.work:
            self.memory.publish(work.request, work.sequence)
        return logits

    def _recover(self) -> None:
        self.memory.reset()
        for request in self.requests.values():
            request.forget_blocks()
        self.scheduler.restart(request for request in self.requests.values() if not request.is_finished)
        self._ended_in_failure = [request for request in self.requests.values() if request.is_finished]

    def _reported_late(self) -> list[Request]:
        """Requests that ended in a step that failed, and have not been aborted since."""
        return [old for old in self._ended_in_failure if self.requests.get(old.request_id) is old]

    def _move_blocks(self, step: Schedule) -> None:
        """Swap out, swap in, copy: in this order, and all before the step's first write."""
        if self.cpu_cache is not None:
            self.cpu_cache.copy_blocks_from(self.kv_cache, step.swap_out)
            self.kv_cache.copy_blocks_from(self.cpu_cache, step.swap_in)
        self.kv_cache.copy_blocks(step.copies)

    def _take_in(self, logits: torch.Tensor, step: Schedule) -> list[Request]:
        """Give every sequence whose tokens are all computed its next one; returns their requests."""
        rows: dict[Request, list[tuple[Sequence, int]]] = {}
        num_rows = 0
        for work in step.work:
            if work.gets_token:
                rows.setdefault(work.request, []).append((work.sequence, num_rows))
                num_rows += 1
        drawn: list[Draw] = []
        for request, members in rows.items():
            if isinstance(request.params, BeamSearchParams):
                beam_logits = logits[[row for _, row in members]]
                eos = self.model.config.eos_token_ids
                advance_beams(request, request.params, beam_logits, eos, self.max_model_len)
                self._output_tokens += len(request.live)
            else:
                for seq, row in members:
                    is_first = len(request.sequences) < request.max_num_seqs
                    branches = range(request.max_num_seqs) if is_first else [seq.index]
                    drawn += [Draw(request, request.params, seq, branch, row) for branch in branches]
        self._sample(logits, drawn)
        self._output_tokens += len(drawn)
        for request in rows:
            if request.is_finished:
                self.scheduler.remove(request)
        return list(rows)

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

    def _branch(self, draw: Draw) -> Sequence:
        """The sequence that a token is for; the branches of n samples are forked here, at their first
        token."""
        if draw.branch == draw.sequence.index:
            return draw.sequence
        return draw.request.add_branch(draw.sequence, draw.branch)

    # -- what it has done ------------------------------------------------------------------------------------

    def _count(self, step: Schedule, seconds: float) -> None:
        self._num_steps += 1
        self._num_preemptions += len(step.preempted)
        self._num_copies += len(step.copies)
        self._computed_tokens += step.num_tokens
        self._step_time += seconds

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
            steps=self._num_steps,
            preemptions=self._num_preemptions,
            copies=self._num_copies,
            computed_tokens=self._computed_tokens,
            output_tokens=self._output_tokens,
            step_time=self._step_time,
            forward_time=self._forward_time,
        )
