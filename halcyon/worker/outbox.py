"""Frames on their way to the daemon: a bounded queue, and the one thread that encodes and writes them in order.

Rule: whoever puts a frame never waits. A daemon that has left `MAX_WAITING_FRAMES` unread is gone or stuck, and a worker does not outlive
its daemon, so a full queue ends the process instead of growing or blocking the engine. Leaving goes through the same queue: what was put
before `leave` is written before the process ends. What one iteration brought may be larger than a frame: it then goes in several.
"""

from __future__ import annotations

import os
import queue
import socket
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from halcyon.errors import WorkerFailure
from halcyon.wire.frames import FromWorker, Iteration, SequenceFailed
from halcyon.wire.framing import encode_frame

MAX_WAITING_FRAMES = 16_384
"""Minutes of iterations; a few tens of MiB."""

_MAX_JOINED_BYTES = 256 * 1024


class WorkerExit(IntEnum):
    """A worker's exit status, when it chooses it itself."""

    STOPPED = 0
    FAILED = 1
    DAEMON_GONE = 3
    """The daemon closed its end, died, or no longer reads."""
    PROTOCOL_BROKEN = 4
    """The daemon sent what this worker cannot understand."""


@dataclass(frozen=True)
class _Leave:
    status: WorkerExit


class Outbox:
    """The worker's outbound side. `put` and `leave` are safe from any thread; `run` is the writer thread's body."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: queue.Queue[FromWorker | _Leave] = queue.Queue(maxsize=MAX_WAITING_FRAMES)

    def put(self, frame: FromWorker) -> None:
        """Hands a frame over; returns at once."""
        self._hand_over(frame)

    def leave(self, status: WorkerExit) -> None:
        """Ends the process with `status` once everything put so far is written."""
        self._hand_over(_Leave(status))

    def run(self) -> None:
        """Writes until told to leave. Never returns."""
        while True:
            data, leave = self._next_batch()
            self._write(data)
            if leave is not None:
                os._exit(leave.status)

    def _hand_over(self, item: FromWorker | _Leave) -> None:
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            os._exit(WorkerExit.DAEMON_GONE)

    def _next_batch(self) -> tuple[bytearray, _Leave | None]:
        """Everything that waits now, encoded, up to a size worth one write; blocks for the first."""
        data = bytearray()
        item = self._waiting.get()
        while not isinstance(item, _Leave):
            data += encoded(item)
            if len(data) >= _MAX_JOINED_BYTES or self._waiting.empty():
                return data, None
            item = self._waiting.get()
        return data, item

    def _write(self, data: bytearray) -> None:
        try:
            self._connection.sendall(data)
        except OSError:
            os._exit(WorkerExit.DAEMON_GONE)


def encoded(frame: FromWorker) -> bytes:
    """The frame's bytes; those of several frames where an iteration's deltas do not fit into one. A single delta that fits nowhere (an
    answer of tens of megabytes) becomes the failure of its sequence.

    Raises:
        WorkerFailure: the frame cannot be written, however small its parts.
    """
    try:
        return encode_frame(frame)
    except WorkerFailure:
        if not isinstance(frame, Iteration) or not frame.deltas:
            raise
    if len(frame.deltas) == 1:
        return encoded(_too_large(frame.deltas[0].sequence_id)) + encoded(msgspec.structs.replace(frame, deltas=()))
    half = len(frame.deltas) // 2
    rest = msgspec.structs.replace(frame, deltas=frame.deltas[half:], duration_ns=0, decode_tokens=0, prefill_tokens=0)  # counted once
    return encoded(msgspec.structs.replace(frame, deltas=frame.deltas[:half])) + encoded(rest)


def _too_large(sequence_id: str) -> SequenceFailed:
    return SequenceFailed(
        sequence_id=sequence_id,
        code="payload_too_large",
        message="the answer is too large to be sent in one piece; ask for fewer tokens or fewer log-probabilities",
    )
