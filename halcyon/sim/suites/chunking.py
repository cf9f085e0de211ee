"""`chunking`: what one long prompt does to everybody else's tokens, by prompt tokens allowed in an iteration.

One prompt in ten has 700 tokens. A large budget shortens its time to first token and stretches the gap between everybody's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from halcyon.core.batching.iteration import FirstComeFirstServed
from halcyon.core.batching.orders.deadline import DeadlineOrder
from halcyon.sim.clock import NS_PER_S
from halcyon.sim.continuous import ContinuousReplica, IterationLaw, ReplicaSize
from halcyon.sim.prompts import PromptWorkload, seeded
from halcyon.sim.suites.generation import DIGITS, NOISE_SALT, Serving, judge_replica, replay
from halcyon.sim.suites.steps import Progress, Steps, ignore

REQUESTS = 400
QUICK_REQUESTS = 120
LOAD = 0.8
BUDGETS: dict[str, int] = {"none": 1 << 20, "256": 256, "128": 128, "64": 64}
LAW = IterationLaw(jitter=0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The suite's result, by budget; `deadline` chooses its own in every iteration."""

    suite: str
    seed: int
    rate_per_s: float
    budgets: dict[str, Serving]


def run(seed: int, *, quick: bool, progress: Progress = ignore) -> Result:
    """The same trace under every budget."""
    requests = QUICK_REQUESTS if quick else REQUESTS
    size = ReplicaSize(max_batch=32)
    at_once = seeded(_workload(requests, 0.0), seed)
    capacity = requests / (replay(at_once, "fcfs", LAW, size, seed).now / NS_PER_S)
    rate = round(LOAD * capacity, DIGITS)
    prompts = seeded(_workload(requests, rate), seed)
    found: dict[str, Serving] = {}
    steps = Steps(len(BUDGETS) + 1, progress)
    for name, budget in [*BUDGETS.items(), ("deadline", 0)]:
        steps.begin(f"budget {name}")
        policy = FirstComeFirstServed(prefill_chunk=budget) if budget else DeadlineOrder()
        replica = ContinuousReplica(policy, LAW, prompts, size=size, seed=seed ^ NOISE_SALT)
        replica.run()
        found[name] = judge_replica(replica)
    return Result(suite="chunking", seed=seed, rate_per_s=rate, budgets=found)


def _workload(requests: int, rate_per_s: float) -> PromptWorkload:
    return PromptWorkload(requests=requests, rate_per_s=rate_per_s, long_share=0.10, long_tokens=700, ttft_ms=1000, tpot_ms=25)
