"""A line before batch replicas: `BatchScheduler` decides, and this tells it what the control plane knows.

Rules
- A request's size is prompt tokens + predicted answer, times its answers. The prediction is the client's bound, what the model's answers
  were like, or a prior; a decision that rests on it says which.
- The scheduler knows exactly the replicas that may be sent work; one that rests, drains or is lost is not there until it may again. What
  was learned of its speed is kept until it is removed.
- A batch is over when the replica holds no slot any more, however its members ended. The device's duration and the true tokens are
  reported apart from that. What is learned is the longer of that duration and the time from sending to the end: a deadline has to bear
  the way there and back too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from halcyon.core.actions import Refusal
from halcyon.core.batching.cost import BatchCost
from halcyon.core.batching.fill import Batch, BatchReason, Choose
from halcyon.core.batching.item import Batch as Planned
from halcyon.core.batching.item import WorkItem
from halcyon.core.batching.predict import OutputLength
from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings
from halcyon.core.batching.waiting import Ticket
from halcyon.core.events import IterationFinished
from halcyon.core.fleet import ReplicaKind, ReplicaView, ServedVersion

PRIOR_OUTPUT_TOKENS = 128
"""Tokens of an answer while nothing is known of a model's answers."""


class BatchLine:
    """A `Line` of a scheduler and the tickets it decides about."""

    kind: ReplicaKind = "batch"

    def __init__(self, serves: ServedVersion, settings: BatchSettings, *, now: int) -> None:
        self.serves = serves
        self._scheduler = BatchScheduler(settings, now=now)
        self._lengths = OutputLength(PRIOR_OUTPUT_TOKENS)
        self._tickets: dict[str, Ticket] = {}
        self._present: dict[str, None] = {}
        self._costs: dict[str, BatchCost] = {}
        self._sent_ns: dict[str, int] = {}
        self._away_ns: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tickets

    def tickets(self) -> tuple[Ticket, ...]:
        """See `Line`."""
        return tuple(self._tickets.values())

    def arrive(self, ticket: Ticket, *, now: int) -> Refusal | None:
        """Refused when even the fastest replica would end it late, with the predicted finish."""
        item = self._item(ticket)
        refusal = self._scheduler.arrive(item, now=now)
        if refusal is None:
            self._tickets[item.request_id] = ticket
            return None
        return _explained(refusal, item)

    def put_back(self, ticket: Ticket) -> None:
        """See `Line`."""
        self._tickets[ticket.request.request_id] = ticket
        self._scheduler.put_back(self._item(ticket))

    def remove(self, request_id: str) -> Ticket | None:
        """See `Line`."""
        self._scheduler.cancel(request_id)
        return self._tickets.pop(request_id, None)

    def take_late(self, *, now: int) -> list[tuple[Ticket, Refusal]]:
        """What no replica could end in time any more, even if it began now."""
        late = self._scheduler.expire(now=now)
        return [(self._tickets.pop(item.request_id), _explained(refusal, item)) for item, refusal in late]

    def send(self, replicas: Sequence[ReplicaView], choose: Choose, *, now: int) -> tuple[Batch, ...]:
        """What the scheduler sends; which replica it is for is its choice too, for batches differ by replica."""
        del choose
        self._meet(replicas, now=now)
        eligible = sum(replica.free > 0 for replica in replicas)
        sent = self._scheduler.dispatch(now=now)
        for planned in sent:
            self._sent_ns[planned.replica_id] = now
        return tuple(self._batch(planned, eligible) for planned in sent)

    def next_wakeup(self) -> int | None:
        """The next review of a waiting request, or the end of a hold."""
        return self._scheduler.next_wakeup()

    def retry_after_ms(self, request_id: str, *, now: int) -> int:
        """From the backlog and what the replicas are known to do."""
        del now
        return self._scheduler.retry_after_ms(request_id)

    def answered(self, *, sequences: int, output_tokens: int) -> None:
        """Learns how long answers are."""
        for _ in range(sequences):
            self._lengths.observe(output_tokens // sequences)

    def served(self, *, now: int) -> None:
        """The backlog tells, not the rate."""
        del now

    def iterated(self, event: IterationFinished) -> None:
        """Learns what the batch took; one that only ended cancelled requests teaches nothing."""
        tokens = event.decode_tokens + event.prefill_tokens
        away_ns = self._away_ns.pop(event.replica_id, 0)
        if event.replica_id in self._present and tokens:
            self._scheduler.observe(event.replica_id, tokens=tokens, duration_ns=max(event.duration_ns, away_ns))

    def idled(self) -> None:
        """Nothing to forget."""

    def drain(self) -> None:
        """No batch is held back for company any more."""
        self._scheduler.drain()

    def forget(self, replica_id: str) -> None:
        """What was learned of its speed goes with it."""
        self._leave(replica_id)
        self._costs.pop(replica_id, None)

    def _meet(self, replicas: Sequence[ReplicaView], *, now: int) -> None:
        """Lets the scheduler know who may be sent work, and whose batch is over."""
        here = {replica.replica_id for replica in replicas}
        for replica_id in [known for known in self._present if known not in here]:
            self._leave(replica_id)
        for replica in replicas:
            if not replica.free:
                continue
            if replica.replica_id not in self._present:
                self._present[replica.replica_id] = None
                cost = self._costs.pop(replica.replica_id, None)
                self._scheduler.replica_ready(replica.replica_id, max_batch=replica.max_batch, now=now, cost=cost)
            elif self._scheduler.runs(replica.replica_id):
                self._scheduler.batch_finished(replica.replica_id, now=now)
                self._away_ns[replica.replica_id] = now - self._sent_ns[replica.replica_id]

    def _leave(self, replica_id: str) -> None:
        if replica_id in self._present:
            del self._present[replica_id]
            self._costs[replica_id] = self._scheduler.cost(replica_id)
            self._scheduler.replica_gone(replica_id)
            self._away_ns.pop(replica_id, None)
            self._sent_ns.pop(replica_id, None)

    def _batch(self, planned: Planned, eligible: int) -> Batch:
        tickets = tuple(self._tickets.pop(item.request_id) for item in planned.items)
        reason: BatchReason = "retry" if any(ticket.returned for ticket in tickets) else planned.reason
        return Batch(
            replica_id=planned.replica_id,
            tickets=tickets,
            reason=reason,
            eligible_replicas=eligible,
            predicted_tokens=planned.tokens,
            predicted_ns=planned.predicted_ns,
            output_guess=",".join(dict.fromkeys(item.guess for item in planned.items)),
        )

    def _item(self, ticket: Ticket) -> WorkItem:
        request = ticket.request
        guess = self._lengths.guess(request.max_output_tokens)
        return WorkItem(
            request_id=request.request_id,
            arrived_ns=request.arrived_ns,
            tokens=(request.prompt_tokens + guess.tokens) * request.sequences,
            deadline_ns=request.deadline_ns,
            slots=request.sequences,
            lane=request.lane,
            weight=request.weight,
            priority=request.priority,
            returned=ticket.returned,
            only_on=request.replica_id,
            avoid=ticket.avoid,
            guess=guess.source,
        )


def _explained(refusal: Refusal, item: WorkItem) -> Refusal:
    """With what the prediction rests on."""
    if refusal.code != "deadline_unreachable":
        return refusal
    return replace(refusal, details={**refusal.details, "predicted_tokens": item.tokens, "output_guess": item.guess})
