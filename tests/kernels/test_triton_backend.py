"""The engine on the Triton kernels: the same tokens as on PyTorch, and clear words where they can't run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minipaged.backends import choice as backend_choice
from minipaged.backends import triton
from minipaged.backends.choice import with_attention_backend
from minipaged.block_allocator import BlockAllocator
from minipaged.course.serving import fill_with_junk
from minipaged.engine import Engine
from minipaged.kernels import TritonStatus, triton_status
from minipaged.llm import LLM
from minipaged.paged_attention import KVCache, paged_attention
from minipaged.params import SamplingParams
from minipaged.parts import KERNELS, Parts, load_parts
from tests.engine.test_parts import write_chapter
from tests.reference import finish, greedy, prompt_of, tiny_engine

needs_triton = pytest.mark.skipif(not triton_status().installed, reason="no triton here: no kernel to run")
interpreted = pytest.mark.skipif(not triton_status().interpret, reason="kernels are compiled for a GPU here")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def tokens_and_engine(**options: Any) -> tuple[dict[str, list[list[int]]], Engine]:
    """Outputs of four requests, one of them in two branches, in a pool too small for all of them."""
    engine = tiny_engine(num_blocks=13, max_num_batched_tokens=12, **options)
    fill_with_junk(engine)
    near_greedy = SamplingParams(n=2, temperature=1e-3, max_tokens=5, ignore_eos=True)
    for name, num_tokens, params in (
        ("A", 9, near_greedy), ("B", 14, greedy(8)), ("C", 3, greedy(8)), ("D", 5, greedy(6))
    ):
        engine.add_request(name, prompt_of(num_tokens, num_tokens), params)
    outputs = finish(engine)
    return {name: [each.token_ids for each in output.outputs] for name, output in outputs.items()}, engine


@interpreted
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_on_the_kernels_the_engine_says_the_same_token_for_token(mode: str) -> None:
    options = {"preemption_mode": mode, "num_cpu_blocks": 26}
    expected, _ = tokens_and_engine(**options, attention_backend="torch")
    actual, engine = tokens_and_engine(**options, attention_backend="triton")
    assert actual == expected
    assert engine.stats().preemptions > 0 and engine.stats().copies > 0
    assert type(engine.kv_cache).write is not KVCache.write


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_the_kernels_are_what_runs_and_they_say_what_the_cpu_says() -> None:
    prompts = [prompt_of(40, 1), prompt_of(7, 2)]
    on_cpu = LLM("tiny", num_blocks=64, device="cpu").generate(prompts, greedy(12))
    llm = LLM("tiny", num_blocks=64, device="cuda", dtype="float32")
    assert isinstance(llm.engine.parts.paged_attention, triton.TritonAttention)
    on_gpu = llm.generate(prompts, greedy(12))
    assert [each.outputs[0].token_ids for each in on_gpu] == [each.outputs[0].token_ids for each in on_cpu]


@interpreted
def test_a_split_step_and_one_without_a_plan_give_the_same() -> None:
    attention = with_attention_backend(Parts(), "triton", CPU).paged_attention
    q, (k, v) = torch.randn(2, 4, 16), torch.randn(2, 3, 4, 2, 16)
    tables = torch.tensor([[2, 0], [1, 9]]), torch.tensor([7, 3])
    decodes, chunks = torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2])
    plan = attention.plan(*tables, decodes, k)
    for starts, each in ((decodes, None), (decodes, replace(plan, num_splits=2)), (chunks, None)):
        out = attention(q, k, v, *tables, starts, 0.3, plan=each)
        torch.testing.assert_close(out, paged_attention(q, k, v, *tables, starts, 0.3))


def test_auto_takes_what_the_parts_ask_for_and_else_what_the_machine_is_good_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OwnCache(KVCache):
        pass

    def choice(device: torch.device, installed: bool = True, interpret: bool = False, **own: Any) -> str:
        status = TritonStatus(installed, interpret)
        monkeypatch.setattr(backend_choice, "triton_status", lambda: status)
        monkeypatch.setattr(backend_choice, "with_kernels", lambda parts, device: "triton")
        return "triton" if with_attention_backend(Parts(**own), "auto", device) == "triton" else "torch"

    assert choice(CPU) == choice(CPU, interpret=True) == "torch"
    assert choice(GPU) == "triton"
    assert choice(GPU, installed=False) == choice(GPU, interpret=True) == "torch"
    assert choice(GPU, kv_cache=OwnCache) == choice(GPU, paged_attention=print) == "torch"
    assert choice(CPU, store_kv=print) == choice(CPU, store_kv=print, kv_cache=OwnCache) == "triton"
    assert choice(GPU, block_allocator=BlockAllocator) == "triton"


KERNEL_CHAPTER = """
from minipaged.kernels.paged import triton_decode

calls = []

def store_kv(*args):
    calls.append("store_kv")
    triton_decode.store_kv(*args)

def paged_decode(*args):
    calls.append("paged_decode")
    return triton_decode.paged_decode(*args)
"""


@interpreted
def test_a_reader_s_kernels_run_in_the_engine(tmp_path: Path) -> None:
    write_chapter(tmp_path, "ch11", KERNEL_CHAPTER)
    parts = load_parts(tmp_path, "ch11")
    llm = LLM("tiny", num_blocks=16, block_size=4, device="cpu", parts=parts)
    expected = LLM("tiny", num_blocks=16, block_size=4, device="cpu").generate([[1, 2, 3]], greedy(3))
    assert llm.generate([[1, 2, 3]], greedy(3))[0].outputs[0].token_ids == expected[0].outputs[0].token_ids
    calls = Counter(parts.store_kv.__globals__["calls"])
    assert calls == {"store_kv": 3 * 2, "paged_decode": 2 * 2}  # a prefill and two decodes, in two layers


def test_a_chapter_without_its_kernel_is_refused_by_name(tmp_path: Path) -> None:
    write_chapter(tmp_path, "ch11", "def store_kv(): ...\n")
    with pytest.raises(ValueError, match=r"ch11_triton_decode\.py has no paged_decode"):
        load_parts(tmp_path, "ch11")


@needs_triton
def test_a_reader_s_decode_kernel_is_not_replaced_by_the_package_s_split_one() -> None:
    device = CPU if triton_status().interpret else GPU
    for own, package_splits in (({}, True), ({"paged_decode": print}, False)):
        attention = with_attention_backend(Parts(**own), "triton", device).paged_attention
        assert (attention.paged_decode_split is not None) == package_splits


def test_every_kernel_is_a_part() -> None:
    assert set(KERNELS) <= set(vars(Parts()))


@pytest.mark.parametrize(
    ("status", "device", "message"),
    [
        (TritonStatus(installed=False, interpret=False), CPU, "needs the package triton.*use 'torch'"),
        (TritonStatus(installed=True, interpret=False), CPU, "can't run on device cpu.*TRITON_INTERPRET=1"),
        (TritonStatus(installed=True, interpret=True), torch.device("mps"), "can't run on device mps"),
    ],
)
def test_where_kernels_cannot_run_the_backend_says_what_to_do(
    status: TritonStatus, device: torch.device, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "triton_status", lambda: status)
    with pytest.raises(ValueError, match=message):
        with_attention_backend(Parts(), "triton", device)


def test_an_unknown_backend_is_refused_by_the_engine_too() -> None:
    with pytest.raises(ValueError, match="auto, torch, triton, numba, got 'flash'"):
        tiny_engine(attention_backend="flash")
