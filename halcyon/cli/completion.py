"""Completion of names that only a live daemon knows.

Runs inside the user's shell at every press of Tab: it must be quick and say nothing. Whatever is wrong with the daemon, the answer is
no names.
"""

from __future__ import annotations

import typer

from halcyon.errors import HalcyonError
from halcyon.wire.control import Status

_PATIENCE_S = 0.5


def complete_model(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of models that start with `incomplete`, each with its versions as help."""
    status = _status(ctx)
    if status is None:
        return []
    versions: dict[str, list[str]] = {}
    for model in status.models:
        versions.setdefault(model.name, []).append(model.version)
    return [(name, ", ".join(found)) for name, found in versions.items() if name.startswith(incomplete)]


def complete_replica(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of replicas that start with `incomplete`, each with its state as help."""
    status = _status(ctx)
    if status is None:
        return []
    return [(replica.replica_id, replica.state) for replica in status.replicas if replica.replica_id.startswith(incomplete)]


def _status(ctx: typer.Context) -> Status | None:
    from halcyon.cli.client import connect  # imported late: completing an option's name must not wait for an HTTP client

    try:
        with connect(ctx.params.get("state_directory") or "", timeout_s=_PATIENCE_S) as client:
            return client.status()
    except HalcyonError:
        return None
