"""Dead, draining and unready replicas; retries; backpressure."""

from __future__ import annotations

from core_story import Story, failed, refused, sent

from halcyon.core.actions import ReplicaEmptied
from halcyon.core.events import ReplicaDrainStarted, ReplicaLost, ReplicaReady, ReplicaRemoved
from halcyon.core.routing.backpressure import FIRST_PAUSE_NS


def test_a_dead_replica_is_sent_nothing_and_loses_no_unbegun_request(story: Story) -> None:
    """Fault: routing goes on to a dead worker. What had no byte sent runs on the other replica at once, in its old order."""
    story.replica("a", max_batch=4)
    story.arrive_all("r0", "r1", "r2")
    story.replica("b", max_batch=4)
    assert sent(story.tell(ReplicaLost("a", "killed"))) == {"b": ("r0", "r1", "r2")}
    assert sent(story.arrive("r3")) == {"b": ("r3",)}
    assert story.plane.outstanding() == {"a": 0, "b": 4}


def test_what_comes_back_stands_before_all_that_wait(story: Story) -> None:
    """Requests of a lost replica go to the front, before a more important one that was waiting."""
    story.replica("a", max_batch=2)
    story.arrive_all("r0", "r1")
    story.arrive("important", priority=5)
    story.tell(ReplicaLost("a", "killed"))
    (order,) = story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=2))
    assert (order.request_ids, order.reason) == (("r0", "r1"), "retry")


def test_an_answer_that_began_is_never_replayed(story: Story) -> None:
    """Fault: a mid-stream retry repeats tokens. After the first byte the loss of the replica ends the request with upstream_failure."""
    story.replica("a")
    story.arrive("r")
    story.replica("b")
    story.first_byte("r")
    orders = story.tell(ReplicaLost("a", "killed"))
    assert failed(orders) == {"r": "upstream_failure"}
    assert sent(orders) == {}


def test_a_byte_on_its_way_when_the_replica_is_lost_ends_the_request(story: Story) -> None:
    """The report of the first byte may come after the loss: the request, already put back, fails instead of running twice."""
    story.replica("a")
    story.arrive("r")
    story.tell(ReplicaLost("a", "killed"))
    assert failed(story.first_byte("r")) == {"r": "upstream_failure"}
    assert story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=4)) == []


def test_retries_are_bounded(story: Story) -> None:
    """Fault: retries multiply load in an outage. A request is sent to three replicas at most, then fails upstream_failure."""
    for name in "abcd":
        story.replica(name)
    story.arrive("r")
    tried = [story.where("r")]
    for _ in range(2):
        assert list(sent(story.fail("r", tried[-1]))) != [tried[-1]]
        tried.append(story.where("r"))
    assert failed(story.fail("r", tried[-1])) == {"r": "upstream_failure"}


def test_a_retry_goes_elsewhere_if_there_is_elsewhere(story: Story) -> None:
    """The replica that failed a request is avoided while another is ready, even if that one is full; alone, it is tried again."""
    story.replica("a", max_batch=1)
    story.arrive("r")
    story.replica("b", max_batch=1)
    story.arrive("other")
    assert sent(story.fail("r", "a")) == {}
    assert sent(story.finish("other", "b")) == {"b": ("r",)}
    story.tell(ReplicaRemoved("a"))
    assert sent(story.fail("r", "b")) == {"b": ("r",)}


def test_a_retry_returns_when_the_only_other_replica_is_too_small(story: Story) -> None:
    """A replica that could never hold the request is no elsewhere to wait for."""
    story.replica("large", max_batch=4)
    story.replica("small", max_batch=1)
    story.arrive("r", sequences=3)
    assert sent(story.fail("r", "large")) == {"large": ("r",)}


def test_a_failure_of_the_request_itself_is_not_retried(story: Story) -> None:
    """A client's own error comes back under its code, from one replica, without a second try."""
    story.replica("a")
    story.replica("b")
    story.arrive("r")
    assert refused(story.fail("r", story.where("r"), retryable=False, code="invalid_request")) == {"r": "invalid_request"}
    assert story.plane.totals().refused == 1


def test_a_failure_after_the_first_byte_ends_the_stream(story: Story) -> None:
    """Retryable or not, once the client saw something the request fails."""
    story.replica("a")
    story.replica("b")
    story.arrive("r")
    story.first_byte("r")
    assert failed(story.fail("r", story.where("r"))) == {"r": "upstream_failure"}


def test_busy_is_neutral_and_goes_elsewhere(story: Story) -> None:
    """Fault: backpressure is counted as a fault. Two busy replicas turn a request away ten times; it still runs, no attempt spent."""
    story.replica("a")
    story.replica("b")
    story.arrive("r")
    for _ in range(10):
        replica_id = story.where("r")
        orders = story.fail("r", replica_id, busy=True)
        if not orders:
            wakeup = story.plane.next_wakeup()
            assert wakeup is not None
            orders = story.at(wakeup).timer()
        assert sent(orders) == {story.where("r"): ("r",)}
        assert not failed(orders)
    story.finish("r", story.where("r"))
    assert story.plane.totals().finished == 1


def test_a_busy_replica_rests_instead_of_being_hammered(story: Story) -> None:
    """Alone and busy, a replica is asked again only when its pause is over, and at once when it finishes something."""
    story.replica("a", max_batch=4)
    story.arrive_all("running", "r")
    assert story.fail("r", "a", busy=True) == []
    assert story.arrive("s") == []
    assert story.plane.next_wakeup() == FIRST_PAUSE_NS
    assert sent(story.at(FIRST_PAUSE_NS).timer()) == {"a": ("r", "s")}
    story.fail("r", "a", busy=True)
    assert sent(story.finish("running", "a")) == {"a": ("r",)}


def test_draining_excludes_before_anything_else(story: Story) -> None:
    """Fault: a terminating worker still gets requests; scaling down cuts streams. It gets none, and its stream ends before it is empty."""
    story.replica("a", max_batch=4)
    story.arrive("stream")
    story.first_byte("stream")
    story.replica("b", max_batch=1)
    assert story.tell(ReplicaDrainStarted("a")) == []
    assert sent(story.arrive("r0")) == {"b": ("r0",)}
    assert story.arrive("r1") == []
    assert story.finish("stream", "a") == [ReplicaEmptied("a")]
    assert story.timer() == []
    assert story.plane.totals().finished == 1


def test_an_idle_replica_is_empty_as_soon_as_it_drains(story: Story) -> None:
    """Emptiness is announced once, also for a replica that never became ready or is lost while it drains."""
    story.replica("a")
    assert story.tell(ReplicaDrainStarted("a")) == [ReplicaEmptied("a")]
    story.replica("b")
    story.replica("c")
    story.arrive("r", replica_id="b")
    assert story.tell(ReplicaDrainStarted("b")) == []
    assert ReplicaEmptied("b") in story.tell(ReplicaLost("b", "killed"))


def test_a_draining_replica_cannot_come_back(story: Story) -> None:
    """A late report of readiness does not undo a drain."""
    story.replica("a")
    story.replica("b")
    story.tell(ReplicaDrainStarted("a"))
    assert story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=4)) == []
    assert sent(story.arrive("r")) == {"b": ("r",)}


def test_a_removed_replica_passes_its_requests_on(story: Story) -> None:
    """Removal of a replica that runs something is a loss: unbegun requests move, begun ones fail."""
    story.replica("a")
    story.arrive_all("begun", "unbegun")
    story.first_byte("begun")
    story.replica("b")
    orders = story.tell(ReplicaRemoved("a"))
    assert failed(orders) == {"begun": "upstream_failure"}
    assert sent(orders) == {"b": ("unbegun",)}
    assert story.plane.outstanding() == {"b": 1}


def test_late_at_the_moment_of_loss_is_refused_not_retried(story: Story) -> None:
    """A request whose deadline has come when its replica dies is refused at once and takes no slot elsewhere."""
    story.replica("a")
    story.arrive("r", deadline_ns=100)
    story.replica("b")
    orders = story.at(100).tell(ReplicaLost("a", "killed"))
    assert refused(orders) == {"r": "deadline_unreachable"}
    assert sent(orders) == {}


def test_a_replica_that_flaps_serves_again(story: Story) -> None:
    """Lost and ready a hundred times: its slots are whole each time."""
    story.replica("a", max_batch=2)
    for turn in range(100):
        story.arrive_all(f"r{turn}", f"s{turn}")
        assert story.plane.outstanding() == {"a": 2}
        story.tell(ReplicaLost("a", "killed"))
        assert story.plane.outstanding() == {"a": 0}
        story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=2))
        story.finish(f"r{turn}", "a")
        story.finish(f"s{turn}", "a")
    assert story.plane.totals().finished == 200


def test_a_replica_that_comes_back_has_rested_enough(story: Story) -> None:
    """A busy replica that dies and is ready again serves at once: its pause was of its former life."""
    story.replica("a")
    story.arrive("r")
    story.fail("r", "a", busy=True)
    story.tell(ReplicaLost("a", "killed"))
    assert sent(story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=4))) == {"a": ("r",)}


def test_a_failure_on_the_last_draining_replica_is_answered(story: Story) -> None:
    """A request that would be retried, with nothing left that could take it, is refused instead of waiting for ever."""
    story.replica("a")
    story.arrive("r")
    story.tell(ReplicaDrainStarted("a"))
    assert refused(story.fail("r", "a")) == {"r": "no_capacity"}
