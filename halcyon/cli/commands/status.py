"""`halcyon status`: the daemon, its replicas and its models at a glance."""

from __future__ import annotations

from halcyon.cli.client import connect
from halcyon.cli.fleet_table import fleet_name, model_table, replica_table
from halcyon.cli.options import AsJson, StateDir
from halcyon.cli.screen import Screen
from halcyon.wire.control import Status


def status(state_directory: StateDir = "", as_json: AsJson = False) -> None:
    """Show the daemon, its replicas and its models.

    Of every replica: its state and why, its load, its KV cache, its restarts and the next try."""
    screen = Screen(as_json=as_json)
    with connect(state_directory) as client:
        found = client.status()
    if as_json:
        screen.document(found)
        return
    for line in header_lines(found):
        screen.say(line)
    screen.say()
    if found.replicas:
        replica_table(screen, found.replicas)
    else:
        screen.say("No replicas: nothing is served. See `halcyon replica register`, or `halcyon down` and `halcyon up`.")
    screen.say()
    model_table(screen, found.models)


def header_lines(status: Status) -> list[str]:
    """The daemon itself, in a few lines of label and value."""
    lines = [
        f"state     {status.state}, up {duration(status.uptime_s)}, pid {status.pid}, halcyon {status.version}",
        f"listen    http://{status.listen}",
        f"fleet     {fleet_name(status)}",
        f"requests  {status.running} running, {status.queued} queued, {status.requests_total} in all; {status.connections} connections",
    ]
    if status.store.degraded:
        lines.append(f"history   degraded, {status.store.rows_dropped} rows lost: {status.store.degraded}")
    return lines


def duration(seconds: float) -> str:
    """Seconds as people say them, in the two largest units."""
    whole = int(seconds)
    for unit, size, smaller, small_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small_size} {smaller}"
    return f"{whole} s"
