"""The daemon's end of one worker: its process, its socket and its health, on the daemon's event loop.

Rules
- `on_frame` gets every frame but `Hello` and `Fatal`, in order, and none after `on_lost`.
- `on_lost` is called exactly once, whatever happens and in whatever combination: the end of the stream, an exit, a broken frame, a wrong
  protocol, silence, no progress, a worker that does not read, or an end that was asked for. The whole process group is killed right after.
- `send` never waits. What a worker does not read is bounded by bytes and by time.
- The process is reaped only after its group has been killed, so that no signal can reach a stranger with a recycled pid.

`launch` must be called from the daemon's main thread: the kernel kills the worker when the *thread* that started it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from halcyon.clock import NS_PER_S, now_ns
from halcyon.config.settings import ModelSettings
from halcyon.errors import WorkerFailure
from halcyon.wire.frames import PROTOCOL, Configure, Fatal, FromWorker, Heartbeat, Hello, Ready, Stop, ToWorker
from halcyon.wire.framing import MAX_FRAME_BYTES, FrameDecoder, encode_frame
from halcyon.worker.health import HealthLimits, HealthWatch

LAST_WORDS_S = 0.5
"""How long the stream's end and the exit status wait for one another, so that the reason can name both."""

TERMINATE_GRACE_S = 5.0
"""From SIGTERM to SIGKILL."""

OnFrame = Callable[[FromWorker], None]
OnLost = Callable[[str, Fatal | None], None]


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What to launch.

    Attributes:
        log_path: takes the worker's standard output and error; empty inherits the daemon's.
        environment: set for the worker beside what it inherits (thread counts, device visibility).
        max_unread_bytes: kept for a worker that does not read; over it the worker is lost.
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

        Raises:
            WorkerFailure: the process could not be started.
        """
        ours, theirs = socket.socketpair()
        try:
            process = _start(spec, theirs)
        except OSError as error:
            ours.close()
            raise WorkerFailure(f"replica {spec.replica_id}: no worker process could be started: {error}") from error
        finally:
            theirs.close()
        handle = cls(spec, process, on_frame=on_frame, on_lost=on_lost)
        ours.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: _Link(handle), sock=ours)
        return handle

    def __init__(self, spec: WorkerSpec, process: subprocess.Popen[bytes], *, on_frame: OnFrame, on_lost: OnLost) -> None:
        self.replica_id = spec.replica_id
        self.pid = process.pid
        self._spec = spec
        self._process = process
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)  # type: ignore[arg-type]  # a union of structs is a type to msgspec
        self._watch = HealthWatch(spec.health, now=now_ns())
        self._transport: asyncio.WriteTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._lost = False
        self._asked_to_end = False
        self._stream_ended = False
        self._exit_status: int | None = None
        self._fatal: Fatal | None = None
        threading.Thread(target=self._await_exit, name=f"exit-of-{self.pid}", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """Whether `on_lost` has been called."""
        return self._lost

    @property
    def exit_status(self) -> int | None:
        """As `subprocess` gives it (negative for a signal); `None` until the process is reaped."""
        return self._exit_status

    # ---- orders ------------------------------------------------------------------------------------------------------

    def send(self, frame: ToWorker) -> None:
        """Queues one frame; returns at once. After the loss it does nothing.

        Raises:
            WorkerFailure: the frame itself is over the size limit; nothing was sent.
        """
        data = encode_frame(frame)
        if self._transport is None or self._lost or self._stream_ended:
            return
        if self._transport.get_write_buffer_size() + len(data) > self._spec.max_unread_bytes:
            self._lose(f"it left more than {self._spec.max_unread_bytes} bytes unread")
            return
        self._transport.write(data)

    def stop(self) -> None:
        """Asks an empty worker to exit by itself; SIGTERM and SIGKILL follow if it does not. `on_lost` is called when it ends."""
        self._asked_to_end = True
        self.send(Stop())
        self._loop.call_later(TERMINATE_GRACE_S, self.terminate)

    def terminate(self, *, grace_s: float = TERMINATE_GRACE_S) -> None:
        """SIGTERM to the whole process group now, SIGKILL after `grace_s` to what is left."""
        self._asked_to_end = True
        self._signal_group(signal.SIGTERM)
        if self._exit_status is None:
            self._loop.call_later(grace_s, self._signal_group, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to the whole process group now."""
        self._asked_to_end = True
        self._signal_group(signal.SIGKILL)

    async def wait_gone(self) -> None:
        """Waits until the process has ended and is reaped; `on_lost` has been called by then."""
        await self._gone.wait()

    # ---- health ------------------------------------------------------------------------------------------------------

    def next_check_ns(self) -> int:
        """The instant at which `check` is due."""
        return self._watch.next_check()

    def check(self, *, now: int) -> None:
        """Judges the worker's health at `now`. The handle's own timer calls it; tests may."""
        if self._lost:
            return
        verdict = self._watch.verdict(now=now)
        if verdict is not None:
            self._lose(verdict)
        else:
            self._arm()

    def _arm(self) -> None:
        """One timer, for the watch's next instant. It is moved only when it fires: hearing from the worker merely postpones the verdict."""
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, self._watch.next_check() - now_ns()) / NS_PER_S
        self._timer = self._loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self.check(now=now_ns())

    # ---- what the link reports ---------------------------------------------------------------------------------------

    def _connected(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self.send(
            Configure(
                protocol=PROTOCOL,
                replica_id=self._spec.replica_id,
                replica_index=self._spec.replica_index,
                model=msgspec.to_builtins(self._spec.model),
                cache_dir=self._spec.cache_dir,
                heartbeat_interval_ns=self._spec.heartbeat_interval_ns,
            )
        )
        self._arm()

    def _received(self, data: bytes) -> None:
        try:
            frames = self._decoder.feed(data)
        except WorkerFailure as error:
            self._lose(f"it broke the frame protocol: {error.message}")
            return
        for frame in frames:
            if self._lost:
                return
            self._take(frame)

    def _take(self, frame: FromWorker) -> None:
        now = now_ns()
        match frame:
            case Hello():
                self._watch.heard(now=now)
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
                self._watch.heard(now=now)
        self._on_frame(frame)

    def _writing_paused(self) -> None:
        self._watch.stopped_reading(now=now_ns())
        self._arm()

    def _writing_resumed(self) -> None:
        self._watch.resumed_reading()

    def _stream_over(self) -> None:
        self._stream_ended = True
        self._end_soon()

    def _exited(self) -> None:
        """On the loop: the process has ended and is not reaped yet."""
        self._signal_group(signal.SIGKILL)
        self._exit_status = self._process.wait()
        self._end_soon()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _end_soon(self) -> None:
        """Loses the worker once both the stream's end and the exit are known, or one of them has waited long enough."""
        if self._stream_ended and self._exit_status is not None:
            self._lose(self._describe_end())
            self._gone.set()
        elif not self._lost:
            self._loop.call_later(LAST_WORDS_S, self._lose_by_end)

    def _lose_by_end(self) -> None:
        self._lose(self._describe_end())

    def _describe_end(self) -> str:
        if self._asked_to_end:
            return "it was asked to end"
        if self._exit_status is None:
            return "it closed its connection"
        if self._exit_status < 0:
            return f"it was killed by {_signal_name(-self._exit_status)}"
        return f"it exited with status {self._exit_status}"

    def _lose(self, reason: str) -> None:
        if self._lost:
            return
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._signal_group(signal.SIGKILL)
        self._on_lost(reason, self._fatal)

    def _signal_group(self, number: signal.Signals) -> None:
        """To every process of the worker's session, while its leader's pid is certainly still ours."""
        if self._exit_status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _await_exit(self) -> None:
        """A thread's body: waits for the end without reaping, then tells the loop."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._exited)


class _Link(asyncio.Protocol):
    """Carries the transport's calls to the handle."""

    def __init__(self, handle: WorkerHandle) -> None:
        self._handle = handle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handle._connected(transport)  # type: ignore[arg-type]  # a stream's transport can write

    def data_received(self, data: bytes) -> None:
        self._handle._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._handle._stream_over()

    def pause_writing(self) -> None:
        self._handle._writing_paused()

    def resume_writing(self) -> None:
        self._handle._writing_resumed()


def _start(spec: WorkerSpec, theirs: socket.socket) -> subprocess.Popen[bytes]:
    command = [*spec.program, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
    if spec.log_path:
        command += ["--log", spec.log_path]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
        env={**os.environ, **spec.environment},
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
