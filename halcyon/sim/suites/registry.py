"""The suites of the bench by name, and what each of them shows.

A suite is a pure function of its options: it returns a frozen dataclass (the JSON), rows for a table and one line of summary. It prints
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halcyon.sim.suites import batching, chunking, fairness, scale, serving, traces
from halcyon.sim.suites.generation import Serving

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for. The fields of the world are `None` where it leaves them to the suite."""

    seed: int
    quick: bool = False
    overhead_ms: float | None = None
    per_token_ms: float | None = None
    jitter: float | None = None
    drift: float | None = None
    rates_per_s: tuple[float, ...] | None = None
    urgent_share: float | None = None
    max_batch: int | None = None
    traces: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one scenario, as shown to people."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a suite gives back: `result` is a dataclass that becomes the JSON."""

    result: Any
    tables: tuple[Table, ...]
    summary: str


def run_batching(options: Options, progress: Progress) -> Report:
    """Deadline batching against the known rule and fixed batches."""
    chosen = {name: getattr(options, name) for name in batching.World.__dataclass_fields__ if getattr(options, name, None) is not None}
    world = batching.World(**chosen, horizon_s=batching.QUICK_HORIZON_S if options.quick else batching.HORIZON_S)
    result = batching.run(options.seed, world, progress=progress)
    return Report(
        result=result, tables=tuple(_batching_table(scenario) for scenario in result.scenarios), summary=_batching_summary(result)
    )


def _batching_table(scenario: batching.Scenario) -> Table:
    title = (
        f"{scenario.rate_per_s:g} requests/s offered ({scenario.requests} in all); "
        f"bound {scenario.bound_goodput_per_s:.1f}/s, with deadlines {scenario.fluid_goodput_per_s:.1f}/s"
    )
    columns = ("strategy", "goodput/s", "of bound", "p50", "p95", "p99", "urgent", "relaxed", "by size quartile", "busy", "batch", "shed")
    rows = tuple(
        (
            name,
            f"{o.goodput_per_s:.1f}",
            f"{o.bound_share:.1%}",
            f"{o.p50_ms:.0f}",
            f"{o.p95_ms:.0f}",
            f"{o.p99_ms:.0f}",
            f"{o.slo_urgent:.1%}",
            f"{o.slo_relaxed:.1%}",
            " ".join(f"{share:.0%}" for share in o.slo_by_size_quartile),
            f"{o.utilisation:.0%}",
            f"{o.mean_batch:.1f}",
            str(o.shed),
        )
        for name, o in scenario.strategies.items()
    )
    return Table(title=title, columns=columns, rows=rows)


def _batching_summary(result: batching.Result) -> str:
    kept = [(s.strategies["halcyon"].goodput_per_s, s.bound_goodput_per_s, s.rate_per_s) for s in result.scenarios]
    return "batching: halcyon kept " + ", ".join(f"{good:.1f}/s of {bound:.1f} at {rate:g}/s" for good, bound, rate in kept)


def run_scale(options: Options, progress: Progress) -> Report:
    """Real time of decisions."""
    result = scale.run(options.seed, quick=options.quick, progress=progress)
    columns = ("depth", "replicas", "median µs", "p99 µs", "arrival median", "completion median")
    rows = tuple(
        (
            str(p.depth),
            str(p.replicas),
            f"{p.all.median_us:.1f}",
            f"{p.all.p99_us:.1f}",
            f"{p.arrival.median_us:.1f}",
            f"{p.completion.median_us:.1f}",
        )
        for p in result.points
    )
    reference = next(p for p in result.points if (p.depth, p.replicas) == (scale.REFERENCE_DEPTH, scale.REFERENCE_REPLICAS))
    summary = f"scale: {reference.all.median_us:.1f} µs a decision in the median, {reference.all.p99_us:.0f} µs in the 99th percentile"
    return Report(result=result, tables=(Table(title="One decision", columns=columns, rows=rows),), summary=summary)


def run_serving(options: Options, progress: Progress) -> Report:
    """Static against continuous batching."""
    result = serving.run(options.seed, quick=options.quick, progress=progress)
    tables = tuple(
        _serving_table(f"{s.requests} requests at {s.load:g} of {result.capacity_per_s:.1f}/s, seed {s.seed}", "scheduler", s.schedulers)
        for s in result.scenarios
    )
    busiest = [s for s in result.scenarios if s.load == max(serving.LOADS)]
    least = min(s.schedulers["continuous_deadline"].goodput for s in busiest)
    most = max(s.schedulers[f"static_{size}"].goodput for s in busiest for size in serving.STATIC_SIZES)
    summary = f"serving: at {max(serving.LOADS):g} of capacity continuous keeps at least {least:.1%}, static at most {most:.1%}"
    return Report(result=result, tables=tables, summary=summary)


def run_chunking(options: Options, progress: Progress) -> Report:
    """Prefill budgets."""
    result = chunking.run(options.seed, quick=options.quick, progress=progress)
    table = _serving_table(f"one prompt in ten has 700 tokens, {result.rate_per_s:.1f}/s", "budget", result.budgets)
    gaps = result.budgets
    summary = f"chunking: worst gap {gaps['none'].worst_gap_ms:.0f} ms without a budget, {gaps['128'].worst_gap_ms:.0f} ms with 128 tokens"
    return Report(result=result, tables=(table,), summary=summary)


def run_fairness(options: Options, progress: Progress) -> Report:
    """Who waits for whom."""
    result = fairness.run(options.seed, quick=options.quick, progress=progress)
    columns = ("order", "class", "requests", "median ms", "p95 ms", "longest ms")
    rows = tuple(
        (order, kind, str(w.requests), f"{w.median_ms:.0f}", f"{w.p95_ms:.0f}", f"{w.longest_ms:.0f}")
        for order, kinds in result.orders.items()
        for kind, w in kinds.items()
    )
    fcfs, aged = result.orders["fcfs"], result.orders["shortest_prompt_aged"]
    short = aged["short"].median_ms / max(1e-9, fcfs["short"].median_ms)
    longest = aged["long"].longest_ms / max(1e-9, fcfs["long"].longest_ms)
    summary = f"fairness: with ageing short prompts wait {short:.0%} of fcfs's median, the longest wait of a long one is {longest:.0%}"
    return Report(result=result, tables=(Table(title="Queue wait", columns=columns, rows=rows),), summary=summary)


def run_traces(options: Options, progress: Progress) -> Report:
    """Recorded traffic."""
    if options.traces is None:
        raise ValueError("the traces suite needs --traces DIR with the recorded traces")
    result = traces.run(options.seed, options.traces, quick=options.quick, progress=progress)
    tables = tuple(
        _serving_table(f"{s.trace} at {s.load:g} of capacity ({s.rate_per_s:.1f}/s)", "order", s.orders) for s in result.scenarios
    )
    kept = ", ".join(f"{s.trace} at {s.load:g}: {s.orders['deadline'].goodput:.1%}" for s in result.scenarios)
    return Report(result=result, tables=tables, summary=f"traces: deadline keeps {kept}")


def _serving_table(title: str, first: str, found: dict[str, Serving]) -> Table:
    columns = (first, "goodput", "tokens/s", "ttft p50", "ttft p99", "tpot p50", "tpot p99", "worst gap", "wait p50", "useful", "given up")
    rows = tuple(
        (
            name,
            f"{s.goodput:.1%}",
            f"{s.tokens_per_s:.0f}",
            f"{s.ttft_p50_ms:.0f}",
            f"{s.ttft_p99_ms:.0f}",
            f"{s.tpot_p50_ms:.1f}",
            f"{s.tpot_p99_ms:.1f}",
            f"{s.worst_gap_ms:.0f}",
            f"{s.queue_wait_p50_ms:.0f}",
            f"{s.useful_fraction:.0%}",
            str(s.given_up),
        )
        for name, s in found.items()
    )
    return Table(title=title, columns=columns, rows=rows)


SUITES: dict[str, Callable[[Options, Progress], Report]] = {
    "batching": run_batching,
    "serving": run_serving,
    "chunking": run_chunking,
    "fairness": run_fairness,
    "traces": run_traces,
    "scale": run_scale,
}
"""All that can be named."""

DEFAULT_SUITES = ("batching", "serving", "chunking", "fairness")
"""What runs without a name, in this order: everything that is a function of the seed alone and needs no file."""
