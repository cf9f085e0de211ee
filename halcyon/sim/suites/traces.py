"""`traces`: recorded traffic replayed at multiples of what one replica bears, with noise and a bounded KV cache, under four orders.

Reads gzipped CSV files (arrival_s, prompt_tokens, output_tokens) from a directory that the caller names; runs only when it is given one.
Load 1.0 is the fluid capacity: requests in increasing device cost until iterations of 0.95 of the tightest tpot are full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from halcyon.sim.clock import NS_PER_MS
from halcyon.sim.continuous import IterationLaw, Prompt, ReplicaSize
from halcyon.sim.prompts import recorded
from halcyon.sim.suites.generation import DIGITS, Serving, judge_replica, replay
from halcyon.sim.suites.steps import Progress, Steps, ignore

FILES = ("azure2023_conv", "azure2023_code", "mooncake_conversation")
LOADS = (1.0, 1.5, 2.0)
ORDERS = ("fcfs", "shortest_prompt", "edf", "deadline")
REQUESTS = 1500
QUICK_REQUESTS = 300
LAW = IterationLaw(jitter=0.04)
SIZE = ReplicaSize(max_batch=256, kv_blocks=12_000, kv_mode="on_demand")
TIGHT_SHARE = 0.95
LONGEST_PROMPT_TOKENS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One trace at one load."""

    trace: str
    load: float
    rate_per_s: float
    requests: int
    orders: dict[str, Serving]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The suite's result."""

    suite: str
    seed: int
    scenarios: tuple[Scenario, ...]


def run(seed: int, paths: Mapping[str, Path], *, quick: bool, progress: Progress = ignore) -> Result:
    """Every trace that is there, at every load, under every order."""
    requests = QUICK_REQUESTS if quick else REQUESTS
    scenarios: list[Scenario] = []
    steps = Steps(len(paths) * len(LOADS) * len(ORDERS), progress)
    for name, path in paths.items():
        capacity = capacity_per_s(_bounded(recorded(path, requests=requests, rate_per_s=1.0, seed=seed)))
        for load in LOADS:
            rate = round(load * capacity, DIGITS)
            prompts = _bounded(recorded(path, requests=requests, rate_per_s=rate, seed=seed))
            orders: dict[str, Serving] = {}
            for order in ORDERS:
                steps.begin(f"{name} at {load:g}, {order}")
                replica = replay(prompts, order, LAW, SIZE, seed)
                orders[order] = judge_replica(replica)
            scenarios.append(Scenario(trace=name, load=load, rate_per_s=rate, requests=len(prompts), orders=orders))
    return Result(suite="traces", seed=seed, scenarios=tuple(scenarios))


def recordings(directory: Path) -> dict[str, Path]:
    """The traces that the directory holds, by name."""
    paths = {name: directory / f"{name}.csv.gz" for name in FILES}
    return {name: path for name, path in paths.items() if path.exists()}


def capacity_per_s(prompts: Sequence[Prompt]) -> float:
    """Requests a second whose mean device cost fills the replica at iterations of 0.95 of the tightest tpot."""
    tau_ms = TIGHT_SHARE * min(prompt.tpot_ns for prompt in prompts) / NS_PER_MS
    cost_ms = sum(LAW.per_prompt_token_ms * p.prompt_tokens + LAW.per_running_ms * p.output_tokens for p in prompts) / len(prompts)
    return (1.0 - LAW.overhead_ms / tau_ms) * 1000.0 / cost_ms


def _bounded(prompts: list[Prompt]) -> list[Prompt]:
    """Without what no replica of this size could hold, numbered anew."""
    kept = [prompt for prompt in prompts if prompt.prompt_tokens <= LONGEST_PROMPT_TOKENS]
    return [replace(prompt, index=index) for index, prompt in enumerate(kept)]
