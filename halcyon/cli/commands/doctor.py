"""`halcyon doctor`: is this machine fit to serve? One line for each thing that has to be right, each with its remedy."""

from __future__ import annotations

import msgspec
import typer

from halcyon.cli.checks import Check, all_checks
from halcyon.cli.options import AsJson, StateDir
from halcyon.cli.screen import Cell, Screen
from halcyon.errors import ExitCode

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor --json` prints. `healthy` is false as soon as one check fails."""

    healthy: bool
    checks: list[Check]


def doctor(state_directory: StateDir = "", as_json: AsJson = False) -> None:
    """Check whether this machine is fit to serve.

    Looks at Python, torch, CUDA, transformers, memory, cores, disk, the state directory, the socket, the model cache, uvloop and pip, and
    changes nothing. Exit status 1 when a check fails."""
    screen = Screen(as_json=as_json)
    with screen.busy("Looking at torch, devices and disks …"):
        checks = all_checks(state_directory)
    healthy = all(check.verdict != "fail" for check in checks)
    if as_json:
        screen.document(DoctorReport(healthy=healthy, checks=checks))
    else:
        screen.table(("check", "verdict", "found", "remedy"), [_row(check) for check in checks])
    if not healthy:
        raise typer.Exit(ExitCode.FAILURE)


def _row(check: Check) -> list[Cell]:
    """On a terminal the remedy stands below what was found: beside it, both would fold into ribbons."""
    found = f"{check.found}\n→ {check.remedy}" if check.remedy else None
    return [
        Cell(check.name),
        Cell(check.verdict, _STYLES[check.verdict]),
        Cell(check.found, terminal=found),
        Cell(check.remedy, terminal=""),
    ]
