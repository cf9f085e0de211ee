"""A control socket that says what it was told to say: canned structs of `halcyon.wire`, scripted streams, and a record of what was asked.

It runs in a thread of its own, so that a test may call the command in process. Nothing here waits for a time.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from halcyon.errors import RequestError
from halcyon.wire.api_infer import InferAnswer, InferEnd, InferPart
from halcyon.wire.control import ErrorBody, ErrorReply, ModelStatus, ReplicaState, ReplicaStatus, Status, StoreStatus
from halcyon.wire.inference import Timings, Usage

ANSWER = "Because of Rayleigh scattering.\u2028Mostly."
"""Holds a line separator: a reader that splits lines on it would lose the answer."""


def replica(replica_id: str = "m-v1-0", state: ReplicaState = "ready", **fields: object) -> ReplicaStatus:
    """One replica of model m."""
    return ReplicaStatus(replica_id=replica_id, model="m", version="v1", runtime="sim", state=state, **fields)


def a_status(*replicas: ReplicaStatus, **fields: object) -> Status:
    """A daemon with these replicas, or with one ready one."""
    found = replicas or (replica(kv_blocks_used=16, kv_blocks_total=64, outstanding=3, device="cpu", dtype="float32"),)
    ready = sum(each.state == "ready" for each in found)
    model = ModelStatus(name="m", version="v1", runtime="sim", source="", default=True, replicas=len(found), ready=ready, max_context=2048)
    known: dict[str, Any] = {
        "pid": 4242,
        "version": "0.1.0",
        "state": "ready",
        "listen": "127.0.0.1:8765",
        "socket": "/run/s",
        "state_dir": "/state",
        "fleet": "/fleet.toml",
        "uptime_s": 61.0,
        "queued": 0,
        "running": 0,
        "connections": 0,
        "requests_total": 7,
        "replicas": found,
        "models": (model,),
        "store": StoreStatus(path="/state/history.db"),
    }
    return Status(**(known | fields))


ACCOUNT: dict[str, Any] = {
    "request_id": "req-1",
    "model": "m",
    "version": "v1",
    "replica_id": "m-v1-0",
    "usage": Usage(prompt_tokens=5, completion_tokens=4, total_tokens=9, cached_tokens=2),
    "timings": Timings(queue_ms=1.25, ttft_ms=20.0, tpot_ms=10.0, total_ms=50.0),
    "batch_size": 3,
    "batch_reason": "slot_free",
    "queue_depth": 2,
    "eligible_replicas": 2,
    "attempts": 2,
}


def stream_of(text: str = ANSWER, *, ended: bool = True) -> list[bytes]:
    """A stream that says the text in pieces, with a heartbeat before it; `ended` False leaves it cut."""
    pieces = [text[:7], text[7:20], text[20:]]
    events = [b": waiting\n\n"]
    events += [_event(InferPart(index=0, text=piece, output_tokens=count)) for count, piece in enumerate(pieces, 1)]
    if ended:
        events += [_event(InferEnd(**ACCOUNT, finish_reason="stop")), b"data: [DONE]\n\n"]
    return events


def error_event(error: RequestError) -> bytes:
    """The event that ends a failed stream."""
    return _event(_error_reply(error))


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _error_reply(error: RequestError) -> ErrorReply:
    body = ErrorBody(
        code=error.code,
        message=error.message,
        type=error.type,
        param=error.param,
        retry_after_ms=error.retry_after_ms,
        request_id="req-1",
        details=error.details or None,
    )
    return ErrorReply(body)


@dataclass
class ScriptedControl:
    """Use as a context manager.

    statuses: what successive status calls answer; the last one stays. error: what every call is answered with, when set.
    stream: events of a streamed answer; `hold_stream` keeps it open after them until the client leaves, which sets `client_left`.
    calls: (method, path, body) of what was asked, in order.
    """

    socket: Path
    statuses: list[Status] = field(default_factory=lambda: [a_status()])
    error: RequestError | None = None
    raw_reply: bytes | None = None
    stream: list[bytes] = field(default_factory=stream_of)
    output: str = ANSWER
    hold_stream: bool = False
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    client_left: threading.Event = field(default_factory=threading.Event)
    streaming: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> ScriptedControl:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def last_body(self) -> dict[str, Any]:
        """The body of the last call."""
        return self.calls[-1][2]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.UnixSite(runner, str(self.socket)).start()
        self._started.set()
        await self._stop.wait()
        await _turns()  # what has connected is accepted, so that it can be closed
        await runner.cleanup()
        await _turns()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.calls.append((request.method, request.raw_path, json.loads(data) if data else None))
        if self.error is not None:
            return _json(_error_reply(self.error), self.error.http_status)
        if self.raw_reply is not None:
            return web.Response(body=self.raw_reply)
        if request.path == "/v1/infer":
            return await self._infer(request)
        return _json(self._control(request))

    def _control(self, request: web.Request) -> object:
        verb = request.path.removeprefix("/v1/control/")
        status = self.statuses.pop(0) if verb == "status" and len(self.statuses) > 1 else self.statuses[0]
        if verb in {"status", "down"}:
            return status
        if verb == "models":
            return {"models": status.models}
        if verb == "replicas" and request.method == "GET":
            return {"replicas": status.replicas}
        if request.method == "DELETE":
            return replica(state="removed")
        return replica(state="draining" if verb.endswith("/drain") else "starting", outstanding=2)

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        if not self.calls[-1][2].get("stream"):
            return _json(InferAnswer(**ACCOUNT, output=self.output, finish_reason="stop"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in self.stream:
            await response.write(event)
        if self.hold_stream:
            await self._held()
        return response

    async def _held(self) -> None:
        self.streaming.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.client_left.set()


async def _turns() -> None:
    """Lets the loop handle whatever is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
