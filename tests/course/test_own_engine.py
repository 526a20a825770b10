"""What chapter 10 is graded and shown with: the toy model, the reader's own engine, the pictures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from minipaged.course.chapters.ch10_engine.figures import draw_filters, draw_stream
from minipaged.course.chapters.ch10_engine.own_engine import own_engine
from minipaged.course.chapters.ch10_engine.toy_model import ToyModel, ToyTokenizer
from minipaged.course.outline import CHAPTERS
from minipaged.course.stubs import make_stub
from minipaged.course.tasks import load_tasks
from minipaged.engine import Engine
from minipaged.llm import LLM
from minipaged.params import SamplingParams
from minipaged.pictures.draw import to_png
from tests.reference import finish

ROOT = Path(__file__).resolve().parents[2]


def test_the_toy_model_says_the_sum_of_what_the_blocks_hold() -> None:
    engine = Engine(ToyModel(), ToyTokenizer(), num_blocks=3, block_size=2)  # type: ignore[arg-type]
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=3))
    outputs = finish(engine)
    assert outputs["a"].outputs[0].token_ids == [14, 70, (14 + 4 * 14 + 5 * 70) % 256]
    assert outputs["a"].outputs[0].finish_reason == "length"


def test_a_toy_model_that_was_told_to_fails_once() -> None:
    engine = Engine(model := ToyModel(), ToyTokenizer(), num_blocks=8, block_size=2)  # type: ignore[arg-type]
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
    model.fail_next()
    with pytest.raises(RuntimeError, match="device"):
        engine.step()
    assert finish(engine)["a"].outputs[0].token_ids == [14, 70]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with nothing but chapter 10's stub in it."""
    for name in ("tests", "exercises"):
        (tmp_path / name).mkdir()
    solution = (ROOT / "solutions" / "ch10_engine.py").read_text(encoding="utf-8")
    stub = make_stub(solution, "ch10_engine", load_tasks(ROOT, CHAPTERS[10]))
    (tmp_path / "exercises" / "ch10_engine.py").write_text(stub, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "exercises"


def test_what_is_written_is_the_reader_s_and_the_rest_the_package_s(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM("tiny", num_blocks=1, device="cpu")
    engine = own_engine(llm, num_blocks=7)
    said = capsys.readouterr().out
    assert type(engine) is Engine and engine.memory.num_blocks == 7
    assert "nothing yet" in said and "ch10 (not written yet)" in said and str(folder) not in said

    for name in ("ch03_block_allocator", "ch10_engine"):
        shutil.copy(ROOT / "solutions" / f"{name}.py", folder)
    engine = own_engine(llm, num_blocks=7)
    assert "yours:         ch03, ch10\n" in capsys.readouterr().out
    assert type(engine).step is not Engine.step
    assert engine.parts.block_allocator.__module__ != "minipaged.block_allocator"


def test_a_loop_that_says_something_else_is_not_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solution = (ROOT / "solutions" / "ch10_engine.py").read_text(encoding="utf-8")
    wrong = solution.replace("        self.kv_cache.copy_blocks(step.copies)\n", "")
    (folder / "ch10_engine.py").write_text(wrong, encoding="utf-8")
    engine = own_engine(LLM("tiny", num_blocks=1, device="cpu"), num_blocks=7)
    assert type(engine) is Engine
    assert "ch10 (it says something else)" in capsys.readouterr().out


def test_a_picture_of_a_model_s_numbers_does_not_depend_on_their_last_digits() -> None:
    probs = [0.61234567, 0.2, 0.0312345]
    noisy = [p + noise for p, noise in zip(probs, (1e-6, -1e-6, 1e-6), strict=True)]
    first, again = (to_png(draw_filters(["a", "b", "c"], {"the model": p}, "three")) for p in (probs, noisy))
    assert first == again


def test_the_pictures_are_drawn_and_described() -> None:
    filters = draw_filters([" Paris", "\n"], {"model": [0.6, 0.2], "top_k=1": [1.0, 0.0]}, "two tokens")
    assert "top_k=1: Paris 1.00" in filters.get_label() and to_png(filters)
    stream = draw_stream([b"caf", b"\xc3", b"\xa9" * 20], ["caf", "caf", "café"], "a word")
    assert "token 1, c3: 'caf'" in stream.get_label() and to_png(stream)
