"""Reading a request's body: never more than the limit, and a large one is decoded beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from halcyon.daemon.http.exchange import Exchange
from halcyon.daemon.http.failures import error_response, too_large
from halcyon.errors import ClientTooSlow, InvalidRequest

_T = TypeVar("_T")
DECODE_INLINE_BYTES = 256 * 1024
"""Larger bodies are decoded in a thread."""
BODY_TIMEOUT_S = 75.0
"""How long a whole body may take to come: a connection that only promises one would hold its place for ever."""


async def read_body(request: web.Request, *, max_body_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
    """The whole body.

    Raises:
        PayloadTooLarge: it is announced or turns out larger than the limit; the rest is not read.
        InvalidRequest: there is none, or it is packed. ClientTooSlow: it has not come within `timeout_s`.
    """
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding != "identity":
        raise InvalidRequest("header `Content-Encoding`: packed bodies are not taken; send the JSON as it is", param="content-encoding")
    if (request.content_length or 0) > max_body_bytes:
        raise too_large(max_body_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            data = await request.read()  # bounded by the application's client_max_size, whatever was announced
    except web.HTTPRequestEntityTooLarge:
        raise too_large(max_body_bytes) from None
    except TimeoutError:
        raise ClientTooSlow(f"the body did not come within {timeout_s:g} s; send it faster") from None
    if not data:
        raise InvalidRequest("the body is empty; send a JSON object")
    return data


async def decode_body(decode: Callable[[bytes], _T], data: bytes) -> _T:
    """Decodes inline when small, in a thread when large."""
    if len(data) <= DECODE_INLINE_BYTES:
        return decode(data)
    return await asyncio.to_thread(decode, data)


def expect_within(max_body_bytes: int) -> Callable[[web.Request], object]:
    """Answers `Expect: 100-continue`: go on, or 413 before a byte of the body is sent."""

    async def expect(request: web.Request) -> web.StreamResponse | None:
        if (request.content_length or 0) > max_body_bytes:
            return error_response(too_large(max_body_bytes), Exchange.begin(request))
        if request.headers["Expect"].lower() != "100-continue":
            refused = InvalidRequest("the only expectation understood is `Expect: 100-continue`")
            return error_response(refused, Exchange.begin(request))
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun
        return None

    return expect
