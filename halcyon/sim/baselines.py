"""What the deadline scheduler is measured against: batching by arrival. It knows no deadline and refuses only when the queue is full."""

from __future__ import annotations

from collections import deque

from halcyon.core.actions import Refusal
from halcyon.core.batching.item import Batch, FlushReason, WorkItem
from halcyon.core.batching.refusals import queue_full


class FixedBatch:
    """First come, first served: a batch leaves when `size` requests wait or the oldest has waited `wait_ns`. Size 1 is no batching."""

    def __init__(self, *, size: int, wait_ns: int, max_queue: int) -> None:
        self._size = size
        self._wait_ns = wait_ns
        self._max_queue = max_queue
        self._queue: deque[WorkItem] = deque()
        self._idle: dict[str, None] = {}
        self._running: dict[str, Batch] = {}
        self._batches = 0

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def replica_ready(self, replica_id: str, *, max_batch: int, now: int) -> None:
        """A replica is idle from now on."""
        del max_batch, now
        self._idle[replica_id] = None

    def arrive(self, item: WorkItem, *, now: int) -> Refusal | None:
        """Queues the request unless the queue is full."""
        del now
        if len(self._queue) >= self._max_queue:
            return queue_full(len(self._queue), 1000)
        self._queue.append(item)
        return None

    def expire(self, *, now: int) -> list[tuple[WorkItem, Refusal]]:
        """Never."""
        del now
        return []

    def dispatch(self, *, now: int) -> list[Batch]:
        """Full batches, and partial ones whose oldest request has waited long enough; compares instants, never differences."""
        sent: list[Batch] = []
        while self._idle and self._queue and (len(self._queue) >= self._size or self._leaves_ns() <= now):
            replica_id = next(iter(self._idle))
            del self._idle[replica_id]
            items = tuple(self._queue.popleft() for _ in range(min(self._size, len(self._queue))))
            self._batches += 1
            tokens = sum(item.tokens for item in items)
            reason: FlushReason = "saturated" if len(items) == self._size else "linger"
            batch = Batch(batch_id=self._batches, replica_id=replica_id, items=items, tokens=tokens, predicted_ns=0, reason=reason)
            self._running[replica_id] = batch
            sent.append(batch)
        return sent

    def batch_finished(self, replica_id: str, *, now: int, duration_ns: int | None = None) -> Batch:
        """The replica is idle again."""
        del now, duration_ns
        self._idle[replica_id] = None
        return self._running.pop(replica_id)

    def next_wakeup(self) -> int | None:
        """When the oldest has waited long enough, while a replica could take it."""
        return self._leaves_ns() if self._queue and self._idle else None

    def _leaves_ns(self) -> int:
        return self._queue[0].arrived_ns + self._wait_ns
