"""Starting the daemon: in the background with its own session, or in this process's place.

What the daemon writes before its log is open (a failing import, say) goes to `startup.log` in the state directory, made anew each time.
"""

from __future__ import annotations

import os
import select
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from halcyon.config.paths import lock_path, log_path, make_private_dir
from halcyon.errors import ConfigError

_TAIL_LINES = 15
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class LogMark:
    """Where the log ended when a start began, so that only this start's lines are shown."""

    state_directory: Path
    offset_bytes: int

    def last_lines(self) -> list[str]:
        """The last lines that the daemon logged since, then what it printed besides: its log knows the way, its last breath the reason."""
        return [_readable(line) for line in _tail(log_path(self.state_directory), self.offset_bytes)] + self.printed()

    def printed(self) -> list[str]:
        """What the daemon printed outside its log."""
        return _tail(startup_path(self.state_directory), 0)


@dataclass(frozen=True)
class Ending:
    """How a process ended. exit_status: negative for a signal; `None` where it was not this process's child."""

    exit_status: int | None


def startup_path(state_directory: Path) -> Path:
    """What the last daemon printed outside its log."""
    return state_directory / "startup.log"


def mark_log(state_directory: Path) -> LogMark:
    """Remembers the log's present end."""
    log = log_path(state_directory)
    return LogMark(state_directory, log.stat().st_size if log.exists() else 0)


def start_detached(fleet: Path, state_directory: Path) -> int:
    """Starts the daemon in a session of its own and returns its pid. It outlives this process and its terminal.

    Raises:
        ConfigError: the state directory is not private to this user, or cannot be written.
    """
    make_private_dir(state_directory)
    printed = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    startup = startup_path(state_directory)
    try:
        os.close(os.open(startup, printed, 0o600))
    except OSError as error:
        raise ConfigError([f"{startup}: cannot be written: {error.strerror}; choose another --state-dir"]) from None
    return os.posix_spawn(
        sys.executable,
        _command(fleet, state_directory),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(startup), printed, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def become_daemon(fleet: Path, state_directory: Path) -> NoReturn:
    """Replaces this process by the daemon; its supervisor keeps the pid it started."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*_command(fleet, state_directory), "--foreground"])


def wait_for_end(pid: int, timeout_s: float) -> Ending | None:
    """How the process ended, or `None` when it has not within `timeout_s`. A pid that nobody has counts as ended.

    It waits for the death itself, not for a parent to notice it: in a container nobody may ever do that.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return Ending(None)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return Ending(_reaped(pid)) if poll.poll(timeout_s * 1000) else None
    finally:
        os.close(descriptor)


def lock_owner(state_directory: Path) -> int | None:
    """The pid that the daemon which owns the state directory wrote into its lock; `None` where none did."""
    try:
        return int(lock_path(state_directory).read_text())
    except (OSError, ValueError):
        return None


def _reaped(pid: int) -> int | None:
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def _command(fleet: Path, state_directory: Path) -> list[str]:
    return [sys.executable, "-m", "halcyon.daemon", "--fleet", str(fleet), "--state-dir", str(state_directory)]


def _tail(path: Path, offset_bytes: int) -> list[str]:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = offset_bytes if offset_bytes <= end else 0  # the log was rotated meanwhile
            file.seek(max(start, end - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except FileNotFoundError:
        return []


def _readable(line: str) -> str:
    """A line of the structured log as people read it: `error worker_lost replica=m-v1-0 …`."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        return line
    head = " ".join(str(fields.pop(name)) for name in ("ts", "level", "event") if name in fields)
    return " ".join([head, *(f"{name}={value}" for name, value in fields.items())])
