"""The one thread that writes the history.

It takes what callers left, at most every `linger_s`, and commits it in one transaction. What goes wrong is sorted by whose fault it is:

    the row's      (a number SQLite cannot hold, a fact that is no JSON)   that row is dropped and counted, the others are written
    the file's     (corrupt)                                               set aside, a new file begun, the same rows written to it
    the world's    (full, locked, read-only, gone)                         rows wait in the bounded mailbox, retried with backoff
    nobody's       (a schema of a later Halcyon)                           rows wait likewise; nothing of the file is touched

The thread touches nothing but its own connection, and never stops a caller.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlite_utils import Database

from halcyon.store.file import HistoryFile, HistoryTooNew, HistoryUnavailable, is_corrupt, open_history, set_aside
from halcyon.store.mailbox import Batch, Commit, Mailbox
from halcyon.store.prune import STEP_ROWS, Retention, prune
from halcyon.store.rows import Row
from halcyon.store.statements import parameters, statement

log = logging.getLogger("halcyon.store")

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0

_Fault = sqlite3.Error | OSError | HistoryTooNew
"""What keeps a batch from being written."""
_ROW_FAULTS = (ValueError, TypeError, OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.IntegrityError)


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """How the thread writes.

    Attributes:
        linger_s: how long a first row waits for company. busy_timeout_ms: how long another program's lock is waited for.
        wall_s: the wall clock, for retention alone. open_file: opens the file; tests pass one that runs full.
    """

    retention: Retention
    linger_s: float
    busy_timeout_ms: int
    wall_s: Callable[[], float]
    open_file: Callable[..., HistoryFile] = open_history


def backoff_s(failures: int) -> float:
    """Seconds before the next try after so many failures in a row: 0.2, 0.4, … 30."""
    return min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16))


class Writer:
    """Owns the thread and the connection. `rows_written`, `degraded` and `set_aside` may be read from any thread.

    Attributes:
        degraded: why rows are not being written now; '' when they are. set_aside: the last corrupt file's new name; '' when none.
    """

    def __init__(self, path: Path, mailbox: Mailbox, settings: WriterSettings) -> None:
        self._path = path
        self._mailbox = mailbox
        self._settings = settings
        self._file: HistoryFile | None = None
        self._failures = 0
        self.rows_written = 0
        self.degraded = ""
        self.set_aside = ""
        self._thread = threading.Thread(target=self._run, name="history-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread, which opens the file."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread to end after the mailbox was closed; false when it has not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        batch = Batch([], [], closing=False)
        try:
            while not batch.closing:
                self._write(batch)
                linger_s = backoff_s(self._failures) if self._failures else self._settings.linger_s
                batch = self._mailbox.take(linger_s=linger_s)
            self._write(batch)
        finally:
            self._end()

    def _end(self) -> None:
        """Leaves nobody waiting, whatever ended the thread."""
        self._mailbox.close()
        rest = self._mailbox.take(linger_s=0)
        self._mailbox.count_dropped(len(rest.rows))
        _fail(rest.commits, "the history is closed")
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, batch: Batch) -> None:
        """Writes the batch, or puts its rows back and notes why. Rows of a failed commit are not kept: whoever waits was told."""
        error = self._attempt(batch)
        if error is not None and is_corrupt(error) and self._begin_anew():
            error = self._attempt(batch)
        if error is not None:
            self._degrade(_reason(error), batch)
            return
        self._recover()
        for commit in batch.commits:
            commit.done.set_result(None)
        self._tidy(STEP_ROWS + len(batch.rows))

    def _attempt(self, batch: Batch) -> _Fault | None:
        """Commits everything, or nothing and returns why."""
        try:
            db = self._open().db
            rows = [*batch.rows, *itertools.chain.from_iterable(c.rows for c in batch.commits)]
            try:
                written = _insert(db, rows)
            except _ROW_FAULTS:
                written = self._insert_one_by_one(db, batch)
        except (sqlite3.Error, OSError, HistoryTooNew) as error:
            return error
        self.rows_written += written
        return None

    def _tidy(self, step_rows: int) -> None:
        """Retention, after the rows are safe: what goes wrong here must not have them written twice."""
        if self._file is None:
            return
        try:
            prune(self._file.db, self._settings.retention, wall_s=self._settings.wall_s(), step_rows=step_rows)
        except sqlite3.Error as error:
            self.degraded = _reason(error)
            if is_corrupt(error):
                self._begin_anew()

    def _insert_one_by_one(self, db: Database, batch: Batch) -> int:
        """For a batch with a row in it that cannot be stored. A commit with such a row fails alone."""
        with db.atomic():
            written = sum(self._insert_or_drop(db, [row]) for row in batch.rows)
            for commit in list(batch.commits):
                stored = self._insert_or_drop(db, commit.rows)
                written += stored
                if stored < len(commit.rows):
                    batch.commits.remove(commit)
                    _fail([commit], "a row holds a value that cannot be stored")
        return written

    def _insert_or_drop(self, db: Database, rows: Iterable[Row]) -> int:
        wanted = list(rows)
        try:
            return _insert(db, wanted)
        except _ROW_FAULTS as error:
            self._mailbox.count_dropped(len(wanted))
            _warn("history_row_dropped", row=type(wanted[0]).__name__, error=type(error).__name__)
            return 0

    def _open(self) -> HistoryFile:
        if self._file is not None and not self._file.is_current():
            _warn("history_file_gone", path=str(self._path))
            self._close_file()
        if self._file is None:
            self._file = self._settings.open_file(self._path, busy_timeout_ms=self._settings.busy_timeout_ms)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _begin_anew(self) -> bool:
        """Moves the corrupt file out of the way; false when that failed."""
        self._close_file()
        try:
            self.set_aside = str(set_aside(self._path))
        except OSError as error:
            _warn("history_set_aside_failed", path=str(self._path), reason=str(error.strerror))
            return False
        _warn("history_corrupt", path=str(self._path), set_aside=self.set_aside)
        return True

    def _degrade(self, reason: str, batch: Batch) -> None:
        if not self._failures:
            _warn("history_degraded", reason=reason)
        self._failures += 1
        self.degraded = reason
        self._close_file()
        _fail(batch.commits, reason)
        self._mailbox.count_dropped(sum(len(c.rows) for c in batch.commits))
        if batch.closing:
            self._mailbox.count_dropped(len(batch.rows))
        else:
            self._mailbox.put_back(batch.rows)

    def _recover(self) -> None:
        if self._failures:
            _warn("history_recovered", failures=self._failures)
        self._failures = 0
        self.degraded = ""


def _insert(db: Database, rows: list[Row]) -> int:
    """All rows in one transaction, in their order; a run of one kind is one statement."""
    with db.atomic():
        for cls, run in itertools.groupby(rows, key=type):
            db.conn.executemany(statement(cls), [parameters(row) for row in run])
    return len(rows)


def _fail(commits: Iterable[Commit], reason: str) -> None:
    for commit in commits:
        commit.done.set_exception(HistoryUnavailable(f"The history cannot be written: {reason}."))


def _reason(error: _Fault) -> str:
    """The error for people: SQLite's own words for its errors, the system's for files, ours for the rest."""
    if isinstance(error, HistoryTooNew):
        return error.message
    if isinstance(error, OSError):
        return f"history file: {error.strerror or type(error).__name__}"
    return f"history file: {error}"


def _warn(event: str, **fields: str | int) -> None:
    """One line of the daemon's log: a fixed name and fields."""
    log.warning(event, extra={"fields": fields})
