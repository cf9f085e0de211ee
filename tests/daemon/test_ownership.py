"""One daemon per state directory and socket; nothing that is not a dead daemon's socket is ever removed."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import psutil
import pytest
from daemon_rig import Rigs, sim_model

from halcyon.config.settings import DaemonSettings, FleetSettings, Limits
from halcyon.daemon import control_socket
from halcyon.daemon.app import Daemon, DaemonOptions
from halcyon.daemon.lock import InstanceLock
from halcyon.errors import ConfigError, DaemonAlreadyRunning


def options(state_dir: Path, *, listen: str = "127.0.0.1:0") -> DaemonOptions:
    """A daemon of one simulated model."""
    settings = FleetSettings(daemon=DaemonSettings(), models=(sim_model(),))
    return DaemonOptions(settings=settings, fleet="test.toml", state_dir=state_dir, listen=listen)


def test_a_stale_socket_is_replaced(rigs: Rigs) -> None:
    """A socket nobody listens on is unlinked and bound anew, mode 0600. (Fault: a stale Unix socket blocks the start.)"""
    path = rigs.new_state_dir() / "halcyon.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    claimed = control_socket.claim(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    claimed.listener.close()
    claimed.remove()
    assert not path.exists()


def test_a_live_socket_is_never_taken(rigs: Rigs) -> None:
    """A socket somebody answers on stays, and the error says so. (Fault: a live owner is evicted.)"""
    path = rigs.new_state_dir() / "halcyon.sock"
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(str(path))
        owner.listen()
        inode = path.stat().st_ino
        with pytest.raises(DaemonAlreadyRunning, match="answers on"):
            control_socket.claim(path)
        assert path.stat().st_ino == inode


@pytest.mark.parametrize("kind", ["file", "directory", "link to a file"])
def test_what_is_not_a_socket_is_never_removed(rigs: Rigs, kind: str) -> None:
    """A file, directory or link at the socket's path is left untouched and named. (Fault: a regular file is deleted.)"""
    path = rigs.new_state_dir() / "halcyon.sock"
    if kind == "directory":
        path.mkdir()
    else:
        target = path if kind == "file" else path.with_name("target")
        target.write_text("precious")
        if target != path:
            path.symlink_to(target)
    with pytest.raises(ConfigError, match="expected a socket"):
        control_socket.claim(path)
    assert path.is_dir() or path.read_text() == "precious"


def test_another_daemons_socket_is_left_at_the_end(rigs: Rigs) -> None:
    """A daemon whose socket was replaced by another's removes nothing at its end."""
    path = rigs.new_state_dir() / "halcyon.sock"
    first = control_socket.claim(path)
    first.listener.close()
    second = control_socket.claim(path)
    first.remove()
    assert path.exists()
    second.listener.close()


def test_the_lock_names_its_owner_and_ends_with_it(rigs: Rigs) -> None:
    """A held lock is refused with the owner's pid; a released one, with any pid left in the file, is free."""
    path = rigs.new_state_dir() / "daemon.lock"
    path.write_text("4194304\n")
    held = InstanceLock.acquire(path)
    with pytest.raises(DaemonAlreadyRunning, match=f"pid {os.getpid()}"):
        InstanceLock.acquire(path)
    held.release()
    InstanceLock.acquire(path).release()


async def test_a_second_daemon_is_refused_and_harms_nothing(rigs: Rigs) -> None:
    """A second start in the same state directory fails with exit code 5 and the pid; the first goes on serving."""
    rig = await rigs.start(sim_model())
    with pytest.raises(DaemonAlreadyRunning, match=str(os.getpid())) as refused:
        async with Daemon(options(rig.state_dir)):
            pass
    assert refused.value.exit_code == 5
    assert (await rig.control.get("/v1/control/status")).json()["state"] == "ready"
    assert (await rig.http.get("/readyz")).status_code == 200


async def test_a_taken_port_is_named_and_nothing_stays(rigs: Rigs) -> None:
    """A listen address in use is a ConfigError that names it; socket and lock of the failed start are free again. (Fault: port in use.)"""
    state_dir = rigs.new_state_dir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*another program"):
            async with Daemon(options(state_dir, listen=f"127.0.0.1:{port}")):
                pass
    assert not (state_dir / "halcyon.sock").exists()
    InstanceLock.acquire(state_dir / "daemon.lock").release()


async def test_a_name_is_bound_at_one_address(rigs: Rigs) -> None:
    """`localhost:0` opens one port, and says which: what is reported is all that is open."""
    state_dir = rigs.new_state_dir()
    async with Daemon(options(state_dir, listen="localhost:0")) as daemon:
        host, _, port = daemon.status().listen.rpartition(":")
        open_ports = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [(address.ip, address.port) for address in open_ports] == [(host.strip("[]"), int(port))]


async def test_liveness_is_told_over_the_bound_of_connections(rigs: Rigs) -> None:
    """With every place taken by idle connections `/healthz` and `/health` still say 200, everything else 503 with `Retry-After`. (Fault:
    liveness is slow under 1,000 streams and the supervisor kills the daemon.)"""
    bounded = DaemonSettings(limits=Limits(max_connections=5))
    rig = await rigs.start(sim_model(), daemon=bounded)
    host, _, port = rig.daemon.status().listen.rpartition(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    answers = [await rig.http.get(path) for path in ("/healthz", "/health", "/v1/models", "/healthz")]
    assert [answer.status_code for answer in answers] == [200, 200, 503, 200]
    assert int(answers[2].headers["Retry-After"]) >= 1
    for _, writer in idle:
        writer.close()


async def test_listening_beyond_loopback_needs_tenants(rigs: Rigs) -> None:
    """`--listen 0.0.0.0:0` without a tenant is refused before anything is opened."""
    state_dir = rigs.new_state_dir()
    with pytest.raises(ConfigError, match="tenant"):
        async with Daemon(options(state_dir, listen="0.0.0.0:0")):
            pass
    assert list(state_dir.iterdir()) == []


async def test_everything_written_is_the_owners_alone(rigs: Rigs) -> None:
    """The state directory is 0700; every file and socket in it is 0600, under the umask that `halcyond` sets."""
    before = os.umask(0o077)
    rig = await rigs.start(sim_model())
    os.umask(before)
    assert stat.S_IMODE(rig.state_dir.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in rig.state_dir.iterdir()}
    assert {"halcyon.sock", "halcyond.log", "history.db", "daemon.lock"} <= modes.keys()
    assert {name for name, others in modes.items() if others} == set()
