"""Makes docs/results/README.md, the page of results, from the JSON files beside it.

    python tools/results.py            writes the page
    python tools/results.py --check    fails if the page is out of date
    python tools/results.py --run      runs the commands of `RUNS` first, each into its file
    python tools/results.py --run paper-2 soak

Every file was written by `minipaged bench … --json FILE`, and says by which command, on which machine and
when. A picture of the same name (`--png`) is shown above its numbers. The numbers are not judged.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minipaged.simulation.paper import FIGURES

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"
INTRODUCTION = """# Results

Each section is one run of one command, made from the JSON file that it wrote. Times of simulated machines are
computed from their data sheets and never measured; where the paper has a value it stands beside ours.

"Serving" is 16 requests, all there at once: prompts of 26 to 251 tokens of real text, 25 to 124 tokens out,
greedy, without a prefix cache. Each engine has a process of its own, and they take turns round by round, on
the same weights and threads. tokens/s are useful output tokens; the ratio is the median of the rounds' ratios
(above 1: minipaged is faster), with what they allow to claim. A long gap between two tokens is another
request's prompt. vLLM's default is its compiled mode, the row "vllm-compiled"; "vllm" is its eager mode.
"""
# The name of a file → the command that writes it. {traces}: the folder $MINIPAGED_TRACES, with Azure's trace.
CHATS = "{traces}/AzureLLMInferenceTrace_conv.csv"
RUNS = {
    **{
        f"paper-{number}": f"paper --figure {number}" for number in ("2", "12", "13", "15", "16", "18b", "19")
    },
    **{
        f"serve-{dtype}": f"serve --dtype {dtype} --rounds 6 --engine-cost --vs hf,vllm"
        for dtype in ("float32", "bfloat16")
    },
    "replay-azure-conv": f"replay --trace {CHATS}",
    "memory-sharegpt": "memory",
    "memory-azure-conv": f"memory --trace {CHATS}",
    "prefix": "prefix",
    "kernels": "kernels",
    "calibrate": "calibrate",
    "scaling": "scaling",
    "soak": "soak",
}
WITH_PICTURE = ("paper", "scaling")
Report = dict[str, Any]
Row = list[str]


def page(folder: Path) -> str:
    """The whole page, a section for each file, in the order of their names."""
    sections = [section(file) for file in sorted(folder.glob("*.json"))]
    return "\n".join([INTRODUCTION, *sections])


def section(file: Path) -> str:
    """Heading, picture, tables, then where the numbers come from."""
    report = json.loads(file.read_text(encoding="utf-8"))
    kind = report.get("kind", "serve")
    title, tables = KINDS[kind]
    machine = report["machine"]
    threads = report["options"].get("threads")
    where = [machine["cpu"], f"{machine['cores']} cores", *([f"{threads} threads"] if threads else [])]
    lines = [f"## {title(report)}", ""]
    picture = file.with_suffix(".png")
    if picture.exists():
        lines += [f"![{title(report)}; the numbers are in the tables below.]({picture.name})", ""]
    lines += [*tables(report), f"    {report['command']}", ""]
    lines += [
        f"{machine['date'][:10]}, {', '.join(where)}, torch {machine['torch']}. [{file.name}]({file.name})"
    ]
    return "\n".join([*lines, ""])


def table(head: Row, rows: list[Row]) -> Iterator[str]:
    """A Markdown table, and an empty line."""
    for row in [head, ["---"] + ["---:"] * (len(head) - 1), *rows]:
        yield f"| {' | '.join(row)} |"
    yield ""


def number(value: float | None, digits: int = 3) -> str:
    """Example: 1234567.8 → "1,234,568", 0.012345 → "0.0123", None → "–"."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or isinstance(value, int) else f"{value:.{digits}g}"


# -- one function for each kind of report --------------------------------------------------------------------


def serve(report: Report) -> Iterator[str]:
    rows = []
    for name, row in report["engines"].items():
        speed, ratio = row["tokens_per_second"], row["minipaged_ratio"]
        same = f"{row['identical_requests']} of {report['options']['requests']}"
        faster = "" if name == "minipaged" else f"{ratio['median']:.2f} × ({ratio.get('verdict', '–')})"
        # A report of before 2026-11-30 has no waits and no verdict.
        waits = [
            ", ".join(number(seconds and scale * seconds) for seconds in row.get(key, {}).values())
            for key, scale in (("first_token", 1), ("between_tokens", 1000))
        ]
        memory = [number(row[key] and row[key] / 1e6) for key in ("kv_used_bytes", "peak_rss_bytes")]
        rows.append(
            [
                f"{name} ({row['version']})",
                number(speed["best"]),
                number(speed["median"]),
                faster,
                *waits,
                *memory,
                same,
            ]
        )
    head = [
        "engine",
        "tokens/s, best",
        "median",
        "minipaged is (at 95 %)",
        "first token, s: median, 99 %",
        "between tokens, ms: median, 99 %",
        "K/V used, MB",
        "peak RSS, MB",
        "same tokens",
    ]
    yield from table(head, rows)


def paper(report: Report) -> Iterator[str]:
    for panel in report["panels"]:
        yield f"**{panel['title']}**" + (f", {panel['ylabel']}" if panel["ylabel"] else "")
        yield ""
        columns: list[tuple[str, dict[str, float]]] = []
        for name, points in panel["ours"].items():
            columns.append((name, points))
            if name in panel["paper"]:
                columns.append(("the paper", panel["paper"][name]))
        xs = dict.fromkeys(x for _, points in columns for x in points)
        rows = [[x, *(number(points[x]) if x in points else "" for _, points in columns)] for x in xs]
        yield from table([panel["xlabel"], *(name for name, _ in columns)], rows)
    for text in [*report["notes"], inspect.getdoc(FIGURES[report["number"]])]:
        yield text or ""
        yield ""


def replay(report: Report) -> Iterator[str]:
    options = report["options"]
    yield (
        f"{report['requests']:,} requests ({options['trace'] or 'generated'}): "
        f"{report['prompt_tokens']:,} tokens in, {report['output_tokens']:,} out. "
        f"Simulated: {report['model']['name']} on {report['device']['name']}, "
        f"{report['num_blocks']:,} blocks of {options['block_size']}."
    )
    yield ""
    first, between = report["first_token"], report["between_tokens"]
    rows = [
        ["virtual time, s", number(report["virtual_seconds"])],
        ["steps", number(report["steps"])],
        ["preemptions", number(report["preemptions"])],
        ["output tokens per second", number(report["output_tokens_per_second"])],
        ["normalised latency, s/token", number(report["normalised_latency"])],
        ["time to first token, s: median, 99 %", f"{number(first['p50'])}, {number(first['p99'])}"],
        ["between tokens, s: median, 99 %", f"{number(between['p50'])}, {number(between['p99'])}"],
        ["CPU seconds of the simulation, measured", number(report["cpu_seconds"])],
        ["its peak memory, MB", number(report["peak_rss_bytes"] and report["peak_rss_bytes"] / 1e6)],
    ]
    yield from table(["", ""], rows)


def memory(report: Report) -> Iterator[str]:
    rows = [
        [name, number(row["requests_at_once"]), f"{row['used']:.1%}", f"{row['wasted']:.1%}"]
        for name, row in report["systems"].items()
    ]
    yield from table([f"{report['slots']:,} slots", "requests at once", "slots with a token", "wasted"], rows)
    waste = report["tail_waste"]
    yield from table(
        ["block size", *waste], [["empty in last blocks", *(f"{share:.2%}" for share in waste.values())]]
    )


def prefix(report: Report) -> Iterator[str]:
    chats = report["chats"]
    rows = [
        [
            f"first token behind {report['options']['system_prompt']} tokens, cached / cold",
            f"{report['first_token_ratio']:.3f}",
        ],
        ["chats, cache on / off", f"{report['chats_ratio']:.3f}"],
        [
            "first token of the last turn, on / off",
            f"{chats['on']['first_token'][-1] / chats['off']['first_token'][-1]:.3f}",
        ],
    ]
    yield from table(["times", ""], rows)


def scaling(report: Report) -> Iterator[str]:
    rows = []
    for name, curve in report["step_seconds"].items():
        points = ", ".join(f"{int(size):,}: {1e6 * seconds:,.0f}" for size, seconds in curve.items())
        rows.append([name, points, f"{report['slopes'][name]:.2f}"])
    yield from table(["a step's cost against", "µs of CPU, by size", "slope"], rows)
    rows = [[name.replace("_", " "), number(value)] for name, value in report["allocator"].items()]
    yield from table(["the allocator", "operations per second"], rows)


def kernels(report: Report) -> Iterator[str]:
    rows = []
    for row in report["rows"]:
        heads = f"{row['num_heads']}/{row['num_kv_heads']} heads of {row['head_dim']}"
        sizes = f"batch {row['batch']}, context {row['context_len']}, {heads}, blocks of {row['block_size']}"
        what = "prefill" if row["query_len"] > 1 else "decode"
        rows.append(
            [
                f"{what}, {sizes}",
                row["way"],
                number(1e6 * row["paged_seconds"]),
                number(row["bytes_per_second"] / 1e9),
                f"{row['ratio']:.2f}",
            ]
        )
    yield from table(["attention", "way", "µs", "GB/s", "as fast as contiguous SDPA"], rows)


def soak(report: Report) -> Iterator[str]:
    modes = report["modes"]
    names = dict.fromkeys(name for counts in modes.values() for name in counts)
    rows = [
        [name.replace("_", " "), *(number(counts.get(name, 0)) for counts in modes.values())]
        for name in names
    ]
    yield from table(["", *modes], rows)
    sizes = ", ".join(number(size and size / 1e6, 4) for size in report["rss_by_tenth"])
    objects = ", ".join(f"{count:,}" for count in report["objects_by_tenth"])
    yield f"MB after each tenth: {sizes}. Python objects: {objects}. {report['cpu_seconds']:,.0f} s of CPU."
    yield ""


def calibrate(report: Report) -> Iterator[str]:
    device = report["device"]
    rows = [
        ["reads memory, GB/s", number(device["memory_bytes_per_s"] / 1e9)],
        ["multiplies, GFLOP/s", number(device["flops_per_s"] / 1e9)],
        ["starts an operator, µs", number(device["kernel_s"] * 1e6)],
        ["copies, GB/s", number(device["link_bytes_per_s"] / 1e9)],
    ]
    yield from table(["", ""], rows)


KINDS: dict[str, tuple[Callable[[Report], str], Callable[[Report], Iterator[str]]]] = {
    "calibrate": (lambda report: "This machine's constants", calibrate),
    "kernels": (lambda report: f"Attention through block tables, {report['options']['dtype']}", kernels),
    "memory": (lambda report: f"The same memory, {report['options']['trace'] or 'ShareGPT means'}", memory),
    "paper": (lambda report: f"The paper's Figure {report['number']}: {report['title']}", paper),
    "prefix": (lambda report: "What the prefix cache saves", prefix),
    "replay": (lambda report: f"Replay, {report['options']['trace'] or 'generated requests'}", replay),
    "scaling": (lambda report: "What a step costs as things grow", scaling),
    "serve": (lambda report: f"Serving, {report['options']['dtype']}", serve),
    "soak": (lambda report: f"{report['options']['requests']:,} requests of random life", soak),
}


def run(names: list[str]) -> None:
    """Run commands of `RUNS`, all of them if none is named, one after the other."""
    if unknown := set(names) - RUNS.keys():
        sys.exit(f"there is no run {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    for name in names or RUNS:
        arguments = RUNS[name].format(traces=os.environ.get("MINIPAGED_TRACES", ".")).split()
        picture = ["--png", f"{name}.png"] if arguments[0] in WITH_PICTURE else []
        command = [sys.executable, "-m", "minipaged", "bench", *arguments, "--json", f"{name}.json", *picture]
        subprocess.run(command, cwd=FOLDER, check=True)


def main() -> None:
    if "--run" in sys.argv[1:]:
        run([argument for argument in sys.argv[1:] if argument != "--run"])
    target, text = FOLDER / "README.md", page(FOLDER)
    if "--check" not in sys.argv[1:]:
        target.write_text(text, encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != text:
        sys.exit(f"{target.relative_to(FOLDER.parent.parent)} is out of date: run python tools/results.py")


if __name__ == "__main__":
    main()
