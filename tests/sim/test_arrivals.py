"""Traces have the rate and the burstiness they are asked for, and do not depend on the interpreter's hash seed."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from itertools import pairwise

import pytest

from halcyon.sim.arrivals import Gaps, Workload, seeded


@pytest.mark.parametrize(
    ("gaps", "shape", "spread"), [("exponential", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5), ("weibull", 0.6, 1.76)]
)
def test_gaps_have_their_mean_and_spread(gaps: Gaps, shape: float, spread: float) -> None:
    """100 a second within 5 % and the law's coefficient of variation within 10 %."""
    arrivals = seeded(Workload(rate_per_s=100, horizon_s=300, gaps=gaps, gap_shape=shape), 3)
    between = [(b.arrived_ns - a.arrived_ns) / 1e9 for a, b in pairwise(arrivals)]
    assert len(arrivals) / 300 == pytest.approx(100, rel=0.05)
    assert statistics.pstdev(between) / statistics.fmean(between) == pytest.approx(spread, rel=0.10)


def test_sizes_and_cohorts_are_those_of_the_workload() -> None:
    """Median e^4.8 = 121.5 tokens within 3 %, 30 % urgent within 1.5 points, none outside 16…4096."""
    arrivals = seeded(Workload(rate_per_s=200), 5)
    sizes = [arrival.tokens for arrival in arrivals]
    assert statistics.median(sizes) == pytest.approx(121.5, rel=0.03)
    assert sum(arrival.urgent for arrival in arrivals) / len(arrivals) == pytest.approx(0.30, abs=0.015)
    assert 16 <= min(sizes) <= max(sizes) <= 4096


def test_figures_do_not_depend_on_the_hash_seed() -> None:
    """The bench prints the same bytes under different PYTHONHASHSEEDs: nothing is decided by the order of a set."""
    outputs = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "halcyon.sim.bench", "batching", "fairness", "--quick", "--json", "--rate", "260"]
        done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
