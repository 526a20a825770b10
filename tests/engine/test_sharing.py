"""Chapter 06's laboratory: branches counted without a model and in the engine, and their pictures."""

from __future__ import annotations

import pytest

from minipaged import LLM, Engine, SamplingParams
from minipaged.copy_on_write import blocks_saved
from minipaged.course.chapters.ch06_copy_on_write.figures import draw_families, draw_savings, family_of
from minipaged.course.chapters.ch06_copy_on_write.serving import count_holdings, serve_branches_with
from minipaged.params import BeamSearchParams
from minipaged.simulation.sharing import (
    MEAN_LENGTHS,
    PAPER_SAVINGS,
    lengths_like,
    random_beams,
    replay_branches,
    saving,
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", num_blocks=1, device="cpu", dtype="float32")


def new_engine(llm: LLM, block_size: int) -> Engine:
    sizes = {"num_blocks": 100, "block_size": block_size}
    return Engine(llm.model, llm.tokenizer, enable_prefix_caching=False, **sizes)


def samples(n: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(n=n, temperature=1.0, seed=0, max_tokens=max_tokens, ignore_eos=True)


@pytest.mark.parametrize(("n", "prompt_len", "output_len"), [(1, 9, 5), (2, 8, 5), (4, 9, 3), (3, 3, 8)])
def test_formula_replay_and_engine_agree_to_the_block(
    llm: LLM, n: int, prompt_len: int, output_len: int
) -> None:
    engine = new_engine(llm, block_size=4)
    engine.add_request("a", [7] * prompt_len, samples(n, output_len + 1))
    last, replayed = count_holdings(engine)["a"][-1], replay_branches(prompt_len, output_len, n, 4)
    assert last.entries - last.blocks == blocks_saved(n, prompt_len, output_len, 4)
    assert replayed[-1][:2] == last[:2]
    assert [step.copies for step in replayed] == [(n - 1) * (prompt_len % 4 > 0)] + [0] * (output_len - 1)


def test_beams_share_more_than_samples_and_never_more_than_all_but_one() -> None:
    for n in (2, 6):
        alone, beams = (saving(replay_branches(20, 60, n, parents=one)) for one in (None, random_beams(n, 0)))
        assert alone < beams < (n - 1) / n


def test_generated_lengths_have_the_published_means() -> None:
    for name, means in MEAN_LENGTHS.items():
        for column, mean in zip(zip(*lengths_like(name, 200), strict=True), means, strict=True):
            assert min(column) >= 1
            assert sum(column) / 200 == pytest.approx(mean, rel=0.03)


def test_every_picture_says_in_words_what_it_shows(llm: LLM) -> None:
    engine = new_engine(llm, block_size=4)
    engine.add_request("a", [7] * 6, samples(2, 4))
    engine.step()
    engine.step()
    family = family_of(engine, "a", "After step 2")
    label = str(draw_families([family]).get_label())
    assert label.startswith("After step 2: 4 entries in the tables, 3 blocks; copied in this step: 1 → 2.")
    assert "branch 1 [0, 2]" in label and "branch 2 [0, 1]" in label
    measured = {("Alpaca", "samples"): {2: 0.1}, ("Alpaca", "beams"): {2: 0.4}}
    assert "Alpaca, beams: measured 2: 40 %; the paper 37.6 to 55.2 %" in str(
        draw_savings(measured, PAPER_SAVINGS).get_label()
    )


def test_counting_leaves_the_engine_as_it_was(llm: LLM) -> None:
    engine = new_engine(llm, block_size=4)
    engine.add_request("a", [7] * 6, BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True))
    held = count_holdings(engine)["a"]
    assert len(held) == 4 and all(step.blocks <= step.entries for step in held)
    assert engine.stats().blocks_used == 0
    assert sum(step.copies for step in held) == engine.stats().copies


def test_branches_are_served_with_a_folder_s_layer_and_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("minipaged.loading.hub.is_fetched", lambda _: False)
    serve_branches_with("ch06", folder="solutions")
    served = capsys.readouterr().out
    assert "all 144 tokens as with the package's own layers" in served and "0 preemptions" not in served
    serve_branches_with("ch06", folder="exercises/.originals")
    assert "can't serve yet: ch06_copy_on_write, task 1" in capsys.readouterr().out
