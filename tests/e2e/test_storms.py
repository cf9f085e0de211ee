"""Hundreds of clients at once, and clients that leave whenever they like."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator

import httpx
import pytest
from fleet import RunningFleet
from test_crash import SIMULATED, count_tokens, unlimited

BUSY_GAUGES = r'halcyon_(queued_requests|running_requests|outstanding_sequences|kv_blocks)\{(?!.*state="(free|cached)")'
"""What must be zero in an idle fleet: one sample for each of its versions or replicas."""


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
    gauges = {name: value for name, value in fleet.metrics().items() if re.match(BUSY_GAUGES, name)}
    assert len(gauges) == 2 + 2 * len(status["replicas"])
    busy = {name: value for name, value in gauges.items() if value}
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
            if status["running"] == 0 and not any(r["kv_blocks_used"] or r["running"] for r in status["replicas"]):
                return True
    return False


def test_a_dead_connection_is_noticed_while_queued(wide_fleet: RunningFleet) -> None:
    """Of 168 requests for 128 slots 40 wait; once their clients leave none waits, while all that had a slot keep it (disconnects: in
    queue); and when those leave too the fleet is idle."""

    async def load() -> None:
        async with unlimited(wide_fleet) as client:
            holders = [asyncio.create_task(count_tokens(client, 4000)) for _ in range(128)]
            await until(wide_fleet, queued=0, running=128)
            waiting = [asyncio.create_task(count_tokens(client, 4000)) for _ in range(40)]
            await until(wide_fleet, queued=40, running=128)
            await left(waiting)
            await until(wide_fleet, queued=0, running=128)
            assert not any(holder.done() for holder in holders)
            await left(holders)

    asyncio.run(load())
    assert asyncio.run(settled(wide_fleet))


async def left(requests: list[asyncio.Task[tuple[int, str]]]) -> None:
    """Closes the connections of these requests."""
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


async def until(fleet: RunningFleet, *, queued: int, running: int) -> None:
    """Looks at the gauges until they say so; the requests that hold the slots must outlast it."""
    seen: set[tuple[float, float]] = set()
    for _ in range(500):
        gauges = await asyncio.to_thread(fleet.metrics)
        found = tuple(
            sum(value for name, value in gauges.items() if name.startswith(f"halcyon_{state}_requests{{"))
            for state in ("queued", "running")
        )
        if found == (queued, running):
            return
        seen.add(found)
    raise AssertionError(f"never {queued} queued and {running} running, but {seen}")
