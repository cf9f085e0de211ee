"""The boundary of an HTTP request: whatever happens inside, the client gets exactly one answer in our form.

One of the three places that may catch everything. A failure before the first byte becomes a status and a body; after the headers of a
stream it becomes one `data: {"error": …}` event, then `data: [DONE]`, then the end of the response, so that no client waits for more.
A client that left is not an error: its cancellation passes through untouched. Logs name the exception's type and our own lines, never
its text, which may hold what the client sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from halcyon import clock
from halcyon.daemon.http.exchange import Exchange
from halcyon.daemon.http.failures import error_event, error_response, from_http
from halcyon.daemon.http.metrics import HttpMetrics
from halcyon.daemon.http.sse import DONE
from halcyon.daemon.logs import EventLog
from halcyon.errors import RequestError

_log = EventLog("http")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def boundary(*, metrics: HttpMetrics, max_body_bytes: int) -> Middleware:
    """The outermost middleware."""

    @web.middleware
    async def answer(request: web.Request, handler: _Handler) -> web.StreamResponse:
        exchange = Exchange.begin(request)
        endpoint = request.match_info.route.name or "other"
        started_ns = clock.now_ns()
        status = 0
        metrics.started(endpoint=endpoint)
        try:
            response = await _answered(request, handler, exchange, max_body_bytes)
            status = response.status
            return response
        except (asyncio.CancelledError, ConnectionError):
            exchange.code = "client_gone"
            raise
        finally:
            metrics.finished(endpoint=endpoint, status=status, code=exchange.code, duration_ns=clock.now_ns() - started_ns)

    return answer


async def note_begun(request: web.Request, response: web.StreamResponse) -> None:
    """For `on_response_prepare`: from now on no second answer can be sent."""
    del request, response
    Exchange.note_begun()


async def _answered(request: web.Request, handler: _Handler, exchange: Exchange, max_body_bytes: int) -> web.StreamResponse:
    try:
        response = await handler(request)
    except RequestError as error:
        return await _failed(error, exchange)
    except web.HTTPException as error:
        failure = error_response(refused := from_http(error, request, max_body_bytes=max_body_bytes), exchange)
        exchange.code = refused.code
        if "Allow" in error.headers:
            failure.headers["Allow"] = error.headers["Allow"]
        return failure
    except ConnectionError:
        raise  # the client is gone; nobody to answer
    except Exception as error:  # noqa: BLE001 - the boundary of an HTTP request: every accepted request gets an answer
        _log.error("request_failed", error=error, request=exchange.request_id)
        return await _failed(RequestError("the daemon failed to answer; its log names the request_id"), exchange)
    if not response.prepared:
        response.headers.update(exchange.headers)
    return response


async def _failed(error: RequestError, exchange: Exchange) -> web.StreamResponse:
    exchange.code = error.code
    if exchange.stream is None and exchange.begun:
        raise ConnectionAbortedError("an answer that is no event stream broke off half way")  # only the connection's end can say so
    if exchange.stream is None:
        return error_response(error, exchange)
    await exchange.stream.finish(error_event(error, exchange.request_id) + DONE)
    return exchange.stream.response
