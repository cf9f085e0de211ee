"""One request on its way through the API: its ids, and the stream it has opened, if any. Owned by the boundary."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from aiohttp import web

from halcyon.daemon.http.sse import EventStream

_current: ContextVar[Exchange] = ContextVar("exchange")  # the server runs every request in a context of its own
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Exchange:
    """Attributes:
    request_id: ours, unique for ever. label: what `x-request-id` of the answer says: the client's own, if it sent a valid one.
    stream: set once the headers of a stream are out; from then on a failure is an event, not a status.
    begun: whether the headers of any answer are out.
    code: how it ended, for the metrics.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        self.request_id = f"req-{secrets.token_hex(12)}"
        sent = request.headers.get("x-request-id", "")
        self.label = sent if _LABEL.fullmatch(sent) else self.request_id
        self.stream: EventStream | None = None
        self.begun = False
        self.code = "ok"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that every answer carries."""
        return {"x-request-id": self.label, "x-halcyon-request": self.request_id, "Server": "halcyon"}

    @staticmethod
    def begin(request: web.Request) -> Exchange:
        """A new exchange, which `current` finds from now on."""
        exchange = Exchange(request)
        _current.set(exchange)
        return exchange

    @staticmethod
    def current() -> Exchange:
        """The exchange that the boundary began for this request."""
        return _current.get()

    @staticmethod
    def note_begun() -> None:
        """Headers are going out. An answer of the HTTP layer itself, before the boundary, has no exchange."""
        exchange = _current.get(None)
        if exchange is not None:
            exchange.begun = True
