"""Who arrives when, with what size and how much time: seeded traces.

The reference workload draws, per arrival and in this order: one uniform for the exponential gap, two for the normal of the size, one for
the cohort. Changing the order changes every figure that was ever published from a seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from halcyon.sim.chance import Mulberry32
from halcyon.sim.clock import NS_PER_MS, NS_PER_S

Gaps = Literal["exponential", "gamma", "weibull"]

LEAST_TOKENS = 16
MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace. `arrived_ns` from the start; `span_ns` from arrival to deadline."""

    index: int
    arrived_ns: int
    tokens: int
    span_ns: int
    urgent: bool

    @property
    def deadline_ns(self) -> int:
        """Absolute instant of the deadline, ns."""
        return self.arrived_ns + self.span_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Arrivals of log-normal sizes in two cohorts. `size_mean` and `size_sigma` are of the logarithm of the token count.

    `gap_shape`: of the gamma or Weibull law of the gaps; under 1 arrivals come in bursts (a gamma shape of 0.25 doubles the spread of
    Poisson).
    """

    rate_per_s: float
    horizon_s: float = 120.0
    size_mean: float = 4.8
    size_sigma: float = 0.9
    urgent_share: float = 0.30
    urgent_ms: int = 120
    relaxed_ms: int = 900
    gaps: Gaps = "exponential"
    gap_shape: float = 1.0


def seeded(workload: Workload, seed: int) -> list[Arrival]:
    """The trace of a workload, in order of arrival."""
    chance = Mulberry32(seed)
    arrivals: list[Arrival] = []
    at_s = _gap_s(workload, chance)
    while at_s <= workload.horizon_s:
        size = round(math.exp(workload.size_mean + workload.size_sigma * chance.normal()))
        urgent = chance.uniform() < workload.urgent_share
        span_ms = workload.urgent_ms if urgent else workload.relaxed_ms
        tokens = min(MOST_TOKENS, max(LEAST_TOKENS, size))
        arrivals.append(Arrival(len(arrivals), round(at_s * NS_PER_S), tokens, span_ms * NS_PER_MS, urgent))
        at_s += _gap_s(workload, chance)
    return arrivals


def _gap_s(workload: Workload, chance: Mulberry32) -> float:
    """Time to the next arrival, s; its mean is 1 / rate under every law."""
    shape = workload.gap_shape
    if workload.gaps == "gamma":
        return chance.gamma(shape) / (shape * workload.rate_per_s)
    if workload.gaps == "weibull":
        return chance.weibull(shape) / (math.gamma(1.0 + 1.0 / shape) * workload.rate_per_s)
    return chance.exponential(workload.rate_per_s)
