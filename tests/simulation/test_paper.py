"""The paper's experiments, small, and the commands around them: what must hold whatever the numbers are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minipaged.block_allocator import BlockAllocator
from minipaged.cli.bench import bench
from minipaged.cli.bench_memory import tail_waste
from minipaged.cli.bench_scaling import BareIdea, draw_scaling, scheduling_seconds, slope
from minipaged.course.tasks import import_path
from minipaged.simulation.paper import figure_2, figure_15
from minipaged.simulation.paper_drawings import draw_paper_figure
from minipaged.simulation.paper_systems import SYSTEMS, Bench, lengths_from, lengths_of
from minipaged.simulation.sharing import lengths_with_means
from minipaged.simulation.traces import TraceRow, load_azure
from tests.public_traces import find_trace

results = import_path(Path(__file__).resolve().parents[2] / "tools" / "results.py")


def run(*arguments: str) -> str:
    done = CliRunner().invoke(bench, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def run_json(tmp_path: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    file = tmp_path / "report.json"
    output = run(*arguments, "--json", str(file))
    report = json.loads(file.read_text())
    assert {"kind", "command", "machine", "options"} <= report.keys() and report["kind"] == arguments[0]
    assert results.page(tmp_path).startswith("# Results")  # every kind of report has its place on the page
    return output, report


def test_generated_lengths_have_the_means_asked_for_and_fit_the_model() -> None:
    lengths = lengths_of("ShareGPT", 2000)
    assert sum(prompt for prompt, _ in lengths) / 2000 == pytest.approx(161.31, rel=0.01)
    assert max(map(sum, lengths)) <= 2048
    drawn = lengths_with_means((30, 40), 1000)
    assert [round(sum(column) / 1000) for column in zip(*drawn, strict=True)] == [30, 40]


def test_a_trace_without_a_request_that_fits_the_model_is_an_error() -> None:
    assert lengths_from([TraceRow(0.0, 2000, 48), TraceRow(0.0, 2000, 49)]) == [(2000, 48)]
    with pytest.raises(ValueError, match=r"every request of the trace has more than 2048 tokens"):
        lengths_from([TraceRow(0.0, 2000, 49)])


def test_shares_of_every_system_add_up_to_all_slots() -> None:
    lengths = [(100, 100)] * 60
    outcomes = {system: Bench(num_slots=4096).full_queue(system, lengths) for system in SYSTEMS}
    for system, outcome in outcomes.items():
        assert sum(outcome.shares.values()) == pytest.approx(1), system
        assert [len(times) for times in outcome.served.token_times] == [100] * 60
    assert outcomes["Orca (Max)"].num_running == 2.0
    at_once = [outcome.num_running or 0.0 for outcome in outcomes.values()]
    assert at_once == sorted(at_once) and outcomes["vLLM"].shares["reserved"] == 0


def test_a_swapped_run_serves_the_same_tokens_as_a_recomputed_one() -> None:
    lengths = [(20, 60)] * 20
    outcomes = [
        Bench(num_slots=640, preemption_mode=mode).full_queue("vLLM", lengths)
        for mode in ("recompute", "swap")
    ]
    assert all(outcome.served.num_preempted > 0 for outcome in outcomes)
    assert all([len(times) for times in outcome.served.token_times] == [60] * 20 for outcome in outcomes)


def test_the_picture_says_every_value_ours_and_the_papers() -> None:
    figure = figure_2(20)
    label = draw_paper_figure(figure).get_label()
    assert "Figure 2 of the paper, simulated" in label
    assert "used (paper): Orca (Max) 20.4, Orca (Pow2) 26.8, Orca (Oracle) 38.2, vLLM 96.3" in label
    with pytest.raises(ValueError, match="two data sets only"):
        figure_15(10, [TraceRow(0.0, 1, 1)])


def test_tail_waste_by_hand() -> None:
    assert tail_waste([(5, 4)], block_size=4) == 0.25
    assert tail_waste([(3, 1), (1, 1)], block_size=4) == 0.25


def test_tail_waste_of_the_real_chats_is_what_others_computed() -> None:
    rows = load_azure(find_trace("AzureLLMInferenceTrace_conv.csv"))
    lengths = [row[1:3] for row in rows]
    shares = [round(100 * tail_waste(lengths, size), 2) for size in (8, 16, 32, 64, 128, 256)]
    assert shares == [0.26, 0.54, 1.12, 2.21, 4.38, 8.02]


# -- the commands --------------------------------------------------------------------------------------------


def test_a_figure_is_printed_written_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "report.png"
    output, report = run_json(tmp_path, "paper", "--figure", "2", "--requests", "20", "--png", str(picture))
    assert "Figure 2, simulated" in output and "What differs from the paper" in output
    assert picture.read_bytes().startswith(b"\x89PNG")
    used = report["panels"][0]["ours"]["used"]
    assert list(used) == list(SYSTEMS) and report["panels"][0]["paper"]["used"]["vLLM"] == 96.3


def test_a_replay_says_what_was_simulated_and_what_it_cost(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    entry = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    trace.write_text("".join(json.dumps(entry | {"timestamp": 1000 * number}) + "\n" for number in range(4)))
    output, report = run_json(tmp_path, "replay", "--trace", str(trace), "--prefix-caching")
    assert (report["requests"], report["output_tokens"], report["preemptions"]) == (4, 12, 0)
    assert (report["prefix_queries"], report["prefix_hits"]) == (2400, 3 * 592)  # 37 whole blocks of 16
    assert "74.0% of the prompts' tokens came from the prefix cache" in output
    assert report["options"]["trace"] == "trace.jsonl" and report["virtual_seconds"] > 3
    assert "between tokens: median" in output


def test_a_replay_of_single_tokens_has_no_time_between_tokens(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,9,1\n")
    output, report = run_json(tmp_path, "replay", "--trace", str(trace))
    assert report["between_tokens"] == {"p50": None, "p99": None, "max": None}
    assert "time to first token: median" in output and "between tokens" not in output


@pytest.mark.parametrize("memory_gb", ["16", "-5", "nan"])
def test_a_replay_needs_room_beside_the_weights(memory_gb: str) -> None:
    done = CliRunner().invoke(bench, ["replay", "--memory-gb", memory_gb])
    assert done.exit_code == 1 and f"16.1 GB of weights: nothing of {memory_gb} GB" in done.output


@pytest.mark.parametrize("option", ["--json", "--png"])
def test_a_folder_that_is_missing_is_said_before_anything_is_measured(tmp_path: Path, option: str) -> None:
    done = CliRunner().invoke(bench, ["paper", "--figure", "12", option, str(tmp_path / "none" / "file")])
    assert done.exit_code == 2 and "there is no folder" in done.output and not done.stdout


def test_too_few_requests_make_no_full_queue() -> None:
    with pytest.raises(ValueError, match="serves all 10 requests at once"):
        figure_2(10)


def test_memory_is_counted_for_generated_lengths(tmp_path: Path) -> None:
    output, report = run_json(tmp_path, "memory", "--requests", "30", "--slots", "4096")
    at_once = [row["requests_at_once"] for row in report["systems"].values()]
    assert at_once[0] == pytest.approx(2, abs=0.1) and at_once[-1] > 3 * at_once[0]
    assert "4,096 slots" in output


def test_the_prefix_cache_is_timed_and_changes_no_token(tmp_path: Path) -> None:
    sizes = ["--system-prompt", "64", "--rounds", "1", "--chats", "1", "--turns", "2", "--threads", "1"]
    _, report = run_json(tmp_path, "prefix", "--model", "tiny", *sizes)
    assert report["first_token_ratio"] > 0 and len(report["chats"]["on"]["first_token"]) == 2


def test_a_soak_loses_nothing(tmp_path: Path) -> None:
    output, report = run_json(tmp_path, "soak", "--requests", "20")
    for counts in report["modes"].values():
        assert (counts["requests"], counts["leaked_blocks"]) == (10, 0)
    assert len(report["rss_by_tenth"]) == 10 and "invariants held" in output


def test_this_machine_has_constants(tmp_path: Path) -> None:
    output, report = run_json(tmp_path, "calibrate", "--threads", "1")
    assert min(value for value in report["device"].values() if isinstance(value, float)) > 0
    assert "waits for the weights" in output


def test_slopes_by_hand() -> None:
    assert slope([1, 10, 100, 1000], [5, 5, 7, 70]) == pytest.approx(1)
    assert slope([8, 64], [3, 3]) == pytest.approx(0)
    assert scheduling_seconds(batch=2, context=8, cached=3, tries=1) > 0


def test_the_bare_idea_hands_out_the_same_blocks() -> None:
    ours, bare = BlockAllocator(6), BareIdea(6)
    for pool in (ours, bare):
        pool.allocate(), pool.allocate(), pool.free(0)
    assert [ours.allocate() for _ in range(5)] == [bare.allocate() for _ in range(5)] == [2, 3, 4, 5, 0]


def test_the_scaling_picture_says_its_slopes() -> None:
    curves = {
        name: {1: 1e-5, 10: 2e-5} for name in ("batch", "context", "pool", "cached", "batch, whole engine")
    }
    label = draw_scaling({"step_seconds": curves, "slopes": dict.fromkeys(curves, 0.3)}).get_label()
    assert "pool 0.30" in label


def test_the_page_of_results_is_up_to_date() -> None:
    page = (results.FOLDER / "README.md").read_text(encoding="utf-8")
    assert page == results.page(results.FOLDER), "run python tools/results.py"


def test_every_run_of_the_page_is_a_command() -> None:
    for name, command in results.RUNS.items():
        subcommand, *options = command.split()
        assert subcommand in bench.commands, name
        known = {option for parameter in bench.commands[subcommand].params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known, name
