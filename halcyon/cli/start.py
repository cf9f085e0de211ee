"""Waiting for a fleet to settle, whoever's daemon serves it in the end.

The daemon that `up` starts need not be the one it ends with: of two starts at one instant the lock lets one through, and one that is
going down may hold the lock for a moment more. The rules:

    ours ended, another answers              that one is waited for
    ours was refused, the lock has an owner  its owner is waited for, until it answers or ends
    the owner ended without a word           ours is started again, once
    anything else that ended                 a failure, with the daemon's own exit status where it says more than "failed"
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from halcyon.cli.client import ConnectionCut, ControlClient
from halcyon.cli.launch import Ending, LogMark, lock_owner, mark_log, start_detached, wait_for_end
from halcyon.cli.progress import FleetView
from halcyon.clock import NS_PER_S, now_ns
from halcyon.config.paths import log_path, make_private_dir, state_dir
from halcyon.errors import ConfigError, DaemonAlreadyRunning, ExitCode, HalcyonError, TimedOut
from halcyon.wire.control import Status

_TICK_S = 0.15
"""Between two looks at the fleet."""


class Start:
    """One wait. check: raises where a daemon that answers is not one to wait for.

    Attributes:
        started: the pid of the daemon that this start began last; `None` when it began none.
    """

    def __init__(self, client: ControlClient, fleet: Path, state_directory: Path, *, check: Callable[[Status], None]) -> None:
        self._client = client
        self._fleet = fleet
        self._directory = state_directory
        self._check = check
        self._mark = LogMark(state_directory, 0)
        self._pid = 0
        self._answered: set[int] = set()
        self._launches = 0
        self.started: int | None = None

    def wait(self, running: Status | None, view: FleetView, *, timeout_s: float) -> Status:
        """The first status that is no longer `starting`, of `running` or of a daemon started now.

        Raises:
            TimedOut: not settled in time; the daemon goes on.
            HalcyonError: the daemon ended; the message has its last words, the class its exit status.
        """
        until_ns = now_ns() + round(timeout_s * NS_PER_S)
        if running is None:
            self._launch()
        else:
            self._mark, self._pid = mark_log(self._directory), running.pid
        try:
            while (settled := self._look(view)) is None:
                if now_ns() >= until_ns:
                    raise TimedOut(self._left_running(f"The fleet is not ready after {timeout_s:g} s."))
                ending = wait_for_end(self._pid, _TICK_S)
                if ending is not None:
                    self._go_on_without(ending)
        except KeyboardInterrupt:
            print(self._left_running("Interrupted."), file=sys.stderr)
            raise
        return settled

    def _launch(self) -> None:
        make_private_dir(self._directory)
        self._mark = mark_log(self._directory)
        self._launches += 1
        self._pid = self.started = start_detached(self._fleet, self._directory)

    def _look(self, view: FleetView) -> Status | None:
        status = self._ask()
        if status is None:
            return None
        self._check(status)
        self._pid = status.pid
        self._answered.add(status.pid)
        view.show(status)
        return None if status.state == "starting" else status

    def _ask(self) -> Status | None:
        """The status of whoever answers now. A busy machine or a daemon that is ending is asked again; the overall bound decides."""
        try:
            return self._client.status_or_none()
        except (TimedOut, ConnectionCut):
            return None

    def _go_on_without(self, ending: Ending) -> None:
        """The daemon that was waited for ended."""
        other = self._ask()
        owner = lock_owner(self._directory) if ending.exit_status == ExitCode.REFUSED else None
        if other is not None and other.pid != self._pid:
            self._pid = other.pid
        elif owner not in {None, self._pid}:
            self._pid = owner or 0
        elif self._pid not in {self.started, *self._answered} and self._launches == 1:
            self._launch()
        else:
            raise self._failure(ending)

    def _failure(self, ending: Ending) -> HalcyonError:
        printed = self._mark.printed()
        if ending.exit_status == ExitCode.USAGE and printed:
            return ConfigError(printed)
        words = [f"  {line}" for line in self._mark.last_lines()] or ["  (it left no word)"]
        first = f"The daemon {_how(ending)} before the fleet was ready. Its last words (its log is {log_path(self._directory)}):"
        message = "\n".join([first, *words])
        return DaemonAlreadyRunning(message) if ending.exit_status == ExitCode.REFUSED else HalcyonError(message)

    def _left_running(self, what: str) -> str:
        goes_on = f"{what} The daemon (pid {self._pid}) goes on starting"
        at = at_state_dir(self._directory)
        return f"{goes_on}: see `halcyon status{at}` and {log_path(self._directory)}, stop it with `halcyon down{at}`."


def at_state_dir(directory: Path) -> str:
    """What a command needs to find the daemon of this directory: nothing where it looks there anyway."""
    return "" if state_dir() == directory else f" --state-dir {shlex.quote(str(directory))}"


def _how(ending: Ending) -> str:
    if ending.exit_status is None or ending.exit_status == ExitCode.OK:
        return "ended"
    if ending.exit_status > 0:
        return f"ended with exit status {ending.exit_status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-ending.exit_status, f'signal {-ending.exit_status}')}"
