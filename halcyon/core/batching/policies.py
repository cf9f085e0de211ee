"""What a batching policy is asked, and price-and-cap as the answer that is the default.

Rules: a policy decides over a queue and replicas it does not own. It may refuse an arrival, it fills a packing for one replica, and it
says how long a filled packing may be held back. Refusing what is provably too late, expiring, counting and sending are the scheduler's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from halcyon.core.batching.cost import BatchCoefficients
from halcyon.core.batching.former import BatchLimits, Packing, Reserve, pack
from halcyon.core.batching.histogram import Traffic
from halcyon.core.batching.objective import Objective, sheds_by_size, worth
from halcyon.core.batching.price import Price, cold_price, solve
from halcyon.core.batching.queue import DeadlineQueue, Entry
from halcyon.core.batching.replicas import Replicas

COLD_ARRIVALS = 20
SOLVE_EVERY_NS = 500_000_000
RATE_MOVED_PERCENT = 125
UNKNOWN_SPAN_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Station:
    """What a policy may look at: the queue and the replicas that serve it."""

    queue: DeadlineQueue
    replicas: Replicas


class BatchPolicy(Protocol):
    """One policy for one (model, version). `gives_up`: whether a waiting request is refused as soon as it cannot make its deadline."""

    gives_up: bool

    def arrived(self, entry: Entry, station: Station, *, now: int) -> None:
        """A request that will be asked about; it is not in the queue yet."""
        ...

    def predicted_too_late(self, entry: Entry, station: Station, *, now: int) -> int | None:
        """The predicted finish, ns, when the arrival must be refused for it; `None` to queue it."""
        ...

    def fill(self, law: BatchCoefficients, limits: BatchLimits, station: Station, *, now: int) -> Packing:
        """The best batch for a replica with this law, which is idle now. May be empty."""
        ...

    def hold_until(self, packing: Packing, *, now: int) -> int:
        """The instant until which the non-empty packing should wait for company, ns; `now` or earlier to send it."""
        ...

    def price(self, station: Station) -> Price:
        """Batch time and size limit in force."""
        ...


class PriceAndCap:
    """Price and cap (`former`, `price`), solved from the traffic twice a second or when its rate moves by a quarter."""

    gives_up = True

    def __init__(self, objective: Objective, *, linger_ns: int, now: int) -> None:
        self._objective = objective
        self._linger_ns = linger_ns
        self._traffic = Traffic(now=now)
        self._reserve = Reserve()
        self._tightest_ns = 0
        self._price: Price | None = None
        self._solve_ns = now
        self._arrivals_left = COLD_ARRIVALS

    def arrived(self, entry: Entry, station: Station, *, now: int) -> None:
        """Counts the arrival in and solves anew when it is time."""
        span_ns = max(1, entry.due_ns - now)
        self._tightest_ns = min(self._tightest_ns or span_ns, span_ns)
        value = worth(self._objective, entry.item, entry.tokens)
        self._traffic.add(rank=entry.rank, tokens=entry.tokens, worth=value, span_ns=span_ns)
        self._arrivals_left -= 1
        if self._traffic.arrivals >= COLD_ARRIVALS and (now >= self._solve_ns or self._arrivals_left <= 0):
            self._solve(station, now=now)

    def predicted_too_late(self, entry: Entry, station: Station, *, now: int) -> int | None:
        """Nothing on a prediction: what cannot be served in the end may still find a lull."""
        del entry, station, now
        return None

    def fill(self, law: BatchCoefficients, limits: BatchLimits, station: Station, *, now: int) -> Packing:
        """Packs by price and cap."""
        if self._price is not None and now >= self._solve_ns:
            self._solve(station, now=now)
        price = self.price(station)
        packing = Packing(law=law, limits=limits, now=now, cap_ns=price.cap_ns)
        pack(station.queue, price, self._reserve, packing)
        return packing

    def hold_until(self, packing: Packing, *, now: int) -> int:
        """Work conserving unless the operator asked for a linger; then until the oldest has lingered or the slack is used up."""
        if not self._linger_ns:
            return now
        oldest_ns = min(entry.item.arrived_ns for entry in packing.entries)
        slack_ends_ns = packing.latest_ns - packing.law.safe_ns(packing.tokens)
        return min(oldest_ns + self._linger_ns, slack_ends_ns)

    def price(self, station: Station) -> Price:
        """The solved price, or the cold one."""
        return self._price or cold_price(self._tightest_ns or UNKNOWN_SPAN_NS, len(station.replicas))

    def _solve(self, station: Station, *, now: int) -> None:
        self._traffic.decay(now=now)
        station.replicas.settle()
        fleet = station.replicas.fleet
        if fleet is not None:
            self._price = solve(self._traffic, fleet, limited=sheds_by_size(self._objective), previous=self._price) or self._price
        self._solve_ns = now + SOLVE_EVERY_NS
        expected = self._traffic.rate_per_s() * SOLVE_EVERY_NS / 1e9
        self._arrivals_left = int(expected * RATE_MOVED_PERCENT / 100 + 3 * expected**0.5) + COLD_ARRIVALS
