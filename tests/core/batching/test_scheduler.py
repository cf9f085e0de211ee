"""What the request-level scheduler promises to everybody who arrives: one ending, in time, with a reason."""

from __future__ import annotations

import pytest

from halcyon.core.batching.cost import BatchCost
from halcyon.core.batching.item import Batch, WorkItem
from halcyon.core.batching.replicas import ReplicaStateError
from halcyon.core.batching.scheduler import BatchScheduler
from halcyon.core.batching.settings import BatchSettings

MS = 1_000_000
S = 1_000_000_000


def scheduler(settings: BatchSettings | None = None, *, replicas: int = 1, max_batch: int = 32, now: int = 0) -> BatchScheduler:
    """Replicas of 18 ms + 0.022 ms a token, believed to be so."""
    made = BatchScheduler(settings or BatchSettings(), now=now)
    for index in range(replicas):
        made.replica_ready(f"r{index}", max_batch=max_batch, now=now, cost=BatchCost((18.0 * MS, 22_000.0)))
    return made


def item(request_id: str, tokens: int = 100, deadline_ms: int | None = 900, *, arrived_ns: int = 0) -> WorkItem:
    """A request that arrived at that instant."""
    deadline_ns = None if deadline_ms is None else arrived_ns + deadline_ms * MS
    return WorkItem(request_id=request_id, arrived_ns=arrived_ns, tokens=tokens, deadline_ns=deadline_ns)


def only(batches: list[Batch]) -> Batch:
    """The one batch."""
    (batch,) = batches
    return batch


def test_an_idle_replica_gets_work_at_once() -> None:
    """Work conserving: nothing is held back by default, and the reason says that waiting gains nothing."""
    core = scheduler()
    assert core.arrive(item("a"), now=0) is None
    batch = only(core.dispatch(now=0))
    assert (batch.replica_id, batch.reason, batch.predicted_ns) == ("r0", "density", 20_200_000)
    assert core.depth == 0


def test_work_is_bound_late() -> None:
    """While every replica is busy requests wait in the queue, and leave together when one is free."""
    core = scheduler()
    core.arrive(item("a"), now=0)
    core.dispatch(now=0)
    for name in ("b", "c"):
        core.arrive(item(name, arrived_ns=MS), now=MS)
    assert core.dispatch(now=MS) == []
    core.batch_finished("r0", now=20 * MS, duration_ns=20 * MS)
    assert {served.request_id for served in only(core.dispatch(now=20 * MS)).items} == {"b", "c"}


def test_an_impossible_deadline_is_refused_on_arrival_with_its_numbers() -> None:
    """4000 tokens take over 106 ms: a deadline in 100 ms is refused at once, with the finish, a deadline that could be met and a retry."""
    core = scheduler()
    refusal = core.arrive(item("a", tokens=4000, deadline_ms=100), now=0)
    assert refusal is not None
    assert refusal.code == "deadline_unreachable"
    assert refusal.details["deadline_ms"] == 100
    assert refusal.details["feasible_deadline_ms"] == refusal.details["predicted_finish_ms"] > 106
    assert refusal.retry_after_ms is not None
    assert refusal.retry_after_ms >= 1


def test_a_deadline_that_has_passed_is_refused_on_arrival() -> None:
    """Even when no replica lives, a request whose deadline is over is not queued."""
    assert BatchScheduler(BatchSettings(), now=0).arrive(item("a", deadline_ms=0), now=0) is not None


def test_the_work_that_runs_counts_against_an_arrival() -> None:
    """Behind a batch of 106 ms, 100 ms are not enough for 20 ms of work; 140 ms are."""
    core = scheduler()
    core.arrive(item("a", tokens=4000), now=0)
    core.dispatch(now=0)
    assert core.arrive(item("b", deadline_ms=100), now=0) is not None
    assert core.arrive(item("c", deadline_ms=140), now=0) is None


def test_the_queue_is_bounded() -> None:
    """Past the bound the answer is queue_full with a computed retry."""
    core = scheduler(BatchSettings(max_queue=2), replicas=0)
    assert [core.arrive(item(str(index)), now=0) for index in range(2)] == [None, None]
    refusal = core.arrive(item("2"), now=0)
    assert refusal is not None
    assert (refusal.code, refusal.details["queue_depth"]) == ("queue_full", 2)


def test_retries_do_not_come_back_together() -> None:
    """Requests refused in one tick are told times that differ by up to ±20 %, the same ones each time."""
    core = scheduler(BatchSettings(max_queue=1), replicas=0)
    core.arrive(item("first"), now=0)
    told = [core.arrive(item(str(index)), now=0) for index in range(200)]
    times = [refusal.retry_after_ms for refusal in told if refusal is not None and refusal.retry_after_ms is not None]
    assert len(set(times)) > 50
    assert 790 <= min(times) < 850 < 1150 < max(times) <= 1210


def test_a_queued_request_ends_on_time_while_the_replica_is_busy() -> None:
    """Fault: expiry is noticed only when the running batch ends. Here the wakeup is the first instant at which it is too late."""
    core = scheduler()
    core.arrive(item("running", tokens=4000), now=0)
    core.dispatch(now=0)
    core.arrive(item("waits", tokens=100, deadline_ms=150), now=0)
    wakeup = core.next_wakeup()
    assert wakeup is not None
    assert wakeup < 150 * MS
    assert core.expire(now=wakeup - 1) == []
    ((ended, refusal),) = core.expire(now=wakeup)
    assert (ended.request_id, refusal.code) == ("waits", "deadline_unreachable")
    assert core.next_wakeup() is None


def test_a_queue_without_replicas_empties_by_deadline_for_want_of_capacity() -> None:
    """All replicas lost: every request ends at its very deadline as no_capacity, not as deadline_unreachable."""
    core = scheduler()
    core.replica_gone("r0")
    for index in range(5):
        assert core.arrive(item(str(index), deadline_ms=100 + index), now=0) is None
    for index in range(5):
        wakeup = core.next_wakeup()
        assert wakeup == (100 + index) * MS
        ((ended, refusal),) = core.expire(now=wakeup)
        assert (ended.request_id, refusal.code) == (str(index), "no_capacity")
    assert (core.depth, core.next_wakeup()) == (0, None)


def test_losing_a_replica_returns_what_it_ran() -> None:
    """The shell learns which requests to retry or fail, and the replica takes no more work."""
    core = scheduler()
    core.arrive(item("a"), now=0)
    core.dispatch(now=0)
    assert [lost.request_id for lost in core.replica_gone("r0")] == ["a"]
    core.arrive(item("b"), now=0)
    assert core.dispatch(now=0) == []


def test_cancelling_while_queued_frees_the_place() -> None:
    """A client that leaves is never dispatched; a second cancel finds nothing."""
    core = scheduler(replicas=0)
    core.arrive(item("a"), now=0)
    assert core.cancel("a")
    assert not core.cancel("a")
    core.replica_ready("r0", max_batch=32, now=0)
    assert core.dispatch(now=0) == []
    assert core.next_wakeup() is None


@pytest.mark.parametrize("tokens", [0, -5, 10**12])
def test_poisoned_sizes_are_held_in_bounds(tokens: int) -> None:
    """A predicted size of nothing, less than nothing or a trillion is served all the same, sized within [1, largest batch]."""
    core = scheduler()
    assert core.arrive(item("a", tokens=tokens, deadline_ms=None), now=0) is None
    assert 1 <= only(core.dispatch(now=0)).tokens <= 16_384


def test_requests_without_a_deadline_never_expire_and_are_not_starved() -> None:
    """A request without an objective waits through an hour of better ones, and then runs."""
    core = scheduler(max_batch=1)
    core.arrive(item("busy"), now=0)
    core.dispatch(now=0)
    core.arrive(item("patient", tokens=3000, deadline_ms=None), now=0)
    served = []
    for step in range(1, 700):
        now = step * 20 * MS
        core.arrive(item(f"u{step}", tokens=16, deadline_ms=200, arrived_ns=now), now=now)
        core.arrive(item(f"v{step}", tokens=16, deadline_ms=200, arrived_ns=now), now=now)
        core.expire(now=now)
        core.batch_finished("r0", now=now, duration_ns=18_352_000)
        served += [done.request_id for batch in core.dispatch(now=now) for done in batch.items]
    assert "patient" in served


def test_linger_waits_for_company_and_says_when() -> None:
    """With a linger of 30 ms a lone request leaves 30 ms after it arrived, unless its slack is shorter."""
    core = scheduler(BatchSettings(linger_ns=30 * MS))
    core.arrive(item("a", arrived_ns=5 * MS), now=5 * MS)
    assert core.dispatch(now=5 * MS) == []
    assert core.next_wakeup() == 35 * MS
    assert only(core.dispatch(now=35 * MS)).reason == "linger"
    tight = scheduler(BatchSettings(linger_ns=30 * MS))
    tight.arrive(item("b", deadline_ms=40), now=0)
    tight.dispatch(now=0)
    wakeup = tight.next_wakeup()
    assert wakeup is not None
    assert wakeup < 20 * MS
    assert only(tight.dispatch(now=wakeup)).reason == "deadline"


def test_slack_that_converges_to_zero_is_spent_not_waited_for() -> None:
    """Fault: a timer re-armed for ever smaller waits. Less than a quantum of slack sends at once; every wakeup lies a quantum ahead."""
    core = scheduler(BatchSettings(linger_ns=500 * MS, probe_after_ns=None))
    core.arrive(item("a", deadline_ms=60), now=0)
    now, wakeups = 0, 0
    while not core.dispatch(now=now):
        wakeup = core.next_wakeup()
        assert wakeup is not None
        assert wakeup >= now + MS
        now, wakeups = wakeup, wakeups + 1
        core.expire(now=now)
    assert wakeups == 1
    almost = scheduler(BatchSettings(linger_ns=500 * MS, probe_after_ns=None))
    span_ms = 24  # safe time is 22.2 ms with the initial margin: 1.8 ms of slack are waited for, the rest is not
    almost.arrive(item("b", deadline_ms=span_ms), now=0)
    assert almost.dispatch(now=MS) != []


def test_draining_holds_nothing_back() -> None:
    """When no more work is to come, linger is pointless."""
    core = scheduler(BatchSettings(linger_ns=500 * MS))
    core.drain()
    core.arrive(item("a"), now=0)
    assert only(core.dispatch(now=0)).reason == "drain"


def test_a_wrong_cost_model_hears_of_it() -> None:
    """A model that believes in 10 s of overhead refuses everything; after ten idle seconds it tries one request and learns."""
    core = BatchScheduler(BatchSettings(), now=0)
    core.replica_ready("r0", max_batch=32, now=0, cost=BatchCost((10_000.0 * MS, 22_000.0)))
    assert core.arrive(item("a", arrived_ns=0), now=0) is not None
    later = 11 * S
    assert core.arrive(item("b", arrived_ns=later), now=later) is None
    only(core.dispatch(now=later))
    core.batch_finished("r0", now=later + 20 * MS, duration_ns=20 * MS)
    assert core.arrive(item("c", arrived_ns=later + 20 * MS), now=later + 20 * MS) is None


def test_the_fastest_idle_replica_is_asked_first() -> None:
    """Of two idle replicas the one with the faster fit gets the work."""
    core = BatchScheduler(BatchSettings(), now=0)
    core.replica_ready("slow", max_batch=32, now=0, cost=BatchCost((40.0 * MS, 50_000.0)))
    core.replica_ready("fast", max_batch=32, now=0, cost=BatchCost((10.0 * MS, 10_000.0)))
    core.arrive(item("a"), now=0)
    assert only(core.dispatch(now=0)).replica_id == "fast"


def test_a_slow_replica_is_not_given_what_only_a_fast_one_can_do() -> None:
    """A request that only the busy fast replica can serve in time waits for it while the slow one idles."""
    core = BatchScheduler(BatchSettings(), now=0)
    core.replica_ready("slow", max_batch=1, now=0, cost=BatchCost((200.0 * MS, 50_000.0)))
    core.replica_ready("fast", max_batch=1, now=0, cost=BatchCost((10.0 * MS, 10_000.0)))
    core.arrive(item("a"), now=0)
    core.dispatch(now=0)
    assert core.arrive(item("b", deadline_ms=100), now=0) is None
    assert core.dispatch(now=0) == []
    core.batch_finished("fast", now=11 * MS, duration_ns=11 * MS)
    assert only(core.dispatch(now=11 * MS)).replica_id == "fast"


def test_a_replica_cannot_finish_what_it_does_not_run() -> None:
    """A second ending of one batch is a broken promise and raises; nothing is counted."""
    core = scheduler()
    core.arrive(item("a"), now=0)
    core.dispatch(now=0)
    core.batch_finished("r0", now=20 * MS, duration_ns=20 * MS)
    with pytest.raises(ReplicaStateError, match="idle"):
        core.batch_finished("r0", now=21 * MS)


def test_shifting_all_instants_changes_no_decision() -> None:
    """The same story told a year later gives the same batches."""

    def story(start: int) -> list[tuple[str, ...]]:
        core = scheduler(now=start)
        sent: list[tuple[str, ...]] = []
        for index in range(60):
            now = start + index * 7 * MS
            core.arrive(item(f"q{index}", tokens=20 + 37 * index % 900, deadline_ms=120 + 100 * (index % 5), arrived_ns=now), now=now)
            core.expire(now=now)
            if index % 9 == 8:
                core.batch_finished("r0", now=now, duration_ns=60 * MS)
            sent += [tuple(served.request_id for served in batch.items) for batch in core.dispatch(now=now)]
        return sent

    assert story(0) == story(365 * 86_400 * S)


@pytest.mark.parametrize("bad", [{"max_queue": 0}, {"reserve_permille": 1001}, {"linger_ns": -1}])
def test_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    """The message names the field and the bound."""
    with pytest.raises(ValueError, match=next(iter(bad))):
        BatchSettings(**bad)
