"""Traces for continuous replicas: seeded ones and recorded ones, with objectives."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from halcyon.sim.chance import Mulberry32
from halcyon.sim.clock import NS_PER_MS, NS_PER_S
from halcyon.sim.continuous import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWorkload:
    """Poisson arrivals of log-normal prompts and answers; a share of the prompts is long, of one fixed length.

    `rate_per_s` 0 lets all arrive at once. Medians are of the log-normal laws.
    """

    requests: int
    rate_per_s: float
    prompt_median: float = 60.0
    prompt_sigma: float = 0.6
    prompt_cap: int = 300
    output_median: float = 40.0
    output_sigma: float = 0.82
    output_cap: int = 128
    long_share: float = 0.0
    long_tokens: int = 600
    ttft_ms: int = 1000
    tpot_ms: int = 100


def seeded(workload: PromptWorkload, seed: int) -> list[Prompt]:
    """The trace. Per prompt: one draw for the gap, one for the class, two for the prompt, two for the answer."""
    chance = Mulberry32(seed)
    at_s = 0.0
    prompts: list[Prompt] = []
    for index in range(workload.requests):
        gap = chance.exponential(1.0)
        at_s += gap / workload.rate_per_s if workload.rate_per_s else 0.0
        long = chance.uniform() < workload.long_share
        short_tokens = _log_normal(chance, workload.prompt_median, workload.prompt_sigma, workload.prompt_cap)
        output = _log_normal(chance, workload.output_median, workload.output_sigma, workload.output_cap)
        prompts.append(
            Prompt(
                index=index,
                arrived_ns=round(at_s * NS_PER_S),
                prompt_tokens=workload.long_tokens if long else short_tokens,
                output_tokens=output,
                most_output=workload.output_cap,
                ttft_ns=workload.ttft_ms * NS_PER_MS,
                tpot_ns=workload.tpot_ms * NS_PER_MS,
                kind="long" if long else "short",
            )
        )
    return prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Objectives of a recorded trace: a share of interactive requests, the rest is bulk. Milliseconds."""

    interactive_share: float = 0.6
    interactive_ttft_ms: int = 600
    interactive_tpot_ms: int = 40
    bulk_ttft_ms: int = 6000
    bulk_tpot_ms: int = 120


def recorded(path: Path, *, requests: int, rate_per_s: float, seed: int, lanes: Lanes | None = None) -> list[Prompt]:
    """The first requests of a recorded trace (columns arrival_s, prompt_tokens, output_tokens), time-scaled to the rate."""
    lanes = lanes or Lanes()
    with gzip.open(path, "rt", newline="") as lines:
        rows = [row for row, _ in zip(csv.DictReader(lines), range(requests), strict=False)]
    start = float(rows[0]["arrival_s"])
    native = (len(rows) - 1) / max(1e-9, float(rows[-1]["arrival_s"]) - start)
    chance = Mulberry32(seed)
    return [_recorded(index, row, (float(row["arrival_s"]) - start) * native / rate_per_s, chance, lanes) for index, row in enumerate(rows)]


def _recorded(index: int, row: dict[str, str], at_s: float, chance: Mulberry32, lanes: Lanes) -> Prompt:
    interactive = chance.uniform() < lanes.interactive_share
    output = max(1, int(row["output_tokens"]))
    return Prompt(
        index=index,
        arrived_ns=round(at_s * NS_PER_S),
        prompt_tokens=max(1, int(row["prompt_tokens"])),
        output_tokens=output,
        most_output=max(1024, output),
        ttft_ns=(lanes.interactive_ttft_ms if interactive else lanes.bulk_ttft_ms) * NS_PER_MS,
        tpot_ns=(lanes.interactive_tpot_ms if interactive else lanes.bulk_tpot_ms) * NS_PER_MS,
        kind="interactive" if interactive else "bulk",
    )


def _log_normal(chance: Mulberry32, median: float, sigma: float, cap: int) -> int:
    return max(1, min(cap, round(median * math.exp(sigma * chance.normal()))))


def span_s(prompts: Sequence[Prompt]) -> float:
    """Time from the first to the last arrival, s; at least a millisecond."""
    return max(0.001, (prompts[-1].arrived_ns - prompts[0].arrived_ns) / NS_PER_S)
