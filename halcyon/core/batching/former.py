"""The best batch for one replica now: price-and-cap.

Levels of the queue (what came back from a failed replica, priorities) are served one after another; what follows is within one level.
Batch time, not deadline order, is the control variable: an urgent request waits for the rest of a running batch and then for its own, so
batches are held to `price.cap_ns`. Within that, in this order:

    last      rank ≤ limit, due before another batch could be over: smallest first
    reserved  overdue requests (without a deadline, passed over long enough) and a large one, as far as the reserve has credit
    deferred  rank ≤ limit: by deadline
    tight     rank ≤ limit, too little slack to build a batch around: smallest first, where the batch has stayed short enough
    overdue   by due instant
    oversize  rank > limit: smallest first (not refused, only last)
    bulk      the bulk lane: by deadline

A request that does not fit is skipped, not a stop: a smaller one may fit. No request goes into a batch that is then predicted to end
after its deadline or another member's, with the residual margin of this replica's cost. A single request may exceed the cap: it has to
run some time. The walk gives up after `PATIENCE` misfits in a row, so that a decision stays cheap however long the queue is.

Why `tight`: one request whose slack allows only a short batch would cut down the batch of all others, and under overload there is always
one. Where the fluid solution gives up a share of a class for longer batches, these are the ones it gives up (`price.head_ns`).

The reserve: every batch earns `reserve_permille` of its time as credit; oversize and overdue work that runs is paid from it. Nothing is
starved for ever, and nobody else loses more than that share. With twice the credit it needs, reserved work goes even before `last`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from halcyon.core.batching.cost import BatchCoefficients
from halcyon.core.batching.item import WorkItem
from halcyon.core.batching.price import Price
from halcyon.core.batching.queue import DeadlineQueue, Entry, Lane, position

PATIENCE = 64
SORT_LIMIT = 64
FAR_NS = 1 << 62
LEAST_SLOPE_NS = 1e-9


def accept_all(item: WorkItem) -> bool:
    """A replica without any reservation."""
    del item
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What one batch may hold at most: slots (sequences), tokens. `reserve_permille`: see the module.

    `accepts`: whether the replica may run the item at all; asked for entries that are choosy.
    """

    max_slots: int
    max_tokens: int
    reserve_permille: int
    accepts: Callable[[WorkItem], bool] = accept_all


@dataclass(slots=True)
class Reserve:
    """Credit for work that the price would starve, ns of device time; may be in debt by one batch."""

    credit_ns: int = 0

    def earn(self, amount_ns: int, ceiling_ns: int) -> None:
        """Adds a share of a batch, up to the ceiling."""
        self.credit_ns = min(ceiling_ns, self.credit_ns + amount_ns)

    def spend(self, amount_ns: int) -> None:
        """Pays for work that ran; debt is bounded so that a lull is not held against anyone."""
        self.credit_ns = max(-amount_ns, self.credit_ns - amount_ns)


@dataclass(slots=True)
class Packing:
    """A batch in the making for one replica. `latest_ns`: earliest deadline of its members. `full`: something did not fit any more."""

    law: BatchCoefficients
    limits: BatchLimits
    now: int
    cap_ns: int
    entries: list[Entry] = field(default_factory=list)
    tokens: int = 0
    slots: int = 0
    latest_ns: int = FAR_NS
    full: bool = False
    room: int = field(init=False)
    """Tokens the batch may have by cap and limit; the first member alone may have more."""

    def __post_init__(self) -> None:
        in_cap = (self.cap_ns - self.law.overhead_ns) / max(self.law.per_token_ns, LEAST_SLOPE_NS)
        self.room = min(self.limits.max_tokens, max(0, int(in_cap)))

    def add_all(self, candidates: Iterable[Entry]) -> None:
        """Adds what fits, in order, until the batch is full or `PATIENCE` candidates in a row did not fit."""
        misfits = 0
        left, soonest_ns = self._left(), self.now + self.law.safe_ns(self.tokens)
        for entry in candidates:
            if entry.choosy and not self.limits.accepts(entry.item):
                continue  # no misfit: another replica's work must not end the walk of this one
            if entry.tokens <= left and (entry.due_ns >= soonest_ns or not entry.hard) and self.add(entry):
                misfits = 0
                left, soonest_ns = self._left(), self.now + self.law.safe_ns(self.tokens)
                if self.slots >= self.limits.max_slots:
                    self.full = True
                    return
                continue
            if self.entries and entry.tokens > self.room - self.tokens and not entry.chosen:
                self.full = True
            misfits += 1
            if misfits >= PATIENCE:
                return

    def may_hold(self, entry: Entry) -> bool:
        """Whether the replica may run the entry at all."""
        return not entry.choosy or self.limits.accepts(entry.item)

    def _left(self) -> int:
        """Tokens that may still fit, by cap and by the members' deadlines; rounded up, for `add` is exact."""
        if not self.entries:
            return self.limits.max_tokens
        if self.latest_ns == FAR_NS:
            return self.room - self.tokens
        in_time = ((self.latest_ns - self.now) / self.law.margin - self.law.overhead_ns) / max(self.law.per_token_ns, LEAST_SLOPE_NS)
        return min(self.room, int(in_time) + 1) - self.tokens

    def add(self, entry: Entry) -> bool:
        """Adds the entry if the batch can bear it."""
        if entry.chosen:
            return False
        tokens, slots = self.tokens + entry.tokens, self.slots + entry.item.slots
        if self.entries and (slots > self.limits.max_slots or tokens > self.room):
            self.full = True
            return False
        latest_ns = min(self.latest_ns, entry.due_ns) if entry.hard else self.latest_ns
        if latest_ns < FAR_NS and self.now + self.law.safe_ns(tokens) > latest_ns:
            return False
        self._put(entry)
        return True

    def append(self, entry: Entry) -> bool:
        """Adds the entry whatever its deadline, if slots and tokens last."""
        tokens, slots = self.tokens + entry.tokens, self.slots + entry.item.slots
        if self.entries and (slots > self.limits.max_slots or tokens > self.limits.max_tokens):
            self.full = True
            return False
        self._put(entry)
        self.full = self.slots >= self.limits.max_slots
        return True

    def _put(self, entry: Entry) -> None:
        self.entries.append(entry)
        entry.chosen = True
        self.tokens += entry.tokens
        self.slots += entry.item.slots
        if entry.hard:
            self.latest_ns = min(self.latest_ns, entry.due_ns)

    def price_of(self, entry: Entry) -> int:
        """Device time the entry costs: its tokens and its share of a full batch's overhead, ns."""
        return int(self.law.per_token_ns * entry.tokens + self.law.overhead_ns * entry.item.slots / self.limits.max_slots)

    def release(self) -> None:
        """The batch is not sent, or its entries are taken: they are free again."""
        for entry in self.entries:
            entry.chosen = False


def pack(queue: DeadlineQueue, price: Price, reserve: Reserve, packing: Packing) -> None:
    """Fills the packing from the queue by the order of the module; takes nothing out of the queue."""
    for main in queue.mains():
        _pack_level(main, price, reserve, packing)
    for bulk in queue.bulks():
        if packing.slots < packing.limits.max_slots:
            packing.add_all(row[3] for row in bulk.by_due)
    _account(price, reserve, packing)


def _pack_level(main: Lane, price: Price, reserve: Reserve, packing: Packing) -> None:
    overdue_end = position(main.by_due, packing.now + 1)
    tight_end = position(main.by_due, packing.now + price.head_ns)
    last_end = position(main.by_due, packing.now + price.cap_ns + price.batch_ns)
    limit_end = position(main.by_rank, price.rank_limit + 1)
    groups: tuple[Callable[[], Iterable[Entry]], ...] = (
        lambda: _reserved(main, price, reserve.credit_ns // 2, packing, overdue_end),
        lambda: _smallest(main, price, tight_end, last_end, limit_end),
        lambda: _reserved(main, price, reserve.credit_ns, packing, overdue_end),
        lambda: _deferred(main, price, last_end),
        lambda: _smallest(main, price, overdue_end, tight_end, limit_end),
        lambda: (row[3] for row in islice(main.by_due, overdue_end)),
        lambda: (row[3] for row in islice(main.by_rank, limit_end, None)),
    )
    for group in groups:
        if packing.slots >= packing.limits.max_slots:
            return
        packing.add_all(group())


def _reserved(main: Lane, price: Price, credit_ns: int, packing: Packing, overdue_end: int) -> list[Entry]:
    """What the credit can pay for: overdue requests, then the earliest due large one."""
    chosen: list[Entry] = []
    if credit_ns <= 0:
        return chosen
    overdue = [row[3] for row in main.by_due[: min(overdue_end, PATIENCE)]]
    soon = islice(main.by_due, overdue_end, overdue_end + PATIENCE * 4)
    large = next((row[3] for row in soon if row[3].rank > price.rank_limit), None)
    for entry in [*overdue, large] if large is not None else overdue:
        cost_ns = packing.price_of(entry)
        if cost_ns > credit_ns:
            break
        credit_ns -= cost_ns
        chosen.append(entry)
    return chosen


def _smallest(main: Lane, price: Price, start: int, end: int, limit_end: int) -> Iterable[Entry]:
    """Of the entries [start, end) by due instant, those within the limit, smallest first: sort the few, or filter the order of rank."""
    count = end - start
    if count <= 0:
        return []
    if count * count > SORT_LIMIT * len(main):
        first_ns, stop_ns = main.by_due[start][0], main.by_due[end - 1][0]
        return (row[3] for row in islice(main.by_rank, limit_end) if first_ns <= row[3].due_ns <= stop_ns)
    found = [(row[1], row[0], row[2], row[3]) for row in main.by_due[start:end] if row[3].rank <= price.rank_limit]
    found.sort()
    return [row[3] for row in found]


def _deferred(main: Lane, price: Price, start: int) -> Iterator[Entry]:
    """Due later, by deadline."""
    limit = price.rank_limit
    return (row[3] for row in islice(main.by_due, start, None) if row[3].rank <= limit)


def _account(price: Price, reserve: Reserve, packing: Packing) -> None:
    """Earns the reserve its share of this batch and pays for what ran on it."""
    law, limits = packing.law, packing.limits
    reserve.earn(law.predict_ns(packing.tokens) * limits.reserve_permille // 1000, 2 * law.predict_ns(limits.max_tokens))
    starved = [entry for entry in packing.entries if entry.rank > price.rank_limit or entry.due_ns <= packing.now]
    if starved:
        reserve.spend(sum(packing.price_of(entry) for entry in starved))
