"""Lines before batch replicas: the batch scheduler decides in the control plane, with pins, priorities, losses and drains."""

from __future__ import annotations

from core_story import Story, refused, sent

from halcyon.core.actions import Action, Dispatch, DrainFinished, Refusal, Refuse
from halcyon.core.batching.settings import BatchSettings
from halcyon.core.events import DrainStarted, ReplicaLost, ReplicaReady

MS = 1_000_000


def batch_story(*replicas: str, max_batch: int = 4, batching: BatchSettings | None = None) -> Story:
    """A story with batch replicas that are ready."""
    story = Story(batching=batching)
    for replica_id in replicas:
        story.replica(replica_id, max_batch=max_batch, kind="batch")
    return story


def dispatches(actions: list[Action]) -> list[Dispatch]:
    """What is sent."""
    return [action for action in actions if isinstance(action, Dispatch)]


def refusal_in(actions: list[Action]) -> Refusal:
    """The only refusal."""
    (refusal,) = [action.refusal for action in actions if isinstance(action, Refuse)]
    return refusal


def teach(story: Story, replica_id: str, *, overhead_ms: int, ns_per_token: int, rounds: int = 12) -> None:
    """Runs pinned batches of two sizes at that law, one after another."""
    for number in range(rounds):
        request_id, tokens = f"{replica_id}-{number}", 100 if number % 2 else 2000
        story.arrive(request_id, replica_id=replica_id, prompt_tokens=tokens, max_output_tokens=1)
        duration_ns = overhead_ms * MS + ns_per_token * (tokens + 1)
        story.at(story.now + duration_ns).batch_end(replica_id, request_id, duration_ns=duration_ns, tokens=tokens + 1)


def test_costs_are_learned_for_each_replica() -> None:
    """After twelve batches each, the same request is predicted at 18 ms + 22 µs/token on one and 30 ms + 40 µs/token on the other, ±2 %."""
    story = batch_story("fast", "slow")
    teach(story, "fast", overhead_ms=18, ns_per_token=22_000)
    teach(story, "slow", overhead_ms=30, ns_per_token=40_000)
    for replica_id, expected_ns in (("fast", 18 * MS + 22_000 * 500), ("slow", 30 * MS + 40_000 * 500)):
        (order,) = dispatches(story.arrive(f"probe-{replica_id}", replica_id=replica_id, prompt_tokens=499, max_output_tokens=1))
        assert order.predicted_tokens == 500
        assert abs(order.predicted_ns - expected_ns) < expected_ns * 0.02


def test_the_way_there_and_back_is_learned_too() -> None:
    """The device says 40 ms, the answers are back after 50: the next batch of that size is predicted at 50 ms, ±2 %."""
    story = batch_story("a", max_batch=1)
    for number in range(12):
        story.arrive(f"r{number}", prompt_tokens=999, max_output_tokens=1)
        story.at(story.now + 50 * MS).batch_end("a", f"r{number}", duration_ns=40 * MS, tokens=1000)
    (order,) = dispatches(story.arrive("r", prompt_tokens=999, max_output_tokens=1))
    assert abs(order.predicted_ns - 50 * MS) < MS


def test_the_faster_replica_is_asked_first() -> None:
    """Both idle: an unpinned request runs on the one that was seen to be faster, whatever its name."""
    story = batch_story("a-slow", "b-fast")
    teach(story, "a-slow", overhead_ms=30, ns_per_token=40_000)
    teach(story, "b-fast", overhead_ms=18, ns_per_token=22_000)
    assert sent(story.arrive("r")) == {"b-fast": ("r",)}


def test_what_cannot_be_in_time_is_refused_on_arrival_with_the_predicted_finish() -> None:
    """18 ms + 22 µs/token learned: 1,000 tokens in 20 ms are refused at once, saying when it would end, of what size, and when to retry."""
    story = batch_story("a")
    teach(story, "a", overhead_ms=18, ns_per_token=22_000)
    refusal = refusal_in(story.arrive("r", prompt_tokens=990, max_output_tokens=10, deadline_ns=story.now + 20 * MS))
    assert refusal.code == "deadline_unreachable"
    assert refusal.details["deadline_ms"] == 20
    assert 40 <= int(refusal.details["predicted_finish_ms"]) <= 46
    assert refusal.details["predicted_tokens"] == 1000
    assert refusal.details["output_guess"] == "max_tokens"
    assert refusal.retry_after_ms is not None
    assert refusal.retry_after_ms >= 1
    assert story.plane.totals().queued == 0


def test_a_waiting_request_is_refused_at_the_first_hopeless_instant() -> None:
    """Behind a running batch, 100 ms to its deadline: woken and refused before it, when no replica could end it in time any more."""
    story = batch_story("a", max_batch=1)
    story.arrive("running")
    story.arrive("waiting", deadline_ns=100 * MS)
    wakeup = story.plane.next_wakeup()
    assert wakeup is not None
    assert 80 * MS < wakeup < 100 * MS
    assert story.at(wakeup - 1).timer() == []
    assert refused(story.at(wakeup).timer()) == {"waiting": "deadline_unreachable"}
    assert story.plane.next_wakeup() is None


def test_a_queue_with_no_replica_empties_by_its_deadlines() -> None:
    """The only batch replica is lost: each of 50 requests is answered at its own deadline as no_capacity, woken by the timer alone."""
    story = batch_story("a")
    story.tell(ReplicaLost("a", "killed"))
    for number in range(50):
        story.arrive(f"r{number}", deadline_ns=(1000 - number) * MS)
    answered: dict[str, tuple[str, int]] = {}
    while (wakeup := story.plane.next_wakeup()) is not None:
        answered |= {request_id: (code, wakeup) for request_id, code in refused(story.at(wakeup).timer()).items()}
    assert answered == {f"r{number}": ("no_capacity", (1000 - number) * MS) for number in range(50)}


def test_a_lost_batch_goes_first_on_another_replica() -> None:
    """No byte was sent: the request of a dead replica runs as a retry on the other as soon as that is free."""
    story = batch_story("a", max_batch=2)
    story.arrive("r0")
    story.tell(ReplicaLost("a", "killed"))
    story.tell(ReplicaReady(replica_id="a", kind="batch", max_batch=2))
    story.arrive("important", priority=9)
    story.arrive("more", priority=9)
    story.replica("b", max_batch=2, kind="batch")
    assert story.where("more") == "b"
    actions = story.tell(ReplicaLost("a", "killed again"))
    assert dispatches(actions) == []
    (order,) = dispatches(story.batch_end("b", "important", "more", duration_ns=20 * MS, tokens=272))
    assert (order.request_ids, order.reason) == (("r0",), "retry")


def test_a_retry_avoids_the_replica_that_failed_it() -> None:
    """The failed replica idles while another is busy: the request waits for that one; alone, it is tried on the same again."""
    story = batch_story("a", max_batch=1)
    story.arrive("r")
    story.replica("b", max_batch=1, kind="batch")
    story.arrive("other")
    assert sent(story.fail("r", "a")) == {}
    assert sent(story.finish("other", "b")) == {"b": ("r",)}
    story.tell(ReplicaLost("a", "killed"))
    assert sent(story.fail("r", "b")) == {"b": ("r",)}


def test_a_pinned_request_waits_for_its_replica_and_hides_nobody() -> None:
    """A hundred requests pinned to a busy replica: the other one goes on serving; theirs come when theirs is free, four at a time."""
    story = batch_story("a", "b")
    story.arrive("first", replica_id="a")
    for number in range(100):
        assert story.arrive(f"pinned-{number}", replica_id="a") == []
    assert sent(story.arrive("free")) == {"b": ("free",)}
    assert sent(story.finish("first", "a")) == {"a": tuple(f"pinned-{number}" for number in range(4))}


def test_a_pin_to_the_slowest_of_many_idle_replicas_is_served() -> None:
    """Twenty idle replicas and one request that only the last in order of speed may run: it runs at once."""
    story = batch_story(*(f"r{number:02}" for number in range(20)))
    assert sent(story.arrive("pinned", replica_id="r19")) == {"r19": ("pinned",)}


def test_a_higher_priority_goes_first() -> None:
    """One slot: the more important request runs before an earlier, smaller and more urgent one; bulk comes last whatever its priority."""
    story = batch_story("a", max_batch=1)
    story.arrive("running")
    story.arrive("bulk", priority=9, lane="bulk")
    story.arrive("urgent", prompt_tokens=1, deadline_ns=5_000 * MS)
    story.arrive("important", prompt_tokens=900, priority=1)
    order, running = [], "running"
    while running:
        running = next(iter(sent(story.finish(running, "a")).get("a", ())), "")
        order.append(running)
    assert order == ["important", "urgent", "bulk", ""]


def test_a_client_that_leaves_the_queue_is_not_sent() -> None:
    """It is out of the books and of the next batch."""
    story = batch_story("a", max_batch=2)
    story.arrive("running")
    story.arrive_all("r0", "r1")
    story.gone("r0")
    assert sent(story.finish("running", "a")) == {"a": ("r1",)}
    assert story.plane.totals().gone == 1


def test_a_request_of_many_answers_takes_as_many_slots_and_a_replica_that_has_them() -> None:
    """n = 3 passes by the replica with two slots, which takes the single ones, and counts its prompt three times."""
    story = batch_story("small", max_batch=2)
    story.replica("large", max_batch=4, kind="batch")
    (order,) = dispatches(story.arrive("triple", sequences=3, prompt_tokens=10, max_output_tokens=5))
    assert (order.replica_id, order.batch_size, order.predicted_tokens) == ("large", 3, 45)
    assert story.arrive("another", sequences=3) == []
    assert sent(story.arrive("single")) == {"small": ("single",)}


def test_full_batches_and_others_say_why_they_left() -> None:
    """Slots used up: `saturated`. Nothing to wait for: `density`. A deadline about to be missed: `deadline`."""
    story = batch_story("a", max_batch=2)
    (alone,) = dispatches(story.arrive("r"))
    assert alone.reason == "density"
    story.arrive_all("r0", "r1", "r2")
    (full,) = dispatches(story.finish("r", "a"))
    assert (full.request_ids, full.reason, full.queue_depth) == (("r0", "r1"), "saturated", 1)
    story.finish("r0", "a")
    story.finish("r1", "a")
    story.finish("r2", "a")
    (tight,) = dispatches(story.arrive("tight", deadline_ns=story.now + 14_500_000))
    assert tight.reason == "deadline"


def test_a_linger_is_waited_for_to_the_instant() -> None:
    """With a linger of 10 ms a lone request leaves exactly then, woken by the timer, with who came meanwhile."""
    story = batch_story("a", batching=BatchSettings(linger_ns=10 * MS))
    assert story.arrive("r0") == []
    assert story.at(4 * MS).arrive("r1") == []
    assert story.plane.next_wakeup() == 10 * MS
    (order,) = dispatches(story.at(10 * MS).timer())
    assert (order.request_ids, order.reason) == (("r0", "r1"), "linger")
    assert story.plane.next_wakeup() is None


def test_a_drain_sends_what_is_held_back() -> None:
    """A held batch leaves as soon as nothing more can come, and the drain ends when it has ended."""
    story = batch_story("a", batching=BatchSettings(linger_ns=1000 * MS))
    story.arrive("r0")
    (order,) = dispatches(story.tell(DrainStarted()))
    assert (order.request_ids, order.reason) == (("r0",), "drain")
    assert refused(story.arrive("late")) == {"late": "no_capacity"}
    assert story.finish("r0", "a") == [DrainFinished()]


def test_earliest_deadline_first_is_a_choice() -> None:
    """`edf` holds a lone request until its slack is used up, and then sends it as `deadline`."""
    story = batch_story("a", batching=BatchSettings(policy="edf"))
    assert story.arrive("r", deadline_ns=200 * MS) == []
    wakeup = story.plane.next_wakeup()
    assert wakeup is not None
    assert 150 * MS < wakeup < 200 * MS
    (order,) = dispatches(story.at(wakeup).timer())
    assert order.reason == "deadline"


def test_the_length_of_answers_is_learned_and_a_decision_says_so() -> None:
    """Unbounded answers count 128 tokens (`prior`); after twenty of 40 tokens they count 40 (`learned`); a bound of 5 counts 5."""
    story = batch_story("a", max_batch=1)
    guesses = []
    for number in range(21):
        (order,) = dispatches(story.arrive(f"r{number}", prompt_tokens=10))
        guesses.append((order.predicted_tokens, order.output_guess))
        story.batch_end("a", f"r{number}", duration_ns=20 * MS, tokens=50, output_tokens=40)
    assert guesses == [(138, "prior")] * 20 + [(50, "learned")]
    (bounded,) = dispatches(story.arrive("bounded", prompt_tokens=10, max_output_tokens=5))
    assert (bounded.predicted_tokens, bounded.output_guess) == (15, "max_tokens")


def test_a_line_changes_hands_with_its_replicas() -> None:
    """A continuous replica joins: whoever waits moves to the queue of slots and runs there; nobody is lost when it leaves again."""
    story = batch_story("a", max_batch=1)
    story.arrive("running")
    story.arrive_all("r0", "r1")
    assert sent(story.replica("c", max_batch=1)) == {"c": ("r0",)}
    story.tell(ReplicaLost("c", "killed"))
    assert story.plane.totals().queued == 2
    assert sent(story.finish("running", "a")) == {"a": ("r0",)}
    assert sent(story.tell(ReplicaReady(replica_id="c", kind="continuous", max_batch=1))) == {"c": ("r1",)}


def test_a_replica_that_comes_back_is_known_still() -> None:
    """Lost and ready again: its learned speed is not forgotten, so the first request after that is predicted within 2 %."""
    story = batch_story("a")
    teach(story, "a", overhead_ms=30, ns_per_token=40_000)
    story.tell(ReplicaLost("a", "killed"))
    story.tell(ReplicaReady(replica_id="a", kind="batch", max_batch=4))
    (order,) = dispatches(story.arrive("r", prompt_tokens=499, max_output_tokens=1))
    assert abs(order.predicted_ns - 50 * MS) < MS


def test_a_request_its_replica_gave_up_is_refused_with_a_time_to_come_back() -> None:
    """deadline_unreachable from the replica's own scheduler is no fault of it: refused, not retried, with a computed retry-after."""
    story = Story()
    story.replica("a")
    story.replica("b")
    story.arrive("r")
    refusal = refusal_in(story.fail("r", story.where("r"), retryable=False, code="deadline_unreachable"))
    assert refusal.code == "deadline_unreachable"
    assert refusal.retry_after_ms is not None
