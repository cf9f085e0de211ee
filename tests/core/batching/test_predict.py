"""Output lengths are guessed from what is known, and the guess says from what."""

from __future__ import annotations

import pytest

from halcyon.core.batching.predict import OutputGuess, OutputLength


def test_the_prior_serves_until_twenty_answers_were_seen() -> None:
    """Nineteen answers change nothing, the twentieth does."""
    lengths = OutputLength(100)
    for _ in range(19):
        lengths.observe(10)
    assert lengths.guess(None) == OutputGuess(100, "prior")
    lengths.observe(10)
    assert lengths.guess(None) == OutputGuess(10, "learned")


def test_the_guess_is_the_eighty_percent_quantile() -> None:
    """Of the lengths 1 to 100 it is 80."""
    lengths = OutputLength(7)
    for tokens in range(1, 101):
        lengths.observe(tokens)
    assert lengths.guess(None).tokens == 80


def test_max_tokens_bounds_every_guess() -> None:
    """A client that asks for 5 tokens gets at most 5, at least 1."""
    lengths = OutputLength(100)
    assert lengths.guess(5) == OutputGuess(5, "max_tokens")
    assert lengths.guess(0) == OutputGuess(1, "max_tokens")
    assert lengths.guess(1000) == OutputGuess(100, "prior")


def test_old_answers_are_forgotten() -> None:
    """After 512 short answers the long ones before them count no more."""
    lengths = OutputLength(7)
    for _ in range(512):
        lengths.observe(1000)
    for _ in range(512):
        lengths.observe(3)
    assert lengths.guess(None).tokens == 3


def test_a_prior_must_be_positive() -> None:
    """A prior of nothing is refused."""
    with pytest.raises(ValueError, match="at least 1"):
        OutputLength(0)
