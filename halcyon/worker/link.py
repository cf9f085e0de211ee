"""The daemon's end of a worker's socket: frames in, frames out, what is unread bounded. Decides nothing; reports to its owner."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from halcyon.errors import WorkerFailure
from halcyon.wire.frames import FromWorker, Submit, ToWorker
from halcyon.wire.framing import FrameDecoder, encode_frame


class WorkerBusy(WorkerFailure):
    """The worker has more to read than may wait for it; nothing was sent. A matter of moments, unless it does not read at all."""


class LinkOwner(Protocol):
    """What a link reports, always on the loop."""

    def take_frame(self, frame: FromWorker) -> None:
        """A frame came. Not called after `Link.close`."""
        ...

    def stream_broke(self, reason: str) -> None:
        """What came is no frame; nothing more will be read."""
        ...

    def stream_ended(self) -> None:
        """The other end is closed, or ours is. Called once."""
        ...

    def writing_paused(self) -> None:
        """The worker does not read as fast as we write."""
        ...

    def writing_resumed(self) -> None:
        """It has caught up."""
        ...


class Link(asyncio.Protocol):
    """One connection. It reads nothing until `start_reading`, so that no owner is called before it is ready."""

    def __init__(self, owner: LinkOwner, *, max_unread_bytes: int) -> None:
        self._owner = owner
        self._max_unread_bytes = max_unread_bytes
        self._decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)  # type: ignore[arg-type]  # a union of structs is a type to msgspec
        self._transport: asyncio.Transport | None = None
        self._closed = False

    def start_reading(self) -> None:
        """From now on the owner is called."""
        if self._transport is not None and not self._closed:
            self._transport.resume_reading()

    def send(self, frame: ToWorker) -> None:
        """Queues a frame without waiting. Nothing after the close. Only work is held to the bound: a cancellation is small and must go.

        Raises:
            WorkerBusy: too much lies unread before it. WorkerFailure: the frame cannot be written. Nothing was sent.
        """
        data = encode_frame(frame)
        if self._transport is None or self._closed:
            return
        unread_bytes = self._transport.get_write_buffer_size()
        if isinstance(frame, Submit) and unread_bytes + len(data) > self._max_unread_bytes:
            raise WorkerBusy(f"{unread_bytes} bytes lie unread before the worker; send when it has caught up")
        self._transport.write(data)

    def close(self) -> None:
        """Drops the connection and what is unsent; `stream_ended` follows."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio's side ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open for writing; reading waits for the owner."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from asyncio's
        self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Frames of any cut."""
        try:
            frames = self._decoder.feed(data)
        except WorkerFailure as error:
            self._owner.stream_broke(error.message)
            return
        for frame in frames:
            if self._closed:
                return
            self._owner.take_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever made it."""
        self._closed = True
        self._owner.stream_ended()

    def pause_writing(self) -> None:
        """Over the high-water mark."""
        self._owner.writing_paused()

    def resume_writing(self) -> None:
        """Under the low-water mark."""
        self._owner.writing_resumed()
