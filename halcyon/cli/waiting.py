"""What a request waits for, told to a person on stderr while nothing has come yet.

A request whose replica is loading or cannot be reached may rightly wait for long; a silent terminal looks like a hang. The notice is one
line that is rewritten and gone with the first sign of an answer. Nothing is written where stderr is no terminal.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

from rich.console import Console
from rich.status import Status as Line
from rich.text import Text

from halcyon.cli.client import ControlClient, connect
from halcyon.cli.fleet_table import one_line, why
from halcyon.errors import HalcyonError
from halcyon.wire.control import ModelStatus, ReplicaStatus, Status

PATIENCE_S = 2.0
"""Silence that needs no explanation."""
_TICK_S = 1.0
_STOP = "(Ctrl-C to stop)"
_SPINNER_CELLS = 4
_UNREACHABLE = "cannot be reached"
_COMING = {"starting", "preparing", "loading", "warming", "waiting"}


class Notice:
    """Looks at the daemon in a thread of its own until it is told that an answer comes.

    Attributes:
        shown: set once something was said.
    """

    def __init__(self, state_directory: str, *, model: str, version: str = "", replica_id: str = "") -> None:
        self._state_directory = state_directory
        self._wanted = (model, version, replica_id)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.shown = threading.Event()

    def begin(self) -> None:
        """Starts to wait; says nothing yet."""
        self._thread.start()

    def end(self) -> None:
        """Takes the line away. Harmless when called again."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        if self._over.wait(PATIENCE_S):
            return
        console = Console(stderr=True, highlight=False)
        line = Line("", console=console)
        try:
            with connect(self._state_directory, timeout_s=_TICK_S) as client:
                while not self._over.is_set():
                    self._say(line, self._sentence(client), cells=console.width - _SPINNER_CELLS)
                    self._over.wait(_TICK_S)
        finally:
            line.stop()

    def _sentence(self, client: ControlClient) -> str:
        model, version, replica_id = self._wanted
        try:
            return what_for(client.status(), model=model, version=version, replica_id=replica_id)
        except HalcyonError:
            return ""  # the request itself will say what is wrong

    def _say(self, line: Line, sentence: str, *, cells: int) -> None:
        if not sentence:
            line.stop()
            return
        text = Text(f"waiting: {sentence}")
        text.truncate(cells - len(_STOP) - 1, overflow="ellipsis")
        line.update(text.append(f" {_STOP}"))
        line.start()
        self.shown.set()


@contextmanager
def notice(state_directory: str, *, model: str, version: str = "", replica_id: str = "") -> Iterator[Notice | None]:
    """A notice for as long as the block lasts; `None` where nobody watches stderr."""
    if not sys.stderr.isatty():
        yield None
        return
    found = Notice(state_directory, model=model, version=version, replica_id=replica_id)
    found.begin()
    try:
        yield found
    finally:
        found.end()


def what_for(status: Status, *, model: str, version: str = "", replica_id: str = "") -> str:
    """What a request waits for, as a clause; '' where nothing is known to keep it."""
    served = _served(status.models, model, version)
    if served is None:
        return ""
    able = [each for each in status.replicas if (each.model, each.version) == (served.name, served.version)]
    able = [each for each in able if replica_id in {"", each.replica_id}]
    if any(each.state == "ready" for each in able):
        return f"{served.queued} requests are queued for {served.name}@{served.version}" if served.queued > 1 else ""
    coming = [each for each in able if each.state in _COMING]
    return _progress_of(min(coming, key=lambda each: each.next_restart_s or 0.0)) if coming else ""


def _served(models: tuple[ModelStatus, ...], model: str, version: str) -> ModelStatus | None:
    """The version that a client means by MODEL, MODEL@VERSION or MODEL with a version beside it."""
    for each in models:
        if model == f"{each.name}@{each.version}" or (model == each.name and (version == each.version or (not version and each.default))):
            return each
    return None


def _progress_of(replica: ReplicaStatus) -> str:
    reason = one_line(why(replica))
    if replica.state == "waiting":
        stands = "cannot be reached" if _UNREACHABLE in reason else "is not there"
        next_try = "" if replica.next_restart_s is None else f", next try in {max(1, ceil(replica.next_restart_s))} s"
        return f"{replica.replica_id} {stands}{next_try}"
    return f"{replica.replica_id} is {replica.state}{f' ({reason})' if reason else ''}"
