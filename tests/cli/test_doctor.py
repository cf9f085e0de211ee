"""`halcyon doctor`: each check's verdicts, and what they add up to."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from outcome import Command
from scripted_control import ScriptedControl

from halcyon.cli import checks
from halcyon.config.paths import socket_path

NAMES = [
    "python",
    "torch",
    "cuda",
    "transformers",
    "gguf",
    "memory",
    "cores",
    "disk",
    "state dir",
    "socket",
    "model cache",
    "uvloop",
    "pip",
]


@pytest.fixture(autouse=True)
def no_cuda_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading torch takes seconds; what its answers lead to is tested by value."""
    monkeypatch.setattr(checks, "probe_cuda", list)


def test_json_lists_every_check(command: Command) -> None:
    """--json has `healthy` and all checks in order, each with four keys; this machine is fit to run its own tests."""
    found = command("doctor", "--json").document
    assert tuple(found) == ("healthy", "checks")
    assert [check["name"] for check in found["checks"]] == NAMES
    assert all(tuple(check) == ("name", "verdict", "found", "remedy") for check in found["checks"])
    assert found["healthy"] is True


def test_one_failure_is_exit_1(command: Command, state: Path) -> None:
    """One failed check makes the exit status 1, with its remedy in the table; warnings do not."""
    socket_path(state).write_text("not a socket")
    outcome = command("doctor")
    assert outcome.code == 1
    assert "is not a socket" in outcome.out
    assert socket_path(state).read_text() == "not a socket"


def test_socket_alive_stale_and_none(state: Path) -> None:
    """No socket is ok, a stale one warns and is left alone, a live one is ok."""
    path = socket_path(state)
    assert checks.check_socket(path).verdict == "ok"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert checks.check_socket(path).verdict == "warn"
    assert path.exists()
    path.unlink()
    with ScriptedControl(path):
        assert "answers" in checks.check_socket(path).found


@pytest.mark.parametrize(("mode", "verdict"), [(0o700, "ok"), (0o755, "ok"), (0o770, "fail"), (0o777, "fail")])
def test_state_dir_rights(tmp_path: Path, mode: int, verdict: str) -> None:
    """A state directory that others may write to fails; one that is not there yet is ok."""
    directory = tmp_path / "state"
    assert checks.check_state_dir(directory).verdict == "ok"
    directory.mkdir()
    directory.chmod(mode)
    assert checks.check_state_dir(directory).verdict == verdict


@pytest.mark.parametrize(
    ("version", "verdict"), [("5.24.0", "ok"), ("5.24.3", "ok"), ("5.23.9", "fail"), ("5.25.0", "fail"), ("6.0", "fail")]
)
def test_transformers_range(monkeypatch: pytest.MonkeyPatch, version: str, verdict: str) -> None:
    """transformers outside the range of halcyon's own metadata fails and names the range."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["torch<2.15,>=2.9", 'transformers<5.25,>=5.24; extra == "x"'])
    found = checks.check_package("transformers")
    assert found.verdict == verdict
    assert verdict == "ok" or "<5.25,>=5.24" in found.remedy


@pytest.mark.parametrize(
    ("devices", "verdict", "word"),
    [(None, "fail", "torch"), ([], "warn", "CPU"), ([checks.CudaDevice("H200", 141 << 30)], "ok", "H200 (141.0 GiB)")],
)
def test_cuda(devices: list[checks.CudaDevice] | None, verdict: str, word: str) -> None:
    """torch that cannot load fails, no device warns, a device is named with its memory."""
    found = checks.check_cuda(devices)
    assert found.verdict == verdict
    assert word in found.found


def test_bounds() -> None:
    """Too old a Python fails; little memory and a single core warn."""
    assert checks.check_python((3, 10)).verdict == "fail"
    assert checks.check_python((3, 11)).verdict == "ok"
    assert checks.check_memory(1 << 30).verdict == "warn"
    assert checks.check_memory(8 << 30).verdict == "ok"
    assert [checks.check_cores(1).verdict, checks.check_cores(2).verdict] == ["warn", "ok"]


def test_model_cache_is_counted(tmp_path: Path) -> None:
    """The cache's entries are its directories, its size that of the files in them."""
    assert "empty" in checks.check_model_cache(tmp_path / "none").found
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * 1000)
    assert checks.check_model_cache(tmp_path).found.startswith("2 entries, ")


@pytest.mark.parametrize("below", ["", "state", "a/b/c"])
def test_a_state_dir_under_a_file_fails(tmp_path: Path, below: str) -> None:
    """A state directory that is a file, or below one, cannot be had: fail with a remedy, and its socket is simply not there."""
    file = tmp_path / "file"
    file.touch()
    found = checks.check_state_dir(file / below)
    assert (found.verdict, "--state-dir" in found.remedy) == ("fail", True)
    assert checks.check_socket(file / below / "halcyon.sock").verdict == "ok"


def test_names_that_no_file_system_takes_fail(tmp_path: Path) -> None:
    """A part of 300 bytes is named before mkdir would fail at it."""
    directory = tmp_path / ("x" * 300) / "state"
    assert checks.check_state_dir(directory).verdict == "fail"
    assert checks.check_socket(socket_path(directory)).verdict == "ok"


def test_a_cache_below_a_device_or_file_fails(command: Command, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be a directory is named as such, not measured as a disk."""
    (state / "file").touch()
    monkeypatch.setenv("HALCYON_CACHE_DIR", str(state / "file" / "cache"))
    outcome = command("doctor", "--json")
    disk = next(check for check in outcome.document["checks"] if check["name"] == "disk")
    assert (outcome.code, disk["verdict"], disk["found"]) == (1, "fail", f"{state / 'file'} is not a directory")


def test_what_converts_a_gguf_is_named_when_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `accelerate` the demo's model cannot be converted: doctor warns and says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "accelerate" else object())
    found = checks.check_gguf()
    assert (found.verdict, found.found) == ("warn", "accelerate not installed")
    assert "halcyon[demo]" in found.remedy
