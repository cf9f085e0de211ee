"""The control plane of the daemon, driven by a heap: one ending for everybody, whatever dies, and the same story for the same seed."""

from __future__ import annotations

import random

import pytest

from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.rollout.versions import ModelVersions
from halcyon.sim.arrivals import Arrival, Workload, seeded
from halcyon.sim.clock import NS_PER_S
from halcyon.sim.devices import BatchDevice, BatchLaw
from halcyon.sim.fleet import Outage, SimulatedFleet


def told(arrivals: list[Arrival], outages: tuple[Outage, ...] = (), *, replicas: int = 3, check: bool = False) -> SimulatedFleet:
    """The story of a fleet of 32-slot batch replicas."""
    plane = ControlPlane(ControlSettings(models=(ModelVersions("m", ("v1",)),)), rng=random.Random(5))
    devices = {f"r{index}": BatchDevice(BatchLaw(), 40 + index) for index in range(replicas)}
    fleet = SimulatedFleet(plane, ("m", "v1"), devices, max_batch=32)

    def account() -> None:
        totals = plane.totals()
        parts = (totals.queued, totals.in_flight, totals.finished, totals.refused, totals.failed, totals.gone)
        assert totals.arrived == sum(parts)

    fleet.run(arrivals, outages, check=account if check else None)
    return fleet


@pytest.mark.parametrize("rate", [60, 300, 900])
def test_everybody_ends_once_though_replicas_die(rate: int) -> None:
    """Two of three replicas die and come back under load: each request ends exactly once, and the counts add up after every event."""
    arrivals = seeded(Workload(rate_per_s=rate, horizon_s=3), 2)
    outages = (Outage("r0", NS_PER_S, 2 * NS_PER_S), Outage("r1", NS_PER_S + 1, 5 * NS_PER_S // 2))
    fleet = told(arrivals, outages, check=True)
    assert fleet.ended.keys() == {str(arrival.index) for arrival in arrivals}


def test_nothing_is_sent_to_the_dead() -> None:
    """With every replica gone for good, whoever waits is refused by its deadline, as no_capacity or too late."""
    arrivals = seeded(Workload(rate_per_s=50, horizon_s=2), 3)
    fleet = told(arrivals, (Outage("r0", NS_PER_S, 60 * NS_PER_S),), replicas=1)
    late = {str(arrival.index) for arrival in arrivals if arrival.arrived_ns > NS_PER_S}
    assert {fleet.ended[request_id] for request_id in late} <= {"no_capacity", "deadline_unreachable"}


def test_the_same_seed_tells_the_same_story() -> None:
    """Events, orders and instants of two runs are equal."""
    arrivals = seeded(Workload(rate_per_s=300, horizon_s=2), 4)
    outage = (Outage("r0", NS_PER_S, 3 * NS_PER_S // 2),)
    assert told(arrivals, outage).story == told(arrivals, outage).story
