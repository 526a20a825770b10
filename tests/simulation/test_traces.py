"""Traces: the generator meets the published figures; the loaders read the public files and name faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minipaged.simulation.traces import (
    PUBLISHED,
    LengthStats,
    TraceError,
    TraceRow,
    load_azure,
    load_mooncake,
    synthetic,
)
from tests.public_traces import find_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def stats(lengths: list[int]) -> dict[str, float]:
    values = np.array(lengths)
    percentiles = {f"p{q}": float(np.percentile(values, q)) for q in (25, 50, 75, 90, 99)}
    return {"low": values.min(), "mean": values.mean(), **percentiles, "high": values.max()}


# -- the generator -------------------------------------------------------------------------------------------


def within(got: dict[str, float], published: LengthStats, share: float, high_share: float) -> None:
    for name, value in published._asdict().items():
        allowed = max(1, value * (high_share if name == "high" else share))
        assert abs(got[name] - value) <= allowed, f"{name}: {got[name]} is not within {allowed} of {value}"


@pytest.mark.parametrize("kind", ["conv", "code"])
@pytest.mark.parametrize(("num_requests", "share", "high_share"), [(10_000, 0.01, 0.03), (1_000, 0.05, 0.15)])
def test_generated_lengths_have_the_published_statistics(
    kind: str, num_requests: int, share: float, high_share: float
):
    for seed in range(3):
        rows = synthetic(num_requests, seed, kind)
        within(stats([row.prompt_len for row in rows]), PUBLISHED[kind].prompt, share, high_share)
        within(stats([row.output_len for row in rows]), PUBLISHED[kind].output, share, high_share)


def test_generated_arrivals_begin_at_zero_never_go_back_and_have_the_published_rate():
    arrivals = np.array([row.arrival_s for row in synthetic(10_000, 0)])
    assert arrivals[0] == 0 and (np.diff(arrivals) >= 0).all()
    assert len(arrivals) / arrivals[-1] == pytest.approx(PUBLISHED["conv"].rate, rel=0.03)


def test_a_seed_gives_the_same_rows_again_and_another_seed_others():
    assert synthetic(50, 7) == synthetic(50, 7)
    assert synthetic(50, 7) != synthetic(50, 8)
    assert synthetic(50, 7) != synthetic(50, 7, "code")


def test_rows_are_plain_numbers():
    for row in synthetic(20, 0, "code"):
        assert type(row) is TraceRow and row.block_hashes == ()
        assert (type(row.arrival_s), type(row.prompt_len), type(row.output_len)) == (float, int, int)
        assert row.prompt_len >= 1 and row.output_len >= 1


def test_one_request_is_a_trace_none_is_an_error():
    assert len(synthetic(1, 0)) == 1
    with pytest.raises(ValueError, match="at least 1, got 0"):
        synthetic(0, 0)


def test_an_unknown_kind_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'conv', 'code', got 'chat'"):
        synthetic(5, 0, "chat")


# -- the public files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "num_requests"), [("conv", 19_366), ("code", 8_819)])
def test_the_azure_trace_has_the_figures_that_the_generator_is_fitted_to(kind: str, num_requests: int):
    rows = load_azure(find_trace(f"AzureLLMInferenceTrace_{kind}.csv"))
    service = PUBLISHED[kind]
    assert len(rows) == num_requests
    within(stats([row.prompt_len for row in rows]), service.prompt, 0.002, 0)
    within(stats([row.output_len for row in rows]), service.output, 0.002, 0)
    assert len(rows) / rows[-1].arrival_s == pytest.approx(service.rate, rel=0.002)


def test_the_first_azure_request_arrives_at_zero_the_second_when_its_time_says():
    first, second, *_ = load_azure(find_trace("AzureLLMInferenceTrace_conv.csv"))
    assert first == TraceRow(0.0, 374, 44)
    assert second == TraceRow(pytest.approx(4.314579), 396, 109)


@pytest.mark.parametrize("kind", ["conv", "code"])
def test_generated_and_real_lengths_agree_between_the_published_percentiles(kind: str):
    """Mean distance between the two quantile curves, in units of the mean: what the fit leaves."""
    real = load_azure(find_trace(f"AzureLLMInferenceTrace_{kind}.csv"))
    made = synthetic(len(real), 0, kind)
    for column, worst in (("prompt_len", 0.15), ("output_len", 0.15)):
        a, b = (np.sort([getattr(row, column) for row in rows]) for rows in (real, made))
        assert np.abs(a - b).mean() / a.mean() < worst


@pytest.mark.parametrize(("name", "num_requests"), [("conversation", 12_031), ("synthetic", 3_993)])
def test_the_mooncake_traces_can_be_read(name: str, num_requests: int):
    rows = load_mooncake(find_trace(f"mooncake_{name}_trace.jsonl"))
    assert len(rows) == num_requests and rows[0].arrival_s == 0.0
    assert all(len(row.block_hashes) == -(-row.prompt_len // 512) for row in rows)


# -- every fault has a name ----------------------------------------------------------------------------------


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "trace"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_blank_lines_windows_line_ends_and_time_zones_are_fine(tmp_path: Path):
    text = HEADER + "2024-05-10 00:00:00.009930+00:00,10,2\r\n\n2024-05-10 00:00:01.509930+00:00,11,3\r\n"
    assert load_azure(write(tmp_path, text)) == [TraceRow(0.0, 10, 2), TraceRow(1.5, 11, 3)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("time,prompt,output\n", "line 1: expected the header 'TIMESTAMP,.*got 'time,prompt,output'"),
        (HEADER + "2023-11-16 18:17:03,5\n", "line 2: expected 3 fields .*, got 2:"),
        (HEADER + "2023-11-16 18:17:03,5,5\nyesterday,5,5\n", "line 3: expected a time .* got 'yesterday'"),
        (HEADER + ",5,5\n", "line 2: expected a time .* got ''"),
        (HEADER + "2023-11-16 18:17:03,x,5\n", "at least 1 for ContextTokens, got 'x'"),
        (HEADER + "2023-11-16 18:17:03,5,0\n", "at least 1 for GeneratedTokens, got 0"),
        (HEADER + "2023-11-16 18:17:03,5,-1\n", "at least 1 for GeneratedTokens, got '-1'"),
        (HEADER + "2023-11-16 18:17:03,5,5\n2023-11-16 18:17:01,5,5\n", "line 3: .*order.* 2 s before"),
        (HEADER, "at least one request, found none"),
        ("", "at least one request, found none"),
        (b"\xff\xfe\x00", "expected a text file in UTF-8"),
    ],
)
def test_a_malformed_azure_file_is_an_error_with_the_line_and_what_was_expected(
    tmp_path: Path, lines: str | bytes, message: str
):
    with pytest.raises(TraceError, match=message):
        load_azure(write(tmp_path, lines))


GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (GOOD + "600, 5\n", "line 2: expected one JSON object per line, got '600, 5'"),
        (GOOD + "[1, 2]\n", "line 2: expected an object with timestamp, input_length"),
        ('{"timestamp": 0}\n', "line 1: expected an object with timestamp, input_length"),
        (GOOD.replace("600", "600.5"), "line 1: .* for input_length, got 600.5"),
        (GOOD.replace("5,", "0,"), "at least 1 for output_length, got 0"),
        (GOOD.replace("5,", "true,"), "at least 1 for output_length, got True"),
        (GOOD.replace('"timestamp": 0', '"timestamp": -3'), "at least 0 for timestamp, got -3"),
        (GOOD.replace("[0, 1]", "[0]"), r"expected 2 whole numbers in hash_ids, .* 600 tokens, got \[0\]"),
        (GOOD.replace("[0, 1]", '"ab"'), "expected 2 whole numbers in hash_ids"),
        (GOOD.replace('"timestamp": 0', '"timestamp": 500') + GOOD, r"line 2: .*0\.5 s before"),
        ("", "at least one request, found none"),
    ],
)
def test_a_malformed_mooncake_file_is_an_error_with_the_line_and_what_was_expected(
    tmp_path: Path, lines: str, message: str
):
    with pytest.raises(TraceError, match=message):
        load_mooncake(write(tmp_path, lines))


@pytest.mark.parametrize("load", [load_azure, load_mooncake])
def test_a_missing_file_is_an_error_that_says_where_the_trace_is_published(load: Callable[[Path], object]):
    with pytest.raises(TraceError, match=r"no file .*nowhere.*github\.com"):
        load(Path("nowhere") / "trace")


def test_mooncake_times_are_milliseconds_after_the_first_request(tmp_path: Path):
    times = [GOOD.replace('"timestamp": 0', f'"timestamp": {time}') for time in (1000, 2500)]
    assert load_mooncake(write(tmp_path, "".join(times))) == [
        TraceRow(0.0, 600, 5, (0, 1)),
        TraceRow(1.5, 600, 5, (0, 1)),
    ]
