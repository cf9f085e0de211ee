"""The same events give the same orders, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, random
from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.events import *
from halcyon.core.actions import Dispatch
from halcyon.core.request import Request
from halcyon.core.rollout.versions import ModelVersions
from halcyon.core.simulated_answer import SimulatedAnswer

models = (ModelVersions("m", ("v1", "v2")), ModelVersions("k", ("v1",)))
plane = ControlPlane(ControlSettings(models=models, max_queue=40), rng=random.Random(3))
dice, trace, running = random.Random(4), hashlib.sha256(), []
def tell(event, now):
    for action in plane.handle(event, now=now):
        trace.update(repr(action).encode())
        if isinstance(action, Dispatch):
            running.extend((request_id, action.replica_id) for request_id in action.request_ids)
for model, version in (("m", "v1"), ("m", "v2"), ("k", "v1")):
    for number in range(5):
        name = f"{model}-{version}-{number}"
        tell(ReplicaAdded(replica_id=name, model=model, version=version, kind="continuous", max_batch=3), 0)
        tell(ReplicaReady(replica_id=name, kind="continuous", max_batch=3), 0)
for number in range(1500):
    model, version = dice.choice((("m", "v1"), ("m", "v2"), ("k", "v1")))
    tell(RequestArrived(Request(request_id=f"r{number}", model=model, version=version, arrived_ns=number, prompt_tokens=1,
         deadline_ns=number + 50, sequences=dice.choice((1, 1, 3)), lane=dice.choice(("interactive", "bulk")))), number)
    if running and dice.random() < 0.8:
        request_id, replica_id = running.pop(dice.randrange(len(running)))
        tell(dice.choice((
            SequencesFinished(request_id=request_id, replica_id=replica_id, count=3, output_tokens=3),
            RequestFailed(request_id=request_id, replica_id=replica_id, code="x", message="", retryable=True, busy=number % 2 == 0),
            ClientGone(request_id),
            ReplicaLost(replica_id, ""),
            ReplicaReady(replica_id=replica_id, kind="continuous", max_batch=3),
        )), number)
trace.update(SimulatedAnswer(b"x", version="v1").text(50).encode())
print(trace.hexdigest(), plane.totals())
"""


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_the_hash_seed_does_not_decide(hash_seed: str) -> None:
    """3,000 events under other hash seeds give byte for byte the same orders: nothing iterates over a set."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", hash_seed)
    ]
    assert runs[0] == runs[1]
    assert "finished=" in runs[0]
