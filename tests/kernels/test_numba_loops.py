"""Decodes by compiled loops give what PyTorch's operators give, and what they can't do goes to PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from minipaged import LLM
from minipaged.backends.choice import find_operators
from minipaged.config import ModelConfig
from minipaged.operators import Operators
from minipaged.paged_attention import KVCache, paged_attention_reference
from minipaged.parts import Parts
from tests.engine.test_model import Runner, config_named
from tests.reference import TINY, greedy, prompt_of

numba = pytest.importorskip("numba", reason="numba is not installed")
cpu_kernels = pytest.importorskip("minipaged.backends.numba_loops", reason="numba is not installed")
# Two pairs of head size and group: every other is a few seconds of compiling.
NAMES = ["llama", "llama, 3 layers, group 3, head 20", "llama 3 rope", "llama, eps and theta", "qwen2"]
CPU = torch.device("cpu")


class Counting:
    """`operators_for` that counts what it gave."""

    def __init__(self) -> None:
        self.kinds: list[type[Operators]] = []

    def __call__(self, *args: Any) -> Operators:
        operators = cpu_kernels.operators_for(*args)
        self.kinds.append(type(operators))
        return operators


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def decode(runner: Runner, lens: list[int]) -> torch.Tensor:
    """The logits of the last token of sequences of `lens` tokens, all in one step."""
    sequences = [prompt_of(length, seed=length) for length in lens]
    runner.run([(tokens, 0, len(tokens) - 1) for tokens in sequences])
    return runner.run([(tokens, len(tokens) - 1, len(tokens)) for tokens in sequences])


# Sums in another order: logits of up to 30 differ from float64's by 6e-5, PyTorch's and these alike.
# Contexts of 2 to 32 tokens over blocks of 4, unwritten slots are NaN; fewer rows than `padded_rows` gives.
@pytest.mark.parametrize("lens", [[27], [2, 32, 17, 4, 5, 31]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_decode_gives_the_logits_of_pytorchs_operators(name: str, lens: list[int], threads: int):
    config, given = config_named(name), Counting()
    compiled, plain = Runner(config, operators_for=given), Runner(config)
    torch.testing.assert_close(decode(compiled, lens), decode(plain, lens), atol=1e-4, rtol=1e-4)
    assert given.kinds == [Operators, cpu_kernels.CompiledOperators]
    for ours, theirs in ((compiled.cache.k, plain.cache.k), (compiled.cache.v, plain.cache.v)):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["llama", "llama, 3 layers, group 3, head 20", "qwen2"])
def test_a_decode_in_bfloat16_is_wrong_by_no_more_than_pytorchs_operators_are(name: str, threads: int):
    config, given, lens = config_named(name), Counting(), [2, 32, 17, 4, 5, 31]
    exact = decode(Runner(config), lens)
    ours = decode(Runner(config, torch.bfloat16, operators_for=given), lens)
    theirs = decode(Runner(config, torch.bfloat16), lens)
    assert given.kinds[-1] is cpu_kernels.CompiledOperators
    assert 0 < (ours - exact).norm() < 1.2 * (theirs - exact).norm()


def test_bfloat16_is_widened_and_rounded_as_pytorch_does():
    @numba.njit
    def widen_all(bits: Any, out: Any) -> None:
        for i in range(len(bits)):
            out[i] = cpu_kernels.widen(bits[i])

    @numba.njit
    def narrow_all(x: Any, out: Any) -> None:
        for i in range(len(x)):
            out[i] = cpu_kernels.narrow(x[i], out)

    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    every = every[~every.isnan()]
    wide, bits = torch.empty(len(every)), torch.empty(len(every), dtype=torch.int16)
    widen_all(every.view(torch.int16).numpy(), wide.numpy())
    assert torch.equal(wide, every.float())
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(-(2**15), 2**15, wide.shape, generator=generator, dtype=torch.int32)
    between, halfway = (wide.view(torch.int32) + offset for offset in (noise, 2**15))
    for x in (wide, between.view(torch.float32), halfway.view(torch.float32)):
        x = x.nan_to_num(1.0)
        narrow_all(x.numpy(), bits.numpy())
        assert torch.equal(bits.view(torch.bfloat16), x.bfloat16())


def test_scores_far_apart_and_far_from_zero_do_no_harm():
    """A large q makes scores of hundreds of either sign: softmax must subtract the largest first."""
    config, runners = TINY, []
    for operators_for in (cpu_kernels.operators_for, Operators):
        runner = Runner(config, operators_for=operators_for)
        for layer in runner.model.layers:
            layer.input_norm.mul_(100)
        runners.append(runner)
    logits = [decode(runner, [30, 7]) for runner in runners]
    assert logits[0].isfinite().all()
    torch.testing.assert_close(*logits, atol=1e-3, rtol=1e-3)


def test_exp_is_exp():
    x = np.concatenate([np.linspace(-87, 88, 5001), [0, -1e-8, 1e-8]]).astype(np.float32)
    got = np.array([cpu_kernels.exp(value) for value in x])
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=1e-5)
    near = np.abs(x) < 10
    np.testing.assert_allclose(got[near], np.exp(x[near].astype(np.float64)), rtol=1e-6)
    assert cpu_kernels.exp(np.float32(-1e30)) < 1e-37


def kind(config: ModelConfig, dtype: torch.dtype = torch.float32, num_seqs: int = 2) -> type[Operators]:
    given = Counting()
    decode(Runner(config, dtype, operators_for=given), [9] * num_seqs)
    return given.kinds[-1]


def test_what_the_loops_do_not_cover_goes_to_pytorch():
    assert kind(TINY) is cpu_kernels.CompiledOperators
    assert kind(config_named("qwen3")) is Operators
    assert kind(TINY, torch.bfloat16) is cpu_kernels.CompiledOperators
    assert kind(TINY, torch.float16) is Operators
    given = Counting()
    runner = Runner(TINY, operators_for=given)
    runner.run([(prompt_of(5), 0, 4)])
    runner.run([(prompt_of(5), 4, 5), (prompt_of(6, seed=1), 0, 6)])  # a decode beside a prompt
    assert given.kinds == [Operators, Operators]


def test_many_sequences_go_to_pytorch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu_kernels, "MAX_ROWS", 3)
    assert kind(TINY, num_seqs=3) is cpu_kernels.CompiledOperators
    assert kind(TINY, num_seqs=4) is Operators


def tokens_of(llm: LLM) -> list[list[int]]:
    outputs = llm.generate([prompt_of(n, seed=n) for n in (3, 40, 17)], greedy(20))
    return [output.outputs[0].token_ids for output in outputs]


def test_an_engine_gives_the_same_tokens_and_a_readers_own_layers_are_used():
    calls = []

    def own_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append("attention")
        return paged_attention_reference(*args, **kwargs)

    class OwnCache(KVCache):
        def write(self, *args: Any) -> None:
            calls.append("write")
            super().write(*args)

    expected = tokens_of(LLM("tiny", num_blocks=64, attention_backend="torch"))
    assert tokens_of(LLM("tiny", num_blocks=64, attention_backend="numba")) == expected
    own = [(Parts(paged_attention=own_attention), "attention"), (Parts(kv_cache=OwnCache), "write")]
    for parts, call in own:
        calls.clear()
        assert tokens_of(LLM("tiny", num_blocks=64, attention_backend="numba", parts=parts)) == expected
        assert calls == [call] * 2 * 20  # 2 layers, 20 steps


def test_a_block_outside_the_pool_is_pytorchs_error_and_no_wild_write():
    runner, tokens = Runner(TINY, operators_for=cpu_kernels.operators_for), prompt_of(9)
    runner.run([(tokens, 0, 8)])
    runner.tables[0] = [10**6] * 8
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        runner.run([(tokens, 8, 9)])


def test_who_gets_compiled_loops(monkeypatch: pytest.MonkeyPatch):
    big = replace(TINY, hidden_size=576)
    assert find_operators("torch", big, torch.float32, CPU) is Operators
    assert find_operators("auto", big, torch.float32, CPU) is cpu_kernels.operators_for
    assert find_operators("auto", TINY, torch.float32, CPU) is Operators
    assert find_operators("auto", big, torch.bfloat16, CPU) is cpu_kernels.operators_for
    assert find_operators("auto", big, torch.float16, CPU) is Operators
    assert find_operators("auto", big, torch.float32, torch.device("cuda")) is Operators
    monkeypatch.setitem(sys.modules, "minipaged.backends.numba_loops", None)  # as if it could not be imported
    assert find_operators("auto", big, torch.float32, CPU) is Operators
    with pytest.raises(ValueError, match=r"attention_backend='numba' needs numba \(pip install"):
        LLM("tiny", attention_backend="numba")
