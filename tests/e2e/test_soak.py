"""Minutes of load and of disconnects: what must not grow does not grow."""

from __future__ import annotations

import asyncio
import random

import psutil
import pytest
from fleet import RunningFleet
from test_crash import SIMULATED, count_tokens, unlimited
from test_storms import assert_idle, settled, storm

ROUNDS = 60
CLIENTS = 100
WARM_ROUNDS = 20
"""After these, pools and caches of the daemon have the size that they keep."""


async def patient(fleet: RunningFleet) -> list[tuple[int, str]]:
    """As many clients that stay to the end."""
    async with unlimited(fleet) as client:
        return await asyncio.gather(*(count_tokens(client, 24) for _ in range(CLIENTS)))


@pytest.mark.soak
def test_storms_leave_nothing_behind() -> None:
    """6,000 clients that stay and 6,000 that leave at random instants: every patient one is served whole, each storm ends idle, no
    worker is lost, and the daemon's memory and descriptors are after the last round what they were when it was warm."""
    fleet = RunningFleet.start(SIMULATED.format(max_batch=64, iteration_ms=1.0))
    rng = random.Random(12)
    daemon = psutil.Process(fleet.pid)
    warm_bytes, warm_descriptors = 0, 0
    try:
        for round_number in range(ROUNDS):
            asyncio.run(storm(fleet, rng, CLIENTS))
            assert asyncio.run(patient(fleet)) == [(24, "length")] * CLIENTS
            assert asyncio.run(settled(fleet))
            if round_number == WARM_ROUNDS:
                warm_bytes, warm_descriptors = daemon.memory_info().rss, daemon.num_fds()
        assert_idle(fleet)
        assert [replica["restarts"] for replica in fleet.status()["replicas"]] == [0, 0]
        assert daemon.memory_info().rss < 1.2 * warm_bytes
        assert daemon.num_fds() <= warm_descriptors + CLIENTS
    finally:
        fleet.stop()
