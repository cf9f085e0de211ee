"""`halcyon replica drain`: nothing new is sent to a replica; what runs on it finishes."""

from __future__ import annotations

from halcyon.cli.client import connect
from halcyon.cli.options import AsJson, ReplicaId, StateDir
from halcyon.cli.screen import Screen


def replica_drain(replica_id: ReplicaId, state_directory: StateDir = "", as_json: AsJson = False) -> None:
    """Send nothing new to a replica; what runs on it finishes."""
    screen = Screen(as_json=as_json)
    with connect(state_directory) as client:
        replica = client.drain(replica_id)
    if as_json:
        screen.document(replica)
    screen.say(f"{replica.replica_id}: {replica.state}, {replica.outstanding} sequences left to finish")
