"""Streams while nothing is said, and streams that nobody reads."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest
from scripted import ScriptedService, Server, data_of, serving, spoken

from halcyon.config.settings import Limits
from halcyon.wire.inference import Part

BODIES = [
    ("/v1/infer", {"model": "tiny", "input": "hi", "stream": True}),
    ("/v1/completions", {"model": "tiny", "prompt": "hi", "stream": True}),
    ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_heartbeats_fill_the_wait_for_the_first_token(path: str, body: dict[str, object]) -> None:
    """Headers go out once the request is admitted, and comments follow while it is queued; they do not count as sent (Streams)."""
    gate = asyncio.Event()
    service = ScriptedService([gate, *spoken("Hel", "lo")])
    async with (
        serving(service, limits=Limits(heartbeat_s=0.01)) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post(path, json=body) as response,
    ):
        assert response.status == 200
        first, blank, second = [await response.content.readline() for _ in range(3)]
        assert first == second == b": waiting\n"
        assert blank == b"\n"
        assert service.generation.sent_after_steps is None
        gate.set()
        rest = await response.text()
    assert data_of(rest)[-1] == "[DONE]"
    assert service.generation.sent_after_steps == 1


async def test_heartbeats_fill_a_silence_between_tokens() -> None:
    """A stream that falls silent in the middle goes on to show that it lives (Streams)."""
    gate = asyncio.Event()
    first, last = spoken("Hel", "lo")
    async with (
        serving(ScriptedService([first, gate, last]), limits=Limits(heartbeat_s=0.01)) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post(*BODIES[1][:1], json=BODIES[1][1]) as response,
    ):
        lines = [await response.content.readline() for _ in range(4)]
        assert lines[0].startswith(b"data: ")
        assert lines[2] == b": waiting\n"
        gate.set()
        assert data_of(await response.text())[-1] == "[DONE]"


async def test_parts_without_anything_to_show_are_not_sent() -> None:
    """A part that holds back an incomplete character or a possible stop string makes no chunk and does not count as sent (Streams)."""
    silent = (Part(index=0, prompt_tokens=3, output_tokens=1),)
    shown = (Part(index=0, text="é", output_tokens=2, finish_reason="stop"),)
    async with (
        serving(service := ScriptedService([silent, shown])) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODIES[1][1]) as response,
    ):
        events = data_of(await response.text())
    assert [json.loads(event)["choices"][0]["text"] for event in events[:-1]] == ["é"]
    assert service.generation.sent_after_steps == 2


async def test_all_parts_of_a_step_leave_in_one_write() -> None:
    """Choices that advance together travel together: one HTTP chunk a step."""
    async with (
        serving(ScriptedService(spoken("a", "b", n=3))) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODIES[1][1] | {"n": 3}) as response,
    ):
        writes = [chunk async for chunk, ended in response.content.iter_chunks() if ended]
    assert [write.count(b"data: ") for write in writes] == [3, 3, 1]


async def test_text_survives_in_any_script() -> None:
    """CJK, emoji, quotes, newlines and separators arrive exactly as they were said (Streams)."""
    texts = ["日本", "👩‍🚀", '"\\', "\n\n", "data: [DONE]\n\n", "\u2028", "\x00"]
    async with (
        serving(ScriptedService(spoken(*texts))) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODIES[1][1]) as response,
    ):
        raw = (await response.read()).decode()
    events = [line.removeprefix("data: ") for line in raw.split("\n") if line.startswith("data: ")]
    assert [json.loads(event)["choices"][0]["text"] for event in events[:-1]] == texts


# ---- a client that does not read ---------------------------------------------------------------------------------------

_LONG = "x" * 65_536
_STEPS = 400


def _torrent() -> list[tuple[Part, ...]]:
    """25 MB in 400 tokens: more than all socket buffers on the way hold."""
    return [
        (Part(index=0, text=_LONG, prompt_tokens=int(i == 0), output_tokens=i + 1, finish_reason="stop" if i == _STEPS - 1 else None),)
        for i in range(_STEPS)
    ]


async def _ask_without_reading(server: Server) -> socket.socket:
    """A client with a small receive buffer that has sent its request and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    body = json.dumps(BODIES[1][1]).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    await loop.sock_sendall(client, head + body)
    return client


async def test_a_slow_client_is_cut_with_an_error_event() -> None:
    """A client that lags more tokens behind than the bound ends its own request at once, and reads why when it reads at all (Streams)."""
    service = ScriptedService(_torrent())
    async with serving(service, limits=Limits(stream_buffer_tokens=20)) as server:
        client = await _ask_without_reading(server)
        with client:
            await service.opened.wait()
            await service.generation.closed.wait()
            assert not service.generation.finished
            assert service.generation.steps_read < _STEPS
            received = bytearray()
            while not received.endswith(b"0\r\n\r\n"):
                received += await asyncio.get_running_loop().sock_recv(client, 1 << 20)
    tail = received[-1000:].decode()
    assert '"code":"client_too_slow"' in tail
    assert "data: [DONE]\n\n" in tail


async def test_a_client_that_never_reads_is_dropped() -> None:
    """The end of a stream waits a bounded time for its client, then the connection is gone (Python services)."""
    service = ScriptedService(_torrent())
    async with serving(service, limits=Limits(stream_buffer_tokens=20), flush_timeout_s=0.05) as server:
        client = await _ask_without_reading(server)
        with client:
            await server.metrics.ended.wait()
    assert server.metrics.endings == [("completions", 0, "client_gone")]


async def test_a_reading_client_is_never_cut() -> None:
    """The same torrent reaches a client that reads, whole, under the default bound."""
    async with (
        serving(ScriptedService(_torrent())) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODIES[1][1]) as response,
    ):
        size = 0
        async for chunk in response.content.iter_any():
            size += chunk.count(b"x")
    assert size >= _STEPS * len(_LONG)


async def test_a_reading_client_may_get_everything_at_once() -> None:
    """6 MB that say they are 1,000 tokens come in one step to a client that reads, under a bound of 20: it had no chance to be slow."""
    everything = [(Part(index=0, text="x" * 6_000_000, prompt_tokens=3, output_tokens=1000, finish_reason="stop"),)]
    async with (
        serving(ScriptedService(everything), limits=Limits(stream_buffer_tokens=20)) as server,
        aiohttp.ClientSession(server.url) as client,
        client.post("/v1/completions", json=BODIES[1][1]) as response,
    ):
        answer = await response.read()
    assert answer.count(b"x") >= 6_000_000
    assert answer.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in answer


async def test_an_old_client_gets_its_stream_too() -> None:
    """HTTP/1.0 knows no chunks: the stream is plain bytes and ends with the connection."""
    async with serving(ScriptedService()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps(BODIES[1][1]).encode()
        writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.endswith("\n\ndata: [DONE]\n\n")
