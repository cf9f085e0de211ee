"""`halcyon model list`: every version of every model, one a line."""

from __future__ import annotations

from halcyon.cli.client import connect
from halcyon.cli.fleet_table import model_table
from halcyon.cli.options import AsJson, StateDir
from halcyon.cli.screen import Screen


def model_list(state_directory: StateDir = "", as_json: AsJson = False) -> None:
    """Show every version of every model and its ready replicas."""
    screen = Screen(as_json=as_json)
    with connect(state_directory) as client:
        found = client.models()
    if as_json:
        screen.document(found)
    model_table(screen, found.models)
