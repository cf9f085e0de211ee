"""Left-over workers are found and killed; strangers never are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from worker_rig import BareWorker, configure, sim_model

from halcyon.wire.frames import Ready
from halcyon.worker.orphans import LiveWorker, identify, reap, record

NOTE = "workers.json"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is not ours to kill."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def orphan(bare: Callable[..., BareWorker]) -> BareWorker:
    """A live worker whose daemon, this test, plays dead."""
    worker = bare()
    worker.send(configure(sim_model()))
    worker.next(Ready)
    return worker


def test_a_left_over_worker_is_killed(orphan: BareWorker, tmp_path: Path) -> None:
    """The next start adopts nothing and reaps everything: the worker of the note is killed and the note is gone."""
    record(tmp_path, [orphan.process.pid])
    assert reap(tmp_path) == [orphan.process.pid]
    assert orphan.exit_status() == -signal.SIGKILL  # ended by then; its parent, this test, reaps it
    assert reap(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_no_worker_is_spared(orphan: BareWorker, stranger: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Pid and start match, but it does not run a worker: it lives on."""
    record(tmp_path, [stranger.pid, orphan.process.pid])
    assert reap(tmp_path) == [orphan.process.pid]
    assert stranger.poll() is None


def test_a_recycled_pid_is_spared(orphan: BareWorker, tmp_path: Path) -> None:
    """The pid matches and it is a worker, but another one, started at another instant: it lives on."""
    worker = identify(orphan.process.pid)
    assert worker is not None
    (tmp_path / NOTE).write_bytes(msgspec.json.encode([LiveWorker(worker.pid, worker.start + "0")]))
    assert reap(tmp_path) == []
    assert orphan.process.poll() is None


def test_a_dead_worker_is_nothing_to_do(orphan: BareWorker, tmp_path: Path) -> None:
    """A worker that ended by itself is not missed."""
    record(tmp_path, [orphan.process.pid])
    orphan.close()
    assert reap(tmp_path) == []


def test_workers_already_gone_are_not_noted(orphan: BareWorker, tmp_path: Path) -> None:
    """A pid that is dead by the time of the note does not enter it."""
    orphan.close()
    record(tmp_path, [orphan.process.pid])
    assert msgspec.json.decode((tmp_path / NOTE).read_bytes()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b'[{"pid": "x"}]', b"\xff\xfe", None], ids=repr)
def test_a_broken_note_does_not_stop_a_start(content: bytes | None, tmp_path: Path) -> None:
    """A torn, foreign or missing note means nothing to reap, and no error."""
    if content is not None:
        (tmp_path / NOTE).write_bytes(content)
    assert reap(tmp_path) == []
    assert not (tmp_path / NOTE).exists()


def test_a_note_is_replaced_whole(orphan: BareWorker, tmp_path: Path) -> None:
    """Each note replaces the last under its name; no half-written file is ever seen under it, and none is left."""
    record(tmp_path, [orphan.process.pid])
    record(tmp_path, [])
    assert [p.name for p in tmp_path.iterdir()] == [NOTE]
    assert reap(tmp_path) == []


def test_identity_is_stable_and_particular(orphan: BareWorker) -> None:
    """A process always has the same identity, and no two share one; a dead pid has none."""
    assert identify(orphan.process.pid) == identify(orphan.process.pid)
    assert identify(os.getpid()) != identify(orphan.process.pid)
    orphan.close()
    assert identify(orphan.process.pid) is None
    assert not psutil.pid_exists(orphan.process.pid)


def test_a_note_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    """Where the new note cannot take its place (here: something else stands there) the attempt leaves no file of its own behind."""
    (tmp_path / NOTE).mkdir()
    with pytest.raises(OSError, match=NOTE):
        record(tmp_path, [os.getpid()])
    assert [path.name for path in tmp_path.iterdir()] == [NOTE]
