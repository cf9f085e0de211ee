"""Clients that leave, and counters that must not drift."""

from __future__ import annotations

import random

from core_story import Story, cancelled, refused, sent

from halcyon.core.actions import Action
from halcyon.core.events import ReplicaLost, ReplicaReady


def test_a_client_that_leaves_the_queue_is_forgotten(story: Story) -> None:
    """Queued: nothing to cancel, no slot taken later, not even its deadline is kept."""
    story.replica("a", max_batch=1)
    story.arrive("running")
    story.arrive("waiting", deadline_ns=100)
    assert story.gone("waiting") == []
    assert story.plane.next_wakeup() is None
    assert story.finish("running", "a") == []


def test_a_client_that_leaves_a_replica_is_cancelled_and_its_slots_stay_taken(story: Story) -> None:
    """Fault: a slot is freed before the replica freed it. Cancel goes out once; the slots come back with the replica's report."""
    story.replica("a", max_batch=2)
    story.arrive("r", sequences=2)
    story.arrive("next", sequences=2)
    assert cancelled(story.gone("r")) == {"r": "a"}
    assert story.gone("r") == []
    assert story.finish("r", "a", 1) == []
    assert sent(story.finish("r", "a", 1)) == {"a": ("next",)}
    totals = story.plane.totals()
    assert (totals.gone, totals.finished, totals.in_flight) == (1, 0, 1)


def test_a_cancelled_request_is_not_retried(story: Story) -> None:
    """The replica of a client that left dies, or fails the request: its slots are free and nothing runs for it elsewhere."""
    story.replica("a")
    story.replica("b")
    story.arrive_all("r", "s")
    story.gone("r")
    story.gone("s")
    assert story.fail("r", story.where("r")) == []
    assert story.tell(ReplicaLost(story.where("s"), "killed")) == []
    assert story.plane.outstanding() == {"a": 0, "b": 0}


def test_unknown_clients_and_late_reports_are_ignored(story: Story) -> None:
    """News of what is over, or never was, changes nothing."""
    story.replica("a")
    story.arrive("r")
    story.finish("r", "a")
    for orders in (story.gone("r"), story.gone("nobody"), story.finish("r", "a"), story.first_byte("r"), story.fail("r", "a")):
        assert orders == []
    assert story.plane.totals().finished == 1
    assert story.plane.outstanding() == {"a": 0}


def test_a_report_of_a_former_life_does_not_free_a_slot_twice(story: Story) -> None:
    """After a request moved to another replica, what the first one still says about it is ignored."""
    story.replica("a")
    story.arrive("r")
    story.replica("b")
    story.fail("r", "a")
    assert story.where("r") == "b"
    assert story.finish("r", "a") == []
    assert story.plane.outstanding() == {"a": 0, "b": 1}
    assert (story.plane.totals().in_flight, story.plane.totals().finished) == (1, 0)


def test_a_replica_that_reports_too_much_frees_only_what_was_held(story: Story) -> None:
    """Three ends reported for one sequence free one slot."""
    story.replica("a")
    story.arrive_all("r", "s")
    story.finish("r", "a", 3)
    assert story.plane.outstanding() == {"a": 1}


def test_overload_then_idle_recovers_completely() -> None:
    """Fault: in-flight counters are repaired by a timer. 2,000 requests, clients leaving at random, and at the end every gauge is 0."""
    story, dice = Story(max_queue=50), random.Random(5)
    story.replica("a", max_batch=8)
    story.replica("b", max_batch=8, kind="batch")
    running: list[tuple[str, str]] = []

    def note(orders: list[Action]) -> None:
        running.extend((request_id, replica_id) for replica_id, request_ids in sent(orders).items() for request_id in request_ids)

    def finish_one() -> None:
        request_id, replica_id = running.pop(dice.randrange(len(running)))
        note(story.finish(request_id, replica_id, 2))

    for number in range(2000):
        note(story.at(number).arrive(f"r{number}", sequences=dice.choice((1, 1, 2)), deadline_ns=number + 60))
        if dice.random() < 0.3:
            note(story.gone(f"r{dice.randrange(max(0, number - 40), number + 1)}"))
        if running and dice.random() < 0.6:
            finish_one()
    while running:
        finish_one()
    totals = story.plane.totals()
    assert (totals.queued, totals.in_flight) == (0, 0)
    assert story.plane.outstanding() == {"a": 0, "b": 0}
    assert totals.arrived == totals.finished + totals.refused + totals.gone == 2000
    assert min(totals.finished, totals.refused, totals.gone) > 100
    assert sent(story.arrive("after", sequences=8)) != {}


def test_every_accepted_request_gets_an_answer_when_nothing_ever_comes_back(story: Story) -> None:
    """Fault: overflow leaves connections open for ever. A silent replica holds its own two; all that wait are answered on time."""
    story.replica("a", max_batch=2)
    for number in range(20):
        story.arrive(f"r{number}", deadline_ns=500)
    assert len(refused(story.at(500).timer())) == 18
    assert story.plane.totals().in_flight == 2


def test_a_storm_of_departures_while_a_replica_restarts_leaves_nothing(story: Story) -> None:
    """Clients leave before, during and after a restart; the replica comes back to empty books."""
    story.replica("a", max_batch=4)
    story.arrive_all(*(f"r{number}" for number in range(8)))
    for number in (0, 5):
        story.gone(f"r{number}")
    story.tell(ReplicaLost("a", "killed"))
    for number in (1, 6):
        story.gone(f"r{number}")
    story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=4))
    for number in (2, 3, 4, 7):
        story.gone(f"r{number}")
        story.finish(f"r{number}", "a")
    assert story.plane.outstanding() == {"a": 0}
    assert story.plane.totals().gone == 8


def test_a_client_that_left_in_the_middle_is_told_nothing_more(story: Story) -> None:
    """It saw a byte, left, and then its replica died: the request has ended once already."""
    story.replica("a")
    story.arrive("r")
    story.first_byte("r")
    story.gone("r")
    assert story.tell(ReplicaLost("a", "killed")) == []
    assert (story.plane.totals().gone, story.plane.totals().failed) == (1, 0)
