"""How a failure looks on the wire: one body, one header, one event, for every endpoint."""

from __future__ import annotations

import msgspec
from aiohttp import web

from halcyon.daemon.http.exchange import Exchange
from halcyon.errors import ClientTooSlow, InvalidRequest, NotFound, PayloadTooLarge, RequestError, Unauthorized
from halcyon.wire.control import ErrorBody, ErrorReply

_MS_PER_S = 1000
_encoder = msgspec.json.Encoder()


class MethodNotAllowed(InvalidRequest):
    """405: the path exists, the verb does not."""

    http_status = 405


class HttpRefused(InvalidRequest):
    """Any other 4xx of the HTTP layer itself."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the request was refused by the HTTP layer: {reason}")
        self.status = status


def error_body(error: RequestError, request_id: str) -> bytes:
    """`{"error": {...}}`."""
    body = ErrorBody(
        code=error.code,
        message=error.message,
        type=error.type,
        param=error.param,
        retry_after_ms=error.retry_after_ms,
        request_id=request_id,
        details=error.details or None,
    )
    return _encoder.encode(ErrorReply(body))


def error_event(error: RequestError, request_id: str) -> bytes:
    """The error as the event that ends a stream."""
    return b"data: " + error_body(error, request_id) + b"\n\n"


def error_response(error: RequestError, exchange: Exchange) -> web.Response:
    """The error as an answer of its own."""
    headers = dict(exchange.headers)
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, -(-error.retry_after_ms // _MS_PER_S)))
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    status = error.status if isinstance(error, HttpRefused) else error.http_status
    response = web.Response(
        body=error_body(error, exchange.request_id), status=status, headers=headers, content_type="application/json", charset="utf-8"
    )
    if isinstance(error, PayloadTooLarge | ClientTooSlow):
        response.force_close()  # the rest of the body is not worth reading
    return response


def from_http(error: web.HTTPException, request: web.Request, *, max_body_bytes: int) -> RequestError:
    """Our error for one that the HTTP layer raised."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{error.method} is not allowed here; use {allowed}")
    if isinstance(error, web.HTTPNotFound):
        return NotFound("no such path; see /v1/models, /v1/infer, /v1/completions, /v1/chat/completions, /healthz, /readyz")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return too_large(max_body_bytes)
    return HttpRefused(error.status, error.reason)


def too_large(max_body_bytes: int) -> PayloadTooLarge:
    """The body is over the limit."""
    return PayloadTooLarge(f"the body is larger than {max_body_bytes} bytes, the limit of this daemon; send less")
