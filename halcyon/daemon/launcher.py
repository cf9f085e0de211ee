"""Starts what serves a replica: a worker process, or a line to a server elsewhere. Keeps the note of live workers for the next daemon."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from halcyon.clock import NS_PER_S
from halcyon.config.settings import DaemonSettings, ModelSettings
from halcyon.daemon.link import Link, OnFrame, OnLost
from halcyon.daemon.logs import EventLog
from halcyon.daemon.remote import RemoteLink
from halcyon.daemon.replica import ManagedReplica
from halcyon.wire.frames import Fatal
from halcyon.worker import orphans
from halcyon.worker.handle import WorkerHandle, WorkerSpec
from halcyon.worker.health import HealthLimits

_log = EventLog("launcher")

_LARGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""torch asks for huge pages: logits of a large vocabulary are mapped anew each iteration, page by page otherwise."""


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What every start needs. threads: CPU threads of a torch replica that asks for none."""

    daemon: DaemonSettings
    state_dir: Path
    cache_dir: Path
    threads: int


class Launcher:
    """Callable as `halcyon.daemon.supervisor.Launch`."""

    def __init__(self, settings: LaunchSettings) -> None:
        self._settings = settings
        self._pids: set[int] = set()

    async def __call__(self, replica: ManagedReplica, on_frame: OnFrame, on_lost: OnLost) -> Link:
        """Starts the replica.

        Raises:
            WorkerFailure: its process could not be started.
        """
        if replica.model.runtime == "openai":
            return RemoteLink.start(replica.replica_id, replica.model, on_frame=on_frame, on_lost=on_lost)
        return await self._launch_worker(replica, on_frame, on_lost)

    async def _launch_worker(self, replica: ManagedReplica, on_frame: OnFrame, on_lost: OnLost) -> Link:
        def lost(reason: str, fatal: Fatal | None) -> None:
            self._pids.discard(handle.pid)
            self._write_note()
            on_lost(reason, fatal)

        handle = await WorkerHandle.launch(self._spec(replica), on_frame=on_frame, on_lost=lost)
        if handle.is_lost:
            return handle
        replica.pid = handle.pid
        self._pids.add(handle.pid)
        self._write_note()
        return handle

    def _spec(self, replica: ManagedReplica) -> WorkerSpec:
        daemon = self._settings.daemon
        model = with_threads(replica.model, self._settings.threads)
        return WorkerSpec(
            replica_id=replica.replica_id,
            replica_index=replica.index,
            model=model,
            cache_dir=str(self._settings.cache_dir),
            log_path=str(self._log_path(replica.replica_id)),
            heartbeat_interval_ns=round(daemon.worker_heartbeat_s * NS_PER_S),
            health=HealthLimits(
                start_ns=round(daemon.start_timeout_s * NS_PER_S),
                silence_ns=round(daemon.worker_timeout_s * NS_PER_S),
                progress_ns=round(daemon.progress_timeout_s * NS_PER_S),
            ),
            environment={"OMP_NUM_THREADS": str(model.threads), **_LARGE_PAGES} if model.runtime == "torch" else {},
        )

    def _log_path(self, replica_id: str) -> Path:
        """Where the worker's own output goes; a long one makes room for this start."""
        path = self._settings.state_dir / f"worker-{replica_id}.log"
        with contextlib.suppress(OSError):  # not there yet, or a directory that cannot be changed: then the log goes on as it is
            if path.stat().st_size > self._settings.daemon.log_max_bytes:
                path.replace(path.with_suffix(".log.1"))
        return path

    def _write_note(self) -> None:
        """The note is a second line of defence: a disk that is full costs the note, not the start."""
        try:
            orphans.record(self._settings.state_dir, sorted(self._pids))
        except OSError as error:
            _log.warning("workers_not_noted", reason=error.strerror or type(error).__name__)


def with_threads(model: ModelSettings, threads: int) -> ModelSettings:
    """The same model, with this many CPU threads a replica if it runs on torch and names no number of its own."""
    return replace(model, threads=threads) if model.runtime == "torch" and not model.threads else model


def threads_each(models: tuple[ModelSettings, ...]) -> int:
    """The cores of this process divided among the local torch replicas; at least one."""
    replicas = sum(model.replicas for model in models if model.runtime == "torch")
    return max(1, len(os.sched_getaffinity(0)) // max(1, replicas))
