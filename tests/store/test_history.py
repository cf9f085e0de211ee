"""What is recorded is kept, in time, and no caller ever waits for it."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from halcyon.store.file import HistoryFile, HistoryUnavailable, open_history
from halcyon.store.history import LINGER_S, Store
from halcyon.store.rows import DecisionRow, RegistrationRow, ReplicaRow, RequestRow

WAIT_S = 30.0
Opener = Callable[..., Store]
Rows = Callable[..., RequestRow]


def test_every_kind_of_row_comes_back_as_it_was_left(open_store: Opener, request_row: Rows) -> None:
    """Requests, decisions, replica events and registrations are read back equal, field for field and type for type."""
    store = open_store(wall_s=lambda: 10.0)
    sizes = {"cached_tokens": 64, "attempts": 2, "batch_size": 8, "deadline_ms": 900}
    request = request_row(1, stream=True, queue_ms=1.5, ttft_ms=20.25, tpot_ms=None, on_time=False, **sizes)
    decision = DecisionRow(at=5.5, kind="refuse", reason="queue_full", facts={"depth": 512, "lane": "bulk", "known": True, "none": None})
    event = ReplicaRow(at=6.5, replica_id="llama-v1-0", model="llama", version="v1", event="ready", pid=77, facts={"load_ms": 1.25})
    registration = RegistrationRow(replica_id="llama-v1-1", at=7.5, model="llama", version="v1", url="http://10.0.0.5/v1", api_key_env="K")
    store.record_request(request)
    store.record_decision(decision)
    store.record_replica(event)
    store.register(registration).result(WAIT_S)
    assert [k.row for k in store.queries.requests()] == [request]
    assert [k.row for k in store.queries.decisions()] == [decision]
    assert [k.row for k in store.queries.replica_events()] == [event]
    assert store.queries.registrations() == [registration]


def test_rows_are_written_without_anybody_asking(open_store: Opener, request_row: Rows) -> None:
    """A row that nobody waits for is committed by the writer itself, which lingers 100 ms at most: half of what the design allows."""
    tidied = threading.Semaphore(0)

    def wall_s() -> float:
        tidied.release()  # the writer asks for the wall clock after every commit
        return 0.0

    store = open_store(wall_s=wall_s)
    assert tidied.acquire(timeout=WAIT_S)
    store.record_request(request_row(1))
    assert tidied.acquire(timeout=WAIT_S)
    assert store.status().rows_written == 1
    assert LINGER_S <= 0.1


def test_close_writes_what_is_waiting(path: Path, request_row: Rows) -> None:
    """Rows left a moment before the end are in the file afterwards, and closing twice is harmless."""
    store = Store.open(path, max_rows=1000, max_days=30, linger_s=3600.0)
    for index in range(100):
        store.record_request(request_row(index))
    assert store.close(timeout_s=WAIT_S)
    assert store.close(timeout_s=WAIT_S)
    assert len(store.queries.requests(limit=1000)) == 100


def test_a_stuck_disk_never_blocks_callers_nor_grows(open_store: Opener, request_row: Rows) -> None:
    """While the writer hangs in the file, 5,000 rows are taken at once, 100 are kept, the newest, and 4,900 are counted."""
    released = threading.Event()

    def hang(path: Path, *, busy_timeout_ms: int) -> HistoryFile:
        assert released.wait(WAIT_S)
        return open_history(path, busy_timeout_ms=busy_timeout_ms)

    store = open_store(open_file=hang, queue_rows=100)
    for index in range(5000):
        store.record_request(request_row(index))
    assert store.status().rows_dropped == 4900
    released.set()
    store.commit_now().result(WAIT_S)
    kept = store.queries.requests(limit=1000)
    assert [k.row.request_id for k in kept] == [f"r{i}" for i in range(4999, 4899, -1)]


@pytest.mark.parametrize(
    "changes",
    [{"prompt_tokens": 2**70}, {"model": "\ud800"}, {"model": None}, {"version": object()}, {"prompt_tokens": "many"}],
    ids=["too large", "surrogate", "null", "object", "wrong type"],
)
def test_a_row_that_cannot_be_stored_costs_only_itself(open_store: Opener, request_row: Rows, changes: dict[str, object]) -> None:
    """A bad value drops its own row, counted; rows before and after it in the same batch are written, and nothing is degraded."""
    store = open_store(linger_s=3600.0)
    store.record_request(request_row(1))
    store.record_request(request_row(2, **changes))
    store.record_request(request_row(3))
    store.commit_now().result(WAIT_S)
    assert [k.row.request_id for k in store.queries.requests()] == ["r3", "r1"]
    assert store.status().degraded == ""
    assert (store.status().rows_written, store.status().rows_dropped) == (2, 1)


def test_a_fact_that_is_no_json_drops_its_row(open_store: Opener) -> None:
    """NaN has no JSON form: that decision is counted as dropped, the next one is kept."""
    store = open_store(wall_s=lambda: 0.0)
    store.record_decision(DecisionRow(at=1.0, kind="bad", facts={"predicted_ms": float("nan")}))
    store.record_decision(DecisionRow(at=1.0, kind="good"))
    store.commit_now().result(WAIT_S)
    assert [k.row.kind for k in store.queries.decisions()] == ["good"]
    assert store.status().rows_dropped == 1


def test_a_bad_row_fails_only_the_command_that_brought_it(open_store: Opener, request_row: Rows) -> None:
    """Of two commits in one batch the one with a bad row raises, the other is durable."""
    store = open_store()
    bad = store.commit_now(request_row(1, prompt_tokens=2**70))
    good = store.commit_now(request_row(2))
    good.result(WAIT_S)
    assert isinstance(bad.exception(WAIT_S), HistoryUnavailable)
    assert [k.row.request_id for k in store.queries.requests()] == ["r2"]


def test_registrations_replace_and_go(open_store: Opener) -> None:
    """Registering a replica again keeps one row; unregistering it, even twice, leaves none."""
    store = open_store()
    for url in ("http://a/v1", "http://b/v1"):
        store.register(RegistrationRow(replica_id="m-v1-1", at=1.0, model="m", version="v1", url=url)).result(WAIT_S)
    assert [r.url for r in store.queries.registrations()] == ["http://b/v1"]
    store.unregister("m-v1-1").result(WAIT_S)
    store.unregister("m-v1-1").result(WAIT_S)
    assert store.queries.registrations() == []


def test_a_caller_that_stops_waiting_changes_nothing(open_store: Opener, request_row: Rows) -> None:
    """A commit's future cannot be cancelled under the writer: the row is kept and the writer goes on."""
    store = open_store()
    future: Future[None] = store.commit_now(request_row(1))
    assert not future.cancel()
    store.commit_now(request_row(2)).result(WAIT_S)
    assert len(store.queries.requests()) == 2


def test_after_close_rows_are_counted_and_commits_refused(open_store: Opener, request_row: Rows) -> None:
    """Nothing left after the end waits for ever: a row is counted as dropped, a commit raises at once."""
    store = open_store()
    store.close(timeout_s=WAIT_S)
    store.record_request(request_row(1))
    assert store.status().rows_dropped == 1
    with pytest.raises(HistoryUnavailable, match="closed"):
        store.commit_now(request_row(2)).result(0)


def test_only_the_owner_can_read_the_files(open_store: Opener, path: Path, request_row: Rows) -> None:
    """The history and SQLite's files beside it have mode 0600, also where the history was wider before."""
    path.touch(mode=0o644)
    path.chmod(0o644)
    open_store().commit_now(request_row(1)).result(WAIT_S)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(["history.db", "history.db-wal", "history.db-shm"], 0o600)
