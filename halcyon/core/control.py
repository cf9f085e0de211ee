"""The control plane: facts in, orders out. It composes the parts and asks them in order; every policy lives in a part.

Rules: `handle` takes one event and answers with all that follows from it. Within one call: what is due by the clock comes first, then
the event, then new dispatches (at most one for each replica), then announcements of emptiness. A fact about a request or replica that
is no longer known is late news and ignored; a fact that cannot be (an id used twice) raises before anything changes. Nothing iterates
over a set, and chance comes from the given `rng` alone, so the same events give the same orders.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from halcyon.core.actions import Action, Dispatch, DrainFinished, Refusal, ReplicaEmptied
from halcyon.core.batching.fill import Batch, BatchFormer, FillFreeSlots
from halcyon.core.batching.settings import BatchSettings
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
from halcyon.core.ledger import Flight, Ledger, Totals
from halcyon.core.line import Line
from halcyon.core.lines import Lines
from halcyon.core.requests import Requests
from halcyon.core.rollout.versions import ModelVersions, Resolved, resolve, with_version
from halcyon.core.routing.backpressure import BusyPauses
from halcyon.core.routing.least_loaded import CheapestReplica

OfReplica = IterationFinished | ReplicaAdded | ReplicaReady | ReplicaDrainStarted | ReplicaLost | ReplicaRemoved


@dataclass(frozen=True, kw_only=True)
class ControlSettings:
    """What the control plane must be told.

    Attributes:
        models: in fleet order; the first version of each is its default. Replicas of others bring their version with them.
        max_queue: requests that may wait per (model, version); those put back by a lost replica do not count against it.
        batching: how lines before batch replicas are served; price and cap by requests where nothing is said. `max_queue` above bounds all.
    """

    models: tuple[ModelVersions, ...]
    max_queue: int = 512
    batching: Mapping[ServedVersion, BatchSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_queue < 1:
            raise ValueError(f"max_queue is {self.max_queue}; it must be at least 1")


class ControlPlane:
    """Decides for every request whether, where and when it runs."""

    def __init__(self, settings: ControlSettings, *, rng: random.Random, former: Callable[[], BatchFormer] = FillFreeSlots) -> None:
        self._orders: list[Action] = []
        self._fleet = Fleet()
        self._ledger = Ledger()
        batching = {serves: replace(given, max_queue=settings.max_queue) for serves, given in settings.batching.items()}
        self._lines = Lines(former, batching=batching, default=BatchSettings(max_queue=settings.max_queue))
        self._requests = Requests(
            fleet=self._fleet, lines=self._lines, ledger=self._ledger, orders=self._orders, max_queue=settings.max_queue
        )
        self._router = CheapestReplica(rng)
        self._pauses = BusyPauses()
        self._models: tuple[ModelVersions, ...] = ()
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
        if isinstance(event, TimerFired):  # only then: what one frame reports as finished must not be cut by its neighbours
            self._requests.end_overdue(now=now)
        for serves in self._lines.take_stirred():
            self._dispatch(self._lines.at(serves), now)
        self._announce_emptiness()
        orders = [*self._orders]
        self._orders.clear()
        return orders

    def next_wakeup(self) -> int | None:
        """The instant at which `TimerFired` is due, if no event comes before; `None` when only an event can change anything."""
        instants = (self._lines.next_wakeup(), self._pauses.next_wakeup(), self._ledger.next_overdue())
        return min((instant for instant in instants if instant is not None), default=None)

    def queued(self) -> dict[ServedVersion, int]:
        """Requests waiting, by (model, version)."""
        return {line.serves: len(line) for line in self._lines}

    def replicas(self) -> tuple[ReplicaView, ...]:
        """Every replica as it stands, in the order they were added."""
        return tuple(replica.view() for replica in self._fleet.replicas())

    def outstanding(self) -> dict[str, int]:
        """Sequences dispatched and not ended, by replica."""
        return {replica.replica_id: replica.outstanding for replica in self._fleet.replicas()}

    def totals(self) -> Totals:
        """Requests by what became of them."""
        return self._ledger.totals(queued=self._lines.waiting())

    # ---- one event ---------------------------------------------------------------------------------------------------

    def _check(self, event: Event) -> None:
        if isinstance(event, RequestArrived):
            request_id = event.request.request_id
            if self._ledger.flight(request_id) is not None or self._lines.holding(request_id) is not None:
                raise ValueError(f"request id {request_id!r} is in use; every request needs its own")
        if isinstance(event, ReplicaAdded) and self._fleet.get(event.replica_id) is not None:
            raise ValueError(f"replica id {event.replica_id!r} is in use; remove that replica first")

    def _look_at_clocks(self, now: int) -> None:
        self._requests.refuse_late(now=now)
        self._lines.stir_due(now=now)
        for replica_id in self._pauses.lift(now=now):
            replica = self._fleet.get(replica_id)
            if replica is not None:
                self._lines.stir(replica.serves)

    def _apply(self, event: Event, now: int) -> None:
        match event:
            case RequestArrived(request):
                self._requests.arrived(request, self._models, now=now)
            case ClientGone(request_id):
                self._requests.client_gone(request_id)
            case FirstByteSent(request_id):
                self._requests.first_byte_sent(request_id)
            case SequencesFinished():
                if self._requests.finished(event, now=now):
                    self._pauses.forget(event.replica_id)
            case RequestFailed():
                if self._requests.failed(event, now=now) and event.busy:
                    self._pauses.said_busy(event.replica_id, now=now)
            case DrainStarted():
                self._draining = True
                self._requests.admit_no_more()
            case TimerFired():
                pass
            case _:
                self._apply_to_replica(event, now)

    def _apply_to_replica(self, event: OfReplica, now: int) -> None:
        if isinstance(event, ReplicaAdded):
            self._on_added(event, now)
            return
        replica = self._fleet.get(event.replica_id)
        if replica is None:
            return
        if isinstance(event, IterationFinished):
            self._lines.at(replica.serves).iterated(event)
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
        self._lines.suit(replica.serves, self._fleet.living_kinds(replica.serves), now=now)
        self._requests.refuse_unservable(replica.serves)
        self._lines.stir(replica.serves)

    # ---- replicas ----------------------------------------------------------------------------------------------------

    def _on_added(self, event: ReplicaAdded, now: int) -> None:
        serves = (event.model, event.version)
        self._open_line(serves)
        self._fleet.add(Replica(replica_id=event.replica_id, serves=serves, kind=event.kind, max_batch=event.max_batch))
        self._lines.suit(serves, self._fleet.living_kinds(serves), now=now)

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
        self._pauses.forget(replica.replica_id)
        self._requests.evicted(replica, now=now)

    def _on_removed(self, replica: Replica, now: int) -> None:
        replica.lifecycle.move("removed")
        self._pauses.forget(replica.replica_id)
        self._requests.evicted(replica, now=now)
        self._fleet.remove(replica.replica_id)
        self._lines.at(replica.serves).forget(replica.replica_id)

    def _open_line(self, serves: ServedVersion) -> None:
        self._models = with_version(self._models, *serves)
        self._lines.open(serves)

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def _dispatch(self, line: Line, now: int) -> None:
        candidates = [replica.view() for replica in self._fleet.ready(line.serves) if not self._pauses.is_resting(replica.replica_id)]
        self._requests.refuse_late_in(line, now=now)
        for batch in line.send(candidates, self._router.choose, now=now):
            self._send(batch, queue_depth=len(line))
        if not len(line) and self._fleet.is_idle(line.serves):
            line.idled()

    def _send(self, batch: Batch, *, queue_depth: int) -> None:
        replica = self._fleet.get(batch.replica_id)
        assert replica is not None, "a former answers with replicas it was given"
        self._batches += 1
        for ticket in batch.tickets:
            ticket.attempts += 1
            replica.hold(ticket.request.request_id, ticket.request.sequences)
            self._ledger.dispatched(Flight(ticket, replica.replica_id))
        self._orders.append(
            Dispatch(
                batch_id=self._batches,
                replica_id=replica.replica_id,
                request_ids=tuple(ticket.request.request_id for ticket in batch.tickets),
                reason=batch.reason,
                batch_size=sum(ticket.request.sequences for ticket in batch.tickets),
                queue_depth=queue_depth,
                eligible_replicas=batch.eligible_replicas,
                predicted_tokens=batch.predicted_tokens,
                predicted_ns=batch.predicted_ns,
                output_guess=batch.output_guess,
            )
        )

    def _announce_emptiness(self) -> None:
        for replica in self._fleet.replicas():
            if replica.lifecycle.state == "draining" and not replica.outstanding and not replica.announced_empty:
                replica.announced_empty = True
                self._orders.append(ReplicaEmptied(replica.replica_id))
        if self._draining and not self._drained and self._ledger.is_empty() and not self._lines.waiting():
            self._drained = True
            self._orders.append(DrainFinished())
