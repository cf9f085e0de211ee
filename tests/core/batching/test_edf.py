"""The known rule does what it is known for, so that comparing with it is fair."""

from __future__ import annotations

from halcyon.core.batching.cost import BatchCost
from halcyon.core.batching.item import WorkItem
from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings

MS = 1_000_000


def scheduler(*, max_batch: int = 4, linger_ms: int = 0) -> BatchScheduler:
    """One replica of 20 ms + 0.02 ms a token, known exactly."""
    made = BatchScheduler(BatchSettings(policy="edf", linger_ns=linger_ms * MS), now=0)
    made.replica_ready("r0", max_batch=max_batch, now=0, cost=BatchCost((20.0 * MS, 20_000.0)))
    return made


def item(request_id: str, tokens: int, deadline_ms: int, *, arrived_ms: int = 0) -> WorkItem:
    """A request."""
    return WorkItem(request_id=request_id, arrived_ns=arrived_ms * MS, tokens=tokens, deadline_ns=deadline_ms * MS)


def test_it_waits_until_the_slack_of_the_head_is_used_up() -> None:
    """A batch of 40 ms for a deadline at 100 ms leaves at 60 ms, and says it left for the deadline."""
    edf = scheduler()
    assert edf.arrive(item("a", 1000, 100), now=0) is None
    assert edf.dispatch(now=0) == []
    assert edf.next_wakeup() == 60 * MS
    (batch,) = edf.dispatch(now=60 * MS)
    assert [served.request_id for served in batch.items] == ["a"]
    assert batch.reason == "deadline"


def test_a_full_batch_leaves_at_once_in_order_of_deadline() -> None:
    """Four requests fill the batch: it goes now, earliest deadline first."""
    edf = scheduler()
    for name, deadline_ms in (("a", 900), ("b", 300), ("c", 600), ("d", 400)):
        edf.arrive(item(name, 50, deadline_ms), now=0)
    (batch,) = edf.dispatch(now=0)
    assert [served.request_id for served in batch.items] == ["b", "d", "c", "a"]
    assert batch.reason == "saturated"


def test_it_refuses_what_the_work_ahead_makes_late() -> None:
    """Behind 4 requests of 1000 tokens (100 ms of work) a deadline of 120 ms cannot be met by 1000 tokens more, and the finish is named."""
    edf = scheduler()
    for index in range(4):
        assert edf.arrive(item(f"ahead{index}", 1000, 119), now=0) is None
    refusal = edf.arrive(item("late", 1000, 120), now=0)
    assert refusal is not None
    assert refusal.code == "deadline_unreachable"
    assert refusal.details["predicted_finish_ms"] == 140


def test_linger_bounds_its_wait() -> None:
    """With a linger of 25 ms the batch leaves then, long before the slack is gone."""
    edf = scheduler(linger_ms=25)
    edf.arrive(item("a", 50, 900), now=0)
    assert edf.dispatch(now=0) == []
    assert edf.next_wakeup() == 25 * MS
    assert edf.dispatch(now=25 * MS)[0].reason == "linger"
