"""The schema of the history, as the steps that led to it.

Rules: steps are appended, never changed, never reordered, and name their columns themselves instead of reading them off the row classes,
which move on. A file of every released schema is kept under tests/data and must migrate for ever.
"""

from __future__ import annotations

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

MIGRATION_SET = "halcyon_history"


def _create(db: Database, table: str, columns: dict[str, type], *, pk: str, nullable: tuple[str, ...] = ()) -> None:
    """A table whose columns hold nothing but their type, and no null unless they are `nullable`: a bad row is refused when it is
    written, not met when it is read."""
    not_null = [name for name in columns if name not in nullable and name != "id"]
    db[table].create(columns, pk=pk, not_null=not_null, strict=True)


def m001_initial(db: Database) -> None:
    """Requests, decisions, replicas' lives, and registrations."""
    _create(
        db,
        "requests",
        {
            "id": int,
            "request_id": str,
            "at": float,
            "tenant": str,
            "model": str,
            "version": str,
            "replica_id": str,
            "endpoint": str,
            "stream": int,
            "prompt_tokens": int,
            "output_tokens": int,
            "cached_tokens": int,
            "queue_ms": float,
            "ttft_ms": float,
            "tpot_ms": float,
            "total_ms": float,
            "outcome": str,
            "finish_reason": str,
            "attempts": int,
            "batch_size": int,
            "deadline_ms": int,
            "on_time": int,
        },
        pk="id",
        nullable=(
            "queue_ms",
            "ttft_ms",
            "tpot_ms",
            "total_ms",
            "deadline_ms",
            "on_time",
        ),
    )
    db["requests"].create_index(["request_id"])
    _create(
        db,
        "decisions",
        {
            "id": int,
            "at": float,
            "kind": str,
            "request_id": str,
            "model": str,
            "version": str,
            "replica_id": str,
            "reason": str,
            "facts": str,
        },
        pk="id",
    )
    db["decisions"].create_index(["request_id"])
    _create(
        db,
        "replicas",
        {
            "id": int,
            "at": float,
            "replica_id": str,
            "model": str,
            "version": str,
            "runtime": str,
            "event": str,
            "detail": str,
            "pid": int,
            "url": str,
            "facts": str,
        },
        pk="id",
        nullable=("pid",),
    )
    db["replicas"].create_index(["replica_id"])
    _create(
        db,
        "registrations",
        {
            "replica_id": str,
            "at": float,
            "model": str,
            "version": str,
            "url": str,
            "remote_model": str,
            "api_key_env": str,
            "max_batch": int,
            "max_context": int,
        },
        pk="replica_id",
    )


STEPS = (m001_initial,)
"""In order; append only."""


def migrate(db: Database) -> None:
    """Brings `db` to the newest schema; each step in a transaction of its own, none twice."""
    migrations = Migrations(MIGRATION_SET)
    for step in STEPS:
        migrations()(step)
    migrations.apply(db)


def unknown_steps(db: Database) -> list[str]:
    """Steps of a later Halcyon that `db` has been through, in order; none where it is ours to write. Reads only."""
    known = {step.__name__ for step in STEPS}
    return [step.name for step in Migrations(MIGRATION_SET).applied(db) if step.name not in known]
