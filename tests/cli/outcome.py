"""How a command ended, and the fixture that runs one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """stdout as JSON."""
        return msgspec.json.decode(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The `error` object on stderr."""
        return msgspec.json.decode(self.err)["error"]


class Command(Protocol):
    """Runs `halcyon ARGUMENTS`."""

    def __call__(self, *arguments: str, terminal: bool = False, stdin: str = "") -> Outcome:
        """terminal: both output streams claim to be one."""
        ...
