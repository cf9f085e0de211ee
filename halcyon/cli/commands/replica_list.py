"""`halcyon replica list`: every replica, one a line."""

from __future__ import annotations

from halcyon.cli.client import connect
from halcyon.cli.fleet_table import replica_table
from halcyon.cli.options import AsJson, StateDir
from halcyon.cli.screen import Screen


def replica_list(state_directory: StateDir = "", as_json: AsJson = False) -> None:
    """Show every replica: state and why, load, KV cache, restarts."""
    screen = Screen(as_json=as_json)
    with connect(state_directory) as client:
        found = client.replicas()
    if as_json:
        screen.document(found)
    replica_table(screen, found.replicas)
