"""Virtual time moves forward or says that it does not."""

from __future__ import annotations

from functools import partial

import pytest

from halcyon.sim.clock import TimeStalled, VirtualTime


def test_things_happen_in_order_and_ties_as_scheduled() -> None:
    """By instant, then by the order in which they were scheduled."""
    time, seen = VirtualTime(), []
    for name, instant in (("c", 5), ("a", 1), ("b", 5), ("d", 9)):
        time.at(instant, partial(seen.append, name))
    time.run()
    assert seen == ["a", "c", "b", "d"]
    assert time.now == 9


def test_the_past_cannot_be_scheduled() -> None:
    """An instant before now is the caller's mistake."""
    time = VirtualTime()
    time.at(10, lambda: time.at(9, lambda: None))
    with pytest.raises(ValueError, match="1 ns in the past"):
        time.run()


def test_time_that_stands_still_raises() -> None:
    """A loop that re-arms itself at the same instant ends in TimeStalled instead of hanging."""
    time = VirtualTime(spin_limit=100)

    def again() -> None:
        time.at(time.now, again)

    time.at(3, again)
    with pytest.raises(TimeStalled, match="at 3 ns"):
        time.run()
