"""How the daemon stands, for people, scripts and Prometheus: read from the owners of each number when it is asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import halcyon
from halcyon import clock
from halcyon.core.control import ControlPlane
from halcyon.daemon.catalog import Catalog
from halcyon.daemon.metrics import Snapshot
from halcyon.daemon.supervisor import Supervisor
from halcyon.daemon.traffic import Traffic
from halcyon.wire.control import ModelStatus, ReplicaStatus, Status, StoreStatus


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What does not change while the daemon lives. listen: HOST:PORT as bound. started_ns: monotonic."""

    listen: str
    socket: str
    state_dir: str
    fleet: str
    started_ns: int
    fleet_digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """Who is asked."""

    core: ControlPlane
    traffic: Traffic
    catalog: Catalog
    supervisor: Supervisor
    store: Callable[[], StoreStatus]
    connections: Callable[[], int]
    draining: Callable[[], bool]


class Report:
    """Builds statuses."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._settled = False

    def status(self, identity: Identity) -> Status:
        """The daemon at a glance."""
        owners = self._owners
        queued = sum(owners.core.queued().values())
        return Status(
            pid=os.getpid(),
            version=halcyon.__version__,
            state=self.state(),
            listen=identity.listen,
            socket=identity.socket,
            state_dir=identity.state_dir,
            fleet=identity.fleet,
            uptime_s=(clock.now_ns() - identity.started_ns) / clock.NS_PER_S,
            queued=queued,
            running=len(owners.traffic.alive) - queued,
            connections=owners.connections(),
            requests_total=owners.core.totals().arrived,
            replicas=self.replicas(),
            models=self.models(),
            store=owners.store(),
            fleet_digest=identity.fleet_digest,
        )

    def state(self) -> Literal["starting", "ready", "degraded", "draining"]:
        """`starting` until every replica's first start came to an end; then it never says so again. `ready` takes one that is."""
        if self._owners.draining():
            return "draining"
        replicas = self._owners.supervisor.replicas()
        self._settled = self._settled or all(replica.is_settled for replica in replicas)
        if not self._settled:
            return "starting"
        states = {replica.lifecycle.state for replica in replicas}
        return "ready" if {"ready"} <= states <= {"ready", "draining"} else "degraded"

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """All replicas."""
        return self._owners.supervisor.statuses(self._owners.core.outstanding())

    def models(self) -> tuple[ModelStatus, ...]:
        """Every version of every model; a registered one only while it has a replica, so that its removal makes nobody unready."""
        owners = self._owners
        queued = owners.core.queued()
        replicas = owners.supervisor.replicas()
        there = Counter((r.model.name, r.model.version) for r in replicas)
        ready = Counter((r.model.name, r.model.version) for r in replicas if r.lifecycle.state == "ready")
        coming = Counter((r.model.name, r.model.version) for r in replicas if r.lifecycle.is_living and r.lifecycle.state != "ready")
        contexts = {(r.model.name, r.model.version): r.ready.max_context for r in replicas if r.ready is not None}
        return tuple(
            ModelStatus(
                name=model.name,
                version=model.version,
                runtime=model.runtime,
                source=model.source,
                default=model.version == owners.catalog.default_version(model.name),
                replicas=there[model.name, model.version],
                ready=ready[model.name, model.version],
                coming=coming[model.name, model.version],
                queued=queued.get((model.name, model.version), 0),
                max_context=contexts.get((model.name, model.version)) or model.max_context,
                deadline_ms=model.deadline_ms,
                ttft_ms=model.ttft_ms,
                tpot_ms=model.tpot_ms,
            )
            for model in owners.catalog
            if owners.catalog.is_of_fleet(model.name, model.version) or there[model.name, model.version]
        )

    def snapshot(self) -> Snapshot:
        """The gauges."""
        owners = self._owners
        queued = owners.core.queued()
        alive = Counter((live.request.model, live.request.version) for live in owners.traffic.alive.values())
        return Snapshot(
            queued=queued,
            running={served: alive[served] - waiting for served, waiting in queued.items()},
            replicas=self.replicas(),
            store=owners.store(),
            connections=owners.connections(),
        )
