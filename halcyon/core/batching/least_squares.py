"""Non-negative least squares over at most a handful of coefficients, from decayed normal equations.

Rule: minimise ½·βᵀSβ − rᵀβ with every coefficient ≥ 0. The free solution is tried first; where a sign is violated, every set of active
constraints is re-solved with the rest free, and the feasible one with the least loss wins. Considered and rejected: clamping the
offending coefficient alone, which leaves the others fitted to a term that is no longer there (a negative slope set to zero keeps the
intercept that went with it, seconds too large).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Matrix = Sequence[Sequence[float]]

_SINGULAR = 1e-12
"""Pivot, relative to the largest diagonal entry, under which a system counts as singular."""


def solve_nonnegative(matrix: Matrix, vector: Sequence[float]) -> tuple[float, ...] | None:
    """The non-negative minimiser for the symmetric `matrix` S and `vector` r; `None` when no set of coefficients can be solved for."""
    size = len(vector)
    free = _solve(matrix, vector, tuple(range(size)))
    if free is not None and min(free) >= 0.0:
        return tuple(free)
    best: tuple[float, ...] | None = None
    best_gain = -1.0
    for count in range(size - 1, 0, -1):
        for kept in combinations(range(size), count):
            part = _solve(matrix, vector, kept)
            if part is None or min(part) < 0.0:
                continue
            gain = sum(vector[i] * value for i, value in zip(kept, part, strict=True))
            if gain > best_gain:
                best_gain = gain
                best = tuple(part[kept.index(i)] if i in kept else 0.0 for i in range(size))
    return best


def conditioning(matrix: Matrix) -> float:
    """How independent the features were, in [0, 1]: the determinant of the matrix scaled to a unit diagonal, per degree of freedom.

    For features (1, x) it equals var(x) / E[x²], so a relative spread of 10 % in x gives 0.01. Zero without data.
    """
    size = len(matrix)
    diagonal = [matrix[i][i] for i in range(size)]
    if min(diagonal) <= 0.0:
        return 0.0
    if size == 2:
        return max(0.0, 1.0 - matrix[0][1] * matrix[1][0] / (diagonal[0] * diagonal[1]))
    root = [value**0.5 for value in diagonal]
    scaled = [[matrix[i][j] / (root[i] * root[j]) for j in range(size)] for i in range(size)]
    determinant = max(0.0, _determinant(scaled))
    return float(determinant ** (1.0 / (size - 1))) if size > 1 else 1.0


def _solve(matrix: Matrix, vector: Sequence[float], kept: tuple[int, ...]) -> list[float] | None:
    """Gaussian elimination on the kept rows and columns; the matrix is positive semi-definite, so the diagonal is a fair pivot."""
    size = len(kept)
    if size == 2:
        return _solve_two(matrix, vector, kept[0], kept[1])
    rows = [[matrix[i][j] for j in kept] + [vector[i]] for i in kept]
    floors = [max(rows[i][i] * _SINGULAR, 1e-300) for i in range(size)]
    for i in range(size):
        pivot = rows[i][i]
        if pivot <= floors[i]:
            return None
        for below in range(i + 1, size):
            factor = rows[below][i] / pivot
            for j in range(i, size + 1):
                rows[below][j] -= factor * rows[i][j]
    solution = [0.0] * size
    for i in range(size - 1, -1, -1):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution


def _solve_two(matrix: Matrix, vector: Sequence[float], i: int, j: int) -> list[float] | None:
    """Two unknowns in closed form: the batch replicas' case, asked for after every batch."""
    a, b, c = matrix[i][i], matrix[i][j], matrix[j][j]
    determinant = a * c - b * b
    if determinant <= max(a * c * _SINGULAR, 1e-300):
        return None
    return [(vector[i] * c - vector[j] * b) / determinant, (vector[j] * a - vector[i] * b) / determinant]


def _determinant(matrix: Matrix) -> float:
    """By elimination without exchange, which suffices for a positive semi-definite matrix."""
    rows = [list(row) for row in matrix]
    product = 1.0
    for i in range(len(rows)):
        pivot = rows[i][i]
        product *= pivot
        if pivot <= _SINGULAR:
            return 0.0
        for below in range(i + 1, len(rows)):
            factor = rows[below][i] / pivot
            for j in range(i, len(rows)):
                rows[below][j] -= factor * rows[i][j]
    return product
