"""One daemon per state directory: an advisory lock on a file that names its owner.

Rules: the kernel's lock decides, never the pid in the file (a pid is recycled, a lock ends with its process). The file is never removed,
since a second starter might then lock a file that no longer has a name. The descriptor is not inherited, so no worker keeps the lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from halcyon.errors import ConfigError, DaemonAlreadyRunning


class InstanceLock:
    """The held lock. `release` (or the end of the process) gives the state directory free."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self.path = path

    @classmethod
    def acquire(cls, path: Path) -> InstanceLock:
        """Takes the lock and writes our pid into the file.

        Raises:
            DaemonAlreadyRunning: a live process holds it; the message names its pid.
            ConfigError: the file cannot be opened.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError([f"{path}: cannot be locked: {error.strerror}; choose another --state-dir"]) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise DaemonAlreadyRunning(
                f"a daemon (pid {owner}) already owns {path.parent}; stop it with `halcyon down` or choose another --state-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor, path)

    def release(self) -> None:
        """Gives the directory free; a second call does nothing."""
        if self._descriptor is None:
            return
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None
