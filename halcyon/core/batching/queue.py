"""Requests of one (model, version) that wait, in order of urgency and in order of rank.

Rules: every waiting request stands in both orders; ties break by the other key, then by sequence number: equal requests keep their order
of arrival. `due_ns` is the deadline, or for a request without one a soft instant after which it may no longer be passed over. Hard ones
are reviewed at an instant their owner sets. Bulk requests stand aside until they have aged (half of their time used, or `bulk_age_ns`),
then they are like any other. Each level (what came back from a failed replica, then priorities from the highest) has lanes of its own.
Sorted lists, not heaps: the former reads ranges of both. Insertion moves memory, not objects; removal is
one pass for many.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from halcyon.core.batching.item import WorkItem

REBUILD_SHARE = 32
"""Removing more than 1/32 of a list rebuilds it; fewer are deleted one by one."""
HEAP_SLACK = 64


Level = tuple[bool, int]
"""(came back, priority); the greater goes first."""


@dataclass(slots=True, eq=False)
class Entry:
    """A waiting request: what the former compares, all integers. `hard`: being late is a miss.

    `gone` once it was taken, cancelled or refused. `aside` while it stands in the bulk lane.
    `chosen` while a batch is being formed with it. `choosy`: some replicas may not run it.
    """

    item: WorkItem
    sequence: int
    tokens: int
    rank: int
    due_ns: int
    promote_ns: int
    hard: bool
    gone: bool = False
    aside: bool = False
    chosen: bool = False
    level: Level = field(init=False)
    choosy: bool = field(init=False)

    def __post_init__(self) -> None:
        item = self.item
        self.level = (item.returned, item.priority)
        self.choosy = item.slots > 1 or bool(item.only_on) or bool(item.avoid)


Rows = list[tuple[int, int, int, Entry]]
"""(first key, second key, sequence, entry), sorted."""
Agenda = list[tuple[int, int, Entry]]
"""(instant, sequence, entry), a heap."""


class Lane:
    """Two sorted views of one set of entries."""

    def __init__(self) -> None:
        self.by_due: Rows = []
        self.by_rank: Rows = []

    def __len__(self) -> int:
        return len(self.by_due)

    def add(self, entry: Entry) -> None:
        """Takes the entry in."""
        insort(self.by_due, (entry.due_ns, entry.rank, entry.sequence, entry))
        insort(self.by_rank, (entry.rank, entry.due_ns, entry.sequence, entry))

    def drop_gone(self, gone: list[Entry]) -> None:
        """Removes entries that are marked gone; `gone` names them all."""
        if len(gone) * REBUILD_SHARE > len(self.by_due):
            self.by_due = [row for row in self.by_due if not row[3].gone]
            self.by_rank = [row for row in self.by_rank if not row[3].gone]
            return
        for entry in gone:
            _delete(self.by_due, (entry.due_ns, entry.rank, entry.sequence))
            _delete(self.by_rank, (entry.rank, entry.due_ns, entry.sequence))


class DeadlineQueue:
    """Both lanes of one (model, version)."""

    def __init__(self) -> None:
        self._mains: dict[Level, Lane] = {}
        self._bulks: dict[Level, Lane] = {}
        self._entries: dict[str, Entry] = {}
        self._reviews: Agenda = []
        self._promotions: Agenda = []
        self.tokens = 0
        """Summed size of all that waits."""
        self.choosy = 0
        """How many of those that wait some replicas may not run."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def entries(self) -> list[Entry]:
        """All that wait, in order of arrival."""
        return list(self._entries.values())

    def mains(self) -> list[Lane]:
        """The lanes of all but bulk, highest level first."""
        return _descending(self._mains)

    def bulks(self) -> list[Lane]:
        """The bulk lanes, highest level first."""
        return _descending(self._bulks)

    def ahead_of(self, entry: Entry) -> list[Entry]:
        """What is due no later than the entry, or stands on a higher level; bulk aside."""
        ahead: list[Entry] = []
        for level, lane in self._mains.items():
            if level >= entry.level:
                end = len(lane) if level > entry.level else position(lane.by_due, entry.due_ns + 1)
                ahead += [row[3] for row in lane.by_due[:end]]
        return ahead

    def add(self, entry: Entry) -> None:
        """Takes the entry in; its id must be new."""
        if entry.item.request_id in self._entries:
            raise ValueError(f"request {entry.item.request_id} waits already; a request may be queued once")
        self._entries[entry.item.request_id] = entry
        self.tokens += entry.tokens
        self.choosy += entry.choosy
        if entry.item.lane == "bulk" and not entry.item.returned:
            entry.aside = True
            heapq.heappush(self._promotions, (entry.promote_ns, entry.sequence, entry))
        self._lane_of(entry).add(entry)

    def cancel(self, request_id: str) -> Entry | None:
        """Takes the request out, if it waits."""
        entry = self._entries.get(request_id)
        if entry is not None:
            self.take([entry])
        return entry

    def take(self, entries: list[Entry]) -> None:
        """Takes the entries out, all of which wait."""
        for entry in entries:
            entry.gone = True
            self.tokens -= entry.tokens
            self.choosy -= entry.choosy
            del self._entries[entry.item.request_id]
        self._drop_gone(entries)
        self._reviews = _without_gone(self._reviews, len(self._entries))
        self._promotions = _without_gone(self._promotions, len(self._entries))

    def review_at(self, entry: Entry, instant_ns: int) -> None:
        """Asks for the entry to come up in `reviews` once, at the instant."""
        heapq.heappush(self._reviews, (instant_ns, entry.sequence, entry))

    def reviews(self, *, now: int) -> list[Entry]:
        """Waiting entries whose review has come, earliest first. They go on waiting; their owner takes them or asks for another review."""
        found: list[Entry] = []
        while self._reviews and self._reviews[0][0] <= now:
            entry = heapq.heappop(self._reviews)[2]
            if not entry.gone:
                found.append(entry)
        return found

    def next_review(self) -> int | None:
        """The earliest instant a waiting entry must be looked at, ns."""
        while self._reviews and self._reviews[0][2].gone:
            heapq.heappop(self._reviews)
        return self._reviews[0][0] if self._reviews else None

    def promote(self, *, now: int) -> None:
        """Moves aged bulk requests among the others."""
        aged: list[Entry] = []
        while self._promotions and self._promotions[0][0] <= now:
            entry = heapq.heappop(self._promotions)[2]
            if not entry.gone:
                aged.append(entry)
        if not aged:
            return
        for entry in aged:
            entry.gone = True
        self._drop_gone(aged)
        for entry in aged:
            entry.gone = entry.aside = False
            self._lane_of(entry).add(entry)

    def _lane_of(self, entry: Entry) -> Lane:
        lanes = self._bulks if entry.aside else self._mains
        lane = lanes.get(entry.level)
        if lane is None:
            lane = lanes[entry.level] = Lane()
        return lane

    def _drop_gone(self, gone: list[Entry]) -> None:
        by_lane: dict[tuple[bool, Level], list[Entry]] = {}
        for entry in gone:
            by_lane.setdefault((entry.aside, entry.level), []).append(entry)
        for (aside, level), entries in by_lane.items():
            lanes = self._bulks if aside else self._mains
            lanes[level].drop_gone(entries)
            if not len(lanes[level]):
                del lanes[level]


def _descending(lanes: dict[Level, Lane]) -> list[Lane]:
    return [lanes[level] for level in sorted(lanes, reverse=True)]


def _without_gone(heap: Agenda, waiting: int) -> Agenda:
    """The heap, cleaned once most of it is gone: memory follows what waits, not what ever waited."""
    if len(heap) <= 2 * waiting + HEAP_SLACK:
        return heap
    kept = [row for row in heap if not row[2].gone]
    heapq.heapify(kept)
    return kept


def position(rows: Rows, value: int) -> int:
    """How many rows have a first column below the value."""
    return bisect_left(rows, (value,))  # a shorter tuple sorts before its extensions


def _delete(rows: Rows, key: tuple[int, int, int]) -> None:
    index = bisect_left(rows, key)  # as above: no entry is compared
    del rows[index]
