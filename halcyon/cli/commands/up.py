"""`halcyon up`: start the daemon and wait until its fleet has settled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from halcyon import __version__
from halcyon.cli.client import ControlClient
from halcyon.cli.fleet_table import fleet_name, replica_table
from halcyon.cli.launch import become_daemon
from halcyon.cli.options import AsJson, Fleet, StateDir
from halcyon.cli.progress import fleet_view
from halcyon.cli.screen import Screen
from halcyon.cli.settled import report
from halcyon.cli.start import Start, at_state_dir
from halcyon.config.load import DEMO_FLEET, fleet_digest, load_fleet
from halcyon.config.paths import socket_path, state_dir
from halcyon.config.settings import FleetSettings
from halcyon.errors import DaemonAlreadyRunning, ExitCode
from halcyon.wire.control import Status


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
    the rest, if there is one. Running it again with the same fleet changes nothing and shows the fleet.
    """
    settings = load_fleet(fleet)
    fleet_path = (fleet or DEMO_FLEET).resolve()
    directory = state_dir(state_directory or settings.daemon.state_dir)
    screen = Screen(as_json=as_json)
    with ControlClient(socket_path(directory)) as client:
        running = client.status_or_none()
        if running is None and foreground:
            screen.hint("The daemon runs in this terminal. Ctrl-C stops it; running requests finish first, a second Ctrl-C ends them.")
            become_daemon(fleet_path, directory)
        if running is not None:
            _refuse_foreground(running, foreground=foreground)
            _refuse_another(running, fleet_path, settings)
            screen.say(f"A daemon with this fleet already runs here (pid {running.pid}).")
        start = Start(client, fleet_path, directory, check=lambda status: _refuse_another(status, fleet_path, settings))
        unsettled = running is None or running.state == "starting"
        with fleet_view(screen if unsettled else Screen(as_json=True)) as view:
            settled = start.wait(running, view, timeout_s=timeout_s)
    if as_json:
        screen.document(UpReport(started=settled.pid == start.started, **msgspec.structs.asdict(settled)))
    else:
        if not unsettled and settled.state == "ready":
            replica_table(screen, settled.replicas)
        report(screen, settled)
    if settled.state != "ready":
        raise typer.Exit(ExitCode.FAILURE)


def _refuse_foreground(running: Status, *, foreground: bool) -> None:
    if foreground:
        raise DaemonAlreadyRunning(
            f"A daemon (pid {running.pid}) already runs here, so this process cannot become it. {_make_way(running)}"
        )


def _refuse_another(running: Status, fleet_path: Path, settings: FleetSettings) -> None:
    """Raises DaemonAlreadyRunning unless the daemon serves what this file says now, and goes on doing so."""
    if running.state == "draining":
        down = f"halcyon down --now{at_state_dir(Path(running.state_dir))}"
        raise DaemonAlreadyRunning(f"A daemon (pid {running.pid}) is going down here. Wait for it to end, or hurry it with `{down}`.")
    if Path(running.fleet).resolve() != fleet_path:
        raise DaemonAlreadyRunning(
            f"A daemon (pid {running.pid}) already runs here with another fleet, {fleet_name(running)}. {_make_way(running)}"
        )
    served = {(model.name, model.version) for model in running.models}
    missing = ", ".join(f"{model.name}@{model.version}" for model in settings.models if (model.name, model.version) not in served)
    if missing or _has_changed(running, settings):
        lacks = f": it does not serve {missing}" if missing else ""
        raise DaemonAlreadyRunning(f"{fleet_path} has changed since the daemon (pid {running.pid}) read it{lacks}. {_make_way(running)}")


def _has_changed(running: Status, settings: FleetSettings) -> bool:
    """Whether the daemon read other settings. One of another release may write down the same ones differently, so it is not compared."""
    return running.version == __version__ and running.fleet_digest not in {"", fleet_digest(settings)}


def _make_way(running: Status) -> str:
    stop = f"halcyon down{at_state_dir(Path(running.state_dir))}"
    return f"Stop it with `{stop}` and start again, or give the new one another --state-dir. (Its state directory: {running.state_dir})"
