"""The worker process: one socket to the daemon, one runtime, four kinds of thread.

    main       Hello → Configure → runtime.start(); then nothing
    reader     the daemon's frames → the runtime; the end of the stream ends the process, even in the middle of a device operation
    writer     the outbox → the socket
    heartbeat  Heartbeat at a fixed rate, never behind user work

Rules: the process lives exactly as long as its daemon wants it (end of stream, and the kernel's parent-death signal where there is one).
It ends by `os._exit`, because a thread inside a device operation cannot be joined. What goes wrong becomes one `Fatal` frame. No text
of prompts or answers reaches the log: once requests run, a failure is logged as its type and place only.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import traceback
from typing import Final

import msgspec
import psutil

from halcyon.clock import NS_PER_S, now_ns
from halcyon.config.settings import ModelSettings
from halcyon.errors import ModelUnavailable, WorkerFailure
from halcyon.wire.frames import (
    PROTOCOL,
    Cancel,
    Configure,
    Fatal,
    FromWorker,
    Heartbeat,
    Hello,
    Ready,
    SequenceFailed,
    Stop,
    Submit,
    ToWorker,
)
from halcyon.worker.outbox import Outbox, WorkerExit
from halcyon.worker.reader import read_frames
from halcyon.worker.runtime import Runtime, RuntimeStats

_log = logging.getLogger("halcyon.worker")
_MAX_MESSAGE_CHARS: Final = 500


def build_runtime(name: str) -> Runtime:
    """The runtime of that name (`ModelSettings.runtime`). Imports are lazy: a simulated worker never loads torch.

    Raises:
        WorkerFailure: no worker runs that runtime.
    """
    if name == "sim":
        from halcyon.worker.sim_runtime import SimulatedRuntime

        return SimulatedRuntime()
    if name == "torch":
        from halcyon.worker.torch_runtime import TorchRuntime

        return TorchRuntime()
    raise WorkerFailure(f"no worker runs runtime {name!r}; expected 'torch' or 'sim'")


def serve(connection: socket.socket) -> None:
    """Serves the daemon at the other end of `connection` until it lets go. Does not return: the process exits.

    Signals are set here: SIGINT is ignored (a terminal's ctrl-C is the daemon's), SIGTERM ends the process at once.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Worker(connection).run()


class Worker:
    """Ties the threads together. `run` is the main thread's body."""

    def __init__(self, connection: socket.socket) -> None:
        self._frames = read_frames(connection)
        self._outbox = Outbox(connection)
        self._ready = threading.Event()
        self._leaving = threading.Event()
        self._exit_status = WorkerExit.DAEMON_GONE

    def run(self) -> None:
        """Runs the worker. Does not return."""
        threading.excepthook = self._thread_died
        self._start_thread("writer", self._outbox.run)
        self._outbox.put(Hello(pid=os.getpid(), protocol=PROTOCOL))
        try:
            configure = self._read_configure()
            runtime = build_runtime(msgspec.convert(configure.model, ModelSettings).runtime)
            reader = self._start_thread("reader", self._read, runtime)
            self._start_thread("heartbeat", self._beat, runtime, configure.heartbeat_interval_ns)
            runtime.start(configure, self._emit, self._fail)
            reader.join()
        except ModelUnavailable as error:
            self._fail(error.message, retryable=False)
        except WorkerFailure as error:
            self._fail(error.message)
        except Exception as error:  # noqa: BLE001 - the worker loop's boundary: whatever it is, the daemon gets one Fatal frame
            # Nothing has been served yet, so the error's own words cannot quote a prompt.
            _log.error("the worker could not start\n%s", "".join(traceback.format_exception(error)))
            self._fail(f"starting failed: {type(error).__name__}: {error}")
        threading.Event().wait()  # the writer ends the process

    def _start_thread(self, name: str, target: object, *args: object) -> threading.Thread:
        thread = threading.Thread(name=name, target=target, args=args, daemon=True)  # type: ignore[arg-type]  # any callable
        thread.start()
        return thread

    def _read_configure(self) -> Configure:
        first = next(self._frames, None)
        if first is None:
            os._exit(WorkerExit.DAEMON_GONE)
        if not isinstance(first, Configure):
            raise WorkerFailure(f"the first frame must be Configure, not {type(first).__name__}")
        if first.protocol != PROTOCOL:
            raise ModelUnavailable(f"the daemon speaks protocol {first.protocol}, this worker {PROTOCOL}; install one version of both")
        return first

    def _read(self, runtime: Runtime) -> None:
        """The reader thread: its end is the process's end."""
        try:
            for frame in self._frames:
                self._take(frame, runtime)
        except WorkerFailure as error:
            _log.error("%s", error.message)
            os._exit(WorkerExit.PROTOCOL_BROKEN)
        os._exit(self._exit_status)

    def _take(self, frame: ToWorker, runtime: Runtime) -> None:
        match frame:
            case Submit() if not self._ready.is_set():
                self._turn_away(frame)
            case Submit():
                runtime.submit(frame)
            case Cancel():
                runtime.cancel(frame)
            case Stop():
                runtime.stop()
                self._leave(WorkerExit.STOPPED)
            case Configure():
                raise WorkerFailure("Configure came twice; a worker serves one replica for life")

    def _turn_away(self, submit: Submit) -> None:
        for sequence in submit.sequences:
            self._outbox.put(
                SequenceFailed(
                    sequence_id=sequence.sequence_id,
                    code="no_capacity",
                    message="the replica is not ready yet; send after Ready",
                    retryable=True,
                    busy=True,
                )
            )

    def _beat(self, runtime: Runtime, interval_ns: int) -> None:
        process = psutil.Process()
        due_ns = now_ns()
        while not self._leaving.wait(max(0, due_ns - now_ns()) / NS_PER_S):
            due_ns = max(due_ns, now_ns() - interval_ns) + interval_ns
            self._outbox.put(_heartbeat(runtime.stats(), rss_bytes=process.memory_info().rss))

    def _emit(self, frame: FromWorker) -> None:
        if isinstance(frame, Ready):
            self._ready.set()  # first, so that an answer to Ready finds the door open
        self._outbox.put(frame)

    def _fail(self, message: str, *, retryable: bool = True) -> None:
        _log.error("fatal: %s", message)
        self._outbox.put(Fatal(message=message[:_MAX_MESSAGE_CHARS], retryable=retryable))
        self._leave(WorkerExit.FAILED)

    def _leave(self, status: WorkerExit) -> None:
        self._exit_status = status
        self._leaving.set()
        self._outbox.leave(status)

    def _thread_died(self, died: threading.ExceptHookArgs) -> None:
        """A thread's uncaught failure ends the process: half a worker is worse than none. Its words may quote a prompt, its place not."""
        name = died.thread.name if died.thread else "unknown"
        place = "".join(traceback.format_tb(died.exc_traceback))
        _log.error("thread %s died of %s at\n%s", name, died.exc_type.__name__, place)
        if name == "writer":
            os._exit(WorkerExit.FAILED)
        self._fail(f"the worker's {name} thread died of {died.exc_type.__name__}; its log has the place")


def _heartbeat(stats: RuntimeStats, *, rss_bytes: int) -> Heartbeat:
    return Heartbeat(
        sent_ns=now_ns(),
        engine_progress_ns=stats.engine_progress_ns,
        running=stats.running,
        waiting=stats.waiting,
        kv_blocks_used=stats.kv_blocks_used,
        kv_blocks_free=stats.kv_blocks_free,
        kv_blocks_cached=stats.kv_blocks_cached,
        rss_bytes=rss_bytes,
    )
