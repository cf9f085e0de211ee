"""The command run in process, in a pipe or on a terminal, against a state directory of its own."""

from __future__ import annotations

import io
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # importlib mode keeps test directories off the path; `scripted_control` lives beside the tests

from outcome import Command, Outcome
from scripted_control import ScriptedControl

from halcyon.cli.main import run
from halcyon.config.paths import socket_path


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Commands that a test starts can be interrupted, also where a shell runs the tests in the background and has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory with a short path, the one that commands use by default."""
    directory = Path(tempfile.mkdtemp(prefix="hal-", dir="/tmp"))
    monkeypatch.setenv("HALCYON_STATE_DIR", str(directory))
    monkeypatch.setenv("HALCYON_CACHE_DIR", str(directory / "cache"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def command(state: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`halcyon` in this process."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str, terminal: bool = False, stdin: str = "") -> Outcome:
        out, err = (_Terminal(), _Terminal()) if terminal else (io.StringIO(), io.StringIO())
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            code = run(arguments)
        return Outcome(int(code), out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def daemon(state: Path) -> Iterator[ScriptedControl]:
    """A scripted daemon on the state directory's socket."""
    with ScriptedControl(socket_path(state)) as control:
        yield control
