"""What runs past its deadline is stopped, at the deadline and not before, and its slots return when the replica says so."""

from __future__ import annotations

import pytest
from core_story import Story, cancelled, failed, refused, sent


def test_an_answer_nobody_saw_is_refused_at_its_deadline(story: Story) -> None:
    """Running at its deadline: on time still; 1 ns later it is cancelled where it runs and refused as deadline_unreachable."""
    story.replica("a", max_batch=1)
    story.arrive("r", deadline_ns=100)
    assert story.plane.next_wakeup() == 101
    assert story.at(100).timer() == []
    actions = story.at(101).timer()
    assert cancelled(actions) == {"r": "a"}
    assert refused(actions) == {"r": "deadline_unreachable"}
    assert story.plane.next_wakeup() is None


def test_an_answer_that_began_fails_at_its_deadline(story: Story) -> None:
    """The client saw part of it: the rest ends with an error instead of coming late."""
    story.replica("a")
    story.arrive("r", deadline_ns=100)
    story.first_byte("r")
    actions = story.at(101).timer()
    assert cancelled(actions) == {"r": "a"}
    assert failed(actions) == {"r": "deadline_unreachable"}


def test_slots_of_a_late_answer_stay_taken_until_the_replica_frees_them(story: Story) -> None:
    """A slot is never given away before the replica freed it; then the next request gets it."""
    story.replica("a", max_batch=1)
    story.arrive("late", deadline_ns=100)
    story.arrive("next")
    story.at(101).timer()
    assert story.plane.outstanding() == {"a": 1}
    assert sent(story.finish("late", "a")) == {"a": ("next",)}
    totals = story.plane.totals()
    assert (totals.refused, totals.finished, totals.in_flight) == (1, 0, 1)


def test_what_finished_in_time_is_not_cut_by_a_late_look(story: Story) -> None:
    """A frame read after the deadline that says `finished` counts; only the timer cuts."""
    story.replica("a")
    story.arrive_all("r", "s", deadline_ns=100)
    assert story.at(150).finish("r", "a") == []
    assert story.finish("s", "a") == []
    assert story.timer() == []
    assert story.plane.totals().finished == 2


@pytest.mark.parametrize("afterwards", ["gone", "fail", "finish"])
def test_a_late_answer_is_told_once(story: Story, afterwards: str) -> None:
    """Its client leaving, its replica failing or finishing it afterwards order nothing more."""
    story.replica("a")
    story.arrive("r", deadline_ns=100)
    story.at(101).timer()
    tell = {"gone": lambda: story.gone("r"), "fail": lambda: story.fail("r", "a"), "finish": lambda: story.finish("r", "a")}
    assert tell[afterwards]() == []


def test_a_request_put_back_keeps_its_deadline(story: Story) -> None:
    """Lost before a byte was sent and running elsewhere: the same instant ends it, once."""
    story.replica("a", max_batch=1)
    story.arrive("r", deadline_ns=100)
    story.replica("b", max_batch=1)
    story.fail("r", "a")
    assert story.where("r") == "b"
    assert cancelled(story.at(101).timer()) == {"r": "b"}
