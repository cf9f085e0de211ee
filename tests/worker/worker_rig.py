"""Real workers for tests: one behind the daemon's handle, one on a bare socket. Waiting is always for a fact, with a generous bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from halcyon.clock import NS_PER_MS
from halcyon.config.settings import ModelSettings, SimSettings
from halcyon.wire.frames import (
    PROTOCOL,
    Configure,
    Delta,
    Fatal,
    FromWorker,
    Iteration,
    Ready,
    Sampling,
    Sequence,
    SequenceFailed,
    Submit,
    ToWorker,
)
from halcyon.wire.framing import FrameDecoder, encode_frame
from halcyon.worker.handle import WorkerHandle, WorkerSpec

TIMEOUT_S = 20.0
PROGRAM = (sys.executable, "-P", "-m", "halcyon.worker")
FAST = SimSettings(overhead_ms=1.0, per_token_ms=0.0)


def sim_model(sim: SimSettings = FAST, **other: object) -> ModelSettings:
    """A simulated model that is fast unless told otherwise."""
    return msgspec.convert({"name": "m", "runtime": "sim", "max_batch": 8, "max_context": 256, "sim": sim, **other}, ModelSettings)


def sequence(
    sequence_id: str, *, text: str = "a prompt of eight words for the test", tokens: int | None = 4, **sampling: object
) -> Sequence:
    """One greedy sequence of `tokens` tokens."""
    given = {"temperature": 0.0, "max_output_tokens": tokens, "ignore_eos": tokens is not None} | sampling
    return Sequence(sequence_id=sequence_id, text=text, sampling=msgspec.convert(given, Sampling))


def submit(*sequences: Sequence, batch_id: int = 1) -> Submit:
    """One `Submit` of these."""
    return Submit(batch_id, sequences)


def configure(model: ModelSettings, *, replica_index: int = 0, protocol: int = PROTOCOL) -> Configure:
    """What the daemon says first."""
    return Configure(
        protocol=protocol,
        replica_id=f"m/v1/{replica_index}",
        replica_index=replica_index,
        model=msgspec.to_builtins(model),
        cache_dir="",
        heartbeat_interval_ns=20 * NS_PER_MS,
    )


def all_end(pids: list[int], *, within_s: float) -> bool:
    """Whether all these processes end in time. A zombie has ended: its parent may be slow to look."""
    with contextlib.ExitStack() as open_files:
        watched = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                watched.append(os.pidfd_open(pid))
                open_files.callback(os.close, watched[-1])
        return all(select.select([one], [], [], within_s)[0] for one in watched)


@dataclass
class Answers:
    """Sums the deltas of sequences."""

    texts: dict[str, str] = field(default_factory=dict)
    last: dict[str, Delta] = field(default_factory=dict)
    endings: list[str] = field(default_factory=list)
    """Ids in the order of their ends, once for each end."""

    def add(self, frame: FromWorker) -> None:
        """Takes any frame; looks at iterations and failures."""
        if isinstance(frame, SequenceFailed):
            self.endings.append(frame.sequence_id)
        for delta in frame.deltas if isinstance(frame, Iteration) else ():
            self.texts[delta.sequence_id] = self.texts.get(delta.sequence_id, "") + delta.text
            self.last[delta.sequence_id] = delta
            if delta.finish_reason is not None:
                self.endings.append(delta.sequence_id)


class HandledWorker:
    """A worker behind the daemon's handle; keeps what the handle reports."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[FromWorker] = asyncio.Queue()
        self.seen = Answers()
        self._heard = asyncio.Event()
        self.losses: list[tuple[str, Fatal | None]] = []
        self.lost = asyncio.Event()
        self.handle: WorkerHandle

    async def launch(self, model: ModelSettings, **spec: object) -> HandledWorker:
        """Starts it."""
        defaults: dict[str, object] = {"replica_id": "m/v1/0", "replica_index": 0, "cache_dir": "", "heartbeat_interval_ns": 20 * NS_PER_MS}
        self.handle = await WorkerHandle.launch(
            WorkerSpec(model=model, **(defaults | spec)), on_frame=self._note_frame, on_lost=self._note_loss
        )
        return self

    async def next(self, kind: type[FromWorker], where: Callable[[FromWorker], bool] = lambda _: True) -> FromWorker:
        """The next frame of that kind for which `where` holds; those before it are dropped."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                frame = await self.frames.get()
                if isinstance(frame, kind) and where(frame):
                    return frame

    async def ready(self) -> Ready:
        """Waits for `Ready`."""
        return await self.next(Ready)

    async def answers(self, count: int) -> Answers:
        """Waits until `count` sequences have ended since the launch; what they said, all frames counted."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.seen.endings) < count:
                self._heard.clear()
                await self._heard.wait()
        return self.seen

    async def loss(self) -> tuple[str, Fatal | None]:
        """Waits for the loss and for the process's end; it must come once."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.lost.wait()
            await self.handle.wait_gone()
        assert len(self.losses) == 1
        return self.losses[0]

    async def close(self) -> None:
        """Ends it whatever its state."""
        self.handle.kill()
        async with asyncio.timeout(TIMEOUT_S):
            await self.handle.wait_gone()
        assert len(self.losses) == 1, "on_lost must be called exactly once"

    def _note_frame(self, frame: FromWorker) -> None:
        self.frames.put_nowait(frame)
        self.seen.add(frame)
        self._heard.set()

    def _note_loss(self, reason: str, fatal: Fatal | None) -> None:
        self.losses.append((reason, fatal))
        self.lost.set()


class BareWorker:
    """A worker process on a socket that the test itself reads and writes, blocking."""

    def __init__(self, *, program: tuple[str, ...] = PROGRAM, log: str = "", parent: int | None = None) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)
        command = [*program, "--fd", str(theirs.fileno()), "--parent", str(parent or os.getpid())]
        self.process = subprocess.Popen(
            command + (["--log", log] if log else []),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)
        self._frames: list[FromWorker] = []
        self.seen = Answers()

    def send(self, *frames: ToWorker) -> None:
        """Writes frames."""
        self.socket.sendall(b"".join(map(encode_frame, frames)))

    def next(self, kind: type[FromWorker], where: Callable[[FromWorker], bool] = lambda _: True) -> FromWorker:
        """The next frame of that kind for which `where` holds; raises EOFError at the end of the stream."""
        while True:
            while not self._frames:
                data = self.socket.recv(65536)
                if not data:
                    raise EOFError
                self._frames = self._decoder.feed(data)
            frame = self._frames.pop(0)
            self.seen.add(frame)
            if isinstance(frame, kind) and where(frame):
                return frame

    def answers(self, count: int) -> Answers:
        """Reads until `count` sequences have ended since the start; what they said, all frames counted."""
        while len(self.seen.endings) < count:
            self.next(FromWorker)
        return self.seen

    def exit_status(self) -> int:
        """Waits for its end."""
        return self.process.wait(timeout=TIMEOUT_S)

    def close(self) -> None:
        """Ends it whatever its state."""
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=TIMEOUT_S)
