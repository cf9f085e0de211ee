"""Retention: every log keeps at most `max_rows` rows and `max_days` days, removed a few at a time so that no commit waits long.

Only the oldest rows of a table are ever looked at (they are the lowest ids), so a step costs the same however large the history is.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlite_utils import Database

from halcyon.store.statements import PRUNED_TABLES

STEP_ROWS = 500
SECONDS_PER_DAY = 86_400

_STEP = """
DELETE FROM {table} WHERE id IN (
    SELECT id FROM (SELECT id, at FROM {table} ORDER BY id LIMIT ?)
    WHERE id <= (SELECT max(id) FROM {table}) - ? OR at < ?
)
"""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The bounds. max_rows: in each table."""

    max_rows: int
    max_days: int


def prune(db: Database, retention: Retention, *, wall_s: float, step_rows: int = STEP_ROWS) -> int:
    """One step: removes at most `step_rows` rows of each log that are over a bound, oldest first. Returns how many went."""
    oldest_s = wall_s - retention.max_days * SECONDS_PER_DAY
    with db.atomic():
        return sum(db.execute(_STEP.format(table=table), [step_rows, retention.max_rows, oldest_s]).rowcount for table in PRUNED_TABLES)
