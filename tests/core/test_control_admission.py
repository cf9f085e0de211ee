"""Who may wait, and what those who may not are told."""

from __future__ import annotations

import pytest
from core_story import Story, refused, sent

from halcyon.core.actions import Refusal, Refuse
from halcyon.core.events import DrainStarted, ReplicaAdded, ReplicaDrainStarted, ReplicaLost, ReplicaReady, ReplicaRemoved
from halcyon.core.rollout.versions import Resolved


def refusal_of(actions: list[object]) -> Refusal:
    """The one refusal in `actions`."""
    (refuse,) = [action for action in actions if isinstance(action, Refuse)]
    return refuse.refusal


def test_a_request_without_a_version_gets_the_first_declared() -> None:
    """`m` means m@v1, `m@v2` and (`m`, v2) mean m@v2."""
    story = Story()
    assert story.plane.resolve("m") == Resolved("m", "v1")
    assert story.plane.resolve("m@v2") == story.plane.resolve("m", "v2") == Resolved("m", "v2")


def test_an_unknown_version_is_refused_before_a_request_exists_and_after(story: Story) -> None:
    """model_not_found names the versions that exist, from `resolve` and from an arrival alike."""
    asked = story.plane.resolve("m@v9")
    assert isinstance(asked, Refusal)
    assert "v1, v2" in asked.message
    assert refusal_of(story.arrive("r", version="v9")) == asked


def test_a_registered_replica_brings_its_model_along(story: Story) -> None:
    """A replica of a model no file declared makes that model known."""
    story.tell(ReplicaAdded(replica_id="x", model="other", version="v7", kind="continuous", max_batch=1))
    assert story.plane.resolve("other") == Resolved("other", "v7")


def test_a_full_queue_refuses_with_a_computed_retry_after() -> None:
    """Fault: no Retry-After, or a constant. 3 waiting, one finish each 50 ms: come back in 150 ms; unknown rate: one second."""
    story = Story(max_queue=3)
    story.replica("a", max_batch=1)
    story.arrive_all("r0", "r1", "r2", "r3")
    unknown = refusal_of(story.arrive("r4"))
    assert (unknown.code, unknown.retry_after_ms) == ("queue_full", 1000)
    story.at(50_000_000).finish("r0", "a")
    story.at(100_000_000).finish("r1", "a")
    story.arrive_all("r5", "r6")
    known = refusal_of(story.arrive("r7"))
    assert known.code == "queue_full"
    assert known.retry_after_ms == 150
    assert known.details == {"queued": 3, "max_queue": 3}


def test_queues_of_versions_do_not_share_their_bound() -> None:
    """Fault: one shared pool lets an idle model hide a saturated one. v1 is full, v2 still admits."""
    story = Story(max_queue=1)
    story.replica("a", max_batch=1)
    story.replica("b", max_batch=1, version="v2")
    story.arrive_all("r0", "r1")
    assert refused(story.arrive("r2")) == {"r2": "queue_full"}
    assert sent(story.arrive("s0", version="v2")) == {"b": ("s0",)}


def test_a_deadline_that_has_passed_is_refused_on_arrival(story: Story) -> None:
    """At exactly the deadline a request that has not begun is late, though a slot is free."""
    story.replica("a")
    assert refused(story.at(100).arrive("r", arrived_ns=0, deadline_ns=100)) == {"r": "deadline_unreachable"}
    assert sent(story.arrive("s", arrived_ns=0, deadline_ns=101)) == {"a": ("s",)}


def test_a_model_without_any_replica_refuses_at_once(story: Story) -> None:
    """No live replica and none to come: no_capacity, not a wait; a retry is not suggested, for it cannot help."""
    refusal = refusal_of(story.arrive("r"))
    assert (refusal.code, refusal.retry_after_ms) == ("no_capacity", None)


def test_requests_wait_for_a_replica_that_loads(story: Story) -> None:
    """Fault: a worker still loading is selected and the request hangs. It waits in the queue and runs once the replica is ready."""
    story.tell(ReplicaAdded(replica_id="a", model="m", version="v1", kind="continuous", max_batch=2))
    assert story.arrive("r") == []
    assert sent(story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=2))) == {"a": ("r",)}


def test_more_answers_than_any_replica_serves_are_refused_by_name(story: Story) -> None:
    """n = 5 where no replica has 5 slots: invalid_request that names n and the most there is."""
    story.replica("a", max_batch=4)
    refusal = refusal_of(story.arrive("r", sequences=5))
    assert refusal.code == "invalid_request"
    assert refusal.details == {"n": 5, "max_n": 4}


def test_a_replica_that_turns_out_smaller_releases_who_cannot_fit(story: Story) -> None:
    """A request admitted for 4 slots is refused when the replica reports 2, rather than waiting for ever."""
    story.tell(ReplicaAdded(replica_id="a", model="m", version="v1", kind="continuous", max_batch=4))
    story.arrive("r", sequences=3)
    assert refused(story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=2))) == {"r": "invalid_request"}


@pytest.mark.parametrize("end", [ReplicaRemoved("a"), ReplicaDrainStarted("a")])
def test_a_queue_whose_last_replica_goes_is_answered(story: Story, end: ReplicaRemoved | ReplicaDrainStarted) -> None:
    """Fault: overflow leaves connections open for ever. Nobody waits for a replica that will not come."""
    story.replica("a", max_batch=1)
    story.arrive_all("r0", "r1", "r2")
    answers = refused(story.tell(end))
    assert answers["r1"] == answers["r2"] == "no_capacity"
    assert refused(story.arrive("r3")) == {"r3": "no_capacity"}


def test_a_lost_replica_is_waited_for(story: Story) -> None:
    """A replica that is lost and may come back keeps its queue."""
    story.replica("a", max_batch=1)
    story.tell(ReplicaLost("a", "killed"))
    assert story.arrive("r") == []
    assert sent(story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=1))) == {"a": ("r",)}


@pytest.mark.parametrize(
    ("pin", "code"),
    [("nobody", "not_found"), ("of-v2", "invalid_request"), ("draining", "no_capacity")],
)
def test_a_pin_that_cannot_be_kept_is_refused(story: Story, pin: str, code: str) -> None:
    """A pinned request never runs elsewhere: unknown, wrong version and draining replicas each have their code."""
    story.replica("a")
    story.replica("of-v2", version="v2")
    story.replica("draining")
    story.tell(ReplicaDrainStarted("draining"))
    assert refused(story.arrive("r", replica_id=pin)) == {"r": code}


def test_a_pin_is_honoured_although_others_are_emptier(story: Story) -> None:
    """A pinned request waits for its replica while others are free, and lets the rest of the queue pass."""
    story.replica("a", max_batch=1)
    story.replica("b", max_batch=4)
    story.arrive("r0", replica_id="a")
    assert story.arrive("r1", replica_id="a") == []
    assert sent(story.arrive("r2")) == {"b": ("r2",)}
    assert sent(story.finish("r0", "a")) == {"a": ("r1",)}


def test_a_draining_daemon_admits_nothing_and_finishes_everything(story: Story) -> None:
    """New requests get no_capacity with a retry hint; queued and running ones finish; the end is announced once."""
    story.replica("a", max_batch=1)
    story.arrive_all("r0", "r1")
    assert story.tell(DrainStarted()) == []
    refusal = refusal_of(story.arrive("r2"))
    assert refusal.code == "no_capacity"
    assert refusal.retry_after_ms is not None
    assert refusal.retry_after_ms >= 1
    assert sent(story.finish("r0", "a")) == {"a": ("r1",)}
    assert [type(action).__name__ for action in story.finish("r1", "a")] == ["DrainFinished"]
    assert story.timer() == []


def test_an_idle_daemon_drains_at_once(story: Story) -> None:
    """With nothing queued or running the drain is over in the same call, and told once."""
    assert [type(action).__name__ for action in story.tell(DrainStarted())] == ["DrainFinished"]
    assert story.tell(DrainStarted()) == []


def test_an_id_in_use_raises_and_changes_nothing(story: Story) -> None:
    """A second request or replica under a living id is the shell's fault: an exception, and not a trace in the books."""
    story.replica("a", max_batch=1)
    story.arrive_all("running", "waiting", deadline_ns=50)
    before = story.plane.totals()
    for request_id in ("running", "waiting"):
        with pytest.raises(ValueError, match="in use"):
            story.at(60).arrive(request_id)
    with pytest.raises(ValueError, match="in use"):
        story.replica("a")
    assert story.plane.totals() == before
    assert refused(story.timer()) == {"waiting": "deadline_unreachable", "running": "deadline_unreachable"}


def test_a_rate_is_not_carried_over_an_idle_hour() -> None:
    """After everything ended, the next busy period begins without a rate: one second, not an hour's share."""
    story = Story(max_queue=1)
    story.replica("a", max_batch=1)
    story.arrive_all("r0", "r1")
    story.at(1_000_000).finish("r0", "a")
    story.at(2_000_000).finish("r1", "a")
    story.at(3_600_000_000_000).arrive_all("s0", "s1")
    assert refusal_of(story.arrive("s2")).retry_after_ms == 1000
