"""Routes that the daemon adds to the application share its boundary."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from scripted import CountingMetrics, ScriptedService

from halcyon.config.settings import FleetSettings
from halcyon.daemon.http import build_api
from halcyon.errors import Conflict


async def _conflict(request: web.Request) -> web.Response:
    raise Conflict(f"{request.path} is busy")


async def _breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one line\n")
    raise Conflict("too late for a status")


async def test_added_routes_answer_in_our_form() -> None:
    """An added handler's RequestError is the one error body; one that fails after it began ends its connection, which is not left open."""
    metrics = CountingMetrics()
    app = build_api(ScriptedService(), settings=FleetSettings(), metrics=metrics)
    app.router.add_get("/v1/control/conflict", _conflict, name="control_conflict")
    app.router.add_get("/v1/control/tail", _breaks_off, name="control_tail")
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with asyncio.timeout(30), aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            async with client.get("/v1/control/conflict") as response:
                assert (response.status, (await response.json())["error"]["code"]) == (409, "conflict")
            async with client.get("/v1/control/tail") as response:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
    finally:
        await runner.cleanup()
    assert metrics.endings == [("control_conflict", 409, "conflict"), ("control_tail", 0, "client_gone")]
