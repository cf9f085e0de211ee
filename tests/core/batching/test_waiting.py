"""The deadline-ordered queue and the heap below it."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.batching.removable_heap import RemovableHeap
from halcyon.core.batching.waiting import Answer, Ticket, WaitingQueue
from halcyon.core.request import Request

DEADLINES = st.none() | st.integers(1, 50)


def ticket(number: int, *, deadline_ns: int | None = None, returned: bool = False, **fields: object) -> Ticket:
    """A ticket of request `r<number>`."""
    known = {"model": "m", "version": "v1", "arrived_ns": number, "prompt_tokens": 1, "deadline_ns": deadline_ns}
    request = Request(request_id=f"r{number}", **{**known, **fields})  # type: ignore[arg-type]
    return Ticket(request=request, number=number, returned=returned)


def order_of(queue: WaitingQueue) -> list[str]:
    """Ids in order of service; the queue stays as it is."""
    seen: list[str] = []

    def look(waiting: Ticket) -> Answer:
        seen.append(waiting.request.request_id)
        return Answer.PASSED

    queue.offer(look)
    return seen


@given(st.lists(st.tuples(DEADLINES, st.sampled_from(["interactive", "bulk"]), st.integers(0, 2), st.booleans()), max_size=30))
def test_the_order_is_that_of_a_sort(rows: list[tuple[int | None, str, int, bool]]) -> None:
    """Whatever is pushed comes out sorted by (returned, lane, priority, deadline with none last, arrival, number), and looking is free."""
    tickets = [
        ticket(number, deadline_ns=deadline, lane=lane, priority=priority, returned=returned)
        for number, (deadline, lane, priority, returned) in enumerate(rows)
    ]
    queue = WaitingQueue()
    for each in tickets:
        queue.push(each)
    in_order = sorted(
        tickets,
        key=lambda t: (
            not t.returned,
            t.request.lane == "bulk",
            -t.request.priority,
            float("inf") if t.request.deadline_ns is None else t.request.deadline_ns,
            t.request.arrived_ns,
        ),
    )
    assert order_of(queue) == order_of(queue) == [each.request.request_id for each in in_order]
    assert len(queue) == len(tickets)


@given(st.lists(DEADLINES, max_size=30), st.lists(st.integers(0, 29)), st.integers(0, 60))
def test_expiry_takes_exactly_what_is_due(deadlines: list[int | None], removed: list[int], now: int) -> None:
    """At `now` every remaining ticket with deadline <= now leaves, earliest first, no other does, and the next expiry is after now."""
    queue = WaitingQueue()
    for number, deadline in enumerate(deadlines):
        queue.push(ticket(number, deadline_ns=deadline))
    for number in removed:
        queue.remove(f"r{number}")
    alive = {number: deadline for number, deadline in enumerate(deadlines) if number not in removed}
    due = sorted((deadline, number) for number, deadline in alive.items() if deadline is not None and deadline <= now)
    assert [(each.request.deadline_ns, each.number) for each in queue.take_expired(now=now)] == due
    later = [deadline for deadline in alive.values() if deadline is not None and deadline > now]
    assert queue.next_expiry() == min(later, default=None)
    assert len(queue) == len(alive) - len(due)


def test_the_deadline_itself_is_too_late_to_begin() -> None:
    """A request waits until the nanosecond before its deadline."""
    queue = WaitingQueue()
    queue.push(ticket(0, deadline_ns=100))
    assert queue.take_expired(now=99) == []
    assert [each.number for each in queue.take_expired(now=100)] == [0]


def test_an_offer_takes_passes_and_stops() -> None:
    """Taken tickets leave, passed ones keep their place, and nothing behind a stop is looked at."""
    queue = WaitingQueue()
    for number in range(5):
        queue.push(ticket(number))
    answers = iter((Answer.PASSED, Answer.TAKEN, Answer.PASSED, Answer.STOP))
    queue.offer(lambda _: next(answers))
    assert order_of(queue) == ["r0", "r2", "r3", "r4"]


def test_a_ticket_that_returns_keeps_its_deadline() -> None:
    """Taken and pushed again, a ticket stands first and still expires exactly once."""
    queue = WaitingQueue()
    back = ticket(1, deadline_ns=100)
    queue.push(ticket(0, priority=9))
    queue.push(back)
    queue.remove("r1")
    back.returned = True
    queue.push(back)
    assert order_of(queue) == ["r1", "r0"]
    assert queue.take_expired(now=100) == [back]
    assert queue.next_expiry() is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80))
def test_a_heap_agrees_with_a_sorted_list(steps: list[tuple[bool, int]]) -> None:
    """Any mix of pushes and removals: peek, pop and length are those of a sorted list."""
    heap, plain = RemovableHeap(), {}
    for number, (push, key) in enumerate(steps):
        if push and f"e{key}" not in plain:
            heap.push((key % 5, number), f"e{key}")
            plain[f"e{key}"] = (key % 5, number)
        else:
            heap.discard(f"e{key}")
            plain.pop(f"e{key}", None)
        smallest = min(((entry_key, name) for name, entry_key in plain.items()), default=None)
        assert heap.peek() == smallest
        assert len(heap) == len(plain)
    assert [heap.pop() for _ in range(len(plain))] == sorted((entry_key, name) for name, entry_key in plain.items())
    assert heap.pop() is None


def test_a_queue_forgets_what_was_removed() -> None:
    """Fault: memory grows for days. 20,000 requests with an hour's deadline that are served at once leave under 64 KiB behind."""
    queue = WaitingQueue()
    tracemalloc.start()
    for number in range(20_000):
        queue.push(ticket(number, deadline_ns=3_600_000_000_000 + number))
        queue.remove(f"r{number}")
    left_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left_bytes < 65_536
    assert len(queue) == 0
    assert queue.next_expiry() is None
