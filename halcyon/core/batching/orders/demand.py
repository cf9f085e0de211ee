"""From which device cost on a prompt is not worth its place, on one continuous replica: the fluid price of `price` with one class.

Every request costs c·prompt + b·answer of device time. Iterations of length tau lose a each to overhead, so 1 − a/tau of the time is
there to be spent; requests are taken in increasing cost until it is. The cost at which it ends is the limit.
"""

from __future__ import annotations

from halcyon.core.batching.histogram import BINS, Traffic, bin_bounds
from halcyon.core.batching.price import NO_LIMIT, SAFETY

UNIT_SHIFT = 16
"""Costs are counted in units of 2^16 ns."""
SOLVE_EVERY_NS = 500_000_000
COLD_ARRIVALS = 20


class Demand:
    """The traffic of one replica by device cost, and the limit that follows."""

    def __init__(self) -> None:
        self._traffic: Traffic | None = None
        self._solve_ns = 0
        self._limit_ns = NO_LIMIT

    @property
    def limit_ns(self) -> int:
        """Largest device cost that is served before everything else, ns."""
        return self._limit_ns

    def arrived(self, cost_ns: int, *, now: int) -> None:
        """One request was seen for the first time."""
        if self._traffic is None:
            self._traffic = Traffic(now=now)
        units = max(1, cost_ns >> UNIT_SHIFT)
        self._traffic.add(rank=units, tokens=units, worth=1.0, span_ns=SOLVE_EVERY_NS)

    def solve(self, free_share: float, *, now: int) -> None:
        """Takes the limit anew, at most twice a second. `free_share`: of the device's time, what overhead leaves."""
        if self._traffic is None or now < self._solve_ns or self._traffic.arrivals < COLD_ARRIVALS:
            return
        self._solve_ns = now + SOLVE_EVERY_NS
        self._traffic.decay(now=now)
        self._limit_ns = self._limit(SAFETY * free_share * (self._traffic.window_ns >> UNIT_SHIFT))

    def _limit(self, room: float) -> int:
        """The cost at which `room` units are used up: linear inside the bin."""
        rows = self._traffic.classes() if self._traffic is not None else []
        for index in range(BINS):
            within = sum(row.tokens[index] for row in rows) / 65_536
            if within > room:
                low, high = bin_bounds(index)
                return (low + int(room / within * (high - low))) << UNIT_SHIFT
            room -= within
        return NO_LIMIT
