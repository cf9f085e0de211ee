"""Virtual time: a heap of instants and what happens at them.

Rules: time never goes back, and what is scheduled for the past is an error of whoever scheduled it. Things of one instant happen in the
order in which they were scheduled. A loop that spins at one instant raises `TimeStalled` instead of hanging.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

SPIN_LIMIT = 100_000
"""Happenings at one instant after which time counts as stalled. Far more than any burst of arrivals in a test."""


class TimeStalled(RuntimeError):
    """The simulation goes on and on without time advancing."""


class VirtualTime:
    """The clock and the agenda of one simulation. Instants are ns from 0."""

    def __init__(self, *, spin_limit: int = SPIN_LIMIT) -> None:
        self.now = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._spin_limit = spin_limit

    def at(self, instant_ns: int, happen: Callable[[], None]) -> None:
        """Schedules something for an instant that is not past."""
        if instant_ns < self.now:
            raise ValueError(f"instant {instant_ns} ns is {self.now - instant_ns} ns in the past")
        heapq.heappush(self._agenda, (instant_ns, self._scheduled, happen))
        self._scheduled += 1

    def run(self, *, after_each: Callable[[], None] | None = None) -> None:
        """Lets everything happen, until the agenda is empty. `after_each` is called after each happening (invariants of tests)."""
        at_this_instant = 0
        while self._agenda:
            instant_ns, _, happen = heapq.heappop(self._agenda)
            at_this_instant = at_this_instant + 1 if instant_ns == self.now else 0
            if at_this_instant > self._spin_limit:
                raise TimeStalled(f"{at_this_instant} happenings at {instant_ns} ns and no end")
            self.now = instant_ns
            happen()
            if after_each is not None:
                after_each()
