"""How far reality strays from a prediction: the quantile that a deadline must be insured against, and the sign that the device changed.

Rules: ratios of actual to predicted duration, the last 500; the margin is their 99.5 % quantile, shrunk towards 1.10 until 50 were seen,
held in [1.02, 1.5] (what strays further is a stall, and insuring every batch against a stall would refuse everything). A ratio far
outside the spread is an outlier and enters nothing; several in a row on one side are no outliers but a new device.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

WINDOW = 500
CONFIDENT_SAMPLES = 50
INITIAL_MARGIN = 1.10
LEAST_MARGIN = 1.02
LARGEST_MARGIN = 1.5
QUANTILE_PERMILLE = 995
STRAY_SPREADS = 4.0
LEAST_STRAY = 0.25
CHANGE_RUN = 4


class Residuals:
    """The window of ratios of one cost model."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._strays: list[float] = []

    @property
    def margin(self) -> float:
        """The factor on a prediction that 99.5 % of recent durations stayed under."""
        seen = len(self._ordered)
        if not seen:
            return INITIAL_MARGIN
        value = self._ordered[min(seen - 1, seen * QUANTILE_PERMILLE // 1000)]
        trust = min(1.0, seen / CONFIDENT_SAMPLES)
        return min(LARGEST_MARGIN, max(LEAST_MARGIN, INITIAL_MARGIN + (value - INITIAL_MARGIN) * trust))

    @property
    def floor(self) -> float:
        """The factor that 99.5 % of recent durations stayed over: how early a running batch may end."""
        seen = len(self._ordered)
        if seen < CONFIDENT_SAMPLES:
            return 1.0 / INITIAL_MARGIN
        return min(1.0, self._ordered[seen * (1000 - QUANTILE_PERMILLE) // 1000])

    def judge(self, ratio: float) -> float | None:
        """Takes one ratio in: 1.0 for an ordinary one, `None` for an outlier, the new level once a run of outliers shows a change."""
        if not self._is_stray(ratio):
            self._strays.clear()
            self._add(ratio)
            return 1.0
        if self._strays and (self._strays[-1] > 1.0) != (ratio > 1.0):
            self._strays.clear()
        self._strays.append(ratio)
        if len(self._strays) < CHANGE_RUN:
            return None
        level = sorted(self._strays)[CHANGE_RUN // 2]
        self.forget()
        return level

    def forget(self) -> None:
        """The prediction changed by a jump: old ratios say nothing about it."""
        self._recent.clear()
        self._ordered.clear()
        self._strays.clear()

    def _is_stray(self, ratio: float) -> bool:
        seen = len(self._ordered)
        if seen < CHANGE_RUN * 2:
            return False
        middle = self._ordered[seen // 2]
        spread = (self._ordered[3 * seen // 4] - self._ordered[seen // 4]) / 2
        return abs(ratio - middle) > max(LEAST_STRAY, STRAY_SPREADS * spread)

    def _add(self, ratio: float) -> None:
        self._recent.append(ratio)
        insort(self._ordered, ratio)
        if len(self._recent) > WINDOW:
            oldest = self._recent.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
