"""`halcyond` as a process: what a service manager, a starter and a shell see of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from daemon_rig import PATIENCE_S, Rigs

FLEET = """
[daemon]
listen = "127.0.0.1:0"
[[model]]
name = "toy"
runtime = "sim"
replicas = 2
[model.sim]
overhead_ms = 1.0
per_token_ms = 0.0
"""


class Process:
    """One `halcyond`, started with a pipe that says when its fleet has settled."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.fleet = state_dir / "fleet.toml"
        self.fleet.write_text(FLEET)

    async def start(self, *arguments: str, **environment: str) -> str:
        """Returns the settled state, '' when it ended before."""
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "halcyon.daemon", "--fleet", str(self.fleet), "--state-dir", str(self.state_dir)]
        self.process = await asyncio.create_subprocess_exec(
            *command,
            "--ready-fd",
            str(writer),
            *arguments,
            pass_fds=(writer,),
            env={**os.environ, **environment},
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(writer)
        told = asyncio.StreamReader()
        pipe = os.fdopen(reader, "rb")
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), pipe)
        async with asyncio.timeout(PATIENCE_S):
            line = await told.read()
        transport.close()
        return line.decode().strip()

    async def end(self) -> int:
        """Its exit status."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def log(self) -> list[dict[str, object]]:
        """Its log, line by line."""
        return [json.loads(line) for line in (self.state_dir / "halcyond.log").read_text().splitlines()]


@pytest.fixture
async def daemon(rigs: Rigs) -> AsyncIterator[Process]:
    """A process that is not left running."""
    process = Process(rigs.new_state_dir())
    yield process
    if process.process.returncode is None:
        process.process.kill()
        await process.process.wait()
    await process.process.communicate()


async def test_sigterm_ends_it_with_status_0_and_a_story_in_json(daemon: Process) -> None:
    """The starter's pipe says `ready`; SIGTERM ends the daemon with status 0; its log tells the way in events of one JSON object each."""
    assert await daemon.start() == "ready"
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.end() == 0
    told = [line["event"] for line in daemon.log()]
    assert [event for event in told if not str(event).startswith("replica_")] == [
        "listening",
        "settled",
        "signalled",
        "drain_began",
        "going_down",
    ]
    assert told.count("replica_ready") == 2
    assert all({"ts", "level", "event"} <= line.keys() for line in daemon.log())


async def test_kill_9_of_the_daemon_ends_its_workers_and_the_next_starts_at_once(daemon: Process) -> None:
    """After `kill -9` every worker is gone within 2 s, and the same state directory starts again. (Fault: the manager dies and its
    children keep the GPU; a stale socket blocks the start.)"""
    await daemon.start()
    workers = daemon.workers()
    assert len(workers) == 2
    daemon.process.kill()
    await daemon.end()
    _, alive = await asyncio.to_thread(psutil.wait_procs, workers, timeout=2.0)
    assert alive == []
    await daemon.process.communicate()
    assert await daemon.start() == "ready"
    daemon.process.send_signal(signal.SIGINT)
    assert await daemon.end() == 0


async def test_a_second_process_exits_5_and_a_bad_fleet_2(daemon: Process) -> None:
    """Exit codes of the design, each with one sentence on standard error, and the first daemon untouched."""
    await daemon.start()
    second = Process(daemon.state_dir)
    assert await second.start() == ""
    assert await second.end() == 5
    assert f"pid {daemon.process.pid}".encode() in (await second.process.communicate())[1]
    second.fleet.write_text("[daemon]\nlisen = 1\n")
    assert await second.start() == ""
    assert await second.end() == 2
    assert b"lisen" in (await second.process.communicate())[1]
    assert daemon.process.returncode is None


async def test_the_service_manager_hears_ready_watchdog_and_stopping(daemon: Process) -> None:
    """sd_notify: READY=1 once the fleet has settled, WATCHDOG=1 while the loop turns, STOPPING=1 at the end."""
    path = daemon.state_dir / "notify"
    heard: list[bytes] = []
    stopping = asyncio.Event()

    def hear() -> None:
        heard.append(manager.recv(4096))
        if heard[-1].startswith(b"STOPPING=1"):
            stopping.set()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        asyncio.get_running_loop().add_reader(manager, hear)
        assert await daemon.start(NOTIFY_SOCKET=str(path), WATCHDOG_USEC="40000") == "ready"
        daemon.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await stopping.wait()
        asyncio.get_running_loop().remove_reader(manager)
    assert any(message.startswith(b"READY=1") for message in heard)
    assert any(b"EXTEND_TIMEOUT_USEC" in message for message in heard)
    assert b"WATCHDOG=1" in heard
    assert await daemon.end() == 0


async def test_sighup_opens_the_log_anew(daemon: Process) -> None:
    """After the file was moved away and SIGHUP sent, new lines go to a new file of the old name."""
    await daemon.start()
    log = daemon.state_dir / "halcyond.log"
    log.rename(daemon.state_dir / "moved.log")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.process.send_signal(signal.SIGTERM)
    assert await daemon.end() == 0
    assert [line["event"] for line in daemon.log()][-1] == "going_down"
