"""`halcyon up` and `down`: what is started, what is shown on the way, and every way it can end."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from outcome import Command, halcyon_process
from scripted_control import ScriptedControl, a_status, replica

from halcyon import __version__
from halcyon.cli.client import ControlClient
from halcyon.cli.launch import Ending, wait_for_end
from halcyon.cli.progress import fleet_view
from halcyon.cli.screen import Screen
from halcyon.cli.settled import headline
from halcyon.cli.start import Start
from halcyon.config.load import DEMO_FLEET, fleet_digest, load_fleet
from halcyon.config.paths import lock_path, socket_path
from halcyon.wire.control import ModelStatus, Status

FLEET = '[[model]]\nname = "m"\nversion = "v1"\nruntime = "sim"\n'
STARTING = a_status(replica(state="loading", detail="mapping weights", progress=0.5), state="starting")
READY = a_status()
DEGRADED = a_status(replica(), replica("m-v1-1", "failed", last_error="no such model"), state="degraded")


class StandIn:
    """The process that `up` starts in these tests, and its plan."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.program = state / "python"
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("stand_in_daemon.py")} "$@"\n')
        self.program.chmod(0o700)

    def plan(self, *statuses: Status) -> None:
        """What it will answer."""
        (self._state / "plan.json").write_bytes(msgspec.json.encode({"statuses": statuses}))

    def plan_to_die(self, last_words: str, log: str = "", *, status: int = 1, once: bool = False, end: int = 0) -> None:
        """How it will end at once; `once`: the next one follows the other plan. end: a process that it ends first."""
        plan = {"last_words": last_words, "log": log, "status": status, "once": once, "end": end}
        (self._state / "death.json").write_text(json.dumps(plan))

    @property
    def called(self) -> dict[str, Any]:
        """How it was called; raises where it never was."""
        return json.loads((self._state / "called.json").read_text())

    @property
    def was_called(self) -> bool:
        """Whether anything was started."""
        return (self._state / "called.json").exists()

    def end(self) -> None:
        """Ends every one that was started: our children, also one that has not come to writing down that it was called, and the last one
        called, which may be the child of a command that has ended."""
        found = {child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE or self._is_ours(child)}
        if self.was_called and psutil.pid_exists(self.called["pid"]):
            found |= {process for process in (psutil.Process(self.called["pid"]),) if self._is_ours(process)}
        for process in found:
            process.kill()
            process.wait(20)

    def _is_ours(self, process: psutil.Process) -> bool:
        return str(self._state) in process.cmdline()


@pytest.fixture
def stand_in(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A stand-in daemon where `up` looks for Python."""
    found = StandIn(state)
    monkeypatch.setattr(sys, "executable", str(found.program))
    yield found
    found.end()


@pytest.fixture
def fleet(state: Path) -> Path:
    """A fleet file with one simulated model."""
    path = state / "fleet.toml"
    path.write_text(FLEET)
    return path


def test_up_starts_a_daemon_that_outlives_the_command(command: Command, stand_in: StandIn, fleet: Path, state: Path) -> None:
    """up starts the daemon in a session of its own without our stdin, and ends when the fleet is ready, with the address."""
    stand_in.plan(STARTING, READY)
    outcome = command("up", "--fleet", str(fleet))
    assert (outcome.code, outcome.err) == (0, "")
    called = stand_in.called
    assert called["arguments"] == ["-m", "halcyon.daemon", "--fleet", str(fleet), "--state-dir", str(state)]
    assert called["session"] == called["pid"] != os.getsid(0)
    assert called["stdin"] == os.devnull
    assert stat.S_IMODE((state / "startup.log").stat().st_mode) == 0o600
    assert outcome.out.splitlines() == [
        "m-v1-0: loading (mapping weights 50%)",
        "m-v1-0: ready",
        f"ready: 1 of 1 replicas, http://127.0.0.1:8765 (pid {called['pid']})",
    ]


def test_without_a_fleet_it_starts_the_demo(command: Command, stand_in: StandIn) -> None:
    """Without --fleet the daemon gets the fleet file that comes with the package."""
    (demo,) = load_fleet(None).models
    served = ModelStatus(name=demo.name, version=demo.version, runtime=demo.runtime, source=demo.source, default=True, replicas=1, ready=1)
    stand_in.plan(a_status(models=(served,)))
    assert command("up").code == 0
    assert stand_in.called["arguments"][3] == str(DEMO_FLEET)


def test_a_terminal_sees_bars_and_how_to_go_on(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """On a terminal every replica has a line, and the end says how to infer, look, curl and stop."""
    stand_in.plan(STARTING, READY)
    outcome = command("up", "--fleet", str(fleet), terminal=True)
    assert outcome.code == 0
    for word in ("m-v1-0", "ready", 'halcyon infer m "Hello"', "halcyon status", "curl http://127.0.0.1:8765/v1", "halcyon down"):
        assert word in outcome.out


def test_json_is_the_status_and_whether_it_was_started(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """--json prints one document, the status's keys and `started`, without a word of progress."""
    stand_in.plan(STARTING, READY)
    found = command("up", "--fleet", str(fleet), "--json").document
    assert set(found) == {*Status.__struct_fields__, "started"}
    assert found["started"] is True


def test_up_again_changes_nothing(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """With the same fleet a second up shows the fleet, starts nothing and exits with 0."""
    stand_in.plan(READY)
    command("up", "--fleet", str(fleet))
    first = stand_in.called
    outcome = command("up", "--fleet", str(fleet))
    assert outcome.code == 0
    assert "already runs" in outcome.out
    assert stand_in.called == first
    assert command("up", "--fleet", str(fleet), "--json").document["started"] is False


def test_another_fleet_is_refused(command: Command, stand_in: StandIn, fleet: Path, state: Path) -> None:
    """With another fleet file, or the same one changed to want more, up exits with 5, names what to do, and leaves the daemon alone."""
    stand_in.plan(READY)
    command("up", "--fleet", str(fleet))
    other = state / "other.toml"
    other.write_text(FLEET)
    outcome = command("up", "--fleet", str(other))
    assert (outcome.code, outcome.out) == (5, "")
    for word in (str(fleet), "halcyon down", "--state-dir"):
        assert word in outcome.err
    fleet.write_text(FLEET + FLEET.replace("v1", "v2"))
    changed = command("up", "--fleet", str(fleet))
    assert changed.code == 5
    assert "m@v2" in changed.err
    assert psutil.pid_exists(stand_in.called["pid"])


@pytest.mark.parametrize(
    ("digest", "version", "code"),
    [
        ("of what it reads now", __version__, 0),
        ("of something else", __version__, 5),
        ("of something else", "0.0.9", 0),
        ("", __version__, 0),
    ],
)
def test_an_edited_fleet_is_refused(command: Command, daemon: ScriptedControl, fleet: Path, digest: str, version: str, code: int) -> None:
    """With the fleet file edited since the daemon read it, however little, up exits with 5 and says what to do; a daemon of another
    release, or one too old to say what it read, is not accused."""
    told = fleet_digest(load_fleet(fleet)) if digest == "of what it reads now" else digest
    daemon.statuses = [a_status(fleet=str(fleet), fleet_digest=told, version=version)]
    outcome = command("up", "--fleet", str(fleet))
    assert outcome.code == code
    assert ("has changed since the daemon (pid 4242) read it. Stop it with `halcyon down" in outcome.err) == (code == 5)


def test_foreground_refuses_where_a_daemon_runs(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """--foreground cannot become a daemon that already runs: exit 5, even with the same fleet."""
    stand_in.plan(READY)
    command("up", "--fleet", str(fleet))
    assert command("up", "--fleet", str(fleet), "--foreground").code == 5


def test_a_draining_daemon_is_not_joined(command: Command, daemon: ScriptedControl, fleet: Path) -> None:
    """While the old daemon goes down, up exits with 5 and says how to hurry it."""
    daemon.statuses = [a_status(state="draining", fleet=str(fleet))]
    outcome = command("up", "--fleet", str(fleet))
    assert outcome.code == 5
    assert "halcyon down --now" in outcome.err


def test_a_replica_given_up_is_exit_1_with_its_reason(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """A degraded fleet exits with 1 and the failed replica's reason; the daemon goes on serving the rest."""
    stand_in.plan(STARTING, DEGRADED)
    outcome = command("up", "--fleet", str(fleet))
    assert outcome.code == 1
    assert outcome.err.startswith("m-v1-1 failed: no such model\nThe daemon serves the rest; its log is ")
    assert "no such model" not in outcome.out
    assert psutil.pid_exists(stand_in.called["pid"])


def test_nothing_ready_promises_nothing(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """Where nothing serves there is no rest that is served and no next step that would be refused; an empty fleet is said to be one."""
    stand_in.plan(a_status(replica("m-v1-0", "failed", last_error="no such model"), state="degraded"))
    outcome = command("up", "--fleet", str(fleet), terminal=True)
    assert outcome.code == 1
    assert "serves nothing" in outcome.err
    assert "the rest" not in outcome.err
    assert "halcyon infer" not in outcome.out
    assert "degraded: no replicas" in headline(msgspec.structs.replace(a_status(state="degraded"), replicas=()))


@pytest.mark.parametrize("columns", [80, 120])
def test_next_steps_fit_the_terminal(
    command: Command, stand_in: StandIn, fleet: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Names and states are never shortened, details are; no line is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", str(columns))
    long = replica("a-model-with-a-long-name-v1-0", "loading", detail="mapping weights of a very large model " * 4, progress=0.5)
    stand_in.plan(a_status(long, state="starting"), READY)
    outcome = command("up", "--fleet", str(fleet), terminal=True)
    assert "a-model-with-a-long-name-v1-0" in outcome.out
    assert "loading" in outcome.out
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", outcome.out).replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines) <= columns


def test_a_registered_replica_is_named_by_up(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """A replica that an operator registered comes up with any fleet; up says so and how to end it."""
    stand_in.plan(a_status(replica(), replica("m-v1-r0", registered=True)))
    assert "`halcyon replica remove m-v1-r0" in command("up", "--fleet", str(fleet)).out


def test_a_daemon_that_dies_leaves_its_last_words(command: Command, stand_in: StandIn, fleet: Path, state: Path) -> None:
    """A daemon that ends before the fleet is ready: exit 1 with this start's log lines, readable, and none of an older start's."""
    (state / "halcyond.log").write_text('{"event":"of_an_older_start"}\n')
    stand_in.plan_to_die("", '{"ts":"T","level":"error","event":"port_taken","listen":"127.0.0.1:1"}\n')
    outcome = command("up", "--fleet", str(fleet))
    assert outcome.code == 1
    assert "T error port_taken listen=127.0.0.1:1" in outcome.err
    assert "older" not in outcome.err
    assert str(state / "halcyond.log") in outcome.err


def test_a_daemon_that_dies_before_its_log_is_open(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """What it printed before it had a log is shown instead."""
    stand_in.plan_to_die("ImportError: no module named so")
    assert "ImportError: no module named so" in command("up", "--fleet", str(fleet)).err


@pytest.mark.parametrize("status", [2, 5])
def test_a_daemon_that_refuses_to_start_has_its_exit_status(command: Command, stand_in: StandIn, fleet: Path, status: int) -> None:
    """What the daemon calls the operator's mistake (an address it cannot have: 2) or a conflict (5) is the same for up; of a mistake
    the daemon's own line is shown, and nothing runs afterwards."""
    stand_in.plan_to_die("listen: 10.9.9.9:80: cannot listen there", status=status)
    outcome = command("up", "--fleet", str(fleet))
    assert outcome.code == status
    assert "listen: 10.9.9.9:80: cannot listen there" in outcome.err
    assert (outcome.err == "halcyon: listen: 10.9.9.9:80: cannot listen there\n") == (status == 2)
    assert not psutil.pid_exists(stand_in.called["pid"])


def test_the_reason_is_shown_beside_the_log(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """A daemon that logged something and then printed why it ends has both shown: the reason is not lost behind the log."""
    stand_in.plan_to_die("no room for a socket", '{"ts":"T","level":"warning","event":"orphans_ended"}\n')
    outcome = command("up", "--fleet", str(fleet))
    assert "T warning orphans_ended\n  no room for a socket" in outcome.err


def test_a_daemon_killed_at_its_start_says_by_what(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """A daemon that a signal ended (the kernel, short of memory) is not said to have ended by itself."""
    stand_in.plan_to_die("", status=-signal.SIGKILL)
    assert "was ended by SIGKILL" in command("up", "--fleet", str(fleet)).err


def test_up_outlasts_a_daemon_that_is_going_down(command: Command, stand_in: StandIn, fleet: Path, state: Path) -> None:
    """Refused because somebody who answers no more still holds the lock: up waits for its owner to end and starts its own again."""
    with subprocess.Popen([Path(sys.prefix) / "bin" / "python", "-c", "input()"], stdin=subprocess.PIPE) as owner:
        lock_path(state).write_text(f"{owner.pid}\n")
        stand_in.plan(READY)
        stand_in.plan_to_die("a daemon already owns it", status=5, once=True, end=owner.pid)
        outcome = command("up", "--fleet", str(fleet), "--json")
    assert outcome.document["started"] is True
    assert outcome.document["pid"] == stand_in.called["pid"]


def test_the_loser_of_two_starts_joins_the_winner(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """Refused because another start was faster and answers by now: up waits for that fleet and does not call it its own."""
    stand_in.plan(READY)
    winner = command("up", "--fleet", str(fleet), "--json").document
    stand_in.plan_to_die("a daemon already owns it", status=5)
    with ControlClient(socket_path(fleet.parent)) as client:
        start = Start(client, fleet, fleet.parent, check=lambda status: None)
        assert start.wait(None, fleet_view(Screen(as_json=True)), timeout_s=20).pid == winner["pid"] != start.started


def test_timeout_leaves_the_daemon_running(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """--timeout: exit 6, saying that the daemon goes on and how to look at it and stop it; it does go on."""
    stand_in.plan(STARTING)
    command("up", "--fleet", str(fleet), "--timeout", "0")
    outcome = command("up", "--fleet", str(fleet), "--timeout", "0")
    assert outcome.code == 6
    for word in ("goes on", "halcyon status", "halcyon down"):
        assert word in outcome.err


def test_a_broken_fleet_starts_nothing(command: Command, stand_in: StandIn, state: Path) -> None:
    """A broken fleet file: every problem on a line of its own, exit 2, nothing started, the same list under --json."""
    broken = state / "broken.toml"
    broken.write_text('[[model]]\nname = "m"\nruntime = "tourch"\nreplicas = "two"\n')
    outcome = command("up", "--fleet", str(broken))
    assert (outcome.code, outcome.out) == (2, "")
    assert all(line.startswith(f"halcyon: {broken}") for line in outcome.err.splitlines())
    found = command("up", "--fleet", str(broken), "--json").error
    assert (found["code"], found["exit_code"]) == ("config_error", 2)
    assert [f"halcyon: {problem}" for problem in found["problems"]] == outcome.err.splitlines()
    assert not stand_in.was_called


def test_a_missing_fleet_file_is_exit_2(command: Command, stand_in: StandIn, state: Path) -> None:
    """A fleet file that is not there exits with 2 and names it."""
    outcome = command("up", "--fleet", str(state / "none.toml"))
    assert outcome.code == 2
    assert str(state / "none.toml") in outcome.err


def test_foreground_becomes_the_daemon(stand_in: StandIn, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--foreground replaces the process, so that a supervisor keeps the pid that it started."""
    stand_in.plan_to_die("")
    monkeypatch.undo()
    arguments = ("up", "--foreground", "--fleet", str(fleet), "--state-dir", str(fleet.parent))
    with halcyon_process(*arguments, python=str(stand_in.program)) as process:
        process.wait(20)
    assert stand_in.called["pid"] == process.pid
    assert stand_in.called["arguments"][-1] == "--foreground"


def test_down_waits_until_the_daemon_has_ended(command: Command, stand_in: StandIn, fleet: Path) -> None:
    """down asks once and returns when the process is gone."""
    stand_in.plan(READY)
    command("up", "--fleet", str(fleet))
    outcome = command("down", "--json")
    assert outcome.document == {"pid": stand_in.called["pid"], "ended": True, "running": 0, "queued": 0}
    assert not psutil.pid_exists(stand_in.called["pid"])


def test_a_death_that_nobody_noticed_is_one() -> None:
    """A process is over when it died, not when its parent looks: in a container nobody may reap it, and down must not wait for that."""
    script = "import os, sys; print(os.spawnlp(os.P_NOWAIT, 'true', 'true'), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert wait_for_end(pid, 20) == Ending(None)
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("now", [True, False])
def test_down_says_whether_to_wait(command: Command, daemon: ScriptedControl, now: bool) -> None:
    """--now reaches the daemon as a flag; without it people hear what is waited for."""
    daemon.statuses = [a_status(pid=2**22 + 1, running=3)]  # a pid over the kernel's bound is nobody's
    outcome = command("down", *(["--now"] if now else []))
    assert outcome.code == 0
    assert daemon.last_body == {"now": now}
    assert ("Waiting for 3 running requests" in outcome.out) != now


def test_down_gives_up_waiting(command: Command, daemon: ScriptedControl) -> None:
    """A daemon that still drains after --timeout is exit 6, naming --now."""
    daemon.statuses = [a_status(pid=os.getpid(), running=3)]
    outcome = command("down", "--timeout", "0")
    assert outcome.code == 6
    assert "halcyon down --now" in outcome.err


def test_interrupted_up_says_what_goes_on(stand_in: StandIn, fleet: Path) -> None:
    """Ctrl-C while waiting: exit 130, and the daemon that goes on starting is named with how to stop it."""
    stand_in.plan(STARTING)
    with halcyon_process("up", "--fleet", str(fleet), python=sys.executable) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "loading" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert "halcyon down" in process.stderr.read()
    assert psutil.pid_exists(stand_in.called["pid"])
