"""Reads the daemon's frames from the worker's end of the socket, one after another, blocking.

The stream ends in one of two ways, and both mean that the process must end: the daemon closed it (or died), or it broke the protocol.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from halcyon.wire.frames import ToWorker
from halcyon.wire.framing import FrameDecoder

_READ_BYTES = 256 * 1024


def read_frames(connection: socket.socket) -> Iterator[ToWorker]:
    """Yields frames in order and returns when the daemon's end is closed.

    Raises:
        WorkerFailure: a frame is broken, over the limit or unknown.
    """
    decoder: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)  # type: ignore[arg-type]  # a union of structs is a type to msgspec
    while data := _receive(connection):
        yield from decoder.feed(data)


def _receive(connection: socket.socket) -> bytes:
    """The next bytes; empty at the end. A reset connection is an end like any other."""
    try:
        return connection.recv(_READ_BYTES)
    except ConnectionError:
        return b""
