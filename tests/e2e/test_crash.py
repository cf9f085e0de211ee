"""Processes die by `kill -9`; what was promised still holds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import psutil
import pytest
import sqlite_utils
from fleet import RunningFleet

SIMULATED = """
[daemon]
listen = "127.0.0.1:0"

[[model]]
name = "sim"
runtime = "sim"
replicas = 2
max_batch = {max_batch}
max_context = 4096

[model.sim]
mode = "continuous"
overhead_ms = {iteration_ms}
per_token_ms = 0.0
"""


@pytest.fixture
def sim_fleet(request: pytest.FixtureRequest) -> Iterator[RunningFleet]:
    """Two simulated replicas; parametrised with (max_batch, milliseconds an iteration)."""
    max_batch, iteration_ms = getattr(request, "param", (8, 5.0))
    fleet = RunningFleet.start(SIMULATED.format(max_batch=max_batch, iteration_ms=iteration_ms))
    yield fleet
    fleet.stop()


def body(tokens: int) -> dict[str, object]:
    """A streamed completion of exactly `tokens` tokens."""
    return {"model": "sim", "prompt": "go", "max_tokens": tokens, "stream": True, "ignore_eos": True}


async def events(response: httpx.Response) -> AsyncIterator[dict[str, object]]:
    """The JSON events of a stream; comments and `[DONE]` left out."""
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def count_tokens(client: httpx.AsyncClient, tokens: int, first: asyncio.Event | None = None) -> tuple[int, str]:
    """Streams one request; returns its content chunks and how it ended: a finish reason, `error:CODE`, or `cut`."""
    seen, ending = 0, "cut"
    try:
        async with client.stream("POST", "/v1/completions", json=body(tokens)) as response:
            if response.status_code != 200:
                return 0, f"error:{json.loads(await response.aread())['error']['code']}"
            async for event in events(response):
                if "error" in event:
                    ending = f"error:{event['error']['code']}"  # type: ignore[index]
                    continue
                choice = event["choices"][0]  # type: ignore[index]
                seen += bool(choice["text"])
                ending = choice["finish_reason"] or ending
                if first is not None:
                    first.set()
    except httpx.TransportError:
        pass
    return seen, ending


def unlimited(fleet: RunningFleet) -> httpx.AsyncClient:
    """A client without a connection cap of its own."""
    return httpx.AsyncClient(base_url=fleet.url, timeout=120, limits=httpx.Limits(max_connections=None))


def test_daemon_killed_under_load(sim_fleet: RunningFleet) -> None:
    """`kill -9` of the daemon under load: no worker after 2 s, `halcyon up` works at once, finished requests are in the history."""

    async def load() -> list[psutil.Process]:
        async with unlimited(sim_fleet) as client:
            finished = [await count_tokens(client, 4) for _ in range(10)]
            assert [ending for _, ending in finished] == ["length"] * 10
            settled = await client.get("/metrics")  # the rows of ten finished requests may trail by 200 ms: commits are counted there
            assert settled.status_code == 200
            started = [asyncio.Event() for _ in range(8)]
            running = [asyncio.create_task(count_tokens(client, 2000, event)) for event in started]
            await asyncio.wait_for(asyncio.gather(*(event.wait() for event in started)), 60)
            workers = await asyncio.to_thread(sim_fleet.kill)
            assert {ending for _, ending in await asyncio.gather(*running)} == {"cut"}
            return workers

    workers = asyncio.run(load())
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=2)
    assert not alive, "workers outlived their daemon"
    status = sim_fleet.up()
    assert {replica["state"] for replica in status["replicas"]} == {"ready"}
    rows = list(sqlite_utils.Database(sim_fleet.state_dir / "history.db")["requests"].rows)
    assert sum(row["output_tokens"] == 4 for row in rows) == 10
    assert asyncio.run(one_more(sim_fleet)) == (4, "length")


async def one_more(fleet: RunningFleet) -> tuple[int, str]:
    """One ordinary request, to see that the fleet serves."""
    async with unlimited(fleet) as client:
        return await count_tokens(client, 4)


@pytest.mark.parametrize("sim_fleet", [(4, 20.0)], indirect=True)
def test_worker_killed_under_load(sim_fleet: RunningFleet) -> None:
    """`kill -9` of one of two workers: requests with no byte sent finish on the other, one mid-stream gets an error event and a
    clean end, and the worker comes back (dead workers; streams)."""

    async def load() -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        async with unlimited(sim_fleet) as client:
            started = [asyncio.Event() for _ in range(8)]
            streaming = [asyncio.create_task(count_tokens(client, 120, event)) for event in started]
            await asyncio.wait_for(asyncio.gather(*(event.wait() for event in started)), 60)
            queued = [asyncio.create_task(count_tokens(client, 6)) for _ in range(12)]
            victim = (await asyncio.to_thread(sim_fleet.worker_pids))[0]
            os.kill(victim, signal.SIGKILL)
            return await asyncio.gather(*streaming), await asyncio.gather(*queued)

    streaming, queued = asyncio.run(load())
    assert queued == [(6, "length")] * 12
    endings = [ending for _, ending in streaming]
    assert endings.count("error:upstream_failure") == 4
    assert [count for count, ending in streaming if ending == "length"] == [120] * 4
    status = sim_fleet.up()  # idempotent: waits until every replica is ready again
    assert {replica["state"] for replica in status["replicas"]} == {"ready"}
    assert sum(replica["restarts"] for replica in status["replicas"]) == 1
