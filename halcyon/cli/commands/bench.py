"""`halcyon bench`: seeded benchmarks of the deciding core against simulated devices. Needs no daemon.

The work is done by a process of its own (`python -m halcyon.sim.bench`), which knows the suites, checks the arguments and finds the
figures; this file starts it, shows how far it is and draws what it found. The process ends with the command.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer

from halcyon.cli.bench_view import BenchReport, StepLine, show_bars, show_report
from halcyon.cli.options import AsJson
from halcyon.cli.screen import Screen
from halcyon.errors import ConfigError, ExitCode, WorkerFailure

SUITES = {
    "batching": "goodput against the bounds, four strategies",
    "serving": "static against continuous batching",
    "chunking": "what one long prompt does to the others",
    "fairness": "who waits for whom, by order",
    "traces": "recorded traffic; needs --traces",
    "scale": "what one decision costs in real time",
}
"""Names for completion and the help; the process knows what they mean."""


def complete_suite(incomplete: str) -> list[tuple[str, str]]:
    """Suites that start with `incomplete`, each with what it shows."""
    return [(name, shows) for name, shows in SUITES.items() if name.startswith(incomplete)]


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE]...",
            autocompletion=complete_suite,
            show_default=False,
            help=f"{', '.join(SUITES)}. Without a name: all but scale, and traces where --traces is given.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The seed of traces and noise. The same seed gives the same bytes.")] = 7,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the simulated time or load: rougher figures, sooner.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw goodput against offered load into this PNG, SVG or PDF. Needs matplotlib."),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option("--traces", metavar="DIR", help="The directory of recorded traces (gzipped CSV) for the suite traces.")
    ] = None,
    overhead_ms: Annotated[
        float | None, typer.Option("--overhead-ms", metavar="MS", help="batching: the device's fixed cost of a batch (18).")
    ] = None,
    per_token_ms: Annotated[
        float | None, typer.Option("--per-token-ms", metavar="MS", help="batching: the device's cost of a token (0.022).")
    ] = None,
    jitter: Annotated[
        float | None, typer.Option("--jitter", metavar="SHARE", help="batching: half the width of the device's noise, in [0, 1) (0.08).")
    ] = None,
    drift: Annotated[
        float | None, typer.Option("--drift", metavar="FACTOR", help="batching: the device's times in the second half, as a multiple (1).")
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            "--rate",
            metavar="PER_S",
            show_default=False,
            help="batching: requests offered a second; repeat it for several (40 90 200 260).",
        ),
    ] = None,
    urgent: Annotated[
        float | None, typer.Option("--urgent", metavar="SHARE", help="batching: the share of requests due in 120 ms, in [0, 1] (0.3).")
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option("--max-batch", metavar="N", help="batching: requests in one batch, at most (32).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Benchmark the deciding core against simulated devices and traffic.

    Every suite is a function of its seed; the schedulers are those of the daemon and are told nothing of the device or the traffic, which
    the options of `batching` change. It needs no daemon, no model and no network.

    The suite serving on a real model is a script of the repository: `python -m bench.serving_real --model SOURCE`.
    """
    values = {
        "--seed": seed,
        "--plot": plot,
        "--traces": traces,
        "--overhead-ms": overhead_ms,
        "--per-token-ms": per_token_ms,
        "--jitter": jitter,
        "--drift": drift,
        "--urgent": urgent,
        "--max-batch": max_batch,
    }
    arguments = [*(suites or []), *(f"{option}={value}" for option, value in values.items() if value is not None)]
    arguments += [f"--rate={value}" for value in rate or []]
    arguments += [option for option, given in (("--quick", quick), ("--json", as_json)) if given]
    screen = Screen(as_json=as_json)
    found = _run(screen, arguments)
    if as_json:
        print(found, end="", flush=True)
    else:
        show_report(screen, msgspec.json.decode(found, type=BenchReport))


def _run(screen: Screen, arguments: list[str]) -> str:
    """What the process printed. It is gone when this returns or raises, Ctrl-C included."""
    with tempfile.TemporaryFile() as found:
        with _process([sys.executable, "-P", "-m", "halcyon.sim.bench", *arguments, "--progress"], found) as process:
            complaints = _watch(screen, process.stderr) if process.stderr is not None else []
            status = process.wait()
        if status == ExitCode.USAGE:
            raise ConfigError(complaints)
        if status != ExitCode.OK:
            last = next((line.strip() for line in reversed(complaints) if line.strip()), "it said nothing")
            raise WorkerFailure(f"The benchmark ended early with status {status}: {last}")
        found.seek(0)
        return found.read().decode()


@contextmanager
def _process(command: list[str], found: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process, killed at the end. An interrupt between its start and the `try` would leave it behind, so it is held back until then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = None
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=found, stderr=subprocess.PIPE)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield process
    finally:
        if process is not None:
            process.kill()
            process.communicate()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(screen: Screen, lines: IO[bytes]) -> list[str]:
    """Shows the progress until the process closes its stderr, and returns what else it said there."""
    complaints: list[str] = []
    if screen.is_terminal:
        show_bars(_steps(lines, complaints))
    else:
        for _ in _steps(lines, complaints):
            pass
    return complaints


def _steps(lines: IO[bytes], complaints: list[str]) -> Iterable[StepLine]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=StepLine)
        except msgspec.DecodeError:
            complaints.append(line.decode(errors="replace").rstrip())
