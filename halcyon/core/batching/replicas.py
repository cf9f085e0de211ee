"""The batch replicas of one (model, version): what each costs, which are idle, and when the first of the others will be.

Rules: a replica is idle or it runs one batch. Idle ones stand in order of speed, ties by id. `fastest` is the envelope of all laws,
margins included: nothing can be done sooner than it says, so a refusal on its word is never wrong. It may lag behind a replica that
became slower (until `settle`), never behind one that became faster.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass

from halcyon.core.batching.cost import BatchCoefficients, BatchCost
from halcyon.core.batching.item import Batch
from halcyon.core.batching.price import Fleet

SPEED_TOKENS = 1024
"""Batch size at which replicas are compared."""
FEW = 8


class ReplicaStateError(RuntimeError):
    """A replica was told to do what its state forbids: a broken promise of the caller. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Ready for work since that instant, ns. `place`: its key in the order of speed."""

    since_ns: int
    place: tuple[int, str]


@dataclass(frozen=True, slots=True)
class Busy:
    """Runs a batch, predicted to end at `finish_ns`, hardly before `earliest_ns`."""

    batch: Batch
    started_ns: int
    finish_ns: int
    earliest_ns: int


@dataclass(slots=True)
class Replica:
    """One batch replica."""

    replica_id: str
    max_slots: int
    cost: BatchCost
    state: Idle | Busy


class Replicas:
    """All live replicas of the queue."""

    def __init__(self) -> None:
        self._replicas: dict[str, Replica] = {}
        self._idle: list[tuple[int, str]] = []
        self._finishes: list[tuple[int, str]] = []
        self.fastest: BatchCoefficients | None = None
        self.fleet: Fleet | None = None
        """All replicas summed up, weighted by speed, as of the last `settle`."""

    def __len__(self) -> int:
        return len(self._replicas)

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._replicas

    def __getitem__(self, replica_id: str) -> Replica:
        return self._replicas[replica_id]

    def add(self, replica_id: str, *, max_slots: int, cost: BatchCost, now: int) -> None:
        """A replica, idle from now on."""
        if replica_id in self._replicas:
            raise ValueError(f"replica {replica_id} is known already; lose it before it is added again")
        place = (cost.present.predict_ns(SPEED_TOKENS), replica_id)
        self._replicas[replica_id] = Replica(replica_id, max_slots, cost, Idle(now, place))
        insort(self._idle, place)
        self._changed(cost.present)

    def remove(self, replica_id: str) -> Replica | None:
        """The replica is gone; what it ran is in its state."""
        replica = self._replicas.pop(replica_id, None)
        if replica is not None and isinstance(replica.state, Idle):
            self._leave_idle(replica.state)
        self.settle()
        return replica

    def start(self, replica_id: str, batch: Batch, *, now: int) -> None:
        """The replica begins the batch."""
        replica = self._replicas[replica_id]
        if not isinstance(replica.state, Idle):
            raise ReplicaStateError(
                f"replica {replica_id} runs batch {replica.state.batch.batch_id}; it cannot begin batch {batch.batch_id}"
            )
        self._leave_idle(replica.state)
        earliest_ns = now + int(batch.predicted_ns * replica.cost.present.floor)
        replica.state = Busy(batch, now, now + batch.predicted_ns, earliest_ns)
        heapq.heappush(self._finishes, (earliest_ns, replica_id))

    def finish(self, replica_id: str, *, now: int) -> Batch:
        """The replica ended its batch and is idle."""
        replica = self._replicas[replica_id]
        if not isinstance(replica.state, Busy):
            raise ReplicaStateError(f"replica {replica_id} is idle; it has no batch to finish")
        batch = replica.state.batch
        place = (replica.cost.present.predict_ns(SPEED_TOKENS), replica_id)
        replica.state = Idle(now, place)
        insort(self._idle, place)
        return batch

    def observe(self, replica_id: str, tokens: int, duration_ns: int) -> None:
        """What a batch on the replica took."""
        replica = self._replicas[replica_id]
        replica.cost.observe(tokens, duration_ns)
        self._changed(replica.cost.present)

    def settle(self) -> None:
        """Takes the envelope and the sum anew from all laws."""
        self.fleet = self._sum()
        self.fastest = None
        for replica in self._replicas.values():
            self._widen(replica.cost.present)

    def idle_at(self, index: int) -> str | None:
        """The idle replica at that place in the order of speed, fastest first; `None` past the last."""
        return self._idle[index][1] if index < len(self._idle) else None

    def earliest_free(self, *, now: int) -> int:
        """When the first replica can be free, at the earliest; `now` while one is idle or overdue."""
        if self._idle:
            return now
        while self._finishes and not self._runs_until(*self._finishes[0]):
            heapq.heappop(self._finishes)
        return max(now, self._finishes[0][0]) if self._finishes else now

    def free_at(self, replica_id: str, *, now: int) -> int:
        """When that replica can be free, at the earliest; `now` while it is idle or overdue."""
        state = self._replicas[replica_id].state
        return max(now, state.earliest_ns) if isinstance(state, Busy) else now

    def another_holds(self, replica_id: str, slots: int) -> bool:
        """Whether any other replica has that many slots."""
        return any(other.max_slots >= slots for other in self._replicas.values() if other.replica_id != replica_id)

    def predicted_free(self, *, now: int) -> int:
        """When the first replica is expected to be free; `now` while one is idle or overdue."""
        if self._idle or not self._replicas:
            return now
        states = [replica.state for replica in self._replicas.values()]
        return max(now, min(state.finish_ns for state in states if isinstance(state, Busy)))

    def _sum(self) -> Fleet | None:
        if not self._replicas:
            return None
        overhead = slope = weight = 0.0
        slots = 0
        for replica in self._replicas.values():
            law = replica.cost.present
            speed = 1.0 / max(1, law.predict_ns(SPEED_TOKENS))
            overhead += speed * law.overhead_ns
            slope += speed * law.per_token_ns
            weight += speed
            slots += replica.max_slots
        count = len(self._replicas)
        return Fleet(replicas=count, overhead_ns=overhead / weight, per_token_ns=slope / weight, max_batch=max(1, slots // count))

    def _changed(self, law: BatchCoefficients) -> None:
        """Few replicas are summed up at once; of many, only what became faster counts before the next `settle`."""
        if len(self._replicas) <= FEW:
            self.settle()
        else:
            self._widen(law)

    def _runs_until(self, earliest_ns: int, replica_id: str) -> bool:
        replica = self._replicas.get(replica_id)
        return replica is not None and isinstance(replica.state, Busy) and replica.state.earliest_ns == earliest_ns

    def _leave_idle(self, state: Idle) -> None:
        del self._idle[bisect_left(self._idle, state.place)]

    def _widen(self, law: BatchCoefficients) -> None:
        overhead, slope = law.overhead_ns * law.margin, law.per_token_ns * law.margin
        if self.fastest is not None:
            overhead, slope = min(overhead, self.fastest.overhead_ns), min(slope, self.fastest.per_token_ns)
        self.fastest = BatchCoefficients(overhead, slope, 1.0, 1.0)
