"""The one place that reads a clock. Everything that decides takes `now` from whoever called it.

`now_ns` is CLOCK_MONOTONIC, which all processes of one machine share, so instants may cross a worker's socket. `wall_s` is for people
and for rows of history only: no decision is made on it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def now_ns() -> int:
    """Nanoseconds on the monotonic clock."""
    return time.monotonic_ns()  # noqa: TID251 - this module is the clock


def wall_s() -> float:
    """Seconds since the Unix epoch, for people and history."""
    return time.time()  # noqa: TID251 - this module is the clock


def wall_iso() -> str:
    """The wall clock as ISO 8601 in UTC, for logs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")  # noqa: TID251 - this module is the clock
