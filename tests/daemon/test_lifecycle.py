"""Draining, going down at once, giving up, and operators' orders, against real simulated workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import psutil
import pytest
from daemon_rig import PATIENCE_S, Rig, Rigs, asked, completion, events, read, sim_model, written

from halcyon.config.settings import DaemonSettings, Limits, SimSettings
from halcyon.core.restart import RestartSettings
from halcyon.errors import NoCapacity, RequestError

SLOW = SimSettings(overhead_ms=5.0, per_token_ms=0.0)


async def test_a_drain_finishes_what_runs_and_refuses_what_comes(rigs: Rigs) -> None:
    """After `down` a running stream brings all its 60 tokens, a new request gets 503 no_capacity, and the daemon ends with status 0."""
    rig = await rigs.start(sim_model(sim=SLOW))
    running = await rig.open(asked(tokens=60))
    await anext(running)
    draining = (await rig.control.post("/v1/control/down", json={})).json()
    assert (draining["state"], draining["running"]) == ("draining", 1)
    refused = await rig.http.post("/v1/completions", json=completion(stream=False))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_capacity")
    assert (await rig.http.get("/readyz")).status_code == 503
    assert (await rig.http.get("/healthz")).status_code == 200
    await read(running)
    assert running.account().usage.completion_tokens == 60
    assert await ended(rig) == 0


async def test_down_now_ends_running_streams_with_an_error_and_a_clean_end(rigs: Rigs) -> None:
    """`down --now`: a stream under way gets one error event, then `[DONE]`; the daemon does not wait for its 4,000 tokens."""
    rig = await rigs.start(sim_model(sim=SLOW))
    async with rig.http.stream("POST", "/v1/completions", json=completion(tokens=4000)) as response:
        stream = events(response)
        await anext(stream)
        await rig.control.post("/v1/control/down", json={"now": True})
        rest = [event async for event in stream]
    assert json.loads(rest[-2])["error"]["code"] == "no_capacity"
    assert rest[-1] == "[DONE]"
    assert await ended(rig) == 0


async def test_a_second_signal_hurries_the_drain(rigs: Rigs) -> None:
    """The first signal waits for what runs; the second ends it."""
    rig = await rigs.start(sim_model(sim=SLOW))
    running = await rig.open(asked(tokens=4000))
    await anext(running)
    rig.daemon.signalled()
    assert running.outcome == ""
    rig.daemon.signalled()
    with pytest.raises(NoCapacity):
        await read(running)
    assert await ended(rig) == 0


async def test_the_drain_is_bounded(rigs: Rigs) -> None:
    """With `drain_timeout_s = 0.05` a request of 4,000 tokens is ended, not waited for."""
    rig = await rigs.start(sim_model(sim=SLOW), daemon=DaemonSettings(limits=Limits(drain_timeout_s=0.05)))
    running = await rig.open(asked(tokens=4000))
    rig.daemon.signalled()
    assert await ended(rig) == 0
    assert running.outcome == "no_capacity"


async def test_the_daemons_end_leaves_no_worker(rigs: Rigs) -> None:
    """When the daemon has ended, no worker process is left, and neither is its socket."""
    rig = await rigs.start(sim_model(replicas=3))
    pids = [replica.pid for replica in rig.daemon.status().replicas]
    assert len(set(pids)) == 3
    assert None not in pids
    await rigs.close()
    assert [pid for pid in pids if pid is not None and psutil.pid_exists(pid)] == []
    assert not rig.state_dir.exists() or not (rig.state_dir / "halcyon.sock").exists()


async def test_an_end_waits_for_a_start_under_way(rigs: Rigs) -> None:
    """A replica whose start has only just been ordered when the daemon ends leaves no process, not even a dead one that nobody reaped."""
    rig = await rigs.start(sim_model())
    rig.daemon.fleet.supervisor.add(sim_model(), index=1)
    await rigs.close_daemons()
    assert workers_left() == []


async def test_a_replica_removed_while_it_starts_is_gone_for_good(rigs: Rigs) -> None:
    """Removed before its process exists: it is never ready, its id is free again, its worker ends and the daemon's log knows no error."""
    rig = await rigs.start(sim_model())
    supervisor = rig.daemon.fleet.supervisor
    first = supervisor.add(sim_model(), index=1)
    assert supervisor.remove(first.replica_id).lifecycle.state == "removed"
    second = supervisor.add(sim_model(), index=1)
    assert second.replica_id == first.replica_id
    status = await rig.until(lambda s: len(s.replicas) == 2 and all(r.state == "ready" for r in s.replicas))
    await rig.answer(asked(tokens=3, replica_id=second.replica_id))
    await rigs.close_daemons()
    assert [r.restarts for r in status.replicas] == [0, 0]
    assert workers_left() == []
    assert '"level":"error"' not in written(rig)


async def test_a_worker_that_keeps_dying_is_given_up_and_says_why(rigs: Rigs) -> None:
    """A model whose worker crashes on every request is started again, then given up after 3 failures: `status` has state, reason and
    count, requests for it are refused at once, and the other model never notices."""
    crashing = sim_model("bad", sim=SimSettings(overhead_ms=1.0, fault="crash"))
    restarts = RestartSettings(first_delay_ns=1_000_000, longest_delay_ns=1_000_000, jitter=0.0, most_failures=3)
    rig = await rigs.start(crashing, sim_model("good"), restarts=restarts)
    with pytest.raises(RequestError):
        await rig.answer(asked(model="bad", stream=False))
    status = await rig.until(lambda s: s.replicas[0].state == "failed")
    bad, good = status.replicas
    assert status.state == "degraded"
    assert (bad.restarts, bad.pid, bad.next_restart_s) == (2, None, None)
    assert "status 1" in bad.last_error
    assert "failed 3 times" in bad.last_error
    assert (good.state, good.restarts) == ("ready", 0)
    with pytest.raises(NoCapacity):
        await rig.open(asked(model="bad"))
    text, _ = await rig.answer(asked(model="good"))
    assert text
    unready = await rig.http.get("/readyz")
    assert unready.status_code == 503
    assert "an operator must act" in unready.json()["error"]["message"]
    assert "retry" not in unready.json()["error"]["message"]


async def test_a_silent_worker_blocks_nobody_and_is_replaced(rigs: Rigs) -> None:
    """Of two workers one is stopped by SIGSTOP: streams on the other go on, what waited on the silent one is answered, and a new worker
    takes its place after the 0.6 s of silence that the fleet allows. (Fault: one silent backend blocks everyone.)"""
    rig = await rigs.start(sim_model(replicas=2), daemon=DaemonSettings(worker_heartbeat_s=0.05, worker_timeout_s=0.6))
    silent = rig.replica("toy-v1-0")
    assert silent.pid is not None
    os.kill(silent.pid, signal.SIGSTOP)
    answers = [await rig.open(asked(f"waits {n}", tokens=5, stream=False)) for n in range(6)]
    texts = await asyncio.gather(*(read(generation) for generation in answers))
    assert [len(text.split()) for text in texts] == [5] * 6
    status = await rig.until(lambda s: all(r.state == "ready" for r in s.replicas) and s.replicas[0].restarts >= 1)
    assert status.replicas[0].pid != silent.pid
    assert "silent" in status.replicas[0].last_error


async def test_draining_a_replica_excludes_it_first_and_ends_it_when_empty(rigs: Rigs) -> None:
    """While a drained replica finishes its stream, new work goes elsewhere; then its worker ends and the replica can be removed.
    (Faults: a terminating worker still gets requests; scaling down cuts streams.)"""
    rig = await rigs.start(sim_model(replicas=2, sim=SLOW))
    running = await rig.open(asked(tokens=80))
    await anext(running)
    leaving = running.account().replica_id
    drained = (await rig.control.post(f"/v1/control/replicas/{leaving}/drain")).json()
    assert (drained["state"], drained["outstanding"]) == ("draining", 1)
    for _ in range(6):
        _, generation = await rig.answer(asked(tokens=2))
        assert generation.account().replica_id != leaving
    await read(running)
    assert running.account().usage.completion_tokens == 80
    await rig.until(lambda s: all(r.pid is None for r in s.replicas if r.replica_id == leaving))
    removed = (await rig.control.delete(f"/v1/control/replicas/{leaving}")).json()
    assert removed["state"] == "removed"
    assert [r.replica_id for r in rig.daemon.status().replicas] == [r for r in ("toy-v1-0", "toy-v1-1") if r != leaving]


async def test_orders_about_unknown_replicas_name_the_known(rigs: Rigs) -> None:
    """404 not_found, with the ids that exist."""
    rig = await rigs.start(sim_model())
    for answer in (await rig.control.post("/v1/control/replicas/nope/drain"), await rig.control.delete("/v1/control/replicas/nope")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert "toy-v1-0" in answer.json()["error"]["message"]


async def test_a_fleet_without_replicas_is_not_ready(rigs: Rigs) -> None:
    """Once its only replica is drained, or removed, a daemon is degraded: it serves nothing, and nothing is on its way."""
    rig = await rigs.start(sim_model())
    assert rig.daemon.status().state == "ready"
    await rig.control.post("/v1/control/replicas/toy-v1-0/drain")
    assert rig.daemon.status().state == "degraded"
    await rig.control.delete("/v1/control/replicas/toy-v1-0")
    status = await rig.until(lambda s: not s.replicas)
    assert status.state == "degraded"
    assert "an operator must act" in (await rig.http.get("/readyz")).json()["error"]["message"]


async def test_loading_replicas_are_not_selected_and_their_requests_wait(rigs: Rigs) -> None:
    """A request that arrives while its only replica loads waits, and is served once that is ready. (Fault: it is selected.)"""
    law = SimSettings(overhead_ms=1.0, per_token_ms=0.0, load_ms=150.0)
    rig = await rigs.start(sim_model(sim=law), settle=False)
    assert rig.daemon.status().state == "starting"
    assert "retry later" in (await rig.http.get("/readyz")).json()["error"]["message"]
    early = await rig.open(asked(tokens=3))
    assert rig.daemon.status().queued == 1
    assert len((await read(early)).split()) == 3
    assert rig.daemon.status().state == "ready"


async def test_a_history_that_cannot_be_written_never_stops_serving(rigs: Rigs) -> None:
    """With a directory where the history file belongs, requests are served and `status` says why rows are lost. (Fault: the database is
    gone and serving stops.)"""
    state_dir = rigs.new_state_dir()
    (state_dir / "history.db").mkdir()
    rig = await rigs.start(sim_model(), state_dir=state_dir)
    text, _ = await rig.answer(asked(tokens=4))
    assert len(text.split()) == 4
    await rig.until(lambda s: bool(s.store.degraded))
    assert b"halcyon_store_degraded 1.0" in rig.daemon.fleet.metrics.text()


def workers_left() -> list[int]:
    """Pids of this process's workers, dead ones that were not reaped included."""
    return [process.pid for process in psutil.Process().children() if is_worker(process)]


def is_worker(process: psutil.Process) -> bool:
    """A zombie has no command line any more."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or "halcyon.worker" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


async def ended(rig: Rig) -> int:
    """The daemon's exit code, once it may end."""
    async with asyncio.timeout(PATIENCE_S):
        return int(await rig.daemon.ended())
