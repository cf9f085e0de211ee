"""What is wrong with a fleet file, one line each, all of them at once.

A line names the file, the table, the key, the value, what was expected, and where there is one the nearest valid word:

    fleet.toml: [[model]] #2 "llama": replicas = 0: expected a whole number from 1 to 64
    fleet.toml: [[model]] #2 "llama": unknown key max_bach = 8; did you mean max_batch?

Values that could be a secret (a key pasted where its hash or its variable's name belongs) are never shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SHOWN_CHARS = 60
_LONGEST_DECIMAL = 10**40
"""Python refuses to write very long integers in decimal; hexadecimal has no such bound."""
_SECRET_KEY = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"//[^/@\s]*@")


class Problems:
    """Collects the lines of one file, in the order of discovery."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[str, None] = {}

    @property
    def lines(self) -> list[str]:
        """All of them, each once."""
        return list(self._lines)

    def add(self, place: str, text: str) -> None:
        """Notes a problem at a table; `place` is empty for the file as a whole."""
        self._lines[f"{self._file}: {place}: {text}" if place else f"{self._file}: {text}"] = None


def show(value: object, *, secret: bool = False) -> str:
    """A value as TOML would write it, on one line, shortened; tables by name only; a secret by its length only."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "an array of tables"
    if secret:
        return f"({len(value)} characters, not shown)" if isinstance(value, str) else "(not shown)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(_URL_CREDENTIALS.sub("//***@", value))
    if isinstance(value, list | tuple):
        return _shortened("[" + ", ".join(show(item) for item in value[:SHOWN_CHARS]) + "]")
    return _shortened(hex(value) if isinstance(value, int) and abs(value) > _LONGEST_DECIMAL else str(value))


def may_be_secret(key: str) -> bool:
    """Whether a key that nobody knows sounds like one whose value must not be shown."""
    return bool(_SECRET_KEY.search(key))


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word that `word` was probably meant to be, or `None`."""
    close = difflib.get_close_matches(word[:SHOWN_CHARS], list(valid), n=1, cutoff=0.6)
    return close[0] if close else None


def suggestion(word: str, valid: Iterable[str]) -> str:
    """`; did you mean "x"?` for the nearest valid word, or nothing."""
    found = nearest(word, valid)
    return f"; did you mean {_quoted(found)}?" if found else ""


def _quoted(text: str) -> str:
    printable = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text[: SHOWN_CHARS + 1])
    return f'"{_shortened(printable)}"'


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
