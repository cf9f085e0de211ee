"""The daemon's history: leave rows, ask how it stands, read it back.

`Store.open` and every `record_…` return at once and never raise for the sake of the file: a full disk, a locked, corrupt or missing file
degrades the history alone, and `status` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from halcyon import clock
from halcyon.store.file import HistoryFile, HistoryUnavailable, open_history
from halcyon.store.mailbox import Commit, Mailbox
from halcyon.store.prune import Retention
from halcyon.store.queries import Queries
from halcyon.store.rows import DecisionRow, RegistrationRemoved, RegistrationRow, ReplicaRow, RequestRow, Row
from halcyon.store.writer import Writer, WriterSettings
from halcyon.wire.control import StoreStatus

LINGER_S = 0.1
"""Rows wait this long for company, so they trail by this and the time of one commit: under 200 ms."""


class Store:
    """One history file. `record_*` and `commit_now` may be called from any thread."""

    def __init__(self, path: Path, writer: Writer, mailbox: Mailbox) -> None:
        self._path = path
        self._writer = writer
        self._mailbox = mailbox
        self.queries = Queries(path)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        max_rows: int,
        max_days: int,
        queue_rows: int = 10_000,
        linger_s: float = LINGER_S,
        busy_timeout_ms: int = 1000,
        wall_s: Callable[[], float] = clock.wall_s,
        open_file: Callable[..., HistoryFile] = open_history,
    ) -> Store:
        """Starts the writer on `path`. max_rows / max_days: kept in each log. queue_rows: rows waiting in memory, at most."""
        mailbox = Mailbox(max_rows=queue_rows)
        settings = WriterSettings(
            retention=Retention(max_rows=max_rows, max_days=max_days),
            linger_s=linger_s,
            busy_timeout_ms=busy_timeout_ms,
            wall_s=wall_s,
            open_file=open_file,
        )
        writer = Writer(path, mailbox, settings)
        writer.start()
        return cls(path, writer, mailbox)

    def record_request(self, row: RequestRow) -> None:
        """Leaves the audit row of a request that ended."""
        self._mailbox.put(row)

    def record_decision(self, row: DecisionRow) -> None:
        """Leaves a decision."""
        self._mailbox.put(row)

    def record_replica(self, row: ReplicaRow) -> None:
        """Leaves an event in a replica's life."""
        self._mailbox.put(row)

    def register(self, row: RegistrationRow) -> Future[None]:
        """Keeps a registration, replacing one of the same replica. See `commit_now` for the future."""
        return self.commit_now(row)

    def unregister(self, replica_id: str) -> Future[None]:
        """Forgets a registration; none is fine too. See `commit_now` for the future."""
        return self.commit_now(RegistrationRemoved(replica_id))

    def commit_now(self, *rows: Row) -> Future[None]:
        """Commits these rows and everything recorded before, without waiting for company.

        The future gives `None` once they are committed, or raises `HistoryUnavailable`: then these rows were not kept. From asyncio:
        `await asyncio.wrap_future(store.commit_now())`. Right after `open` it also tells whether the file could be opened.
        """
        commit = Commit(rows)
        if not self._mailbox.put_commit(commit):
            commit.done.set_exception(HistoryUnavailable("The history cannot be written: it is closed, or too many commands wait for it."))
        return commit.done

    def status(self) -> StoreStatus:
        """How the history stands."""
        return StoreStatus(
            path=str(self._path),
            rows_written=self._writer.rows_written,
            rows_dropped=self._mailbox.dropped,
            degraded=self._writer.degraded,
            set_aside=self._writer.set_aside,
        )

    def close(self, *, timeout_s: float = 10.0) -> bool:
        """Writes what is waiting and ends the thread. Blocking; false when it did not end in time. A second call is harmless."""
        self._mailbox.close()
        return self._writer.join(timeout_s)
