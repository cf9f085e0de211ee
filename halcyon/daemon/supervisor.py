"""Keeps the replicas of the fleet alive: starts each, hears its frames, starts it again when it is lost, gives it up when that is no use.

Rules
- A replica's troubles are its own: every one has its own restart policy, and no start waits for another.
- Leaving goes in order: out of selection first, then empty, then ended. The core says when it is empty.
- The core hears of a loss before the next start begins, and of a replica that was given up that it is removed.
- At the daemon's end every worker is ended and waited for, also one whose start was still under way or whose replica is removed already.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass

from halcyon import clock
from halcyon.config.load import replica_id as id_of_replica
from halcyon.config.settings import ModelSettings
from halcyon.core.events import Event, ReplicaAdded, ReplicaDrainStarted, ReplicaReady, ReplicaRemoved
from halcyon.core.restart import GiveUp, RestartPolicy, RestartSettings
from halcyon.daemon.link import Link, OnFrame, OnLost
from halcyon.daemon.logs import EventLog
from halcyon.daemon.replica import ManagedReplica
from halcyon.daemon.tasks import Tasks
from halcyon.daemon.traffic import Traffic
from halcyon.errors import Conflict, NotFound, WorkerFailure
from halcyon.store.rows import ReplicaRow
from halcyon.wire.control import ReplicaStatus
from halcyon.wire.frames import Fatal, FromWorker, Heartbeat, Iteration, Ready, SequenceFailed, Stage

_log = EventLog("supervisor")

NEVER_GIVE_UP = RestartSettings(most_failures=1_000_000)
"""For servers that are not ours to restart: we only look again, ever more seldom."""

EMPTY_AND_ENDED = "empty and ended; remove it with `halcyon replica remove`"

Launch = Callable[[ManagedReplica, OnFrame, OnLost], Awaitable[Link]]
"""Starts what serves a replica, and sets its pid. Raises WorkerFailure when it cannot be started."""


@dataclass(frozen=True, kw_only=True)
class SupervisorPorts:
    """Where the supervisor reports. handle: facts for the core. now: the daemon's instant. record: a row of the history.
    restarted: a replica is started again. changed: any state changed."""

    handle: Callable[[Event], None]
    now: Callable[[], int]
    record: Callable[[ReplicaRow], None]
    restarted: Callable[[str], None]
    changed: Callable[[], None]


class Supervisor:
    """All replicas of a daemon."""

    def __init__(
        self, launch: Launch, traffic: Traffic, tasks: Tasks, ports: SupervisorPorts, *, rng: random.Random, restarts: RestartSettings
    ) -> None:
        self._launch = launch
        self._traffic = traffic
        self._tasks = tasks
        self._ports = ports
        self._rng = rng
        self._restarts = restarts
        self._replicas: dict[str, ManagedReplica] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._links: set[Link] = set()
        self._closing = False

    # ---- looking -----------------------------------------------------------------------------------------------------

    def replicas(self) -> tuple[ManagedReplica, ...]:
        """Every replica, in the order they were added."""
        return tuple(self._replicas.values())

    def link_to(self, replica_id: str) -> Link | None:
        """The line to a started replica."""
        replica = self._replicas.get(replica_id)
        return replica.link if replica is not None else None

    def statuses(self, outstanding: Mapping[str, int]) -> tuple[ReplicaStatus, ...]:
        """Every replica as people see it."""
        now = self._ports.now()
        return tuple(r.status(outstanding=outstanding.get(r.replica_id, 0), now=now) for r in self._replicas.values())

    def find(self, replica_id: str) -> ManagedReplica:
        """The replica of that id.

        Raises:
            NotFound: there is none; the message names those that exist.
        """
        replica = self._replicas.get(replica_id)
        if replica is None:
            raise NotFound(f"no such replica; there are: {', '.join(self._replicas) or 'none'}", param="replica_id")
        return replica

    # ---- coming ------------------------------------------------------------------------------------------------------

    def free_id(self, model: ModelSettings, *, registered: bool = False, promised: Container[str] = ()) -> str:
        """The next id for a replica of the version. Registered ones are counted apart, so that no fleet file can take their ids.
        promised: ids that are as good as taken."""
        stem = f"{model.name}-{model.version}-r" if registered else ""
        ids = (f"{stem}{i}" if stem else id_of_replica(model.name, model.version, i) for i in itertools.count())
        return next(replica_id for replica_id in ids if replica_id not in self._replicas and replica_id not in promised)

    def add(self, model: ModelSettings, *, index: int = 0, replica_id: str = "", registered: bool = False) -> ManagedReplica:
        """One more replica of a version, the `index`-th; its start begins at once."""
        replica_id = replica_id or self.free_id(model)
        policy = RestartPolicy(NEVER_GIVE_UP if model.runtime == "openai" else self._restarts, rng=self._rng)
        replica = ManagedReplica(replica_id=replica_id, model=model, index=index, policy=policy, registered=registered)
        self._replicas[replica_id] = replica
        self._ports.handle(
            ReplicaAdded(
                replica_id=replica_id,
                model=model.name,
                version=model.version,
                kind=model.sim.mode if model.runtime == "sim" else "continuous",
                max_batch=model.max_batch,
            )
        )
        self._start(replica)
        return replica

    # ---- leaving -----------------------------------------------------------------------------------------------------

    def drain(self, replica_id: str) -> ManagedReplica:
        """Takes the replica out of selection; it ends when what runs on it has finished.

        Raises:
            NotFound: there is none.
            Conflict: it was given up, so nothing runs on it.
        """
        replica = self.find(replica_id)
        if replica.lifecycle.state == "draining":
            return replica
        if not replica.lifecycle.may_move("draining"):
            raise Conflict(f"replica {replica_id} is {replica.lifecycle.state}, so nothing runs on it; remove it instead")
        self._cancel_timer(replica)
        replica.lifecycle.move("draining")
        self._note(replica, "finishing what runs on it")
        self._ports.handle(ReplicaDrainStarted(replica_id))
        return replica

    def remove(self, replica_id: str) -> ManagedReplica:
        """Drains the replica and, once it is empty and ended, forgets it.

        Raises:
            NotFound: there is none.
        """
        replica = self.find(replica_id)
        replica.removing = True
        if replica.lifecycle.may_move("draining"):
            self.drain(replica_id)
        if replica.link is None and replica.lifecycle.state != "removed":
            self._removed(replica)
        return replica

    def emptied(self, replica_id: str) -> None:
        """The core's word that a draining replica has nothing left: it is asked to end."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        if replica.link is None:
            self._note(replica, EMPTY_AND_ENDED)
            return
        self._note(replica, "empty, ending")
        replica.link.stop()

    async def shut_down(self, *, grace_s: float = 5.0) -> None:
        """Ends every worker and waits until none is left."""
        self._closing = True
        for replica in self._replicas.values():
            self._cancel_timer(replica)
        for link in self._links:
            link.terminate()
        if self._lives:  # a start under way ends its worker itself, as soon as it has one
            await asyncio.wait(self._lives, timeout=grace_s + 1)
        for link in self._links:
            link.kill()
        if self._lives:
            await asyncio.wait(self._lives)

    # ---- one start ---------------------------------------------------------------------------------------------------

    def _start(self, replica: ManagedReplica) -> None:
        replica.starting(now=self._ports.now())
        self._note(replica, "")
        life = self._tasks.spawn(f"one life of {replica.replica_id}", self._live(replica))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _live(self, replica: ManagedReplica) -> None:
        """From the start to the instant at which nothing of it is left."""
        start = _Start(self, replica)
        try:
            link = await self._launch(replica, start.on_frame, start.on_lost)
        except WorkerFailure as error:
            start.on_lost(error.message, None)
            return
        self._links.add(link)
        if not start.is_lost:
            replica.link = link
            if self._closing or replica.lifecycle.state in {"draining", "removed"}:
                link.terminate()
        await link.wait_gone()
        self._links.discard(link)

    def _heard(self, replica: ManagedReplica, frame: FromWorker) -> None:
        match frame:
            case Iteration():
                replica.produced(frame)
                self._traffic.iteration(replica.replica_id, frame)
            case SequenceFailed():
                replica.sequence_failed(frame)
                self._traffic.sequence_failed(replica.replica_id, frame)
            case Heartbeat():
                replica.figures.heard(frame)
                self._ports.changed()
            case Stage():
                if replica.staged(frame):
                    self._note(replica, frame.detail)
                self._ports.changed()
            case Ready():
                self._became_ready(replica, frame)
            case _:
                pass  # the link keeps Hello and Fatal to itself

    def _became_ready(self, replica: ManagedReplica, frame: Ready) -> None:
        if not replica.became_ready(frame, now=self._ports.now()):
            return
        self._note(replica, "")
        self._ports.handle(ReplicaReady(replica_id=replica.replica_id, kind=frame.kind, max_batch=frame.max_batch))

    # ---- one loss ----------------------------------------------------------------------------------------------------

    def _lost(self, replica: ManagedReplica, reason: str, fatal: Fatal | None) -> None:
        replica.gone()
        if replica.lifecycle.state == "removed":
            return  # while its start was under way; its id may be another's by now
        self._traffic.replica_lost(replica.replica_id, reason)
        if replica.removing:
            self._removed(replica)
        elif replica.lifecycle.state == "draining":
            self._note(replica, EMPTY_AND_ENDED)
        elif not self._closing:
            self._start_again_or_give_up(replica, reason, retryable=fatal is None or fatal.retryable)

    def _start_again_or_give_up(self, replica: ManagedReplica, reason: str, *, retryable: bool) -> None:
        now = self._ports.now()
        replica.last_error = reason
        verdict = replica.policy.failed(now=now, retryable=retryable)
        if isinstance(verdict, GiveUp):
            replica.last_error = f"{reason} ({verdict.reason})"
            replica.lifecycle.move("failed")
            self._note(replica, "given up", error=replica.last_error)
            self._ports.handle(ReplicaRemoved(replica.replica_id))
            return
        replica.lifecycle.move("waiting")
        replica.restart_at_ns = verdict.instant_ns
        self._note(replica, "waits for its next start", error=reason)
        delay_s = max(0, verdict.instant_ns - now) / clock.NS_PER_S
        self._timers[replica.replica_id] = asyncio.get_running_loop().call_later(delay_s, self._restart, replica)

    def _restart(self, replica: ManagedReplica) -> None:
        self._timers.pop(replica.replica_id, None)
        replica.restarts += 1
        self._ports.restarted(replica.replica_id)
        self._start(replica)

    def _removed(self, replica: ManagedReplica) -> None:
        self._cancel_timer(replica)
        replica.lifecycle.move("removed")
        self._replicas.pop(replica.replica_id, None)
        self._note(replica, "removed")
        self._ports.handle(ReplicaRemoved(replica.replica_id))

    def _cancel_timer(self, replica: ManagedReplica) -> None:
        replica.restart_at_ns = None
        timer = self._timers.pop(replica.replica_id, None)
        if timer is not None:
            timer.cancel()

    def _note(self, replica: ManagedReplica, detail: str, *, error: str = "") -> None:
        """Every step of a life goes to the log, to the history and to whoever watches."""
        replica.detail = detail
        state = replica.lifecycle.state
        log = _log.warning if error else _log.info
        log("replica_" + state, replica=replica.replica_id, detail=detail, reason=error, pid=replica.pid)
        self._ports.record(
            ReplicaRow(
                at=clock.wall_s(),
                replica_id=replica.replica_id,
                model=replica.model.name,
                version=replica.model.version,
                event=state,
                runtime=replica.model.runtime,
                detail=error or detail,
                pid=replica.pid,
                url=replica.model.source if replica.model.runtime == "openai" else "",
            )
        )
        self._ports.changed()


class _Start:
    """The callbacks of one start. Frames and losses of an earlier one cannot reach a later one."""

    def __init__(self, supervisor: Supervisor, replica: ManagedReplica) -> None:
        self._supervisor = supervisor
        self._replica = replica
        self.is_lost = False

    def on_frame(self, frame: FromWorker) -> None:
        """A frame came."""
        if not self.is_lost:
            self._supervisor._heard(self._replica, frame)

    def on_lost(self, reason: str, fatal: Fatal | None) -> None:
        """It is over."""
        if not self.is_lost:
            self.is_lost = True
            self._supervisor._lost(self._replica, reason, fatal)
