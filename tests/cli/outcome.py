"""How a command ended, the fixture that runs one, and a command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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


@contextmanager
def halcyon_process(*arguments: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """`halcyon ARGUMENTS` in a process of its own, its output in pipes. It ends with the test, whatever the test meets.

    python: what the command takes for its own interpreter, and so starts daemons with.
    """
    script = f"import sys; sys.executable = {python!r}; from halcyon.cli.main import main; main()"
    command = [str(Path(sys.prefix) / "bin" / "python"), "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Command(Protocol):
    """Runs `halcyon ARGUMENTS`."""

    def __call__(self, *arguments: str, terminal: bool = False, stdin: str = "") -> Outcome:
        """terminal: both output streams claim to be one."""
        ...
