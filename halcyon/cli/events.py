"""Server-sent events, read from a stream of bytes cut anywhere.

Lines end at a line feed (with or without a carriage return) and nowhere else: a splitter that also cuts at U+2028 or a form feed would
break the JSON of an answer that holds one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name ("message" where the server gave none) and its data lines joined by line feeds."""

    name: str
    data: str


class EventDecoder:
    """Turns bytes into events. Comments (heartbeats) and fields other than `event` and `data` are dropped."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Adds bytes and returns the events now complete, in order."""
        self._buffer += data
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        events = (self._take(line.rstrip(b"\r").decode()) for line in lines)
        return [event for event in events if event is not None]

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            return self._flush()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        return None

    def _flush(self) -> ServerEvent | None:
        name, data = self._name, self._data
        self._name, self._data = "", []
        return ServerEvent(name or "message", "\n".join(data)) if data else None
