"""Whether and when a replica that died is started again.

Formula: delay = min(first × 2^(k − 1), longest) × U[1 − jitter, 1 + jitter], k = failures in a row. A replica that was ready for
`settled_ns` before it died begins a new row. Given up: after `most_failures` in a row that all lie within `window_ns`, or at once when
a restart cannot help. Every bound is stored as the instant at which it passes and compared with `now`; nothing subtracts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_NS_PER_S = 1_000_000_000
_WHAT_TO_DO = "see `halcyon status`; after mending the cause, `halcyon down` and `halcyon up`"


@dataclass(frozen=True, kw_only=True)
class RestartSettings:
    """Bounds of one replica's restarts, in nanoseconds where named so."""

    first_delay_ns: int = 1 * _NS_PER_S
    longest_delay_ns: int = 30 * _NS_PER_S
    jitter: float = 0.2
    """Half-width of the relative noise on a delay, in [0, 1)."""
    most_failures: int = 5
    window_ns: int = 600 * _NS_PER_S
    settled_ns: int = 60 * _NS_PER_S
    """Ready for this long, a replica counts as healthy and its failures are forgotten."""

    def __post_init__(self) -> None:
        if not 0 < self.first_delay_ns <= self.longest_delay_ns:
            raise ValueError(f"first_delay_ns is {self.first_delay_ns}; it must be above 0 and at most longest_delay_ns")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter is {self.jitter}; it must be in [0, 1)")
        if self.most_failures < 1:
            raise ValueError(f"most_failures is {self.most_failures}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Start it again at this monotonic instant."""

    instant_ns: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it; an operator must act. reason: a sentence for `status`."""

    reason: str


class RestartPolicy:
    """The failures of one replica. A new daemon begins with a new policy."""

    def __init__(self, settings: RestartSettings | None = None, *, rng: random.Random) -> None:
        self._settings = settings or RestartSettings()
        self._rng = rng
        self._in_a_row = 0
        self._recent_until_ns: list[int] = []  # for each failure in the row, when it leaves the window
        self._settled_at_ns: int | None = None

    def ready(self, *, now: int) -> None:
        """The replica became ready."""
        self._settled_at_ns = now + self._settings.settled_ns

    def failed(self, *, now: int, retryable: bool) -> RestartAt | GiveUp:
        """The replica died, could not start or was taken out. retryable: whether another start might do better."""
        if not retryable:
            return GiveUp(f"it cannot start as it is configured; {_WHAT_TO_DO}")
        if self._settled_at_ns is not None and now >= self._settled_at_ns:
            self._in_a_row, self._recent_until_ns = 0, []
        self._settled_at_ns = None
        self._in_a_row += 1
        self._recent_until_ns = [until_ns for until_ns in self._recent_until_ns if now < until_ns] + [now + self._settings.window_ns]
        if len(self._recent_until_ns) >= self._settings.most_failures:
            return GiveUp(
                f"it failed {len(self._recent_until_ns)} times within {self._settings.window_ns // _NS_PER_S} s "
                f"and never stayed ready for {self._settings.settled_ns // _NS_PER_S} s; {_WHAT_TO_DO}"
            )
        return RestartAt(now + self._delay_ns())

    def _delay_ns(self) -> int:
        doublings = min(self._in_a_row - 1, 32)  # far beyond any longest delay; keeps the number small
        delay_ns = min(self._settings.first_delay_ns << doublings, self._settings.longest_delay_ns)
        return round(delay_ns * self._rng.uniform(1 - self._settings.jitter, 1 + self._settings.jitter))
