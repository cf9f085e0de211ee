"""Length-prefixed msgpack frames over a stream: 4 bytes big-endian length, then the body.

What lives here: the codec only. Reading sockets belongs to the worker and to the handle the daemon keeps on it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from halcyon.errors import WorkerFailure
from halcyon.wire.frames import FromWorker, ToWorker

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""A longer frame is a broken peer, not a message."""

_PREFIX_BYTES = 4
_encoder = msgspec.msgpack.Encoder()
_T = TypeVar("_T")


def encode_frame(message: ToWorker | FromWorker) -> bytes:
    """The frame's bytes, prefix included.

    Raises:
        WorkerFailure: the body would exceed `MAX_FRAME_BYTES`, a string in it is not Unicode text (half a surrogate pair), or a
            number is over 64 bits.
    """
    try:
        body = _encoder.encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        what = "a number over 64 bits" if isinstance(error, OverflowError) else "a string that is not Unicode text"
        raise WorkerFailure(f"a {type(message).__name__} frame holds {what}; nothing was sent") from None
    if len(body) > MAX_FRAME_BYTES:
        raise WorkerFailure(f"a {type(message).__name__} frame of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


class FrameDecoder(Generic[_T]):
    """Turns a stream of bytes, cut anywhere, back into messages of one union of frame types."""

    def __init__(self, frame_type: type[_T]) -> None:
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(frame_type)
        self._buffer = bytearray()
        self._broken = False

    def feed(self, data: bytes) -> list[_T]:
        """Adds bytes and returns every message now complete, in order.

        Raises:
            WorkerFailure: a frame is over the limit or not of the expected type. Frames cannot be found again after that: every
                further call raises too.
        """
        if self._broken:
            raise WorkerFailure("the stream broke at an earlier frame; close it")
        self._buffer += data
        messages: list[_T] = []
        while len(self._buffer) >= _PREFIX_BYTES:
            length = int.from_bytes(self._buffer[:_PREFIX_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise self._break(f"a frame announces {length} bytes, over the limit of {MAX_FRAME_BYTES}")
            end = _PREFIX_BYTES + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_PREFIX_BYTES:end])
            del self._buffer[:end]
            try:
                messages.append(self._decoder.decode(body))
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._break(f"a frame of {length} bytes is not a known message: {error}") from None
        return messages

    def _break(self, message: str) -> WorkerFailure:
        self._broken = True
        self._buffer.clear()
        return WorkerFailure(message)

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame still held."""
        return len(self._buffer)
