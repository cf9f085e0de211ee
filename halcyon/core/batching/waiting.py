"""Where requests wait for one (model, version) until a replica can take them.

Order of service: returned requests (their replica failed them) before all, then lane `interactive` before `bulk`, higher priority,
earlier deadline (none is last), earlier arrival, smaller number. Expiry: an answer that ends at exactly the deadline is on time, but
one that has not begun by then cannot be, so a waiting request expires at the first instant with now >= deadline_ns.
push, remove and one step of `offer` take O(log n). What must not be here: replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from halcyon.core.batching.removable_heap import Key, RemovableHeap
from halcyon.core.request import Request


@dataclass(slots=True, kw_only=True)
class Ticket:
    """A request's standing while it is not finished; it moves from the queue to a replica and perhaps back.

    Attributes:
        number: unique, grows with arrival. attempts: dispatches so far that count against the bound (being sent away as busy does not).
        returned: came back from a replica. avoid: the replica that failed it last; empty otherwise.
        overtaken: requests behind it that left while it did not fit. claim: the replica kept free for it; empty without.
    """

    request: Request
    number: int
    attempts: int = 0
    returned: bool = False
    avoid: str = ""
    overtaken: int = 0
    claim: str = ""

    def is_late(self, *, now: int) -> bool:
        """Whether it can no longer be on time."""
        return self.request.deadline_ns is not None and now >= self.request.deadline_ns

    def key(self) -> Key:
        """Its place in the order of service; smaller is sooner."""
        request = self.request
        return (
            0 if self.returned else 1,
            0 if request.lane == "interactive" else 1,
            -request.priority,
            0 if request.deadline_ns is not None else 1,
            request.deadline_ns or 0,
            request.arrived_ns,
            self.number,
        )


class Answer(Enum):
    """What became of a ticket that was offered."""

    TAKEN = "taken"
    """It leaves the queue."""
    PASSED = "passed"
    """It stays where it is; the next one is offered."""
    STOP = "stop"
    """It stays where it is, and so do all behind it."""


class WaitingQueue:
    """Tickets by order of service and by deadline."""

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._order = RemovableHeap()
        self._deadlines = RemovableHeap()

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tickets

    def tickets(self) -> tuple[Ticket, ...]:
        """All tickets, in the order they were pushed."""
        return tuple(self._tickets.values())

    def push(self, ticket: Ticket) -> None:
        """Puts a ticket in its place."""
        request_id = ticket.request.request_id
        self._tickets[request_id] = ticket
        self._order.push(ticket.key(), request_id)
        if ticket.request.deadline_ns is not None:
            self._deadlines.push((ticket.request.deadline_ns, ticket.number), request_id)

    def remove(self, request_id: str) -> Ticket | None:
        """Takes a ticket out, if it is here."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            self._order.discard(request_id)
            self._deadlines.discard(request_id)
        return ticket

    def take_expired(self, *, now: int) -> list[Ticket]:
        """Takes out every ticket whose deadline has come, earliest first."""
        expired: list[Ticket] = []
        while (due := self._deadlines.peek()) is not None and due[0][0] <= now:
            expired.append(self._tickets[due[1]])
            self.remove(due[1])
        return expired

    def next_expiry(self) -> int | None:
        """The earliest deadline here; `None` without one."""
        due = self._deadlines.peek()
        return None if due is None else due[0][0]

    def offer(self, ask: Callable[[Ticket], Answer]) -> None:
        """Offers tickets in order of service until `ask` says stop or none is left. `ask` must not change the queue."""
        passed: list[tuple[Key, str]] = []
        while (first := self._order.peek()) is not None:
            answer = ask(self._tickets[first[1]])
            if answer is Answer.STOP:
                break
            if answer is Answer.TAKEN:
                self.remove(first[1])
                continue
            self._order.pop()
            passed.append(first)
        for key, request_id in passed:
            self._order.push(key, request_id)
