"""The replicas the core knows, and who holds their slots.

Rules: a slot is counted only as part of a holding (request → sequences), so a count can never drift from its owners. Replicas are kept
in the order they were added, and every list here is in that order. What must not be here: any choice between replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from halcyon.core.replica import Lifecycle, ReplicaState

ReplicaKind = Literal["continuous", "batch"]
ServedVersion = tuple[str, str]
"""(model, version): what a queue, a rate and a set of replicas belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as a scheduler sees it while it decides.

    Attributes:
        outstanding: sequences dispatched to it and not ended, cancelled ones included.
        free: sequences it may be sent now. Batch replicas are sent one batch at a time: 0 until the last one has ended.
    """

    replica_id: str
    kind: ReplicaKind
    max_batch: int
    outstanding: int
    free: int
    state: ReplicaState

    def taking(self, sequences: int) -> ReplicaView:
        """The same replica once it has been given so many more."""
        return replace(self, outstanding=self.outstanding + sequences, free=self.free - sequences)


@dataclass(slots=True, kw_only=True)
class Replica:
    """One replica and its slots."""

    replica_id: str
    serves: ServedVersion
    kind: ReplicaKind
    max_batch: int
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    announced_empty: bool = False
    outstanding: int = 0
    _held: dict[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Slots that may be filled now."""
        if self.kind == "batch" and self.outstanding:
            return 0
        return max(0, self.max_batch - self.outstanding)

    def hold(self, request_id: str, sequences: int) -> None:
        """Gives slots to a request that holds none here."""
        self._held[request_id] = sequences
        self.outstanding += sequences

    def release(self, request_id: str, count: int) -> int:
        """Takes back up to `count` of the request's slots; returns how many it still holds."""
        before = self._held.get(request_id, 0)
        after = max(0, before - count)
        self.outstanding -= before - after
        if after:
            self._held[request_id] = after
        else:
            self._held.pop(request_id, None)
        return after

    def release_everything_of(self, request_id: str) -> None:
        """Takes back all slots of the request."""
        self.release(request_id, self._held.get(request_id, 0))

    def holders(self) -> tuple[str, ...]:
        """Requests that hold slots here, in the order they came."""
        return tuple(self._held)

    def view(self) -> ReplicaView:
        """What a scheduler may know of it."""
        return ReplicaView(
            replica_id=self.replica_id,
            kind=self.kind,
            max_batch=self.max_batch,
            outstanding=self.outstanding,
            free=self.free,
            state=self.lifecycle.state,
        )


class Fleet:
    """All replicas, by id and by what they serve."""

    def __init__(self) -> None:
        self._replicas: dict[str, Replica] = {}
        self._serving: dict[ServedVersion, list[Replica]] = {}

    def add(self, replica: Replica) -> None:
        """A replica exists from now on.

        Raises:
            ValueError: its id is taken.
        """
        if replica.replica_id in self._replicas:
            raise ValueError(f"replica id {replica.replica_id!r} is taken; remove that replica first")
        self._replicas[replica.replica_id] = replica
        self._serving.setdefault(replica.serves, []).append(replica)

    def remove(self, replica_id: str) -> None:
        """Forgets a replica."""
        replica = self._replicas.pop(replica_id)
        self._serving[replica.serves].remove(replica)

    def get(self, replica_id: str) -> Replica | None:
        """The replica of that id, if it exists."""
        return self._replicas.get(replica_id)

    def replicas(self) -> tuple[Replica, ...]:
        """All of them."""
        return tuple(self._replicas.values())

    def living(self, serves: ServedVersion) -> list[Replica]:
        """Those that serve it, or may be expected to."""
        return [replica for replica in self._serving.get(serves, []) if replica.lifecycle.is_living]

    def living_kinds(self, serves: ServedVersion) -> list[ReplicaKind]:
        """Kinds of those that serve it, or may be expected to."""
        return [replica.kind for replica in self.living(serves)]

    def ready(self, serves: ServedVersion) -> list[Replica]:
        """Those that may be sent its requests."""
        return [replica for replica in self._serving.get(serves, []) if replica.lifecycle.state == "ready"]

    def is_idle(self, serves: ServedVersion) -> bool:
        """Whether nothing of it runs anywhere."""
        return not any(replica.outstanding for replica in self._serving.get(serves, []))
