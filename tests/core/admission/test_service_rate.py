"""When to come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.admission.service_rate import ServiceRate

MS = 1_000_000


def test_the_formula() -> None:
    """Ten finishes 20 ms apart: 50 requests ahead take a second."""
    rate = ServiceRate()
    for number in range(10):
        rate.finished(now=number * 20 * MS)
    assert rate.retry_after_ms(50, now=180 * MS) == 1000


def test_an_unknown_rate_says_one_second() -> None:
    """None, one, or several finishes in one instant give no rate; neither does a busy period that is over."""
    rate = ServiceRate()
    assert rate.retry_after_ms(5, now=10 * MS) == 1000
    rate.finished(now=10 * MS)
    assert rate.retry_after_ms(5, now=20 * MS) == 1000
    rate.finished(now=10 * MS)
    assert rate.retry_after_ms(5, now=10 * MS) == 1000
    rate.finished(now=11 * MS)
    rate.idled()
    assert rate.retry_after_ms(5, now=20 * MS) == 1000


def test_a_stall_lowers_the_rate() -> None:
    """Nothing finished for a second after two finishes 10 ms apart: the answer grows from 100 ms to 10.1 s for ten ahead."""
    rate = ServiceRate()
    rate.finished(now=0)
    rate.finished(now=10 * MS)
    assert rate.retry_after_ms(10, now=10 * MS) == 100
    assert rate.retry_after_ms(10, now=1010 * MS) == 10_100


@given(st.lists(st.integers(0, 10**12), max_size=50), st.integers(0, 10_000), st.integers(0, 10**13))
def test_the_answer_is_an_integer_between_one_and_a_minute(finishes: list[int], ahead: int, now: int) -> None:
    """Fault: a Retry-After that is absent, zero or absurd. Always an integer in [1, 60,000]."""
    rate = ServiceRate()
    for finish_ns in sorted(finishes):
        rate.finished(now=finish_ns)
    answer_ms = rate.retry_after_ms(ahead, now=max([now, *finishes]))
    assert isinstance(answer_ms, int)
    assert 1 <= answer_ms <= 60_000
