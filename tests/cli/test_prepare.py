"""`halcyon model prepare`: the preparing process is asked for the right source, and its end is the command's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from outcome import Command

SOURCE = "builtin:tiny-llama?seed=1"


@pytest.fixture
def preparing(state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands where Python stands: writes down its arguments, prints two stages and a library's remark, ends as `status` says."""
    program = state / "python"
    lines = [
        '{"stage":"preparing","detail":"fetching","progress":0.5}',
        "a library says hello",
        '{"type":"stage","stage":"ready","detail":"done"}',
    ]
    printed = "\n".join(f"echo '{line}'" for line in lines)
    program.write_text(f'#!/bin/sh\necho "$@" > {state}/arguments\n{printed}\ncat {state}/complaint >&2 2>/dev/null && exit 1\nexit 0\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    return state


def test_stages_are_shown(command: Command, preparing: Path) -> None:
    """In a pipe: one line for each stage; what is no stage is left out."""
    outcome = command("model", "prepare", SOURCE)
    assert outcome.out.splitlines() == [f"{SOURCE}: preparing (fetching)", f"{SOURCE}: ready (done)", f"{SOURCE} is prepared."]
    assert (preparing / "arguments").read_text() == f"-m halcyon.worker.prepare {SOURCE} --json\n"


def test_json_and_terminal(command: Command, preparing: Path) -> None:
    """--json prints source, prepared and detail; a terminal gets a bar."""
    assert command("model", "prepare", SOURCE, "--json").document == {"source": SOURCE, "prepared": True, "detail": "done"}
    assert "━" in command("model", "prepare", SOURCE, terminal=True).out


def test_a_failure_keeps_its_reason(command: Command, preparing: Path) -> None:
    """The process's own sentence becomes the error, exit 1."""
    (preparing / "complaint").write_text("Traceback\nno such package; check the name\n")
    outcome = command("model", "prepare", SOURCE, "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error == {"code": "model_unavailable", "message": "no such package; check the name", "exit_code": 1}


def test_a_model_of_the_fleet(command: Command, preparing: Path) -> None:
    """NAME or NAME@VERSION stands for its source; an unknown one exits with 4 and names the rest; a simulated one has none."""
    fleet = preparing / "fleet.toml"
    fleet.write_text(f'[[model]]\nname = "t"\nsource = "{SOURCE}"\n[[model]]\nname = "s"\nruntime = "sim"\n')
    assert command("model", "prepare", "t@v1", "--fleet", str(fleet)).code == 0
    assert SOURCE in (preparing / "arguments").read_text()
    unknown = command("model", "prepare", "u", "--fleet", str(fleet))
    assert unknown.code == 4
    assert "t@v1, s@v1" in unknown.err
    assert command("model", "prepare", "s", "--fleet", str(fleet)).code == 1
