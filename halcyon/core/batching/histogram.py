"""The traffic of one model lately: how many requests of which size with how much time, for the price solver.

Rules: integer counts in fixed point (one arrival = 65,536), one row per class of time-to-deadline (rounded to a power of 2^(1/4)), 64
bins of rank per row (four to the octave). Everything halves in five seconds; decay is applied in whole steps of 100 ms, when asked. Each
class keeps its mean time-to-deadline, so rounding groups requests and moves no deadline.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

BINS = 64
BINS_PER_OCTAVE = 4
CLASSES_PER_OCTAVE = 4
ONE = 1 << 16
STEP_NS = 100_000_000
HALF_LIFE_STEPS = 50
_STEP_FACTOR = round(ONE * 2 ** (-1 / HALF_LIFE_STEPS))
_FORGOTTEN_STEPS = HALF_LIFE_STEPS * 40
_FULL_WINDOW = round(ONE / (1 - 2 ** (-1 / HALF_LIFE_STEPS)))

EDGES = tuple(math.ceil(2 ** (index / BINS_PER_OCTAVE)) for index in range(1, BINS))
"""Upper edge (exclusive) of each bin but the last."""


@dataclass(slots=True)
class TrafficClass:
    """Requests of one class of time-to-deadline; sums in fixed point. `span_sum` in µs."""

    count: int = 0
    span_sum: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    worth: list[int] = field(default_factory=lambda: [0] * BINS)
    tokens: list[int] = field(default_factory=lambda: [0] * BINS)

    @property
    def span_ns(self) -> int:
        """Mean time from arrival to deadline, ns."""
        return self.span_sum // max(1, self.count) * 1000

    def scale(self, factor: int) -> None:
        """Multiplies everything by factor / 65,536."""
        self.count = self.count * factor >> 16
        self.span_sum = self.span_sum * factor >> 16
        self.counts = [value * factor >> 16 for value in self.counts]
        self.worth = [value * factor >> 16 for value in self.worth]
        self.tokens = [value * factor >> 16 for value in self.tokens]


class Traffic:
    """Decayed histogram of arrivals by class and rank."""

    def __init__(self, *, now: int) -> None:
        self._classes: dict[int, TrafficClass] = {}
        self._decayed_ns = now
        self._window = 0
        self.arrivals = 0
        """Arrivals ever."""

    @property
    def window_ns(self) -> int:
        """Decayed length of the time looked back on, ns: divide sums by it for rates."""
        return self._window * STEP_NS >> 16

    def rate_per_s(self) -> float:
        """Arrivals a second, as decayed."""
        return sum(row.count for row in self._classes.values()) / ONE / max(1, self.window_ns) * 1e9

    def add(self, *, rank: int, tokens: int, worth: float, span_ns: int) -> None:
        """One arrival with `span_ns` from arrival to deadline."""
        key = round(math.log2(max(1, span_ns)) * CLASSES_PER_OCTAVE)
        row = self._classes.get(key)
        if row is None:
            row = self._classes[key] = TrafficClass()
        row.count += ONE
        row.span_sum += (span_ns // 1000) << 16
        index = bin_of(rank)
        row.counts[index] += ONE
        row.worth[index] += round(worth * ONE)
        row.tokens[index] += tokens << 16
        self.arrivals += 1

    def decay(self, *, now: int) -> None:
        """Forgets what the whole steps since the last call have made old."""
        steps = (now - self._decayed_ns) // STEP_NS
        if steps < 1:
            return
        self._decayed_ns += steps * STEP_NS
        if steps > _FORGOTTEN_STEPS:
            self._classes.clear()
            self._window = _FULL_WINDOW
            return
        factor = ONE
        for _ in range(steps):
            factor = factor * _STEP_FACTOR >> 16
            self._window = (self._window * _STEP_FACTOR >> 16) + ONE
        for row in self._classes.values():
            row.scale(factor)
        self._classes = {key: row for key, row in self._classes.items() if row.count >= ONE >> 4}

    def classes(self) -> list[TrafficClass]:
        """Non-empty classes, tightest first."""
        return [self._classes[key] for key in sorted(self._classes)]


def bin_of(rank: int) -> int:
    """Index of the bin that holds the rank."""
    return bisect_left(EDGES, rank + 1)


def bin_bounds(index: int) -> tuple[int, int]:
    """Lowest rank in the bin and the lowest rank above it."""
    low = EDGES[index - 1] if index else 1
    return low, EDGES[index] if index < BINS - 1 else low * 2
