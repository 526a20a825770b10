"""`minipaged demo`: the picture tells the truth about the engine, and a reader's layers are judged by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from minipaged import LLM, check_invariants
from minipaged.cli import main
from minipaged.cli.demo import compare, draw, new_recorder, runs

RIGHT_BUT_DIFFERENT = """
from minipaged import block_allocator

class BlockAllocator(block_allocator.BlockAllocator):
    def _take_head(self):
        self._free_queue.move_to_end(next(reversed(self._free_queue)), last=False)  # last in, first out
        return super()._take_head()
"""
WRONG_NUMBERS = """
from minipaged import paged_attention as own

KVCache = own.KVCache

def paged_attention(q, *args, **kwargs):
    return own.paged_attention(q, *args, **kwargs) * 0.5
"""
A_STUB = """
from minipaged import block_allocator

class BlockAllocator(block_allocator.BlockAllocator):
    def allocate_many(self, n):
        raise NotImplementedError("ch03_block_allocator, task 2: hand out n blocks")
"""
NEVER_SCHEDULES = """
from minipaged import scheduler

class Scheduler(scheduler.Scheduler):
    def schedule(self):
        return scheduler.Schedule()
"""


def demo(*args: str) -> Result:
    return CliRunner().invoke(main, ["demo", "--model", "tiny", *args])


def demo_with(source: str, stem: str, folder: Path) -> Result:
    (folder / f"{stem}.py").write_text(source)
    return demo("--use", f"{folder}:{stem[:4]}")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", num_blocks=1)


@pytest.mark.parametrize("swap", [False, True], ids=["recompute", "swap"])
def test_sharing_copying_and_preemption_all_happen_and_everybody_finishes(swap: bool) -> None:
    result = demo(*["--swap"] * swap)
    assert result.exit_code == 0
    for pattern in (r"\bA2 ", r"\b[A-C]3 ", r"block \d+ copied to", "PREEMPTED", r"[1-9]\d* of \d+ tokens"):
        assert re.search(pattern, result.stdout), pattern
    assert ("swapped in" in result.stdout) == swap == ("CPU " in result.stdout)
    assert all(f"{letter} finishes" in result.stdout for letter in "ABCDE")


def test_the_real_model_shows_them_all_too(real_model: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--model", str(real_model)])
    assert result.exit_code == 0
    assert re.search(r"[1-9]\d* preemptions, [1-9]\d* copies, prefix cache [1-9]", result.stdout)


def test_the_owners_shown_are_the_reference_counts(llm: LLM) -> None:
    recorder = new_recorder(llm, None, 8, swap=False)
    while frame := recorder.step():
        check_invariants(recorder.engine)
        allocator = recorder.engine.memory.allocator
        counts = [len(frame.owners.get(block_id, [])) for block_id in range(frame.num_blocks)]
        assert counts == [allocator.ref_count(block_id) for block_id in range(allocator.num_blocks)]
    assert recorder.frames[-1].owners == {}


@pytest.mark.parametrize("width", [60, 80, 110])
def test_every_frame_fits_its_terminal(width: int, llm: LLM) -> None:
    recorder, console = new_recorder(llm, None, 8, swap=False), Console(width=width)
    while recorder.step():
        lines = console.render_lines(draw(recorder.frames, width, recent=5), pad=False)
        assert max(sum(segment.cell_length for segment in line) for line in lines) <= width


def test_a_free_block_that_can_still_be_found_shows_whose_it_was(llm: LLM) -> None:
    recorder, console = new_recorder(llm, 200, 8, swap=False), Console(width=400, no_color=True)
    frames = recorder.run()
    with console.capture() as capture:
        console.print(draw(frames, 400, recent=1))
    cells = "".join(re.findall(r"^ +\d+  ([a-eA-E· ]+)$", capture.get(), re.MULTILINE)).split()
    assert set(cells) == {"a", "b", "c", "d", "e", "·"}
    assert len(cells) - cells.count("·") == recorder.engine.stats().blocks_cached


def test_block_ids_keep_their_order_when_runs_are_joined() -> None:
    assert runs([4, 5, 6, 2, 9, 8]) == "4-6 2 9 8"
    assert runs([]) == ""


def test_a_tight_pool_a_roomy_one_and_swapping_give_the_same_texts(llm: LLM) -> None:
    tight, roomy, swapping = (
        new_recorder(llm, num_blocks, 8, swap)
        for num_blocks, swap in ((None, False), (500, False), (None, True))
    )
    recorders = [tight, roomy, swapping]
    frames = [recorder.run() for recorder in recorders]
    assert [compare(tight, recorder) for recorder in recorders] == [0, 0, 0]
    assert [run[-1].preemptions > 0 for run in frames] == [True, False, True]


def test_steps_ends_the_demo_early() -> None:
    result = demo("--steps", "3")
    assert result.exit_code == 0 and len(re.findall(r"^step \d+   ", result.stdout, re.MULTILINE)) == 3


def test_without_a_terminal_nothing_but_text_is_printed() -> None:
    assert "\x1b" not in demo("--steps", "8").stdout


def test_a_layer_that_is_right_in_its_own_way_gives_the_same_text(tmp_path: Path) -> None:
    result = demo_with(RIGHT_BUT_DIFFERENT, "ch03_block_allocator", tmp_path)
    assert result.exit_code == 0
    assert "the same as with the package's own layers" in result.stdout.splitlines()[-1]
    blocks_of_a = re.search(r"^A +\w+ +\d+ +(\d+)", result.stdout, re.MULTILINE)
    assert blocks_of_a and int(blocks_of_a[1]) > 0  # the first block taken was not block 0: it ran


def test_a_wrong_layer_is_told_where_the_text_first_differs(tmp_path: Path) -> None:
    result = demo_with(WRONG_NUMBERS, "ch05_paged_attention", tmp_path)
    assert result.exit_code == 1
    last_line = result.stdout.splitlines()[-1]
    assert re.match(r"DIFFERENT: token \d+ of A is \d+; with the package's layers, \d+", last_line)


def test_a_layer_that_fails_is_named_with_file_and_line(tmp_path: Path) -> None:
    result = demo_with(A_STUB, "ch03_block_allocator", tmp_path)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "NotImplementedError: ch03_block_allocator, task 2: hand out n blocks" in result.stderr
    assert "ch03_block_allocator.py, line 6)" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_scheduler_that_does_nothing_does_not_run_for_ever(tmp_path: Path) -> None:
    result = demo_with(NEVER_SCHEDULES, "ch08_scheduler", tmp_path)
    assert result.exit_code == 1 and "did nothing" in result.stderr


@pytest.mark.parametrize("use", ["no-such-folder:ch03", "no-chapters", ".:ch99"])
def test_layers_that_are_not_there_are_one_line_and_exit_code_1(use: str) -> None:
    result = demo("--use", use)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert len(result.stderr.splitlines()) == 1 and use in result.stderr


def test_a_pool_too_small_for_a_prompt_is_one_line_and_exit_code_1() -> None:
    result = demo("--num-blocks", "2")
    assert result.exit_code == 1 and "the pool has 2" in result.stderr


def test_use_with_steps_is_wrong_usage() -> None:
    assert demo("--use", "exercises:ch03", "--steps", "3").exit_code == 2
