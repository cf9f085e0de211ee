"""One replica as the daemon keeps it: what it serves, where it is in its life, and the last figures it reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from halcyon import clock
from halcyon.config.settings import ModelSettings
from halcyon.core.replica import Lifecycle
from halcyon.core.restart import RestartPolicy
from halcyon.daemon.link import Link
from halcyon.wire.control import ReplicaStatus
from halcyon.wire.frames import Heartbeat, Iteration, Ready, SequenceFailed, Stage


@dataclass(slots=True)
class Figures:
    """The last numbers of a living replica; all zero (or empty) while there is none. KV figures are blocks."""

    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    kv_free: int = 0
    kv_cached: int = 0
    rss_bytes: int = 0

    def heard(self, frame: Iteration | Heartbeat) -> None:
        """Takes over what a frame says."""
        self.running, self.waiting = frame.running, frame.waiting
        self.kv_used, self.kv_free, self.kv_cached = frame.kv_blocks_used, frame.kv_blocks_free, frame.kv_blocks_cached
        if isinstance(frame, Heartbeat):
            self.rss_bytes = frame.rss_bytes


@dataclass(slots=True, kw_only=True)
class ManagedReplica:
    """One replica.

    Attributes:
        index: among the replicas of its version, from 0. registered: by an operator at run time, not by the fleet file.
        link: while it is started; pid: of its worker. ready: what it reported when it became so. started_ns: of this start.
        removing: an operator wants it gone as soon as it is empty. restart_at_ns: monotonic, while a restart is planned.
    """

    replica_id: str
    model: ModelSettings
    index: int
    policy: RestartPolicy
    registered: bool = False
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    link: Link | None = None
    pid: int | None = None
    ready: Ready | None = None
    figures: Figures = field(default_factory=Figures)
    detail: str = ""
    progress: float | None = None
    last_error: str = ""
    restarts: int = 0
    restart_at_ns: int | None = None
    started_ns: int = 0
    ready_after_ns: int | None = None
    served: int = 0
    failed: int = 0
    removing: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether its first start has come to an end: it is ready, given up, leaving, or a server elsewhere that does not answer."""
        state = self.lifecycle.state
        return state in {"ready", "draining", "failed", "removed"} or (state == "waiting" and self.model.runtime == "openai")

    def starting(self, *, now: int) -> None:
        """A start begins."""
        if self.lifecycle.may_move("starting"):
            self.lifecycle.move("starting")
        self.started_ns, self.restart_at_ns = now, None
        self.detail, self.progress = "", None

    def staged(self, frame: Stage) -> bool:
        """Progress on the way to ready. Whether that is a new state."""
        self.detail, self.progress = frame.detail, frame.progress
        if frame.stage == "ready" or not self.lifecycle.may_move(frame.stage):
            return False
        self.lifecycle.move(frame.stage)
        return True

    def became_ready(self, frame: Ready, *, now: int) -> bool:
        """It can serve. Whether it is wanted (one that drains is not)."""
        self.ready = frame
        self.ready_after_ns = now - self.started_ns
        self.detail, self.progress = "", None
        if not self.lifecycle.may_move("ready"):
            return False
        self.lifecycle.move("ready")
        self.policy.ready(now=now)
        return True

    def produced(self, frame: Iteration) -> None:
        """Counts what ended in an iteration."""
        self.figures.heard(frame)
        self.served += sum(delta.finish_reason in {"stop", "length"} for delta in frame.deltas)

    def sequence_failed(self, frame: SequenceFailed) -> None:
        """Counts a failure; being busy is none."""
        self.failed += not frame.busy

    def gone(self) -> None:
        """Its process or connection is no more."""
        self.link, self.pid, self.ready = None, None, None
        self.figures = Figures()
        self.progress = None

    def status(self, *, outstanding: int, now: int) -> ReplicaStatus:
        """As people and scripts see it. outstanding: sequences dispatched and not ended."""
        ready, figures = self.ready, self.figures
        return ReplicaStatus(
            replica_id=self.replica_id,
            model=self.model.name,
            version=self.model.version,
            runtime=self.model.runtime,
            state=self.lifecycle.state,
            detail=self.detail,
            progress=self.progress,
            pid=self.pid,
            url=self.model.source if self.model.runtime == "openai" else "",
            device=ready.device if ready else "",
            dtype=ready.dtype if ready else "",
            kind=ready.kind if ready else "",
            max_batch=ready.max_batch if ready else self.model.max_batch,
            max_context=ready.max_context if ready else self.model.max_context,
            outstanding=outstanding,
            running=figures.running,
            kv_blocks_used=figures.kv_used,
            kv_blocks_free=figures.kv_free,
            kv_blocks_cached=figures.kv_cached,
            kv_blocks_total=ready.kv_blocks_total if ready else 0,
            served=self.served,
            failed=self.failed,
            restarts=self.restarts,
            next_restart_s=None if self.restart_at_ns is None else max(0, self.restart_at_ns - now) / clock.NS_PER_S,
            last_error=self.last_error,
            rss_bytes=figures.rss_bytes,
            weights_bytes=ready.weights_bytes if ready else 0,
            ready_s=None if self.ready_after_ns is None else self.ready_after_ns / clock.NS_PER_S,
            registered=self.registered,
        )
