"""The settings of one (model, version)'s batching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halcyon.core.batching.objective import Objective

Policy = Literal["deadline", "edf"]


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """How requests of one (model, version) wait and leave."""

    policy: Policy = "deadline"
    """`deadline` is price-and-cap; `edf` the known earliest-deadline-first rule."""
    objective: Objective = "count"
    """What to have most of within the deadline: requests, tokens, or requests times their weight."""
    max_queue: int = 512
    """Requests that may wait; over it `queue_full`."""
    max_batch_tokens: int = 16_384
    """Tokens of one batch, at most. A larger request runs alone and is sized as this."""
    linger_ns: int = 0
    """Longest time a batch that could be sent is held for company. 0: never (the queue fills itself while a batch runs)."""
    reserve_permille: int = 5
    """Share of the device kept for large requests that the price sheds, in thousandths."""
    soft_due_ns: int = 10_000_000_000
    """A request without a deadline is not passed over any more after this long."""
    bulk_age_ns: int = 5_000_000_000
    """A bulk request counts as interactive after this long, or after half of its time to the deadline."""
    quantum_ns: int = 1_000_000
    """Waits shorter than this are not waited for."""
    probe_after_ns: int | None = 10_000_000_000
    """When every replica idles and nothing ran for this long, one request that looks unreachable is tried all the same: a cost model that
    is wrong would otherwise never hear of it. `None`: never."""

    def __post_init__(self) -> None:
        positive = {"max_queue": self.max_queue, "max_batch_tokens": self.max_batch_tokens, "soft_due_ns": self.soft_due_ns}
        for name, value in positive.items():
            if value < 1:
                raise ValueError(f"batching {name} is {value}; it must be at least 1")
        if not 0 <= self.reserve_permille <= 1000:
            raise ValueError(f"batching reserve_permille is {self.reserve_permille}; it must lie in 0..1000")
        if self.linger_ns < 0 or self.bulk_age_ns < 0 or self.quantum_ns < 0:
            raise ValueError("batching linger_ns, bulk_age_ns and quantum_ns are durations; they must not be negative")
