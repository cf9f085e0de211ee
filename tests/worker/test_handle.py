"""The daemon's handle on real processes: frames in order, one loss whatever happens, nobody left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

import psutil
import pytest
import uvloop
from worker_rig import TIMEOUT_S, HandledWorker, all_end, sequence, sim_model, submit

from halcyon.clock import NS_PER_S
from halcyon.config.settings import SimSettings
from halcyon.errors import WorkerFailure
from halcyon.wire.frames import Cancel, Heartbeat, Iteration, Ready, Stage
from halcyon.worker.health import HealthLimits
from halcyon.worker.link import WorkerBusy

Launch = Callable[..., Awaitable[HandledWorker]]
SLOW = SimSettings(overhead_ms=60_000.0)

PEER = """
import os, socket, subprocess, sys, time
from halcyon.wire.frames import PROTOCOL, Hello, Ready, Stage
from halcyon.wire.framing import encode_frame
daemon = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
def say(*frames):
    daemon.sendall(b"".join(map(encode_frame, frames)))
ready = Ready(kind="batch", max_batch=1, max_context=1)
"""


def peer(script: str) -> tuple[str, ...]:
    """A worker of another make: `script` speaks for it through `say`, `daemon`, `ready`."""
    return (sys.executable, "-P", "-c", PEER + script)


async def test_frames_arrive_in_order(launch: Launch) -> None:
    """Stages, then Ready, then iterations numbered without a gap."""
    worker = await launch(sim_model())
    kinds = []
    async with asyncio.timeout(TIMEOUT_S):
        while Ready not in kinds:
            kinds.append(type(await worker.frames.get()))
    assert [kind for kind in kinds if kind is not Heartbeat] == [Stage, Ready]
    worker.handle.send(submit(sequence("a/0", tokens=20)))
    assert [(await worker.next(Iteration)).number for _ in range(20)] == list(range(1, 21))


async def test_many_sequences_end_once_each(launch: Launch) -> None:
    """40 sequences in 40 submits, half of them cancelled: each ends exactly once."""
    worker = await launch(sim_model())
    await worker.ready()
    ids = [f"r{i}/0" for i in range(40)]
    for batch_id, name in enumerate(ids, start=1):
        worker.handle.send(submit(sequence(name, tokens=8), batch_id=batch_id))
    worker.handle.send(Cancel(tuple(ids[::2])))
    assert sorted((await worker.answers(40)).endings) == sorted(ids)


async def test_a_sigkilled_worker_is_lost_once_with_its_signal(launch: Launch) -> None:
    """Routing goes on to a dead worker: SIGKILL under load is reported at once, once, by name, and no frame comes after it."""
    worker = await launch(sim_model(SimSettings(overhead_ms=1.0)))
    await worker.ready()
    worker.handle.send(submit(*(sequence(f"r{i}/0", tokens=200) for i in range(8))))
    await worker.next(Iteration)
    os.kill(worker.handle.pid, signal.SIGKILL)
    assert await worker.loss() == ("it was killed by SIGKILL", None)
    assert worker.handle.exit_status == -signal.SIGKILL
    heard = worker.frames.qsize()
    worker.handle.send(submit(sequence("late/0")))  # silently nothing: the worker is lost
    await asyncio.sleep(0)
    assert worker.frames.qsize() == heard


async def test_a_crash_is_lost_with_its_status(launch: Launch) -> None:
    """A process that exits without a word is lost with its exit status."""
    worker = await launch(sim_model(SimSettings(fault="crash")))
    await worker.ready()
    worker.handle.send(submit(sequence("a/0")))
    assert await worker.loss() == ("it exited with status 1", None)


async def test_last_words_are_the_reason(launch: Launch) -> None:
    """A `Fatal` reaches `on_lost` whole, so that the supervisor knows whether a restart can help."""
    worker = await launch(sim_model(SimSettings(fault="oom")))
    await worker.ready()
    worker.handle.send(submit(sequence("a/0")))
    reason, fatal = await worker.loss()
    assert fatal is not None
    assert reason == fatal.message
    assert fatal.retryable


async def test_a_stopped_worker_is_lost_by_silence(launch: Launch) -> None:
    """One silent backend: SIGSTOP a worker; at the instant the watch names it is lost, killed although stopped, and gone."""
    worker = await launch(sim_model())
    await worker.ready()
    os.kill(worker.handle.pid, signal.SIGSTOP)
    while not worker.losses:  # heartbeats already under way may postpone the verdict
        worker.handle.check(now=worker.handle.next_check_ns())
        await asyncio.sleep(0)
    assert await worker.loss() == ("it was silent for 10 s", None)
    assert not psutil.pid_exists(worker.handle.pid)


async def test_a_hung_engine_is_lost_by_its_heartbeats(launch: Launch) -> None:
    """The process answers health and makes no token progress: it is lost by the progress bound while heartbeats arrive."""
    limits = HealthLimits(progress_ns=NS_PER_S // 5)
    worker = await launch(sim_model(SimSettings(fault="hang")), health=limits)
    await worker.ready()
    worker.handle.send(submit(sequence("a/0")))
    reason, _ = await worker.loss()
    assert reason == "it answers, but its engine made no progress for 0.2 s"


async def test_a_busy_worker_is_kept(launch: Launch) -> None:
    """The probe waits behind user work: 100 sequences queue on slots for 8, heartbeats keep coming, and nobody is lost."""
    worker = await launch(sim_model(SimSettings(overhead_ms=5.0)), health=HealthLimits(silence_ns=5 * NS_PER_S))
    await worker.ready()
    worker.handle.send(submit(*(sequence(f"r{i}/0", tokens=3) for i in range(100))))
    await worker.next(Heartbeat, lambda beat: beat.waiting > 50)
    assert len((await worker.answers(100)).endings) == 100
    assert worker.losses == []


async def test_a_worker_that_never_becomes_ready_is_lost(launch: Launch) -> None:
    """A worker that loads for ever is lost by the start bound."""
    worker = await launch(sim_model(SimSettings(load_ms=60_000.0)), health=HealthLimits(start_ns=NS_PER_S // 5))
    reason, _ = await worker.loss()
    assert reason == "it was not ready 0.2 s after its start"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("daemon.sendall(b'\\xff' * 64); time.sleep(60)", "it broke the frame protocol"),
        ("daemon.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n'); time.sleep(60)", "it broke the frame protocol"),
        ("daemon.sendall(b'\\0\\0\\0\\5abcde'); time.sleep(60)", "it broke the frame protocol"),
        ("say(Hello(pid=os.getpid(), protocol=PROTOCOL + 1)); time.sleep(60)", "it speaks protocol"),
        ("daemon.close(); time.sleep(60)", "it closed its connection"),
        ("sys.exit(7)", "it exited with status 7"),
    ],
    ids=["garbage", "another protocol's words", "a bad frame", "another version", "closed its end", "exit"],
)
async def test_a_peer_that_breaks_its_promise_is_lost(launch: Launch, script: str, reason: str) -> None:
    """Whatever a process does instead of serving: one loss with the reason, and the process is gone."""
    worker = await launch(sim_model(), program=peer(script))
    assert (await worker.loss())[0].startswith(reason)
    assert not psutil.pid_exists(worker.handle.pid)


async def test_what_is_not_read_is_bounded(launch: Launch) -> None:
    """A worker that does not read cannot eat the daemon: over the bound it takes no more work, cancellations still go, `send` never waits,
    and when it has read nothing for its time it is lost."""
    worker = await launch(
        sim_model(),
        program=peer("say(Hello(pid=os.getpid(), protocol=PROTOCOL), ready); time.sleep(60)"),
        max_unread_bytes=4_000_000,
        health=HealthLimits(silence_ns=300_000_000),
    )
    await worker.ready()
    assert 3 <= _taken_before_busy(worker) <= 5  # up to four in the buffer, one in the kernel
    assert not worker.losses
    worker.handle.send(Cancel(("a/0",)))
    assert (await worker.loss())[0].startswith(("it was silent", "it has not read"))


def _taken_before_busy(worker: HandledWorker) -> int:
    """How many orders of a megabyte it takes."""
    for taken in range(100):
        try:
            worker.handle.send(submit(sequence("a/0", text="x" * 1_000_000)))
        except WorkerBusy:
            return taken
    raise AssertionError("it takes everything")


async def test_ends_that_were_asked_for_are_told_apart(launch: Launch) -> None:
    """`stop`, `terminate` and `kill` each end in one loss that says it was wanted."""
    statuses = []
    for verb in ("stop", "terminate", "kill"):
        worker = await launch(sim_model())
        await worker.ready()
        getattr(worker.handle, verb)()
        assert await worker.loss() == ("it was asked to end", None)
        statuses.append(worker.handle.exit_status)
    assert statuses == [0, -signal.SIGTERM, -signal.SIGKILL]


async def test_sigkill_follows_where_sigterm_is_ignored(launch: Launch) -> None:
    """A worker that ignores SIGTERM is killed after the grace."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); say(ready); time.sleep(60)"
    worker = await launch(sim_model(), program=peer(deaf))
    await worker.ready()
    worker.handle.terminate(grace_s=0.05)
    await worker.loss()
    assert worker.handle.exit_status == -signal.SIGKILL


@pytest.mark.parametrize("end", ["killed", "died"])
async def test_what_a_worker_started_ends_with_it(launch: Launch, end: str) -> None:
    """The manager dies and its children keep the GPU: a worker's own children end with it, killed or dead by itself."""
    script = (
        "child = subprocess.Popen(['sleep', '600']); say(Hello(pid=os.getpid(), protocol=PROTOCOL), Stage('loading', str(child.pid)));"
        "time.sleep(600)"
    )
    worker = await launch(sim_model(), program=peer(script))
    child = int((await worker.next(Stage)).detail)
    if end == "killed":
        worker.handle.kill()
    else:
        os.kill(worker.handle.pid, signal.SIGKILL)
    await worker.loss()
    assert all_end([child], within_s=TIMEOUT_S)


async def test_a_program_that_cannot_run_is_an_error_of_launch(launch: Launch) -> None:
    """No process, no handle: `launch` raises and names the replica; no descriptor is left open."""
    before = psutil.Process().num_fds()
    with pytest.raises(WorkerFailure, match="m/v1/0"):
        await launch(sim_model(), program=("/nonexistent/python",))
    assert psutil.Process().num_fds() == before


async def test_a_cancelled_launch_leaves_no_process() -> None:
    """`CancelledError` in the middle of a launch: the process is killed and reaped, and nobody is told of a worker it never had."""
    worker = HandledWorker()
    before = set(psutil.pids())
    launching = asyncio.create_task(worker.launch(sim_model()))
    await asyncio.sleep(0)
    started = [child.pid for child in psutil.Process().children() if child.pid not in before]
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert len(started) == 1
    async with asyncio.timeout(TIMEOUT_S):
        while psutil.pid_exists(started[0]):  # noqa: ASYNC110 - nobody is told of this end, so there is no event to wait for
            await asyncio.sleep(0)
    assert (worker.losses, worker.frames.qsize()) == ([], 0)


@pytest.mark.parametrize("script", ["sys.exit(0)", "daemon.sendall(b'\\xff' * 64); time.sleep(60)"], ids=["dead", "broken"])
async def test_no_callback_comes_before_the_handle(launch: Launch, script: str) -> None:
    """Even a worker that is lost at once is lost after `launch` has returned, so that its owner knows which one it was."""
    worker = await launch(sim_model(), program=peer(script))
    assert worker.losses == []
    await worker.loss()


async def test_workers_leave_no_descriptor_and_no_zombie(launch: Launch) -> None:
    """A worker restarted for days costs nothing: after launch and loss the daemon has as many descriptors and children as before."""
    before = (psutil.Process().num_fds(), len(psutil.Process().children()))
    for _ in range(3):
        worker = await launch(sim_model())
        await worker.ready()
        worker.handle.kill()
        await worker.loss()
    await asyncio.sleep(0)
    assert (psutil.Process().num_fds(), len(psutil.Process().children())) == before


async def test_a_frame_too_large_is_the_senders_error(launch: Launch) -> None:
    """A frame over the limit is refused to its sender; the worker and its other requests live on."""
    worker = await launch(sim_model())
    await worker.ready()
    with pytest.raises(WorkerFailure, match="limit"):
        worker.handle.send(submit(sequence("a/0", text="x" * (65 * 1024 * 1024))))
    worker.handle.send(submit(sequence("b/0")))
    assert (await worker.answers(1)).endings == ["b/0"]


def test_the_handle_works_on_uvloop() -> None:
    """The daemon's own loop serves, loses and reaps a worker as asyncio's does."""

    async def life() -> tuple[str, int | None]:
        worker = await HandledWorker().launch(sim_model())
        await worker.ready()
        worker.handle.send(submit(sequence("a/0")))
        assert (await worker.answers(1)).endings == ["a/0"]
        os.kill(worker.handle.pid, signal.SIGKILL)
        return (await worker.loss())[0], worker.handle.exit_status

    assert uvloop.run(life()) == ("it was killed by SIGKILL", -signal.SIGKILL)


def test_a_killed_daemon_leaves_no_worker() -> None:
    """`kill -9 halcyond` with three workers under load: all gone within 2 s, checked by pid."""
    script = (
        "import asyncio\nfrom worker_rig import HandledWorker, sequence, sim_model, submit\n"
        "async def main():\n"
        "    workers = [await HandledWorker().launch(sim_model()) for _ in range(3)]\n"
        "    for worker in workers:\n"
        "        await worker.ready()\n"
        "        worker.handle.send(submit(*(sequence(f'r{i}/0', tokens=200) for i in range(20))))\n"
        "    print(*(worker.handle.pid for worker in workers), flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    daemon = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    with daemon:
        assert daemon.stdout is not None
        workers = [int(pid) for pid in daemon.stdout.readline().split()]
        assert len(workers) == 3
        daemon.kill()
        assert all_end(workers, within_s=2.0)
