"""`halcyon up`: start the daemon and wait until its fleet has settled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from halcyon import __version__
from halcyon.cli.client import ControlClient
from halcyon.cli.fleet_table import one_line, replica_table, why
from halcyon.cli.launch import become_daemon
from halcyon.cli.options import AsJson, Fleet, StateDir
from halcyon.cli.progress import fleet_view
from halcyon.cli.screen import Screen
from halcyon.cli.start import Start, at_state_dir
from halcyon.config.load import DEMO_FLEET, fleet_digest, load_fleet
from halcyon.config.paths import log_path, socket_path, state_dir
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
            _refuse_foreground(running, foreground=foreground)
            _refuse_another(running, fleet_path, settings)
            screen.say(f"A daemon with this fleet already runs here (pid {running.pid}).")
        start = Start(client, fleet_path, directory, check=lambda status: _refuse_another(status, fleet_path, settings))
        with fleet_view(screen) as view:
            settled = start.wait(running, view, timeout_s=timeout_s)
    _report(screen, settled, started=settled.pid == start.started)


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
            f"A daemon (pid {running.pid}) already runs here with another fleet, {running.fleet}. {_make_way(running)}"
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
        directory = Path(status.state_dir)
        stop = f"halcyon down{at_state_dir(directory)}"
        screen.remark(
            f"The daemon serves the rest. Mend the cause, then `{stop}` and `halcyon up` again; the log is {log_path(directory)}."
        )
        raise typer.Exit(ExitCode.FAILURE)


def _headline(status: Status) -> str:
    ready = sum(replica.state == "ready" for replica in status.replicas)
    return f"{status.state}: {ready} of {len(status.replicas)} replicas, http://{status.listen} (pid {status.pid})"


def _how_to_go_on(screen: Screen, status: Status) -> None:
    where = at_state_dir(Path(status.state_dir))
    model = next((model.name for model in status.models if model.ready), "MODEL")
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    screen.hint()
    screen.hint(f'  halcyon infer {model} "Hello"{where}')
    screen.hint(f"  halcyon status{where}")
    screen.hint(f"  curl http://{status.listen}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
    screen.hint(f"  halcyon down{where}")
