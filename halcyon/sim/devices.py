"""Simulated devices: how long a batch or an iteration really takes. The schedulers are never told these laws; they learn them."""

from __future__ import annotations

from dataclasses import dataclass

from halcyon.sim.chance import Mulberry32
from halcyon.sim.clock import NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLaw:
    """duration = (overhead + per_token·tokens)·drift·noise.

    Attributes:
        jitter: half-width of the uniform relative noise. drift: factor on everything from `drift_at_ns` on.
        stall_share: share of batches that take `stall_factor` times as long.
    """

    overhead_ms: float = 18.0
    per_token_ms: float = 0.022
    jitter: float = 0.08
    drift: float = 1.0
    drift_at_ns: int = 60_000 * NS_PER_MS
    stall_share: float = 0.0
    stall_factor: float = 5.0


class BatchDevice:
    """One device that runs one batch at a time. Noise is drawn per batch, in order."""

    def __init__(self, law: BatchLaw, seed: int) -> None:
        self._law = law
        self._chance = Mulberry32(seed)

    def duration_ns(self, tokens: int, *, now: int) -> int:
        """What a batch of that many tokens started now takes; at least 1 ns."""
        law = self._law
        factor = 1.0 + law.jitter * (2.0 * self._chance.uniform() - 1.0)
        if now >= law.drift_at_ns:
            factor *= law.drift
        if law.stall_share and self._chance.uniform() < law.stall_share:
            factor *= law.stall_factor
        return max(1, round((law.overhead_ms + law.per_token_ms * tokens) * factor * NS_PER_MS))
