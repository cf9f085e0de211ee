"""Choosing among replicas, and resting the busy ones."""

from __future__ import annotations

import random

import pytest

from halcyon.core.fleet import ReplicaView
from halcyon.core.routing.backpressure import FIRST_PAUSE_NS, LONGEST_PAUSE_NS, BusyPauses
from halcyon.core.routing.least_loaded import CheapestReplica, taken_share

MS = 1_000_000


def replica(replica_id: str, outstanding: int, max_batch: int) -> ReplicaView:
    """A ready replica."""
    return ReplicaView(
        replica_id=replica_id,
        kind="continuous",
        max_batch=max_batch,
        outstanding=outstanding,
        free=max_batch - outstanding,
        state="ready",
    )


def test_the_smallest_share_wins() -> None:
    """3 of 10 is emptier than 2 of 4; the cost is the share itself."""
    router = CheapestReplica(random.Random(0))
    assert taken_share(replica("a", 3, 10)) == pytest.approx(0.3)
    assert router.choose([replica("b", 2, 4), replica("a", 3, 10)]).replica_id == "a"


def test_equal_shares_are_drawn_evenly() -> None:
    """1 of 3 ties with 2 of 6: of 1,000 draws each gets 450 to 550."""
    router = CheapestReplica(random.Random(0))
    draws = [router.choose([replica("a", 1, 3), replica("b", 2, 6)]).replica_id for _ in range(1000)]
    assert 450 <= draws.count("a") <= 550


def test_another_cost_gives_another_choice() -> None:
    """The router compares what it is given: here the replica with the greatest name."""
    router = CheapestReplica(random.Random(0), cost=lambda view: -ord(view.replica_id))
    assert router.choose([replica("a", 0, 4), replica("c", 4, 4), replica("b", 0, 4)]).replica_id == "c"


def test_a_certain_choice_uses_no_coin() -> None:
    """Without a tie the generator is left where it was."""
    coin = random.Random(7)
    CheapestReplica(coin).choose([replica("a", 0, 4), replica("b", 1, 4)])
    assert coin.getstate() == random.Random(7).getstate()


def test_pauses_double_to_five_seconds() -> None:
    """100, 200, 400, … 3,200, 5,000, 5,000 ms in a row; each is lifted at its instant, not before."""
    pauses, now, lengths = BusyPauses(), 0, []
    for _ in range(8):
        pauses.said_busy("a", now=now)
        until = pauses.next_wakeup()
        assert until is not None
        assert pauses.lift(now=until - 1) == []
        assert pauses.is_resting("a")
        assert pauses.lift(now=until) == ["a"]
        assert not pauses.is_resting("a")
        lengths.append((until - now) // MS)
        now = until
    assert lengths == [100, 200, 400, 800, 1600, 3200, 5000, 5000]
    assert (FIRST_PAUSE_NS, LONGEST_PAUSE_NS) == (100 * MS, 5000 * MS)


def test_a_volley_of_refusals_is_one_pause() -> None:
    """32 requests that bounce off together lengthen nothing."""
    pauses = BusyPauses()
    for _ in range(32):
        pauses.said_busy("a", now=0)
    assert pauses.next_wakeup() == FIRST_PAUSE_NS


def test_progress_ends_a_pause_and_the_row() -> None:
    """After something finished there, the next pause is the first again."""
    pauses = BusyPauses()
    pauses.said_busy("a", now=0)
    pauses.lift(now=FIRST_PAUSE_NS)
    pauses.said_busy("a", now=FIRST_PAUSE_NS)
    pauses.forget("a")
    assert not pauses.is_resting("a")
    assert pauses.next_wakeup() is None
    pauses.said_busy("a", now=0)
    assert pauses.next_wakeup() == FIRST_PAUSE_NS
