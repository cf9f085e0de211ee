"""Who runs next, where, and with whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from core_story import Story, refused, sent

from halcyon.core.actions import Dispatch
from halcyon.core.batching.fill import Batch, Choose, FillFreeSlots
from halcyon.core.batching.waiting import WaitingQueue
from halcyon.core.events import ReplicaLost, ReplicaReady
from halcyon.core.fleet import ReplicaView


def test_the_order_of_service_is_lane_priority_deadline_arrival(story: Story) -> None:
    """With one slot, seven requests run in the documented order whatever order they came in."""
    story.replica("a", max_batch=1)
    story.arrive("first")
    story.arrive("bulk-urgent", lane="bulk", priority=9, deadline_ns=10**6)
    story.arrive("plain-late")
    story.at(1).arrive("plain-later")
    story.arrive("deadline-200", deadline_ns=200 * 10**6)
    story.arrive("deadline-100", deadline_ns=100 * 10**6)
    story.arrive("important", priority=1)
    served, running = [], "first"
    while running:
        running = next(iter(sent(story.finish(running, "a")).get("a", ())), "")
        served.append(running)
    assert served == ["important", "deadline-100", "deadline-200", "plain-late", "plain-later", "bulk-urgent", ""]


def test_a_burst_spreads_over_the_replicas(story: Story) -> None:
    """Fault: a gap between selecting and counting lets one burst pile on one replica. 1,000 arrivals in one tick: 250 on each of four."""
    for name in "abcd":
        story.replica(name, max_batch=300)
    for number in range(1000):
        story.arrive(f"r{number}")
    assert story.plane.outstanding() == {"a": 250, "b": 250, "c": 250, "d": 250}


def test_a_larger_replica_takes_its_larger_share(story: Story) -> None:
    """Load is relative to slots: 30 requests over 10 and 20 slots end as 10 and 20, and at half load as 5 and 10."""
    story.replica("small", max_batch=10)
    story.replica("large", max_batch=20)
    story.arrive_all(*(f"r{number}" for number in range(15)))
    assert story.plane.outstanding() == {"small": 5, "large": 10}


def test_everything_a_replica_takes_is_one_dispatch(story: Story) -> None:
    """Four waiting requests and a replica with three slots: one order for three of them, saying what stays behind."""
    story.replica("a", max_batch=3)
    story.tell(ReplicaLost("a", "restart"))
    story.arrive_all("r0", "r1", "r2", "r3")
    (order,) = story.tell(ReplicaReady(replica_id="a", kind="continuous", max_batch=3))
    assert order == Dispatch(
        batch_id=1,
        replica_id="a",
        request_ids=("r0", "r1", "r2"),
        reason="saturated",
        batch_size=3,
        queue_depth=1,
        eligible_replicas=1,
    )


def test_a_continuous_replica_is_refilled_slot_by_slot(story: Story) -> None:
    """Every finish lets exactly one waiting request in."""
    story.replica("a", max_batch=2)
    story.arrive_all("r0", "r1", "r2", "r3")
    assert sent(story.finish("r1", "a")) == {"a": ("r2",)}
    assert sent(story.finish("r0", "a")) == {"a": ("r3",)}


def test_a_batch_replica_runs_one_batch_at_a_time(story: Story) -> None:
    """While a batch runs nothing joins it; when its last sequence ends the next batch is as large as the queue and the bound allow."""
    story.replica("a", max_batch=3, kind="batch")
    assert sent(story.arrive("r0", sequences=2)) == {"a": ("r0",)}
    story.arrive_all("r1", "r2", "r3", "r4")
    assert story.finish("r0", "a", 1) == []
    assert sent(story.finish("r0", "a", 1)) == {"a": ("r1", "r2", "r3")}


def test_a_request_of_many_sequences_runs_on_one_replica_together(story: Story) -> None:
    """n = 3 goes where three slots are free, not to two replicas with two."""
    story.replica("a", max_batch=3)
    story.replica("b", max_batch=3)
    story.arrive_all("r0", "r1")
    assert story.arrive("triple", sequences=3) == []
    assert sent(story.finish("r0", story.where("r0"))) == {story.where("r0"): ("triple",)}


def test_a_large_head_does_not_block_and_does_not_starve(story: Story) -> None:
    """Small requests overtake an n = 4 that does not fit at most 8 times; then a replica is kept free for it and it runs."""
    story.replica("a", max_batch=4)
    running = ["s0", "s1", "s2"]
    story.arrive_all(*running)
    story.arrive("large", sequences=4)
    overtakers = 0
    for number in range(100):
        overtakers += len(sent(story.arrive(f"t{number}")).get("a", ()))
        if story.where(f"t{number}"):
            running.append(f"t{number}")
        orders = sent(story.finish(running.pop(0), "a")).get("a", ())
        running += orders
        if "large" in orders:
            break
        overtakers += len(orders)
    assert story.where("large") == "a"
    assert overtakers == 8


def test_a_client_that_leaves_frees_the_replica_kept_for_it(story: Story) -> None:
    """When the starved large request goes, the small ones behind it run in the same call."""
    story.replica("a", max_batch=4)
    story.arrive_all("s0", "s1", "s2")
    story.arrive("large", sequences=4)
    small = 0
    while story.arrive(f"t{small}"):
        story.finish(f"t{small}", "a")
        small += 1
    assert small == 8
    assert sent(story.gone("large")) == {"a": ("t8",)}


def test_a_deadline_that_passes_frees_the_replica_kept_for_it(story: Story) -> None:
    """When the starved large request expires, the small one behind it runs in the same call."""
    story.replica("a", max_batch=4)
    story.arrive_all("s0", "s1", "s2")
    story.arrive("large", sequences=4, deadline_ns=100, priority=1)
    small = 0
    while story.arrive(f"t{small}"):
        story.finish(f"t{small}", "a")
        small += 1
    assert sent(story.at(100).timer()) == {"a": (f"t{small}",)}


def test_a_former_may_hold_work_back_until_it_is_asked_again() -> None:
    """A former that lingers names an instant; the plane wakes for it, asks again, and its batch leaves then."""

    class Lingering(FillFreeSlots):
        """Holds everything back for 10 ns after it is first asked."""

        def __init__(self) -> None:
            self.until_ns: int | None = None

        def form(self, queue: WaitingQueue, replicas: Sequence[ReplicaView], choose: Choose, *, now: int) -> tuple[Batch, ...]:
            self.until_ns = now + 10 if self.until_ns is None else self.until_ns
            if now < self.until_ns:
                return ()
            self.until_ns = None
            return super().form(queue, replicas, choose, now=now)

        def next_wakeup(self) -> int | None:
            return self.until_ns

    story = Story(former=Lingering)
    story.replica("a")
    assert story.arrive("r0") == []
    assert story.at(4).arrive("r1") == []
    assert story.plane.next_wakeup() == 10
    assert sent(story.at(10).timer()) == {"a": ("r0", "r1")}
    assert story.plane.next_wakeup() is None


def test_expiry_does_not_wait_for_a_busy_worker(story: Story) -> None:
    """Fault: expiry is noticed only when the running work ends. The plane asks to be woken at the deadline and refuses then."""
    story.replica("a", max_batch=1)
    story.arrive("running")
    story.arrive("waiting", deadline_ns=70)
    assert story.plane.next_wakeup() == 70
    assert story.at(69).timer() == []
    assert refused(story.at(70).timer()) == {"waiting": "deadline_unreachable"}
    assert story.plane.next_wakeup() is None


def test_a_queue_with_no_replica_empties_by_its_deadlines(story: Story) -> None:
    """A hundred requests wait for a replica that never comes; each is answered at its own deadline, woken by the timer alone."""
    story.replica("a", max_batch=1)
    story.tell(ReplicaLost("a", "killed"))
    for number in range(100):
        story.arrive(f"r{number}", deadline_ns=1000 - number)
    answered: dict[str, int] = {}
    while (wakeup := story.plane.next_wakeup()) is not None:
        answered |= dict.fromkeys(refused(story.at(wakeup).timer()), wakeup)
    assert answered == {f"r{number}": 1000 - number for number in range(100)}
    assert story.plane.totals().queued == 0


def test_ties_are_drawn_from_the_given_coin() -> None:
    """Two planes with one seed choose alike; over seeds both equal replicas are chosen."""
    chosen = Counter()
    for seed in range(20):
        twins = [Story(seed=seed), Story(seed=seed)]
        for twin in twins:
            twin.replica("a")
            twin.replica("b")
            twin.arrive("r")
        assert twins[0].where("r") == twins[1].where("r")
        chosen[twins[0].where("r")] += 1
    assert set(chosen) == {"a", "b"}
