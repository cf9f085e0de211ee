"""Runs a Python module as a child that cannot outlive this process, whichever way this process ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping

_POLL_S = 0.5

_LAUNCH = (
    "import ctypes, os, signal, sys; "
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL); "  # PR_SET_PDEATHSIG: the kernel ends the child with its parent
    "os.getppid() == int(sys.argv[1]) or os._exit(1); "
    "os.execv(sys.executable, [sys.executable, '-m', *sys.argv[2:]])"
)


def run_module(arguments: list[str], *, environment: Mapping[str, str], while_running: Callable[[], None]) -> tuple[int, list[str]]:
    """Runs `python -m ARGUMENTS`; calls `while_running` twice a second. Returns (exit status, the lines it wrote that say something)."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        status = _wait(child, while_running)
        output.seek(0)
        lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return status, lines


def _wait(child: subprocess.Popen[bytes], while_running: Callable[[], None]) -> int:
    try:
        while True:
            try:
                return child.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                while_running()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
