"""The Triton kernels against their PyTorch twins: interpreted without a GPU, compiled with one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.paged.torch_twins import store_kv_torch

needs_triton = pytest.mark.skipif(not triton_status().installed, reason="no triton here: no kernel to test")

N, B = 5, 4
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def device() -> str:
    return "cpu" if triton_status().interpret else "cuda"


def store_kv(*tensors: Tensor) -> None:
    from minipaged.kernels.paged import triton_decode  # here, because it can't be imported without triton

    triton_decode.store_kv(*tensors)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("store", [store_kv_torch, pytest.param(store_kv, marks=needs_triton)])
def test_slot_6_of_blocks_of_4_is_row_2_of_block_1_and_minus_1_goes_nowhere(store) -> None:
    k = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
    k_cache, v_cache = poisoned((2, 4, 1, 2), torch.float32), poisoned((2, 4, 1, 2), torch.float32)
    store(k, 10 * k, k_cache, v_cache, torch.tensor([6, -1, 0]))
    assert k_cache[1, 2].tolist() == [[1.0, 2.0]] and v_cache[1, 2].tolist() == [[10.0, 20.0]]
    assert k_cache[0, 0].tolist() == [[5.0, 6.0]] and v_cache[0, 0].tolist() == [[50.0, 60.0]]
    assert k_cache.isnan().sum() == v_cache.isnan().sum() == 6 * 2


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("G", "D"), [(1, 1), (3, 64), (5, 7), (2, 80)])
def test_every_row_lands_in_its_slot_and_no_other_row_changes(G: int, D: int, dtype, device: str) -> None:
    k, v = torch.randn(2, 7, G, D).to(device, dtype)
    slots = torch.tensor([19, 0, -1, 7, 4, -1, 12], device=device)
    actual = [poisoned((N, B, G, D), dtype, device) for _ in "kv"]
    expected = [cache.clone() for cache in actual]
    store_kv(k, v, *actual, slots)
    store_kv_torch(k, v, *expected, slots)
    assert_same_bits(actual[0], expected[0])
    assert_same_bits(actual[1], expected[1])


@needs_triton
def test_strides_are_honoured_and_what_lies_between_rows_is_left_alone(device: str) -> None:
    T, G, D = 5, 3, 8
    fused = torch.randn(T, 3, G, D, device=device)
    k, v = fused[:, 1], fused[:, 2].flip(-1).transpose(0, 2).contiguous().transpose(0, 2)
    slots = torch.tensor([[3, 99], [17, 99], [-1, 99], [8, 99], [1, 99]], device=device)[:, 0]
    k_storage = poisoned((N, B, G, 2 * D), k.dtype, device)  # rows twice as wide as used
    v_storage = poisoned((N, G, B, D), v.dtype, device)  # heads outside rows
    k_expected, v_expected = k_storage.clone(), v_storage.clone()
    store_kv(k, v, k_storage[..., ::2], v_storage.transpose(1, 2), slots)
    store_kv_torch(k, v, k_expected[..., ::2], v_expected.transpose(1, 2), slots)
    assert_same_bits(k_storage, k_expected)
    assert_same_bits(v_storage, v_expected)


@needs_triton
def test_a_slot_beyond_two_billion_elements_is_written_where_it_belongs(device: str) -> None:
    G, D, block_size = 8, 128, 16
    num_blocks = 2**31 // (block_size * G * D) + 1
    # Never filled, so that only the one row that is written takes memory.
    cache = torch.empty(num_blocks, block_size, G, D, dtype=torch.float16, device=device)
    k = torch.randn(1, G, D, device=device).half()
    last_slot = num_blocks * block_size - 1
    store_kv(k, k, cache, cache, torch.tensor([last_slot], dtype=torch.int32, device=device))
    assert_same_bits(cache[-1, -1], k[0])


@needs_triton
@pytest.mark.parametrize("slots", [[], [-1, -1, -1]])
def test_no_tokens_or_only_padding_changes_nothing(slots: list[int], device: str) -> None:
    k = torch.randn(len(slots), 2, 4, device=device)
    cache = poisoned((N, B, 2, 4), k.dtype, device)
    store_kv(k, k, cache, cache, torch.tensor(slots, dtype=torch.int32, device=device))
    assert cache.isnan().all()


def arguments(**changed: Tensor) -> list[Tensor]:
    row, cache = torch.zeros(3, 2, 4), torch.zeros(N, B, 2, 4)
    slots = torch.tensor([0, 1, 2])
    valid = {"k": row, "v": row, "k_cache": cache, "v_cache": cache.clone(), "slot_mapping": slots}
    return list({**valid, **changed}.values())


@pytest.mark.parametrize("store", [store_kv_torch, pytest.param(store_kv, marks=needs_triton)])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"v": torch.zeros(3, 1, 4)}, r"\[3, 2, 4\] and \[3, 1, 4\]"),
        ({"k_cache": torch.zeros(N, B, 2, 8)}, r"\[N, B, 2, 4\].*got \[5, 4, 2, 8\]"),
        ({"v_cache": torch.zeros(N, B, 2, 4, 1)}, r"\[5, 4, 2, 4, 1\]"),
        ({"slot_mapping": torch.tensor([0, 1])}, r"3 integers.*\[2\]"),
        ({"slot_mapping": torch.zeros(3)}, r"integers.*float32"),
        ({"k_cache": torch.zeros(N, B, 2, 4).half()}, r"one dtype: got torch.float16, torch.float32"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int64, device="meta")}, r"one device: got cpu, meta"),
        ({"slot_mapping": torch.tensor([0, 20, -2])}, r"below 20: got \[20, -2\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_numbers(store, changed, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        store(*arguments(**changed))


def status_in_a_fresh_python(setting: str | None, code: str = "pass") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_INTERPRET": setting} if setting is not None else {}
    code += "; import minipaged.kernels as kernels; print(kernels.triton_status().interpret)"
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@needs_triton
@pytest.mark.parametrize(
    ("setting", "interpret"), [("1", True), ("0", False), (None, not torch.cuda.is_available())]
)
def test_kernels_are_interpreted_without_a_gpu_unless_the_user_says_otherwise(
    setting, interpret: bool
) -> None:
    assert status_in_a_fresh_python(setting).stdout.strip() == str(interpret)


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU there is nothing to decide")
def test_triton_imported_too_early_is_an_error_that_says_what_to_import_first() -> None:
    done = status_in_a_fresh_python(None, "import triton")
    assert "RuntimeError: triton was imported before minipaged.kernels" in done.stderr


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from minipaged.kernels.paged.triton_decode import _store_kv_kernel as kernel

pointers = dict.fromkeys(["k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr"], "*bf16")
pointers["slot_mapping_ptr"] = "*i64"
blocks = {"BLOCK_G": 4, "BLOCK_D": 64}
signature = {name: pointers.get(name, "constexpr" if name in blocks else "i32") for name in kernel.arg_names}
for target in GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64):
    compiled = compile(ASTSource(fn=kernel, signature=signature, constexprs=blocks), target=target)
    assert compiled.asm["cubin" if target.backend == "cuda" else "hsaco"], target
    print(target.arch)
"""


@needs_triton
def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["80", "90", "gfx942"], done.stderr
