"""`serving`: static batches against continuous batching over one device model, by offered load.

The capacity is measured first: everything at once through the continuous replica. Loads are shares of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from halcyon.sim.clock import NS_PER_MS, NS_PER_S
from halcyon.sim.continuous import IterationLaw, Prompt, ReplicaSize
from halcyon.sim.prompts import PromptWorkload, seeded
from halcyon.sim.static_batch import StaticBatching
from halcyon.sim.suites.generation import DIGITS, NOISE_SALT, Serving, judge, judge_replica, replay
from halcyon.sim.suites.steps import Progress, Steps, ignore

LOADS = (0.3, 0.6, 0.9, 1.2)
REQUESTS = (64, 400)
SEEDS = 3
STATIC_SIZES = (8, 32)
STATIC_WAIT_NS = 100 * NS_PER_MS
MAX_BATCH = 32
CONTINUOUS_ORDERS = ("fcfs", "deadline")
LAW = IterationLaw(jitter=0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One number of requests, load and seed."""

    requests: int
    load: float
    seed: int
    rate_per_s: float
    schedulers: dict[str, Serving]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The suite's result. `capacity_per_s` is measured."""

    suite: str
    seed: int
    capacity_per_s: float
    scenarios: tuple[Scenario, ...]


def run(seed: int, *, quick: bool, progress: Progress = ignore) -> Result:
    """Every number of requests at every load, three seeds each (one when quick)."""
    capacity = capacity_per_s(seed)
    scenarios: list[Scenario] = []
    steps = Steps(len(REQUESTS) * len(LOADS), progress)
    for requests in REQUESTS:
        for load in LOADS:
            steps.begin(f"{requests} requests at {load:g} of capacity")
            seeds = range(seed, seed + (1 if quick else SEEDS))
            scenarios += [_scenario(requests, load, each, round(load * capacity, DIGITS)) for each in seeds]
    return Result(suite="serving", seed=seed, capacity_per_s=capacity, scenarios=tuple(scenarios))


def capacity_per_s(seed: int) -> float:
    """Requests a second when the continuous replica is never short of work."""
    prompts = seeded(PromptWorkload(requests=max(REQUESTS), rate_per_s=0.0), seed)
    replica = replay(prompts, "fcfs", LAW, ReplicaSize(max_batch=MAX_BATCH), seed)
    return round(len(prompts) / (replica.now / NS_PER_S), DIGITS)


def mean(found: Sequence[Serving]) -> Serving:
    """The mean of every figure over several seeds; counts are rounded."""
    means = {field.name: sum(getattr(each, field.name) for each in found) / len(found) for field in fields(Serving)}
    return Serving(**means | {"given_up": round(means["given_up"])})


def _scenario(requests: int, load: float, seed: int, rate_per_s: float) -> Scenario:
    prompts = seeded(PromptWorkload(requests=requests, rate_per_s=rate_per_s), seed)
    found: dict[str, Serving] = {f"static_{size}": _static(prompts, size, seed) for size in STATIC_SIZES}
    for order in CONTINUOUS_ORDERS:
        replica = replay(prompts, order, LAW, ReplicaSize(max_batch=MAX_BATCH), seed)
        name = "continuous" if order == "fcfs" else f"continuous_{order}"
        found[name] = judge_replica(replica)
    return Scenario(requests=requests, load=load, seed=seed, rate_per_s=rate_per_s, schedulers=found)


def _static(prompts: list[Prompt], size: int, seed: int) -> Serving:
    static = StaticBatching(LAW, prompts, size=size, wait_ns=STATIC_WAIT_NS, seed=seed ^ NOISE_SALT)
    static.run()
    return judge(static.fates, ended_ns=static.now, slot_steps=static.slot_steps, useful_steps=static.useful_steps)
