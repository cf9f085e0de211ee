"""The scheduling half of a daemon, wired: core, loop, traffic, supervisor, service, and what is told of everything they do.

What must not be here: sockets, files, signals (`app.py`), or any decision.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from halcyon.config.settings import FleetSettings
from halcyon.core.actions import Action, Cancel, Dispatch, DrainFinished, Fail, Refusal, Refuse, ReplicaEmptied
from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.events import Event, IterationFinished
from halcyon.core.restart import RestartSettings
from halcyon.daemon.catalog import Catalog
from halcyon.daemon.drain import Drain
from halcyon.daemon.history import History
from halcyon.daemon.loop import ControlLoop
from halcyon.daemon.metrics import Metrics
from halcyon.daemon.serving import FleetService
from halcyon.daemon.status import Owners, Report
from halcyon.daemon.supervisor import Launch, Supervisor, SupervisorPorts
from halcyon.daemon.tasks import Tasks
from halcyon.daemon.traffic import LiveRequest, Traffic
from halcyon.errors import NoCapacity
from halcyon.store.history import Store


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the scheduling half is given.

    Attributes:
        connections: clients connected now. on_broken: the core cannot go on. drain_began: the daemon is going down.
        changed: a replica said something, or a request ended.
    """

    launch: Launch
    store: Store
    tasks: Tasks
    rng: random.Random
    restarts: RestartSettings
    connections: Callable[[], int]
    on_broken: Callable[[BaseException], None]
    drain_began: Callable[[], None]
    changed: Callable[[], None]


class Assembly:
    """The parts of one daemon that know one another. Nothing runs before a replica is added."""

    def __init__(self, settings: FleetSettings, around: Surroundings) -> None:
        limits = settings.daemon.limits
        self.catalog = Catalog(settings.models)
        known = ControlSettings(models=self.catalog.model_versions(), max_queue=limits.max_queue, batching=self.catalog.batching())
        core = ControlPlane(known, rng=around.rng)
        self.loop = ControlLoop(core, carry_out=self._carry_out, on_broken=around.on_broken)
        self.traffic = Traffic(handle=self._handle, link_to=lambda replica_id: self.supervisor.link_to(replica_id), now=self.loop.now)
        self.store = around.store
        self.history = History(around.store)
        self._changed = around.changed
        self.supervisor = self._supervisor(around)
        self.drain = Drain(
            handle=self.loop.handle, end_running=self._end_running, began=around.drain_began, timeout_s=limits.drain_timeout_s
        )
        self.report = Report(
            Owners(
                core=core,
                traffic=self.traffic,
                catalog=self.catalog,
                supervisor=self.supervisor,
                store=around.store.status,
                connections=around.connections,
                draining=lambda: self.drain.is_begun,
            )
        )
        self.metrics = Metrics(self.report.snapshot)
        self.service = FleetService(
            self.loop,
            self.traffic,
            self.catalog,
            tenants=settings.tenants,
            buffer_tokens=limits.stream_buffer_tokens,
            models=self.report.models,
            draining=lambda: self.drain.is_begun,
            ended=self._request_ended,
            refused=self._misaddressed,
        )

    def _supervisor(self, around: Surroundings) -> Supervisor:
        ports = SupervisorPorts(
            handle=self.loop.handle,
            now=self.loop.now,
            record=self.history.replica_event,
            restarted=lambda replica_id: self.metrics.restarted(replica_id),
            changed=around.changed,
        )
        return Supervisor(around.launch, self.traffic, around.tasks, ports, rng=around.rng, restarts=around.restarts)

    def _handle(self, event: Event) -> None:
        if isinstance(event, IterationFinished):
            self.metrics.iterated(event.replica_id, event.duration_ns)
        self.loop.handle(event)

    def _carry_out(self, action: Action, now: int) -> None:
        self.metrics.decided(action)
        self.history.decided(action, self.traffic.alive)
        match action:
            case Dispatch():
                self.traffic.dispatch(action, now)
            case Refuse() | Fail():
                self.traffic.refuse(action, now)
            case Cancel():
                self.traffic.cancel(action)
            case ReplicaEmptied(replica_id):
                self.supervisor.emptied(replica_id)
            case DrainFinished():
                self.drain.finish()

    def _request_ended(self, live: LiveRequest) -> None:
        self.metrics.request_ended(live)
        self.history.request_ended(live)
        self._changed()

    def _misaddressed(self, refusal: Refusal) -> None:
        self.metrics.request_misaddressed(refusal.code)

    def _end_running(self) -> None:
        error = NoCapacity("the daemon goes down now; send the request again when it is up")
        for live in list(self.traffic.alive.values()):
            live.generation.fail(error, now=self.loop.now())
