"""The traffic histogram forgets at the stated pace and keeps what the price needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.batching.histogram import BINS, Traffic, bin_bounds, bin_of

MS = 1_000_000
S = 1_000_000_000


def test_a_steady_rate_is_read_back() -> None:
    """A hundred arrivals a second for twenty seconds read as a hundred a second within 3 %."""
    traffic = Traffic(now=0)
    for index in range(2000):
        traffic.decay(now=index * 10 * MS)
        traffic.add(rank=100, tokens=100, worth=1.0, span_ns=120 * MS)
    traffic.decay(now=20 * S)
    assert traffic.rate_per_s() == pytest.approx(100, rel=0.03)


def test_half_is_forgotten_in_five_seconds() -> None:
    """Five seconds without arrivals halve every count."""
    traffic = Traffic(now=0)
    for _ in range(1000):
        traffic.add(rank=100, tokens=100, worth=1.0, span_ns=120 * MS)
    before = traffic.classes()[0].count
    traffic.decay(now=5 * S)
    assert traffic.classes()[0].count == pytest.approx(before / 2, rel=0.01)


def test_a_class_that_vanished_leaves_nothing_behind() -> None:
    """A minute and a half after its last request a class is gone, after an hour asleep everything is."""
    traffic = Traffic(now=0)
    for _ in range(100):
        traffic.add(rank=50, tokens=50, worth=1.0, span_ns=120 * MS)
    traffic.decay(now=90 * S)
    assert traffic.classes() == []
    traffic.add(rank=50, tokens=50, worth=1.0, span_ns=120 * MS)
    traffic.decay(now=3600 * S)
    assert traffic.classes() == []


def test_rounding_to_classes_moves_no_deadline() -> None:
    """The class of 120 ms requests says 120 ms, not the power of two beside it."""
    traffic = Traffic(now=0)
    traffic.add(rank=50, tokens=50, worth=1.0, span_ns=120 * MS)
    traffic.add(rank=50, tokens=50, worth=1.0, span_ns=900 * MS)
    assert [row.span_ns for row in traffic.classes()] == [120 * MS, 900 * MS]


@given(st.integers(1, 1 << 50))
def test_every_rank_lies_in_its_bin(rank: int) -> None:
    """A rank is at least its bin's lower bound and, but for the last bin, below its upper one."""
    index = bin_of(rank)
    low, high = bin_bounds(index)
    assert low <= rank
    assert rank < high or index == BINS - 1


def test_decay_in_one_step_or_many_is_nearly_the_same() -> None:
    """Asking often and asking once lead to the same counts within a thousandth."""
    often, once = Traffic(now=0), Traffic(now=0)
    for traffic in (often, once):
        for _ in range(500):
            traffic.add(rank=100, tokens=100, worth=1.0, span_ns=120 * MS)
    for step in range(1, 31):
        often.decay(now=step * 100 * MS)
    once.decay(now=3 * S)
    assert often.classes()[0].count == pytest.approx(once.classes()[0].count, rel=1e-3)
