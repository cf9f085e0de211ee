"""When a dead replica is started again, and when it is given up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.restart import GiveUp, RestartAt, RestartPolicy, RestartSettings

S = 1_000_000_000
STEADY = RestartSettings(jitter=0.0)


def test_delays_double_from_one_second() -> None:
    """Four failures at once wait 1, 2, 4 and 8 s; the fifth within ten minutes is the last."""
    policy = RestartPolicy(STEADY, rng=random.Random(0))
    assert [policy.failed(now=0, retryable=True) for _ in range(4)] == [RestartAt(delay * S) for delay in (1, 2, 4, 8)]
    last = policy.failed(now=0, retryable=True)
    assert isinstance(last, GiveUp)
    assert "5 times within 600 s" in last.reason


def test_delays_are_bounded_by_thirty_seconds() -> None:
    """Failures too far apart to give up on keep the longest delay for ever, also the hundredth."""
    policy = RestartPolicy(STEADY, rng=random.Random(0))
    delays = []
    for number in range(100):
        outcome = policy.failed(now=number * 200 * S, retryable=True)
        assert isinstance(outcome, RestartAt)
        delays.append(outcome.instant_ns // S - number * 200)
    assert delays[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert set(delays[6:]) == {30}


def test_the_window_is_ten_minutes_to_the_nanosecond() -> None:
    """The fifth failure 600 s after the first is one of four in the window; one nanosecond earlier it is the fifth."""
    for last_ns, gives_up in ((600 * S, False), (600 * S - 1, True)):
        policy = RestartPolicy(STEADY, rng=random.Random(0))
        for now in (0, 100 * S, 200 * S, 300 * S):
            policy.failed(now=now, retryable=True)
        assert isinstance(policy.failed(now=last_ns, retryable=True), GiveUp) == gives_up


def test_a_replica_that_was_ready_for_a_minute_starts_anew() -> None:
    """Ready for 60 s: the row is forgotten and the delay is 1 s again. One nanosecond less: it is the fourth failure, 8 s."""
    for ready_ns, delay_s in ((60 * S, 1), (60 * S - 1, 8)):
        policy = RestartPolicy(STEADY, rng=random.Random(0))
        for now in (0, 1, 2):
            policy.failed(now=now, retryable=True)
        policy.ready(now=10 * S)
        outcome = policy.failed(now=10 * S + ready_ns, retryable=True)
        assert outcome == RestartAt(10 * S + ready_ns + delay_s * S)


def test_a_short_ready_does_not_count_later() -> None:
    """Readiness ends with the failure: minutes spent dead or loading afterwards are not health."""
    policy = RestartPolicy(STEADY, rng=random.Random(0))
    policy.ready(now=0)
    policy.failed(now=1 * S, retryable=True)
    assert policy.failed(now=500 * S, retryable=True) == RestartAt(502 * S)


def test_what_a_restart_cannot_help_is_given_up_at_once() -> None:
    """A missing model is no reason to start a process five times."""
    outcome = RestartPolicy(rng=random.Random(0)).failed(now=0, retryable=False)
    assert isinstance(outcome, GiveUp)
    assert "`halcyon down` and `halcyon up`" in outcome.reason


@given(st.integers(0, 2**32), st.integers(0, 10**18))
def test_jitter_stays_within_a_fifth(seed: int, now: int) -> None:
    """Every delay lies within ±20 % of its formula, and the same coin gives the same delays."""
    first, second = (RestartPolicy(rng=random.Random(seed)) for _ in range(2))
    for delay_s in (1, 2, 4, 8):
        outcome = first.failed(now=now, retryable=True)
        assert outcome == second.failed(now=now, retryable=True)
        assert isinstance(outcome, RestartAt)
        assert 0.8 * delay_s * S - 1 <= outcome.instant_ns - now <= 1.2 * delay_s * S + 1


@pytest.mark.parametrize("wrong", [{"first_delay_ns": 0}, {"jitter": 1.0}, {"most_failures": 0}, {"longest_delay_ns": 1}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    """A bound that makes no sense raises when it is set, naming itself."""
    with pytest.raises(ValueError, match="it must be"):
        RestartSettings(**wrong)  # type: ignore[arg-type]
