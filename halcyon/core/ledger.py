"""Who is where: every request that was dispatched and still owns slots, and how every request ended.

Rules: a request ends exactly once; arrived = queued + in flight + finished + refused + failed + gone, at every instant. A request whose
client left or whose deadline passed has ended, though its flight stays until the replica gives the slots back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from halcyon.core.batching.removable_heap import RemovableHeap
from halcyon.core.batching.waiting import Ticket


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REFUSED = "refused"
    FAILED = "failed"
    GONE = "gone"


@dataclass(slots=True)
class Flight:
    """A dispatched request. byte_sent: the client saw part of the answer. over: it ended; only its slots remain."""

    ticket: Ticket
    replica_id: str
    byte_sent: bool = False
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Requests since the core began (`arrived` and how they ended) and those alive now (`queued`, `in_flight`)."""

    arrived: int
    queued: int
    in_flight: int
    finished: int
    refused: int
    failed: int
    gone: int


class Ledger:
    """Flights by request, and the counts of endings."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._deadlines = RemovableHeap()
        self._arrived = 0
        self._ended = dict.fromkeys(Outcome, 0)

    def arrived(self) -> int:
        """Counts one arrival; returns its number, from 1."""
        self._arrived += 1
        return self._arrived

    def ended(self, outcome: Outcome) -> None:
        """Counts one ending."""
        self._ended[outcome] += 1

    def dispatched(self, flight: Flight) -> None:
        """The request flies from now on."""
        request = flight.ticket.request
        self._flights[request.request_id] = flight
        if request.deadline_ns is not None:
            self._deadlines.push((request.deadline_ns, flight.ticket.number), request.request_id)

    def landed(self, request_id: str) -> Flight:
        """The request holds no slot any more."""
        self._deadlines.discard(request_id)
        return self._flights.pop(request_id)

    def flight(self, request_id: str) -> Flight | None:
        """The flight of a dispatched request."""
        return self._flights.get(request_id)

    def flight_on(self, request_id: str, replica_id: str) -> Flight | None:
        """The flight, if it is on that replica; late reports of another one are none."""
        flight = self._flights.get(request_id)
        return flight if flight is not None and flight.replica_id == replica_id else None

    def take_overdue(self, *, now: int) -> list[Flight]:
        """Flights whose deadline has passed (finishing exactly at it is on time), each once."""
        overdue: list[Flight] = []
        while (first := self._deadlines.peek()) is not None and now > first[0][0]:
            self._deadlines.pop()
            overdue.append(self._flights[first[1]])
        return overdue

    def next_overdue(self) -> int | None:
        """The first instant at which a flight is overdue; `None` without one."""
        first = self._deadlines.peek()
        return None if first is None else first[0][0] + 1

    def is_empty(self) -> bool:
        """Whether nothing flies, cancelled requests included."""
        return not self._flights

    def totals(self, *, queued: int) -> Totals:
        """The counts now."""
        return Totals(
            arrived=self._arrived,
            queued=queued,
            in_flight=sum(not flight.over for flight in self._flights.values()),
            finished=self._ended[Outcome.FINISHED],
            refused=self._ended[Outcome.REFUSED],
            failed=self._ended[Outcome.FAILED],
            gone=self._ended[Outcome.GONE],
        )
