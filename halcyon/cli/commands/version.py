"""`halcyon version`: this command's version, and the running daemon's."""

from __future__ import annotations

import platform

import msgspec

from halcyon import __version__
from halcyon.cli.client import connect
from halcyon.cli.options import AsJson, StateDir
from halcyon.cli.screen import Screen
from halcyon.errors import HalcyonError


class VersionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `version --json` prints. `daemon` is empty where none answers."""

    halcyon: str
    python: str
    daemon: str


def version(state_directory: StateDir = "", as_json: AsJson = False) -> None:
    """Show the version of this command and of the running daemon."""
    screen = Screen(as_json=as_json)
    report = VersionReport(halcyon=__version__, python=platform.python_version(), daemon=_daemon_version(state_directory))
    if as_json:
        screen.document(report)
        return
    screen.say(f"halcyon {report.halcyon} (Python {report.python})")
    if report.daemon not in {"", report.halcyon}:
        screen.remark(f"The running daemon is halcyon {report.daemon}; restart it with `halcyon down` and `halcyon up`.")


def _daemon_version(state_directory: str) -> str:
    try:
        with connect(state_directory, timeout_s=2.0) as client:
            return client.status().version
    except HalcyonError:
        return ""  # the command's own version is what was asked; a daemon in trouble is for `status` to explain
