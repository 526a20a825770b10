"""Chapter 07's laboratory: prompts through a prefix cache, its pictures, and what Mooncake's traces hold."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from minipaged.course.chapters.ch07_prefix_cache.ideas import block_keys
from minipaged.course.chapters.ch07_prefix_cache.replay import (
    MOONCAKE,
    MOONCAKE_UNLIMITED,
    draw_chains,
    draw_hit_rates,
    num_distinct,
    replay_prompts,
    synthetic_chats,
)
from minipaged.course.tasks import import_path
from minipaged.errors import OutOfBlocks
from minipaged.simulation.traces import load_mooncake

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = {
    "Mooncake's conversations": "mooncake_conversation_trace.jsonl",
    "Mooncake's synthetic trace": "mooncake_synthetic_trace.jsonl",
}
COUNTS = {"Mooncake's conversations": (105_710, 288_500), "Mooncake's synthetic trace": (77_953, 121_877)}


def test_a_small_trace_by_hand() -> None:
    prompts = [[1, 2, 3], [1, 2, 4], [5, 6], [1, 2, 3]]
    assert replay_prompts(prompts, 8) == (7 - 2, 11)
    # Room for 3: after [1, 2, 4] only it is there; [5, 6] takes the fresh end, 4 and 2; 1 is left.
    assert replay_prompts(prompts, 3) == (2 + 1, 11)
    assert replay_prompts(prompts, 3, tail_first=False) == (2, 11)
    assert num_distinct(prompts) == 6
    with pytest.raises(OutOfBlocks):
        replay_prompts(prompts, 2)


def test_made_up_chats_are_the_same_each_time_and_say_all_that_was_said_before() -> None:
    prompts = synthetic_chats(200, seed=0)
    assert prompts == synthetic_chats(200, seed=0) != synthetic_chats(200, seed=1)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    parent: dict[int, int | None] = {}
    for prompt in prompts:
        for before, number in zip([None, *prompt], prompt, strict=False):
            assert parent.setdefault(number, before) == before, "equal numbers, equal beginnings"
    assert replay_prompts(prompts, num_distinct(prompts)).percent > 50


@pytest.mark.parametrize("name", FILES)
def test_mooncakes_traces_have_the_hits_that_the_notebook_says(name: str) -> None:
    file = Path(os.environ.get("MINIPAGED_TRACES") or SHARED) / FILES[name]
    if not file.is_file():
        pytest.skip(f"needs the public trace {file.name}: set MINIPAGED_TRACES to the folder that has it")
    prompts = [row.block_hashes for row in load_mooncake(file)]
    assert replay_prompts(prompts, num_distinct(prompts)) == COUNTS[name]
    assert MOONCAKE_UNLIMITED[name] == round(100 * COUNTS[name][0] / COUNTS[name][1], 2)
    rates = {size: round(replay_prompts(prompts, size).percent, 2) for size in MOONCAKE[name]}
    assert rates == MOONCAKE[name]


def test_every_picture_says_in_words_what_it_shows() -> None:
    keys = block_keys([1, 2, 3, 4, 5], 2)
    label = str(draw_chains({"A": ["a b", "c d", "e"]}, {"A": keys}).get_label())
    assert label.endswith(f"A: a b | c d | e; keys {keys[0].hex()[:4]}, {keys[1].hex()[:4]}.")
    figure = draw_hit_rates({"this trace": {10: 12.5, 1000: 30.0}}, {"this trace": 31.0})
    assert "12.5 % with 10 blocks, 30.0 % with 1,000 blocks, 31.0 % with room" in str(figure.get_label())


def test_what_the_notebook_and_the_answers_say_of_mooncakes_conversations() -> None:
    file = Path(os.environ.get("MINIPAGED_TRACES") or SHARED) / FILES["Mooncake's conversations"]
    if not file.is_file():
        pytest.skip(f"needs the public trace {file.name}: set MINIPAGED_TRACES to the folder that has it")
    prompts = [row.block_hashes for row in load_mooncake(file)]
    assert round(replay_prompts(prompts, 5000, tail_first=False).percent, 2) == 11.04
    times = Counter(number for prompt in prompts for number in prompt)
    assert 0.74 < sum(count == 1 for count in times.values()) / len(times) < 0.77, "three quarters come once"
    solution = import_path(Path(__file__).resolve().parents[2] / "solutions" / "ch07_prefix_cache.py")
    for size, percent in ((1000, 17.92), (5000, 33.97), (10_000, 36.64)):
        assert round(100 * solution.clairvoyant_hits(prompts, size) / 288_500, 2) == percent
