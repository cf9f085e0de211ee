"""Replicas and models as rows of a table.

On a terminal what goes without saying is left out, so that a fleet fits 80 cells; a pipe always has every column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from halcyon.cli.screen import Cell, Screen
from halcyon.config.load import DEMO_FLEET
from halcyon.wire.control import ModelStatus, ReplicaStatus, Status

REPLICA_COLUMNS = ("replica", "model", "state", "why", "out", "kv cache", "restarts", "next try", "device")
MODEL_COLUMNS = ("model", "version", "default", "runtime", "ready", "queued", "context", "source")
STATE_STYLES = {"ready": "green", "failed": "bold red", "waiting": "yellow", "draining": "cyan", "removed": "dim"}
"""Style of a replica's state; whatever is on its way to ready has none."""
_BAR_CELLS = 4


def replica_table(screen: Screen, replicas: Iterable[ReplicaStatus]) -> None:
    """Draws one line for each replica."""
    screen.table(REPLICA_COLUMNS, [_replica_row(replica) for replica in replicas])


def model_table(screen: Screen, models: Iterable[ModelStatus]) -> None:
    """Draws one line for each version of each model."""
    screen.table(MODEL_COLUMNS, _model_rows(list(models)))


def why(replica: ReplicaStatus) -> str:
    """What it is doing, or why it is not ready, in one phrase."""
    if replica.state in {"failed", "waiting"}:
        return replica.last_error or replica.detail
    detail = "" if replica.detail == replica.state else replica.detail
    if replica.progress is not None and replica.state != "ready":
        return f"{detail} {replica.progress:.0%}".strip()
    return detail


def remarks(replica: ReplicaStatus) -> str:
    """The same on one line, and whether it is there by registration."""
    return "; ".join(filter(None, ("registered" if replica.registered else "", one_line(why(replica)))))


def _replica_row(replica: ReplicaStatus) -> list[Cell]:
    next_try = "" if replica.next_restart_s is None else f"in {max(0.0, replica.next_restart_s):.0f} s"
    return [
        Cell(replica.replica_id),
        Cell(f"{replica.model}@{replica.version}", terminal="" if _names_its_model(replica) else None),
        Cell(replica.state, STATE_STYLES.get(replica.state, "")),
        Cell(remarks(replica)),
        Cell(str(replica.outstanding)),
        _kv_cell(replica),
        Cell(str(replica.restarts), "yellow", terminal=None if replica.restarts else ""),
        Cell(next_try),
        Cell(replica.url or " ".join(filter(None, (replica.device, replica.dtype)))),
    ]


def _names_its_model(replica: ReplicaStatus) -> bool:
    return replica.replica_id.startswith(f"{replica.model}-{replica.version}-")


def _kv_cell(replica: ReplicaStatus) -> Cell:
    if not replica.kv_blocks_total:
        return Cell("")
    numbers = f"{replica.kv_blocks_used}/{replica.kv_blocks_total}"
    filled = round(_BAR_CELLS * replica.kv_blocks_used / replica.kv_blocks_total)
    return Cell(numbers, terminal=f"{'█' * filled}{'░' * (_BAR_CELLS - filled)} {numbers}")


def _model_rows(models: Sequence[ModelStatus]) -> list[list[Cell]]:
    """On a terminal: which version is the default only where there is a choice, queues only where somebody waits."""
    several = len({model.name for model in models}) < len(models)
    waited_for = any(model.queued for model in models)
    return [_model_row(model, several=several, waited_for=waited_for) for model in models]


def _model_row(model: ModelStatus, *, several: bool, waited_for: bool) -> list[Cell]:
    return [
        Cell(model.name),
        Cell(model.version),
        Cell("yes" if model.default else "", terminal=None if several else ""),
        Cell(model.runtime),
        Cell(f"{model.ready}/{model.replicas}", "green" if model.ready == model.replicas else "yellow"),
        Cell(str(model.queued), terminal=None if waited_for else ""),
        Cell(str(model.max_context) if model.max_context else ""),
        Cell(model.source),
    ]


def one_line(text: str) -> str:
    """The text with line breaks and runs of spaces made single spaces, so that a row stays a row."""
    return " ".join(text.split())


def fleet_name(status: Status) -> str:
    """The fleet file, or what people call the one that comes with the package."""
    return "the demo fleet" if Path(status.fleet) == DEMO_FLEET.resolve() else status.fleet
