"""What clients choose must not grow what the daemon keeps."""

from __future__ import annotations

import asyncio
import gc
import random

import aiohttp
import pytest
from scripted import ScriptedService, Server, serving, spoken

from halcyon.errors import ModelNotFound


async def _ask_for(server: Server, rng: random.Random, count: int) -> None:
    """Asks for `count` models and as many paths, all with random names, on a few connections at once."""

    async def ask(client: aiohttp.ClientSession, times: int) -> None:
        for _ in range(times):
            name = f"{rng.getrandbits(128):x}"
            async with client.post("/v1/completions", json={"model": name, "prompt": "x"}) as response:
                assert response.status == 404
            async with client.get(f"/{name}") as response:
                assert response.status == 404

    async with aiohttp.ClientSession(server.url) as client:
        await asyncio.gather(*(ask(client, count // 10) for _ in range(10)))


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_random_names_leave_bounded_labels_and_no_memory(count: int) -> None:
    """However many model names and paths clients invent, labels stay a handful and nothing is kept (Python services)."""
    rng = random.Random(7)
    async with serving(ScriptedService(refusal=ModelNotFound("no such model"))) as server:
        await _ask_for(server, rng, 400)
        gc.collect()
        before = len(gc.get_objects())
        labels = set(server.metrics.endings)
        server.metrics.endings.clear()
        await _ask_for(server, rng, count)
        labels |= set(server.metrics.endings)
        server.metrics.endings.clear()
        gc.collect()
        grown = len(gc.get_objects()) - before
    assert labels == {("completions", 404, "model_not_found"), ("other", 404, "not_found")}
    assert grown < 300


async def test_five_hundred_streams_from_one_client_finish() -> None:
    """Five hundred streams that wait at once all come to their end, from one client (Python services)."""
    gate = asyncio.Event()
    service = ScriptedService([gate, *spoken("Hel", "lo")])
    connector = aiohttp.TCPConnector(limit=0)
    async with serving(service) as server, aiohttp.ClientSession(server.url, connector=connector) as client:

        async def stream() -> bool:
            async with client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "stream": True}) as response:
                if service.live == 500:
                    gate.set()
                return (await response.text()).endswith("data: [DONE]\n\n")

        assert all(await asyncio.gather(*(stream() for _ in range(500))))
