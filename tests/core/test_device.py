"""The law of a simulated device."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.device import SimulatedDevice


def test_the_law_to_the_nanosecond() -> None:
    """18 ms + 0.022 ms a token: 1,000 tokens take 40 ms, at 0.6 of the speed 66.666667 ms."""
    full = SimulatedDevice(overhead_ms=18.0, per_token_ms=0.022, rng=random.Random(0))
    slow = SimulatedDevice(overhead_ms=18.0, per_token_ms=0.022, speed=0.6, rng=random.Random(0))
    assert (full.duration_ns(0), full.duration_ns(1000)) == (18_000_000, 40_000_000)
    assert slow.duration_ns(1000) == 66_666_667


@given(st.integers(0, 100_000), st.floats(0.0, 0.99), st.integers(0, 2**32))
def test_noise_stays_within_its_half_width(tokens: int, jitter: float, seed: int) -> None:
    """Every duration lies within ±jitter of the law; one seed gives one series."""
    exact_ns = (18 + 0.022 * tokens) * 1e6
    twins = [SimulatedDevice(overhead_ms=18.0, per_token_ms=0.022, jitter=jitter, rng=random.Random(seed)) for _ in range(2)]
    for _ in range(5):
        duration_ns = twins[0].duration_ns(tokens)
        assert duration_ns == twins[1].duration_ns(tokens)
        assert (1 - jitter) * exact_ns - 1 <= duration_ns <= (1 + jitter) * exact_ns + 1


def test_a_device_without_noise_uses_no_coin() -> None:
    """Without jitter the given generator is left where it was, so that adding a device changes nobody else's draws."""
    coin = random.Random(7)
    SimulatedDevice(overhead_ms=1.0, per_token_ms=1.0, rng=coin).duration_ns(10)
    assert coin.getstate() == random.Random(7).getstate()


def test_time_always_advances() -> None:
    """A device that costs nothing still takes a nanosecond, so that whoever drives time gets on."""
    assert SimulatedDevice(overhead_ms=0.0, per_token_ms=0.0, rng=random.Random(0)).duration_ns(5) == 1


@pytest.mark.parametrize("wrong", [{"overhead_ms": -1.0}, {"per_token_ms": -0.1}, {"jitter": 1.0}, {"speed": 0.0}])
def test_impossible_laws_are_refused(wrong: dict[str, float]) -> None:
    """Negative cost, noise of 100 % or no speed raise, naming the value."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SimulatedDevice(**{"overhead_ms": 1.0, "per_token_ms": 1.0, **wrong}, rng=random.Random(0))
