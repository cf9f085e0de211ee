"""How fast requests are being served, for telling a refused client when to come back.

Formula: rate = (n − 1) finishes / (now − first of the last n finishes), n ≤ 32, within the current busy period; a stall makes it fall.
retry after = requests ahead / rate, at most a minute; one second while the rate is unknown.
"""

from __future__ import annotations

from collections import deque

_WINDOW = 32
_UNKNOWN_MS = 1_000
_LONGEST_MS = 60_000
_NS_PER_MS = 1_000_000


class ServiceRate:
    """The finishes of one (model, version)."""

    def __init__(self) -> None:
        self._finishes_ns: deque[int] = deque(maxlen=_WINDOW)

    def finished(self, *, now: int) -> None:
        """A request was served to its end."""
        self._finishes_ns.append(now)

    def idled(self) -> None:
        """Nothing waits and nothing runs: what comes next is another busy period."""
        self._finishes_ns.clear()

    def retry_after_ms(self, ahead: int, *, now: int) -> int:
        """Milliseconds until `ahead` requests will have been served; at least 1."""
        intervals = len(self._finishes_ns) - 1
        if intervals < 1 or now <= self._finishes_ns[0]:
            return _UNKNOWN_MS
        wait_ms = max(1, ahead) * (now - self._finishes_ns[0]) // (intervals * _NS_PER_MS)
        return min(max(1, wait_ms), _LONGEST_MS)
