"""The suites of the bench by name, and what each of them shows.

A suite is a pure function of its options: it returns a frozen dataclass (the JSON), rows for a table and one line of summary. It prints
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from halcyon.sim.suites import batching, scale

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


SUITES: dict[str, Callable[[Options, Progress], Report]] = {"batching": run_batching, "scale": run_scale}
"""All that can be named."""

DEFAULT_SUITES = tuple(name for name in SUITES if name != "scale")
"""What runs without a name, in this order: everything that is a function of the seed alone."""
