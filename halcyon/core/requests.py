"""What becomes of a request: it is admitted or refused, put back when its replica fails it, and ended exactly once.

Rules: every method is one fact about one request, or one replica's loss seen from its requests. A request whose answer began is never
sent again; one whose answer did not begin goes back to the front, unless it is late, was tried `MAX_ATTEMPTS` times, or nothing that is
left could take it. Slots come back only with a report of the replica or its loss. What must not be here: any choice of a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from halcyon.core.actions import Action, Cancel, Fail, Refusal, Refuse
from halcyon.core.admission.gate import Standing, admit, overdue, too_late, unservable
from halcyon.core.batching.waiting import Ticket
from halcyon.core.events import RequestFailed, SequencesFinished
from halcyon.core.fleet import Fleet, Replica, ServedVersion
from halcyon.core.ledger import Flight, Ledger, Outcome
from halcyon.core.line import Line
from halcyon.core.lines import Lines, served
from halcyon.core.request import Request
from halcyon.core.rollout.versions import ModelVersions, resolve

MAX_ATTEMPTS = 3
"""Replicas a request is sent to, at most; being sent away as busy does not count."""


class Requests:
    """Moves requests between lines, flights and endings; appends what the shell must do to `orders`."""

    def __init__(self, *, fleet: Fleet, lines: Lines, ledger: Ledger, orders: list[Action], max_queue: int) -> None:
        self._fleet = fleet
        self._lines = lines
        self._ledger = ledger
        self._orders = orders
        self._max_queue = max_queue
        self._admitting = True

    def admit_no_more(self) -> None:
        """From now on every arrival is refused."""
        self._admitting = False
        self._lines.drain()

    def arrived(self, request: Request, models: Sequence[ModelVersions], *, now: int) -> None:
        """Into its line, or refused."""
        number = self._ledger.arrived()
        meant = resolve(models, request.model, request.version)
        if isinstance(meant, Refusal):
            self._refuse(request.request_id, meant)
            return
        request = replace(request, model=meant.model, version=meant.version)
        line = self._lines.of(request)
        refusal = admit(request, self._standing(request, line, now=now), now=now)
        if refusal is None:
            refusal = line.arrive(Ticket(request=request, number=number), now=now)
        if refusal is not None:
            self._refuse(request.request_id, refusal)
            return
        self._lines.stir(line.serves)

    def client_gone(self, request_id: str) -> None:
        """Out of its line, or cancelled where it runs."""
        if self._take_out(request_id) is not None:
            self._ledger.ended(Outcome.GONE)
            return
        flight = self._ledger.flight(request_id)
        if flight is not None and not flight.over:
            flight.over = True
            self._ledger.ended(Outcome.GONE)
            self._orders.append(Cancel(request_id, flight.replica_id))

    def first_byte_sent(self, request_id: str) -> None:
        """Its answer began; if it had just been put back, it cannot go on."""
        flight = self._ledger.flight(request_id)
        if flight is not None:
            flight.byte_sent = True
        elif self._take_out(request_id) is not None:
            self._fail(request_id, "the replica was lost while the first part of its answer was on its way; send the request again")

    def finished(self, event: SequencesFinished, *, now: int) -> bool:
        """Some of its sequences ended. Whether that was news."""
        replica = self._fleet.get(event.replica_id)
        flight = self._ledger.flight_on(event.request_id, event.replica_id)
        if replica is None or flight is None:
            return False
        line = self._lines.at(replica.serves)
        self._lines.stir(line.serves)
        if not flight.over:
            line.answered(sequences=event.count, output_tokens=event.output_tokens)
        if not replica.release(event.request_id, event.count):
            self._ledger.landed(event.request_id)
            if not flight.over:
                self._ledger.ended(Outcome.FINISHED)
                line.served(now=now)
        return True

    def failed(self, event: RequestFailed, *, now: int) -> bool:
        """Its replica could not serve it. Whether that was news."""
        replica = self._fleet.get(event.replica_id)
        flight = self._ledger.flight_on(event.request_id, event.replica_id)
        if replica is None or flight is None:
            return False
        self._land(flight, replica)
        if event.busy:
            flight.ticket.attempts -= 1
        if flight.over:
            return True
        if flight.byte_sent:
            self._fail(event.request_id, event.message, event.code)
        elif event.retryable or event.busy:
            self._put_back(flight, event.message, now=now)
        else:
            late = event.code == "deadline_unreachable"
            retry_ms = self._lines.of(flight.ticket.request).retry_after_ms(event.request_id, now=now) if late else None
            self._refuse(event.request_id, Refusal(code=event.code, message=event.message, retry_after_ms=retry_ms))
        return True

    def evicted(self, replica: Replica, *, now: int) -> None:
        """The replica lost everything it ran."""
        for request_id in replica.holders():
            flight = self._ledger.flight(request_id)
            assert flight is not None, "whoever holds a slot flies"
            self._land(flight, replica)
            if flight.byte_sent and not flight.over:
                self._fail(request_id, "the replica was lost in the middle of the answer; send the request again")
            elif not flight.over:
                self._put_back(flight, "it was lost before the answer began", now=now)

    def refuse_late(self, *, now: int) -> None:
        """Refuses whatever waits past its deadline."""
        for line in self._lines:
            if self.refuse_late_in(line, now=now):
                self._lines.stir(line.serves)

    def refuse_late_in(self, line: Line, *, now: int) -> bool:
        """Refuses whatever of the line can no longer be on time. Whether there was any."""
        late = line.take_late(now=now)
        for ticket, refusal in late:
            self._refuse(ticket.request.request_id, refusal)
        return bool(late)

    def end_overdue(self, *, now: int) -> None:
        """Stops whatever runs past its deadline: an answer after it is worth nothing, and its slot is worth something to others."""
        for flight in self._ledger.take_overdue(now=now):
            request = flight.ticket.request
            if flight.over:
                continue
            flight.over = True
            self._orders.append(Cancel(request.request_id, flight.replica_id))
            refusal = overdue(request)
            self._ledger.ended(Outcome.FAILED if flight.byte_sent else Outcome.REFUSED)
            self._orders.append(Fail(request.request_id, refusal) if flight.byte_sent else Refuse(request.request_id, refusal))

    def refuse_unservable(self, serves: ServedVersion) -> None:
        """Refuses whatever waits for a replica that will not come; to be called when the replicas changed."""
        line = self._lines.at(serves)
        for ticket in line.tickets():
            refusal = self._unservable(ticket.request)
            if refusal is not None:
                line.remove(ticket.request.request_id)
                self._refuse(ticket.request.request_id, refusal)

    def _take_out(self, request_id: str) -> Ticket | None:
        line = self._lines.holding(request_id)
        if line is None:
            return None
        self._lines.stir(line.serves)  # it may have kept a replica free
        return line.remove(request_id)

    def _land(self, flight: Flight, replica: Replica) -> None:
        request_id = flight.ticket.request.request_id
        replica.release_everything_of(request_id)
        self._ledger.landed(request_id)
        self._lines.stir(replica.serves)

    def _put_back(self, flight: Flight, why: str, *, now: int) -> None:
        ticket, request = flight.ticket, flight.ticket.request
        line = self._lines.of(request)
        if ticket.is_late(now=now):
            self._refuse(request.request_id, too_late(request, retry_after_ms=line.retry_after_ms(request.request_id, now=now)))
        elif ticket.attempts >= MAX_ATTEMPTS:
            self._fail(request.request_id, f"{ticket.attempts} replicas were tried; the last one: {why}; retry later")
        elif (refusal := self._unservable(request)) is not None:
            self._refuse(request.request_id, refusal)
        else:
            ticket.returned, ticket.avoid = True, flight.replica_id
            line.put_back(ticket)

    def _refuse(self, request_id: str, refusal: Refusal) -> None:
        self._ledger.ended(Outcome.REFUSED)
        self._orders.append(Refuse(request_id, refusal))

    def _fail(self, request_id: str, message: str, code: str = "upstream_failure") -> None:
        self._ledger.ended(Outcome.FAILED)
        self._orders.append(Fail(request_id, Refusal(code=code, message=message)))

    def _unservable(self, request: Request) -> Refusal | None:
        return unservable(request, self._fleet.living(served(request)), self._fleet.get(request.replica_id))

    def _standing(self, request: Request, line: Line, *, now: int) -> Standing:
        return Standing(
            draining=not self._admitting,
            queued=len(line),
            max_queue=self._max_queue,
            retry_after_ms=line.retry_after_ms(request.request_id, now=now),
            living=self._fleet.living(line.serves),
            pinned=self._fleet.get(request.replica_id),
        )
