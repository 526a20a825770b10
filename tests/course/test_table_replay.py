"""Chapter 04's laboratory: a trace served in blocks, its pictures, and what real requests waste."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minipaged.block_allocator import BlockAllocator
from minipaged.block_table import BlockTable, blocks_for
from minipaged.course.chapters.ch04_block_table.figures import draw_block_sizes, draw_growth, draw_translation
from minipaged.course.chapters.ch04_block_table.replay import TableReplay, table_score
from minipaged.simulation.traces import TraceRow, load_azure, synthetic

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def test_a_replay_gives_every_block_back_and_never_wastes_a_whole_one() -> None:
    replay = TableReplay(synthetic(60, seed=1), block_size=16, num_slots=8192).run()
    assert replay.pool.num_free == replay.pool.num_blocks
    assert 0 < replay.worst_tail < 16
    for moment in replay.moments:
        assert moment.used + moment.tail + moment.free == 8192
    assert sum(replay.shares().values()) == pytest.approx(1)
    assert table_score(replay).internal == replay.shares()["tail"]


def test_blocks_kept_free_spare_preemptions() -> None:
    trace = [TraceRow(0.0, 30, 50) for _ in range(4)]
    tight = TableReplay(trace, block_size=4, num_slots=128).run()
    roomy = TableReplay(trace, block_size=4, num_slots=128, keep_free=20).run()
    assert tight.num_preempted > 0 and tight.num_recomputed >= 30 * tight.num_preempted
    assert roomy.num_preempted == 0
    assert tight.num_tokens == roomy.num_tokens == 320


def test_requests_longer_than_the_model_allows_are_left_out() -> None:
    replay = TableReplay([TraceRow(0.0, 4000, 97), TraceRow(0.0, 4000, 96)]).run()
    assert (replay.num_refused, replay.num_tokens) == (1, 4096)


def test_every_picture_says_in_words_what_it_shows() -> None:
    pool = BlockAllocator(4)
    table = BlockTable(pool, 4)
    table.append(6)
    child = table.fork()
    label = str(draw_translation({"A": table, "B": child}, "Shared").get_label())
    assert label == "Shared. A: 6 tokens in blocks [0, 1]. B: 6 tokens in blocks [0, 1]. Free: [2, 3]."
    assert "8 slots for 5 tokens" in str(draw_growth({"blocks": [4, 4, 4, 4, 8]}, "Growth").get_label())
    assert "16: 0.54 % wasted, 86 entries" in str(draw_block_sizes({16: 0.54}, {16: 86.0}).get_label())


@pytest.mark.parametrize(
    ("name", "by_block_size"),
    [
        ("code", {8: 0.17, 16: 0.37, 32: 0.73, 64: 1.51, 128: 3.04, 256: 6.09}),
        ("conv", {8: 0.26, 16: 0.54, 32: 1.12, 64: 2.21, 128: 4.38, 256: 8.02}),
    ],
)
def test_the_last_blocks_of_azures_requests_waste_what_the_notebook_says(
    name: str, by_block_size: dict[int, float]
) -> None:
    file = Path(os.environ.get("MINIPAGED_TRACES") or SHARED) / f"AzureLLMInferenceTrace_{name}.csv"
    if not file.is_file():
        pytest.skip(f"needs the public trace {file.name}: set MINIPAGED_TRACES to the folder that has it")
    lengths = [row.prompt_len + row.output_len for row in load_azure(file)]
    for block_size, expected in by_block_size.items():
        held = sum(block_size * blocks_for(length, block_size) for length in lengths)
        assert 100 * (1 - sum(lengths) / held) == pytest.approx(expected, abs=0.006), block_size
