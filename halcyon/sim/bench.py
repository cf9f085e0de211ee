"""The process behind `halcyon bench`: runs suites of the simulator and writes one JSON document to stdout.

    --json         the figures; the same seed and options give the same bytes
    without it     the reports that the command draws: tables and one line of summary a suite
    --progress     how far it is, one JSON object a line on stderr

What is wrong with the arguments is said on stderr, one problem a line; the exit status is that of the command.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from halcyon.errors import ConfigError, ExitCode, HalcyonError
from halcyon.sim import plot
from halcyon.sim.suites.registry import DEFAULT_SUITES, SUITES, WORLD_OPTIONS, Options, Report
from halcyon.sim.suites.steps import ignore


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the suites named (the default ones without a name) and prints what they found. Returns the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        _run(parsed)
    except HalcyonError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # nobody is left to tell
        return ExitCode.FAILURE
    return ExitCode.OK


def _run(parsed: argparse.Namespace) -> None:
    options = _options(parsed)
    names = list(dict.fromkeys(parsed.suites or (*DEFAULT_SUITES, *(("traces",) if parsed.traces else ()))))
    _check(names, options)
    if parsed.plot:
        plot.check(parsed.plot, names)
    reports = {name: _report(name, options, parsed.progress) for name in names}
    drawn = plot.draw(parsed.plot, {name: report.result for name, report in reports.items()}, options) if parsed.plot else []
    document = _figures(options.seed, reports) if parsed.json else _reports(reports, drawn)
    print(json.dumps(document, indent=2))


def _report(name: str, options: Options, progress: bool) -> Report:
    def tell(step: str, done: int, of: int) -> None:
        print(json.dumps({"suite": name, "step": step, "done": done, "of": of}), file=sys.stderr, flush=True)

    report = SUITES[name](options, tell if progress else ignore)
    if progress:
        tell("", 1, 1)
    return report


def _check(names: list[str], options: Options) -> None:
    """Raises ConfigError with everything that is wrong, before the first minute is spent."""
    problems = [_unknown(name) for name in names if name not in SUITES]
    given = [name for name in WORLD_OPTIONS if getattr(options, name) is not None]
    if given and "batching" not in names:
        problems.append("The options that change device and traffic belong to the suite `batching`: name it, or leave them out.")
    if options.traces is not None and "traces" not in names:
        problems.append("--traces belongs to the suite `traces`: name it, or leave the option out.")
    if problems:
        raise ConfigError(problems)
    options.world()
    if "traces" in names:
        options.recordings()


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, SUITES, n=1, cutoff=0.4)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return f"There is no suite {name!r}.{hint} The suites: {', '.join(SUITES)}."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halcyon bench", description="The process behind `halcyon bench`, whose help explains the options."
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--overhead-ms", type=float)
    parser.add_argument("--per-token-ms", type=float)
    parser.add_argument("--jitter", type=float)
    parser.add_argument("--drift", type=float)
    parser.add_argument("--rate", type=float, action="append")
    parser.add_argument("--urgent", type=float)
    parser.add_argument("--max-batch", type=int)
    parser.add_argument("--progress", action="store_true", help=argparse.SUPPRESS)
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


def _figures(seed: int, reports: dict[str, Report]) -> dict[str, Any]:
    """One suite is a document of its own."""
    found: list[dict[str, Any]] = [asdict(report.result) for report in reports.values()]
    return found[0] if len(found) == 1 else {"seed": seed, "suites": found}


def _reports(reports: dict[str, Report], drawn: list[Path]) -> dict[str, Any]:
    shown = [
        {"suite": name, "summary": report.summary, "tables": [asdict(table) for table in report.tables]} for name, report in reports.items()
    ]
    return {"reports": shown, "plots": [str(path) for path in drawn]}


if __name__ == "__main__":
    sys.exit(main())
