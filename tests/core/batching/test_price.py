"""The price solver finds the batch time and the size limit of the fluid problem, and moves them the right way."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halcyon.core.batching.histogram import Traffic
from halcyon.core.batching.price import NO_LIMIT, Fleet, Price, cold_price, solve

MS = 1_000_000
S = 1_000_000_000
DEVICE = Fleet(replicas=1, overhead_ns=18e6, per_token_ns=22e3, max_batch=32)


def traffic_of(rate_per_s: int, *, urgent: float = 0.3, urgent_ms: int = 120, relaxed_ms: int = 900, seed: int = 1) -> Traffic:
    """Twenty seconds of log-normal sizes in two cohorts."""
    rng = random.Random(seed)
    traffic = Traffic(now=0)
    for index in range(rate_per_s * 20):
        traffic.decay(now=index * S // rate_per_s)
        tokens = min(4096, max(16, round(math.exp(4.8 + 0.9 * rng.gauss(0, 1)))))
        span_ns = (urgent_ms if rng.random() < urgent else relaxed_ms) * MS
        traffic.add(rank=tokens, tokens=tokens, worth=1.0, span_ns=span_ns)
    traffic.decay(now=20 * S)
    return traffic


def solved(traffic: Traffic, fleet: Fleet = DEVICE, previous: Price | None = None) -> Price:
    """The price, which exists."""
    price = solve(traffic, fleet, limited=True, previous=previous)
    assert price is not None
    return price


def test_one_device_aims_at_half_of_the_tight_objective() -> None:
    """Under load the mean batch is half of 120 ms and sizes over about 400 tokens wait at 260 requests a second."""
    price = solved(traffic_of(260))
    assert price.batch_ns == 60 * MS
    assert price.cap_ns == 66 * MS
    assert 350 < price.rank_limit < 470


def test_four_devices_may_take_longer_batches() -> None:
    """With k staggered devices the mean batch is k/(k + 1) of the objective: 96 ms of 120 with four."""
    fleet = Fleet(replicas=4, overhead_ns=18e6, per_token_ns=22e3, max_batch=64)
    assert solved(traffic_of(1040), fleet).batch_ns == pytest.approx(96 * MS, rel=0.01)


def test_light_traffic_has_no_size_limit() -> None:
    """At 40 requests a second everything fits and nothing is shed by size."""
    assert solved(traffic_of(40)).rank_limit == NO_LIMIT


def test_batches_widen_when_the_tight_class_is_gone() -> None:
    """With only 900 ms requests the mean batch is twice as long (the slots bound it) and more is promised."""
    only_relaxed = solved(traffic_of(260, urgent=0.0))
    assert only_relaxed.batch_ns > 115 * MS
    assert only_relaxed.worth_per_s > solved(traffic_of(260)).worth_per_s


def test_a_small_gain_changes_no_batch_time() -> None:
    """A previous batch time that is within 1 % of the best stays; its size limit is taken anew."""
    traffic = traffic_of(260)
    best = solved(traffic)
    old = Price(batch_ns=best.batch_ns - 500_000, rank_limit=7, worth_per_s=0.0)
    kept = solved(traffic, previous=old)
    assert kept.batch_ns == old.batch_ns
    assert kept.rank_limit > 300


def test_without_a_size_price_there_is_no_limit() -> None:
    """Under the token objective only batch time is solved for."""
    price = solve(traffic_of(260), DEVICE, limited=False, previous=None)
    assert price is not None
    assert price.rank_limit == NO_LIMIT


def test_nothing_to_solve_is_no_price() -> None:
    """Without traffic or without replicas there is no solution, and the cold price is k/(k + 1) of the tightest objective."""
    assert solve(Traffic(now=0), DEVICE, limited=True, previous=None) is None
    assert cold_price(120 * MS, 1) == Price(batch_ns=60 * MS, rank_limit=NO_LIMIT, worth_per_s=0.0)
    assert cold_price(120 * MS, 3).batch_ns == 90 * MS


def test_objectives_shorter_than_the_overhead_still_get_a_price() -> None:
    """When every deadline is nearer than the device's overhead nothing can be won, and the solver says so without failing."""
    price = solve(traffic_of(50, urgent_ms=5, relaxed_ms=10), DEVICE, limited=True, previous=None)
    assert price is None or price.worth_per_s == 0.0


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 400), st.integers(1, 6), st.floats(1, 30), st.floats(0.005, 0.1))
def test_a_replica_more_never_promises_less(rate: int, replicas: int, overhead_ms: float, per_token_ms: float) -> None:
    """Adding a replica or loosening every deadline by half never lowers the promised goodput."""

    def fleet(count: int) -> Fleet:
        return Fleet(replicas=count, overhead_ns=overhead_ms * MS, per_token_ns=per_token_ms * MS, max_batch=64)

    traffic = traffic_of(rate)
    looser = traffic_of(rate, urgent_ms=180, relaxed_ms=1350)
    now = solve(traffic, fleet(replicas), limited=True, previous=None)
    more = solve(traffic, fleet(replicas + 1), limited=True, previous=None)
    later = solve(looser, fleet(replicas), limited=True, previous=None)
    if now is None:
        return
    assert more is not None
    assert later is not None
    assert more.worth_per_s >= now.worth_per_s * 0.999
    assert later.worth_per_s >= now.worth_per_s * 0.999
