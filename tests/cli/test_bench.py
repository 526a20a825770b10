"""The benchmark: what is served, in which order, and what follows from the times. Nothing here is timed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import save_file

from minipaged.cli.bench import Workload, bench, compare, play_rounds, step_cost
from minipaged.cli.bench_engines import EngineProcess, Setup, memory, peak_blocks
from minipaged.config import ModelConfig
from minipaged.loading.config_file import write_json
from minipaged.loading.tokenizer import Tokenizer
from minipaged.loading.weights import random_weights

SMALL = ["--requests=3", "--prompt-tokens=4:20", "--output-tokens=2:8", "--rounds=2", "--threads=1"]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as an ordinary folder, which other engines can read."""
    folder = tmp_path_factory.mktemp("tiny")
    config = ModelConfig.tiny()
    save_file(dict(random_weights(config, 0)), folder / "model.safetensors", metadata={"format": "pt"})
    Tokenizer.byte_level()._backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", {
        "architectures": [config.architecture], "model_type": "llama", "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim,
        "max_position_embeddings": config.max_model_len, "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta, "tie_word_embeddings": True, "eos_token_id": 257, "dtype": "float32",
    })
    return folder


def serve(*arguments: str, json_file: Path) -> tuple[str, dict[str, Any]]:
    done = CliRunner().invoke(bench, ["serve", *arguments, "--json", str(json_file)])
    assert done.exit_code == 0, done.output
    return done.output, json.loads(json_file.read_text())


def result(seconds: float, *token_ids: list[int]) -> dict[str, Any]:
    """What an engine says that gives every request a token a second."""
    token_times = [[1.0 + number for number in range(len(ids))] for ids in token_ids]
    return {"seconds": seconds, "token_ids": list(token_ids), "token_times": token_times,
            "kv_reserved_bytes": 8, "kv_used_bytes": 4, "kv_estimated": [], "peak_rss_bytes": 9}


def test_a_workload_keeps_to_its_ranges_and_is_cut_out_of_the_text() -> None:
    text = list(range(1000))
    workload = Workload.draw(text, 200, (2, 5), (1, 3), seed=0)
    assert {len(prompt) for prompt in workload.prompts} == {2, 3, 4, 5}
    assert set(workload.max_tokens) == {1, 2, 3}
    assert all(prompt == text[prompt[0] : prompt[0] + len(prompt)] for prompt in workload.prompts)


def test_the_seed_alone_decides_the_workload() -> None:
    first, again, other = (Workload.draw(list(range(99)), 9, (2, 9), (1, 9), seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_request_that_ends_early_spoils_the_run_instead_of_flattering_it() -> None:
    with pytest.raises(RuntimeError, match=r"asked for \[3\] tokens, got \[2\]"):
        Workload([[1]], [3]).served_by(lambda prompts, max_tokens: result(1.0, [7, 7]))


def test_engines_alternate_and_each_round_begins_with_the_next_one() -> None:
    order: list[str] = []

    def engine(name: str) -> Any:
        return lambda prompts, max_tokens: order.append(name) or result(1.0, [5])

    played = play_rounds({name: engine(name) for name in "abc"}, Workload([[1]], [1]), rounds=3)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert ["".join(results) for results in played] == ["bca", "cab", "abc"]  # the first was to warm up


def test_ratios_are_of_the_same_round_or_of_the_best_ones() -> None:
    ours, theirs = (2.0, 4.0, 1.0), (4.0, 4.0, 3.0)
    played = [
        {"minipaged": result(our, [1, 2], [3]), "other": result(their, [1, 2], [3 if our > 1 else 4])}
        for our, their in zip(ours, theirs, strict=True)
    ]
    row = compare(played, "other")
    # Of 3/1, and of 2, 1, 3; three rounds are too few for a claim.
    assert row["minipaged_ratio"] == {"best": 3.0, "median": 2.0, "verdict": "no difference"}
    assert row["tokens_per_second"] == {"best": 1.0, "median": 0.75}
    assert row["identical_requests"] == 1  # the second one differed in one round


def test_waits_are_those_of_all_requests_in_all_rounds() -> None:
    slow = result(9.0, [1, 2, 3]) | {"token_times": [[3.0, 5.0, 9.0]]}
    row = compare([{"minipaged": slow}, {"minipaged": result(3.0, [1, 2, 3])}], "minipaged")
    assert row["first_token"] == {"p50": 1.0, "p99": 3.0}
    assert row["between_tokens"] == {"p50": 1.0, "p99": 4.0}  # 1, 1, 2, 4
    row = compare([{"minipaged": result(3.0, [1])}], "minipaged")
    assert row["between_tokens"] == {"p50": None, "p99": None}


def test_a_token_whose_time_is_not_known_spoils_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"got \[2\] tokens, but times of \[1\]"):
        untimed = result(1.0, [7, 7]) | {"token_times": [[1.0]]}
        Workload([[1]], [2]).served_by(lambda prompts, max_tokens: untimed)


def test_the_engine_costs_what_is_not_spent_in_the_forward() -> None:
    rounds = [{"steps": 2, "step_seconds": 1.0, "forward_seconds": 0.75},
              {"steps": 2, "step_seconds": 3.0, "forward_seconds": 2.25}]
    assert step_cost(rounds) == {"step_seconds": 1.0, "engine_seconds": 0.25, "engine_share": 0.25}


def test_peak_blocks_by_hand() -> None:
    assert peak_blocks([(4, 6), (8, 1)], block_size=4) == 3
    assert peak_blocks([(4, 6)], block_size=4) == 3  # its last token, the 10th, is never stored: 9 are
    assert peak_blocks([(5, 1)], block_size=4) == 2


def test_memory_now_is_at_most_the_peak() -> None:
    now, peak = memory().values()
    assert now is None or peak is None or 0 < now <= peak


def test_a_process_that_ends_says_its_last_words() -> None:
    with pytest.raises(RuntimeError, match=r"minipaged ended with status 1: .*no model 'no-such-folder'"):
        EngineProcess(Setup("minipaged", "no-such-folder", "float32", 1, 64, 16, 8, 512))


def test_the_report_says_everything_that_was_measured_and_on_what(tmp_path: Path) -> None:
    text, report = serve("--model", "tiny", *SMALL, "--engine-cost", "--rss-requests", "20",
                         json_file=tmp_path / "bench.json")
    assert report.keys() == {
        "kind", "command", "machine", "options", "weight_bytes", "prompt_lens", "output_lens", "rounds",
        "engines", "step", "step_by_batch", "rss_by_tenth",
    }
    assert report["machine"].keys() == {"cpu", "cores", "system", "python", "torch", "date"}
    assert report["options"]["threads"] == 1 and report["options"]["prompt_tokens"] == [4, 20]
    assert report["step_by_batch"].keys() == {"1", "4", "16"} and len(report["rss_by_tenth"]) == 10
    assert all(0 < cost["engine_share"] < 1 for cost in report["step_by_batch"].values())
    ours = report["engines"]["minipaged"]
    assert ours["identical_requests"] == 3
    assert ours["minipaged_ratio"] == {"best": 1.0, "median": 1.0, "verdict": "no difference"}
    longest = max(seconds["minipaged"] for seconds in report["rounds"])
    assert 0 < ours["first_token"]["p50"] <= ours["first_token"]["p99"] < longest
    assert 0 < ours["between_tokens"]["p50"] <= ours["between_tokens"]["p99"] < longest
    best = min(seconds["minipaged"] for seconds in report["rounds"])
    assert ours["tokens_per_second"]["best"] == pytest.approx(sum(report["output_lens"]) / best)
    assert "minipaged's peak RSS" in text and "at batch 16" in text


@pytest.mark.parametrize("output_tokens", ["1:1", "2:30"])
def test_the_used_memory_is_that_of_the_blocks_in_use_at_the_peak(output_tokens: str, tmp_path: Path) -> None:
    _, report = serve("--model", "tiny", *SMALL, "--num-blocks", "64", "--output-tokens", output_tokens,
                      json_file=tmp_path / "bench.json")
    ours, block_bytes = report["engines"]["minipaged"], 16 * 2 * 2 * 2 * 16 * 4  # B, K and V, L, G, D, fp32
    lens = list(zip(report["prompt_lens"], report["output_lens"], strict=True))
    assert ours["kv_reserved_bytes"] == 64 * block_bytes
    assert ours["kv_used_bytes"] == peak_blocks(lens, 16) * block_bytes


def test_transformers_in_all_its_modes_gives_the_same_tokens(tiny_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    _, report = serve("--model", str(tiny_folder), "--vs", "hf", *SMALL, json_file=tmp_path / "bench.json")
    engines = report["engines"]
    assert list(engines) == ["minipaged", "hf-padded", "hf-static", "hf-cb"]
    assert [row["identical_requests"] for row in engines.values()] == [3, 3, 3, 3]
    width, longest = max(report["prompt_lens"]), max(report["output_lens"])
    token_bytes = 2 * 2 * 2 * 16 * 4  # K and V, L, G, D, fp32
    assert engines["hf-padded"]["kv_reserved_bytes"] == 3 * (width + longest - 1) * token_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vs", "llama.cpp"], "no engine 'llama.cpp'"),
        (["--model", "tiny", "--vs", "hf"], "tiny doesn't"),
        (["--model", "no-such-model"], "no model 'no-such-model'"),
        (["--prompt-tokens", "9:3"], "MIN:MAX"),
        (["--vs", "vllm"], "--vllm-python"),
        (["--model", "tiny", "--num-blocks", "1"], "needs?.* blocks"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINIPAGED_VLLM_PYTHON", raising=False)
    done = CliRunner().invoke(bench, ["serve", *arguments])
    assert done.exit_code in (1, 2) and "Traceback" not in done.output
    assert any(line.startswith("Error: ") for line in done.output.splitlines())
    assert re.search(message, done.output)
