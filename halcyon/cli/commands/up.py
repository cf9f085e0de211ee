"""`halcyon up`: start the daemon and wait until its fleet has settled."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from halcyon.cli.client import ControlClient
from halcyon.cli.fleet_table import one_line, replica_table, why
from halcyon.cli.launch import LogMark, become_daemon, mark_log, start_detached, wait_for_end
from halcyon.cli.options import AsJson, Fleet, StateDir
from halcyon.cli.progress import FleetView, fleet_view
from halcyon.cli.screen import Screen
from halcyon.clock import NS_PER_S, now_ns
from halcyon.config.load import DEMO_FLEET, load_fleet
from halcyon.config.paths import log_path, socket_path, state_dir
from halcyon.config.settings import FleetSettings
from halcyon.errors import DaemonAlreadyRunning, ExitCode, HalcyonError, TimedOut
from halcyon.wire.control import Status

_TICK_S = 0.15
"""Between two looks at the fleet."""


class UpReport(Status, frozen=True, kw_only=True):
    """What `up --json` prints: the status, and whether this command started the daemon."""

    started: bool


def up(
    fleet: Fleet = None,
    state_directory: StateDir = "",
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Become the daemon instead of starting one: for systemd and containers.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="How long to wait for the fleet. The daemon goes on after it.")
    ] = 1800.0,
    as_json: AsJson = False,
) -> None:
    """Start the daemon and wait until its fleet has settled.

    It returns when every replica is ready or given up; exit status 1 means that some replica cannot be had, and that the daemon serves
    the rest. Running it again with the same fleet changes nothing and shows the fleet.
    """
    settings = load_fleet(fleet)
    fleet_path = (fleet or DEMO_FLEET).resolve()
    directory = state_dir(state_directory or settings.daemon.state_dir)
    screen = Screen(as_json=as_json)
    with ControlClient(socket_path(directory)) as client:
        running = client.status_or_none()
        if running is None and foreground:
            become_daemon(fleet_path, directory)
        if running is not None:
            _refuse_another(running, fleet_path, settings, foreground=foreground)
            screen.say(f"A daemon with this fleet already runs here (pid {running.pid}).")
        mark = mark_log(directory)
        pid = start_detached(fleet_path, directory) if running is None else running.pid
        with fleet_view(screen) as view:
            settled = Start(client, mark, pid, timeout_s, view).wait()
    _report(screen, settled, started=running is None)


class Start:
    """One wait for a fleet to settle."""

    def __init__(self, client: ControlClient, mark: LogMark, pid: int, timeout_s: float, view: FleetView) -> None:
        self._client = client
        self._mark = mark
        self._pid = pid
        self._timeout_s = timeout_s
        self._until_ns = now_ns() + round(timeout_s * NS_PER_S)
        self._view = view

    def wait(self) -> Status:
        """The first status that is no longer `starting`.

        Raises:
            TimedOut: not settled in time; the daemon goes on.
            HalcyonError: the daemon ended; the message has its last log lines.
        """
        try:
            while (settled := self._look()) is None:
                if now_ns() >= self._until_ns:
                    raise TimedOut(self._left_running(f"The fleet is not ready after {self._timeout_s:g} s."))
                if wait_for_end(self._pid, _TICK_S):
                    self._adopt_or_fail()
        except KeyboardInterrupt:
            print(self._left_running("Interrupted."), file=sys.stderr)
            raise
        return settled

    def _look(self) -> Status | None:
        try:
            status = self._client.status_or_none()
        except TimedOut:
            return None  # a busy machine; the overall bound decides
        if status is None:
            return None
        self._view.show(status)
        return None if status.state == "starting" else status

    def _adopt_or_fail(self) -> None:
        """Our daemon ended: either another start won the state directory, or it failed."""
        winner = self._client.status_or_none()
        if winner is not None and winner.pid != self._pid:
            self._pid = winner.pid
            return
        lines = self._mark.last_lines() or ["(it left no word)"]
        log = log_path(self._mark.state_directory)
        raise HalcyonError(
            "\n".join([f"The daemon ended before the fleet was ready. Its last words, from {log}:", *(f"  {x}" for x in lines)])
        )

    def _left_running(self, what: str) -> str:
        log = log_path(self._mark.state_directory)
        return f"{what} The daemon (pid {self._pid}) goes on starting: see `halcyon status` and {log}, stop it with `halcyon down`."


def _refuse_another(running: Status, fleet_path: Path, settings: FleetSettings, *, foreground: bool) -> None:
    """Raises DaemonAlreadyRunning unless the daemon serves what this file says now, and in the background."""
    restart = (
        f"Stop it with `halcyon down` and start again, or give the new one another --state-dir. (Its state directory: {running.state_dir})"
    )
    if foreground:
        raise DaemonAlreadyRunning(f"A daemon (pid {running.pid}) already runs here, so this process cannot become it. {restart}")
    if running.state == "draining":
        raise DaemonAlreadyRunning(
            f"A daemon (pid {running.pid}) is going down here. Wait for it to end, or hurry it with `halcyon down --now`."
        )
    if Path(running.fleet).resolve() != fleet_path:
        raise DaemonAlreadyRunning(f"A daemon (pid {running.pid}) already runs here with another fleet, {running.fleet}. {restart}")
    served = {(model.name, model.version) for model in running.models}
    asked = {(model.name, model.version) for model in settings.models}
    if not asked <= served:
        missing = ", ".join(sorted(f"{name}@{version}" for name, version in asked - served))
        raise DaemonAlreadyRunning(
            f"{fleet_path} has changed since the daemon (pid {running.pid}) read it: it does not serve {missing}. {restart}"
        )


def _report(screen: Screen, status: Status, *, started: bool) -> None:
    if screen.as_json:
        screen.document(UpReport(started=started, **msgspec.structs.asdict(status)))
    else:
        if not started:
            replica_table(screen, status.replicas)
        screen.say(_headline(status), style="bold green" if status.state == "ready" else "bold yellow")
        _how_to_go_on(screen, status)
    if status.state != "ready":
        for replica in status.replicas:
            if replica.state in {"failed", "waiting"}:
                screen.remark(f"{replica.replica_id} {replica.state}: {one_line(why(replica)) or 'no reason given'}")
        log = log_path(Path(status.state_dir))
        screen.remark(f"The daemon serves the rest. Mend the cause, then `halcyon down` and `halcyon up`; the log is {log}.")
        raise typer.Exit(ExitCode.FAILURE)


def _headline(status: Status) -> str:
    ready = sum(replica.state == "ready" for replica in status.replicas)
    return f"{status.state}: {ready} of {len(status.replicas)} replicas, http://{status.listen} (pid {status.pid})"


def _how_to_go_on(screen: Screen, status: Status) -> None:
    where = "" if state_dir() == Path(status.state_dir) else f" --state-dir {status.state_dir}"
    model = next((model.name for model in status.models if model.ready), "MODEL")
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    screen.hint()
    screen.hint(f'  halcyon infer {model} "Hello"{where}')
    screen.hint(f"  halcyon status{where}")
    screen.hint(f"  curl http://{status.listen}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
    screen.hint(f"  halcyon down{where}")
