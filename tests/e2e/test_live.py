"""The running daemon does what the simulator says it will."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fleet import RunningFleet

ROOT = Path(__file__).resolve().parent.parent.parent
SIMULATED = ROOT / "examples" / "simulated.toml"


@pytest.mark.slow
def test_live_goodput_is_that_of_the_simulator() -> None:
    """At 0.9 of capacity the example fleet keeps at least 90 % of the simulated goodput of the same trace; quiet machines come within 5 %.

    Nothing is lost: requests answered and refused are all that were sent.
    """
    fleet = RunningFleet.start(SIMULATED.read_text().replace("127.0.0.1:8765", "127.0.0.1:0"))
    try:
        command = [sys.executable, "-m", "bench.live", "--url", fleet.url, "--load", "0.9", "--seconds", "10", "--within", "1", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    finally:
        fleet.stop()
    (outcome,) = json.loads(ran.stdout)["loads"]
    assert outcome["difference"] > -0.10
    assert round(outcome["live_goodput_per_s"] * 10) + sum(outcome["refused"].values()) == outcome["requests"]
