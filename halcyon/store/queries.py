"""Reading the history. Each call opens the file read-only, so readers hold no lock between calls and never meet the writer's connection.

Blocking; from asyncio call through `asyncio.to_thread`.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from halcyon.store.file import HistoryUnavailable, read_only_uri
from halcyon.store.rows import DecisionRow, RegistrationRow, ReplicaRow, RequestRow
from halcyon.store.statements import TABLES, columns

R = TypeVar("R", bound=RequestRow | DecisionRow | ReplicaRow | RegistrationRow)

MAX_LIMIT = 10_000


@dataclass(frozen=True)
class Kept(Generic[R]):
    """A row as it stands in the history. `id` grows with time and is never given twice while newer rows exist."""

    id: int
    row: R


class Queries:
    """What the daemon and the CLI ask. Newest first, unless it says otherwise. An absent file is an empty history.

    Every method raises `HistoryUnavailable` when the file cannot be read, and takes a `limit` of at most `MAX_LIMIT`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def requests(
        self, *, limit: int = 100, model: str = "", tenant: str = "", outcome: str = "", request_id: str = ""
    ) -> list[Kept[RequestRow]]:
        """Audit rows; each filter that is not '' must match exactly."""
        filters = {"model": model, "tenant": tenant, "outcome": outcome, "request_id": request_id}
        return self._select(RequestRow, filters, limit=limit)

    def decisions(
        self, *, limit: int = 100, kind: str = "", model: str = "", request_id: str = "", after_id: int = 0
    ) -> list[Kept[DecisionRow]]:
        """Decisions; each filter that is not '' must match exactly. `after_id`: only later ones, for following."""
        return self._select(DecisionRow, {"kind": kind, "model": model, "request_id": request_id}, limit=limit, after_id=after_id)

    def replica_events(self, *, limit: int = 100, replica_id: str = "", event: str = "") -> list[Kept[ReplicaRow]]:
        """What happened to replicas."""
        return self._select(ReplicaRow, {"replica_id": replica_id, "event": event}, limit=limit)

    def registrations(self) -> list[RegistrationRow]:
        """The remote replicas that operators registered and did not remove, oldest first."""
        return [kept.row for kept in reversed(self._select(RegistrationRow, {}, limit=MAX_LIMIT))]

    def _select(self, cls: type[R], filters: dict[str, str], *, limit: int, after_id: int = 0) -> list[Kept[R]]:
        given = {name: value for name, value in filters.items() if value}
        where = " AND ".join(["rowid > ?", *(f"{name} = ?" for name in given)])
        names = columns(cls)
        sql = f"SELECT rowid, {', '.join(names)} FROM {TABLES[cls]} WHERE {where} ORDER BY rowid DESC LIMIT ?"
        found = self._fetch(sql, [after_id, *given.values(), min(limit, MAX_LIMIT)])
        return [Kept(int(str(values[0])), _row(cls, dict(zip(names, values[1:], strict=True)))) for values in found]

    def _fetch(self, sql: str, values: list[int | str]) -> list[tuple[object, ...]]:
        if not self._path.exists():
            return []
        try:
            with closing(sqlite3.connect(read_only_uri(self._path), uri=True, timeout=1.0)) as connection:
                return connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise HistoryUnavailable(f"The history cannot be read: {error}.") from error


def _row(cls: type[R], values: dict[str, object]) -> R:
    """The row, from values that the table's own types and constraints vouch for."""
    if "facts" in values:
        values["facts"] = json.loads(str(values["facts"]))
    return msgspec.convert(values, cls, strict=False)  # not strict: SQLite has no booleans, only 0 and 1
