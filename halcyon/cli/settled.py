"""What `up` says once the fleet has settled: why something is missing, how the fleet stands, and how to go on, in this order."""

from __future__ import annotations

from pathlib import Path

from halcyon.cli.fleet_table import one_line, why
from halcyon.cli.screen import Screen
from halcyon.cli.start import at_state_dir
from halcyon.config.paths import log_path
from halcyon.wire.control import ReplicaStatus, Status

_MISSING = {"failed", "waiting"}


def report(screen: Screen, status: Status) -> None:
    """Says it: reasons and remedies on stderr, the fleet and the next steps on stdout."""
    for replica in status.replicas:
        if replica.state in _MISSING:
            screen.remark(_reason(replica))
    screen.say(headline(status), style="bold green" if status.state == "ready" else "bold yellow")
    if status.state != "ready":
        screen.remark(_how_it_goes_on(status))
    for replica in status.replicas:
        if replica.registered:
            forget = f"halcyon replica remove {replica.replica_id}{_at(status)}"
            screen.say(f"{replica.replica_id} was registered by an operator, not by the fleet file; `{forget}` ends that.")
    if any(replica.state == "ready" for replica in status.replicas):
        _next_steps(screen, status)


def _reason(replica: ReplicaStatus) -> str:
    next_try = "" if replica.next_restart_s is None else f"; next try in {max(0.0, replica.next_restart_s):.0f} s"
    return f"{replica.replica_id} {replica.state}: {one_line(why(replica)) or 'no reason given'}{next_try}"


def headline(status: Status) -> str:
    """How the fleet stands, in one line."""
    where = f"http://{status.listen} (pid {status.pid})"
    if not status.replicas:
        return f"{status.state}: no replicas, {where}"
    ready = sum(replica.state == "ready" for replica in status.replicas)
    return f"{status.state}: {ready} of {len(status.replicas)} replicas, {where}"


def _how_it_goes_on(status: Status) -> str:
    rest = any(replica.state == "ready" for replica in status.replicas)
    goes_on = "The daemon serves the rest" if rest else "The daemon runs and serves nothing"
    return f"{goes_on}; its log is {log_path(Path(status.state_dir))}. `halcyon down{_at(status)}` stops it."


def _next_steps(screen: Screen, status: Status) -> None:
    model = next((model.name for model in status.models if model.ready), "MODEL")
    steps = {
        f'halcyon infer {model} "Hello"{_at(status)}': "ask it",
        f"halcyon status{_at(status)}": "see the fleet",
        f"halcyon down{_at(status)}": "stop it; running requests finish first",
    }
    width = max(len(command) for command in steps)
    screen.hint()
    for command, what in steps.items():
        screen.hint(f"  {command:<{width}}  {what}")
    screen.hint(f"  curl http://{status.listen}/v1/chat/completions \\")
    screen.hint("    -H 'content-type: application/json' \\")
    screen.hint(f"""    -d '{{"model": "{model}",""")
    screen.hint("""         "messages": [{"role": "user", "content": "Hello"}]}'""")


def _at(status: Status) -> str:
    return at_state_dir(Path(status.state_dir))
