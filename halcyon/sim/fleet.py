"""The whole control plane over simulated batch replicas: the daemon's part played by a heap.

Rules: the plane is the product's own and hears what a daemon would tell it, in the same events; its orders are carried out at once. A
replica runs what it was sent in the order in which it came, one batch at a time. An arrival of N tokens is a prompt of N − 1 and an
answer of one, so its size is known. One timer is kept, for `next_wakeup`. Replicas can be lost and come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from halcyon.core.actions import Action, Cancel, Dispatch, Fail, Refuse
from halcyon.core.control import ControlPlane
from halcyon.core.events import (
    Event,
    IterationFinished,
    ReplicaAdded,
    ReplicaLost,
    ReplicaReady,
    RequestArrived,
    SequencesFinished,
    TimerFired,
)
from halcyon.core.request import Request
from halcyon.sim.arrivals import Arrival
from halcyon.sim.clock import VirtualTime
from halcyon.sim.devices import BatchDevice
from halcyon.sim.ledger import BrokenPromise


@dataclass(frozen=True, slots=True)
class Outage:
    """The replica dies at one instant and is ready again at another; ns."""

    replica_id: str
    lost_ns: int
    back_ns: int


@dataclass(slots=True)
class _Replica:
    """A simulated process. `life` grows with every loss, so that what an earlier life had scheduled is void."""

    device: BatchDevice
    queue: deque[tuple[str, ...]]
    batch_id: int = 0
    running: bool = False
    life: int = 0


class SimulatedFleet:
    """One plane, one served version, its replicas, one trace."""

    def __init__(self, plane: ControlPlane, serves: tuple[str, str], devices: dict[str, BatchDevice], *, max_batch: int) -> None:
        self._plane = plane
        self._serves = serves
        self._replicas = {replica_id: _Replica(device, deque()) for replica_id, device in devices.items()}
        self._max_batch = max_batch
        self._time = VirtualTime()
        self._timer_ns: int | None = None
        self._requests: dict[str, Request] = {}
        self._cancelled: set[str] = set()
        self.ended: dict[str, str] = {}
        """How each request ended: `served`, or the code it was refused or failed with."""
        self.finished_ns: dict[str, int] = {}
        self.story: list[tuple[int, Event, list[Action]]] = []

    def run(self, arrivals: list[Arrival], outages: tuple[Outage, ...] = (), *, check: Callable[[], None] | None = None) -> None:
        """Runs until nothing is left; `check` is called after every happening."""
        model, version = self._serves
        for replica_id in self._replicas:
            added = ReplicaAdded(replica_id=replica_id, model=model, version=version, kind="batch", max_batch=self._max_batch)
            self._time.at(0, partial(self._tell, added))
            self._time.at(0, partial(self._ready, replica_id))
        for outage in outages:
            self._time.at(outage.lost_ns, partial(self._lose, outage.replica_id))
            self._time.at(outage.back_ns, partial(self._ready, outage.replica_id))
        for arrival in arrivals:
            self._time.at(arrival.arrived_ns, partial(self._arrive, arrival))
        self._time.run(after_each=check)

    def _arrive(self, arrival: Arrival) -> None:
        model, version = self._serves
        request = Request(
            request_id=str(arrival.index),
            model=model,
            version=version,
            arrived_ns=arrival.arrived_ns,
            prompt_tokens=arrival.tokens - 1,
            max_output_tokens=1,
            deadline_ns=arrival.deadline_ns,
        )
        self._requests[request.request_id] = request
        self._tell(RequestArrived(request))

    def _ready(self, replica_id: str) -> None:
        self._tell(ReplicaReady(replica_id=replica_id, kind="batch", max_batch=self._max_batch))

    def _lose(self, replica_id: str) -> None:
        replica = self._replicas[replica_id]
        replica.life += 1
        replica.running = False
        replica.queue.clear()
        self._tell(ReplicaLost(replica_id, "lost by the scenario"))

    def _tell(self, event: Event) -> None:
        actions = self._plane.handle(event, now=self._time.now)
        self.story.append((self._time.now, event, actions))
        for action in actions:
            self._carry_out(action)
        self._set_timer()

    def _carry_out(self, action: Action) -> None:
        match action:
            case Dispatch():
                self._replicas[action.replica_id].queue.append(action.request_ids)
                self._start_next(action.replica_id)
            case Refuse(request_id, refusal) | Fail(request_id, refusal):
                self._end(request_id, refusal.code)
            case Cancel(request_id, _):
                self._cancelled.add(request_id)
            case _:
                pass

    def _start_next(self, replica_id: str) -> None:
        replica = self._replicas[replica_id]
        if replica.running or not replica.queue:
            return
        batch = replica.queue.popleft()
        tokens = sum(self._requests[request_id].prompt_tokens + 1 for request_id in batch)
        duration_ns = replica.device.duration_ns(tokens, now=self._time.now)
        replica.running = True
        replica.batch_id += 1
        self._time.at(self._time.now + duration_ns, partial(self._finish, replica_id, replica.life, batch, tokens, duration_ns))

    def _finish(self, replica_id: str, life: int, batch: tuple[str, ...], tokens: int, duration_ns: int) -> None:
        replica = self._replicas[replica_id]
        if life != replica.life:
            return
        replica.running = False
        for request_id in batch:
            if request_id not in self._cancelled:
                self._end(request_id, "served")
            self._tell(SequencesFinished(request_id=request_id, replica_id=replica_id, count=1, output_tokens=1))
        self._tell(
            IterationFinished(
                replica_id=replica_id,
                duration_ns=duration_ns,
                running=len(batch),
                decode_tokens=0,
                prefill_tokens=tokens,
                batch_id=replica.batch_id,
            )
        )
        self._start_next(replica_id)

    def _end(self, request_id: str, how: str) -> None:
        if request_id in self.ended:
            raise BrokenPromise(f"request {request_id} ended as {self.ended[request_id]} and then as {how}")
        self.ended[request_id] = how
        if how == "served":
            self.finished_ns[request_id] = self._time.now

    def _set_timer(self) -> None:
        instant_ns = self._plane.next_wakeup()
        if instant_ns is None or instant_ns == self._timer_ns:
            return
        self._timer_ns = instant_ns
        self._time.at(max(instant_ns, self._time.now), partial(self._fire, instant_ns))

    def _fire(self, instant_ns: int) -> None:
        if self._timer_ns == instant_ns:
            self._timer_ns = None
            self._tell(TimerFired())
