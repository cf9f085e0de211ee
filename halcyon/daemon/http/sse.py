"""Server-sent events over one response: heartbeats while nothing is said, and a bound on what a slow client makes us hold.

Rules. Every event is written at once and never waited for: what the client has not taken yet lies in the transport, and the tokens that
were written since the transport last kept up are counted; past the bound the stream is cut. What is written while it keeps up is not
counted, however much: an answer may come all at once. So the reader of the generation never waits
for a client, and the generation never has to buffer for one. A silence of `heartbeat_s` is broken by a comment, which carries no data and
is not part of the answer. The end of a stream waits for the client only so long, then the connection is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from aiohttp import web
from aiohttp.http import StreamWriter

from halcyon.errors import ClientTooSlow

DONE = b"data: [DONE]\n\n"
FLUSH_TIMEOUT_S = 30.0
"""How long the end of a stream waits for a client that does not read."""
_LAG_BYTES = 64 * 1024
"""A client with more than this unread does not keep up; from there on its tokens are counted."""
_FLUSHED_BYTES = 8 * 1024
"""With no more than this unread the end of a response does not wait: it is under every low-water mark."""
_HEARTBEAT = b": waiting\n\n"
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream:
    """One stream. Use as a context manager around the writing; `finish` may come after it.

    Args:
        heartbeat_s: seconds of silence. buffer_tokens: most tokens a client may lag behind. flush_timeout_s: see `FLUSH_TIMEOUT_S`.
    """

    def __init__(
        self,
        request: web.Request,
        *,
        headers: dict[str, str],
        heartbeat_s: float,
        buffer_tokens: int,
        flush_timeout_s: float = FLUSH_TIMEOUT_S,
    ) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS | headers)
        self._heartbeat_s = heartbeat_s
        self._buffer_tokens = buffer_tokens
        self._flush_timeout_s = flush_timeout_s
        self._loop = asyncio.get_running_loop()
        self._lagging_tokens = 0
        self._spoken_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._writer: StreamWriter | None = None

    async def __aenter__(self) -> EventStream:
        """Sends the headers and starts the heartbeat."""
        writer = await self.response.prepare(self._request)
        if not isinstance(writer, StreamWriter):
            raise TypeError("a stream can only be opened on a fresh HTTP response")
        self._writer = writer
        self._timer = self._loop.call_later(self._heartbeat_s, self._on_silence)
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Ends the heartbeat; the response stays open for `finish`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._beating is not None:
            self._beating.cancel()

    async def send(self, events: bytes, *, tokens: int) -> None:
        """Writes events that carry `tokens` tokens. Does not wait for the client.

        Raises:
            ClientTooSlow: it lags more than the bound behind. ConnectionError: it is gone.
        """
        keeps_up = self._held_bytes() <= _LAG_BYTES
        await self._write(events)
        if keeps_up:
            self._lagging_tokens = 0
            return
        self._lagging_tokens += tokens
        if self._lagging_tokens > self._buffer_tokens:
            raise ClientTooSlow(f"the client is more than {self._buffer_tokens} tokens behind; read the stream faster or ask for less")

    async def finish(self, events: bytes) -> None:
        """Writes the last events and ends the response cleanly, or drops the connection of a client that has stopped reading."""
        await self._write(events)
        if self._held_bytes() > _FLUSHED_BYTES:
            await self._wait_while_read()
        await self.response.write_eof()

    async def _wait_while_read(self) -> None:
        """Returns when the client has caught up; drops it when it has taken nothing for `flush_timeout_s`."""
        caught_up = self._loop.create_task(self._open_writer().drain())
        caught_up.add_done_callback(_retrieve)
        try:
            held_bytes = self._held_bytes()
            while not caught_up.done():
                await asyncio.wait({caught_up}, timeout=self._flush_timeout_s)
                before, held_bytes = held_bytes, self._held_bytes()
                if held_bytes >= before and not caught_up.done() and self._request.transport is not None:
                    self._request.transport.abort()  # closing would wait for the client for ever
        finally:
            caught_up.cancel()

    def _held_bytes(self) -> int:
        """Bytes written that the client has not taken yet."""
        transport = self._request.transport
        return transport.get_write_buffer_size() if transport is not None else 0

    def _open_writer(self) -> StreamWriter:
        if self._writer is None:
            raise RuntimeError("the stream is not open")
        return self._writer

    async def _write(self, data: bytes) -> None:
        self._spoken_at = self._loop.time()
        await self._open_writer().write(data, drain=False)

    def _on_silence(self) -> None:
        """Re-armed rather than reset by every event: a busy stream pays nothing for its heartbeat."""
        due_at = self._spoken_at + self._heartbeat_s
        if self._loop.time() >= due_at:
            due_at = self._loop.time() + self._heartbeat_s
            self._beating = self._loop.create_task(self._beat())
        self._timer = self._loop.call_at(due_at, self._on_silence)

    async def _beat(self) -> None:
        if self._held_bytes() > _LAG_BYTES:
            return  # it has enough to read
        with contextlib.suppress(ConnectionError):  # the handler learns of it by itself
            await self._write(_HEARTBEAT)


def _retrieve(task: asyncio.Task[None]) -> None:
    """The client's loss is told to the handler by its cancellation; the same news here needs no answer."""
    if not task.cancelled():
        task.exception()
