"""`halcyon down`: drain the daemon and wait until it has ended."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from halcyon.cli.client import ControlClient, connect
from halcyon.cli.launch import wait_for_end
from halcyon.cli.options import AsJson, StateDir
from halcyon.cli.screen import Screen
from halcyon.errors import DaemonNotRunning, TimedOut
from halcyon.wire.control import Status


class DownReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `down --json` prints. `running` and `queued`: requests there were when the drain began."""

    pid: int
    ended: bool
    running: int
    queued: int


def down(
    now: Annotated[bool, typer.Option("--now", help="End running requests with an error instead of waiting for them.")] = False,
    state_directory: StateDir = "",
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="How long to wait for the daemon to end.")
    ] = 330.0,
    as_json: AsJson = False,
) -> None:
    """Stop the daemon: running requests finish, new ones are refused."""
    screen = Screen(as_json=as_json)
    with connect(state_directory) as client:
        status = _ask(client, now=now)
    if status.running and not now:
        screen.say(f"Waiting for {status.running} running requests (`halcyon down --now` ends them).")
    if wait_for_end(status.pid, timeout_s) is None:
        still = f"The daemon (pid {status.pid}) has not ended after {timeout_s:g} s."
        raise TimedOut(f"{still} It still drains; `halcyon status` shows what runs, `halcyon down --now` ends it.")
    if as_json:
        screen.document(DownReport(pid=status.pid, ended=True, running=status.running, queued=status.queued))
    screen.say(f"The daemon (pid {status.pid}) has ended.")


def _ask(client: ControlClient, *, now: bool) -> Status:
    try:
        return client.down(now=now)
    except DaemonNotRunning:
        raise DaemonNotRunning(f"No daemon runs here: nobody answers on {client.socket}. There is nothing to stop.") from None
