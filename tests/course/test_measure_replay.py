"""Chapter 13's made-up benchmarks and its pictures: the truth that the notebook relies on."""

from __future__ import annotations

import pytest

from minipaged.course.chapters.ch13_measure.figures import draw_batches, load_paper_figure
from minipaged.course.chapters.ch13_measure.made_up_runs import made_up_runs
from minipaged.course.tasks import find_root
from minipaged.measure import FAULTS, find_faults, honest_ratios, verdict
from minipaged.simulation.cost_model import A100_40GB, OPT_13B, CostModel
from minipaged.simulation.paper_drawings import draw_paper_figure

FOLDER = find_root() / "docs" / "results"


@pytest.mark.parametrize("seed", range(5))
def test_two_engines_of_one_speed_show_no_difference_in_a_fair_benchmark(seed: int) -> None:
    runs = made_up_runs(8, seed=seed)
    assert find_faults(runs) == [] and len(honest_ratios(runs)) == 8
    assert verdict(honest_ratios(runs)) == "no difference"


def test_in_the_flattering_one_no_round_can_be_saved() -> None:
    runs = made_up_runs(8, flattering=True)
    assert find_faults(runs) == list(FAULTS) and honest_ratios(runs) == []


@pytest.mark.parametrize("file", sorted(FOLDER.glob("paper-*.json")), ids=lambda file: file.stem)
def test_a_figure_of_the_results_can_be_drawn_again(file) -> None:
    figure = load_paper_figure(file)
    assert f"paper-{figure.number}" == file.stem
    assert figure.title in draw_paper_figure(figure).get_label()


def test_the_picture_of_batches_tells_where_memory_ends() -> None:
    label = draw_batches(CostModel(A100_40GB, OPT_13B), 500, 15_700, (1, 64)).get_label()
    assert "With 31 sequences the memory is full." in label and "20.6 ms for 1" in label
