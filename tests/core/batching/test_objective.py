"""The objective says whom to prefer when not everyone can be served."""

from __future__ import annotations

import math
import random

from halcyon.core.batching.item import WorkItem
from halcyon.core.batching.objective import Objective, rank, worth
from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings

MS = 1_000_000
S = 1_000_000_000


def test_rank_and_worth_by_objective() -> None:
    """count: size and one; tokens: all alike and size; weighted: size per weight and weight."""
    item = WorkItem(request_id="a", arrived_ns=0, tokens=300, weight=3.0)
    assert (rank("count", item, 300), worth("count", item, 300)) == (300, 1.0)
    assert (rank("tokens", item, 300), worth("tokens", item, 300)) == (1, 300.0)
    assert (rank("weighted", item, 300), worth("weighted", item, 300)) == (100, 3.0)


def served(objective: Objective) -> list[WorkItem]:
    """What is served on time in 10 s of several times the load a device can bear; every tenth request weighs ten times as much."""
    scheduler = BatchScheduler(BatchSettings(objective=objective), now=0)
    scheduler.replica_ready("r0", max_batch=32, now=0)
    rng = random.Random(3)
    done: list[WorkItem] = []
    free_ns = duration_ns = 0
    running = False
    for index in range(8000):
        now = index * S // 800
        while running and free_ns <= now:
            batch = scheduler.batch_finished("r0", now=free_ns, duration_ns=duration_ns)
            done += [item for item in batch.items if item.deadline_ns is not None and free_ns <= item.deadline_ns]
            scheduler.expire(now=free_ns)
            sent = scheduler.dispatch(now=free_ns)
            running = bool(sent)
            if sent:
                duration_ns = sent[0].tokens * 22_000 + 18 * MS
                free_ns += duration_ns
        tokens = min(4096, max(16, round(math.exp(4.8 + 0.9 * rng.gauss(0, 1)))))
        weight = 10.0 if index % 10 == 0 else 1.0
        item = WorkItem(request_id=str(index), arrived_ns=now, tokens=tokens, deadline_ns=now + 500 * MS, weight=weight)
        scheduler.arrive(item, now=now)
        scheduler.expire(now=now)
        for batch in scheduler.dispatch(now=now):
            duration_ns = batch.tokens * 22_000 + 18 * MS
            free_ns, running = now + duration_ns, True
    return done


def test_each_objective_wins_what_it_asks_for() -> None:
    """Under overload `count` serves most requests, `tokens` most tokens and `weighted` most weight of the three."""
    by = {objective: served(objective) for objective in ("count", "tokens", "weighted")}
    counts = {name: len(items) for name, items in by.items()}
    tokens = {name: sum(item.tokens for item in items) for name, items in by.items()}
    weights = {name: sum(item.weight for item in items) for name, items in by.items()}
    assert max(counts, key=counts.__getitem__) == "count"
    assert max(tokens, key=tokens.__getitem__) == "tokens"
    assert max(weights, key=weights.__getitem__) == "weighted"
    assert counts["count"] > 1.2 * counts["tokens"]
    assert weights["weighted"] > 1.1 * weights["count"]
