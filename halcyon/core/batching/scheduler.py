"""The queue of one (model, version) over batch replicas: what is refused, what waits, what is sent where and when.

Drive it with facts and instants; it has no clock. `arrive` and `expire` answer with refusals; `dispatch` with batches for idle replicas,
to be called after anything that may have made work or room; `next_wakeup` with the absolute instant at which to call `expire` and
`dispatch` again. Calling them at or after that instant always moves it on, so a shell that waits for it cannot spin.

Each request ends in exactly one way: in a batch, refused, or cancelled. Refusals on arrival: no deadline in the future, queue bound, and
finish predicted after the deadline even on the fastest replica as soon as the first can be free. While it waits, a request is refused at
the first instant at which not even an idle fastest replica could finish it in time, and at its deadline if no replica lives at all.
"""

from __future__ import annotations

from functools import partial

from halcyon.core.actions import Refusal
from halcyon.core.batching import refusals
from halcyon.core.batching.cost import BatchCoefficients, BatchCost
from halcyon.core.batching.edf import EarliestDeadlineFirst
from halcyon.core.batching.former import BatchLimits, Packing
from halcyon.core.batching.item import Batch, FlushReason, WorkItem
from halcyon.core.batching.objective import rank
from halcyon.core.batching.policies import BatchPolicy, PriceAndCap, Station
from halcyon.core.batching.price import Price
from halcyon.core.batching.queue import DeadlineQueue, Entry
from halcyon.core.batching.replicas import Busy, Replica, Replicas
from halcyon.core.batching.settings import BatchSettings

NO_REPLICA_RETRY_NS = 1_000_000_000
IDLE_TRIES = 8
"""Idle replicas a dispatch asks before it gives up, the fastest first; all of them while something waits that not every one may run."""


class BatchScheduler:
    """Decides for one (model, version). All instants are monotonic ns."""

    def __init__(self, settings: BatchSettings, *, now: int) -> None:
        self._settings = settings
        self._station = Station(DeadlineQueue(), Replicas())
        self._policy = _policy(settings, now=now)
        self._sequence = 0
        self._batches = 0
        self._draining = False
        self._holds: dict[str, int] = {}
        self._last_run_ns = now

    # --- facts about requests

    def arrive(self, item: WorkItem, *, now: int) -> Refusal | None:
        """Queues the request, or says why not."""
        entry = self._entry(item)
        self._policy.arrived(entry, self._station, now=now)
        refusal = self._refuse_arrival(entry, now=now)
        if refusal is None:
            self._wait(entry)
        return refusal

    def put_back(self, item: WorkItem) -> None:
        """A request that was admitted before waits (again): past the bound, and not refused as an arrival.

        Where the replica that ran it broke before a byte was sent, `returned` and `avoid` say so. If its deadline cannot be met any more,
        the next `expire` says so.
        """
        self._wait(self._entry(item))

    def cancel(self, request_id: str) -> bool:
        """The client left. Whether the request was waiting (and is no more)."""
        return self._queue.cancel(request_id) is not None

    def expire(self, *, now: int) -> list[tuple[WorkItem, Refusal]]:
        """Refuses what has become unreachable by `now`."""
        ended: list[tuple[WorkItem, Refusal]] = []
        gone: list[Entry] = []
        for entry in self._queue.reviews(now=now):
            instant_ns = self._review_instant(entry)
            if now < instant_ns:
                self._queue.review_at(entry, instant_ns)
                continue
            gone.append(entry)
            ended.append((entry.item, self._late(entry, now=now)))
        if gone:
            self._queue.take(gone)
        return ended

    # --- facts about replicas

    def replica_ready(self, replica_id: str, *, max_batch: int, now: int, cost: BatchCost | None = None) -> None:
        """A replica can take work from now on. `cost`: what is known of it from before."""
        self._replicas.add(replica_id, max_slots=max_batch, cost=cost or BatchCost(), now=now)

    def replica_gone(self, replica_id: str) -> tuple[WorkItem, ...]:
        """The replica takes no more work (lost, or drained). Returns what it was running: the caller's to fail, retry or let finish."""
        self._holds.pop(replica_id, None)
        replica = self._replicas.remove(replica_id)
        return replica.state.batch.items if replica is not None and isinstance(replica.state, Busy) else ()

    def batch_finished(self, replica_id: str, *, now: int, duration_ns: int | None = None, tokens: int | None = None) -> Batch:
        """The replica ended its batch and is idle. `duration_ns`: of the device, `None` to learn nothing (cold, failed, cancelled).

        `tokens`: what the batch really held, where that differs from the prediction.
        """
        batch = self._replicas.finish(replica_id, now=now)
        if duration_ns is not None:
            self.observe(replica_id, tokens=batch.tokens if tokens is None else tokens, duration_ns=duration_ns)
        self._last_run_ns = now
        return batch

    def observe(self, replica_id: str, *, tokens: int, duration_ns: int) -> None:
        """What a batch on the replica took; for shells that hear of it apart from its end."""
        self._replicas.observe(replica_id, tokens, duration_ns)

    def drain(self) -> None:
        """No more work is to come: nothing is held back any more."""
        self._draining = True

    # --- orders

    def dispatch(self, *, now: int) -> list[Batch]:
        """Batches for idle replicas, to be sent now. What they hold counts as running."""
        self._queue.promote(now=now)
        self._holds.clear()  # each is decided anew below; one left over from work that has ended meanwhile would wake the shell for ever
        sent: list[Batch] = []
        misses = 0
        while len(self._queue) and (misses < IDLE_TRIES or self._queue.choosy):
            replica_id = self._replicas.idle_at(misses)
            if replica_id is None:
                break
            batch = self.replica_idle(replica_id, now=now)
            if batch is None:
                misses += 1
            else:
                sent.append(batch)
        return sent

    def replica_idle(self, replica_id: str, *, now: int) -> Batch | None:
        """The batch to send to this idle replica now, or `None` to leave it idle until `next_wakeup` or the next fact."""
        self._holds.pop(replica_id, None)
        if not len(self._queue):
            return None
        replica = self._replicas[replica_id]
        settings = self._settings
        limits = BatchLimits(
            max_slots=replica.max_slots,
            max_tokens=settings.max_batch_tokens,
            reserve_permille=settings.reserve_permille,
            accepts=partial(self._accepts, replica),
        )
        packing = self._policy.fill(replica.cost.present, limits, self._station, now=now)
        packing.release()
        if not packing.entries:
            return None
        until_ns = now if self._draining or packing.full else self._policy.hold_until(packing, now=now)
        if until_ns - now >= max(1, settings.quantum_ns):
            self._holds[replica_id] = until_ns
            return None
        return self._send(replica_id, packing, now=now)

    def next_wakeup(self) -> int | None:
        """The absolute instant at which to call `expire` and `dispatch`, if no fact comes before; ns."""
        instants = [*self._holds.values()]
        review = self._queue.next_review()
        if review is not None:
            instants.append(review)
        return min(instants, default=None)

    # --- what an observer may ask

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def waiting(self) -> list[WorkItem]:
        """Requests that wait, in order of arrival."""
        return [entry.item for entry in self._queue.entries()]

    def runs(self, replica_id: str) -> bool:
        """Whether the replica is in a batch."""
        return isinstance(self._replicas[replica_id].state, Busy)

    def retry_after_ms(self, request_id: str) -> int:
        """When the present backlog will have been served, ms, spread by the request's id."""
        return refusals.retry_after_ms(self._drain_ns(), request_id)

    def price(self) -> Price:
        """Batch time and size limit in force."""
        return self._policy.price(self._station)

    def cost(self, replica_id: str) -> BatchCost:
        """What is known of the replica's speed; keep it to hand back to `replica_ready`."""
        return self._replicas[replica_id].cost

    # --- inside

    @property
    def _queue(self) -> DeadlineQueue:
        return self._station.queue

    @property
    def _replicas(self) -> Replicas:
        return self._station.replicas

    def _wait(self, entry: Entry) -> None:
        self._queue.add(entry)
        if entry.item.deadline_ns is not None:
            self._queue.review_at(entry, self._review_instant(entry))

    def _entry(self, item: WorkItem) -> Entry:
        settings = self._settings
        tokens = min(settings.max_batch_tokens, max(1, item.tokens))
        due_ns = item.arrived_ns + settings.soft_due_ns if item.deadline_ns is None else item.deadline_ns
        promote_ns = min(item.arrived_ns + settings.bulk_age_ns, (item.arrived_ns + due_ns) // 2)
        self._sequence += 1
        return Entry(
            item=item,
            sequence=self._sequence,
            tokens=tokens,
            rank=rank(settings.objective, item, tokens),
            due_ns=due_ns,
            promote_ns=promote_ns,
            hard=item.deadline_ns is not None,
        )

    def _refuse_arrival(self, entry: Entry, *, now: int) -> Refusal | None:
        if entry.hard:
            finish_ns = self._earliest_finish(entry, now=now)
            if now < entry.due_ns < finish_ns and self._probes(now=now):
                entry.hard = False
            elif entry.due_ns <= now or entry.due_ns < finish_ns:
                return self._unreachable(entry, finish_ns, now=now)
        if entry.hard:
            predicted_ns = self._policy.predicted_too_late(entry, self._station, now=now)
            if predicted_ns is not None:
                return self._unreachable(entry, predicted_ns, now=now)
        if len(self._queue) >= self._settings.max_queue:
            return refusals.queue_full(len(self._queue), self.retry_after_ms(entry.item.request_id))
        return None

    def _earliest_finish(self, entry: Entry, *, now: int) -> int:
        """Nothing can be done sooner; 0 while no replica lives that may run it (one may come)."""
        law, only_on = self._law(entry), entry.item.only_on
        if law is None:
            return 0
        free_ns = self._replicas.free_at(only_on, now=now) if only_on else self._replicas.earliest_free(now=now)
        return free_ns + law.safe_ns(entry.tokens)

    def _law(self, entry: Entry) -> BatchCoefficients | None:
        """The envelope of all replicas that may run the entry; `None` while none lives."""
        only_on = entry.item.only_on
        if not only_on:
            return self._replicas.fastest
        return self._replicas[only_on].cost.present if only_on in self._replicas else None

    def _accepts(self, replica: Replica, item: WorkItem) -> bool:
        """Whether the replica may run the item: it has the slots, and no other is meant or to be preferred."""
        if item.slots > replica.max_slots or item.only_on:
            return item.slots <= replica.max_slots and item.only_on == replica.replica_id
        return item.avoid != replica.replica_id or not self._replicas.another_holds(replica.replica_id, item.slots)

    def _review_instant(self, entry: Entry) -> int:
        """The first instant at which the entry can no longer make its deadline."""
        law = self._law(entry)
        if law is None or not entry.hard or not self._policy.gives_up:
            return entry.due_ns
        return min(entry.due_ns, entry.due_ns - law.safe_ns(entry.tokens) + 1)

    def _probes(self, *, now: int) -> bool:
        """Whether a request that looks unreachable is worth a try: nothing has run for long."""
        after_ns = self._settings.probe_after_ns
        return (
            after_ns is not None and not len(self._queue) and self._replicas.idle_at(0) is not None and now >= self._last_run_ns + after_ns
        )

    def _late(self, entry: Entry, *, now: int) -> Refusal:
        if self._law(entry) is None:
            return refusals.no_capacity(refusals.retry_after_ms(NO_REPLICA_RETRY_NS, entry.item.request_id))
        return self._unreachable(entry, self._earliest_finish(entry, now=now), now=now)

    def _unreachable(self, entry: Entry, finish_ns: int, *, now: int) -> Refusal:
        retry_ms = self.retry_after_ms(entry.item.request_id)
        return refusals.unreachable(finish_in_ns=max(now, finish_ns) - now, deadline_in_ns=entry.due_ns - now, retry_ms=retry_ms)

    def _drain_ns(self) -> int:
        """How long the present backlog lasts at the solved batch time, ns."""
        fleet = self._replicas.fleet
        if fleet is None:
            return NO_REPLICA_RETRY_NS
        useful = max(0.1, 1.0 - fleet.overhead_ns / max(1, self._policy.price(self._station).batch_ns))
        return int(self._queue.tokens * fleet.per_token_ns / fleet.replicas / useful) + int(fleet.overhead_ns)

    def _send(self, replica_id: str, packing: Packing, *, now: int) -> Batch:
        self._batches += 1
        reason = self._reason(packing, now=now)
        self._queue.take(packing.entries)
        batch = Batch(
            batch_id=self._batches,
            replica_id=replica_id,
            items=tuple(entry.item for entry in packing.entries),
            tokens=packing.tokens,
            predicted_ns=packing.law.predict_ns(packing.tokens),
            reason=reason,
        )
        self._replicas.start(replica_id, batch, now=now)
        return batch

    def _reason(self, packing: Packing, *, now: int) -> FlushReason:
        if packing.full:
            return "saturated"
        if self._draining:
            return "drain"
        if now + packing.law.safe_ns(packing.tokens) + self._settings.quantum_ns > packing.latest_ns:
            return "deadline"
        return "linger" if self._settings.linger_ns else "density"


def _policy(settings: BatchSettings, *, now: int) -> BatchPolicy:
    if settings.policy == "edf":
        return EarliestDeadlineFirst(linger_ns=settings.linger_ns)
    return PriceAndCap(settings.objective, linger_ns=settings.linger_ns, now=now)
