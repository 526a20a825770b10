"""Request traces: when requests arrive, how long their prompts are, and how long their answers get.

How much memory is wasted depends on the lengths that people really send, and above all on how widely these
vary. Two public formats can be read here (Azure's CSV, Mooncake's JSON lines). You need not download either:
`synthetic` makes a trace of the same shape from a few published figures. It is generated, not recorded, and
that has to be said beside every number from it. The public traces have no texts. Chapters 01, 02, 04 and 13.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

AZURE_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE_SOURCE = "https://github.com/Azure/AzurePublicDataset"
MOONCAKE_SOURCE = "https://github.com/kvcache-ai/Mooncake"
MOONCAKE_BLOCK_SIZE = 512  # tokens per id in hash_ids


class TraceError(ValueError):
    """A trace that cannot be read. The message says which file and line, what was expected and what was
    there.

    Example: `TraceError("conv.csv, line 3: expected a time such as 2023-11-16 18:17:03.9799600, got 'x'")`.
    """


class TraceRow(NamedTuple):
    """One request.

    arrival_s: seconds after the first request of the trace. prompt_len, output_len: tokens, at least 1 each.
    block_hashes: one id per 512 tokens of the prompt, where the trace has them: equal ids at the beginning
    are equal beginnings.
    """

    arrival_s: float
    prompt_len: int
    output_len: int
    block_hashes: tuple[int, ...] = ()


class LengthStats(NamedTuple):
    """What is known of a distribution of lengths, in tokens: smallest, percentiles, largest, and the mean."""

    low: int
    p25: int
    p50: int
    p75: int
    p90: int
    p99: int
    high: int
    mean: float


class Service(NamedTuple):
    """The figures that `synthetic` is fitted to. rate: requests per second, the mean over the trace."""

    rate: float
    prompt: LengthStats
    output: LengthStats


# Of the Azure LLM inference traces of 2023-11-16 (one hour each; Patel et al., "Splitwise", ISCA 2024),
# computed from the two public files.
PUBLISHED = {
    "conv": Service(
        rate=5.53,
        prompt=LengthStats(low=2, p25=396, p50=1020, p75=1189, p90=2735, p99=4142, high=14050, mean=1154.7),
        output=LengthStats(low=7, p25=85, p50=129, p75=395, p90=424, p99=601, high=1000, mean=211.1),
    ),
    "code": Service(
        rate=2.57,
        prompt=LengthStats(low=3, p25=578, p50=1469, p75=2745, p90=5194, p99=7436, high=7437, mean=2047.8),
        output=LengthStats(low=6, p25=9, p50=13, p75=24, p90=55, p99=252, high=1899, mean=27.9),
    ),
}


def synthetic(num_requests: int, seed: int, kind: str = "conv") -> list[TraceRow]:
    """A generated trace: lengths as in Azure's chat ("conv") or code-completion service ("code").

    The same arguments give the same rows. With 10,000 requests the smallest length, the mean and the
    percentiles (25, 50, 75, 90, 99) are within 1 % of `PUBLISHED`, the largest within 3 %. Between the
    percentiles the shape is made up: against the real file, sorted lengths differ by 5 to 14 % of the mean.
    Also made up: a prompt and its output are drawn independently (in Azure's hour their ranks hardly
    correlate: 0.07 and -0.02), and requests arrive at random at a constant rate, where real ones come in
    bursts. ValueError for a kind that is not known.

    >>> synthetic(2, seed=0)
    [TraceRow(arrival_s=0.0, prompt_len=..., output_len=..., block_hashes=()), TraceRow(...)]
    """
    if kind not in PUBLISHED:
        raise ValueError(f"kind must be one of {', '.join(map(repr, PUBLISHED))}, got {kind!r}")
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    service, rng = PUBLISHED[kind], np.random.default_rng(seed)
    prompt_lens = _draw_lengths(service.prompt, num_requests, rng)
    output_lens = _draw_lengths(service.output, num_requests, rng)
    arrivals = np.cumsum(rng.exponential(1 / service.rate, num_requests))
    columns = ((arrivals - arrivals[0]).tolist(), prompt_lens.tolist(), output_lens.tolist())
    return [TraceRow(*row) for row in zip(*columns, strict=True)]


def _draw_lengths(stats: LengthStats, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` lengths: int64 [n].

    A length is the quantile of a number u between 0 and 1. Seven points of that curve are known; between two
    of them it runs as t^bend, t from 0 to 1, with one bend for all six pieces. A piece's mean is then
    its beginning + rise / (bend + 1), so the mean of all determines the bend.
    """
    u_at = np.array([0, 0.25, 0.5, 0.75, 0.9, 0.99, 1])
    length_at = np.array(stats[:7], dtype=float)
    share, rise = np.diff(u_at), np.diff(length_at)
    bend = share @ rise / (stats.mean - share @ length_at[:-1]) - 1
    # One u from each n-th part of the interval, shuffled: a short trace has the right percentiles too.
    u = (rng.permutation(n) + rng.random(n)) / n
    piece = np.searchsorted(u_at, u, side="right") - 1
    t = (u - u_at[piece]) / share[piece]
    return np.rint(length_at[piece] + rise[piece] * t**bend).astype(np.int64)


def load_azure(path: str | Path) -> list[TraceRow]:
    """Read an Azure LLM inference trace (CSV: TIMESTAMP,ContextTokens,GeneratedTokens).

    TraceError, with the line, for anything that is not as expected.
    """
    rows: list[TraceRow] = []
    first: np.datetime64 | None = None
    for where, line in _lines(path, AZURE_SOURCE):
        if where.endswith(", line 1"):
            if line.replace(" ", "").lstrip("\ufeff") != AZURE_COLUMNS:
                raise TraceError(f"{where}: expected the header {AZURE_COLUMNS!r}, got {line[:80]!r}")
            continue
        fields = line.split(",")
        if len(fields) != 3:
            raise TraceError(
                f"{where}: expected 3 fields ({AZURE_COLUMNS}), got {len(fields)}: {line[:60]!r}"
            )
        time = _time(fields[0], where)
        first = time if first is None else first
        arrival_s = float((time - first) / np.timedelta64(1, "s"))
        prompt_len, output_len = (
            _count(field, name, where)
            for field, name in zip(fields[1:], ("ContextTokens", "GeneratedTokens"), strict=True)
        )
        rows.append(_in_order(TraceRow(arrival_s, prompt_len, output_len), rows, where))
    return _not_empty(rows, path)


def load_mooncake(path: str | Path) -> list[TraceRow]:
    """Read a Mooncake trace (JSON lines: timestamp in ms, input_length, output_length, hash_ids).

    TraceError, with the line, for anything that is not as expected.
    """
    rows: list[TraceRow] = []
    first_ms: int | None = None
    for where, line in _lines(path, MOONCAKE_SOURCE):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise TraceError(f"{where}: expected one JSON object per line, got {line[:80]!r}") from error
        names = ("timestamp", "input_length", "output_length", "hash_ids")
        if not isinstance(entry, dict) or any(name not in entry for name in names):
            raise TraceError(f"{where}: expected an object with {', '.join(names)}, got {line[:80]!r}")
        time_ms = _count(entry["timestamp"], "timestamp", where, minimum=0)
        first_ms = time_ms if first_ms is None else first_ms
        prompt_len, output_len = (_count(entry[name], name, where) for name in names[1:3])
        hashes = _hashes(entry["hash_ids"], prompt_len, where)
        row = TraceRow((time_ms - first_ms) / 1000, prompt_len, output_len, hashes)
        rows.append(_in_order(row, rows, where))
    return _not_empty(rows, path)


# -- reading, with a name for everything that can be wrong --------------------------------------------------


def _lines(path: str | Path, source: str) -> Iterator[tuple[str, str]]:
    """("file, line 7", text) for every line that is not blank."""
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"there is no file {path}; this trace is published at {source}")
    try:
        with path.open(encoding="utf-8", newline=None) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}, line {number}", line.strip()
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: expected a text file in UTF-8 ({error})") from error


def _time(text: str, where: str) -> np.datetime64:
    """A time like "2023-11-16 18:17:03.9799600"; in the traces of 2024 followed by "+00:00"."""
    try:
        time = np.datetime64(text.removesuffix("+00:00"), "ns")
    except ValueError:
        time = None
    if time is None or np.isnat(time):
        raise TraceError(f"{where}: expected a time such as 2023-11-16 18:17:03.9799600, got {text[:40]!r}")
    return time


def _count(value: Any, name: str, where: str, minimum: int = 1) -> int:
    """A whole number of at least `minimum`, from a CSV field or a JSON value."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        expected = f"a whole number of at least {minimum} for {name}"
        raise TraceError(f"{where}: expected {expected}, got {value!r:.40}")
    return value


def _hashes(value: Any, prompt_len: int, where: str) -> tuple[int, ...]:
    expected = -(-prompt_len // MOONCAKE_BLOCK_SIZE)
    if not isinstance(value, list) or not all(type(item) is int for item in value) or len(value) != expected:
        raise TraceError(
            f"{where}: expected {expected} whole numbers in hash_ids, one per {MOONCAKE_BLOCK_SIZE} of "
            f"{prompt_len} tokens, got {value!r:.40}"
        )
    return tuple(value)


def _in_order(row: TraceRow, rows: list[TraceRow], where: str) -> TraceRow:
    if rows and row.arrival_s < rows[-1].arrival_s:
        raise TraceError(
            f"{where}: expected requests in the order of their arrival, but this one comes "
            f"{rows[-1].arrival_s - row.arrival_s:g} s before the one above it"
        )
    return row


def _not_empty(rows: list[TraceRow], path: str | Path) -> list[TraceRow]:
    if not rows:
        raise TraceError(f"{path}: expected at least one request, found none")
    return rows
