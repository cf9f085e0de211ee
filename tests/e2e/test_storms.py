"""Hundreds of clients at once, and clients that leave whenever they like."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator

import httpx
import pytest
from fleet import RunningFleet
from test_crash import SIMULATED, count_tokens, unlimited


@pytest.fixture(scope="module")
def wide_fleet() -> Iterator[RunningFleet]:
    """Two simulated replicas with 64 slots each."""
    fleet = RunningFleet.start(SIMULATED.format(max_batch=64, iteration_ms=5.0))
    yield fleet
    fleet.stop()


def assert_idle(fleet: RunningFleet) -> None:
    """Every gauge and every KV block is back to zero."""
    status = fleet.status()
    assert (status["queued"], status["running"]) == (0, 0)
    for replica in status["replicas"]:
        assert (replica["outstanding"], replica["running"], replica["kv_blocks_used"]) == (0, 0, 0), replica
    busy = {
        name: value
        for name, value in fleet.metrics().items()
        if name.startswith(("halcyon_requests_running", "halcyon_requests_queued", "halcyon_replica_outstanding")) and value
    }
    assert busy == {}


async def leave(client: httpx.AsyncClient, patience_events: int) -> None:
    """Streams and closes the connection after so many events; 0: right after the headers."""
    request = {"model": "sim", "prompt": "go", "max_tokens": 3000, "stream": True, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=request) as response:
        if patience_events == 0:
            return
        seen = 0
        async for line in response.aiter_lines():
            seen += line.startswith("data: {")
            if seen >= patience_events:
                return


async def give_up(client: httpx.AsyncClient, turns: int) -> None:
    """Asks for a whole answer and closes the connection after so many turns of the event loop: a random instant without a clock."""
    request = {"model": "sim", "prompt": "go", "max_tokens": 3000, "stream": False, "ignore_eos": True}
    waiting = asyncio.create_task(client.post("/v1/completions", json=request))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def storm(fleet: RunningFleet, rng: random.Random, clients: int) -> None:
    """So many clients at once, half of them streaming, each of which leaves at a random instant."""
    async with unlimited(fleet) as client:
        leaving = [leave(client, rng.randrange(0, 12)) for _ in range(clients // 2)]
        giving_up = [give_up(client, rng.randrange(1, 400)) for _ in range(clients // 2)]
        await asyncio.wait_for(asyncio.gather(*leaving, *giving_up), 120)


def test_five_hundred_streams(wide_fleet: RunningFleet) -> None:
    """500 concurrent streams from one process all finish whole (the client pool that caps at 100)."""

    async def load() -> list[tuple[int, str]]:
        async with unlimited(wide_fleet) as client:
            return await asyncio.gather(*(count_tokens(client, 16) for _ in range(500)))

    assert asyncio.run(load()) == [(16, "length")] * 500
    assert_idle(wide_fleet)


def test_clients_that_leave(wide_fleet: RunningFleet) -> None:
    """200 clients that leave at random instants (queued, before and after the first token, streaming and not) leave nothing behind."""
    asyncio.run(storm(wide_fleet, random.Random(11), clients=200))
    assert asyncio.run(settled(wide_fleet)), "the fleet did not become idle"
    assert_idle(wide_fleet)


async def settled(fleet: RunningFleet) -> bool:
    """Whether everything is cancelled once a few ordinary requests have gone through behind the storm."""
    async with unlimited(fleet) as client:
        for _ in range(100):
            assert await count_tokens(client, 4) == (4, "length")
            status = await asyncio.to_thread(fleet.status)
            if status["running"] == 0 and not any(r["kv_blocks_used"] for r in status["replicas"]):
                return True
    return False


def test_a_dead_connection_is_noticed_while_queued(wide_fleet: RunningFleet) -> None:
    """A client that leaves while it is queued takes no slot later (disconnects: in queue)."""

    async def load() -> int:
        async with unlimited(wide_fleet) as client:
            holders = [asyncio.create_task(count_tokens(client, 400)) for _ in range(128)]
            queued = [asyncio.create_task(count_tokens(client, 3000)) for _ in range(40)]
            status = json.loads("{}")
            for _ in range(200):
                status = await asyncio.to_thread(wide_fleet.status)
                if status["queued"] == 40:
                    break
            for task in queued:
                task.cancel()
            await asyncio.gather(*queued, return_exceptions=True)
            assert {ending for _, ending in await asyncio.gather(*holders)} == {"length"}
            return int(status["queued"])

    assert asyncio.run(load()) == 40
    assert asyncio.run(settled(wide_fleet))
