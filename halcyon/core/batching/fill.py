"""The simplest batch former: whatever is free is filled at once, in order of service.

Rules: a ticket goes to a replica that has as many free slots as it has sequences. One that fits nowhere is passed over, at most
`LOOK_AHEAD` of them in a pass; one that was overtaken `MAX_OVERTAKEN` times claims a replica, which then takes nothing from behind it
until it fits: small requests are not blocked for ever, and large ones do not starve. A ticket avoids the replica that failed it last
as long as another one is there. Which of the fitting replicas it is, `choose` says; nothing is known here of why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from halcyon.core.batching.waiting import Answer, Ticket, WaitingQueue
from halcyon.core.fleet import ReplicaView

LOOK_AHEAD = 32
"""Tickets one pass may leave standing before it stops looking further back."""
MAX_OVERTAKEN = 8
"""Times a ticket is overtaken before a replica is kept free for it."""

BatchReason = Literal["slot_free", "saturated", "deadline", "linger", "density", "drain", "retry"]
Choose = Callable[[Sequence[ReplicaView]], ReplicaView]
"""Picks one of at least one replica, all of which could take the ticket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tickets that leave the queue together for one replica.

    Attributes:
        tickets: in order of service. reason: `retry` when one of them comes back from a failed replica, `saturated` when it fills the
            replica, else `slot_free`; a batch scheduler gives reasons of its own. eligible_replicas: replicas with a free slot when the
        pass began. predicted_tokens / predicted_ns: size and duration expected of the batch; 0 where nothing is predicted.
        output_guess: what its answers' lengths were guessed from, comma-separated.
    """

    replica_id: str
    tickets: tuple[Ticket, ...]
    reason: BatchReason
    eligible_replicas: int
    predicted_tokens: int = 0
    predicted_ns: int = 0
    output_guess: str = ""


class BatchFormer(Protocol):
    """Decides what leaves a queue now, and with what."""

    def form(self, queue: WaitingQueue, replicas: Sequence[ReplicaView], choose: Choose, *, now: int) -> tuple[Batch, ...]:
        """Takes tickets out of `queue`: at most one batch for each of `replicas` (the ready ones), within its free slots."""
        ...

    def next_wakeup(self) -> int | None:
        """When to ask again though nothing happened; `None` when only an event can change the answer."""
        ...


class FillFreeSlots:
    """Fills whatever is free, at once."""

    def form(self, queue: WaitingQueue, replicas: Sequence[ReplicaView], choose: Choose, *, now: int) -> tuple[Batch, ...]:
        """Offers the queue to the replicas until nothing more fits."""
        del now  # nothing is held back, so no instant matters
        filling = _Filling(replicas, choose)
        queue.offer(filling.ask)
        return filling.batches()

    def next_wakeup(self) -> int | None:
        """Nothing is held back."""
        return None


class _Filling:
    """One pass over a queue."""

    def __init__(self, replicas: Sequence[ReplicaView], choose: Choose) -> None:
        self._replicas = {replica.replica_id: replica for replica in replicas}
        self._choose = choose
        self._eligible = sum(replica.free > 0 for replica in replicas)
        self._claimed: list[str] = []
        self._passed: list[Ticket] = []
        self._looked_past = 0
        self._taken: dict[str, list[Ticket]] = {}

    def ask(self, ticket: Ticket) -> Answer:
        """Finds the ticket a replica, or passes it over."""
        if self._looked_past >= LOOK_AHEAD or not any(replica.free for replica in self._unclaimed()):
            return Answer.STOP
        allowed = self._allowed(ticket)
        fitting = [replica for replica in allowed if replica.free >= ticket.request.sequences]
        if not fitting:
            self._pass_over(ticket, allowed)
            return Answer.PASSED
        self._take(ticket, self._choose(fitting))
        return Answer.TAKEN

    def batches(self) -> tuple[Batch, ...]:
        """What was taken, by replica."""
        return tuple(
            Batch(replica_id=replica_id, tickets=tuple(tickets), reason=self._reason(replica_id, tickets), eligible_replicas=self._eligible)
            for replica_id, tickets in self._taken.items()
        )

    def _unclaimed(self) -> list[ReplicaView]:
        return [replica for replica in self._replicas.values() if replica.replica_id not in self._claimed]

    def _allowed(self, ticket: Ticket) -> list[ReplicaView]:
        unclaimed = self._unclaimed()
        if ticket.request.replica_id:
            return [replica for replica in unclaimed if replica.replica_id == ticket.request.replica_id]
        others = [replica for replica in self._replicas.values() if replica.replica_id != ticket.avoid]
        if any(replica.max_batch >= ticket.request.sequences for replica in others):
            return [replica for replica in unclaimed if replica.replica_id != ticket.avoid]
        return unclaimed

    def _pass_over(self, ticket: Ticket, allowed: list[ReplicaView]) -> None:
        large_enough = [replica for replica in allowed if replica.max_batch >= ticket.request.sequences]
        self._passed.append(ticket)
        if large_enough and not ticket.request.replica_id:  # who waits for one that is not there must not hide the rest of the queue
            self._looked_past += 1
        if ticket.overtaken < MAX_OVERTAKEN or not large_enough:
            return
        if all(replica.replica_id != ticket.claim for replica in large_enough):
            ticket.claim = max(large_enough, key=lambda replica: replica.free).replica_id
        self._claimed.append(ticket.claim)

    def _take(self, ticket: Ticket, replica: ReplicaView) -> None:
        self._replicas[replica.replica_id] = replica.taking(ticket.request.sequences)
        self._taken.setdefault(replica.replica_id, []).append(ticket)
        for left_behind in self._passed:
            left_behind.overtaken += 1

    def _reason(self, replica_id: str, tickets: list[Ticket]) -> BatchReason:
        if any(ticket.returned for ticket in tickets):
            return "retry"
        return "saturated" if self._replicas[replica_id].free == 0 else "slot_free"
