"""The history's file: opened, recognised when it was replaced under us, and set aside when it is corrupt.

WAL with synchronous=NORMAL: a commit survives the death of the process at any instant, and a power cut can cost the last commits but not
the file. Nothing here ever deletes a file.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlite_utils import Database

from halcyon.errors import HalcyonError
from halcyon.store.migrations import migrate, unknown_steps

MAX_SET_ASIDE = 20
"""Corrupt files kept beside the live one; a disk that corrupts everything must not be filled with the evidence."""

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class HistoryUnavailable(HalcyonError):
    """The history cannot be written or read now; the message says why. Serving goes on without it."""


class HistoryTooNew(HistoryUnavailable):
    """A later Halcyon has changed the file's schema; writing to it with the old one could spoil it, so it is left alone."""


@dataclass(frozen=True)
class HistoryFile:
    """An open, migrated history. `identity` is the file's device and inode when it was opened."""

    path: Path
    db: Database
    identity: tuple[int, int]

    def is_current(self) -> bool:
        """Whether `path` still names the file that is open; false after somebody deleted or replaced it."""
        return _identity(self.path) == self.identity

    def close(self) -> None:
        """Closes the connection; what was not committed is gone."""
        self.db.close()


def open_history(path: Path, *, busy_timeout_ms: int) -> HistoryFile:
    """Opens or creates the file (mode 0600) and migrates it. The connection belongs to the calling thread.

    Raises:
        OSError: the directory or file cannot be made. sqlite3.Error: not a database, locked, full, read-only, or not to be migrated.
        HistoryTooNew: a later Halcyon's; nothing of it was changed.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _create(path)
    _refuse_newer(path, busy_timeout_ms)
    identity = _identity(path)
    connection = sqlite3.connect(path, timeout=busy_timeout_ms / 1000)
    try:
        db = Database(connection, execute_plugins=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {16 * 1024 * 1024}")
        migrate(db)
    except sqlite3.Error:
        connection.close()
        raise
    return HistoryFile(path, db, identity)


def _refuse_newer(path: Path, busy_timeout_ms: int) -> None:
    """Looks through a connection that cannot write, since the other one changes the file's mode as it opens it."""
    with closing(sqlite3.connect(read_only_uri(path), uri=True, timeout=busy_timeout_ms / 1000)) as connection:
        steps = unknown_steps(Database(connection, execute_plugins=False))
    if steps:
        newer = f"{path} was written by a later Halcyon (its schema has {', '.join(steps)})"
        raise HistoryTooNew(f"{newer}; run that one again, or move the file away to begin a new history")


def read_only_uri(path: Path) -> str:
    """The file as SQLite opens it for reading alone."""
    return f"{path.absolute().as_uri()}?mode=ro"


def _create(path: Path) -> None:
    """Makes an empty file for SQLite to fill, since it would make one that others can read. An existing file is not even opened:
    closing it again would take SQLite's own locks off it for this whole process."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        path.chmod(0o600)


def is_corrupt(error: Exception) -> bool:
    """Whether the error says that the file is no sound database, as opposed to one that is locked, full or out of reach."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _CORRUPT


def set_aside(path: Path) -> Path:
    """Renames a corrupt file, with its write-ahead log, to the first free `NAME.corrupt-N`. Returns the new name.

    Raises:
        OSError: it cannot be renamed, or too many stand there already.
    """
    for number in range(1, MAX_SET_ASIDE + 1):
        kept = path.with_name(f"{path.name}.corrupt-{number}")
        if not kept.exists():
            path.rename(kept)
            for suffix in ("-wal", "-shm"):
                beside = path.with_name(path.name + suffix)
                if beside.exists():
                    beside.rename(kept.with_name(kept.name + suffix))
            return kept
    raise FileExistsError(None, f"{MAX_SET_ASIDE} corrupt files stand beside it already; move them away")


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_dev, found.st_ino)
