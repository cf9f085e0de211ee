"""The suites of the bench by name.

A suite is a function of its options alone (but for `scale`, which reads the clock): it returns a frozen dataclass (the JSON), rows for
tables and one line of summary. It prints nothing; `bench` and the command decide how it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halcyon.errors import ConfigError
from halcyon.sim.suites import batching, chunking, fairness, scale, serving, traces
from halcyon.sim.suites.generation import Serving
from halcyon.sim.suites.steps import Progress
from halcyon.sim.suites.tables import Table, batching_table, scale_table, serving_table, waits_table

WORLD_OPTIONS = ("overhead_ms", "per_token_ms", "jitter", "drift", "rates_per_s", "urgent_share", "max_batch")
"""Fields of `Options` that change the world of `batching`, and of no other suite."""


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

    def world(self) -> batching.World:
        """The world of `batching`. Raises ConfigError where it cannot be."""
        chosen = {name: getattr(self, name) for name in WORLD_OPTIONS if getattr(self, name) is not None}
        return batching.World(**chosen, horizon_s=batching.QUICK_HORIZON_S if self.quick else batching.HORIZON_S)

    def recordings(self) -> dict[str, Path]:
        """The recorded traces by name. Raises ConfigError where there are none."""
        found = traces.recordings(self.traces) if self.traces is not None else {}
        if not found:
            wanted = ", ".join(f"{name}.csv.gz" for name in traces.FILES)
            where = "needs --traces DIR" if self.traces is None else f"finds nothing in {self.traces}: name a directory"
            raise ConfigError([f"The suite `traces` {where} with at least one of {wanted}."])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a suite gives back: `result` is a dataclass that becomes the JSON."""

    result: Any
    tables: tuple[Table, ...]
    summary: str


def run_batching(options: Options, progress: Progress) -> Report:
    """Deadline batching against the known rule and fixed batches."""
    result = batching.run(options.seed, options.world(), progress=progress)
    kept = ", ".join(
        f"{s.strategies['halcyon'].goodput_per_s:.1f}/s of {s.bound_goodput_per_s:.1f} at {s.rate_per_s:g}/s" for s in result.scenarios
    )
    return Report(result=result, tables=tuple(batching_table(s) for s in result.scenarios), summary=f"batching: halcyon kept {kept}")


def run_serving(options: Options, progress: Progress) -> Report:
    """Static against continuous batching."""
    result = serving.run(options.seed, quick=options.quick, progress=progress)
    busiest = [s for s in result.scenarios if s.load == max(serving.LOADS)]
    least = min(s.schedulers["continuous_deadline"].goodput for s in busiest)
    most = max(s.schedulers[f"static_{size}"].goodput for s in busiest for size in serving.STATIC_SIZES)
    summary = f"serving: at {max(serving.LOADS):g} of capacity continuous keeps at least {least:.1%}, static at most {most:.1%}"
    return Report(result=result, tables=tuple(_serving_tables(result)), summary=summary)


def _serving_tables(result: serving.Result) -> list[Table]:
    """One table for each number of requests: means over the seeds."""
    tables = []
    for requests in dict.fromkeys(s.requests for s in result.scenarios):
        found = [s for s in result.scenarios if s.requests == requests]
        seeds = len({s.seed for s in found})
        rows: dict[tuple[str, ...], Serving] = {
            (f"{load:g}", name): serving.mean([s.schedulers[name] for s in found if s.load == load])
            for load in dict.fromkeys(s.load for s in found)
            for name in found[0].schedulers
        }
        title = f"{requests} requests, load in shares of {result.capacity_per_s:.1f}/s, means of {seeds} seed{'s'[: seeds > 1]}"
        tables.append(serving_table(title, ("load", "scheduler"), rows))
    return tables


def run_chunking(options: Options, progress: Progress) -> Report:
    """Prefill budgets."""
    result = chunking.run(options.seed, quick=options.quick, progress=progress)
    title = f"One prompt in ten has 700 tokens, {result.rate_per_s:.1f}/s"
    table = serving_table(title, ("budget",), {(name,): found for name, found in result.budgets.items()})
    gaps = result.budgets
    summary = f"chunking: worst gap {gaps['none'].worst_gap_ms:.0f} ms without a budget, {gaps['128'].worst_gap_ms:.0f} ms with 128 tokens"
    return Report(result=result, tables=(table,), summary=summary)


def run_fairness(options: Options, progress: Progress) -> Report:
    """Who waits for whom."""
    result = fairness.run(options.seed, quick=options.quick, progress=progress)
    fcfs, aged = result.orders["fcfs"], result.orders["shortest_prompt_aged"]
    short = aged["short"].median_ms / max(1e-9, fcfs["short"].median_ms)
    longest = aged["long"].longest_ms / max(1e-9, fcfs["long"].longest_ms)
    summary = f"fairness: with ageing short prompts wait {short:.0%} of fcfs's median, the longest wait of a long one is {longest:.0%}"
    return Report(result=result, tables=(waits_table(result),), summary=summary)


def run_traces(options: Options, progress: Progress) -> Report:
    """Recorded traffic."""
    result = traces.run(options.seed, options.recordings(), quick=options.quick, progress=progress)
    tables = tuple(
        serving_table(
            f"{s.trace} at {s.load:g} of capacity ({s.rate_per_s:.1f}/s)", ("order",), {(name,): found for name, found in s.orders.items()}
        )
        for s in result.scenarios
    )
    kept = ", ".join(f"{s.orders['deadline'].goodput:.1%} of {s.trace} at {s.load:g}" for s in result.scenarios)
    return Report(result=result, tables=tables, summary=f"traces: deadline keeps {kept}")


def run_scale(options: Options, progress: Progress) -> Report:
    """Real time of decisions."""
    result = scale.run(options.seed, quick=options.quick, progress=progress)
    reference = next(p for p in result.points if (p.depth, p.replicas) == (scale.REFERENCE_DEPTH, scale.REFERENCE_REPLICAS))
    summary = f"scale: {reference.all.median_us:.1f} µs a decision in the median, {reference.all.p99_us:.0f} µs in the 99th percentile"
    return Report(result=result, tables=(scale_table(result),), summary=summary)


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
