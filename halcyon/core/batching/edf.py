"""Earliest deadline first, the known rule: a baseline and a choice.

On arrival a request is refused when the work ahead of it (the running batch, then everything due no later, in full batches) and its own
are predicted to end after its deadline. The queue is served by deadline, as many as fit; a batch waits for company until it is full or
its head's slack is used up. No request is dropped after it was admitted, and none is skipped for a smaller one.

Known to collapse under overload: requests admitted at the very edge of feasibility end late as soon as anything more urgent arrives.
"""

from __future__ import annotations

import math

from halcyon.core.batching.cost import BatchCoefficients
from halcyon.core.batching.former import FAR_NS, BatchLimits, Packing
from halcyon.core.batching.policies import Station
from halcyon.core.batching.price import NO_LIMIT, Price
from halcyon.core.batching.queue import Entry


class EarliestDeadlineFirst:
    """The known rule. `linger_ns`: longest wait for company; 0 leaves it to the slack."""

    gives_up = False

    def __init__(self, *, linger_ns: int) -> None:
        self._linger_ns = linger_ns

    def arrived(self, entry: Entry, station: Station, *, now: int) -> None:
        """Learns nothing from arrivals."""
        del entry, station, now

    def predicted_too_late(self, entry: Entry, station: Station, *, now: int) -> int | None:
        """The predicted finish behind everything due no later, if that is after the deadline."""
        fleet = station.replicas.fleet
        if fleet is None or not entry.hard:
            return None
        ahead = station.queue.ahead_of(entry)
        tokens = entry.tokens + sum(other.tokens for other in ahead)
        batches = math.ceil((len(ahead) + 1) / (fleet.max_batch * fleet.replicas))
        work_ns = batches * fleet.overhead_ns + tokens * fleet.per_token_ns / fleet.replicas
        finish_ns = station.replicas.predicted_free(now=now) + math.ceil(work_ns)
        return finish_ns if finish_ns > entry.due_ns else None

    def fill(self, law: BatchCoefficients, limits: BatchLimits, station: Station, *, now: int) -> Packing:
        """The heads of the queue, in order, until one does not fit."""
        packing = Packing(law=law, limits=limits, now=now, cap_ns=FAR_NS)
        for lane in (*station.queue.mains(), *station.queue.bulks()):
            for row in lane.by_due:
                if packing.may_hold(row[3]) and not packing.append(row[3]):
                    return packing
        return packing

    def hold_until(self, packing: Packing, *, now: int) -> int:
        """Until the head's slack is used up; full batches and those without a deadline go at once."""
        if packing.full or packing.latest_ns == FAR_NS:
            return now
        slack_ends_ns = packing.latest_ns - packing.law.predict_ns(packing.tokens)
        if not self._linger_ns:
            return slack_ends_ns
        return min(slack_ends_ns, min(entry.item.arrived_ns for entry in packing.entries) + self._linger_ns)

    def price(self, station: Station) -> Price:
        """No price."""
        del station
        return Price(batch_ns=FAR_NS >> 1, rank_limit=NO_LIMIT, worth_per_s=0.0)
