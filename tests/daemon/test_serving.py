"""A daemon with simulated workers serves, survives the death of a worker, and is idle again when its clients have left."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal

import aiohttp
import msgspec
import pytest
from daemon_rig import PATIENCE_S, Rig, Rigs, asked, completion, events, read, sim_model

from halcyon.config.settings import SimSettings
from halcyon.core.simulated_answer import SimulatedAnswer
from halcyon.errors import ModelNotFound, UpstreamFailure
from halcyon.store.queries import Queries


async def test_a_stream_over_loopback_carries_every_token_and_exact_usage(rigs: Rigs) -> None:
    """A streamed completion of 12 tokens brings 12 pieces, `usage` of exactly 12, and `[DONE]`."""
    rig = await rigs.start(sim_model())
    body = completion(tokens=12) | {"stream_options": {"include_usage": True}}
    async with rig.http.stream("POST", "/v1/completions", json=body) as response:
        seen = [event async for event in events(response)]
    assert response.status_code == 200
    assert seen[-1] == "[DONE]"
    chunks = [json.loads(event) for event in seen[:-1]]
    assert sum(bool(c["choices"] and c["choices"][0]["text"]) for c in chunks) == 12
    assert chunks[-1]["usage"]["completion_tokens"] == 12


async def test_several_prompts_of_one_stream_wait_for_one_another(rigs: Rigs) -> None:
    """Four prompts of one streamed completion on a replica with one slot all bring their 6 tokens, the first's start failing none."""
    rig = await rigs.start(sim_model(max_batch=1))
    body = completion(tokens=6) | {"prompt": ["one", "two", "three", "four"]}
    async with rig.http.stream("POST", "/v1/completions", json=body) as response:
        seen = [event async for event in events(response)]
    pieces = [choice for event in seen[:-1] for choice in json.loads(event)["choices"] if choice["text"]]
    assert [sum(piece["index"] == index for piece in pieces) for index in range(4)] == [6] * 4


async def test_every_answer_of_n_draws_and_counts_for_itself(rigs: Rigs) -> None:
    """n = 3 gives three answers on one replica, and the account counts the prompt once and 3 × 4 tokens."""
    rig = await rigs.start(sim_model())
    _, generation = await rig.answer(asked(tokens=4, n=3, stream=False))
    account = generation.account()
    assert (account.usage.completion_tokens, account.batch_size, account.attempts) == (12, 3, 1)
    assert account.usage.total_tokens == account.usage.prompt_tokens + 12


async def test_the_audit_row_has_the_numbers_and_not_the_text(rigs: Rigs) -> None:
    """A finished request leaves one row with its counts, its outcome and whether it was on time."""
    rig = await rigs.start(sim_model(deadline_ms=60_000))
    _, generation = await rig.answer(asked(tokens=7))
    await asyncio.wrap_future(rig.daemon.fleet.store.commit_now())
    kept = await asyncio.to_thread(Queries(rig.state_dir / "history.db").requests)
    row = kept[0].row
    assert (row.request_id, row.outcome, row.output_tokens, row.finish_reason) == (generation.request_id, "ok", 7, "length")
    assert (row.on_time, row.deadline_ms, row.attempts, row.replica_id) == (True, 60_000, 1, "toy-v1-0")
    decisions = await asyncio.to_thread(Queries(rig.state_dir / "history.db").decisions, request_id=generation.request_id)
    assert [d.row.kind for d in decisions] == ["dispatch"]


async def test_an_unknown_model_is_refused_by_name_and_counted_under_one_label(rigs: Rigs) -> None:
    """A thousand unknown names are each refused with the names that exist, and make one series. (Fault: labels grow.)"""
    rig = await rigs.start(sim_model())
    for number in range(1000):
        with pytest.raises(ModelNotFound, match="toy"):
            await rig.open(asked(model=f"no-{number}"))
    series = [line for line in rig.daemon.fleet.metrics.text().decode().splitlines() if line.startswith("halcyon_requests_total")]
    assert series == ['halcyon_requests_total{code="model_not_found",model="unknown",version=""} 1000.0']


async def test_kill_9_of_a_worker_loses_nothing_unsent(rigs: Rigs) -> None:
    """Of two workers one is killed: whole answers come from the other, word for word and each once; a stream under way gets an error; the
    worker comes back. (Faults: routing goes on to a dead worker; a mid-stream retry repeats tokens.)"""
    rig = await rigs.start(sim_model(replicas=2, sim=SimSettings(overhead_ms=5.0, per_token_ms=0.0)))
    streams = [await rig.open(asked("streamed", tokens=4000)) for _ in range(2)]
    wholes = [await rig.open(asked(f"whole {n}", tokens=40, stream=False)) for n in range(8)]
    readers = [asyncio.create_task(read(generation)) for generation in wholes]
    async with streams[0] as doomed, streams[1] as spared:
        await anext(doomed)
        await anext(spared)
        victim = doomed.account().replica_id
        assert spared.account().replica_id != victim
        pid = rig.replica(victim).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UpstreamFailure):
            await _drain(doomed)
        await anext(spared)
    texts = await asyncio.gather(*readers)
    assert texts == [SimulatedAnswer(f"whole {n}".encode(), version="v1").text(40) for n in range(8)]
    assert sorted(generation.account().attempts for generation in wholes) == [1] * 4 + [2] * 4
    status = await rig.until(lambda s: s.state == "ready" and all(r.state == "ready" for r in s.replicas))
    assert {r.replica_id: r.restarts for r in status.replicas}[victim] == 1
    await rig.until_idle()


async def test_clients_that_leave_leave_nothing(rigs: Rigs) -> None:
    """120 clients leave in the queue, in prefill, in decode, streaming or not: every gauge and the KV blocks are back at zero, and the next
    request is served. (Fault: the client leaves and the GPU works on.)"""
    rig = await rigs.start(sim_model(replicas=2, max_batch=6))
    await asyncio.gather(*(_leave_after(rig, steps=n % 4, stream=bool(n % 3)) for n in range(120)))
    await rig.until_idle()
    assert rig.daemon.fleet.loop.core.totals().gone == 120
    text, _ = await rig.answer(asked(tokens=5))
    assert len(text.split()) == 5


async def test_http_clients_that_hang_up_are_cancelled(rigs: Rigs) -> None:
    """40 HTTP streams closed after their first event free their slots; 40 whole requests whose clients give up do so too."""
    rig = await rigs.start(sim_model(max_batch=80))

    async def hang_up() -> None:
        async with rig.http.stream("POST", "/v1/completions", json=completion(tokens=4000), timeout=PATIENCE_S) as response:
            await anext(events(response))

    body = completion(tokens=4000, stream=False)
    whole = [asyncio.create_task(rig.http.post("/v1/completions", json=body, timeout=PATIENCE_S)) for _ in range(40)]
    await rig.until(lambda status: status.running == 40)
    for task in whole:
        task.cancel()
    await asyncio.gather(*whole, return_exceptions=True)
    await asyncio.gather(*(hang_up() for _ in range(40)))
    await rig.until_idle()
    assert rig.daemon.fleet.loop.core.totals().gone == 80


async def test_500_streams_from_one_client_finish(rigs: Rigs) -> None:
    """500 concurrent HTTP streams from one process all end with `[DONE]`. (Fault: the client pool's default of 100 connections.)"""
    rig = await rigs.start(sim_model(replicas=2, max_batch=256))

    async def last_event(client: aiohttp.ClientSession) -> bytes:
        async with client.post("/v1/completions", json=completion(tokens=3)) as response:
            return (await response.read()).split()[-1]

    url = str(rig.http.base_url)
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as client:
        assert await asyncio.gather(*(last_event(client) for _ in range(500))) == [b"[DONE]"] * 500
    await rig.until_idle()


async def _leave_after(rig: Rig, *, steps: int, stream: bool) -> None:
    async with await rig.open(asked(tokens=4000, stream=stream)) as generation:
        if not stream:
            return
        for _ in range(steps):
            await anext(generation)


async def _drain(generation: object) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for _ in generation:  # type: ignore[attr-defined]  # a generation
            pass


async def test_a_models_own_sampling_stands_in_for_what_a_client_left_out(rigs: Rigs) -> None:
    """temperature = 0.2 in the fleet file reaches the replica where the client said nothing, and nothing else of the request changes."""
    rig = await rigs.start(dataclasses.replace(sim_model(), temperature=0.2))
    silent = msgspec.structs.replace(asked(), unsaid=("temperature", "top_p"))
    async with await rig.open(silent) as generation:
        sampling = rig.daemon.fleet.traffic.alive[generation.request_id].call.sampling
        assert (sampling.temperature, sampling.top_p) == (0.2, 1.0)
    async with await rig.open(asked()) as generation:
        assert rig.daemon.fleet.traffic.alive[generation.request_id].call.sampling == asked().sampling
