"""Asks the kernel to kill this process when its parent dies, where the kernel can (Linux).

The end of the socket already ends a worker; this holds even while every thread is stuck. The kernel watches the *thread* that started us,
so the daemon must start workers from a thread that lives as long as it does (its main thread).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> bool:
    """Asks for SIGKILL at the parent's death. False if the parent has already changed: then the caller must exit."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent_pid
