"""How far a suite is: it knows beforehand how many steps it takes, and tells of each as it begins."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Hears what begins now, the steps that are done, and those there are in all."""


def ignore(what: str, done: int, of: int) -> None:
    """The progress of a suite that nobody watches."""


class Steps:
    """Counts the steps of one run."""

    def __init__(self, of: int, tell: Progress) -> None:
        self._of = of
        self._tell = tell
        self._begun = 0

    def begin(self, what: str) -> None:
        """The next step begins, so the one before it is done."""
        self._tell(what, self._begun, self._of)
        self._begun += 1
