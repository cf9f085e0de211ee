"""Tells the service manager how the daemon does: the datagrams of sd_notify(3), without its library.

Rules: without `NOTIFY_SOCKET` every call does nothing; a manager that does not listen never disturbs serving.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

EXTENSION_US = 600_000_000
"""How much longer the manager is asked to wait after each step of a start."""

PATIENCE_S = 1.0
"""How long the two messages that come only once may wait for a manager that is behind with its reading."""


class ServiceNotifier:
    """One notification socket. `watchdog_interval_s` is how often `watchdog()` is due, `None` when nobody asked for it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if self._address else None
        self.watchdog_interval_s = _watchdog_interval_s(environ)

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._send(f"READY=1\nSTATUS={status}", patience_s=PATIENCE_S)

    def starting(self, status: str) -> None:
        """On its way to ready, with one line for `systemctl status`. Every step gains time: converting weights takes minutes."""
        self._send(f"STATUS={status}\nEXTEND_TIMEOUT_USEC={EXTENSION_US}")

    def stopping(self) -> None:
        """The drain has begun."""
        self._send("STOPPING=1\nSTATUS=draining", patience_s=PATIENCE_S)

    def watchdog(self) -> None:
        """The event loop turns."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Closes the socket; a second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str, *, patience_s: float = 0.0) -> None:
        """What is said once waits for room in the manager's queue; what is said again and again does not."""
        if self._socket is not None:
            self._socket.settimeout(patience_s)
            with contextlib.suppress(OSError):  # the manager went away or does not read: not our trouble
                self._socket.sendto(message.encode(), self._address)


def _watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    """Half of what the manager waits, as sd_watchdog_enabled(3) advises; `None` when the watchdog is not for this process."""
    interval_us = environ.get("WATCHDOG_USEC", "")
    pid = environ.get("WATCHDOG_PID", "")
    if not interval_us.isdigit() or int(interval_us) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(interval_us) / 2e6
