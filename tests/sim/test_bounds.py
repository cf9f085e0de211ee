"""The lines the benchmark is read against."""

from __future__ import annotations

import pytest

from halcyon.sim.arrivals import Arrival, Workload, seeded
from halcyon.sim.bounds import count_only, deadline_aware_per_s
from halcyon.sim.clock import NS_PER_MS
from halcyon.sim.devices import BatchLaw


def test_the_published_bounds() -> None:
    """Seed 12648430: about 199.2 and 251.9 requests a second without deadlines, 195.4 and 237.5 with them."""
    for rate, count, fluid in ((200, 199.2, 195.4), (260, 251.9, 237.5)):
        arrivals = seeded(Workload(rate_per_s=rate), 12648430)
        assert count_only(arrivals, BatchLaw(), max_batch=32, horizon_s=120) / 120 == pytest.approx(count, abs=0.1)
        assert deadline_aware_per_s(arrivals, BatchLaw(), max_batch=32, horizon_s=120) == pytest.approx(fluid, abs=0.1)


def test_a_bound_by_hand() -> None:
    """Ten requests of 100 tokens at 0.1 ms and 10 ms of overhead over batches of 2 cost 15 ms each: six fit in 95 ms."""
    arrivals = [Arrival(index, 0, 100, 1000 * NS_PER_MS, urgent=False) for index in range(10)]
    law = BatchLaw(overhead_ms=10, per_token_ms=0.1, jitter=0)
    assert count_only(arrivals, law, max_batch=2, horizon_s=0.095) == 6


def test_a_slower_second_half_costs_its_share() -> None:
    """A device that is twice as slow from half time on bounds like three quarters of the time."""
    arrivals = [Arrival(index, 0, 100, 1000 * NS_PER_MS, urgent=False) for index in range(1000)]
    steady = BatchLaw(overhead_ms=10, per_token_ms=0.1)
    drifting = BatchLaw(overhead_ms=10, per_token_ms=0.1, drift=2.0, drift_at_ns=1000 * NS_PER_MS)
    assert count_only(arrivals, drifting, max_batch=2, horizon_s=2) == count_only(arrivals, steady, max_batch=2, horizon_s=1.5)
