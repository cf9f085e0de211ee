"""The HTTP/1.1 server under the API: what it does with whoever does not get as far as a handler.

Rules: a request that is not HTTP is answered in the one form that all errors have, without repeating a byte of it, and is no news for the
operator. Bodies are taken as they were sent: one that unpacks itself can be larger than any bound. A half-closed connection counts as a
client that left, because nothing tells the two apart before it is too late to save the work. aiohttp offers two hooks for this: the
runner's `_make_server`, the protocol's `handle_error` and `log_exception`; tests pin what hangs on each.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from halcyon.daemon.http.exchange import Exchange
from halcyon.daemon.http.failures import error_response
from halcyon.daemon.logs import EventLog
from halcyon.errors import InvalidRequest, RequestError

QUIET_S = 75.0
"""How long a connection may stay without a request, before its first one and between two."""

LONGEST_LINE_BYTES = 8190
"""Of the request line and of each header."""

_MOST_HEADERS = 128
_log = EventLog("http")


class ApiRunner(web.AppRunner):
    """Runs one application. farewell_s: how long running handlers may take at the end."""

    def __init__(self, app: web.Application, *, farewell_s: float) -> None:
        super().__init__(app, shutdown_timeout=farewell_s)

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server())


class _Server(web.Server):
    """Makes one `_Protocol` for each connection; a handler whose client left is cancelled."""

    def __init__(self, made: web.Server) -> None:
        super().__init__(made.request_handler, request_factory=made.request_factory, handler_cancellation=True)

    def __call__(self) -> _Protocol:
        return _Protocol(self)


class _Protocol(web.RequestHandler):
    """One connection."""

    __slots__ = ()

    def __init__(self, server: _Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # no log is what None means there
            keepalive_timeout=QUIET_S,
            max_line_size=LONGEST_LINE_BYTES,
            max_field_size=LONGEST_LINE_BYTES,
            max_headers=_MOST_HEADERS,
            auto_decompress=False,
        )

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what is no request. Whatever else comes here is for the end of the connection to say: the boundary answers first.

        Raises:
            ConnectionError: the client is gone, or an answer has begun.
        """
        del message  # it quotes the request
        if isinstance(exc, ConnectionError) or request.writer.output_size:
            raise ConnectionAbortedError("the client is gone, or has part of an answer")
        broken = isinstance(exc, HttpProcessingError)
        exchange = Exchange(request)
        if not broken:
            _log.error("request_failed", error=exc, request=exchange.request_id)
        error = _malformed(exc) if broken else RequestError("the daemon failed to answer; its log names the request_id")
        response = error_response(error, exchange)
        response.force_close()
        return response

    def log_exception(self, *args: object, **kw: object) -> None:
        """A body that breaks off or breaks its framing is the client's affair, and answered; the rest is ours to mend."""
        error = kw.get("exc_info")
        if not isinstance(error, web.RequestPayloadError):
            _log.error("connection_failed", error=error if isinstance(error, BaseException) else None)


def _malformed(error: BaseException | None) -> InvalidRequest:
    if isinstance(error, LineTooLong):
        return InvalidRequest(f"the request line or a header is longer than {LONGEST_LINE_BYTES} bytes; send less in it")
    return InvalidRequest(
        f"this is not an HTTP/1.1 request ({type(error).__name__}); check its request line, its headers and how its body is framed"
    )
