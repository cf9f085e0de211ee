"""What goes into a batch: in which order, up to where, and what never does."""

from __future__ import annotations

from halcyon.core.batching.cost import BatchCoefficients
from halcyon.core.batching.former import BatchLimits, Packing, Reserve, pack
from halcyon.core.batching.item import WorkItem
from halcyon.core.batching.price import NO_LIMIT, Price
from halcyon.core.batching.queue import DeadlineQueue, Entry

MS = 1_000_000
EXACT = BatchCoefficients(18.0 * MS, 22_000.0, 1.0, 1.0)
PRICE = Price(batch_ns=60 * MS, rank_limit=400, worth_per_s=0.0)


def queue_of(*requests: tuple[str, int, int | None], lane: str = "interactive") -> DeadlineQueue:
    """(id, tokens, ms to the deadline or None), all arrived at 0."""
    queue = DeadlineQueue()
    for sequence, (request_id, tokens, deadline_ms) in enumerate(requests):
        queue.add(entry_of(request_id, tokens, deadline_ms, sequence=sequence, lane=lane))
    return queue


def entry_of(request_id: str, tokens: int, deadline_ms: int | None, *, sequence: int, lane: str = "interactive") -> Entry:
    """A waiting request."""
    deadline_ns = None if deadline_ms is None else deadline_ms * MS
    item = WorkItem(
        request_id=request_id,
        arrived_ns=0,
        tokens=tokens,
        deadline_ns=deadline_ns,
        lane="bulk" if lane == "bulk" else "interactive",
    )
    due_ns = 10_000 * MS if deadline_ns is None else deadline_ns
    return Entry(
        item=item, sequence=sequence, tokens=tokens, rank=tokens, due_ns=due_ns, promote_ns=5000 * MS, hard=deadline_ns is not None
    )


def packed(
    queue: DeadlineQueue,
    *,
    price: Price = PRICE,
    now: int = 0,
    slots: int = 32,
    tokens: int = 16_384,
    reserve: Reserve | None = None,
    permille: int = 0,
    law: BatchCoefficients = EXACT,
) -> Packing:
    """A packing filled from the queue."""
    limits = BatchLimits(max_slots=slots, max_tokens=tokens, reserve_permille=permille)
    packing = Packing(law=law, limits=limits, now=now, cap_ns=price.cap_ns)
    pack(queue, price, reserve or Reserve(), packing)
    packing.release()
    return packing


def ids(packing: Packing) -> list[str]:
    """Who is in, in order."""
    return [entry.item.request_id for entry in packing.entries]


def test_last_chances_go_first_then_deadlines_then_the_large() -> None:
    """Order: due before another batch could be over (smallest first), then by deadline, then what is over the size limit."""
    queue = queue_of(("late", 50, 900), ("large", 900, 120), ("b", 80, 110), ("soon", 60, 500), ("a", 40, 120))
    assert ids(packed(queue)) == ["a", "b", "soon", "late", "large"]


def test_the_cap_skips_and_does_not_stop() -> None:
    """A request that would carry the batch over the cap is passed over for a smaller one behind it."""
    queue = queue_of(("first", 390, 500), *[(f"m{i}", 380, 600 + i) for i in range(6)], ("small", 20, 800))
    packing = packed(queue)
    assert ids(packing)[-1] == "small"
    assert EXACT.predict_ns(packing.tokens) <= PRICE.cap_ns
    assert packing.full


def test_one_request_may_exceed_the_cap_alone() -> None:
    """Progress: a request that takes longer than the cap runs when nothing else waits."""
    assert ids(packed(queue_of(("huge", 4000, 900)))) == ["huge"]


def test_nothing_is_packed_that_would_end_late() -> None:
    """A batch is never predicted to end after a member's deadline; ending exactly at it is on time."""
    exact_ms = 18 + 22 * 1000 // 1000
    assert ids(packed(queue_of(("exact", 1000, exact_ms)), price=Price(batch_ns=40 * MS, rank_limit=NO_LIMIT, worth_per_s=0))) == ["exact"]
    assert ids(packed(queue_of(("missed", 1001, exact_ms)), price=Price(batch_ns=40 * MS, rank_limit=NO_LIMIT, worth_per_s=0))) == []


def test_the_margin_is_kept_free_before_deadlines() -> None:
    """With a residual margin of 1.2 a batch of 40 ms needs 48 ms."""
    careful = BatchCoefficients(18.0 * MS, 22_000.0, 1.2, 1.0)
    price = Price(batch_ns=40 * MS, rank_limit=NO_LIMIT, worth_per_s=0)
    assert ids(packed(queue_of(("fits", 1000, 48)), law=careful, price=price)) == ["fits"]
    assert ids(packed(queue_of(("misses", 1000, 47)), law=careful, price=price)) == []


def test_a_tight_head_does_not_cut_the_batch_down() -> None:
    """One request with 20 ms of slack in front of forty feasible ones: the batch holds the many, not the one."""
    queue = queue_of(("tight", 16, 20), *[(f"r{i}", 60, 500 + i) for i in range(40)])
    packing = packed(queue)
    assert len(packing.entries) == 32
    assert "tight" not in ids(packing)


def test_a_tight_request_still_rides_in_a_short_batch() -> None:
    """Alone in the queue the same request is served at once."""
    assert ids(packed(queue_of(("tight", 16, 20)))) == ["tight"]


def test_slots_and_tokens_bound_a_batch() -> None:
    """No batch holds more sequences or tokens than it may."""
    many = queue_of(*[(f"r{i}", 16, 900) for i in range(50)])
    assert len(packed(many, slots=8).entries) == 8
    assert packed(queue_of(*[(f"r{i}", 100, 900) for i in range(50)]), tokens=450).tokens <= 450


def test_equal_requests_keep_their_order_of_arrival() -> None:
    """Ties on deadline and size break by arrival, whatever the ids are."""
    assert ids(packed(queue_of(("z", 50, 900), ("a", 50, 900), ("m", 50, 900)))) == ["z", "a", "m"]


def test_the_reserve_lets_a_large_request_pass_the_small() -> None:
    """With enough credit the large request goes first, and pays for it."""
    small = [(f"s{i}", 300, 500 + i) for i in range(20)]
    cost_ns = 900 * 22_000 + 18 * MS // 32
    reserve = Reserve(credit_ns=2 * cost_ns)
    assert ids(packed(queue_of(*small, ("large", 900, 800)), reserve=reserve))[0] == "large"
    assert reserve.credit_ns == cost_ns
    assert "large" not in ids(packed(queue_of(*small, ("large", 900, 800)), reserve=Reserve()))


def test_the_reserve_earns_its_share_of_every_batch() -> None:
    """Five thousandths of each batch's time, up to two largest batches."""
    reserve = Reserve()
    for _ in range(10):
        packed(queue_of(("a", 100, 900)), reserve=reserve, permille=5)
    assert reserve.credit_ns == 10 * (EXACT.predict_ns(100) * 5 // 1000)


def test_bulk_rides_where_nothing_else_wants_to() -> None:
    """Bulk requests fill what the others leave, and nothing more."""
    queue = queue_of(*[(f"i{i}", 300, 500 + i) for i in range(5)])
    queue.add(entry_of("bulk", 50, 900, sequence=99, lane="bulk"))
    assert ids(packed(queue))[-1] == "bulk"
    assert "bulk" not in ids(packed(queue, slots=5))
    queue.promote(now=5000 * MS)
    assert queue.bulks() == []
    assert [len(lane) for lane in queue.mains()] == [6]


def test_many_last_chances_are_found_in_either_way() -> None:
    """Whether the few are sorted or the order of rank is filtered, the smallest last chances come first."""
    few = queue_of(*[(f"u{i}", 300 - i, 100) for i in range(20)], *[(f"r{i}", 50, 5000) for i in range(2000)])
    many = queue_of(*[(f"u{i}", 300 - i % 280, 100) for i in range(2000)])
    assert ids(packed(few))[:3] == ["u19", "u18", "u17"]
    sizes = [entry.tokens for entry in packed(many).entries]
    assert sizes == sorted(sizes)
    assert sizes[0] == 21
