"""Runs a request-level scheduler over simulated batch devices: the shell's part, with a heap where the daemon has a socket and a timer.

The scheduler is the product's own (`halcyon.core.batching.scheduler`) or a baseline with the same questions. It is told what a daemon
would know: arrivals, batch endings and durations; never a law of the devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from halcyon.core.actions import Refusal
from halcyon.core.batching.item import Batch, WorkItem
from halcyon.sim.arrivals import Arrival
from halcyon.sim.clock import VirtualTime
from halcyon.sim.devices import BatchDevice
from halcyon.sim.ledger import Ledger


class Scheduler(Protocol):
    """The questions of `BatchScheduler` that a simulation asks."""

    @property
    def depth(self) -> int:
        """Requests that wait."""
        ...

    def replica_ready(self, replica_id: str, *, max_batch: int, now: int) -> None:
        """A replica can take work."""
        ...

    def arrive(self, item: WorkItem, *, now: int) -> Refusal | None:
        """A request arrives."""
        ...

    def expire(self, *, now: int) -> list[tuple[WorkItem, Refusal]]:
        """What has become unreachable."""
        ...

    def dispatch(self, *, now: int) -> list[Batch]:
        """What to send now."""
        ...

    def batch_finished(self, replica_id: str, *, now: int, duration_ns: int | None = None) -> Batch:
        """A replica ended its batch."""
        ...

    def next_wakeup(self) -> int | None:
        """When to ask again."""
        ...


class BatchStation:
    """One scheduler, its devices and its trace."""

    def __init__(self, scheduler: Scheduler, devices: list[BatchDevice], arrivals: list[Arrival], *, max_batch: int) -> None:
        self._scheduler = scheduler
        self._devices = {f"r{index}": device for index, device in enumerate(devices)}
        self._max_batch = max_batch
        self._time = VirtualTime()
        self._alarm_ns: int | None = None
        self._pending = iter(arrivals)
        self.ledger = Ledger(arrivals)

    def run(self, *, check: bool = False) -> Ledger:
        """Runs until nothing is left. With `check`, accounts for every request after every happening."""
        for replica_id in self._devices:
            self._scheduler.replica_ready(replica_id, max_batch=self._max_batch, now=0)
        self._schedule_next_arrival()
        after_each: Callable[[], None] | None = (lambda: self.ledger.check(self._scheduler.depth)) if check else None
        self._time.run(after_each=after_each)
        self.ledger.check(self._scheduler.depth)
        return self.ledger

    @property
    def now(self) -> int:
        """Virtual time, ns."""
        return self._time.now

    def _schedule_next_arrival(self) -> None:
        arrival = next(self._pending, None)
        if arrival is not None:
            self._time.at(arrival.arrived_ns, partial(self._arrive, arrival))

    def _arrive(self, arrival: Arrival) -> None:
        self._schedule_next_arrival()
        item = WorkItem(
            request_id=str(arrival.index), arrived_ns=arrival.arrived_ns, tokens=arrival.tokens, deadline_ns=arrival.deadline_ns
        )
        self.ledger.arrive(arrival.index)
        refusal = self._scheduler.arrive(item, now=self._time.now)
        if refusal is not None:
            self.ledger.refuse(arrival.index, refusal.code)
        self._proceed()

    def _finish(self, batch: Batch, duration_ns: int) -> None:
        self._scheduler.batch_finished(batch.replica_id, now=self._time.now, duration_ns=duration_ns)
        self.ledger.finish(_indices(batch), duration_ns=duration_ns, now=self._time.now)
        self._proceed()

    def _alarm(self, instant_ns: int) -> None:
        if self._alarm_ns == instant_ns:
            self._alarm_ns = None
            self._proceed()

    def _proceed(self) -> None:
        now = self._time.now
        for item, refusal in self._scheduler.expire(now=now):
            self.ledger.refuse(int(item.request_id), refusal.code)
        for batch in self._scheduler.dispatch(now=now):
            self.ledger.start(batch, _indices(batch))
            duration_ns = self._devices[batch.replica_id].duration_ns(batch.tokens, now=now)
            self._time.at(now + duration_ns, partial(self._finish, batch, duration_ns))
        self._set_alarm()

    def _set_alarm(self) -> None:
        instant_ns = self._scheduler.next_wakeup()
        if instant_ns is None or instant_ns == self._alarm_ns:
            return
        self._alarm_ns = instant_ns
        self._time.at(max(instant_ns, self._time.now), partial(self._alarm, instant_ns))


def _indices(batch: Batch) -> list[int]:
    return [int(item.request_id) for item in batch.items]
