"""A history file that is full, locked, corrupt, gone or out of reach degrades the history and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from halcyon.store.file import MAX_SET_ASIDE, HistoryFile, HistoryUnavailable, is_corrupt, open_history
from halcyon.store.history import Store
from halcyon.store.rows import RequestRow
from halcyon.store.writer import backoff_s

WAIT_S = 30.0
Opener = Callable[..., Store]
Rows = Callable[..., RequestRow]


def commit_fails(store: Store, *rows: RequestRow) -> str:
    """Commits, expects a refusal, and returns its message."""
    with pytest.raises(HistoryUnavailable) as caught:
        store.commit_now(*rows).result(WAIT_S)
    return caught.value.message


def test_a_locked_file_degrades_and_recovers(open_store: Opener, path: Path, request_row: Rows) -> None:
    """While another program holds the write lock, `status` says so and rows wait; once it lets go they are written, each once."""
    store = open_store()
    store.commit_now().result(WAIT_S)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.record_request(request_row(1))
    assert "locked" in commit_fails(store, request_row(2))
    assert "locked" in store.status().degraded
    other.execute("ROLLBACK")
    other.close()
    store.commit_now().result(WAIT_S)
    assert store.status().degraded == ""
    assert [k.row.request_id for k in store.queries.requests()] == ["r1"]


def test_a_full_disk_degrades_and_recovers(open_store: Opener, request_row: Rows) -> None:
    """With no page left `status` names the full disk, memory keeps its bound, and the waiting rows are written when there is room."""
    pages = {"bound": 0}

    def open_bounded(path: Path, *, busy_timeout_ms: int) -> HistoryFile:
        file = open_history(path, busy_timeout_ms=busy_timeout_ms)
        if pages["bound"]:
            file.db.execute(f"PRAGMA max_page_count = {pages['bound']}")
        return file

    first = open_store()
    first.commit_now().result(WAIT_S)
    first.close(timeout_s=WAIT_S)  # it may still be at its retention, and hold the lock that nobody here waits for
    pages["bound"] = 1
    store = open_store(open_file=open_bounded, queue_rows=500)
    for index in range(2000):
        store.record_request(request_row(index))
    assert "full" in commit_fails(store)
    assert "full" in store.status().degraded
    assert store.status().rows_dropped >= 1500
    pages["bound"] = 0
    store.commit_now().result(WAIT_S)
    assert store.status().degraded == ""
    assert store.queries.requests(limit=1)[0].row.request_id == "r1999"
    assert store.status().rows_written + store.status().rows_dropped == 2000


def test_a_read_only_file_degrades_and_recovers(open_store: Opener, request_row: Rows) -> None:
    """While the file may only be read `status` says so; rows left meanwhile are written once it may be written again."""
    read_only = {"now": True}

    def open_guarded(path: Path, *, busy_timeout_ms: int) -> HistoryFile:
        file = open_history(path, busy_timeout_ms=busy_timeout_ms)
        file.db.execute(f"PRAGMA query_only = {int(read_only['now'])}")
        return file

    store = open_store(open_file=open_guarded)
    store.record_request(request_row(1))
    assert "readonly" in commit_fails(store)
    assert "readonly" in store.status().degraded
    read_only["now"] = False
    store.commit_now().result(WAIT_S)
    assert store.status().degraded == ""
    assert len(store.queries.requests()) == 1


def test_garbage_is_set_aside_and_a_new_file_begun(open_store: Opener, path: Path, request_row: Rows) -> None:
    """A file that is no database is renamed, byte for byte, and the history goes on in a new one without losing a row."""
    garbage = b"this is not a database, it is a shopping list\n" * 100
    path.write_bytes(garbage)
    store = open_store()
    store.commit_now(request_row(1)).result(WAIT_S)
    kept = path.with_name("history.db.corrupt-1")
    assert kept.read_bytes() == garbage
    assert store.status().set_aside == str(kept)
    assert store.status().degraded == ""
    assert len(store.queries.requests()) == 1


def test_a_page_that_rots_is_noticed_and_set_aside(open_store: Opener, path: Path, request_row: Rows) -> None:
    """A database whose pages were overwritten is set aside as well, next to an older corrupt one, whose name is not reused."""
    first = open_store()
    first.commit_now(*(request_row(i) for i in range(500))).result(WAIT_S)
    first.close(timeout_s=WAIT_S)
    size_bytes = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\xff" * (size_bytes - 4096))
    path.with_name("history.db.corrupt-1").write_bytes(b"older")
    store = open_store()
    store.commit_now(request_row(1)).result(WAIT_S)
    assert store.status().set_aside.endswith("history.db.corrupt-2")
    assert path.with_name("history.db.corrupt-1").read_bytes() == b"older"
    assert len(store.queries.requests()) == 1


def test_evidence_does_not_fill_the_disk(open_store: Opener, path: Path) -> None:
    """After 20 corrupt files the history stays degraded and says what to do, and no further file appears."""
    path.write_bytes(b"junk" * 100)
    for number in range(1, MAX_SET_ASIDE + 1):
        path.with_name(f"history.db.corrupt-{number}").touch()
    store = open_store()
    assert "not a database" in commit_fails(store)
    assert len(list(path.parent.glob("history.db.corrupt-*"))) == MAX_SET_ASIDE


def test_a_deleted_file_is_begun_anew(open_store: Opener, path: Path, request_row: Rows) -> None:
    """After `rm` of the live file the next rows go into a new one instead of into a file without a name."""
    store = open_store()
    store.commit_now(request_row(1)).result(WAIT_S)
    path.unlink()
    store.commit_now(request_row(2)).result(WAIT_S)
    assert [k.row.request_id for k in store.queries.requests()] == ["r2"]


def test_a_directory_that_is_not_there_yet_degrades_and_recovers(open_store: Opener, path: Path, tmp_path: Path, request_row: Rows) -> None:
    """Where the state directory cannot be made the history says why; once it can, the waiting rows are written."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory belongs")
    store = Store.open(blocked / "history.db", max_rows=10, max_days=36_500)
    store.record_request(request_row(1))
    assert "history file" in commit_fails(store)
    assert store.queries.requests() == []
    blocked.unlink()
    store.commit_now().result(WAIT_S)
    assert len(store.queries.requests()) == 1
    assert store.close(timeout_s=WAIT_S)


def test_a_history_that_never_opens_still_closes(path: Path, request_row: Rows) -> None:
    """A directory in the file's place: rows are counted as dropped at the end, and closing does not hang."""
    path.mkdir()
    store = Store.open(path, max_rows=10, max_days=30)
    store.record_request(request_row(1))
    assert store.close(timeout_s=WAIT_S)
    assert store.status().rows_dropped == 1
    assert store.status().degraded != ""


def test_retries_back_off_to_half_a_minute() -> None:
    """0.2 s, doubling, at most 30 s, however long the outage: memory and log stay quiet."""
    assert [backoff_s(n) for n in (1, 2, 3, 8, 9, 10_000)] == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0]


def test_only_corruption_moves_a_file(path: Path) -> None:
    """A lock or a full disk never counts as corruption: such a file stays where it is."""
    first, second = (sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2))
    first.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        second.execute("BEGIN EXCLUSIVE")
    assert not is_corrupt(caught.value)
    assert not is_corrupt(OSError(28, "No space left on device"))
    first.close()
    second.close()
