"""The history answers by filter, newest first, bounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from halcyon.store.file import HistoryUnavailable
from halcyon.store.history import Store
from halcyon.store.queries import Queries
from halcyon.store.rows import DecisionRow, RequestRow

WAIT_S = 30.0


def test_requests_filter_and_limit(open_store: Callable[..., Store], request_row: Callable[..., RequestRow]) -> None:
    """Every filter must match, '' filters nothing, and the limit keeps the newest."""
    store = open_store()
    rows = [request_row(i, model=f"m{i % 2}", outcome="ok" if i % 3 else "queue_full", tenant=f"t{i % 5}") for i in range(30)]
    store.commit_now(*rows).result(WAIT_S)
    assert [k.row for k in store.queries.requests(limit=3)] == [rows[29], rows[28], rows[27]]
    assert [k.row for k in store.queries.requests(model="m1", outcome="queue_full")] == [rows[i] for i in (27, 21, 15, 9, 3)]
    assert [k.row for k in store.queries.requests(request_id="r7", tenant="t2")] == [rows[7]]
    assert store.queries.requests(model="' OR 1=1 --") == []


def test_decisions_can_be_followed(open_store: Callable[..., Store]) -> None:
    """Asking for what came after the last id gives each later decision once, and only those that match."""
    store = open_store(wall_s=lambda: 0.0)
    store.commit_now(*(DecisionRow(at=1.0, kind="dispatch", request_id=f"r{i}") for i in range(5))).result(WAIT_S)
    last = store.queries.decisions()[0].id
    assert store.queries.decisions(after_id=last) == []
    store.commit_now(DecisionRow(at=2.0, kind="refuse", request_id="r9"), DecisionRow(at=2.0, kind="dispatch")).result(WAIT_S)
    assert [k.row.kind for k in store.queries.decisions(after_id=last)] == ["dispatch", "refuse"]
    assert [k.row.request_id for k in store.queries.decisions(after_id=last, kind="refuse")] == ["r9"]


def test_an_absent_file_is_an_empty_history(tmp_path: Path) -> None:
    """Before the first start there is nothing to read and nothing to complain about; no file is made by asking."""
    queries = Queries(tmp_path / "history.db")
    assert (queries.requests(), queries.decisions(), queries.replica_events(), queries.registrations()) == ([], [], [], [])
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    """A file that is no database raises with the reason instead of looking empty."""
    path = tmp_path / "history.db"
    path.write_bytes(b"junk" * 1000)
    with pytest.raises(HistoryUnavailable, match="not a database"):
        Queries(path).requests()
