"""The left-overs of a daemon that died: found by a note it kept, and ended without ever harming a stranger.

A worker ends with its daemon by itself; this is the second line. The note names each worker by pid *and* start (boot id and start tick,
so a recycled pid does not match) and the process must still run `halcyon.worker`. Only then is its whole session killed.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path

import msgspec
import psutil

from halcyon.clock import NS_PER_S, now_ns

_NOTE = "workers.json"
_COMMAND = "halcyon.worker"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 22  # of /proc/PID/stat, as proc(5) counts
_GONE_TIMEOUT_NS = 2 * NS_PER_S


class LiveWorker(msgspec.Struct, frozen=True):
    """One worker as the note names it. `start` is opaque: equal only for the same process of the same boot."""

    pid: int
    start: str


def identify(pid: int) -> LiveWorker | None:
    """The process as it is now; `None` if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return None
    after_name = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets; the third field follows it
    return LiveWorker(pid, f"{boot}:{after_name[_START_FIELD - 3]}")


def record(state_dir: Path, pids: Iterable[int]) -> None:
    """Replaces the note by these workers; call it after every launch and every end. Those already gone are left out.

    Raises:
        OSError: the note cannot be written; the one before it stands.
    """
    workers = [worker for pid in pids if (worker := identify(pid)) is not None]
    fresh = state_dir / f"{_NOTE}.{os.getpid()}"
    try:
        fresh.write_bytes(msgspec.json.encode(workers))
        fresh.replace(state_dir / _NOTE)
    except OSError:
        fresh.unlink(missing_ok=True)  # on a full disk every start would leave another one
        raise


def reap(state_dir: Path) -> list[int]:
    """Kills what the note names and is still there, waits for it, removes the note. Returns the pids killed.

    A missing or unreadable note means nothing to do. Blocks for two seconds at most.
    """
    note = state_dir / _NOTE
    ends = [end for worker in _read(note) if (end := _kill_if_ours(worker)) is not None]
    _wait_for([descriptor for _, descriptor in ends])
    note.unlink(missing_ok=True)
    return [pid for pid, _ in ends]


def _read(note: Path) -> list[LiveWorker]:
    try:
        return msgspec.json.decode(note.read_bytes(), type=list[LiveWorker])
    except (OSError, msgspec.DecodeError):
        return []


def _kill_if_ours(worker: LiveWorker) -> tuple[int, int] | None:
    """Kills the worker's session; returns its pid and a descriptor that becomes readable at its end. `None` if it is not ours or gone."""
    try:
        descriptor = os.pidfd_open(worker.pid)  # before the look: from here on the pid cannot change hands unseen
    except OSError:
        return None
    if _is_ours(worker) and _kill_session(worker.pid):
        return worker.pid, descriptor
    os.close(descriptor)
    return None


def _is_ours(worker: LiveWorker) -> bool:
    if identify(worker.pid) != worker:
        return False
    try:
        return _COMMAND in psutil.Process(worker.pid).cmdline()
    except psutil.Error:
        return False


def _kill_session(pid: int) -> bool:
    """The whole group when the process leads one (ours do), else the process alone. False if it was faster."""
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _wait_for(descriptors: list[int]) -> None:
    """Until each process has ended, within the timeout over all; closes the descriptors."""
    due_ns = now_ns() + _GONE_TIMEOUT_NS
    for descriptor in descriptors:
        select.select([descriptor], [], [], max(0, due_ns - now_ns()) / NS_PER_S)
        os.close(descriptor)
