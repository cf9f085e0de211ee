"""The batch former against exhaustive search on small instances, and the promise about size it makes."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from halcyon.core.batching.cost import BatchCost
from halcyon.core.batching.item import WorkItem
from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings

MS = 1_000_000
OVERHEAD_NS = 18 * MS
PER_TOKEN_NS = 22_000
MAX_BATCH = 4

Instance = list[tuple[int, int]]
"""(tokens, ms to the deadline) of requests that all arrive at 0."""


def duration_ns(tokens: int) -> int:
    """The device, exactly."""
    return OVERHEAD_NS + PER_TOKEN_NS * tokens


def optimum(instance: Instance) -> int:
    """The most requests that can be on time: over all sets, the least time in which exactly this set can be served, none late."""
    full = 1 << len(instance)
    tokens = [sum(t for i, (t, _) in enumerate(instance) if mask >> i & 1) for mask in range(full)]
    due = [min((d * MS for i, (_, d) in enumerate(instance) if mask >> i & 1), default=0) for mask in range(full)]
    ends: list[int | None] = [0, *([None] * (full - 1))]
    best = 0
    for mask in range(1, full):
        batch = mask
        while batch:
            before = ends[mask ^ batch]
            if before is not None and batch.bit_count() <= MAX_BATCH:
                end = before + duration_ns(tokens[batch])
                if end <= due[batch] and (ends[mask] is None or end < (ends[mask] or 0)):
                    ends[mask] = end
            batch = (batch - 1) & mask
        if ends[mask] is not None:
            best = max(best, mask.bit_count())
    return best


def served(instance: Instance) -> set[int]:
    """Whom the scheduler serves on time, with exact costs; nobody is dispatched to be late."""
    core = BatchScheduler(BatchSettings(reserve_permille=0, probe_after_ns=None), now=0)
    for index, (tokens, deadline_ms) in enumerate(instance):
        core.arrive(WorkItem(request_id=str(index), arrived_ns=0, tokens=tokens, deadline_ns=deadline_ms * MS), now=0)
    core.replica_ready("r0", max_batch=MAX_BATCH, now=0, cost=BatchCost((float(OVERHEAD_NS), float(PER_TOKEN_NS))))
    done: set[int] = set()
    now = 0
    core.expire(now=now)
    while batches := core.dispatch(now=now):
        now += duration_ns(batches[0].tokens)
        core.batch_finished("r0", now=now)
        for item in batches[0].items:
            assert item.deadline_ns is not None
            assert now <= item.deadline_ns
            done.add(int(item.request_id))
        core.expire(now=now)
    return done


def test_small_instances_come_near_the_optimum() -> None:
    """Over 150 random instances of seven requests, knowing nothing of the traffic, at least 80 % of what exhaustive search serves."""
    rng = random.Random(11)
    ours = best = 0
    for _ in range(150):
        instance = [(rng.choice((20, 100, 300, 900)), rng.choice((30, 60, 120, 200))) for _ in range(7)]
        found = len(served(instance))
        exact = optimum(instance)
        assert found <= exact
        ours, best = ours + found, best + exact
    assert ours >= 0.8 * best


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 900), st.sampled_from((40, 80, 120, 300))), min_size=2, max_size=12))
def test_of_two_alike_the_larger_is_never_served_instead_of_the_smaller(instance: Instance) -> None:
    """Monotone shedding: equal arrival and deadline, different size, no reserve: the smaller one is not the one that is lost."""
    done = served(instance)
    for small, (small_tokens, small_due) in enumerate(instance):
        for large, (large_tokens, large_due) in enumerate(instance):
            if small_due == large_due and small_tokens < large_tokens and large in done:
                assert small in done
