"""How long a step takes, from what it must move and compute: weights, K and V, FLOPs, launches, links.

Decoding waits for memory, and prefill for arithmetic, so a handful of data-sheet numbers says within a factor
how fast a model can be served on a GPU that you do not have. `Device.measure` finds the same numbers for the
machine at hand, so that the model can be held against a clock. Left out: how well a kernel uses the machine
(one share of the peak stands for all of them), work that overlaps with other work, tensor parallelism,
sampling, and the CPU side of an engine but for one launch cost per kernel. So a real engine is slower, never
faster. Chapter 13 (Williams et al., Roofline, 2009).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from minipaged.config import ModelConfig
from minipaged.kv_memory import bytes_per_token
from minipaged.loading.weights import expected_shapes
from minipaged.measure import attention_work, linear_work, work_seconds
from minipaged.scheduler import Schedule

WARP_LATENCY_S = 1e-6  # two dependent loads from device memory, the table's entry and then the keys


@dataclass(frozen=True)
class Device:
    """What a machine can do at best, and which share of it kernels are believed to reach.

    memory_bytes_per_s, flops_per_s: peaks. kernel_s: one launch. link_bytes_per_s: one way between the pool
    and CPU memory, link_s: to start one such copy. visits_in_flight: blocks of one KV head that are being
    read at any moment (one warp each); with WARP_LATENCY_S it bounds how many can be read in a second.
    """

    name: str
    memory_bytes_per_s: float
    flops_per_s: float
    kernel_s: float
    link_bytes_per_s: float
    link_s: float
    visits_in_flight: float = math.inf
    share_of_peak: float = 1.0

    @classmethod
    def measure(
        cls, dtype: torch.dtype = torch.float32, clock: Callable[[], float] = time.perf_counter
    ) -> Device:
        """This machine's CPU, with the threads that PyTorch has: the best of several tries of each number.

        About two seconds and 300 MB. A product as large as a model's is needed for the FLOPs, and one that no
        cache holds for the bandwidth.
        """
        weight = torch.ones(1 << 25, dtype=dtype)  # larger than any cache
        small, square = torch.ones(16, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
        source, target = torch.ones(1 << 23, dtype=dtype), torch.empty(1 << 23, dtype=dtype)
        rows = weight.view(1 << 12, -1)
        column = torch.ones(rows.shape[1], dtype=dtype)
        read_s = _best(lambda: rows @ column, clock)
        product_s = _best(lambda: square @ square, clock)
        copy_s = _best(lambda: target.copy_(source), clock)
        launch_s = _best(lambda: [torch.add(small, small) for _ in range(100)], clock) / 100
        return cls(
            "this machine",
            weight.nbytes / read_s,
            2 * 1024**3 / product_s,
            launch_s,
            source.nbytes / copy_s,
            launch_s,
        )


def _best(run: Callable[[], object], clock: Callable[[], float], tries: int = 7) -> float:
    times = []
    for _ in range(tries):
        started = clock()
        run()
        times.append(clock() - started)
    return min(times)


# Peaks: NVIDIA's data sheets, A100 40GB SXM (2020) and H100 SXM (2023), dense fp16 with fp32 accumulation.
# Links: PCIe 4.0 x16 and 5.0 x16, what is left of 32 and 64 GB/s after the protocol. Assumed, not measured: a
# launch of 4 µs, 10 µs to start a copy, 16 warps on each of 108 and 132 multiprocessors, and 80 % of every
# peak, which is what well-tuned kernels reach.
A100_40GB = Device("A100-40GB", 1.555e12, 312e12, 4e-6, 25e9, 1e-5, 108 * 16, share_of_peak=0.8)
H100 = Device("H100", 3.35e12, 989e12, 4e-6, 50e9, 1e-5, 132 * 16, share_of_peak=0.8)
DEVICES = {"a100": A100_40GB, "h100": H100}


@dataclass(frozen=True)
class ModelShape:
    """What of a model matters here. num_parameters: of all matrices that a token is multiplied with.
    num_looked_up: those in memory besides, of the input embedding. kernels_per_layer: launches; about ten
    where small operators are fused."""

    name: str
    num_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int = 2
    kernels_per_layer: int = 10
    num_looked_up: int = 0

    @property
    def weight_bytes(self) -> int:
        """What every step reads."""
        return self.num_parameters * self.itemsize

    @property
    def resident_bytes(self) -> int:
        """What the weights take in memory."""
        return (self.num_parameters + self.num_looked_up) * self.itemsize

    @property
    def kv_bytes(self) -> int:
        """Of one token, in all layers."""
        return bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, self.itemsize)

    @classmethod
    def of(
        cls, name: str, config: ModelConfig, dtype: torch.dtype, kernels_per_layer: int = 20
    ) -> ModelShape:
        """A model of this package; in plain PyTorch a layer is some twenty operators."""
        shapes = expected_shapes(config).values()
        num_parameters = sum(math.prod(shape) for shape in shapes if len(shape) == 2)
        heads = (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim)
        return cls(name, num_parameters, *heads, dtype.itemsize, kernels_per_layer)


# 12 · layers · hidden² and the output matrix: OPT-13B 40 · 12 · 5120² + 50,272 · 5120. LLaMA-13B (its
# feed-forward part is 13,824 wide, three matrices), Llama-3-8B (14,336 wide, 128,256 words).
OPT_13B = ModelShape("OPT-13B", 12_840_304_640, 40, 40, 40, 128)
LLAMA_13B = ModelShape(
    "LLaMA-13B",
    40 * (4 * 5120**2 + 3 * 5120 * 13_824) + 32_000 * 5120,
    40,
    40,
    40,
    128,
    num_looked_up=32_000 * 5120,
)
LLAMA3_8B = ModelShape(
    "Llama-3-8B",
    32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336) + 128_256 * 4096,
    32,
    32,
    8,
    128,
    num_looked_up=128_256 * 4096,
)
MODELS = {"opt-13b": OPT_13B, "llama-13b": LLAMA_13B, "llama-3-8b": LLAMA3_8B}


@dataclass(frozen=True)
class StepCost:
    """A step's time in seconds, by what it is spent on; the parts come one after the other.

    linear: the model's matrices, whichever takes longer of reading them and multiplying. attention: likewise
    for K and V. move: copies within the pool, and swapping. launch: starting the kernels.
    """

    linear: float
    attention: float
    move: float
    launch: float

    @property
    def seconds(self) -> float:
        return self.linear + self.attention + self.move + self.launch


@dataclass(frozen=True)
class CostModel:
    """Prices a schedule on a device. block_size: of the pool, in tokens (a contiguous K/V is one block).

    >>> cost = CostModel(A100_40GB, OPT_13B)
    >>> cost.price(num_tokens=1, num_pairs=1000, num_read=1000, num_blocks=63).seconds   # one token, decoding
    0.0229...
    """

    device: Device
    model: ModelShape
    block_size: int = 16

    def price(
        self,
        num_tokens: int,
        num_pairs: int,
        num_read: int,
        num_blocks: int,
        num_copied: int = 0,
        num_swapped: int = 0,
    ) -> StepCost:
        """num_tokens: computed, in all sequences. num_pairs: (query, key it sees). num_read: tokens whose K
        and V are read, in num_blocks blocks. num_copied, num_swapped: blocks."""
        device, model, share = self.device, self.model, self.device.share_of_peak
        bandwidth, flops_per_s = share * device.memory_bytes_per_s, share * device.flops_per_s
        if num_tokens == 0:
            linear = attention = launch = 0.0
        else:
            matrices = linear_work(num_tokens, model.num_parameters, model.itemsize)
            linear = work_seconds([matrices], bandwidth, flops_per_s)
            heads = (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim)
            keys_and_values = attention_work(num_read, num_pairs, *heads, model.itemsize)
            visits = num_blocks * model.num_layers * model.num_kv_heads
            attention = max(
                work_seconds([keys_and_values], bandwidth, flops_per_s),
                visits * WARP_LATENCY_S / device.visits_in_flight,
            )
            launch = model.num_layers * model.kernels_per_layer * device.kernel_s
        block_bytes = self.block_size * model.kv_bytes
        pieces = 2 * model.num_layers  # K and V of every layer lie apart, as in the paper's system
        swap_s = block_bytes / device.link_bytes_per_s + pieces * device.link_s
        move = num_copied * 2 * block_bytes / bandwidth + num_swapped * swap_s
        return StepCost(linear, attention, move, launch)

    def step_seconds(self, step: Schedule) -> float:
        """The time of a step: what a `SimulatedEngine` asks for."""
        num_tokens = num_pairs = num_read = num_blocks = 0
        for _, branch, slots in step.work:
            num_new, context_len = len(slots), branch.num_computed_tokens
            num_tokens += num_new
            num_pairs += num_new * context_len - num_new * (num_new - 1) // 2
            num_read += context_len
            num_blocks += -(-context_len // self.block_size)
        num_swapped = len(step.swap_in) + len(step.swap_out)
        price = self.price(num_tokens, num_pairs, num_read, num_blocks, len(step.copies), num_swapped)
        return price.seconds
