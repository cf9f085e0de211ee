"""The lines clients stand in: for each (model, version) a queue, the former that empties it, and how fast it is being served.

Rules: lines are kept in the order they were opened and never closed, so every list here is in that order. A line is `stirred` when
something happened that may let its queue move; stirred lines are looked at once and then rest. What must not be here: replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from halcyon.core.admission.service_rate import ServiceRate
from halcyon.core.batching.fill import BatchFormer
from halcyon.core.batching.waiting import WaitingQueue
from halcyon.core.fleet import ServedVersion
from halcyon.core.request import Request


@dataclass(slots=True)
class Line:
    """What belongs to one (model, version)."""

    serves: ServedVersion
    former: BatchFormer
    queue: WaitingQueue = field(default_factory=WaitingQueue)
    rate: ServiceRate = field(default_factory=ServiceRate)

    def retry_after_ms(self, *, now: int) -> int:
        """Milliseconds until everything that waits here will have been served; at least 1."""
        return self.rate.retry_after_ms(len(self.queue), now=now)


class Lines:
    """All lines, and which of them are stirred."""

    def __init__(self, new_former: Callable[[], BatchFormer]) -> None:
        self._new_former = new_former
        self._lines: dict[ServedVersion, Line] = {}
        self._stirred: dict[ServedVersion, None] = {}  # a set that keeps its order

    def open(self, serves: ServedVersion) -> None:
        """Opens a line unless it is open."""
        if serves not in self._lines:
            self._lines[serves] = Line(serves, self._new_former())

    def of(self, request: Request) -> Line:
        """The line of the request's (model, version)."""
        return self._lines[served(request)]

    def at(self, serves: ServedVersion) -> Line:
        """The line of this (model, version)."""
        return self._lines[serves]

    def holding(self, request_id: str) -> Line | None:
        """The line in which the request waits, if it waits."""
        return next((line for line in self if request_id in line.queue), None)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def waiting(self) -> int:
        """Requests waiting, in all lines."""
        return sum(len(line.queue) for line in self)

    def stir(self, serves: ServedVersion) -> None:
        """The line's queue may be able to move."""
        self._stirred[serves] = None

    def stir_due(self, *, now: int) -> None:
        """Stirs every line whose former wanted to be asked by now."""
        for line in self:
            wakeup = line.former.next_wakeup()
            if wakeup is not None and now >= wakeup:
                self.stir(line.serves)

    def take_stirred(self) -> list[ServedVersion]:
        """Lines stirred since the last call, in that order; they rest from now on."""
        stirred = [*self._stirred]
        self._stirred.clear()
        return stirred

    def next_wakeup(self) -> int | None:
        """The first instant at which a deadline passes or a former wants to be asked; `None` without one."""
        instants = [instant for line in self for instant in (line.queue.next_expiry(), line.former.next_wakeup())]
        return min((instant for instant in instants if instant is not None), default=None)


def served(request: Request) -> ServedVersion:
    """What must serve the request."""
    return (request.model, request.version)
