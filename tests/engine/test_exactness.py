"""SmolLM2-135M in fp32 gives transformers' greedy tokens, however the engine is set up (design rule 16).

Every output is judged by one dense pass of transformers over prompt and output: each token must be the argmax
after the tokens before it, which is what greedy decoding means. Sums in another order can turn a near-tie
around; such a token is counted, and must be within 1e-4 of the best logit. `MINIPAGED_LONG=1` runs every
combination on all 50 prompts, and transformers' own `generate` on all of them; without it a sample runs.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch

from minipaged.backends.choice import find_operators
from minipaged.block_table import blocks_for
from minipaged.engine import Engine
from minipaged.loading.config_file import read_config
from minipaged.loading.tokenizer import Tokenizer
from minipaged.loading.weights import read_weights
from minipaged.model import Llama
from tests.reference import all_free, greedy, hf_logits, tiny_model

pytestmark = pytest.mark.first
LONG = os.environ.get("MINIPAGED_LONG") == "1"
NEAR_TIE = 1e-4
NUM_PROMPTS, NUM_TOKENS = 50, 64
BACKENDS = ("auto", "torch")  # "auto" is numba's loops, where numba is
CHATS = [
    "What is the capital of France? Answer in one sentence.",
    "Write a haiku about memory.",
    "Count from 1 to 10.",
    "Explain paging to a child.",
]


@dataclass(frozen=True)
class Setup:
    """One combination; `company` is alone, batched or shuffled."""

    block_size: int
    chunk: int
    prefix_caching: bool
    mode: str
    company: str

    def __str__(self) -> str:
        cache = "cached" if self.prefix_caching else "uncached"
        return f"bs{self.block_size}-chunk{self.chunk}-{cache}-{self.mode}-{self.company}"

    def engine(self, model: Llama, tokenizer: Tokenizer, num_blocks: int) -> Engine:
        return Engine(
            model,
            tokenizer,
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_batched_tokens=self.chunk,
            enable_prefix_caching=self.prefix_caching,
            preemption_mode=self.mode,
            num_cpu_blocks=num_blocks if self.mode == "swap" else 0,
        )


COMPLETE = [
    Setup(*values)
    for values in product(
        (1, 8, 16, 128),
        (16, 64, 2048),
        (True, False),
        ("recompute", "swap"),
        ("alone", "batched", "shuffled"),
    )
    # A request alone in a pool that holds it is never preempted.
    if not (values[3] == "swap" and values[4] == "alone")
]
# Every value of every dimension, and every pair of block size, mode and company, at least once.
SAMPLE = [
    Setup(1, 16, True, "recompute", "batched"),
    Setup(1, 2048, False, "swap", "shuffled"),
    Setup(8, 64, False, "recompute", "shuffled"),
    Setup(8, 16, True, "swap", "batched"),
    Setup(16, 2048, True, "swap", "shuffled"),
    Setup(16, 64, False, "recompute", "batched"),
    Setup(128, 16, False, "swap", "batched"),
    Setup(128, 64, True, "recompute", "shuffled"),
    Setup(1, 64, True, "recompute", "alone"),
    Setup(128, 2048, False, "recompute", "alone"),
]
# In the sample the backends take turns; with MINIPAGED_LONG the complete matrix runs on the first of them.
CASES = (
    [(setup, "auto") for setup in COMPLETE] + [(setup, "torch") for setup in SAMPLE]
    if LONG
    else [(setup, BACKENDS[index % 2]) for index, setup in enumerate(SAMPLE)]
)


class Judge:
    """transformers on the same weights, and what it has found so far."""

    def __init__(self, folder: Path) -> None:
        from transformers import LlamaForCausalLM

        self.model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None  # go on past the end of text, as the engine does
        self.counts: Counter[str] = Counter()
        self._gaps: dict[tuple[int, ...], list[float]] = {}

    def check(self, prompt: list[int], output: list[int]) -> None:
        """Fail if a token isn't transformers' choice nor as good as it; count what was compared."""
        gaps = self.gaps(prompt, output)
        self.counts["outputs"] += 1
        self.counts["tokens"] += len(output)
        self.counts["near-ties"] += sum(gap > 0.0 for gap in gaps)
        wrong = [(place, gap) for place, gap in enumerate(gaps) if gap >= NEAR_TIE]
        assert not wrong, f"(place, how far below the best logit): {wrong}"

    def gaps(self, prompt: list[int], output: list[int]) -> list[float]:
        """For every token of the output, how far its logit lies below the best one: 0 if it is the best."""
        key = (len(prompt), *prompt, *output)
        if key not in self._gaps:
            logits = hf_logits(self.model, prompt + output)[len(prompt) - 1 : -1]
            chosen = logits[torch.arange(len(output)), output]
            self._gaps[key] = (logits.amax(dim=-1) - chosen).tolist()
        return self._gaps[key]

    def generate(self, prompt: list[int]) -> list[int]:
        """What transformers itself generates, with its own cache."""
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False,
                pad_token_id=0,
            )
        return out[0, len(prompt) :].tolist()


@dataclass
class Subject:
    """The real model on each attention backend, and 50 prompts of 8 to 190 tokens: text from the standard
    library, and four chats."""

    models: dict[str, Llama]
    tokenizer: Tokenizer
    prompts: list[list[int]]

    def run(
        self, setup: Setup, backend: str, prompts: list[list[int]], max_tokens: int
    ) -> tuple[list[list[int]], int]:
        """The outputs of all prompts, and how many preemptions it took: in company the pool is small."""
        engine = setup.engine(self.models[backend], self.tokenizer, small_pool(setup, prompts, max_tokens))
        outputs, _ = serve(engine, setup.company, prompts, max_tokens)
        assert all_free(engine)
        return outputs, engine.stats().preemptions


def serve(
    engine: Engine, company: str, prompts: list[list[int]], max_tokens: int
) -> tuple[list[list[int]], int]:
    """The outputs in the order of the prompts, and the most blocks that were in use after a step."""
    order = list(range(len(prompts)))
    if company == "shuffled":
        random.Random(0).shuffle(order)
    outputs: dict[int, list[int]] = {}
    peak = 0
    for group in [[index] for index in order] if company == "alone" else [order]:
        for index in group:
            engine.add_request(str(index), prompts[index], greedy(max_tokens))
        while engine.has_unfinished_requests():
            for output in engine.step():
                outputs[int(output.request_id)] = output.outputs[0].token_ids
            peak = max(peak, engine.stats().blocks_used)
    return [outputs[index] for index in range(len(prompts))], peak


def small_pool(setup: Setup, prompts: list[list[int]], max_tokens: int) -> int:
    """The largest pool, to within 4 %, in which somebody is preempted; alone, what the largest request needs.

    The tiny model finds it: it schedules like the real one, only faster.
    """
    sizes = [blocks_for(len(prompt) + max_tokens, setup.block_size) for prompt in prompts]
    if setup.company == "alone":
        return max(sizes)
    like = [[token % 256 for token in prompt] for prompt in prompts]
    num_blocks = sum(sizes)
    while num_blocks > max(sizes):
        engine = setup.engine(tiny_model(), Tokenizer.byte_level(), num_blocks)
        _, peak = serve(engine, setup.company, like, max_tokens)
        if engine.stats().preemptions:
            return num_blocks
        num_blocks = min(peak, num_blocks - max(1, num_blocks // 25))
    return max(sizes)


@pytest.fixture(scope="module")
def subject(real_model: Path) -> Subject:
    tokenizer = Tokenizer.from_folder(real_model)
    names = sorted(topics, key=lambda name: (-len(topics[name]), name))[: NUM_PROMPTS - len(CHATS)]
    prompts = [tokenizer.encode(topics[name])[: 8 + 37 * i % 183] for i, name in enumerate(names)]
    prompts += [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in CHATS]
    config = read_config(real_model)
    cpu = torch.device("cpu")
    models = {
        backend: Llama(
            config,
            read_weights(real_model),
            operators_for=find_operators(backend, config, torch.float32, cpu),
        )
        for backend in BACKENDS
    }
    return Subject(models, tokenizer, prompts)


@pytest.fixture(scope="module")
def judge(real_model: Path) -> Iterator[Judge]:
    judge = Judge(real_model)
    yield judge
    print(f"\ncompared with transformers: {dict(judge.counts)}")
    assert judge.counts["near-ties"] <= judge.counts["tokens"] / 1000


def test_fifty_prompts_give_transformers_tokens(subject: Subject, judge: Judge):
    assert len(subject.prompts) == len(set(map(tuple, subject.prompts))) == NUM_PROMPTS
    lengths = [len(prompt) for prompt in subject.prompts]
    assert min(lengths) < 16 and max(lengths) > 128
    setup = Setup(16, 2048, True, "recompute", "batched")
    outputs, preemptions = subject.run(setup, "auto", subject.prompts, NUM_TOKENS)
    assert preemptions > 0 and [len(output) for output in outputs] == [NUM_TOKENS] * NUM_PROMPTS
    for prompt, output in zip(subject.prompts, outputs, strict=True):
        judge.check(prompt, output)
    generated = range(NUM_PROMPTS) if LONG else (0, NUM_PROMPTS - 1)
    for index in generated:
        ours, theirs = outputs[index], judge.generate(subject.prompts[index])
        judge.counts["generated"] += 1
        judge.counts["generated differently"] += ours != theirs
        if ours != theirs:  # then it parted from us at a near-tie
            place = next(i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
            gaps = [judge.gaps(subject.prompts[index], side[: place + 1])[place] for side in (ours, theirs)]
            assert max(gaps) < NEAR_TIE


@pytest.mark.parametrize(("setup", "backend"), CASES, ids=str)
def test_the_tokens_do_not_depend_on_the_setup(subject: Subject, judge: Judge, setup: Setup, backend: str):
    prompts, max_tokens = (subject.prompts, NUM_TOKENS) if LONG else (sample_of(subject, setup), 16)
    outputs, preemptions = subject.run(setup, backend, prompts, max_tokens)
    assert (preemptions > 0) == (setup.company != "alone")
    for prompt, output in zip(prompts, outputs, strict=True):
        judge.check(prompt, output)


def sample_of(subject: Subject, setup: Setup) -> list[list[int]]:
    """Six prompts; with big blocks, such as soon need their second one, so that a small pool gets full."""
    if setup.block_size < 128:
        return sorted(subject.prompts, key=len)[2:14:2]
    long = [prompt for prompt in subject.prompts if len(prompt) >= 126]
    return [prompt[: 120 + index] for index, prompt in enumerate(long[:6])]
