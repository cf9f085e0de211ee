"""What was reported as committed survives the death of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from halcyon.store.history import Store

WAIT_S = 30.0

PROGRAM = """
import signal, sys
from pathlib import Path
from halcyon.store.history import Store
from halcyon.store.rows import RegistrationRow, RequestRow

store = Store.open(Path(sys.argv[1]), max_rows=1000, max_days=30)
for i in range(200):
    store.record_request(RequestRow(request_id=f"r{i}", at=2e9, tenant="", model="m", version="v1", endpoint="chat", outcome="ok"))
store.register(RegistrationRow(replica_id="m-v1-1", at=2e9, model="m", version="v1", url="http://a/v1")).result(30)
for i in range(200, 5000):
    store.record_request(RequestRow(request_id=f"r{i}", at=2e9, tenant="", model="m", version="v1", endpoint="chat", outcome="ok"))
print("committed", flush=True)
signal.pause()
"""


def test_committed_rows_survive_kill_9(open_store: Callable[..., Store], path: Path) -> None:
    """SIGKILL right after a commit was reported, in the middle of writing more: all 200 rows and the registration are there after
    a restart, the file is sound, and nothing is set aside."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "committed\n"
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(WAIT_S) == -signal.SIGKILL
    process.stdout.close()
    store = open_store()
    store.commit_now().result(WAIT_S)
    ids = {k.row.request_id for k in store.queries.requests(limit=10_000)}
    assert {f"r{i}" for i in range(200)} <= ids
    assert [r.replica_id for r in store.queries.registrations()] == ["m-v1-1"]
    assert store.status().set_aside == ""
