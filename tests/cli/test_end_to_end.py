"""The command against the real daemon with a simulated fleet: the scripted one must not be the only one that understands it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from outcome import Command

FLEET = """
[daemon]
listen = "127.0.0.1:0"

[[model]]
name = "m"
runtime = "sim"
replicas = 2

[model.sim]
overhead_ms = 1.0
per_token_ms = 0.0
"""


@pytest.fixture
def up(command: Command, state: Path) -> Iterator[dict[str, object]]:
    """A running daemon, as `up --json` describes it; ended afterwards, and nothing of it left."""
    path = state / "fleet.toml"
    path.write_text(FLEET)
    outcome = command("up", "--fleet", str(path), "--json")
    processes = _processes_of(state)
    try:
        assert outcome.code == 0, outcome.err or outcome.out
        yield outcome.document
    finally:
        processes |= _processes_of(state)
        command("down", "--now", "--timeout", "20")
        _, alive = psutil.wait_procs(processes, timeout=20)
        for process in alive:
            process.kill()
    assert not alive


def _processes_of(state: Path) -> set[psutil.Process]:
    """The daemon that was started for this state directory, if it lives, and its workers."""
    daemons = [process for process in psutil.process_iter(["cmdline"]) if str(state) in (process.info["cmdline"] or ())]
    return {process for daemon in daemons for process in (daemon, *daemon.children(recursive=True))}


def test_a_whole_life(command: Command, up: dict[str, object]) -> None:
    """up, up again, status, infer streamed and whole with the same seedless answer, a refusal, drain, down: each as documented."""
    assert command("up", "--fleet", str(up["fleet"])).code == 0
    status = command("status", "--json").document
    assert (status["pid"], status["state"], len(status["replicas"])) == (up["pid"], "ready", 2)
    streamed = command("infer", "m", "Hello", "--max-tokens", "5")
    assert (streamed.code, streamed.err) == (0, "")
    answer = command("infer", "m", "Hello", "--max-tokens", "5", "--json").document
    assert streamed.out == answer["output"] + "\n"
    assert answer["account"]["usage"]["completion_tokens"] == 5
    assert answer["account"]["eligible_replicas"] == 2
    assert command("infer", "none", "Hello").code == 4
    assert command("infer", "m", "Hello", "--top-p", "2").code == 2
    assert command("replica", "drain", "none").code == 4
    first = status["replicas"][0]["replica_id"]
    assert command("replica", "drain", first).code == 0
    assert command("infer", "m", "Hello", "--json").document["account"]["replica_id"] != first
    assert command("down", "--json").document["ended"] is True
    assert command("status").code == 3


def test_an_edited_fleet_is_noticed(command: Command, up: dict[str, object]) -> None:
    """The real daemon says what it read: up after a new comment changes nothing, up after a new number exits with 5, and it goes on."""
    path = Path(str(up["fleet"]))
    path.write_text(f"# a comment\n{FLEET}")
    assert command("up", "--fleet", str(path)).code == 0
    path.write_text(FLEET.replace("overhead_ms = 1.0", "overhead_ms = 2.0"))
    outcome = command("up", "--fleet", str(path))
    assert outcome.code == 5
    assert "has changed since" in outcome.err
    assert command("infer", "m", "Hello", "--max-tokens", "2").code == 0


def test_every_request_field_is_understood(command: Command, up: dict[str, object]) -> None:
    """Each option of infer is one that the real endpoint takes."""
    flags = "--version v1 --system Brief. --max-tokens 3 --temperature 0 --top-p 0.5 --top-k 4 --seed 7 --stop X --stop Y"
    flags += " --deadline-ms 60000 --ttft-ms 8000 --tpot-ms 2000 --lane bulk --session s1 --replica m-v1-1"
    outcome = command("infer", "m", "Why?", *flags.split(), "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["account"]["replica_id"] == "m-v1-1"
    assert command("infer", "m", "Once", "--raw", "--no-stream").code == 0
    assert command("infer", "m@v1", "Once").code == 0


def test_the_second_up_after_a_kill(command: Command, up: dict[str, object]) -> None:
    """kill -9 of the daemon leaves a stale socket: status says that none runs, and up works at once (Local processes, devices, sockets)."""
    daemon = psutil.Process(int(str(up["pid"])))
    daemon.kill()
    daemon.wait(20)
    assert command("status").code == 3
    again = command("up", "--fleet", str(up["fleet"]), "--json").document
    assert (again["started"], again["state"]) == (True, "ready")
