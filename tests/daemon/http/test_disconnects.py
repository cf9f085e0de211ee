"""Clients that leave."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted import ScriptedService, serving, spoken

from halcyon.wire.inference import Part

PHASES = {
    "queued": [],
    "prefill": [(Part(index=0, prompt_tokens=3),)],
    "decode": spoken("Hel", "lo")[:1],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_leaves_ends_its_request(phase: str, stream: bool) -> None:
    """In queue, prefill and decode, streaming or not: the generation is left as soon as the connection is gone (Disconnects)."""
    service = ScriptedService([*PHASES[phase], asyncio.Event(), *spoken("never")])
    async with serving(service) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps({"model": "tiny", "prompt": "hi", "stream": stream}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await service.opened.wait()
        await service.generation.waiting.wait()
        writer.transport.abort()
        await service.generation.closed.wait()
        await server.metrics.ended.wait()
    assert not service.generation.finished
    assert service.live == 0
    assert server.metrics.endings[0][2] == "client_gone"


async def test_leaving_several_prompts_ends_them_all() -> None:
    """A request of three prompts leaves nothing behind when its client goes (Disconnects)."""
    service = ScriptedService([asyncio.Event()])
    async with serving(service) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps({"model": "tiny", "prompt": ["a", "b", "c"]}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await server_sees(service, 3)
        writer.close()
        await asyncio.gather(*(generation.closed.wait() for generation in service.generations))
    assert service.live == 0


async def server_sees(service: ScriptedService, count: int) -> None:
    """Waits until so many generations stand at their event."""
    while len(service.generations) < count:
        service.opened.clear()
        await service.opened.wait()
    await asyncio.gather(*(generation.waiting.wait() for generation in service.generations))


async def test_a_storm_of_leavers_leaves_nothing_open() -> None:
    """Two hundred clients that leave in the middle bring the count of open generations back to zero (Disconnects)."""
    service = ScriptedService([*spoken("Hel", "lo")[:1], asyncio.Event()])
    async with serving(service) as server:
        body = json.dumps({"model": "tiny", "prompt": "hi", "stream": True}).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body

        async def leave() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request)
            await reader.readuntil(b"data: ")
            writer.close()

        await asyncio.gather(*(leave() for _ in range(200)))
        await asyncio.gather(*(generation.closed.wait() for generation in service.generations))
    assert (len(service.generations), service.live) == (200, 0)


async def test_a_client_that_leaves_while_it_uploads_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Half a body and a closed connection open no generation and log no failure (Disconnects)."""
    service = ScriptedService()
    async with serving(service) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await server.metrics.begun.wait()
        writer.transport.abort()
        await server.metrics.ended.wait()
    assert service.calls == []
    assert server.metrics.endings[0][2] == "client_gone"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
