"""What really happened to every request of a run, kept apart from the scheduler that is judged by it.

Each request goes: arrived → refused, or → running → served. Anything else raises `BrokenPromise` at once: a request both served and
refused, served twice, dispatched before it arrived or in two batches. `check` proves that none is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from halcyon.core.batching.item import Batch
from halcyon.sim.arrivals import Arrival


class BrokenPromise(AssertionError):
    """A scheduler did what none may do."""


class Ledger:
    """The fate of each request by its index in the trace; instants in ns."""

    def __init__(self, arrivals: list[Arrival]) -> None:
        self.arrivals = arrivals
        self.finished_ns: dict[int, int] = {}
        self.refused: dict[int, str] = {}
        self.batch_sizes: list[int] = []
        self.busy_ns = 0
        self._arrived: set[int] = set()
        self._running: set[int] = set()

    def arrive(self, index: int) -> None:
        """The request reached the scheduler."""
        self._arrived.add(index)

    def refuse(self, index: int, code: str) -> None:
        """The scheduler refused it."""
        self._must_wait(index, "refused")
        self.refused[index] = code

    def start(self, batch: Batch, indices: Iterable[int]) -> None:
        """The scheduler sent the batch."""
        for index in indices:
            self._must_wait(index, "dispatched")
            self._running.add(index)
        self.batch_sizes.append(len(batch.items))

    def finish(self, indices: Iterable[int], *, duration_ns: int, now: int) -> None:
        """The device ended a batch."""
        self.busy_ns += duration_ns
        for index in indices:
            if index not in self._running:
                raise BrokenPromise(f"request {index} finished and was not running")
            self._running.discard(index)
            self.finished_ns[index] = now

    def check(self, waiting: int) -> None:
        """Arrived = waiting + running + served + refused, or raises."""
        known = waiting + len(self._running) + len(self.finished_ns) + len(self.refused)
        if known != len(self._arrived):
            raise BrokenPromise(f"{len(self._arrived)} requests arrived and {known} are accounted for")

    def on_time(self, arrival: Arrival) -> bool:
        """Whether it was served by its deadline; finishing at that very instant is on time."""
        finished_ns = self.finished_ns.get(arrival.index)
        return finished_ns is not None and finished_ns <= arrival.deadline_ns

    def _must_wait(self, index: int, verb: str) -> None:
        if index not in self._arrived or index in self._running or index in self.finished_ns or index in self.refused:
            raise BrokenPromise(f"request {index} was {verb} and was not waiting")
