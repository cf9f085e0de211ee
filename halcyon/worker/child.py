"""One process group of ours: started, signalled, watched to its end.

Rule: the process is reaped only after its group has been killed, so its pid (which is its group's id too) cannot have passed to a stranger
while we may still signal it. It must be started from the daemon's main thread: the kernel kills a worker when the *thread* that started it
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence


class ChildProcess:
    """A running process in a session of its own. `on_exit(status)` is called once, on the loop, after it has been reaped."""

    def __init__(self, command: Sequence[str], *, inherit_fd: int, environment: Mapping[str, str], on_exit: Callable[[int], None]) -> None:
        """Starts it with `inherit_fd` open and `environment` on top of ours.

        Raises:
            OSError: the program cannot be run, or not watched.
        """
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(inherit_fd,),
            start_new_session=True,
            env={**os.environ, **environment},
        )
        self.pid = self._process.pid
        self.exit_status: int | None = None
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        try:
            threading.Thread(target=self._await_exit, name=f"exit-of-{self.pid}", daemon=True).start()
        except RuntimeError as error:  # no thread to be had: a process that nobody watches must not be
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            raise OSError(errno.EAGAIN, "no thread could be started to watch it") from error

    def signal_group(self, number: signal.Signals) -> None:
        """To every process of its group; nothing once it is reaped."""
        if self.exit_status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _await_exit(self) -> None:
        """A thread's body: waits for the end without reaping, then tells the loop."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        self.signal_group(signal.SIGKILL)  # what it started ends with it
        self.exit_status = self._process.wait()
        self._on_exit(self.exit_status)


def describe_exit(status: int) -> str:
    """An exit status as `subprocess` gives it, in words."""
    if status >= 0:
        return f"it exited with status {status}"
    try:
        return f"it was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was killed by signal {-status}"
