"""Seeded draws are exact and follow their laws."""

from __future__ import annotations

import statistics

import pytest

from halcyon.sim.chance import Mulberry32


def test_the_generator_is_the_well_known_one() -> None:
    """The first draws of seed 1 are those of every other implementation of Mulberry32."""
    chance = Mulberry32(1)
    assert [round(chance.uniform() * 2**32) for _ in range(3)] == [2693262067, 11749833, 2265367787]


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda chance: chance.uniform(), 0.5, 12**-0.5),
        (lambda chance: chance.exponential(4.0), 0.25, 0.25),
        (lambda chance: chance.normal(), 0.0, 1.0),
        (lambda chance: chance.gamma(2.5), 2.5, 2.5**0.5),
        (lambda chance: chance.gamma(0.4), 0.4, 0.4**0.5),
        (lambda chance: chance.weibull(1.0), 1.0, 1.0),
    ],
    ids=["uniform", "exponential", "normal", "gamma", "gamma-bursty", "weibull"],
)
def test_laws_have_their_moments(draw, mean: float, deviation: float) -> None:  # noqa: ANN001 - a parametrised draw
    """Mean and deviation of 40,000 draws lie within 3 % of the law's."""
    chance = Mulberry32(99)
    values = [draw(chance) for _ in range(40_000)]
    assert statistics.fmean(values) == pytest.approx(mean, abs=0.03 * deviation)
    assert statistics.pstdev(values) == pytest.approx(deviation, rel=0.03)
