"""The control plane: facts in, orders out. It composes the parts and asks them in order; every policy lives in a part.

Rules: `handle` takes one event and answers with all that follows from it. Within one call: what is due by the clock comes first, then
the event, then new dispatches (at most one for each replica), then announcements of emptiness. A fact about a request or replica that
is no longer known is late news and ignored; a fact that cannot be (an id used twice) raises before anything changes. Nothing iterates
over a set, and chance comes from the given `rng` alone, so the same events give the same orders.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from halcyon.core.actions import Action, Cancel, Dispatch, DrainFinished, Fail, Refusal, Refuse, ReplicaEmptied
from halcyon.core.admission.gate import Standing, admit, too_late, unservable
from halcyon.core.admission.service_rate import ServiceRate
from halcyon.core.batching.fill import Batch, BatchFormer, FillFreeSlots
from halcyon.core.batching.waiting import Ticket, WaitingQueue
from halcyon.core.events import (
    ClientGone,
    DrainStarted,
    Event,
    FirstByteSent,
    IterationFinished,
    ReplicaAdded,
    ReplicaDrainStarted,
    ReplicaLost,
    ReplicaReady,
    ReplicaRemoved,
    RequestArrived,
    RequestFailed,
    SequencesFinished,
    TimerFired,
)
from halcyon.core.fleet import Fleet, Replica, ReplicaView, ServedVersion
from halcyon.core.ledger import Flight, Ledger, Outcome, Totals
from halcyon.core.request import Request
from halcyon.core.rollout.versions import ModelVersions, Resolved, resolve, with_version
from halcyon.core.routing.backpressure import BusyPauses
from halcyon.core.routing.least_loaded import CheapestReplica

MAX_ATTEMPTS = 3
"""Replicas a request is sent to, at most; being sent away as busy does not count."""


@dataclass(frozen=True, kw_only=True)
class ControlSettings:
    """What the control plane must be told.

    Attributes:
        models: in fleet order; the first version of each is its default.
        max_queue: requests that may wait per (model, version); those put back by a lost replica do not count against it.
    """

    models: tuple[ModelVersions, ...]
    max_queue: int = 512

    def __post_init__(self) -> None:
        if self.max_queue < 1:
            raise ValueError(f"max_queue is {self.max_queue}; it must be at least 1")


@dataclass(slots=True)
class _Line:
    """What belongs to one (model, version)."""

    former: BatchFormer
    queue: WaitingQueue = field(default_factory=WaitingQueue)
    rate: ServiceRate = field(default_factory=ServiceRate)


class ControlPlane:
    """Decides for every request whether, where and when it runs."""

    def __init__(self, settings: ControlSettings, *, rng: random.Random, former: Callable[[], BatchFormer] = FillFreeSlots) -> None:
        self._max_queue = settings.max_queue
        self._models: tuple[ModelVersions, ...] = ()
        self._new_former = former
        self._router = CheapestReplica(rng)
        self._pauses = BusyPauses()
        self._fleet = Fleet()
        self._ledger = Ledger()
        self._lines: dict[ServedVersion, _Line] = {}
        self._stirred: dict[ServedVersion, None] = {}  # an ordered set: the lines whose next dispatch this call may change
        self._orders: list[Action] = []
        self._batches = 0
        self._draining = False
        self._drained = False
        for known in settings.models:
            for version in known.versions:
                self._open_line((known.name, version))

    # ---- what the shell asks -----------------------------------------------------------------------------------------

    def resolve(self, model: str, version: str = "") -> Resolved | Refusal:
        """What a client means by `model` (`name` or `name@version`) and `version`; to be asked before a `Request` is built."""
        return resolve(self._models, model, version)

    def handle(self, event: Event, *, now: int) -> list[Action]:
        """What follows from the event.

        Raises:
            ValueError: an id is used twice; nothing changed.
        """
        self._check(event)
        self._look_at_clocks(now)
        self._apply(event, now)
        self._dispatch(now)
        self._announce_emptiness()
        orders, self._orders = self._orders, []
        return orders

    def next_wakeup(self) -> int | None:
        """The instant at which `TimerFired` is due, if no event comes before; `None` when only an event can change anything."""
        instants = [line.queue.next_expiry() for line in self._lines.values()]
        instants += [line.former.next_wakeup() for line in self._lines.values()]
        instants.append(self._pauses.next_wakeup())
        return min((instant for instant in instants if instant is not None), default=None)

    def queued(self) -> dict[ServedVersion, int]:
        """Requests waiting, by (model, version)."""
        return {serves: len(line.queue) for serves, line in self._lines.items()}

    def replicas(self) -> tuple[ReplicaView, ...]:
        """Every replica as it stands, in the order they were added."""
        return tuple(replica.view() for replica in self._fleet.replicas())

    def outstanding(self) -> dict[str, int]:
        """Sequences dispatched and not ended, by replica."""
        return {replica.replica_id: replica.outstanding for replica in self._fleet.replicas()}

    def totals(self) -> Totals:
        """Requests by what became of them."""
        return self._ledger.totals(queued=sum(self.queued().values()))

    # ---- one event ---------------------------------------------------------------------------------------------------

    def _check(self, event: Event) -> None:
        if isinstance(event, RequestArrived):
            request_id = event.request.request_id
            if self._ledger.flight(request_id) is not None or self._line_holding(request_id) is not None:
                raise ValueError(f"request id {request_id!r} is in use; every request needs its own")
        if isinstance(event, ReplicaAdded) and self._fleet.get(event.replica_id) is not None:
            raise ValueError(f"replica id {event.replica_id!r} is in use; remove that replica first")

    def _look_at_clocks(self, now: int) -> None:
        for serves, line in self._lines.items():
            for ticket in line.queue.take_expired(now=now):
                self._refuse_late(ticket, line, now)
                self._stir(serves)
            wakeup = line.former.next_wakeup()
            if wakeup is not None and wakeup <= now:
                self._stir(serves)
        for replica_id in self._pauses.lift(now=now):
            self._stir_replica(replica_id)

    def _apply(self, event: Event, now: int) -> None:
        match event:
            case RequestArrived(request):
                self._on_arrival(request, now)
            case ClientGone(request_id):
                self._on_client_gone(request_id)
            case FirstByteSent(request_id):
                self._on_first_byte(request_id)
            case SequencesFinished():
                self._on_finished(event, now)
            case RequestFailed():
                self._on_failed(event, now)
            case IterationFinished() | TimerFired():
                pass
            case DrainStarted():
                self._draining = True
            case _:
                self._apply_to_replica(event, now)

    def _apply_to_replica(self, event: ReplicaAdded | ReplicaReady | ReplicaDrainStarted | ReplicaLost | ReplicaRemoved, now: int) -> None:
        if isinstance(event, ReplicaAdded):
            self._on_added(event)
            return
        replica = self._fleet.get(event.replica_id)
        if replica is None:
            return
        match event:
            case ReplicaReady():
                self._on_ready(replica, event)
            case ReplicaDrainStarted():
                self._on_drain(replica)
            case ReplicaLost():
                self._on_lost(replica, now)
            case ReplicaRemoved():
                self._on_removed(replica, now)
        self._refuse_unservable(replica.serves)
        self._stir(replica.serves)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _on_arrival(self, request: Request, now: int) -> None:
        number = self._ledger.arrived()
        meant = resolve(self._models, request.model, request.version)
        if isinstance(meant, Refusal):
            self._refuse(request.request_id, meant)
            return
        request = replace(request, model=meant.model, version=meant.version)
        line = self._lines[_served(request)]
        refusal = admit(request, self._standing(request, line, now), now=now)
        if refusal is not None:
            self._refuse(request.request_id, refusal)
            return
        line.queue.push(Ticket(request=request, number=number))
        self._stir(_served(request))

    def _on_client_gone(self, request_id: str) -> None:
        line = self._line_holding(request_id)
        if line is not None:
            line.queue.remove(request_id)
            self._ledger.ended(Outcome.GONE)
            return
        flight = self._ledger.flight(request_id)
        if flight is not None and not flight.client_gone:
            flight.client_gone = True
            self._ledger.ended(Outcome.GONE)
            self._orders.append(Cancel(request_id, flight.replica_id))

    def _on_first_byte(self, request_id: str) -> None:
        flight = self._ledger.flight(request_id)
        if flight is not None:
            flight.byte_sent = True
            return
        line = self._line_holding(request_id)
        if line is not None and (ticket := line.queue.remove(request_id)) is not None:
            self._fail(ticket, "the replica was lost while the first part of its answer was on its way")

    def _on_finished(self, event: SequencesFinished, now: int) -> None:
        replica = self._fleet.get(event.replica_id)
        flight = self._ledger.flight_on(event.request_id, event.replica_id)
        if replica is None or flight is None:
            return
        self._pauses.forget(replica.replica_id)
        self._stir(replica.serves)
        if replica.release(event.request_id, event.count):
            return
        self._ledger.landed(event.request_id)
        if not flight.client_gone:
            self._ledger.ended(Outcome.FINISHED)
            self._lines[replica.serves].rate.finished(now=now)

    def _on_failed(self, event: RequestFailed, now: int) -> None:
        replica = self._fleet.get(event.replica_id)
        flight = self._ledger.flight_on(event.request_id, event.replica_id)
        if replica is None or flight is None:
            return
        replica.release_everything_of(event.request_id)
        self._ledger.landed(event.request_id)
        self._stir(replica.serves)
        if event.busy:
            self._pauses.said_busy(replica.replica_id, now=now)
            flight.ticket.attempts -= 1
        if flight.client_gone:
            return
        if flight.byte_sent:
            self._fail(flight.ticket, event.message, event.code)
        elif event.retryable or event.busy:
            self._put_back(flight, event.message, now)
        else:
            self._refuse(event.request_id, Refusal(code=event.code, message=event.message))

    # ---- replicas ----------------------------------------------------------------------------------------------------

    def _on_added(self, event: ReplicaAdded) -> None:
        serves = (event.model, event.version)
        self._open_line(serves)
        self._fleet.add(Replica(replica_id=event.replica_id, serves=serves, kind=event.kind, max_batch=event.max_batch))

    def _on_ready(self, replica: Replica, event: ReplicaReady) -> None:
        if replica.lifecycle.may_move("ready"):
            replica.lifecycle.move("ready")
            replica.kind, replica.max_batch = event.kind, event.max_batch

    def _on_drain(self, replica: Replica) -> None:
        if replica.lifecycle.may_move("draining"):
            replica.lifecycle.move("draining")

    def _on_lost(self, replica: Replica, now: int) -> None:
        if replica.lifecycle.may_move("waiting"):  # one that drains stays so: it is not wanted back
            replica.lifecycle.move("waiting")
        self._evict(replica, now)

    def _on_removed(self, replica: Replica, now: int) -> None:
        replica.lifecycle.move("removed")
        self._evict(replica, now)
        self._fleet.remove(replica.replica_id)

    def _evict(self, replica: Replica, now: int) -> None:
        """Takes every request off a replica that is no more."""
        self._pauses.forget(replica.replica_id)
        for request_id in replica.holders():
            replica.release_everything_of(request_id)
            flight = self._ledger.landed(request_id)
            if flight.client_gone:
                continue
            if flight.byte_sent:
                self._fail(flight.ticket, "the replica was lost in the middle of the answer; send the request again")
            else:
                self._put_back(flight, "the replica was lost before the answer began", now)

    # ---- queues and endings ------------------------------------------------------------------------------------------

    def _put_back(self, flight: Flight, why: str, now: int) -> None:
        """To the front of the queue, unless it is late, was tried often enough, or nothing is left that could take it."""
        ticket, request = flight.ticket, flight.ticket.request
        line = self._lines[_served(request)]
        if ticket.is_late(now=now):
            self._refuse_late(ticket, line, now)
        elif ticket.attempts >= MAX_ATTEMPTS:
            self._fail(ticket, f"{ticket.attempts} replicas were tried; the last one: {why}")
        elif (refusal := self._unservable(request)) is not None:
            self._refuse(request.request_id, refusal)
        else:
            ticket.returned, ticket.avoid = True, flight.replica_id
            line.queue.push(ticket)
            self._stir(_served(request))

    def _refuse_unservable(self, serves: ServedVersion) -> None:
        line = self._lines[serves]
        for ticket in line.queue.tickets():
            refusal = self._unservable(ticket.request)
            if refusal is not None:
                line.queue.remove(ticket.request.request_id)
                self._refuse(ticket.request.request_id, refusal)

    def _unservable(self, request: Request) -> Refusal | None:
        return unservable(request, self._fleet.living(_served(request)), self._fleet.get(request.replica_id))

    def _refuse_late(self, ticket: Ticket, line: _Line, now: int) -> None:
        retry_after_ms = line.rate.retry_after_ms(len(line.queue), now=now)
        self._refuse(ticket.request.request_id, too_late(ticket.request, retry_after_ms=retry_after_ms))

    def _refuse(self, request_id: str, refusal: Refusal) -> None:
        self._ledger.ended(Outcome.REFUSED)
        self._orders.append(Refuse(request_id, refusal))

    def _fail(self, ticket: Ticket, message: str, code: str = "upstream_failure") -> None:
        self._ledger.ended(Outcome.FAILED)
        self._orders.append(Fail(ticket.request.request_id, Refusal(code=code, message=message)))

    def _standing(self, request: Request, line: _Line, now: int) -> Standing:
        return Standing(
            draining=self._draining,
            queued=len(line.queue),
            max_queue=self._max_queue,
            retry_after_ms=line.rate.retry_after_ms(len(line.queue), now=now),
            living=self._fleet.living(_served(request)),
            pinned=self._fleet.get(request.replica_id),
        )

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def _dispatch(self, now: int) -> None:
        for serves in self._stirred:
            line = self._lines[serves]
            candidates = [replica.view() for replica in self._fleet.ready(serves) if not self._pauses.is_resting(replica.replica_id)]
            if candidates and line.queue:
                batches = line.former.form(line.queue, candidates, self._router.choose, now=now)
                self._send(batches, queue_depth=len(line.queue))
            if not line.queue and self._fleet.is_idle(serves):
                line.rate.idled()
        self._stirred.clear()

    def _send(self, batches: Sequence[Batch], *, queue_depth: int) -> None:
        for batch in batches:
            self._batches += 1
            for ticket in batch.tickets:
                self._fly(ticket, batch.replica_id)
            self._orders.append(
                Dispatch(
                    batch_id=self._batches,
                    replica_id=batch.replica_id,
                    request_ids=tuple(ticket.request.request_id for ticket in batch.tickets),
                    reason=batch.reason,
                    batch_size=sum(ticket.request.sequences for ticket in batch.tickets),
                    queue_depth=queue_depth,
                    eligible_replicas=batch.eligible_replicas,
                )
            )

    def _fly(self, ticket: Ticket, replica_id: str) -> None:
        replica = self._fleet.get(replica_id)
        assert replica is not None, "a former answers with replicas it was given"
        ticket.attempts += 1
        replica.hold(ticket.request.request_id, ticket.request.sequences)
        self._ledger.dispatched(Flight(ticket, replica_id))

    def _announce_emptiness(self) -> None:
        for replica in self._fleet.replicas():
            if replica.lifecycle.state == "draining" and not replica.outstanding and not replica.announced_empty:
                replica.announced_empty = True
                self._orders.append(ReplicaEmptied(replica.replica_id))
        if self._draining and not self._drained and self._ledger.is_empty() and not any(self.queued().values()):
            self._drained = True
            self._orders.append(DrainFinished())

    def _open_line(self, serves: ServedVersion) -> None:
        self._models = with_version(self._models, *serves)
        self._lines.setdefault(serves, _Line(self._new_former()))

    def _line_holding(self, request_id: str) -> _Line | None:
        return next((line for line in self._lines.values() if request_id in line.queue), None)

    def _stir(self, serves: ServedVersion) -> None:
        self._stirred[serves] = None

    def _stir_replica(self, replica_id: str) -> None:
        replica = self._fleet.get(replica_id)
        if replica is not None:
            self._stir(replica.serves)


def _served(request: Request) -> ServedVersion:
    return (request.model, request.version)
