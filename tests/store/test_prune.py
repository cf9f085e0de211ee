"""Logs stay within their bounds in rows and days, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlite_utils import Database

from halcyon.store.migrations import migrate
from halcyon.store.prune import SECONDS_PER_DAY, Retention, prune
from halcyon.store.rows import DecisionRow, RegistrationRow
from halcyon.store.statements import parameters, statement

NOW_S = 100.0 * SECONDS_PER_DAY


@pytest.fixture
def db() -> Iterator[Database]:
    """A blank history in memory."""
    made = Database(memory=True)
    migrate(made)
    yield made
    made.close()


def fill(db: Database, days_old: list[float]) -> None:
    """One decision of each age, in the order given."""
    with db.atomic():
        rows = [DecisionRow(at=NOW_S - age * SECONDS_PER_DAY, kind=f"d{i}") for i, age in enumerate(days_old)]
        db.conn.executemany(statement(DecisionRow), [parameters(row) for row in rows])


def kinds(db: Database) -> list[str]:
    """What is left."""
    return [row["kind"] for row in db["decisions"].rows_where(order_by="id")]


def test_rows_over_the_bound_go_oldest_first(db: Database) -> None:
    """Of ten rows with a bound of four the newest four stay, and a second step finds nothing to do."""
    fill(db, [0.0] * 10)
    retention = Retention(max_rows=4, max_days=30)
    assert prune(db, retention, wall_s=NOW_S) == 6
    assert kinds(db) == ["d6", "d7", "d8", "d9"]
    assert prune(db, retention, wall_s=NOW_S) == 0


def test_days_over_the_bound_go(db: Database) -> None:
    """With 30 days to keep, what is 31 days old goes and what is 29 days old stays."""
    fill(db, [40.0, 31.0, 29.0, 0.0])
    assert prune(db, Retention(max_rows=100, max_days=30), wall_s=NOW_S) == 2
    assert kinds(db) == ["d2", "d3"]


def test_a_step_is_small(db: Database) -> None:
    """A bound lowered by much is reached in steps of the size asked for, not in one long transaction."""
    fill(db, [0.0] * 25)
    retention = Retention(max_rows=5, max_days=30)
    assert [prune(db, retention, wall_s=NOW_S, step_rows=8) for _ in range(4)] == [8, 8, 4, 0]


def test_a_clock_set_back_removes_nothing(db: Database) -> None:
    """A wall clock that jumps back an hour, or to 1970, makes nothing look old."""
    fill(db, [1.0, 0.0])
    assert prune(db, Retention(max_rows=100, max_days=30), wall_s=NOW_S - 3600) == 0
    assert prune(db, Retention(max_rows=100, max_days=30), wall_s=0.0) == 0


def test_registrations_are_never_pruned(db: Database) -> None:
    """A replica registered years ago is state, not history: it stays."""
    row = RegistrationRow(replica_id="m-v1-1", at=0.0, model="m", version="v1", url="http://a/v1")
    with db.atomic():
        db.execute(statement(RegistrationRow), list(parameters(row)))
    assert prune(db, Retention(max_rows=1, max_days=1), wall_s=NOW_S) == 0
    assert db["registrations"].count == 1
