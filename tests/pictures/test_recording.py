"""A run as plain data: what a frame says is what the engine did; a file gives the same frames back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from minipaged import LLM, Engine, SamplingParams
from minipaged.pictures.player import STATIC, colours_of, draw_frame, pick_stills, play
from minipaged.pictures.recording import Arrival, Frame, Recorder, load_recording, save_recording


@pytest.fixture(scope="module")
def frames() -> list[Frame]:
    """Two requests, one of them with three samples, in a pool too small for both."""
    llm = LLM("tiny", num_blocks=1)
    engine = Engine(llm.model, llm.tokenizer, num_blocks=9, block_size=4)
    params = {"temperature": 1.0, "seed": 0, "ignore_eos": True}
    return Recorder(
        engine,
        [
            Arrival(3, "B", list(range(6)), SamplingParams(max_tokens=8, n=3, **params)),
            Arrival(0, "A", list(range(8)), SamplingParams(max_tokens=12, **params)),
        ],
    ).run()


def test_the_story_is_told_in_order(frames: list[Frame]) -> None:
    assert [frame.step for frame in frames] == list(range(1, len(frames) + 1))
    story = [event for frame in frames for event in frame.events]
    assert story[:2] == ["A arrives", "A admitted, 0 of 8 tokens cached"]
    assert "B arrives" in frames[3].events and "B arrives" not in story[: story.index("B arrives")]
    for word in ("copied to", "PREEMPTED", "is back", "A finishes", "B finishes"):
        assert any(word in event for event in story), word
    assert frames[-1].preemptions > 0 and frames[-1].copies > 0 and frames[-1].output_tokens == 12 + 3 * 8


def test_owners_are_the_blocks_of_the_rows(frames: list[Frame]) -> None:
    for frame in frames:
        running = [row for row in frame.rows if row.state in ("prefill", "decode")]
        users: dict[int, list[str]] = {}
        for row in running:
            assert len(row.block_ids) == -(-row.num_stored // frame.block_size)
            for block_id in row.block_ids:
                users.setdefault(block_id, []).append(row.request_id)
        assert {block: sorted(names) for block, names in users.items()} == {
            block: sorted(names) for block, names in frame.owners.items()
        }
        assert not frame.cached.keys() & frame.owners.keys()
        assert set(frame.queue) <= {row.request_id for row in frame.rows}


def test_a_recording_is_the_same_after_a_file(frames: list[Frame], tmp_path: Path) -> None:
    save_recording(frames, tmp_path / "run.jsonl")
    assert load_recording(tmp_path / "run.jsonl") == frames


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"rows": [], "owners": {}, "cached": {}}', "no JSON"])
def test_what_is_no_recording_is_named_with_its_line(frames: list[Frame], tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.jsonl"
    save_recording(frames[:1], path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match="line 2 is no frame"):
        load_recording(path)


def test_every_frame_can_be_drawn_and_says_in_words_what_it_shows(frames: list[Frame]) -> None:
    colours = colours_of(frames)
    assert len(set(colours.values())) == len(colours) == 2
    for frame in frames:
        figure = draw_frame(frame, colours)
        label = str(figure.get_label())
        assert label.startswith(f"Step {frame.step}: {len(frame.owners)} of 9 blocks used")
        assert all(event in label for event in frame.events)


def test_stills_show_what_the_run_has(frames: list[Frame]) -> None:
    stills = pick_stills(frames, 5)
    assert [frame.step for frame in stills] == sorted({frame.step for frame in stills})
    assert frames[-1] in stills and len(stills) == 5
    words = " ".join(event for frame in stills for event in frame.events)
    whole = " ".join(event for frame in frames for event in frame.events)
    for telling in ("arrives", "PREEMPTED", "copied", "is back"):
        assert telling in words or telling not in whole
    assert any("PREEMPTED" in event for frame in pick_stills(frames, 2) for event in frame.events)
    assert pick_stills(frames, 999) == frames and pick_stills(frames, 0) == []


def test_a_copy_is_not_crowded_out_by_steps_with_more_events(frames: list[Frame]) -> None:
    quiet = [replace(frame, events=["A arrives", "B arrives", "C arrives"]) for frame in frames[:6]]
    quiet[2] = replace(quiet[2], events=["block 6 copied to 7"])
    quiet[3] = replace(quiet[3], events=["B admitted, 0 of 20 tokens cached"])
    quiet[4] = replace(quiet[4], events=["B admitted, 16 of 20 tokens cached"])
    assert pick_stills(quiet, 4) == [quiet[0], quiet[2], quiet[4], quiet[5]]


def test_with_widgets_there_is_a_slider_and_without_there_are_stills(
    frames: list[Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ipywidgets
    from IPython import display

    shown: list[object] = []
    monkeypatch.setattr(display, "display", lambda item, raw=False: shown.append(item))
    monkeypatch.delenv(STATIC, raising=False)
    play(frames)
    (box,) = shown
    assert isinstance(box, ipywidgets.VBox)
    (_, slider), image = box.children[0].children, box.children[1]
    before = image.value
    slider.value = len(frames) - 1
    assert slider.max == len(frames) - 1 and image.value != before
    shown.clear()
    monkeypatch.setenv(STATIC, "1")
    play(frames, stills=2)
    assert len(shown) == 2 and all("text/html" in item for item in shown)
    with pytest.raises(ValueError, match="no frames"):
        play([])


def test_demo_writes_a_recording(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from minipaged.cli import main

    path = tmp_path / "run.jsonl"
    result = CliRunner().invoke(main, ["demo", "--model", "tiny", "--steps", "5", "--record", str(path)])
    assert result.exit_code == 0 and len(load_recording(path)) == 5
    assert json.loads(path.read_text().splitlines()[0])["step"] == 1
