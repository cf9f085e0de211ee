"""The law of a simulated device: how long a step takes.

Formula: duration = (overhead_ms + per_token_ms × tokens) / speed × U[1 − jitter, 1 + jitter]. tokens: all tokens the iteration or batch
processes, prompt and answer together. The same law serves the simulated worker and the simulator.
"""

from __future__ import annotations

import random

_NS_PER_MS = 1_000_000


class SimulatedDevice:
    """One device; its noise comes from `rng`.

    Raises:
        ValueError: a parameter for which no duration would be positive or finite.
    """

    def __init__(self, *, overhead_ms: float, per_token_ms: float, jitter: float = 0.0, speed: float = 1.0, rng: random.Random) -> None:
        if overhead_ms < 0 or per_token_ms < 0:
            raise ValueError(f"overhead_ms is {overhead_ms} and per_token_ms {per_token_ms}; neither may be negative")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter is {jitter}; it must be in [0, 1)")
        if speed <= 0:
            raise ValueError(f"speed is {speed}; it must be above 0")
        self._overhead_ms = overhead_ms
        self._per_token_ms = per_token_ms
        self._jitter = jitter
        self._speed = speed
        self._rng = rng

    def duration_ns(self, tokens: int) -> int:
        """How long a step over `tokens` tokens takes; at least 1 ns, so that time advances. Draws only when there is jitter."""
        duration_ms = (self._overhead_ms + self._per_token_ms * tokens) / self._speed
        if self._jitter:
            duration_ms *= self._rng.uniform(1 - self._jitter, 1 + self._jitter)
        return max(1, round(duration_ms * _NS_PER_MS))
