"""Rows to SQL. The column names are the row classes' field names; `facts` is stored as JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from halcyon.store.rows import DecisionRow, RegistrationRemoved, RegistrationRow, ReplicaRow, RequestRow, Row

TABLES: dict[type[object], str] = {
    RequestRow: "requests",
    DecisionRow: "decisions",
    ReplicaRow: "replicas",
    RegistrationRow: "registrations",
}

PRUNED_TABLES = ("requests", "decisions", "replicas")
"""Logs, bounded in rows and days. Registrations are state and stay."""

Parameters = tuple[Any, ...]


def columns(cls: type[object]) -> list[str]:
    """The columns a row class fills."""
    return [f.name for f in fields(cls)]  # type: ignore[arg-type]


def statement(cls: type[Row]) -> str:
    """The SQL that stores (or, for `RegistrationRemoved`, deletes) one row; takes `parameters(row)`."""
    if cls is RegistrationRemoved:
        return "DELETE FROM registrations WHERE replica_id = ?"
    names = columns(cls)
    verb = "INSERT OR REPLACE" if cls is RegistrationRow else "INSERT"
    return f"{verb} INTO {TABLES[cls]} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def parameters(row: Row) -> Parameters:
    """The values of a row in the order of its columns.

    Raises:
        ValueError, TypeError: a fact is no JSON value (NaN and infinity are none).
    """
    return tuple(_stored(name, getattr(row, name)) for name in columns(type(row)))


def _stored(name: str, value: object) -> object:
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"), allow_nan=False) if name == "facts" else value  # type: ignore[call-overload]
