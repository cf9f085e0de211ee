"""Finds stop strings in a text that arrives in pieces, and never lets a part of one out.

Rule: of the text seen so far, everything is released except the longest suffix that could still become a stop string. The match that
begins first wins; of two that begin together, the longer one.
"""

from __future__ import annotations


class StopMatcher:
    """One per sequence. Feed text with `push`; end with `flush`."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(sorted({s for s in stops if s}, key=len, reverse=True))
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Returns (text to release, the stop string that matched or None). After a match nothing more may be pushed."""
        if not self._stops:
            return text, None
        seen = self._held + text
        match = self._first_match(seen)
        if match is not None:
            self._held = ""
            return seen[: match[0]], match[1]
        keep = self._longest_open_suffix(seen)
        self._held = seen[len(seen) - keep :]
        return seen[: len(seen) - keep], None

    def flush(self) -> str:
        """The text held back; the answer ended without completing a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, seen: str) -> tuple[int, str] | None:
        found = [(at, -len(stop), stop) for stop in self._stops if (at := seen.find(stop)) >= 0]
        if not found:
            return None
        at, _, stop = min(found)
        return at, stop

    def _longest_open_suffix(self, seen: str) -> int:
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(seen)), longest, -1):
                if seen.endswith(stop[:size]):
                    longest = size
                    break
        return longest
