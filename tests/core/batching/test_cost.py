"""The cost models learn a device from what it did, and never believe the impossible."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.batching.cost import BatchCost, IterationCost, LinearCost
from halcyon.core.batching.least_squares import conditioning, solve_nonnegative

MS = 1_000_000


def feed(
    cost: BatchCost, rng: random.Random, *, overhead_ms: float, per_token_ms: float, jitter: float, batches: int, low: int = 50
) -> None:
    """Batches of a device with that law, sizes uniform from `low` to 3000 tokens."""
    for _ in range(batches):
        tokens = rng.randint(low, 3000)
        noise = 1 + jitter * (2 * rng.random() - 1)
        cost.observe(tokens, round((overhead_ms + per_token_ms * tokens) * noise * MS))


@pytest.mark.parametrize(("overhead_ms", "per_token_ms"), [(18.0, 0.022), (2.0, 0.1), (40.0, 0.005), (0.5, 0.001)])
def test_a_device_is_learned_from_sixty_batches(overhead_ms: float, per_token_ms: float) -> None:
    """After 60 noisy batches predictions are within 4 % of the true law, whatever the prior was."""
    cost = BatchCost()
    feed(cost, random.Random(1), overhead_ms=overhead_ms, per_token_ms=per_token_ms, jitter=0.08, batches=60)
    for tokens in (100, 1000, 3000):
        truth = (overhead_ms + per_token_ms * tokens) * MS
        assert abs(cost.present.predict_ns(tokens) - truth) < 0.04 * truth


def test_the_margin_is_the_spread_that_was_seen() -> None:
    """With noise of ±8 % the margin lands at 1.08 within 0.02, with none at its floor of 1.02."""
    noisy, quiet = BatchCost(), BatchCost()
    feed(noisy, random.Random(2), overhead_ms=18, per_token_ms=0.022, jitter=0.08, batches=600)
    feed(quiet, random.Random(2), overhead_ms=18, per_token_ms=0.022, jitter=0.0, batches=600)
    assert noisy.present.margin == pytest.approx(1.08, abs=0.02)
    assert quiet.present.margin == pytest.approx(1.02, abs=0.001)


def test_equal_shapes_scale_the_prior_and_do_not_tear_it_apart() -> None:
    """Batches of one size cannot tell overhead from slope: their ratio stays the prior's, and the prediction at that size is right."""
    cost = BatchCost((10.0 * MS, 0.02 * MS))
    for _ in range(50):
        cost.observe(1000, 60 * MS)
    fit = cost.present
    assert fit.overhead_ns / fit.per_token_ns == pytest.approx(500, rel=1e-6)
    assert fit.predict_ns(1000) == pytest.approx(60 * MS, rel=1e-6)


def test_a_negative_slope_is_solved_again_and_not_clamped() -> None:
    """Durations that fall with size give slope 0 and their mean as overhead, not the intercept that belongs to the negative slope."""
    law = LinearCost((10.0 * MS, 0.02 * MS))
    for step in range(200):
        tokens = 100 + 20 * (step % 100)
        law.observe((1.0, float(tokens)), 80 * MS - tokens * 20_000)
    overhead, slope = law.coefficients_ns
    assert slope == 0.0
    assert 38 * MS < overhead < 80 * MS


def test_a_negative_overhead_is_solved_again_through_the_origin() -> None:
    """Durations that extrapolate below zero give overhead 0 and the slope that fits best through the origin."""
    law = LinearCost((10.0 * MS, 0.02 * MS))
    for step in range(200):
        tokens = 1000 + 20 * (step % 100)
        law.observe((1.0, float(tokens)), tokens * 50_000 - 20 * MS)
    overhead, slope = law.coefficients_ns
    assert overhead == 0.0
    assert 30_000 < slope < 50_000


def test_one_stall_moves_nothing() -> None:
    """A batch that takes twenty times as long changes neither prediction nor margin."""
    cost = BatchCost()
    feed(cost, random.Random(3), overhead_ms=18, per_token_ms=0.022, jitter=0.05, batches=200)
    before = cost.present
    cost.observe(1000, 20 * before.predict_ns(1000))
    assert cost.present == before


@pytest.mark.parametrize("factor", [0.5, 0.7, 1.5, 2.0, 4.0])
def test_a_device_that_jumps_is_relearned_in_twenty_batches(factor: float) -> None:
    """Twenty batches after the device became faster or slower by a jump, predictions are within 8 % of the new law."""
    cost, rng = BatchCost(), random.Random(4)
    feed(cost, rng, overhead_ms=18, per_token_ms=0.022, jitter=0.08, batches=400)
    feed(cost, rng, overhead_ms=18 * factor, per_token_ms=0.022 * factor, jitter=0.08, batches=20)
    for tokens in (500, 2000):
        truth = (18 + 0.022 * tokens) * factor * MS
        assert abs(cost.present.predict_ns(tokens) - truth) < 0.08 * truth


def test_iterations_are_told_apart_by_running_and_prefill() -> None:
    """The three coefficients of a continuous replica are found within 10 % from 300 iterations."""
    cost, rng = IterationCost((5.0 * MS, 0.3 * MS, 0.1 * MS)), random.Random(5)
    for _ in range(300):
        running, prefill = rng.randint(1, 32), rng.choice((0, 0, 64, 256, 512))
        cost.observe(running, prefill, round((8 + 0.1 * running + 0.045 * prefill) * MS * (1 + 0.04 * (rng.random() - 0.5))))
    overhead, per_running, per_prompt_token = cost.coefficients_ns
    assert overhead == pytest.approx(8 * MS, rel=0.1)
    assert per_running == pytest.approx(0.1 * MS, rel=0.1)
    assert per_prompt_token == pytest.approx(0.045 * MS, rel=0.1)


def test_a_prior_must_make_sense() -> None:
    """A prior with a negative coefficient, or without any positive one, is refused with its values."""
    with pytest.raises(ValueError, match="non-negative"):
        LinearCost((-1.0, 2.0))
    with pytest.raises(ValueError, match="positive"):
        LinearCost((0.0, 0.0))


def test_a_broken_clock_is_ignored() -> None:
    """Durations of zero or less teach nothing."""
    cost = BatchCost()
    before = cost.present
    cost.observe(100, 0)
    cost.observe(100, -5)
    assert cost.present == before


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 10**10)), max_size=60))
def test_no_history_makes_a_prediction_negative_or_falling(history: list[tuple[int, int]]) -> None:
    """Whatever was observed, coefficients are finite and never negative and the prediction does not fall with size."""
    cost = BatchCost()
    for tokens, duration_ns in history:
        cost.observe(tokens, duration_ns)
    fit = cost.present
    assert fit.overhead_ns >= 0
    assert fit.per_token_ns >= 0
    assert 1.02 <= fit.margin <= 1.5
    assert 0 < fit.predict_ns(4096) < 10**16
    assert fit.predict_ns(10) <= fit.predict_ns(1000) <= fit.safe_ns(1000)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(-100, 100)), min_size=3, max_size=12))
def test_the_constrained_solution_cannot_be_improved_by_a_small_step(rows: list[tuple[float, float, float]]) -> None:
    """Non-negative least squares: no allowed step of any single coefficient lowers the loss."""
    matrix = [[0.0] * 3 for _ in range(3)]
    vector = [0.0] * 3
    for first, second, duration in rows:
        features = (1.0, first, second)
        for i in range(3):
            vector[i] += features[i] * duration
            for j in range(3):
                matrix[i][j] += features[i] * features[j]
    solved = solve_nonnegative(matrix, vector)
    if solved is None or conditioning(matrix) < 0.01:
        return

    def loss(beta: tuple[float, ...]) -> float:
        return sum((beta[0] + beta[1] * first + beta[2] * second - duration) ** 2 for first, second, duration in rows)

    at = loss(solved)
    for index in range(3):
        for step in (1e-3, -1e-3):
            moved = tuple(max(0.0, value + step * (position == index)) for position, value in enumerate(solved))
            assert loss(moved) >= at - 1e-6 * max(1.0, at)
