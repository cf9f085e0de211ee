"""`halcyon replica remove`: drain a replica and take it out of the fleet."""

from __future__ import annotations

from halcyon.cli.client import connect
from halcyon.cli.options import AsJson, ReplicaId, StateDir
from halcyon.cli.screen import Screen


def replica_remove(replica_id: ReplicaId, state_directory: StateDir = "", as_json: AsJson = False) -> None:
    """Drain a replica, then take it out of the fleet."""
    screen = Screen(as_json=as_json)
    with connect(state_directory) as client:
        replica = client.remove(replica_id)
    if as_json:
        screen.document(replica)
    screen.say(f"{replica.replica_id}: {replica.state}, {replica.outstanding} sequences left to finish")
