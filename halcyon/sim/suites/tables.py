"""Results as rows of text, for people. The JSON holds more digits and more columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from halcyon.sim.suites import batching, fairness, scale
from halcyon.sim.suites.generation import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one scenario, a cell a column; the most important columns come first, for narrow terminals."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def batching_table(scenario: batching.Scenario) -> Table:
    """The strategies at one rate. Latencies in ms; the quartiles are of sizes, smallest first."""
    title = (
        f"{scenario.rate_per_s:g} requests/s offered ({scenario.requests} in all); "
        f"bound {scenario.bound_goodput_per_s:.1f}/s, with deadlines {scenario.fluid_goodput_per_s:.1f}/s"
    )
    columns = ("strategy", "goodput/s", "of bound", "urgent", "relaxed", "by size", "shed", "batch", "busy", "p50 ms", "p95 ms", "p99 ms")
    rows = tuple(
        (
            name,
            f"{o.goodput_per_s:.1f}",
            f"{o.bound_share:.1%}",
            f"{o.slo_urgent:.1%}",
            f"{o.slo_relaxed:.1%}",
            "/".join(f"{share:.0%}".removesuffix("%") for share in o.slo_by_size_quartile) + "%",
            str(o.shed),
            f"{o.mean_batch:.1f}",
            f"{o.utilisation:.0%}",
            f"{o.p50_ms:.0f}",
            f"{o.p95_ms:.0f}",
            f"{o.p99_ms:.0f}",
        )
        for name, o in scenario.strategies.items()
    )
    return Table(title=title, columns=columns, rows=rows)


def serving_table(title: str, keys: tuple[str, ...], found: Mapping[tuple[str, ...], Serving]) -> Table:
    """Generations under several schedulers; `keys` names what each row is found by. Times in ms."""
    columns = (*keys, "goodput", "ttft p99", "tpot p99", "useful", "tokens/s", "worst gap", "wait p50", "ttft p50", "tpot p50", "given up")
    rows = tuple(
        (
            *key,
            f"{s.goodput:.1%}",
            f"{s.ttft_p99_ms:.0f}",
            f"{s.tpot_p99_ms:.1f}",
            f"{s.useful_fraction:.0%}",
            f"{s.tokens_per_s:.0f}",
            f"{s.worst_gap_ms:.0f}",
            f"{s.queue_wait_p50_ms:.0f}",
            f"{s.ttft_p50_ms:.0f}",
            f"{s.tpot_p50_ms:.1f}",
            str(s.given_up),
        )
        for key, s in found.items()
    )
    return Table(title=title, columns=columns, rows=rows)


def waits_table(result: fairness.Result) -> Table:
    """Queue waits by order and class."""
    rows = tuple(
        (order, kind, str(w.requests), f"{w.median_ms:.0f}", f"{w.p95_ms:.0f}", f"{w.longest_ms:.0f}")
        for order, kinds in result.orders.items()
        for kind, w in kinds.items()
    )
    title = f"Queue wait at {result.rate_per_s:.1f}/s, {fairness.MAX_BATCH} slots"
    return Table(title=title, columns=("order", "class", "requests", "median ms", "p95 ms", "longest ms"), rows=rows)


def scale_table(result: scale.Result) -> Table:
    """What a decision costs."""
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
    columns = ("depth", "replicas", "median µs", "p99 µs", "arrival median", "completion median")
    return Table(title="One decision", columns=columns, rows=rows)
