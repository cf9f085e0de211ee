"""The `x-halcyon-*` headers: objectives, lane and session for clients whose bodies have no room for them.

In `/v1/infer` the body's own fields win over the headers; in OpenAI bodies the session header wins over `user`.
"""

from __future__ import annotations

from typing import Literal, cast

import msgspec
from aiohttp import web

from halcyon.errors import InvalidRequest
from halcyon.wire.api_infer import LONGEST_OBJECTIVE_MS
from halcyon.wire.inference import InferenceCall

_PREFIX = "x-halcyon-"
_LANES = ("interactive", "bulk")
Lane = Literal["interactive", "bulk", ""]
_LONGEST_SESSION_CHARS = 512


def lane_of(text: str, *, shown: str, param: str) -> Lane:
    """The lane that a client named, or "".

    Raises:
        InvalidRequest: there is no such lane; the message begins with `shown`.
    """
    if text and text not in _LANES:
        raise InvalidRequest(f"{shown} must be one of {', '.join(_LANES)}", param=param)
    return cast("Lane", text)


def with_wishes(call: InferenceCall, request: web.Request) -> InferenceCall:
    """The call with what the headers add.

    Raises:
        InvalidRequest: a header's value cannot be read; the message names the header.
    """
    deadline_ms, ttft_ms, tpot_ms = (_objective(request, f"{_PREFIX}{name}-ms") for name in ("deadline", "ttft", "tpot"))
    return msgspec.structs.replace(
        call,
        deadline_ms=call.deadline_ms or deadline_ms,
        ttft_ms=call.ttft_ms or ttft_ms,
        tpot_ms=call.tpot_ms or tpot_ms,
        lane=call.lane or _lane(request),
        session_key=_session(call, request),
    )


def _objective(request: web.Request, header: str) -> int | None:
    text = request.headers.get(header)
    if text is None:
        return None
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(LONGEST_OBJECTIVE_MS)) else 0
    if not 1 <= value <= LONGEST_OBJECTIVE_MS:
        raise InvalidRequest(f"header `{header}` must be a whole number of milliseconds from 1 to {LONGEST_OBJECTIVE_MS}", param=header)
    return value


def _lane(request: web.Request) -> Lane:
    header = f"{_PREFIX}lane"
    return lane_of(request.headers.get(header, ""), shown=f"header `{header}`", param=header)


def _session(call: InferenceCall, request: web.Request) -> str:
    sent = request.headers.get(f"{_PREFIX}session", "")[:_LONGEST_SESSION_CHARS]
    header = sent.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # a header may be any bytes, a key must be text
    if call.endpoint == "infer":
        return call.session_key or header
    return header or call.session_key[:_LONGEST_SESSION_CHARS]
