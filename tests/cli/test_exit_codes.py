"""Every failure has one exit code, one message that says what to do, and one JSON form."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from outcome import Command
from scripted_control import ScriptedControl

from halcyon import __version__
from halcyon.config.paths import socket_path
from halcyon.errors import ExitCode, NotFound, request_errors_by_code
from halcyon.wire.control import Status

EXPECTED = {
    "invalid_request": 2,
    "unauthorized": 5,
    "forbidden": 5,
    "model_not_found": 4,
    "not_found": 4,
    "conflict": 5,
    "payload_too_large": 2,
    "quota_exceeded": 5,
    "overloaded": 5,
    "queue_full": 5,
    "no_capacity": 5,
    "deadline_unreachable": 5,
    "upstream_failure": 1,
}
COMMANDS = [
    ("status",),
    ("down",),
    ("infer", "m", "x"),
    ("replica", "list"),
    ("replica", "drain", "r"),
    ("replica", "remove", "r"),
    ("replica", "register", "--model", "m", "--url", "http://x/v1"),
    ("model", "list"),
]


def test_the_numbers_are_those_that_are_documented() -> None:
    """Scripts rely on these seven numbers."""
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "DAEMON_NOT_RUNNING": 3,
        "NOT_FOUND": 4,
        "REFUSED": 5,
        "TIMEOUT": 6,
    }


@pytest.mark.parametrize("code", [code for code in request_errors_by_code() if code in EXPECTED])
def test_every_wire_code_keeps_its_exit_code(command: Command, daemon: ScriptedControl, code: str) -> None:
    """A refusal on the wire becomes its class's exit code, its message, and under --json its code, field and retry-after."""
    raised = request_errors_by_code()[code]("what happened; what to do", retry_after_ms=1500, param="model", details={"queued": 3})
    daemon.error = raised
    plain = command("status")
    assert plain.code == EXPECTED[code]
    assert plain.err == "halcyon: what happened; what to do\nTrying again can help in 1.5 s.\n"
    outcome = command("status", "--json")
    assert (outcome.code, outcome.out) == (EXPECTED[code], "")
    assert outcome.error == {
        "code": code,
        "message": "what happened; what to do",
        "exit_code": EXPECTED[code],
        "param": "model",
        "retry_after_ms": 1500,
        "details": {"queued": 3},
    }


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_daemon_is_exit_3(command: Command, state: Path, arguments: tuple[str, ...]) -> None:
    """Without a socket every command that needs a daemon exits with 3 and, unless it is to stop one, says how to start one."""
    outcome = command(*arguments)
    assert (outcome.code, outcome.out) == (3, "")
    assert ("halcyon up" in outcome.err) == (arguments != ("down",)), "who wants none needs no advice to start one"
    assert command(*arguments, "--json").error["code"] == "daemon_not_running"


def test_a_stale_socket_is_no_daemon(command: Command, state: Path) -> None:
    """A socket that nobody listens on (Local processes, devices, sockets: a stale socket) reads as no daemon, exit 3."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(socket_path(state)))
    assert command("status").code == 3


def test_a_silent_daemon_is_exit_6(command: Command, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that accepts and never answers is a timeout, exit 6, not a hang."""
    monkeypatch.setattr("halcyon.cli.client.PATIENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(socket_path(state)))
        silent.listen()
        outcome = command("status")
    assert outcome.code == 6
    assert "0.05 s" in outcome.err


@pytest.mark.parametrize("reply", [b"{}", b"not json"])
def test_an_unreadable_answer_names_the_remedy(command: Command, daemon: ScriptedControl, reply: bytes) -> None:
    """A daemon of another version whose answer cannot be read is exit 1 with the versions to compare, never a traceback."""
    daemon.raw_reply = reply
    for arguments in (("status",), ("infer", "m", "x", "--no-stream")):
        outcome = command(*arguments)
        assert outcome.code == 1
        assert "halcyon version" in outcome.err


@pytest.mark.parametrize("arguments", [("staus",), ("status", "--jsn"), ("infer",), ("up", "--timeout", "soon"), ("replica", "drop")])
def test_misuse_is_exit_2(command: Command, state: Path, arguments: tuple[str, ...]) -> None:
    """An unknown command or option, a missing argument or a value of the wrong type exits with 2 and names the help."""
    outcome = command(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--help" in outcome.err
    assert command(*arguments, "--json").error["code"] == "usage"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("infer m x --temperature 99", "--temperature: expected a number from 0 to 2, found '99'."),
        ("infer m x --top-p 3", "--top-p: expected a number from 0 to 1, found '3'."),
        ("infer m x --max-tokens x", "--max-tokens: expected a whole number from 1 up, found 'x'."),
        ("infer m x --lane fast", "--lane: expected interactive or bulk, found 'fast'."),
        ("up --flet x", "No such option --flet. Did you mean --fleet? See `halcyon up --help`."),
        ("start", "Did you mean `halcyon up`?"),
        ("serve", "Did you mean `halcyon up`?"),
        ("stop", "Did you mean `halcyon down`?"),
        ("ps", "Did you mean `halcyon status`?"),
    ],
)
def test_misuse_is_told_in_words_of_ours(command: Command, state: Path, arguments: str, says: str) -> None:
    """A misused option says its name, what it takes and what it got; another tool's verb is answered with ours; no daemon is asked."""
    outcome = command(*arguments.split())
    assert outcome.code == 2
    assert says in outcome.err
    assert "Input should" not in outcome.err


@pytest.mark.parametrize("arguments", [("-h",), ("up", "-h"), ("replica", "list", "-h")])
def test_a_short_help(command: Command, state: Path, arguments: tuple[str, ...]) -> None:
    """-h is --help everywhere."""
    outcome = command(*arguments)
    assert outcome.code == 0
    assert outcome.out.startswith("Usage: halcyon")


def test_version_as_an_option(command: Command, state: Path) -> None:
    """`halcyon --version` prints one line and needs no daemon."""
    assert command("--version").out == f"halcyon {__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("replica",), ("model",)])
def test_a_group_alone_shows_its_help(command: Command, state: Path, arguments: tuple[str, ...]) -> None:
    """A group without a verb exits with 2 and lists its verbs on stderr."""
    outcome = command(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert "list" in outcome.err or "up" in outcome.err


def test_a_fault_of_ours_is_told_apart(command: Command, daemon: ScriptedControl, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception nobody raised on purpose is exit 1, named as a fault of halcyon's own, without a traceback."""

    def broken(self: object) -> Status:
        raise ZeroDivisionError("one")

    monkeypatch.setattr("halcyon.cli.client.ControlClient.status", broken)
    outcome = command("status", "--json")
    assert (outcome.code, outcome.error["code"]) == (1, "internal_error")
    assert "Traceback" not in outcome.err


def test_help_is_plain_in_a_pipe(command: Command, state: Path) -> None:
    """--help exits with 0, on stdout, without colour or boxes when it is piped."""
    outcome = command("up", "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert "--fleet" in outcome.out
    assert not set("\x1b╭│") & set(outcome.out)
    assert "╭" in command("up", "--help", terminal=True).out


def test_status_keys_are_those_of_the_wire() -> None:
    """The keys of `status --json` are stable: this list only grows."""
    assert set(Status.__struct_fields__) >= {
        "pid",
        "version",
        "state",
        "listen",
        "socket",
        "state_dir",
        "fleet",
        "uptime_s",
        "queued",
        "running",
        "connections",
        "requests_total",
        "replicas",
        "models",
        "store",
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("status >&-", 0, ""),
        ("status --json <&- >&- 2>&-", 0, ""),
        ("status >/dev/full", 1, "halcyon: The system refused: No space left on device."),
        ("infer m - <&-", 2, "halcyon: TEXT is empty."),
        ("replica drain none 2>&-", 4, ""),
        ("replica drain none 2>/dev/full", 4, ""),
    ],
)
def test_streams_that_take_nothing(state: Path, daemon: ScriptedControl, words: str, code: int, said: str) -> None:
    """With a standard stream closed or full the exit status is still the command's own, and a reason that can be told is told."""
    if "none" in words:
        daemon.error = NotFound("no such replica")
    done = subprocess.run(["sh", "-c", f"exec {sys.executable} -m halcyon.cli {words}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr.startswith(said) if said else done.stderr == ""
    assert "fault of its own" not in done.stderr


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300])
def test_a_state_dir_that_cannot_be(command: Command, state: Path, tmp_path: Path, name: str) -> None:
    """A state directory that is a file, below one, or has too long a name: no daemon runs there (3), and none can be started (2)."""
    (tmp_path / "file").touch()
    assert command("status", "--state-dir", str(tmp_path / name)).code == 3
    outcome = command("up", "--state-dir", str(tmp_path / name))
    assert outcome.code == 2
    assert "HALCYON_STATE_DIR" in outcome.err


def test_a_state_dir_that_takes_no_file(command: Command, state: Path) -> None:
    """A place in which the daemon's first words cannot be kept is the operator's to change: exit 2, nothing started."""
    (state / "startup.log").mkdir()
    outcome = command("up")
    assert (outcome.code, "startup.log: cannot be written" in outcome.err) == (2, True)
