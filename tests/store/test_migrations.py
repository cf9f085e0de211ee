"""The schema grows by appended steps, and every released file loads for ever."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from halcyon.store.file import HistoryUnavailable
from halcyon.store.history import Store
from halcyon.store.migrations import MIGRATION_SET, STEPS, migrate
from halcyon.store.rows import DecisionRow, RegistrationRow, ReplicaRow, RequestRow
from halcyon.store.statements import TABLES, columns

DATA = Path(__file__).parent.parent / "data"
WAIT_S = 30.0


def test_steps_are_only_ever_appended() -> None:
    """The names of released steps, in their order; a change here breaks files that people have."""
    assert [step.__name__ for step in STEPS][:1] == ["m001_initial"]


@pytest.mark.parametrize("row", [RequestRow, DecisionRow, ReplicaRow, RegistrationRow], ids=lambda cls: cls.__name__)
def test_a_blank_file_has_a_column_for_every_field(row: type[object]) -> None:
    """Whatever a row class fills has its column after all steps from blank."""
    db = Database(memory=True)
    migrate(db)
    assert set(columns(row)) <= set(db[TABLES[row]].columns_dict)
    db.close()


def test_migrating_twice_changes_nothing() -> None:
    """A second run finds every step applied and leaves the schema as it is."""
    db = Database(memory=True)
    migrate(db)
    before = db.schema
    migrate(db)
    assert db.schema == before
    db.close()


def test_a_later_schema_is_left_alone(open_store: Callable[..., Store], path: Path) -> None:
    """A file that a later Halcyon migrated is not written to, byte for byte; serving goes on, status and commands say which steps are
    unknown and what to do; once the file is moved away a new history begins with the rows that waited."""
    store = open_store()
    store.commit_now().result(WAIT_S)
    store.close(timeout_s=WAIT_S)
    with closing(sqlite3.connect(path, isolation_level=None)) as later:
        later.execute("PRAGMA journal_mode = DELETE")
        later.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES (?, 'm999_later', '')", [MIGRATION_SET])
    before = path.read_bytes()
    older = open_store()
    older.record_decision(DecisionRow(at=1_800_000_000.0, kind="waited"))
    with pytest.raises(HistoryUnavailable, match="m999_later"):
        older.commit_now(DecisionRow(at=1_800_000_000.0, kind="refused")).result(WAIT_S)
    assert "move the file away" in older.status().degraded
    assert older.status().set_aside == ""
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    path.rename(path.with_name("later.db"))
    older.commit_now().result(WAIT_S)
    assert older.status().degraded == ""
    assert [kept.row.kind for kept in older.queries.decisions()] == ["waited"]


@pytest.mark.parametrize("name", ["history_v0_1.db"])
def test_released_files_load_and_go_on(open_store: Callable[..., Store], path: Path, name: str) -> None:
    """A file of every released schema is read in full, takes new rows, and loses none of the old ones."""
    shutil.copy(DATA / name, path)
    store = open_store(max_days=36_500)
    store.commit_now(DecisionRow(at=1_800_000_000.0, kind="new")).result(WAIT_S)
    requests = store.queries.requests(limit=1000)
    assert len(requests) == 40
    assert requests[-1].row.request_id == "req-0000"
    assert {k.row.outcome for k in requests} == {"ok", "queue_full"}
    assert {k.row.on_time for k in requests} == {True, False, None}
    decisions = store.queries.decisions(limit=1000)
    assert len(decisions) == 41
    assert decisions[1].row.facts == {"batch_size": 5, "queue_depth": 0}
    assert [k.row.event for k in store.queries.replica_events()] == ["ready", "loading", "starting"]
    assert [r.replica_id for r in store.queries.registrations()] == ["llama-v1-9"]
    assert store.status().set_aside == ""
