"""Chooses the cheapest of several replicas; what a replica costs is somebody else's estimate.

Rule: smallest cost wins, a tie is drawn. The default cost is the share of its slots that is taken: outstanding / max_batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from halcyon.core.fleet import ReplicaView

ReplicaCost = Callable[[ReplicaView], float]
"""Smaller is better; any unit, as long as all replicas share it."""


def taken_share(replica: ReplicaView) -> float:
    """Share of the replica's slots that is taken, in [0, 1]."""
    return replica.outstanding / replica.max_batch


class CheapestReplica:
    """Picks by cost and draws ties from `rng`."""

    def __init__(self, rng: random.Random, cost: ReplicaCost = taken_share) -> None:
        self._rng = rng
        self._cost = cost

    def choose(self, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """One of `replicas`, of which there must be at least one."""
        costs = [self._cost(replica) for replica in replicas]
        lowest = min(costs)
        cheapest = [replica for replica, cost in zip(replicas, costs, strict=True) if cost == lowest]
        return cheapest[0] if len(cheapest) == 1 else self._rng.choice(cheapest)
