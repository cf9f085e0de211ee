"""Who is where: every request that was dispatched and still owns slots, and how every request ended.

Rules: a request ends exactly once; arrived = queued + in flight + finished + refused + failed + gone, at every instant. A client that
left has ended, though its flight stays until the replica gives the slots back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from halcyon.core.batching.waiting import Ticket


class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    REFUSED = "refused"
    FAILED = "failed"
    GONE = "gone"


@dataclass(slots=True)
class Flight:
    """A dispatched request. byte_sent: the client saw part of the answer. client_gone: it ended; only its slots remain."""

    ticket: Ticket
    replica_id: str
    byte_sent: bool = False
    client_gone: bool = False


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
        self._flights[flight.ticket.request.request_id] = flight

    def landed(self, request_id: str) -> Flight:
        """The request holds no slot any more."""
        return self._flights.pop(request_id)

    def flight(self, request_id: str) -> Flight | None:
        """The flight of a dispatched request."""
        return self._flights.get(request_id)

    def flight_on(self, request_id: str, replica_id: str) -> Flight | None:
        """The flight, if it is on that replica; late reports of another one are none."""
        flight = self._flights.get(request_id)
        return flight if flight is not None and flight.replica_id == replica_id else None

    def is_empty(self) -> bool:
        """Whether nothing flies, cancelled requests included."""
        return not self._flights

    def totals(self, *, queued: int) -> Totals:
        """The counts now."""
        return Totals(
            arrived=self._arrived,
            queued=queued,
            in_flight=sum(not flight.client_gone for flight in self._flights.values()),
            finished=self._ended[Outcome.FINISHED],
            refused=self._ended[Outcome.REFUSED],
            failed=self._ended[Outcome.FAILED],
            gone=self._ended[Outcome.GONE],
        )
