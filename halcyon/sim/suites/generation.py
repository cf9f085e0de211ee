"""What the suites over continuous replicas share: running a trace under an order, and summing its fates up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from halcyon.core.batching.iteration import IterationPolicy
from halcyon.core.batching.orders.choice import order_named
from halcyon.core.batching.orders.shortest import ShortestPromptFirst
from halcyon.sim.clock import NS_PER_MS, NS_PER_S
from halcyon.sim.continuous import ContinuousReplica, Fate, IterationLaw, Prompt, ReplicaSize

NOISE_SALT = 0x9E3779B9
DIGITS = 6

ORDERS: dict[str, Callable[[], IterationPolicy]] = {
    "fcfs": lambda: order_named("fcfs"),
    "shortest_prompt": lambda: ShortestPromptFirst(patience_percent=None),
    "shortest_prompt_aged": lambda: order_named("shortest_prompt"),
    "edf": lambda: order_named("edf"),
    "deadline": lambda: order_named("deadline", gives_up=True),
}
"""Makers of fresh policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How one scheduler served a trace. Times in ms; `goodput` is the share of all requests within both objectives.

    `useful_fraction`: of the decode slots that were occupied, those that produced a token somebody wanted.
    """

    goodput: float
    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    worst_gap_ms: float
    queue_wait_p50_ms: float
    queue_wait_max_ms: float
    useful_fraction: float
    given_up: int


def replay(prompts: Sequence[Prompt], order: str, law: IterationLaw, size: ReplicaSize, seed: int) -> ContinuousReplica:
    """The trace under the order, run to its end."""
    replica = ContinuousReplica(ORDERS[order](), law, prompts, size=size, seed=seed ^ NOISE_SALT)
    replica.run()
    return replica


def judge_replica(replica: ContinuousReplica) -> Serving:
    """Sums a continuous run up."""
    return judge(replica.fates, ended_ns=replica.now, slot_steps=replica.slot_steps, useful_steps=replica.useful_steps)


def judge(fates: Sequence[Fate], *, ended_ns: int, slot_steps: int, useful_steps: int) -> Serving:
    """Sums fates up. `slot_steps` counts the decode slots held, iteration by iteration; `useful_steps` those that gave a token."""
    served = [fate for fate in fates if fate.finished_ns is not None]
    ttft = sorted((f.first_token_ns or 0) - f.prompt.arrived_ns for f in served)
    tpot = sorted(f.tpot_ns for f in served if f.prompt.output_tokens > 1)
    waits = sorted((f.admitted_ns or 0) - f.prompt.arrived_ns for f in served)
    tokens = sum(f.prompt.output_tokens for f in served)
    return Serving(
        goodput=round(sum(f.good for f in fates) / max(1, len(fates)), DIGITS),
        tokens_per_s=round(tokens / max(1e-9, ended_ns / NS_PER_S), DIGITS),
        ttft_p50_ms=quantile_ms(ttft, 50),
        ttft_p99_ms=quantile_ms(ttft, 99),
        tpot_p50_ms=quantile_ms(tpot, 50),
        tpot_p99_ms=quantile_ms(tpot, 99),
        worst_gap_ms=round(max((f.worst_gap_ns for f in served), default=0) / NS_PER_MS, DIGITS),
        queue_wait_p50_ms=quantile_ms(waits, 50),
        queue_wait_max_ms=quantile_ms(waits, 100),
        useful_fraction=round(useful_steps / slot_steps if slot_steps else 1.0, DIGITS),
        given_up=sum(f.given_up for f in fates),
    )


def quantile_ms(ordered_ns: Sequence[float], percent: int) -> float:
    """Nearest rank, ms; 0 without values."""
    return round(ordered_ns[max(0, -(-len(ordered_ns) * percent // 100) - 1)] / NS_PER_MS, DIGITS) if ordered_ns else 0.0
