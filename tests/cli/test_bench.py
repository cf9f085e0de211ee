"""`halcyon bench` shows what its process found, passes its figures through, and takes it along when it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from outcome import Command, halcyon_process

from halcyon.cli.commands.bench import SUITES
from halcyon.sim.suites import registry

SMALL = ("batching", "--quick", "--rate", "90", "--seed", "5")
PROGRESS = '{"suite": "batching", "step": "edf at 40/s", "done": 3, "of": 16}'


@pytest.fixture
def process(state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands where Python stands: runs the shell script `script` in the state directory."""
    program = state / "python"
    program.write_text(f'#!/bin/sh\necho "$@" > {state}/arguments\necho $$ > {state}/pid\n. {state}/script\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    return state


def test_the_suites_are_those_there_are() -> None:
    """Help and completion name exactly the suites of the simulator."""
    assert tuple(SUITES) == tuple(registry.SUITES)


def test_a_pipe_gets_columns_and_one_summary_a_suite(command: Command) -> None:
    """In a pipe: a title, aligned columns, a row a strategy, one line of summary; no colour, no progress, nothing on stderr."""
    outcome = command(*("bench", *SMALL))
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["STRATEGY", "no_batching", "fixed_batch", "edf", "halcyon"]
    assert {len(line.split()) for line in lines[1:6]} == {12}
    assert sum(line.startswith("batching: halcyon kept ") for line in lines) == 1
    assert not set("\x1b━│") & set(outcome.out)


def test_json_is_the_figures_byte_for_byte(command: Command) -> None:
    """--json twice prints the same bytes, those of the process itself; every key that scripts rely on is there; another seed differs."""
    first = command("bench", *SMALL, "--json")
    assert (first.code, first.err) == (0, "")
    assert first.out == command("bench", *SMALL, "--json").out
    alone = subprocess.run([sys.executable, "-m", "halcyon.sim.bench", *SMALL, "--json"], capture_output=True, text=True, check=True)
    assert first.out == alone.stdout
    assert first.document["seed"] == 5
    assert list(first.document["scenarios"][0]["strategies"]["halcyon"]) == [
        "goodput_per_s",
        "bound_share",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "slo_urgent",
        "slo_relaxed",
        "slo_by_size_quartile",
        "utilisation",
        "mean_batch",
        "shed",
    ]
    assert first.out != command("bench", *SMALL, "--json", "--seed", "6").out


def test_an_unknown_suite_is_a_usage_error(command: Command) -> None:
    """Exit 2, the nearest name and all there are; under --json as the error object; nothing on stdout."""
    outcome = command("bench", "batchin")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Did you mean `batching`?" in outcome.err
    assert "fairness" in outcome.err
    assert command("bench", "batchin", "--json").error["exit_code"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("batching", "--jitter", "1.5"), "--jitter is 1.5"),
        (("batching", "--rate", "0"), "--rate is 0"),
        (("batching", "--rate", "nan"), "--rate is nan"),
        (("fairness", "--drift", "2"), "`batching`"),
        (("traces",), "--traces DIR"),
        (("traces", "--traces", "/nowhere"), "azure2023_conv.csv.gz"),
        (("batching", "--traces", "/nowhere"), "`traces`"),
        (("batching", "--plot", "/nowhere/x.png"), "directory"),
        (("batching", "--plot", "x.jpeg"), ".png"),
        (("fairness", "--plot", "x.png"), "batching, serving, traces"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_run_is_said_at_once(command: Command, arguments: tuple[str, ...], says: str) -> None:
    """A value that describes no world, an option without its suite, traces or a picture that cannot be: exit 2, and what to do."""
    outcome = command("bench", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


def test_a_terminal_gets_bars_and_colour(command: Command, process: Path) -> None:
    """On a terminal every suite has a bar that moves with the process's progress, then its tables."""
    report = '{"suite": "batching", "summary": "batching: well", "tables": [{"title": "T", "columns": ["a"], "rows": [["one"]]}]}'
    (process / "script").write_text(f'echo \'{PROGRESS}\' >&2\necho \'{{"reports": [{report}], "plots": ["p.png"]}}\'\n')
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", command("bench", terminal=True).out)
    assert "edf at 40/s" in plain
    assert "━" in plain
    assert plain.index("batching: well") > plain.index("one")
    assert "Drew p.png." in plain
    assert "━" not in command("bench").out


@pytest.mark.parametrize("columns", [80, 200])
def test_a_narrow_terminal_shows_what_matters_most(command: Command, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """No line is wider than the terminal, no figure is cut off, and the columns that do not fit are named."""
    monkeypatch.setenv("COLUMNS", str(columns))
    out = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", command("bench", *SMALL, terminal=True).out)
    table = out[out.index("offered (") :].split("\n\n")[0].splitlines()
    assert "…" not in "".join(table)
    assert max(len(line.rstrip()) for line in table[1:]) <= columns
    assert ("not shown for want of width: " in table[-1]) is (columns == 80)


def test_options_reach_the_process(command: Command, process: Path) -> None:
    """What was asked for is passed on, and what was not is left to the suite."""
    (process / "script").write_text('echo \'{"reports": [], "plots": []}\'\n')
    arguments = (
        "bench",
        "batching",
        "--rate",
        "40",
        "--rate",
        "50.5",
        "--overhead-ms",
        "9",
        "--max-batch",
        "8",
        "--quick",
        "--plot",
        "a b.png",
    )
    assert command(*arguments).code == 0
    assert (process / "arguments").read_text().split("halcyon.sim.bench ")[1] == (
        "batching --seed=7 --plot=a b.png --overhead-ms=9.0 --max-batch=8 --rate=40.0 --rate=50.5 --quick --progress\n"
    )


def test_a_process_that_breaks_is_a_failure(command: Command, process: Path) -> None:
    """A process that ends on its own fault is exit 1 with its last words, and prints nothing on stdout, not half a document."""
    (process / "script").write_text(f"echo '{{'\necho '{PROGRESS}' >&2\necho 'MemoryError' >&2\nexit 137\n")
    outcome = command("bench", "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error["message"] == "The benchmark ended early with status 137: MemoryError"


def test_ctrl_c_takes_the_process_along(process: Path) -> None:
    """SIGINT to the command alone: exit 130, and its process is gone (Local processes: a child that outlives its parent)."""
    os.mkfifo(process / "started")
    (process / "script").write_text(f"echo > {process}/started\nexec sleep 600\n")
    with halcyon_process("bench", python=str(process / "python")) as running:
        (process / "started").read_text()
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
        assert running.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int((process / "pid").read_text()), 0)
