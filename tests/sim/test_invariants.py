"""Promises of the batching core that hold for every story, found by search."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from halcyon.core.batching.cost import BatchCost
from halcyon.core.batching.item import Batch, WorkItem
from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings

MS = 1_000_000
OVERHEAD_NS = 18 * MS
PER_TOKEN_NS = 22_000
MAX_BATCH = 4
MAX_TOKENS = 2000


@dataclass
class Fates:
    """Who is where, kept by the test."""

    waiting: dict[str, WorkItem] = field(default_factory=dict)
    running: dict[str, tuple[Batch, int]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    arrived: int = 0

    def end(self, request_id: str) -> None:
        """One ending each."""
        assert request_id not in self.ended
        self.ended.add(request_id)


class BatchingStory(RuleBasedStateMachine):
    """Arrivals, clients that leave, time passing, replicas lost and found, over devices whose law is known exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.core = BatchScheduler(BatchSettings(max_queue=40, max_batch_tokens=MAX_TOKENS, probe_after_ns=None), now=0)
        self.fates = Fates()
        self.lives: set[str] = set()

    @rule(tokens=st.integers(-1, 3000), span_ms=st.one_of(st.none(), st.integers(0, 400)), bulk=st.booleans(), slots=st.integers(1, 3))
    def arrive(self, tokens: int, span_ms: int | None, bulk: bool, slots: int) -> None:
        """A request."""
        self.fates.arrived += 1
        deadline_ns = None if span_ms is None else self.now + span_ms * MS
        item = WorkItem(
            request_id=f"q{self.fates.arrived}",
            arrived_ns=self.now,
            tokens=tokens,
            deadline_ns=deadline_ns,
            slots=slots,
            lane="bulk" if bulk else "interactive",
        )
        depth = self.core.depth
        refusal = self.core.arrive(item, now=self.now)
        if refusal is None:
            self.fates.waiting[item.request_id] = item
        else:
            self.fates.end(item.request_id)
            assert self._may_refuse(item, refusal.code, depth)
        self._proceed()

    @rule(index=st.integers(0, 60))
    def client_leaves(self, index: int) -> None:
        """Of one that waits, or of one that does not."""
        request_id = f"q{index}"
        assert self.core.cancel(request_id) == (request_id in self.fates.waiting)
        if self.fates.waiting.pop(request_id, None):
            self.fates.end(request_id)
        self._proceed()

    @rule(passed_ms=st.integers(0, 90))
    def time_passes(self, passed_ms: int) -> None:
        """Batches end and timers fire at their instants; a wakeup always lies ahead."""
        until = self.now + passed_ms * MS
        for _ in range(1000):
            instants = [ends for _, ends in self.fates.running.values()]
            wakeup = self.core.next_wakeup()
            if wakeup is not None:
                assert wakeup > self.now
                instants.append(wakeup)
            if not instants or min(instants) > until:
                break
            self.now = min(instants)
            self._finish_due()
            self._proceed()
        else:
            raise AssertionError("a thousand happenings in less than 90 ms: something spins")
        self.now = until

    @rule(index=st.integers(0, 2))
    def replica_comes(self, index: int) -> None:
        """One more, unless it lives."""
        replica_id = f"r{index}"
        if replica_id not in self.lives:
            self.lives.add(replica_id)
            self.core.replica_ready(
                replica_id, max_batch=MAX_BATCH, now=self.now, cost=BatchCost((float(OVERHEAD_NS), float(PER_TOKEN_NS)))
            )
            self._proceed()

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), again=st.booleans())
    def replica_dies(self, data: st.DataObject, again: bool) -> None:
        """With whatever it runs, which fails or waits again."""
        replica_id = data.draw(st.sampled_from(sorted(self.lives)))
        self.lives.discard(replica_id)
        lost = self.core.replica_gone(replica_id)
        batch = self.fates.running.pop(replica_id, None)
        assert lost == (batch[0].items if batch else ())
        for item in lost:
            if again:
                self.core.put_back(item)
                self.fates.waiting[item.request_id] = item
            else:
                self.fates.end(item.request_id)
        self._proceed()

    @invariant()
    def everyone_is_accounted_for(self) -> None:
        """arrived = waiting + running + ended; the core's own depth is the truth."""
        running = sum(len(batch.items) for batch, _ in self.fates.running.values())
        assert self.fates.arrived == len(self.fates.waiting) + running + len(self.fates.ended)
        assert self.core.depth == len(self.fates.waiting)
        assert [item.request_id for item in self.core.waiting()] == list(self.fates.waiting)

    @invariant()
    def no_replica_idles_beside_work_it_could_do(self) -> None:
        """Work conservation: with an idle replica nothing waits that it could finish in time (margin included)."""
        if self.lives - self.fates.running.keys():
            for item in self.fates.waiting.values():
                assert item.deadline_ns is not None
                assert self.now + 0.9 * _alone_ns(item) > item.deadline_ns - 0.2 * _alone_ns(item)

    def _proceed(self) -> None:
        for item, refusal in self.core.expire(now=self.now):
            del self.fates.waiting[item.request_id]
            self.fates.end(item.request_id)
            assert item.deadline_ns is not None
            late = item.deadline_ns <= self.now
            assert refusal.code == ("deadline_unreachable" if self.lives else "no_capacity")
            assert late or self.now + 1.5 * _alone_ns(item) > item.deadline_ns
        for batch in self.core.dispatch(now=self.now):
            assert batch.replica_id in self.lives
            assert batch.replica_id not in self.fates.running
            self._start(batch)

    def _start(self, batch: Batch) -> None:
        slots = sum(item.slots for item in batch.items)
        sizes = [min(MAX_TOKENS, max(1, item.tokens)) for item in batch.items]
        assert batch.items
        assert len(batch.items) == 1 or (slots <= MAX_BATCH and sum(sizes) <= MAX_TOKENS)
        ends = self.now + OVERHEAD_NS + PER_TOKEN_NS * sum(sizes)
        for item in batch.items:
            del self.fates.waiting[item.request_id]
            assert item.arrived_ns <= self.now
            assert item.deadline_ns is None or ends <= item.deadline_ns, "exact costs, and dispatched to be late"
        self.fates.running[batch.replica_id] = (batch, ends)

    def _finish_due(self) -> None:
        for replica_id, (batch, ends) in list(self.fates.running.items()):
            if ends <= self.now:
                del self.fates.running[replica_id]
                tokens = sum(min(MAX_TOKENS, max(1, item.tokens)) for item in batch.items)
                finished = self.core.batch_finished(replica_id, now=self.now, duration_ns=OVERHEAD_NS + PER_TOKEN_NS * tokens)
                assert finished == batch
                for item in batch.items:
                    self.fates.end(item.request_id)

    def _may_refuse(self, item: WorkItem, code: str, depth: int) -> bool:
        if code == "queue_full":
            return depth >= 40
        assert item.deadline_ns is not None
        idle = self.lives - self.fates.running.keys()
        can = bool(idle) and self.now + 1.5 * _alone_ns(item) <= item.deadline_ns
        return code == "deadline_unreachable" and not can


def _alone_ns(item: WorkItem) -> int:
    return OVERHEAD_NS + PER_TOKEN_NS * min(MAX_TOKENS, max(1, item.tokens))


BatchingStory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBatchingStory = BatchingStory.TestCase
