"""An open-loop generator against a running daemon, beside what the simulator says of the same trace.

    halcyon up --fleet examples/simulated.toml
    python -m bench.live [--url URL] [--fleet FILE] [--load X …] [--seconds N] [--seed N] [--json]

The trace is sent at its own instants whatever comes back (open loop), to the first model of the fleet file, which must be a simulated
batch device. Load 1.0 is the rate at which the mean request uses up all devices with full batches. A request is good when the daemon
answered it whole within its deadline; the daemon ends what is not. `late_at_client` counts those that nevertheless came late by the
generator's clock, `sent_late_ms` says how late the generator was itself. The simulated figure drives the same control plane with a heap.
Count and time are bounded: at most `MOST_REQUESTS`, and nothing is waited for longer than its deadline and `GRACE_S`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from halcyon.clock import NS_PER_MS, NS_PER_S, now_ns
from halcyon.config.load import load_fleet
from halcyon.config.settings import ModelSettings
from halcyon.core.batching.settings import BatchSettings
from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.rollout.versions import ModelVersions
from halcyon.sim.arrivals import Arrival, Workload, seeded
from halcyon.sim.devices import BatchDevice, BatchLaw
from halcyon.sim.fleet import SimulatedFleet

MOST_REQUESTS = 20_000
GRACE_S = 10.0
BYTES_PER_TOKEN = 4
SIZE_MEAN, SIZE_SIGMA = 6.5, 0.5
"""Of the logarithm of tokens: some 750 tokens a request, so that the devices are the bottleneck and not the machine that simulates them."""
URGENT_MS, RELAXED_MS = 450, 900


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One load. Rates per second of the trace."""

    load: float
    offered_per_s: float
    requests: int
    live_goodput_per_s: float
    simulated_goodput_per_s: float
    difference: float
    refused: dict[str, int]
    late_at_client: int
    sent_late_ms: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs every load; exit status 1 when a live figure strays from the simulated one by more than `--within`."""
    options = _parser().parse_args(arguments)
    model = load_fleet(options.fleet).models[0]
    if model.runtime != "sim" or model.sim.mode != "batch":
        print(f"{options.fleet}: the first model is {model.name}; expected a simulated batch device", file=sys.stderr)
        return 2
    outcomes = [_measure(model, load, options) for load in options.load]
    if options.json:
        print(json.dumps({"suite": "live", "seed": options.seed, "loads": [asdict(outcome) for outcome in outcomes]}, indent=2))
    else:
        for outcome in outcomes:
            print(
                f"load {outcome.load}: {outcome.requests} requests at {outcome.offered_per_s:.1f}/s, "
                f"live {outcome.live_goodput_per_s:.1f}/s, simulated {outcome.simulated_goodput_per_s:.1f}/s "
                f"({outcome.difference:+.1%}), refused {outcome.refused}, "
                f"{outcome.late_at_client} late at the client, sent {outcome.sent_late_ms:.1f} ms late at worst"
            )
    return 0 if all(abs(outcome.difference) <= options.within for outcome in outcomes) else 1


def capacity_per_s(model: ModelSettings, mean_tokens: float) -> float:
    """Requests a second that all devices together can do with full batches."""
    law = model.sim
    speed = sum(speed_of(model, index) for index in range(model.replicas))
    return 1000.0 * speed / (law.per_token_ms * mean_tokens + law.overhead_ms / model.max_batch)


def speed_of(model: ModelSettings, index: int) -> float:
    """Of one replica; the last one serves the rest."""
    return model.sim.speed[min(index, len(model.sim.speed) - 1)]


def trace_at(model: ModelSettings, load: float, *, seconds: float, seed: int) -> list[Arrival]:
    """Arrivals at that share of capacity."""
    sample = seeded(Workload(rate_per_s=1000.0, horizon_s=2.0, size_mean=SIZE_MEAN, size_sigma=SIZE_SIGMA), seed)
    mean_tokens = sum(arrival.tokens for arrival in sample) / len(sample)
    workload = Workload(
        rate_per_s=load * capacity_per_s(model, mean_tokens),
        horizon_s=seconds,
        size_mean=SIZE_MEAN,
        size_sigma=SIZE_SIGMA,
        urgent_ms=URGENT_MS,
        relaxed_ms=RELAXED_MS,
    )
    return seeded(workload, seed)[:MOST_REQUESTS]


def simulated_good(model: ModelSettings, arrivals: list[Arrival], *, seed: int) -> int:
    """Requests on time in the simulator."""
    serves, law = (model.name, model.version), model.sim
    settings = ControlSettings(
        models=(ModelVersions(model.name, (model.version,)),),
        batching={serves: BatchSettings(policy=model.policy, objective=model.objective)},
    )
    devices = {
        f"r{index}": BatchDevice(
            BatchLaw(
                overhead_ms=law.overhead_ms / speed_of(model, index),
                per_token_ms=law.per_token_ms / speed_of(model, index),
                jitter=law.jitter,
            ),
            seed + index,
        )
        for index in range(model.replicas)
    }
    fleet = SimulatedFleet(ControlPlane(settings, rng=random.Random(seed)), serves, devices, max_batch=model.max_batch)
    fleet.run(arrivals)
    return sum(fleet.finished_ns.get(str(arrival.index), arrival.deadline_ns + 1) <= arrival.deadline_ns for arrival in arrivals)


class Generator:
    """Sends one trace and counts what comes back."""

    def __init__(self, url: str, model: ModelSettings) -> None:
        self._url = f"{url}/v1/completions"
        self._model = model
        self.good = 0
        self.late_at_client = 0
        self.refused: Counter[str] = Counter()
        self.sent_late_ns = 0

    async def run(self, arrivals: list[Arrival]) -> None:
        """Every arrival at its instant from now."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
            start_ns = now_ns() + 100 * NS_PER_MS
            for arrival in arrivals:
                due_ns = start_ns + arrival.arrived_ns
                await asyncio.sleep(max(0, due_ns - now_ns()) / NS_PER_S)
                self.sent_late_ns = max(self.sent_late_ns, now_ns() - due_ns)
                group.create_task(self._send(session, arrival, due_ns))

    async def _send(self, session: aiohttp.ClientSession, arrival: Arrival, due_ns: int) -> None:
        prompt = f"{arrival.index} ".ljust(BYTES_PER_TOKEN * (arrival.tokens - 1), "x")
        body = {"model": self._model.name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        headers = {"x-halcyon-deadline-ms": str(arrival.span_ns // NS_PER_MS)}
        timeout = aiohttp.ClientTimeout(total=arrival.span_ns / NS_PER_S + GRACE_S)
        async with session.post(self._url, json=body, headers=headers, timeout=timeout) as response:
            answer = await response.json()
        if response.status == 200:
            self.good += 1
            self.late_at_client += now_ns() > due_ns + arrival.span_ns
        else:
            self.refused[answer["error"]["code"]] += 1


def _measure(model: ModelSettings, load: float, options: argparse.Namespace) -> Outcome:
    arrivals = trace_at(model, load, seconds=options.seconds, seed=options.seed)
    simulated = simulated_good(model, arrivals, seed=options.seed)
    generator = Generator(options.url, model)
    asyncio.run(generator.run(arrivals))
    return Outcome(
        load=load,
        offered_per_s=len(arrivals) / options.seconds,
        requests=len(arrivals),
        live_goodput_per_s=generator.good / options.seconds,
        simulated_goodput_per_s=simulated / options.seconds,
        difference=generator.good / max(1, simulated) - 1.0,
        refused=dict(generator.refused),
        late_at_client=generator.late_at_client,
        sent_late_ms=generator.sent_late_ns / NS_PER_MS,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Open-loop load on a running daemon, beside the simulator's figure for the same trace.")
    parser.add_argument("--url", default="http://127.0.0.1:8765", help="where the daemon listens")
    parser.add_argument("--fleet", type=Path, default=Path("examples/simulated.toml"), help="the fleet file it was started with")
    parser.add_argument("--load", type=float, nargs="+", default=[0.9, 1.2], help="shares of capacity")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each trace")
    parser.add_argument("--seed", type=int, default=7, help="of the trace")
    parser.add_argument("--within", type=float, default=0.05, help="largest difference from the simulated figure that counts as the same")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
