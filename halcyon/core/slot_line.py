"""A line before continuous replicas (or mixed ones): requests wait in order of service and take slots as they become free.

Rules: late binding. Nothing is predicted here; the replica's own scheduler plans iterations. A request waits until its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

from halcyon.core.actions import Refusal
from halcyon.core.admission.gate import too_late
from halcyon.core.admission.service_rate import ServiceRate
from halcyon.core.batching.fill import Batch, BatchFormer, Choose
from halcyon.core.batching.waiting import Ticket, WaitingQueue
from halcyon.core.events import IterationFinished
from halcyon.core.fleet import ReplicaKind, ReplicaView, ServedVersion


class SlotLine:
    """A `Line` of a queue and a former that empties it."""

    kind: ReplicaKind = "continuous"

    def __init__(self, serves: ServedVersion, former: BatchFormer) -> None:
        self.serves = serves
        self._former = former
        self._queue = WaitingQueue()
        self._rate = ServiceRate()

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._queue

    def tickets(self) -> tuple[Ticket, ...]:
        """See `Line`."""
        return self._queue.tickets()

    def arrive(self, ticket: Ticket, *, now: int) -> Refusal | None:
        """It waits; admission said all there is to say."""
        del now
        self._queue.push(ticket)
        return None

    def put_back(self, ticket: Ticket) -> None:
        """See `Line`."""
        self._queue.push(ticket)

    def remove(self, request_id: str) -> Ticket | None:
        """See `Line`."""
        return self._queue.remove(request_id)

    def take_late(self, *, now: int) -> list[tuple[Ticket, Refusal]]:
        """Tickets whose deadline has come."""
        late = self._queue.take_expired(now=now)
        return [
            (ticket, too_late(ticket.request, retry_after_ms=self.retry_after_ms(ticket.request.request_id, now=now))) for ticket in late
        ]

    def send(self, replicas: Sequence[ReplicaView], choose: Choose, *, now: int) -> tuple[Batch, ...]:
        """As the former says."""
        return self._former.form(self._queue, replicas, choose, now=now) if replicas and self._queue else ()

    def next_wakeup(self) -> int | None:
        """The first deadline, or when the former wants to be asked."""
        instants = (self._queue.next_expiry(), self._former.next_wakeup())
        return min((instant for instant in instants if instant is not None), default=None)

    def retry_after_ms(self, request_id: str, *, now: int) -> int:
        """From the rate of late."""
        del request_id
        return self._rate.retry_after_ms(len(self._queue), now=now)

    def answered(self, *, sequences: int, output_tokens: int) -> None:
        """Nothing to learn."""
        del sequences, output_tokens

    def served(self, *, now: int) -> None:
        """Counts towards the rate."""
        self._rate.finished(now=now)

    def iterated(self, event: IterationFinished) -> None:
        """Nothing to learn."""
        del event

    def idled(self) -> None:
        """The rate begins anew."""
        self._rate.idled()

    def drain(self) -> None:
        """Nothing is held back anyway."""

    def forget(self, replica_id: str) -> None:
        """Nothing is known of replicas."""
        del replica_id
