"""`minipaged bench kernels`: what it counts, and that both attentions agree. No time is tested."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from minipaged.cli import main
from minipaged.cli.bench_kernels import Measured, Shape, attentions, measure, shapes

CPU = torch.device("cpu")


def test_bytes_and_flops_by_hand() -> None:
    prompt = Shape(2, 3, query_len=3, num_heads=4, num_kv_heads=2, head_dim=8, block_size=16)
    assert prompt.kv_elements == 2 * 2 * 3 * 2 * 8
    assert prompt.flops == 2 * 4 * (1 + 2 + 3) * 4 * 8
    row = Measured(prompt, "torch", paged_seconds=2.0, contiguous_seconds=1.0, kv_bytes=100).row()
    assert (row["ratio"], row["bytes_per_second"], row["flops_per_second"]) == (0.5, 50, prompt.flops / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("query_len", [1, 20])
def test_all_ways_agree_also_where_the_last_block_is_not_full(query_len: int, dtype: torch.dtype) -> None:
    shape = Shape(2, 20, query_len, num_heads=6, num_kv_heads=2, head_dim=16, block_size=16)
    atol = 1e-5 if dtype == torch.float32 else 1e-2  # of values up to 1
    found = {way: attend() for way, attend in attentions(shape, dtype, CPU).items()}
    numba = {"numba"} if query_len == 1 and find_spec("numba") else set()
    assert set(found) == {"contiguous", "torch"} | numba
    for out in found.values():
        torch.testing.assert_close(out, found["contiguous"], atol=atol, rtol=atol)


def test_attentions_that_differ_are_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros(1)
    differing = {"contiguous": lambda: zeros, "torch": lambda: zeros + 1}
    monkeypatch.setattr("minipaged.cli.bench_kernels.attentions", lambda *_: differing)
    with pytest.raises(RuntimeError, match="differ by up to 1"):
        measure(Shape(1, 1, 1, 1, 1, 16, 16), torch.float32, CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it measures other shapes")
def test_the_report_says_what_was_measured_and_on_what(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    done = CliRunner().invoke(main, ["bench", "kernels", "--context", "256", "--json", str(file)])
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert {(row["batch"], row["context_len"]) for row in report["rows"]} == {(8, 256), (32, 256)}
    assert all(row["paged_seconds"] > 0 and row["ratio"] > 0 for row in report["rows"])
    assert report["options"]["dtype"] == "float32" and report["machine"]["cores"] and report["gpu"] is None


def test_nothing_to_measure_is_said() -> None:
    done = CliRunner().invoke(main, ["bench", "kernels", "--batch", "7"])
    assert done.exit_code == 1 and "nothing to measure with batch [7]" in done.output


def test_on_a_gpu_every_shape_fits_into_its_memory_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * 2**30, 0))
    found = list(shapes(torch.device("cuda"), torch.bfloat16))
    assert {shape.batch for shape in found} == {1, 8, 32, 128, 256}
    assert max(2 * shape.kv_elements * 2 for shape in found) <= 4 * 2**30
