"""`python -m halcyon.sim.bench [SUITE…] --seed N [--json] [--quick]`: the benchmark suites of the simulator.

The same seed and options print the same bytes with `--json`. Tables and JSON go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from halcyon.sim.suites.registry import DEFAULT_SUITES, SUITES, Options, Report, Table

WIDE = 160
"""Columns of output that is not a terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suites named (the default ones without a name) and prints what they found. Returns the exit status."""
    parsed = _parser().parse_args(arguments)
    names: list[str] = parsed.suites or list(DEFAULT_SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}", file=sys.stderr)
        return 2
    if "traces" in names and parsed.traces is None:
        print("the traces suite needs --traces DIR with the recorded traces", file=sys.stderr)
        return 2
    options = _options(parsed)
    progress = Console(stderr=True, quiet=parsed.json and not sys.stderr.isatty())
    with progress.status("starting") as status:
        reports = {name: SUITES[name](options, lambda step, name=name: status.update(f"{name}: {step}")) for name in names}  # type: ignore[misc]  # the default binds the loop variable
    _print_json(options.seed, list(reports.values())) if parsed.json else _print_tables(list(reports.values()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="halcyon bench", description="Seeded benchmarks of the deciding core against simulated devices.")
    choice = f"one or more of: {', '.join(SUITES)}; without a name: {', '.join(DEFAULT_SUITES)}"
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=choice)
    parser.add_argument("--seed", type=int, default=7, help="seed of traces and noise; the same seed gives the same bytes (default 7)")
    parser.add_argument("--json", action="store_true", help="print JSON with stable keys instead of tables")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time simulated; figures are rougher")
    parser.add_argument("--overhead-ms", type=float, help="fixed cost of a batch on the device")
    parser.add_argument("--per-token-ms", type=float, help="cost of a token on the device")
    parser.add_argument("--jitter", type=float, help="half-width of the device's relative noise, in [0, 1)")
    parser.add_argument("--drift", type=float, help="factor on the device's times in the second half")
    parser.add_argument("--rate", type=float, action="append", metavar="PER_S", help="offered requests a second; may be given again")
    parser.add_argument("--urgent", type=float, metavar="SHARE", help="share of urgent requests, in [0, 1]")
    parser.add_argument("--max-batch", type=int, help="requests in one batch, at most")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="directory of recorded traces, for the traces suite")
    return parser


def _options(parsed: argparse.Namespace) -> Options:
    return Options(
        seed=parsed.seed,
        quick=parsed.quick,
        overhead_ms=parsed.overhead_ms,
        per_token_ms=parsed.per_token_ms,
        jitter=parsed.jitter,
        drift=parsed.drift,
        rates_per_s=tuple(parsed.rate) if parsed.rate else None,
        urgent_share=parsed.urgent,
        max_batch=parsed.max_batch,
        traces=parsed.traces,
    )


def _print_json(seed: int, reports: list[Report]) -> None:
    found: list[dict[str, Any]] = [asdict(report.result) for report in reports]
    print(json.dumps(found[0] if len(found) == 1 else {"seed": seed, "suites": found}, indent=2))


def _print_tables(reports: list[Report]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    for report in reports:
        for table in report.tables:
            console.print(_rich(table))
        console.print(report.summary)


def _rich(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left")
    for index, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
