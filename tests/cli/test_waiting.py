"""What a person is told while a request waits for a replica that cannot serve yet."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from scripted_control import ScriptedControl, a_status, replica

from halcyon.cli.waiting import notice, what_for
from halcyon.wire.control import ReplicaState, Status

AWAY = replica("m-v1-r0", "waiting", last_error="http://x/v1 cannot be reached (refused)", next_restart_s=10.4)


class Terminal(io.StringIO):
    """A stderr that a person watches."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (a_status(AWAY), "m-v1-r0 cannot be reached, next try in 11 s"),
        (
            a_status(replica("m-v1-0", "waiting", last_error="killed by signal 9", next_restart_s=0.1)),
            "m-v1-0 is not there, next try in 1 s",
        ),
        (a_status(replica("m-v1-0", "loading", detail="mapping weights", progress=0.25)), "m-v1-0 is loading (mapping weights 25%)"),
        (a_status(replica("m-v1-0", "failed", last_error="no"), AWAY), "m-v1-r0 cannot be reached, next try in 11 s"),
        (a_status(replica(), AWAY), ""),
        (a_status(replica("m-v1-0", "failed", last_error="no")), ""),
    ],
)
def test_what_a_request_waits_for(status: Status, said: str) -> None:
    """The replica that may serve first and what it does; nothing where one serves already, or where none will."""
    assert what_for(status, model="m") == what_for(status, model="m@v1") == what_for(status, model="m", version="v1") == said


@pytest.mark.parametrize(("replica_id", "said"), [("m-v1-0", ""), ("m-v1-r0", "m-v1-r0 cannot be reached, next try in 11 s")])
def test_a_pinned_request_waits_for_its_replica(replica_id: str, said: str) -> None:
    """With --replica it is that one which is waited for, whatever the others do."""
    assert what_for(a_status(replica(), AWAY), model="m", replica_id=replica_id) == said


def test_an_unknown_model_is_not_waited_for() -> None:
    """What the daemon refuses is left to its refusal."""
    assert what_for(a_status(AWAY), model="nope") == ""


def test_a_terminal_is_told_and_left_clean(daemon: ScriptedControl, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing comes the line stands on a terminal's stderr with how to stop; at the end it is erased."""
    monkeypatch.setattr("halcyon.cli.waiting.PATIENCE_S", 0)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    daemon.statuses = [a_status(AWAY)]
    with notice(str(state), model="m") as shown:
        assert shown is not None
        assert shown.shown.wait(20)
    assert "waiting: m-v1-r0 cannot be reached, next try in 11 s (Ctrl-C to stop)" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_pipe_is_told_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody watches stderr there is no notice."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with notice(str(state), model="m") as shown:
        assert shown is None


@pytest.mark.parametrize("states", [("ready",), ("failed",), ("draining", "failed")])
def test_nothing_is_said_without_a_reason(states: tuple[ReplicaState, ...]) -> None:
    """No replica on its way: no sentence."""
    found = a_status(*(replica(f"m-v1-{index}", each) for index, each in enumerate(states)))
    assert what_for(found, model="m") == ""
