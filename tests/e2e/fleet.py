"""A real daemon with real worker processes in a state directory of its own, driven as people drive it: through `halcyon` and HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

START_TIMEOUT_S = 600


def halcyon(*arguments: str, state_dir: Path, timeout: float = START_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Runs the CLI to its end in a pipe, as a script would."""
    environment = {**os.environ, "HALCYON_STATE_DIR": str(state_dir)}
    return subprocess.run(
        [sys.executable, "-m", "halcyon.cli", *arguments], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


@dataclass
class RunningFleet:
    """One daemon started by `halcyon up`. `stop` ends it and asserts that nothing of it is left."""

    state_dir: Path
    fleet_path: Path
    listen: str
    pid: int

    @classmethod
    def start(cls, fleet_toml: str) -> RunningFleet:
        """Writes the fleet file, runs `halcyon up`, and returns when every replica is ready."""
        state_dir = Path(tempfile.mkdtemp(prefix="hal-", dir="/tmp"))
        fleet_path = state_dir / "fleet.toml"
        fleet_path.write_text(fleet_toml)
        up = halcyon("up", "--fleet", str(fleet_path), "--json", state_dir=state_dir)
        if up.returncode:
            halcyon("down", "--now", state_dir=state_dir, timeout=60)
            raise AssertionError(f"halcyon up exited with {up.returncode}\n{up.stdout}\n{up.stderr}")
        status = json.loads(up.stdout)
        return cls(state_dir, fleet_path, status["listen"], status["pid"])

    @property
    def url(self) -> str:
        """Where clients reach the HTTP API."""
        return f"http://{self.listen}"

    def up(self) -> dict[str, Any]:
        """`halcyon up` again, after the daemon has gone."""
        up = halcyon("up", "--fleet", str(self.fleet_path), "--json", state_dir=self.state_dir)
        assert up.returncode == 0, f"{up.stdout}\n{up.stderr}"
        status: dict[str, Any] = json.loads(up.stdout)
        self.pid, self.listen = status["pid"], status["listen"]
        return status

    def status(self) -> dict[str, Any]:
        """`halcyon status --json`."""
        result = halcyon("status", "--json", state_dir=self.state_dir)
        assert result.returncode == 0, result.stderr
        status: dict[str, Any] = json.loads(result.stdout)
        return status

    def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics` by its whole name with labels."""
        samples = {}
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def worker_pids(self) -> list[int]:
        """Process ids of all local workers now."""
        return [replica["pid"] for replica in self.status()["replicas"] if replica["pid"]]

    def kill(self) -> list[psutil.Process]:
        """`kill -9` of the daemon; returns its workers as they were."""
        workers = [psutil.Process(pid) for pid in self.worker_pids()]
        daemon = psutil.Process(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        psutil.wait_procs([daemon], timeout=10)
        return workers

    def stop(self) -> None:
        """Ends daemon and workers and removes the state directory; fails if any process survives."""
        processes = [psutil.Process(pid) for pid in (self.pid, *self._recorded_workers()) if psutil.pid_exists(pid)]
        if psutil.pid_exists(self.pid):
            halcyon("down", "--now", state_dir=self.state_dir, timeout=60)
        _, alive = psutil.wait_procs(processes, timeout=20)
        for process in alive:
            process.kill()
        shutil.rmtree(self.state_dir, ignore_errors=True)
        assert not alive, f"still alive after `halcyon down --now`: {alive}"

    def _recorded_workers(self) -> list[int]:
        result = halcyon("status", "--json", state_dir=self.state_dir)
        return [r["pid"] for r in json.loads(result.stdout)["replicas"] if r["pid"]] if result.returncode == 0 else []
