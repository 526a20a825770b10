"""The paper's figures, made again by simulation: seven experiments beside the values that were published.

A figure that you can make yourself can be questioned: with other lengths, another pool, another machine. Only
the memory differs between the systems compared here; scheduler, requests and clock are the same. Nothing is
fitted to the paper's results; each experiment says why it comes out differently. Left out: the paper's data
sets, of which the means are known and nothing else (section 6.1, Figure 11), and its larger models.
`paper_systems.py` has the systems, `paper_drawings.py` the drawing. Chapter 13 (Kwon et al., SOSP'23).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minipaged.contiguous import Account
from minipaged.measure import mean_inside, sustained_rate
from minipaged.simulation.cost_model import LLAMA_13B
from minipaged.simulation.paper_systems import SYSTEMS, Bench, Lengths, lengths_from, lengths_of
from minipaged.simulation.preemption_costs import swap_seconds
from minipaged.simulation.sharing import MEAN_LENGTHS, PAPER_SAVINGS, lengths_with_means, replay_savings
from minipaged.simulation.simulator import Served, poisson
from minipaged.simulation.traces import TraceRow

Points = dict[str | float, float]

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATES = {
    "ShareGPT": (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5),
    "Alpaca": (2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0),
}
SUSTAINED = 0.2  # seconds per token; a request rate is sustained while the normalised latency is below


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: y over x for each series, ours, and what the paper has of the same.

    kind: "bars" (beside each other), "stack", "lines", or "log" (lines over a logarithmic x). paper: values
    as printed in the paper. band: an x range that the paper names.
    """

    title: str
    kind: str
    xlabel: str
    ylabel: str
    ours: dict[str, Points]
    paper: dict[str, Points] = field(default_factory=dict)
    band: tuple[float, float] | None = None


@dataclass(frozen=True)
class PaperFigure:
    """A figure made again. notes: further numbers, as sentences."""

    number: str
    title: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)


def data_sets(num_requests: int, trace: Sequence[TraceRow] | None) -> dict[str, Lengths]:
    """The paper's two data sets, or the reader's trace alone. Alpaca's requests are short: eight times as
    many."""
    if trace is not None:
        return {"the trace": lengths_from(trace)[:num_requests]}
    return {
        name: lengths_of(name, num_requests * (8 if name == "Alpaca" else 1))
        for name in ("ShareGPT", "Alpaca")
    }


# -- the experiments -----------------------------------------------------------------------------------------


def figure_2(num_requests: int = 600, trace: Sequence[TraceRow] | None = None) -> PaperFigure:
    """Where the memory for K and V goes, in four systems.

    The requests are all there from the start, and the shares are means over the time in which requests
    wait. What differs from the paper: the lengths are made up (two means are known). What the buddy system
    rounds up is internal here and external in the paper, so only the share that holds tokens is comparable.
    What is free in vLLM's pool is too little for the request at the head of the queue.
    """
    name, lengths = next(iter(data_sets(num_requests, trace).items()))
    shares = {system: Bench().full_queue(system, lengths).shares for system in SYSTEMS}
    ours: dict[str, Points] = {
        kind: {system: 100 * shares[system][kind] for system in SYSTEMS} for kind in Account._fields
    }
    paper: Points = dict(zip(SYSTEMS, (20.4, 26.8, 38.2, 96.3), strict=True))
    held = 100 * shares["vLLM"]["used"] / (shares["vLLM"]["used"] + shares["vLLM"]["internal"])
    panel = Panel(
        f"{name}, a full queue", "stack", "", "slots, %", ours, {"used": paper} if trace is None else {}
    )
    notes = [f"Of the blocks that vLLM's requests hold, {held:.1f} % of the slots have a token."]
    return PaperFigure("2", "Where the memory for K and V goes", [panel], notes)


def figure_13(num_requests: int = 600, trace: Sequence[TraceRow] | None = None) -> PaperFigure:
    """How many requests are served at once: ShareGPT at 2 requests a second, Alpaca at 30.

    With a full queue memory alone decides, and the three traditional ways come within some per cent of the
    paper's. vLLM's number on Alpaca doesn't: the paper has 132 at once where there is room for more than 190,
    so its requests did not come fast enough to fill the memory. Here admission looks at the prompt alone, so
    the pool is filled to the brim and many give way again later. At the paper's rates none waits here in
    the better systems: an A100 at 80 % of its peaks, with one launch cost and no Python between the steps, is
    faster than the paper's engine was, so requests leave sooner, and fewer are there at once.
    """
    paper = {"ShareGPT": (2.0, (7.00, 9.81, 13.62, 30.42)), "Alpaca": (30.0, (7.00, 43.24, 72.75, 132.44))}
    panels = []
    for name, lengths in data_sets(num_requests, trace).items():
        rate, printed = paper.get(name, (2.0, ()))
        ours: dict[str, Points] = {"a full queue": {}, "arriving": {}}
        for system in SYSTEMS:
            full = Bench().full_queue(system, lengths)
            arriving = Bench().run(system, poisson(lengths, rate))
            assert full.num_running is not None  # or full_queue had refused
            ours["a full queue"][system] = full.num_running
            ours["arriving"][system] = arriving.num_running or _mean_inside(arriving.served)
        marks: dict[str, Points] = (
            {"a full queue": dict(zip(SYSTEMS, printed, strict=True))} if printed else {}
        )
        title = f"{name}, arriving at {rate:g} requests/s"
        panels.append(Panel(title, "bars", "", "requests at once", ours, marks))
    return PaperFigure("13", "Requests served at once", panels)


def _mean_inside(served: Served) -> float:
    """Requests in the system on average, where none had to wait for memory."""
    ends = [times[-1] for times in served.token_times]
    return mean_inside(zip(served.arrivals, ends, strict=True))


def figure_12(num_requests: int = 1200, trace: Sequence[TraceRow] | None = None) -> PaperFigure:
    """Normalised latency against the request rate, OPT-13B on one A100-40GB.

    The paper prints no values here but ratios, over its three models: on ShareGPT vLLM sustains 1.7 to 2.7
    times the rate of Orca (Oracle) and 2.7 to 8 times that of Orca (Max). "Sustained" is not defined there;
    here it is a latency below 0.2 s a token. The paper's traces run for an hour. All runs of a panel here
    take the same time, num_requests at the highest rate: some minutes, in which a queue grows less than in an
    hour. So the curves bend more softly, and a rate that is a little too high passes as sustained.
    """
    panels, notes = [], []
    for name, lengths in data_sets(num_requests, trace).items():
        rates = RATES.get(name, RATES["ShareGPT"])
        ours: dict[str, Points] = {system: {} for system in SYSTEMS}
        for rate in rates:
            rows = poisson(lengths[: max(20, round(len(lengths) * rate / rates[-1]))], rate)
            for system in SYSTEMS:
                ours[system][rate] = Bench().run(system, rows).served.normalised_latency()
        panels.append(Panel(name, "lines", "requests/s", "normalised latency, s/token", ours))
        notes.append(f"{name}, requests/s sustained: {_sustained(ours)}.")
    notes.append("Paper, ShareGPT: vLLM sustains 1.7 to 2.7 x Orca (Oracle), 2.7 to 8 x Orca (Max).")
    return PaperFigure("12", "Latency against request rate", panels, notes)


def _sustained(curves: dict[str, Points]) -> str:
    """Every system's rate, and how many times as much vLLM's is where both are known."""
    rates = {
        system: sustained_rate({float(rate): latency for rate, latency in curve.items()}, SUSTAINED)
        for system, curve in curves.items()
    }
    most, parts = rates["vLLM"], []
    for system, rate in rates.items():
        if rate is None:
            parts.append(f"{system} not between the rates tried")
        elif most is None or system == "vLLM":
            parts.append(f"{system} {rate:.2f}")
        else:
            parts.append(f"{system} {rate:.2f} (vLLM {most / rate:.2f} x)")
    return ", ".join(parts)


def figure_15(num_requests: int = 40, trace: Sequence[TraceRow] | None = None) -> PaperFigure:
    """Blocks saved by sharing: parallel sampling and beam search.

    The paper has traces of real conversations; here are lengths with the same means. Beams come from a random
    model, in which every beam draws its continuations alike, and share more than the paper's. Chapter 06
    takes this apart.
    """
    if trace is not None:
        raise ValueError("figure 15 knows the paper's two data sets only")
    savings, panels = replay_savings(num_requests), []
    for kind in ("samples", "beams"):
        ours: dict[str, Points] = {
            name: {str(n): 100 * share for n, share in savings[name, kind].items()} for name in MEAN_LENGTHS
        }
        paper: dict[str, Points] = {
            name: dict(zip(("2", "6"), PAPER_SAVINGS[name, kind], strict=True)) for name in MEAN_LENGTHS
        }
        panels.append(Panel(kind, "bars", f"{kind} of a prompt", "blocks saved, %", ours, paper))
    return PaperFigure("15", "Blocks saved by sharing", panels)


PREFIXES = {"1-shot": (80, 1.67), "5-shot": (341, 3.58)}  # tokens of the shared prefix; the paper's speed-up
TRANSLATION = (30, 40)  # mean tokens of a sentence and its translation: assumed, the paper has none


def figure_16(num_requests: int = 600, trace: Sequence[TraceRow] | None = None) -> PaperFigure:
    """Requests that begin alike: translation with one and with five examples in front, LLaMA-13B.

    vLLM keeps the prefix once; Orca (Oracle) keeps and computes it for every request. The ratio is that of
    the throughputs with a full queue; the paper compares sustained rates. The lengths of the sentences are
    assumed, and the ratio depends on them. Prefill is free of charge to vLLM here but for the sentence
    itself, since all the requests come while the prefix is in use.
    """
    if trace is not None:
        raise ValueError("figure 16 needs a shared prefix, which a trace of lengths doesn't have")
    sentences = lengths_with_means(TRANSLATION, num_requests)
    panels, speed_ups = (
        [],
        Panel(
            "throughput, vLLM / Orca (Oracle)",
            "bars",
            "",
            "times",
            {"a full queue": {}},
            {"a full queue": {}},
        ),
    )
    for name, (prefix_len, printed) in PREFIXES.items():
        lengths = [(prefix_len + prompt, output) for prompt, output in sentences]

        def prompt(row: TraceRow, number: int, prefix_len: int = prefix_len) -> list[int]:
            return [0] * prefix_len + [-1 - number] * (row.prompt_len - prefix_len)

        benches = {"Orca (Oracle)": Bench(LLAMA_13B), "vLLM": Bench(LLAMA_13B, enable_prefix_caching=True)}
        full = {
            system: bench.run(system, [TraceRow(0.0, *both) for both in lengths], prompt).served
            for system, bench in benches.items()
        }
        most = len(lengths) / full["vLLM"].seconds
        curves: dict[str, Points] = {system: {} for system in benches}
        for rate in (most * share for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)):
            for system, bench in benches.items():
                served = bench.run(system, poisson(lengths, rate), prompt).served
                curves[system][round(rate, 2)] = served.normalised_latency()
        title = f"{name}, a prefix of {prefix_len} tokens"
        panels.append(Panel(title, "lines", "requests/s", "normalised latency, s/token", curves))
        speed_ups.ours["a full queue"][name] = full["Orca (Oracle)"].seconds / full["vLLM"].seconds
        speed_ups.paper["a full queue"][name] = printed
    return PaperFigure("16", "A shared prefix", [*panels, speed_ups])


def figure_18b(num_requests: int = 600, trace: Sequence[TraceRow] | None = None) -> PaperFigure:
    """Latency against the block size, at 1.2 times the rate at which blocks of 16 serve a full queue.

    Large blocks waste memory: half a block per request is lost. Small ones cost time: a warp reads one block
    of one head, and waits about a microsecond for it however short it is. How many warps are on their way at
    once bounds how many blocks can be read, and with one token per block that bound lies below the memory's
    bandwidth. The paper finds 16 to 128 best for ShareGPT, 16 and 32 for Alpaca (the band). Its kernel
    suffers more from small blocks than the formula says, since it also gives a block's threads too little to
    do; and it doesn't print the rates.
    """
    bands = {"ShareGPT": (16.0, 128.0), "Alpaca": (16.0, 32.0)}
    panels = []
    for name, lengths in data_sets(num_requests, trace).items():
        rate = 1.2 * len(lengths) / Bench().full_queue("vLLM", lengths).served.seconds
        rows = poisson(lengths, rate)
        ours: dict[str, Points] = {"normalised latency": {}}
        for block_size in BLOCK_SIZES:
            served = Bench(block_size=block_size).run("vLLM", rows).served
            ours["normalised latency"][block_size] = served.normalised_latency()
        title = f"{name}, {rate:.2f} requests/s"
        panels.append(
            Panel(title, "log", "block size", "normalised latency, s/token", ours, band=bands.get(name))
        )
    return PaperFigure("18b", "Block size", panels)


def figure_19(num_requests: int = 600, trace: Sequence[TraceRow] | None = None) -> PaperFigure:
    """Swap or recompute, by block size: what one preemption of 256 tokens costs, and whole runs at 1.2 times
    the rate at which blocks of 16 serve a full queue to its end.

    As in the paper, swapping small blocks is slow, since every copy has to be started, K and V of every layer
    by itself; and recomputing doesn't care. The paper finds both alike for blocks of 16 to 64 (the band). The
    number of tokens is not printed there. Priced alone, as on the left, recomputing 256 tokens is bound by
    reading the weights; in a run a step reads them anyway, so on the right it comes out cheaper.
    """
    num_tokens = 256
    cost = Bench().cost
    one: dict[str, Points] = {"recompute": {}, "swap out and in": {}}
    for block_size in BLOCK_SIZES:
        pairs = num_tokens * (num_tokens + 1) // 2
        again = cost.price(num_tokens, pairs, num_tokens, -(-num_tokens // block_size))
        pieces = 2 * cost.model.num_layers * cost.device.link_s
        swap = swap_seconds(num_tokens, block_size, cost.model.kv_bytes, cost.device.link_bytes_per_s, pieces)
        one["recompute"][block_size], one["swap out and in"][block_size] = 1000 * again.seconds, 1000 * swap
    panels = [
        Panel(f"one preemption of {num_tokens} tokens", "log", "block size", "ms", one, band=(16.0, 64.0))
    ]
    name, lengths = next(iter(data_sets(num_requests, trace).items()))
    rate = 1.2 * len(lengths) / Bench().full_queue("vLLM", lengths).served.seconds
    runs: dict[str, Points] = {"recompute": {}, "swap": {}}
    num_preempted = []
    for mode, block_size in ((mode, block_size) for mode in runs for block_size in BLOCK_SIZES):
        served = Bench(block_size=block_size, preemption_mode=mode).run("vLLM", poisson(lengths, rate)).served
        runs[mode][block_size] = served.normalised_latency()
        num_preempted.append(served.num_preempted)
    title = f"{name}, {rate:.2f} requests/s"
    panels.append(Panel(title, "log", "block size", "normalised latency, s/token", runs, band=(16.0, 64.0)))
    notes = [f"{min(num_preempted)} to {max(num_preempted)} preemptions in a run of {len(lengths)} requests."]
    return PaperFigure("19", "Swap or recompute", panels, notes)


FIGURES: dict[str, Callable[..., PaperFigure]] = {
    "2": figure_2,
    "12": figure_12,
    "13": figure_13,
    "15": figure_15,
    "16": figure_16,
    "18b": figure_18b,
    "19": figure_19,
}
