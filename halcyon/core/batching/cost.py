"""What a batch or an iteration will take on one replica, learned from what earlier ones took.

    batch replica        duration = a + b·tokens
    continuous replica   duration = a + b·running + c·prefill_tokens

Rules: recursive least squares in information form (decayed sums of the normal equations), forgetting 0.995 per observation, every
observation weighted by 1/predicted² because device noise is relative. Coefficients are never negative (`least_squares`). Shapes that do
not differ cannot tell overhead from slope: until their spread is real, and again whenever it is lost, the last shape that was (at first
the prior) is kept and only its scale is fitted. An outlier moves nothing; a run of them on one side rescales the whole fit at once
(`residuals`). Floats live inside; what goes out is integer nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from halcyon.core.batching.least_squares import conditioning, solve_nonnegative
from halcyon.core.batching.residuals import Residuals

FORGETTING = 0.995
LEAST_CONDITIONING = 0.01
LEAST_OBSERVATIONS = 8
CHANGE_KEEPS = 0.05
"""Share of its weight the past keeps when the device has changed by a jump."""


class LinearCost:
    """A non-negative linear law over `len(prior_ns)` features, the first of which is always 1. Coefficients in ns per unit of feature."""

    def __init__(self, prior_ns: Sequence[float]) -> None:
        if not prior_ns or min(prior_ns) < 0 or max(prior_ns) <= 0:
            raise ValueError(f"a cost prior needs non-negative coefficients, at least one positive; got {tuple(prior_ns)}")
        size = len(prior_ns)
        self._shape = tuple(float(value) for value in prior_ns)
        self._coefficients = self._shape
        self._matrix = [[0.0] * size for _ in range(size)]
        self._vector = [0.0] * size
        self._weight = 0.0
        self._residuals = Residuals()
        self._conditioned = False

    @property
    def coefficients_ns(self) -> tuple[float, ...]:
        """The present fit, ns per unit of each feature."""
        return self._coefficients

    @property
    def conditioned(self) -> bool:
        """Whether the shapes seen lately differ enough to tell the coefficients apart."""
        return self._conditioned

    @property
    def margin(self) -> float:
        """The factor on a prediction that a deadline should allow for."""
        return self._residuals.margin

    @property
    def floor(self) -> float:
        """The factor on a prediction under which hardly any duration falls."""
        return self._residuals.floor

    def predict_ns(self, features: Sequence[float]) -> int:
        """The expected duration, ns, rounded up."""
        return math.ceil(self._predict(features))

    def observe(self, features: Sequence[float], duration_ns: int) -> None:
        """One finished batch or iteration. Not for cold, preempted or cancelled ones. Durations under 1 ns are ignored."""
        if duration_ns < 1:
            return
        predicted = max(1.0, self._predict(features))
        level = self._residuals.judge(duration_ns / predicted)
        if level is None:
            return
        if level != 1.0:
            self._rescale(level)
            predicted *= level
        self._accumulate(features, duration_ns, 1.0 / (predicted * predicted))
        self._refit()

    def _predict(self, features: Sequence[float]) -> float:
        return sum([c * x for c, x in zip(self._coefficients, features, strict=True)])

    def _rescale(self, level: float) -> None:
        """The device is `level` times slower than the fit: same shape, new scale, and a short memory of how it was before."""
        keep = CHANGE_KEEPS / (level * level)
        self._matrix = [[value * keep for value in row] for row in self._matrix]
        self._vector = [value * keep * level for value in self._vector]
        self._weight *= CHANGE_KEEPS
        self._coefficients = tuple(value * level for value in self._coefficients)
        self._shape = tuple(value * level for value in self._shape)

    def _accumulate(self, features: Sequence[float], duration_ns: int, weight: float) -> None:
        matrix, vector = self._matrix, self._vector
        for i, left in enumerate(features):
            row = matrix[i]
            for j, right in enumerate(features):
                row[j] = row[j] * FORGETTING + weight * left * right
            vector[i] = vector[i] * FORGETTING + weight * left * duration_ns
        self._weight = self._weight * FORGETTING + 1.0

    def _refit(self) -> None:
        spread = self._weight >= LEAST_OBSERVATIONS and conditioning(self._matrix) >= LEAST_CONDITIONING
        solved = solve_nonnegative(self._matrix, self._vector) if spread else None
        if solved is None:
            self._conditioned = False
            self._coefficients = self._scaled_shape()
            return
        if not self._conditioned:
            self._residuals.forget()
        self._conditioned = True
        self._coefficients = solved
        self._shape = solved

    def _scaled_shape(self) -> tuple[float, ...]:
        """The kept shape, scaled by the one-parameter least-squares fit."""
        shape = self._shape
        energy = sum(shape[i] * shape[j] * value for i, row in enumerate(self._matrix) for j, value in enumerate(row))
        if energy <= 0.0:
            return shape
        scale = sum(s * r for s, r in zip(shape, self._vector, strict=True)) / energy
        return tuple(scale * value for value in shape)


@dataclass(frozen=True, slots=True)
class BatchCoefficients:
    """The law of a batch replica as the batch former uses it: overhead and slope in ns, and what the margin makes of them."""

    overhead_ns: float
    per_token_ns: float
    margin: float
    floor: float

    def predict_ns(self, tokens: int) -> int:
        """Expected duration of a batch of that many tokens, ns."""
        return math.ceil(self.overhead_ns + self.per_token_ns * tokens)

    def safe_ns(self, tokens: int) -> int:
        """The duration that 99.5 % of such batches stay under, ns."""
        return math.ceil(self.margin * (self.overhead_ns + self.per_token_ns * tokens))


class BatchCost:
    """`ms = a + b·tokens` of one batch replica. The default prior is a guess that the first few batches replace."""

    DEFAULT_PRIOR_NS = (10_000_000.0, 20_000.0)

    def __init__(self, prior_ns: tuple[float, float] = DEFAULT_PRIOR_NS) -> None:
        self._law = LinearCost(prior_ns)
        self._present = self._read()

    @property
    def present(self) -> BatchCoefficients:
        """The fit as of the last observation."""
        return self._present

    def observe(self, tokens: int, duration_ns: int) -> None:
        """One finished batch."""
        self._law.observe((1.0, float(max(0, tokens))), duration_ns)
        self._present = self._read()

    def _read(self) -> BatchCoefficients:
        overhead, slope = self._law.coefficients_ns
        return BatchCoefficients(overhead, slope, self._law.margin, self._law.floor)


class IterationCost:
    """`ms = a + b·running + c·prefill_tokens` of one continuous replica."""

    DEFAULT_PRIOR_NS = (8_000_000.0, 100_000.0, 45_000.0)

    def __init__(self, prior_ns: tuple[float, float, float] = DEFAULT_PRIOR_NS) -> None:
        self._law = LinearCost(prior_ns)

    @property
    def coefficients_ns(self) -> tuple[float, ...]:
        """a (ns), b (ns per running sequence), c (ns per prompt token)."""
        return self._law.coefficients_ns

    @property
    def margin(self) -> float:
        """The factor on a prediction that a deadline should allow for."""
        return self._law.margin

    def predict_ns(self, running: int, prefill_tokens: int) -> int:
        """Expected duration of the iteration, ns."""
        return self._law.predict_ns((1.0, float(running), float(prefill_tokens)))

    def observe(self, running: int, prefill_tokens: int, duration_ns: int) -> None:
        """One finished iteration."""
        self._law.observe((1.0, float(running), float(prefill_tokens)), duration_ns)
