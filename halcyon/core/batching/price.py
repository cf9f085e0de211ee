"""How long a batch should take and from which size on a request is not worth its device time: solved from the traffic.

The fluid problem. With k replicas on one late-binding queue and mean batch time a, a request of class c (time to deadline s_c) can be on
time with share f_c = clamp(k·(s_c − a)/a, 0, 1): it waits for the rest of a running batch, then for its own. Overhead A eats A/a of the
device, which leaves SAFETY·k·(1 − A/a) of the time for tokens at P each. Taking ranks in increasing order until that is used up gives the
size limit x(a) and the worth G(a), bounded by the slots. The best a wins; ties go to the smaller. Candidates are a geometric grid and the
kinks s_c·k/(k + 1), where some class begins to lose. A new a replaces the old one only if it is worth 1 % more; the limit always follows.

`cap` is 1.10 times the solved mean. Optimum and constants are flat: nothing here needs tuning per workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from halcyon.core.batching.histogram import BINS, ONE, Traffic, TrafficClass, bin_bounds

SAFETY = 0.97
GRID_RATIO = 1.08
HYSTERESIS = 1.01
CAP_PERCENT = 110
HEAD_PERCENT = 60
HEAD_LOSING_PERCENT = 95
NO_LIMIT = 1 << 62
LEAST_BATCH_NS = 1_000_000.0
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What the batch former goes by.

    Attributes:
        batch_ns: solved mean batch time. rank_limit: largest rank that is served before everything else; `NO_LIMIT` when all fits.
        worth_per_s: what the solution promises, in units of the objective.
        loses: whether some class cannot be wholly on time at this batch time, and the solution says so on purpose.
    """

    batch_ns: int
    rank_limit: int
    worth_per_s: float
    loses: bool = False

    @property
    def cap_ns(self) -> int:
        """Longest batch to be formed on purpose."""
        return self.batch_ns * CAP_PERCENT // 100

    @property
    def head_ns(self) -> int:
        """Least slack that a batch is built around."""
        return self.batch_ns * (HEAD_LOSING_PERCENT if self.loses else HEAD_PERCENT) // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The replicas that serve one queue, summed up: how many, mean overhead and slope in ns, slots of one batch."""

    replicas: int
    overhead_ns: float
    per_token_ns: float
    max_batch: int


@dataclass(frozen=True, slots=True)
class _Row:
    span_ns: int
    tokens: list[float]
    worth: list[float]
    counts: list[float]

    @classmethod
    def of(cls, traffic_class: TrafficClass, scale: float) -> _Row:
        """Running sums over the bins, per ns of window."""
        sums = ([value / scale for value in accumulate(bins)] for bins in (traffic_class.tokens, traffic_class.worth, traffic_class.counts))
        return cls(traffic_class.span_ns, *sums)


class _Fluid:
    """The fluid problem over one state of the traffic."""

    def __init__(self, traffic: Traffic, fleet: Fleet, *, limited: bool) -> None:
        scale = max(1, traffic.window_ns) * float(ONE)
        self._fleet = fleet
        self._limited = limited
        self._rows = [_Row.of(traffic_class, scale) for traffic_class in traffic.classes()]

    def candidates(self) -> list[int]:
        """Mean batch times worth trying, ns, ascending."""
        k = self._fleet.replicas
        longest = max(row.span_ns for row in self._rows)
        found = {row.span_ns * k // (k + 1) for row in self._rows}
        at = max(2.0 * self._fleet.overhead_ns, LEAST_BATCH_NS)
        while at <= longest:
            found.add(int(at))
            at *= GRID_RATIO
        return sorted(value for value in found if value > self._fleet.overhead_ns)

    def solve(self, batch_ns: int) -> Price:
        """The size limit and the worth at this mean batch time."""
        fleet = self._fleet
        shares = [min(1.0, max(0.0, fleet.replicas * (row.span_ns - batch_ns) / batch_ns)) for row in self._rows]
        room = SAFETY * fleet.replicas * (1.0 - fleet.overhead_ns / batch_ns) / max(fleet.per_token_ns, 1e-9)
        index, part = self._cut(shares, room)
        limit = _limit(index, part) if self._limited else NO_LIMIT
        served = self._up_to(shares, index, part, [row.counts for row in self._rows])
        worth = self._up_to(shares, index, part, [row.worth for row in self._rows])
        if not self._limited:  # everything is served alike as far as the room lasts
            used = self._up_to(shares, BINS - 1, 1.0, [row.tokens for row in self._rows])
            everything = self._up_to(shares, BINS - 1, 1.0, [row.worth for row in self._rows])
            worth = everything * min(1.0, room / used) if used > 0 else 0.0
        slots = fleet.max_batch * fleet.replicas / batch_ns
        if served > slots:
            worth *= slots / served
        return Price(batch_ns=batch_ns, rank_limit=limit, worth_per_s=worth * NS_PER_S, loses=min(shares) < 1.0)

    def _cut(self, shares: list[float], room: float) -> tuple[int, float]:
        """The bin in which the room ends and how much of that bin fits; the whole last bin when it never ends."""
        sums = [row.tokens for row in self._rows]
        if self._up_to(shares, BINS - 1, 1.0, sums) <= room:
            return BINS - 1, 1.0
        low, high = 0, BINS - 1
        while low < high:
            middle = (low + high) // 2
            if self._up_to(shares, middle, 1.0, sums) > room:
                high = middle
            else:
                low = middle + 1
        before = self._up_to(shares, low, 0.0, sums)
        return low, max(0.0, room - before) / (self._up_to(shares, low, 1.0, sums) - before)

    def _up_to(self, shares: list[float], index: int, part: float, sums: list[list[float]]) -> float:
        """The shares' total of all bins before `index` and of `part` of that bin."""
        total = 0.0
        for share, values in zip(shares, sums, strict=True):
            before = values[index - 1] if index else 0.0
            total += share * (before + part * (values[index] - before))
        return total


def _limit(index: int, part: float) -> int:
    """The rank at which the room ends: linear inside the bin."""
    if index == BINS - 1 and part >= 1.0:
        return NO_LIMIT
    low, high = bin_bounds(index)
    return low + int(part * (high - low))


def solve(traffic: Traffic, fleet: Fleet, *, limited: bool, previous: Price | None) -> Price | None:
    """The best price for this traffic, or `None` while there is none to solve for. `limited`: whether size may shed at all."""
    if fleet.replicas < 1 or not traffic.classes():
        return None
    fluid = _Fluid(traffic, fleet, limited=limited)
    best: Price | None = None
    for batch_ns in fluid.candidates():
        price = fluid.solve(batch_ns)
        if best is None or price.worth_per_s > best.worth_per_s * (1 + 1e-9):
            best = price
    if best is None or previous is None or previous.batch_ns <= fleet.overhead_ns:
        return best
    kept = fluid.solve(previous.batch_ns)
    return best if best.worth_per_s > kept.worth_per_s * HYSTERESIS else kept


def cold_price(tightest_ns: int, replicas: int) -> Price:
    """Before the traffic is known: no limit, and half the tightest objective seen (its k/(k + 1) with k replicas)."""
    k = max(1, replicas)
    return Price(batch_ns=max(1, tightest_ns * k // (k + 1)), rank_limit=NO_LIMIT, worth_per_s=0.0)
