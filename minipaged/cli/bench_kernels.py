"""`minipaged bench kernels`: attention through block tables against attention to one contiguous piece.

What a block table costs shows only beside the same attention without one. Decoding is bound by memory, so on
a GPU its speed is given in bytes of K and V a second, each counted once, and as a share of what a plain copy
reaches on the same machine; prefill is bound by arithmetic, and is given in FLOP a second. On a CPU the
engine's PyTorch path and, where numba is installed, its compiled loops are measured, and what counts is the
ratio. `bench serve` measures whole steps of the engine. Chapters 12 and 13.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import product
from typing import Any

import click
import torch
import torch.nn.functional as F
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor

from minipaged.backends.choice import with_attention_backend
from minipaged.batch import Batch
from minipaged.cli.bench_report import begin_report, json_option, write_report
from minipaged.config import ModelConfig
from minipaged.paged_attention import KVCache, paged_attention, plan_attention
from minipaged.parts import Parts

NUM_HEADS = 32  # of queries, on a GPU
GPU_LAYOUTS = tuple(product((1, 4, 8), (64, 128), (16, 32)))  # group, head size, block size
GPU_DECODES = tuple(product((1, 8, 32, 128, 256), (1024, 4096, 32768, 131072)))  # batch, context
GPU_PREFILLS = tuple(product((1, 8), (1024, 4096, 16384)))
CPU_DECODES = ((8, 256), (8, 1024), (32, 256), (32, 1024))  # with SmolLM2's heads: 9, 3 KV heads, of 64
MEMORY_SHARE = 0.4  # of what is free on the GPU: K and V lie there twice
CPU_ROUNDS = 20


@dataclass(frozen=True)
class Shape:
    """A batch of sequences that all have the same context; `query_len` new tokens each (1 for a decode)."""

    batch: int
    context_len: int
    query_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int

    @property
    def kv_elements(self) -> int:
        """Of K and V together."""
        return 2 * self.batch * self.context_len * self.num_kv_heads * self.head_dim

    @property
    def flops(self) -> int:
        """Of the two products, 2 · D each for every query head and every position that it sees.

        A prompt of 3 tokens: 1 + 2 + 3 positions.
        """
        earlier = self.context_len - self.query_len
        seen = self.query_len * earlier + self.query_len * (self.query_len + 1) // 2
        return 4 * self.batch * self.num_heads * self.head_dim * seen


@dataclass(frozen=True)
class Measured:
    """What one shape took, in seconds: through block tables, by one of the engine's ways ("triton", "torch",
    "numba"), and PyTorch's SDPA on contiguous K and V."""

    shape: Shape
    way: str
    paged_seconds: float
    contiguous_seconds: float
    kv_bytes: int

    def row(self) -> dict[str, Any]:
        """All that is reported: `ratio` is how many times as fast as contiguous."""
        return {
            **asdict(self.shape),
            "way": self.way,
            "paged_seconds": self.paged_seconds,
            "contiguous_seconds": self.contiguous_seconds,
            "ratio": self.contiguous_seconds / self.paged_seconds,
            "bytes_per_second": self.kv_bytes / self.paged_seconds,
            "flops_per_second": self.shape.flops / self.paged_seconds,
        }


def attentions(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Callable[[], Tensor]]:
    """What to time on the same random numbers: "contiguous", and every way through shuffled blocks."""
    S, K, Q, B = shape.batch, shape.context_len, shape.query_len, shape.block_size
    G, H, D = shape.num_kv_heads, shape.num_heads, shape.head_dim
    M = -(-K // B)
    kv_cache = KVCache(1, S * M, B, G, D, dtype, device)
    k_cache, v_cache = (cache[0].normal_() for cache in (kv_cache.k, kv_cache.v))
    q = torch.randn(S * Q, H, D, dtype=dtype, device=device)
    tables = torch.randperm(S * M, device=device).view(S, M)
    context_lens = torch.full((S,), K, device=device)
    starts = torch.arange(S + 1, device=device) * Q
    scale = D**-0.5

    k, v = (cache[tables].flatten(1, 2)[:, :K].transpose(1, 2).contiguous() for cache in (k_cache, v_cache))
    attention = with_attention_backend(Parts(), "auto", device).paged_attention
    arguments = (tables, context_lens, starts)
    plan = getattr(attention, "plan", plan_attention)(*arguments, k_cache)

    def paged() -> Tensor:
        return attention(q, k_cache, v_cache, *arguments, scale, plan=plan)

    def contiguous() -> Tensor:
        if Q == 1:  # the fastest form: the heads of a group as queries, so that K and V are read once
            return F.scaled_dot_product_attention(q.view(S, G, H // G, D), k, v, scale=scale).view(S, H, D)
        rows = q.view(S, Q, H, D).transpose(1, 2)
        out = F.scaled_dot_product_attention(rows, k, v, is_causal=True, scale=scale, enable_gqa=H != G)
        return out.transpose(1, 2).reshape(S * Q, H, D)

    found = {"contiguous": contiguous, "triton" if device.type == "cuda" else "torch": paged}
    if Q == 1 and dtype != torch.float16 and device.type == "cpu" and find_spec("numba"):
        found["numba"] = _compiled_decode(shape, q, kv_cache, tables, context_lens, starts)
    return found


def _compiled_decode(
    shape: Shape, q: Tensor, kv_cache: KVCache, tables: Tensor, context_lens: Tensor, starts: Tensor
) -> Callable[[], Tensor]:
    """The engine's compiled loops. They turn and store the newest token too: by 0, and what is there."""
    from minipaged.backends.numba_loops import CompiledOperators

    S, H, G, D = shape.batch, shape.num_heads, shape.num_kv_heads, shape.head_dim
    last = context_lens - 1
    slots = tables[torch.arange(S), last // shape.block_size] * shape.block_size + last % shape.block_size
    newest = [cache[0].flatten(0, 1)[slots] for cache in (kv_cache.k, kv_cache.v)]
    qkv = torch.cat([q, *newest], dim=1).flatten(1)
    config = replace(ModelConfig.tiny(), hidden_size=H * D, num_heads=H, num_kv_heads=G, head_dim=D)
    batch = Batch(slots, last, slots, tables, context_lens, starts, starts[:0])
    operators = CompiledOperators(config, batch, torch.zeros(S, 1, D // 2), kv_cache, paged_attention)
    return lambda: operators.attend(0, qkv, None, None).view(S, H, D)


def measure(shape: Shape, dtype: torch.dtype, device: torch.device) -> list[Measured]:
    """Time every way on one shape; RuntimeError if they don't agree on the result."""
    functions = attentions(shape, dtype, device)
    contiguous = functions["contiguous"]().float()
    for way, attend in functions.items():
        apart = (attend().float() - contiguous).abs().max().item()
        if not apart <= (1e-4 if dtype == torch.float32 else 4e-2):
            raise RuntimeError(f"{shape}: {way} and contiguous attention differ by up to {apart:.3g}")
    timed = _gpu_seconds if device.type == "cuda" else _cpu_seconds
    contiguous_s, *seconds = timed(tuple(functions.values()))
    kv_bytes = shape.kv_elements * dtype.itemsize
    ways = list(functions)[1:]
    return [Measured(shape, *one, contiguous_s, kv_bytes) for one in zip(ways, seconds, strict=True)]


def _gpu_seconds(functions: tuple[Callable[[], Tensor], ...]) -> list[float]:
    from triton.testing import do_bench  # empties the L2 cache before each run

    return [do_bench(function, return_mode="median") / 1e3 for function in functions]


def _cpu_seconds(functions: tuple[Callable[[], Tensor], ...]) -> list[float]:
    """Processor time of the best of many runs, in turn: a busy machine slows both alike."""
    best = [float("inf")] * len(functions)
    for _ in range(CPU_ROUNDS):
        for index, function in enumerate(functions):
            started = time.process_time()
            function()
            best[index] = min(best[index], time.process_time() - started)
    return best


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a plain copy of 1 GiB moves on a GPU, read and written."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _gpu_seconds((lambda: target.copy_(source),))[0]


def shapes(device: torch.device, dtype: torch.dtype) -> Iterator[Shape]:
    """What is measured: on a GPU all that fits into its memory twice."""
    if device.type != "cuda":
        yield from (Shape(batch, context, 1, 9, 3, 64, 16) for batch, context in CPU_DECODES)
        return
    free = MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
    decodes = [(batch, context, 1) for batch, context in GPU_DECODES]
    prefills = [(batch, length, length) for batch, length in GPU_PREFILLS]
    for lengths, (group, head_dim, block_size) in product(decodes + prefills, GPU_LAYOUTS):
        shape = Shape(*lengths, NUM_HEADS, NUM_HEADS // group, head_dim, block_size)
        if 2 * shape.kv_elements * dtype.itemsize <= free:
            yield shape


def print_table(report: dict[str, Any], console: Console) -> None:
    """A line for each shape; on a GPU, decodes with their share of the copy's bandwidth."""
    bandwidth = report["copy_bytes_per_second"]
    table = Table(
        "batch",
        "context",
        "way",
        "heads",
        "head dim",
        "block",
        "µs",
        "speed",
        "times as fast",
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption="as SDPA on contiguous K and V of the same lengths",
    )
    for row in report["rows"]:
        speed = f"{row['bytes_per_second'] / 1e9:,.0f} GB/s"
        if row["query_len"] > 1:
            speed = f"{row['flops_per_second'] / 1e12:,.0f} TFLOP/s"
        elif bandwidth:
            speed += f" ({row['bytes_per_second'] / bandwidth:.0%} of a copy's)"
        what = f"{row['context_len']}" + (" prefill" if row["query_len"] > 1 else "")
        heads = f"{row['num_heads']}/{row['num_kv_heads']}"
        table.add_row(
            str(row["batch"]),
            what,
            row["way"],
            heads,
            str(row["head_dim"]),
            str(row["block_size"]),
            f"{row['paged_seconds'] * 1e6:,.0f}",
            speed,
            f"{row['ratio']:.2f}",
        )
    console.print(table)
    if bandwidth:
        console.print(f"{report['gpu']}: a copy moves {bandwidth / 1e9:,.0f} GB/s", highlight=False)


@click.command(context_settings={"show_default": True})
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    show_default="bfloat16 on a GPU, float32 on a CPU",
)
@click.option("--batch", type=int, multiple=True, help="Only this batch size; can be given several times.")
@click.option("--context", type=int, multiple=True, help="Only this context length; likewise.")
@json_option
def kernels(
    dtype: str | None, batch: tuple[int, ...], context: tuple[int, ...], json_file: str | None
) -> None:
    """Measure attention through block tables against PyTorch's on contiguous K and V.

    On a GPU, the Triton kernels in bytes and FLOP a second; on a CPU, the PyTorch path and numba's loops with
    one thread.

    \b
    minipaged bench kernels
    minipaged bench kernels --batch 32 --context 4096 --json kernels.json
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = getattr(torch, dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    wanted = [
        shape
        for shape in shapes(device, kind)
        if shape.batch in (batch or [shape.batch]) and shape.context_len in (context or [shape.context_len])
    ]
    if not wanted:
        raise ValueError(f"nothing to measure with batch {list(batch)} and context {list(context)}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [one.row() for shape in wanted for one in measure(shape, kind, device)]
    finally:
        torch.set_num_threads(threads)
    on_gpu = device.type == "cuda"
    report = begin_report("kernels", {"dtype": str(kind).removeprefix("torch.")}) | {
        "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
        "copy_bytes_per_second": copy_bandwidth(device) if on_gpu else None,
        "rows": rows,
    }
    print_table(report, Console())
    write_report(report, json_file)
