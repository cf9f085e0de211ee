"""What the daemon keeps of one worker: its process, its socket and its health, on the daemon's event loop.

Rules
- `on_frame` gets every frame but `Hello` and `Fatal`, in order, and none after `on_lost`. Neither is called before `launch` has returned.
- `on_lost` is called exactly once, whatever happens and in whatever combination: the end of the stream, an exit, a broken frame, a wrong
  protocol, silence, no progress, a worker that does not read, or an end that was asked for. The process group is killed right before.
- `send` never waits. What a worker does not read is bounded by bytes (then it is busy) and by time (then it is lost): a burst of large
  prompts proves nothing against a worker that is reading them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from halcyon.clock import NS_PER_S, now_ns
from halcyon.config.settings import ModelSettings
from halcyon.errors import WorkerFailure
from halcyon.wire.frames import PROTOCOL, Configure, Fatal, FromWorker, Heartbeat, Hello, Ready, Stop, ToWorker
from halcyon.wire.framing import MAX_FRAME_BYTES
from halcyon.worker.child import ChildProcess, describe_exit
from halcyon.worker.health import HealthLimits, HealthWatch
from halcyon.worker.link import Link

LAST_WORDS_S = 0.5
"""How long the stream's end and the exit status wait for one another, so that the reason can name both."""

TERMINATE_GRACE_S = 5.0
"""From `Stop` to SIGTERM, and from SIGTERM to SIGKILL."""

OnFrame = Callable[[FromWorker], None]
OnLost = Callable[[str, Fatal | None], None]
"""The reason in words for people, and the worker's own last frame where it had time for one."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What to launch.

    Attributes:
        log_path: takes the worker's standard output and error; empty inherits the daemon's.
        environment: set for the worker beside what it inherits (thread counts, device visibility).
        max_unread_bytes: of work that it has not read yet; what is over it is not taken.
        program: what to run; `--fd`, `--parent` and `--log` are added.
    """

    replica_id: str
    replica_index: int
    model: ModelSettings
    cache_dir: str
    log_path: str = ""
    heartbeat_interval_ns: int = NS_PER_S
    health: HealthLimits = field(default_factory=HealthLimits)
    environment: Mapping[str, str] = field(default_factory=dict)
    max_unread_bytes: int = 2 * MAX_FRAME_BYTES
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "halcyon.worker")


class WorkerHandle:
    """One launched worker. Made by `launch`; over when `on_lost` has been called and `wait_gone` returns."""

    @classmethod
    async def launch(cls, spec: WorkerSpec, *, on_frame: OnFrame, on_lost: OnLost) -> WorkerHandle:
        """Starts the process and sends it its `Configure`. Returns before it is ready: `on_frame(Ready)` says when it is.

        When the launch itself is cancelled, the process is killed and neither callback is ever called. Call it on the daemon's main thread
        (see `halcyon.worker.child`).

        Raises:
            WorkerFailure: the process could not be started.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _unstarted(spec, error) from error
        ours.setblocking(False)
        try:
            handle = cls(spec, theirs, on_frame=on_frame, on_lost=on_lost)
        except OSError as error:
            ours.close()
            raise _unstarted(spec, error) from error
        finally:
            theirs.close()
        await handle._connect(ours)
        return handle

    def __init__(self, spec: WorkerSpec, theirs: socket.socket, *, on_frame: OnFrame, on_lost: OnLost) -> None:
        self.replica_id = spec.replica_id
        self._spec = spec
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._link = Link(self, max_unread_bytes=spec.max_unread_bytes)
        self._watch = HealthWatch(spec.health, now=now_ns())
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._is_lost = False
        self._asked_to_end = False
        self._stream_is_over = False
        self._fatal: Fatal | None = None
        self._child = ChildProcess(
            _command(spec, theirs.fileno()), inherit_fd=theirs.fileno(), environment=spec.environment, on_exit=self._child_exited
        )

    @property
    def pid(self) -> int:
        """The worker's pid, which is its process group's id too."""
        return self._child.pid

    @property
    def is_lost(self) -> bool:
        """Whether `on_lost` has been called."""
        return self._is_lost

    @property
    def exit_status(self) -> int | None:
        """As `subprocess` gives it (negative for a signal); `None` until the process is reaped."""
        return self._child.exit_status

    # ---- orders ------------------------------------------------------------------------------------------------------

    def send(self, frame: ToWorker) -> None:
        """Queues one frame; returns at once. After the loss it does nothing.

        Raises:
            WorkerBusy: too much lies unread before it. WorkerFailure: the frame itself cannot be written (its size, its text).
                Nothing was sent.
        """
        self._link.send(frame)

    def stop(self) -> None:
        """Asks an empty worker to exit by itself; SIGTERM and SIGKILL follow if it does not. `on_lost` is called when it ends."""
        self._asked_to_end = True
        self.send(Stop())
        self._loop.call_later(TERMINATE_GRACE_S, self.terminate)

    def terminate(self, *, grace_s: float = TERMINATE_GRACE_S) -> None:
        """SIGTERM to the whole process group now, SIGKILL after `grace_s` to what is left."""
        self._asked_to_end = True
        self._child.signal_group(signal.SIGTERM)
        self._loop.call_later(grace_s, self._child.signal_group, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to the whole process group now."""
        self._asked_to_end = True
        self._child.signal_group(signal.SIGKILL)

    async def wait_gone(self) -> None:
        """Waits until the process has ended and is reaped; `on_lost` has been called by then."""
        await self._gone.wait()

    # ---- health ------------------------------------------------------------------------------------------------------

    def next_check_ns(self) -> int:
        """The instant at which `check` is due."""
        return self._watch.next_check()

    def check(self, *, now: int) -> None:
        """Judges the worker's health at `now`. The handle's own timer calls it; tests may."""
        if self._is_lost:
            return
        verdict = self._watch.verdict(now=now)
        if verdict is not None:
            self._lose(verdict)
        else:
            self._arm()

    def _arm(self) -> None:
        """One timer, for the watch's next instant."""
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, self._watch.next_check() - now_ns()) / NS_PER_S
        self._timer = self._loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self.check(now=now_ns())

    # ---- what the link reports (halcyon.worker.link.LinkOwner) -------------------------------------------------------

    def take_frame(self, frame: FromWorker) -> None:
        """One frame from the worker."""
        now = now_ns()
        match frame:
            case Hello():
                if frame.protocol != PROTOCOL:
                    self._lose(f"it speaks protocol {frame.protocol}, this daemon {PROTOCOL}; install one version of both")
                return
            case Fatal():
                self._fatal = frame
                self._lose(frame.message)
                return
            case Ready():
                self._watch.became_ready(now=now)
                self._arm()  # the next instant came nearer
            case Heartbeat():
                self._watch.heard(now=now, heartbeat=frame)
                self._arm()
            case _:
                self._watch.heard(now=now)  # later than before: the timer finds out when it fires
        self._on_frame(frame)

    def stream_broke(self, reason: str) -> None:
        """The worker sent something that is no frame."""
        self._lose(f"it broke the frame protocol: {reason}")

    def stream_ended(self) -> None:
        """The socket is closed, at either end."""
        self._stream_is_over = True
        self._end_soon()

    def writing_paused(self) -> None:
        """The worker does not read: its time runs."""
        self._watch.stopped_reading(now=now_ns())
        self._arm()

    def writing_resumed(self) -> None:
        """The worker reads again."""
        self._watch.resumed_reading()

    # ---- beginning and end -------------------------------------------------------------------------------------------

    async def _connect(self, ours: socket.socket) -> None:
        try:
            await self._loop.create_unix_connection(lambda: self._link, sock=ours)
        except BaseException:  # a cancelled launch too must leave no process behind
            self._is_lost = True
            self._child.signal_group(signal.SIGKILL)
            raise
        self.send(_configure(self._spec))
        self._arm()
        self._loop.call_soon(self._link.start_reading)  # after the caller has the handle

    def _child_exited(self, status: int) -> None:
        del status
        self._end_soon()

    def _end_soon(self) -> None:
        """Loses the worker once both the stream's end and the exit are known, or one of them has waited long enough."""
        if self._stream_is_over and self.exit_status is not None:
            try:
                self._lose(self._describe_end())
            finally:
                self._gone.set()  # whatever the owner makes of it, whoever waits for the end must not wait for ever
        elif not self._is_lost:
            self._loop.call_later(LAST_WORDS_S, self._lose_by_end)

    def _lose_by_end(self) -> None:
        self._lose(self._describe_end())

    def _describe_end(self) -> str:
        if self._asked_to_end:
            return "it was asked to end"
        return "it closed its connection" if self.exit_status is None else describe_exit(self.exit_status)

    def _lose(self, reason: str) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._link.close()
        self._child.signal_group(signal.SIGKILL)
        self._on_lost(reason, self._fatal)


def _unstarted(spec: WorkerSpec, error: OSError) -> WorkerFailure:
    return WorkerFailure(f"replica {spec.replica_id}: no worker process could be started: {error}")


def _command(spec: WorkerSpec, fd: int) -> list[str]:
    log = ["--log", spec.log_path] if spec.log_path else []
    return [*spec.program, "--fd", str(fd), "--parent", str(os.getpid()), *log]


def _configure(spec: WorkerSpec) -> Configure:
    return Configure(
        protocol=PROTOCOL,
        replica_id=spec.replica_id,
        replica_index=spec.replica_index,
        model=msgspec.to_builtins(spec.model),
        cache_dir=spec.cache_dir,
        heartbeat_interval_ns=spec.heartbeat_interval_ns,
    )
