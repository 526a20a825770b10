"""The loop in which a reader's layers serve: whatever they do, the notebook goes on and says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from minipaged import Parts, SamplingParams, Scheduler
from minipaged.course.chapters.ch02_contiguous.serving import serve_traditionally
from minipaged.course.chapters.ch06_copy_on_write.serving import serve_branches_with
from minipaged.course.chapters.ch10_engine.own_engine import own_engine
from minipaged.course.notebook import serve_with
from minipaged.course.serving import MAX_STEPS, attempt, serve_all
from minipaged.llm import LLM
from tests.reference import tiny_engine

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
