"""The former that fills whatever is free."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from halcyon.core.batching.fill import LOOK_AHEAD, MAX_OVERTAKEN, Batch, FillFreeSlots
from halcyon.core.batching.waiting import Ticket, WaitingQueue
from halcyon.core.fleet import ReplicaView
from halcyon.core.request import Request


def first(replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The simplest choice."""
    return replicas[0]


def replica(replica_id: str, free: int, max_batch: int = 4) -> ReplicaView:
    """A ready replica with `free` of its slots free."""
    return ReplicaView(
        replica_id=replica_id, kind="continuous", max_batch=max_batch, outstanding=max_batch - free, free=free, state="ready"
    )


def queue_of(*sequences: int, **fields: object) -> WaitingQueue:
    """Requests r0, r1, … of so many sequences."""
    queue = WaitingQueue()
    for number, count in enumerate(sequences):
        known = {"model": "m", "version": "v1", "arrived_ns": number, "prompt_tokens": 1, "sequences": count}
        queue.push(Ticket(request=Request(request_id=f"r{number}", **{**known, **fields}), number=number))  # type: ignore[arg-type]
    return queue


def ids(batches: Sequence[Batch]) -> dict[str, list[str]]:
    """Requests by replica."""
    return {batch.replica_id: [ticket.request.request_id for ticket in batch.tickets] for batch in batches}


def test_nothing_fits_where_nothing_is_free() -> None:
    """Full replicas: no batch, and the queue is as it was."""
    queue = queue_of(1, 1)
    assert FillFreeSlots().form(queue, [replica("a", 0)], first, now=0) == ()
    assert len(queue) == 2


def test_one_batch_for_each_replica_within_its_slots() -> None:
    """Sizes 2, 2, 1, 1 over slots 3 and 2: one batch each, nobody over, the order kept."""
    batches = FillFreeSlots().form(queue_of(2, 2, 1, 1), [replica("a", 3), replica("b", 2)], first, now=0)
    assert ids(batches) == {"a": ["r0", "r2"], "b": ["r1"]}
    assert {batch.eligible_replicas for batch in batches} == {2}


@pytest.mark.parametrize(("waiting", "reason"), [((1,), "slot_free"), ((2, 2), "saturated")])
def test_the_reason_says_why(waiting: tuple[int, ...], reason: str) -> None:
    """`saturated` when the batch fills the replica, `slot_free` when it leaves room."""
    (batch,) = FillFreeSlots().form(queue_of(*waiting), [replica("a", 4)], first, now=0)
    assert batch.reason == reason


def test_looking_past_is_bounded() -> None:
    """Behind 32 requests that do not fit nothing is looked at; behind 31 the small one runs."""
    for large, runs in ((LOOK_AHEAD, False), (LOOK_AHEAD - 1, True)):
        batches = FillFreeSlots().form(queue_of(*[4] * large, 1), [replica("a", 3)], first, now=0)
        assert bool(batches) == runs


def test_those_who_wait_for_an_absent_replica_hide_nobody() -> None:
    """A hundred requests pinned to a replica that is not ready do not keep the next one from running."""
    queue = queue_of(*[1] * 100, replica_id="absent")
    queue.push(Ticket(request=Request(request_id="free", model="m", version="v1", arrived_ns=200, prompt_tokens=1), number=200))
    assert ids(FillFreeSlots().form(queue, [replica("a", 1)], first, now=0)) == {"a": ["free"]}


def test_those_who_wait_for_a_full_replica_alone_hide_nobody() -> None:
    """Forty requests pinned to a replica that is full do not keep the next one from the replica beside it."""
    queue = queue_of(*[1] * 40, replica_id="full")
    queue.push(Ticket(request=Request(request_id="free", model="m", version="v1", arrived_ns=200, prompt_tokens=1), number=200))
    assert ids(FillFreeSlots().form(queue, [replica("full", 0), replica("a", 1)], first, now=0)) == {"a": ["free"]}


def test_those_who_wait_for_a_larger_replica_hide_nobody() -> None:
    """Forty requests that only a replica still loading could hold do not keep a small one from running."""
    assert ids(FillFreeSlots().form(queue_of(*[4] * 40, 1), [replica("a", 2, max_batch=2)], first, now=0)) == {"a": ["r40"]}


def test_a_claim_stays_with_its_replica() -> None:
    """Once overtaken 8 times, a request keeps one replica free until it fits, though another has more room by then."""
    former, queue = FillFreeSlots(), queue_of(4, *[1] * 40)
    for _ in range(MAX_OVERTAKEN):
        assert ids(former.form(queue, [replica("a", 1), replica("b", 0)], first, now=0)).keys() == {"a"}
    assert ids(former.form(queue, [replica("a", 1), replica("b", 2)], first, now=0)) == {"a": ["r9"]}
    assert ids(former.form(queue, [replica("a", 3), replica("b", 2)], first, now=0)).keys() == {"a"}
    assert ids(former.form(queue, [replica("a", 0), replica("b", 4)], first, now=0)) == {"b": ["r0"]}


def test_a_claim_moves_when_its_replica_is_gone() -> None:
    """A request whose replica is not ready any more claims another."""
    former, queue = FillFreeSlots(), queue_of(4, *[1] * 40)
    for _ in range(MAX_OVERTAKEN):
        former.form(queue, [replica("a", 1)], first, now=0)
    former.form(queue, [replica("a", 2)], first, now=0)
    assert ids(former.form(queue, [replica("b", 3)], first, now=0)) == {}
    assert ids(former.form(queue, [replica("b", 4)], first, now=0)) == {"b": ["r0"]}
