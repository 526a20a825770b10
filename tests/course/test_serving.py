"""The loop in which a reader's layers serve: whatever they do, the notebook goes on and says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from minipaged import BlockAllocator, Parts, SamplingParams, Scheduler
from minipaged.course.chapters.ch02_contiguous.serving import serve_traditionally
from minipaged.course.chapters.ch06_copy_on_write.serving import serve_branches_with
from minipaged.course.chapters.ch10_engine.own_engine import own_engine
from minipaged.course.notebook import serve_with
from minipaged.course.serving import JUNK, MAX_STEPS, attempt, serve_all
from minipaged.engine import Engine
from minipaged.llm import LLM
from minipaged.loading.tokenizer import Tokenizer
from minipaged.params import RequestOutput
from tests.reference import tiny_engine, tiny_model

ROOT = Path(__file__).resolve().parents[2]
BROKEN = {
    "ends the process": ("import sys; sys.exit('enough')", "SystemExit: enough"),
    "raises": ("raise KeyError('x')", "KeyError: 'x'"),
}


class Lazy(Scheduler):
    """Never schedules anything."""

    def _admit_waiting(self, step, budget) -> None:  # type: ignore[no-untyped-def]
        return None


def test_an_engine_that_gets_nowhere_is_stopped_and_says_who_waits() -> None:
    engine = tiny_engine(parts=Parts(scheduler=Lazy))
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=2))
    with pytest.raises(RuntimeError, match=rf"{MAX_STEPS} steps taken, and \['a'\] are not done"):
        serve_all(engine)


class Uncounted(Engine):
    """A loop of a reader's that does nothing, and does not count its steps."""

    def step(self) -> list[RequestOutput]:
        return []


def test_a_step_of_the_reader_s_own_need_not_count_itself() -> None:
    engine = Uncounted(tiny_model(), Tokenizer.byte_level(), num_blocks=8)
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=2))
    with pytest.raises(RuntimeError, match="steps taken"):
        serve_all(engine)


def test_what_is_read_before_it_was_written_is_junk() -> None:
    engine = tiny_engine(num_cpu_blocks=2, preemption_mode="swap")
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
    serve_all(engine)
    assert float(engine.kv_cache.k[0, -1].min()) == JUNK  # the last block of the pool was never used
    assert engine.cpu_cache is not None and float(engine.cpu_cache.v.min()) == JUNK


WRONG_LAYERS = {
    "K and V are lost": ("ch05_paged_attention", """
from minipaged.paged_attention import KVCache as Own, paged_attention
class KVCache(Own):
    def write(self, layer, k, v, slot_mapping):
        super().write(layer, 0 * k, 0 * v, slot_mapping)
""", "DIFFERENT", "DIFFERENT"),
    "copies are left out": ("ch05_paged_attention", """
from minipaged.paged_attention import KVCache as Own, paged_attention
class KVCache(Own):
    def copy_blocks(self, copies):
        pass
""", "tokens as with the package's own layers", "DIFFERENT"),
    "blocks are never freed": ("ch03_block_allocator", """
from minipaged.block_allocator import BlockAllocator as Own
class BlockAllocator(Own):
    def free_many(self, block_ids):
        pass
""", "broken invariant", "broken invariant"),
}


@pytest.mark.parametrize("name", WRONG_LAYERS)
def test_a_layer_that_is_wrong_is_said_to_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stem, source, alone, in_branches = WRONG_LAYERS[name]
    (tmp_path / f"{stem}.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr("minipaged.loading.hub.is_fetched", lambda _: False)
    serve_with(stem[:4], folder=str(tmp_path))
    assert alone in capsys.readouterr().out
    serve_branches_with(stem[:4], folder=str(tmp_path))
    assert in_branches in capsys.readouterr().out


def test_layers_that_fail_only_in_the_pool_that_is_asked_for_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tests", "exercises"):
        (tmp_path / name).mkdir()
    (tmp_path / "exercises" / "ch03_block_allocator.py").write_text("""
import sys
from minipaged.block_allocator import BlockAllocator as Own
class BlockAllocator(Own):
    def __init__(self, num_blocks, on_reuse=None):
        if num_blocks > 100:
            sys.exit("big")
        super().__init__(num_blocks, on_reuse)
""", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    llm = LLM("tiny", num_blocks=1, device="cpu")
    engine = own_engine(llm, num_blocks=200)
    assert engine.memory.num_blocks == 200 and type(engine.memory.allocator) is BlockAllocator
    assert "could not be built" in capsys.readouterr().out
    with pytest.raises(ValueError, match="block_size"):
        own_engine(llm, num_blocks=8, block_size=0)


@pytest.mark.parametrize("failure", [SystemExit("out"), ZeroDivisionError("out"), RuntimeError("out")])
def test_a_failure_is_told_in_a_line(failure: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise failure

    assert attempt("yours", fail, instead=lambda: 1) is None
    assert capsys.readouterr().out == f"yours could not serve: {type(failure).__name__}: out\n"


def test_what_is_not_written_is_the_package_s_and_a_result_is_passed_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stub() -> int:
        raise NotImplementedError("ch06, task 1: fork")

    assert attempt("yours", stub, instead=lambda: 1) == 1
    assert attempt("yours", lambda: 2, instead=lambda: 1) == 2
    assert "yours can't serve yet: ch06, task 1: fork." in capsys.readouterr().out


def test_an_interrupt_is_the_notebook_s() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt("yours", interrupted, instead=lambda: 1)


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("chapter", ["ch02", "ch03", "ch06", "ch10"])
def test_no_layer_breaks_the_notebook_whatever_it_does(
    chapter: str,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = BROKEN[how]
    for name in ("tests", "exercises"):
        (tmp_path / name).mkdir()
    stems = {"ch02": "contiguous", "ch03": "block_allocator", "ch06": "copy_on_write", "ch10": "engine"}
    for key, stem in stems.items():
        solution = (ROOT / "solutions" / f"{key}_{stem}.py").read_text(encoding="utf-8")
        (tmp_path / "tests" / f"test_{key}_{stem}.py").touch()
        (tmp_path / "exercises" / f"{key}_{stem}.py").write_text(solution, encoding="utf-8")
    methods = {"ch02": "_take_head", "ch03": "allocate_many", "ch06": "fork", "ch10": "step"}
    file = tmp_path / "exercises" / f"{chapter}_{stems[chapter]}.py"
    lines = file.read_text(encoding="utf-8").splitlines()
    place = next(i for i, line in enumerate(lines) if f"def {methods[chapter]}(" in line)
    end = next(i for i in range(place, len(lines)) if lines[i].rstrip().endswith(":"))
    lines.insert(end + 1, f"        {code}")
    file.write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("minipaged.loading.hub.is_fetched", lambda _: False)
    monkeypatch.setattr("minipaged.course.chapters.ch02_contiguous.serving.is_fetched", lambda _: False)
    if chapter == "ch10":
        own_engine(LLM("tiny", num_blocks=1, device="cpu"), num_blocks=7)
        assert f"ch10 ({said})" in capsys.readouterr().out
    else:
        serve = {"ch02": serve_traditionally, "ch03": serve_with, "ch06": serve_branches_with}[chapter]
        serve(*([] if chapter == "ch02" else [chapter]))
        assert f"exercises/{chapter} could not serve: {said}" in capsys.readouterr().out
