"""Where callers leave rows and the writer thread takes them. Bounded: over `max_rows` the oldest row makes room and is counted.

The oldest goes, because after an outage people ask about what came last. Rows that a command waits for (`Commit`) are never dropped in
silence: each ends in its future, one way or the other.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from halcyon.store.rows import Row

MAX_COMMITS = 1000


@dataclass(frozen=True)
class Commit:
    """Rows somebody waits for. The future gives `None` once they, and all rows left before them, are committed.

    The future cannot be cancelled: whoever stops waiting changes nothing, and the writer may always set its result.
    """

    rows: tuple[Row, ...]
    done: Future[None] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.done.set_running_or_notify_cancel()


@dataclass(frozen=True)
class Batch:
    """What the writer does next. closing: there will be nothing after it."""

    rows: list[Row]
    commits: list[Commit]
    closing: bool


class Mailbox:
    """Thread-safe; `put` and `put_commit` return at once."""

    def __init__(self, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._rows: deque[Row] = deque()
        self._commits: list[Commit] = []
        self._closing = False
        self._changed = threading.Condition()
        self.dropped = 0

    def put(self, row: Row) -> None:
        """Leaves a row. After `close` it is counted as dropped."""
        with self._changed:
            if self._closing:
                self.dropped += 1
                return
            self._rows.append(row)
            self._trim()
            self._changed.notify()

    def put_commit(self, commit: Commit) -> bool:
        """Leaves rows to be committed now; false when closed, or when too many callers wait already."""
        with self._changed:
            if self._closing or len(self._commits) >= MAX_COMMITS:
                return False
            self._commits.append(commit)
            self._changed.notify()
            return True

    def put_back(self, rows: list[Row]) -> None:
        """Returns rows that could not be written, to the front."""
        with self._changed:
            self._rows.extendleft(reversed(rows))
            self._trim()

    def count_dropped(self, count: int) -> None:
        """Counts rows that will never be written."""
        with self._changed:
            self.dropped += count

    def take(self, *, linger_s: float) -> Batch:
        """Waits for a first row, then up to `linger_s` for more; a commit or the closing ends the wait at once. Takes everything."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._rows) or self._is_urgent())
            self._changed.wait_for(self._is_urgent, timeout=linger_s)
            batch = Batch(list(self._rows), self._commits, self._closing)
            self._rows.clear()
            self._commits = []
            return batch

    def close(self) -> None:
        """Nothing is accepted from now on; the writer gets what is here as its last batch."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _is_urgent(self) -> bool:
        return bool(self._commits) or self._closing

    def _trim(self) -> None:
        while len(self._rows) > self._max_rows:
            self._rows.popleft()
            self.dropped += 1
