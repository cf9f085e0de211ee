"""The lines clients stand in, one for each (model, version), and which of them are stirred.

Rules: lines are kept in the order they were opened and never closed, so every list here is in that order. A line is `stirred` when
something happened that may let its queue move; stirred lines are looked at once and then rest. While all living replicas of a line run
batches the batch scheduler decides in it, else its queue fills free slots; whoever waits moves over when that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from halcyon.core.batch_line import BatchLine
from halcyon.core.batching.fill import BatchFormer
from halcyon.core.batching.settings import BatchSettings
from halcyon.core.fleet import ReplicaKind, ServedVersion
from halcyon.core.line import Line
from halcyon.core.request import Request
from halcyon.core.slot_line import SlotLine


class Lines:
    """All lines, and which of them are stirred. `batching`: of lines before batch replicas; `default` where nothing is said."""

    def __init__(
        self, new_former: Callable[[], BatchFormer], *, batching: Mapping[ServedVersion, BatchSettings], default: BatchSettings
    ) -> None:
        self._new_former = new_former
        self._batching = batching
        self._default = default
        self._draining = False
        self._lines: dict[ServedVersion, Line] = {}
        self._stirred: dict[ServedVersion, None] = {}  # a set that keeps its order

    def open(self, serves: ServedVersion) -> None:
        """Opens a line unless it is open."""
        if serves not in self._lines:
            self._lines[serves] = SlotLine(serves, self._new_former())

    def suit(self, serves: ServedVersion, kinds: Iterable[ReplicaKind], *, now: int) -> None:
        """Its living replicas are of these kinds now; without any the line stays as it is."""
        present = set(kinds)
        before = self._lines[serves]
        kind: ReplicaKind = "batch" if present == {"batch"} else "continuous"
        if not present or kind == before.kind:
            return
        line = self._lines[serves] = self._new_line(serves, kind, now=now)
        if self._draining:
            line.drain()
        for ticket in before.tickets():
            line.put_back(ticket)
        self.stir(serves)

    def of(self, request: Request) -> Line:
        """The line of the request's (model, version)."""
        return self._lines[served(request)]

    def at(self, serves: ServedVersion) -> Line:
        """The line of this (model, version)."""
        return self._lines[serves]

    def holding(self, request_id: str) -> Line | None:
        """The line in which the request waits, if it waits."""
        return next((line for line in self if request_id in line), None)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def waiting(self) -> int:
        """Requests waiting, in all lines."""
        return sum(len(line) for line in self)

    def drain(self) -> None:
        """Nothing more will arrive anywhere."""
        self._draining = True
        for line in self:
            line.drain()
            self.stir(line.serves)

    def stir(self, serves: ServedVersion) -> None:
        """The line's queue may be able to move."""
        self._stirred[serves] = None

    def stir_due(self, *, now: int) -> None:
        """Stirs every line that wanted to be asked by now."""
        for line in self:
            wakeup = line.next_wakeup()
            if wakeup is not None and now >= wakeup:
                self.stir(line.serves)

    def take_stirred(self) -> list[ServedVersion]:
        """Lines stirred since the last call, in that order; they rest from now on."""
        stirred = [*self._stirred]
        self._stirred.clear()
        return stirred

    def next_wakeup(self) -> int | None:
        """The first instant at which a line wants to be asked; `None` without one."""
        instants = [line.next_wakeup() for line in self]
        return min((instant for instant in instants if instant is not None), default=None)

    def _new_line(self, serves: ServedVersion, kind: ReplicaKind, *, now: int) -> Line:
        if kind == "batch":
            return BatchLine(serves, self._batching.get(serves, self._default), now=now)
        return SlotLine(serves, self._new_former())


def served(request: Request) -> ServedVersion:
    """What must serve the request."""
    return (request.model, request.version)
