"""`scale`: what one decision costs, in µs of real time, by queue depth and by number of replicas.

A decision is what a shell asks for one fact: the fact itself (an arrival, a batch ending), `expire`, `dispatch`, `next_wakeup`. The queue
is held at its depth: each ending is followed by as many arrivals as left. This suite reads the clock, so it is no function of the seed
alone and runs only when it is named.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from halcyon.clock import now_ns
from halcyon.core.batching.item import Batch, WorkItem
from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings
from halcyon.sim.chance import Mulberry32
from halcyon.sim.clock import NS_PER_MS
from halcyon.sim.devices import BatchDevice, BatchLaw
from halcyon.sim.suites.steps import Progress, Steps, ignore

DEPTHS = (16, 128, 512, 2048, 16_384)
REPLICAS = (2, 16, 200, 2000)
REFERENCE_DEPTH = 512
REFERENCE_REPLICAS = 16
MAX_BATCH = 32
DECISIONS = 12_000
QUICK_DECISIONS = 2_000
TOKENS_PER_MS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Real time of one kind of decision, µs."""

    count: int
    median_us: float
    p99_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One depth and number of replicas."""

    depth: int
    replicas: int
    arrival: Timing
    completion: Timing
    all: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The suite's result."""

    suite: str
    seed: int
    points: tuple[Point, ...]


class _Load:
    """A scheduler held at a depth, and the stopwatch on its decisions."""

    def __init__(self, depth: int, replicas: int, seed: int) -> None:
        self._depth = depth
        self._chance = Mulberry32(seed)
        self._device = BatchDevice(BatchLaw(), seed + 1)
        self._scheduler = BatchScheduler(BatchSettings(max_queue=2 * depth + MAX_BATCH), now=0)
        self._running: deque[tuple[int, Batch]] = deque()
        self._now = 0
        self._arrived = 0
        self._step_ns = int(60 * NS_PER_MS / replicas)
        self._span_ms = max(120.0, depth * 180 / TOKENS_PER_MS / replicas)
        for index in range(replicas):
            self._scheduler.replica_ready(f"r{index}", max_batch=MAX_BATCH, now=0)
        self.arrivals_ns: list[int] = []
        self.completions_ns: list[int] = []

    def run(self, decisions: int) -> None:
        """Warms up until every replica is busy and the queue is deep, then measures."""
        while self._scheduler.depth < self._depth:
            self._arrive()
        for _ in range(64):
            self._complete_one()
        self.arrivals_ns.clear()
        self.completions_ns.clear()
        while len(self.arrivals_ns) + len(self.completions_ns) < decisions:
            self._complete_one()

    def _complete_one(self) -> None:
        self._now += self._step_ns
        started_ns, batch = self._running.popleft()
        duration_ns = self._device.duration_ns(batch.tokens, now=started_ns)
        self.completions_ns.append(self._timed(lambda: self._finish(batch, duration_ns)))
        missing = self._depth - self._scheduler.depth
        for index in range(missing):
            self._now += self._step_ns // (missing + 1) if index else 0
            self._arrive()

    def _finish(self, batch: Batch, duration_ns: int) -> None:
        self._scheduler.batch_finished(batch.replica_id, now=self._now, duration_ns=duration_ns)

    def _arrive(self) -> None:
        self._arrived += 1
        tokens = min(4096, max(16, round(math.exp(4.8 + 0.9 * self._chance.normal()))))
        urgent = self._chance.uniform() < 0.3
        span_ns = round((120.0 if urgent else 120.0 + self._span_ms * (0.5 + self._chance.uniform())) * NS_PER_MS)
        item = WorkItem(request_id=str(self._arrived), arrived_ns=self._now, tokens=tokens, deadline_ns=self._now + span_ns)
        self.arrivals_ns.append(self._timed(lambda: self._scheduler.arrive(item, now=self._now)))

    def _timed(self, tell: Callable[[], object]) -> int:
        started_ns = now_ns()
        tell()
        self._scheduler.expire(now=self._now)
        sent = self._scheduler.dispatch(now=self._now)
        self._scheduler.next_wakeup()
        spent_ns = now_ns() - started_ns
        self._running.extend((self._now, batch) for batch in sent)
        return spent_ns


def run(seed: int, *, quick: bool, progress: Progress = ignore) -> Result:
    """Measures at every depth with the reference replicas, and at every number of replicas at the reference depth."""
    places = dict.fromkeys([(depth, REFERENCE_REPLICAS) for depth in DEPTHS] + [(REFERENCE_DEPTH, replicas) for replicas in REPLICAS])
    points: list[Point] = []
    steps = Steps(len(places), progress)
    for depth, replicas in places:
        steps.begin(f"depth {depth}, {replicas} replicas")
        load = _Load(depth, replicas, seed)
        load.run(QUICK_DECISIONS if quick else DECISIONS)
        points.append(
            Point(
                depth=depth,
                replicas=replicas,
                arrival=_timing(load.arrivals_ns),
                completion=_timing(load.completions_ns),
                all=_timing(load.arrivals_ns + load.completions_ns),
            )
        )
    return Result(suite="scale", seed=seed, points=tuple(points))


def _timing(spent_ns: list[int]) -> Timing:
    ordered = sorted(spent_ns)
    if not ordered:
        return Timing(count=0, median_us=0.0, p99_us=0.0)
    return Timing(count=len(ordered), median_us=ordered[len(ordered) // 2] / 1000, p99_us=ordered[len(ordered) * 99 // 100] / 1000)
