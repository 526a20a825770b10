"""The simulator decides as the engine does, its clock adds up, and the price of a step is the formula's."""

from __future__ import annotations

import pytest

from minipaged.contiguous import Arena, Buddy
from minipaged.params import SamplingParams
from minipaged.scheduler import Scheduler
from minipaged.simulation.contiguous_memory import ContiguousMemory
from minipaged.simulation.cost_model import A100_40GB, H100, LLAMA3_8B, OPT_13B, CostModel, Device, ModelShape
from minipaged.simulation.simulator import SimulatedEngine, paged_memory, poisson, prompt_tokens, serve
from minipaged.simulation.traces import TraceRow, synthetic
from tests.reference import greedy, tiny_engine


def simulated(num_blocks: int = 100, block_size: int = 4, **options: object) -> SimulatedEngine:
    memory = paged_memory(num_blocks, block_size, **options)  # type: ignore[arg-type]
    return SimulatedEngine(Scheduler(memory, 64, 8), lambda step: 1.0)


def test_what_the_prefix_cache_finds_is_what_the_engine_finds() -> None:
    prompts = [[5] * 9, [5] * 14, [5] * 4 + [6] * 8, [6] * 8, [5] * 14]
    engine, dry = tiny_engine(num_blocks=12), simulated(12, enable_prefix_caching=True)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, greedy(3))
        dry.add_request(str(number), list(prompt), SamplingParams(max_tokens=3))
        while engine.has_unfinished_requests():
            engine.step()
            dry.step()
        assert not dry.has_unfinished_requests()
    assert (dry.memory.prefix_hits, dry.memory.prefix_queries) == (20 + 4, sum(map(len, prompts)))
    assert (engine.memory.prefix_hits, engine.memory.prefix_queries) == (24, sum(map(len, prompts)))


def test_several_samples_share_their_prompt_and_end_together() -> None:
    engine = simulated()
    engine.add_request("a", [1] * 8, SamplingParams(n=3, max_tokens=5))
    engine.step()
    engine.step()
    used = engine.memory.num_blocks - engine.memory.allocator.num_free
    assert used == 2 + 3  # two full blocks of the prompt, and a block for each sample
    while engine.has_unfinished_requests():
        engine.step()
    assert (engine.now, engine.memory.allocator.num_free) == (5.0, 100)


def test_prompts_are_alike_where_the_trace_says_so() -> None:
    one, other = TraceRow(0, 600, 1, (7, 8)), TraceRow(0, 1024, 1, (7, 9))
    assert prompt_tokens(one, 0) == [7] * 512 + [8] * 88
    assert prompt_tokens(other, 1) == [7] * 512 + [9] * 512
    assert set(prompt_tokens(TraceRow(0, 3, 1), 0)).isdisjoint(prompt_tokens(TraceRow(0, 3, 1), 1))


def test_requests_arrive_at_the_rate_asked_for() -> None:
    rows = poisson([(3, 5)] * 4000, rate=8.0, seed=1)
    assert rows[0] == TraceRow(0.0, 3, 5) and rows == poisson([(3, 5)] * 4000, rate=8.0, seed=1)
    assert rows[-1].arrival_s == pytest.approx(4000 / 8.0, rel=0.05)
    with pytest.raises(ValueError, match=r"above 0 requests a second, got 0"):
        poisson([(3, 5)], rate=0)


def test_normalised_latency_is_the_mean_over_requests() -> None:
    served = serve(simulated(), [TraceRow(0.0, 4, 1), TraceRow(0.0, 4, 4)])
    assert served.token_times == [[1.0], [1.0, 2.0, 3.0, 4.0]]
    assert served.normalised_latency() == (1.0 / 1 + 4.0 / 4) / 2


def test_a_request_that_outgrows_the_memory_is_an_error_and_not_a_short_latency() -> None:
    with pytest.raises(ValueError, match=r"7 \+ 5 tokens outgrew the memory: 2 blocks of 4"):
        serve(simulated(num_blocks=2), [TraceRow(0.0, 7, 5)])


# -- the traditional way behind the same scheduler -----------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "arena", "at_once"),
    [("max", Arena(100), 3), ("max", Buddy(100), 3), ("oracle", Arena(100), 9), ("pow2", Arena(100), 7),
     ("pow2", Buddy(100), 6)],
)
def test_as_many_run_at_once_as_there_are_holes(policy: str, arena: Arena, at_once: int) -> None:
    """Of 6 + 5 tokens each: 32, 11 and 6 + 8 slots; 16 from buddies."""
    engine = SimulatedEngine(Scheduler(ContiguousMemory(arena, policy, 32), 1000, 100), lambda step: 1.0)  # type: ignore[arg-type]
    served = serve(engine, [TraceRow(0.0, 6, 5)] * 20)
    assert served.step_tokens[0] == 6 * at_once and max(served.step_tokens[1:5]) == at_once
    assert [len(times) for times in served.token_times] == [5] * 20
    assert arena.num_free == 100 and not arena.reservations()


def test_nobody_overtakes_a_request_that_finds_no_hole() -> None:
    memory = ContiguousMemory(Arena(20), "oracle", 32)
    engine = SimulatedEngine(Scheduler(memory, 1000, 100), lambda step: 1.0)  # type: ignore[arg-type]
    served = serve(engine, [TraceRow(0.0, 9, 3), TraceRow(0.0, 9, 3), TraceRow(0.0, 1, 1)])
    assert [times[0] for times in served.token_times] == [1.0, 4.0, 4.0]


# -- the price of a step -------------------------------------------------------------------------------------

ROUND = Device("round numbers", 1000.0, 10_000.0, 0.5, 100.0, 0.25)
SMALL = ModelShape("small", 1000, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, kernels_per_layer=3)


def test_the_price_of_a_step_by_hand() -> None:
    cost = CostModel(ROUND, SMALL, block_size=4)
    one = cost.price(num_tokens=1, num_pairs=10, num_read=10, num_blocks=3)
    assert SMALL.kv_bytes == 2 * 2 * 2 * 8 * 2 and SMALL.weight_bytes == 2000
    assert one.linear == 2000 / 1000  # reading 2,000 bytes; 2,000 FLOPs would take 0.2 s
    assert one.attention == 10 * 128 / 1000  # reading; 4 · 2 · 4 · 8 · 10 FLOPs would take 0.256 s
    assert one.launch == 2 * 3 * 0.5 and one.move == 0
    many = cost.price(num_tokens=100, num_pairs=100, num_read=1, num_blocks=1)
    assert many.linear == 2 * 1000 * 100 / 10_000 and many.attention == 4 * 2 * 4 * 8 * 100 / 10_000
    moved = cost.price(0, 0, 0, 0, num_copied=2, num_swapped=3)
    assert moved.linear == moved.attention == moved.launch == 0
    assert moved.move == pytest.approx(2 * 2 * 512 / 1000 + 3 * (512 / 100 + 4 * 0.25))


def test_a_schedule_is_priced_by_what_it_computes_and_reads() -> None:
    cost = CostModel(ROUND, SMALL, block_size=4)
    engine = SimulatedEngine(Scheduler(paged_memory(100, 4), 6, 8), cost.step_seconds)
    engine.add_request("a", [0] * 8, SamplingParams(max_tokens=2))
    engine.step()  # 6 tokens of the prompt, 21 pairs; then 2 more that see 7 and 8; then one that sees 9
    assert engine.now == pytest.approx(cost.price(6, 21, 6, 2).seconds)
    engine.step()
    engine.step()
    expected = (
        cost.price(6, 21, 6, 2).seconds + cost.price(2, 15, 8, 2).seconds + cost.price(1, 9, 9, 3).seconds
    )
    assert engine.now == pytest.approx(expected)


@pytest.mark.parametrize("device", [A100_40GB, H100])
@pytest.mark.parametrize("model", [OPT_13B, LLAMA3_8B])
def test_a_big_gpu_decodes_at_its_bandwidth_and_prefills_at_its_flops(
    device: Device, model: ModelShape
) -> None:
    cost = CostModel(device, model)
    decode, prefill = cost.price(1, 500, 500, 32), cost.price(2048, 2048 * 1024, 2048, 128)
    assert decode.linear == model.weight_bytes / (0.8 * device.memory_bytes_per_s)
    assert prefill.linear == 2 * model.num_parameters * 2048 / (0.8 * device.flops_per_s)
    assert OPT_13B.kv_bytes == 819_200 and LLAMA3_8B.kv_bytes == 131_072


def test_blocks_of_one_token_cannot_be_read_at_the_full_bandwidth() -> None:
    cost = CostModel(A100_40GB, OPT_13B, block_size=1)
    paged, whole = cost.price(32, 16_000, 16_000, 16_000), cost.price(32, 16_000, 16_000, 1_000)
    assert paged.attention > whole.attention == 16_000 * 819_200 / (0.8 * 1.555e12)


def test_a_replay_is_the_same_every_time() -> None:
    def run() -> float:
        cost = CostModel(A100_40GB, LLAMA3_8B)
        engine = SimulatedEngine(Scheduler(paged_memory(2000), 2048, 64), cost.step_seconds)
        return serve(engine, synthetic(20, seed=3)).seconds

    assert run() == run()
