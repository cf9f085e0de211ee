"""`fairness`: who waits for whom. A small batch, a quarter of the prompts long, and the orders compared by class.

Eight slots are the bottleneck at slightly more load than they bear, so a queue builds and the order decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halcyon.sim.clock import NS_PER_S
from halcyon.sim.continuous import Fate, IterationLaw, ReplicaSize
from halcyon.sim.prompts import PromptWorkload, seeded
from halcyon.sim.suites.generation import DIGITS, quantile_ms, replay
from halcyon.sim.suites.steps import Progress, Steps, ignore

REQUESTS = 400
QUICK_REQUESTS = 120
LOAD = 1.1
MAX_BATCH = 8
ORDERS = ("fcfs", "shortest_prompt", "shortest_prompt_aged", "deadline")
LAW = IterationLaw(jitter=0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Queue wait of one class: from arrival to the first prompt token processed, ms. `given_up` were refused instead."""

    requests: int
    given_up: int
    median_ms: float
    p95_ms: float
    longest_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The suite's result: waits by order and class."""

    suite: str
    seed: int
    rate_per_s: float
    orders: dict[str, dict[str, Waits]]


def run(seed: int, *, quick: bool, progress: Progress = ignore) -> Result:
    """The same trace under every order."""
    requests = QUICK_REQUESTS if quick else REQUESTS
    size = ReplicaSize(max_batch=MAX_BATCH)
    at_once = seeded(_workload(requests, 0.0), seed)
    capacity = requests / (replay(at_once, "fcfs", LAW, size, seed).now / NS_PER_S)
    rate = round(LOAD * capacity, DIGITS)
    prompts = seeded(_workload(requests, rate), seed)
    found: dict[str, dict[str, Waits]] = {}
    steps = Steps(len(ORDERS), progress)
    for order in ORDERS:
        steps.begin(order)
        fates = replay(prompts, order, LAW, size, seed).fates
        found[order] = {kind: _waits([fate for fate in fates if fate.prompt.kind == kind]) for kind in ("short", "long")}
    return Result(suite="fairness", seed=seed, rate_per_s=rate, orders=found)


def _workload(requests: int, rate_per_s: float) -> PromptWorkload:
    """Objectives so far away that no order gives anybody up: the suite is about waiting."""
    return PromptWorkload(requests=requests, rate_per_s=rate_per_s, long_share=0.25, long_tokens=600, ttft_ms=60_000, tpot_ms=200)


def _waits(fates: Sequence[Fate]) -> Waits:
    waits = sorted(fate.admitted_ns - fate.prompt.arrived_ns for fate in fates if fate.admitted_ns is not None)
    return Waits(
        requests=len(fates),
        given_up=sum(fate.given_up for fate in fates),
        median_ms=quantile_ms(waits, 50),
        p95_ms=quantile_ms(waits, 95),
        longest_ms=quantile_ms(waits, 100),
    )
