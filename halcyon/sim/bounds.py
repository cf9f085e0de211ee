"""What no scheduler can beat, and what a very good one can reach: the lines a benchmark is read against.

`count_only`: the most requests whose summed least cost fits in the time, smallest first; valid for any scheduler, blind to deadlines.
`deadline_aware`: the fluid line. With mean batch time a on one device, overhead leaves 1 − A/a of the time for tokens, and of a class
with time s to its deadline the share min(1, (s/a − 1)⁺) can be on time; the best a is taken. It holds for a stationary flow, not path by
path.
"""

from __future__ import annotations

from halcyon.sim.arrivals import Arrival
from halcyon.sim.clock import NS_PER_MS
from halcyon.sim.devices import BatchLaw

GRID_RATIO = 1.03
LEAST_BATCH_MS = 0.01
"""Where the search for the best batch time begins on a device without overhead."""


def count_only(arrivals: list[Arrival], law: BatchLaw, *, max_batch: int, horizon_s: float) -> int:
    """The most requests that fit in the time, each at its tokens and its share of a full batch's overhead."""
    left_ms = sum(horizon_s * 1000.0 * share / slowness for share, slowness in _phases(law, horizon_s))
    count = 0
    for tokens in sorted(arrival.tokens for arrival in arrivals):
        left_ms -= law.per_token_ms * tokens + law.overhead_ms / max_batch
        if left_ms < 0:
            break
        count += 1
    return count


def deadline_aware_per_s(arrivals: list[Arrival], law: BatchLaw, *, max_batch: int, horizon_s: float) -> float:
    """The fluid line of one device, requests a second."""
    by_size = sorted((arrival.tokens, arrival.span_ns / NS_PER_MS) for arrival in arrivals)
    if not by_size:
        return 0.0
    spans = sorted({span for _, span in by_size})
    total = 0.0
    for share, slowness in _phases(law, horizon_s):
        overhead, slope = law.overhead_ms * slowness, law.per_token_ms * slowness
        candidates = [*spans, *(span / 2 for span in spans)]
        at = max(overhead * 1.02, LEAST_BATCH_MS)
        while at < spans[-1]:
            candidates.append(at)
            at *= GRID_RATIO
        reached = (_accepted(by_size, at, overhead, slope, max_batch, horizon_s) for at in candidates if at > overhead)
        total += share * max(reached, default=0.0)
    return total


def _phases(law: BatchLaw, horizon_s: float) -> list[tuple[float, float]]:
    """(share of the time, factor on durations) before and after the drift."""
    before = min(1.0, law.drift_at_ns / NS_PER_MS / (horizon_s * 1000.0))
    return [(before, 1.0), (1.0 - before, law.drift)] if law.drift != 1.0 and before < 1.0 else [(1.0, 1.0)]


def _accepted(by_size: list[tuple[int, float]], batch_ms: float, overhead: float, slope: float, max_batch: int, horizon_s: float) -> float:
    """Requests a second at this mean batch time, smallest first."""
    room_ms = (1.0 - overhead / batch_ms) * horizon_s * 1000.0
    count = 0.0
    shares = {span: min(1.0, max(0.0, span / batch_ms - 1.0)) for span in {span for _, span in by_size}}
    for tokens, span in by_size:
        share = shares[span]
        work = share * slope * tokens
        if work > room_ms:
            count += room_ms / (slope * tokens)
            break
        room_ms -= work
        count += share
    return min(count, max_batch * horizon_s * 1000.0 / batch_ms) / horizon_s
