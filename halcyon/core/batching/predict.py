"""How long an answer will be, before a token of it exists.

Rules: the client's `max_tokens` bounds every guess. Until enough answers were seen the prior is used; after that the 80 % quantile of the
last 512 answers of the model. The guess says where it came from, so that a decision which rests on it can be explained.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Literal

WINDOW = 512
LEAST_ANSWERS = 20
QUANTILE_PERCENT = 80

Source = Literal["max_tokens", "prior", "learned"]


@dataclass(frozen=True, slots=True)
class OutputGuess:
    """Predicted output tokens, and what they were predicted from."""

    tokens: int
    source: Source


class OutputLength:
    """The lengths of one model's answers lately."""

    def __init__(self, prior_tokens: int) -> None:
        if prior_tokens < 1:
            raise ValueError(f"the prior of an output length is {prior_tokens} tokens; it must be at least 1")
        self._prior = prior_tokens
        self._recent: deque[int] = deque()
        self._ordered: list[int] = []
        self._total = 0

    def guess(self, max_tokens: int | None) -> OutputGuess:
        """Tokens the answer will probably stay under, at most `max_tokens`."""
        learned = len(self._ordered) >= LEAST_ANSWERS
        tokens = self.quantile(QUANTILE_PERCENT) if learned else self._prior
        if max_tokens is not None and max_tokens <= tokens:
            return OutputGuess(max(1, max_tokens), "max_tokens")
        return OutputGuess(tokens, "learned" if learned else "prior")

    def quantile(self, percent: int) -> int:
        """The nearest-rank quantile of recent answers, at least 1; the prior while there are none."""
        seen = len(self._ordered)
        return max(1, self._ordered[max(0, -(-seen * percent // 100) - 1)]) if seen else self._prior

    def mean(self, max_tokens: int | None) -> int:
        """The mean of recent answers (the prior before), from 1 to `max_tokens`: for sums of work, where a quantile is too much."""
        seen = len(self._recent)
        tokens = self._total // seen if seen >= LEAST_ANSWERS else self._prior
        return max(1, tokens if max_tokens is None else min(tokens, max_tokens))

    def observe(self, output_tokens: int) -> None:
        """An answer ended by itself or at its bound; not for cancelled ones."""
        value = max(0, output_tokens)
        self._recent.append(value)
        insort(self._ordered, value)
        self._total += value
        if len(self._recent) > WINDOW:
            oldest = self._recent.popleft()
            self._total -= oldest
            del self._ordered[bisect_left(self._ordered, oldest)]
