"""Fleet files: TOML → frozen, checked settings. Nothing is started, fetched or resolved by checking a file.

A file is taken whole or not at all: `load_fleet` raises with every problem of the file, one line each.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec

from halcyon.config.capacity import Host
from halcyon.config.decode import Place, decode
from halcyon.config.problems import Problems
from halcyon.config.rules import check_fleet
from halcyon.config.settings import FleetSettings
from halcyon.config.sources import anchored
from halcyon.errors import ConfigError

DEMO_FLEET = Path(__file__).with_name("demo.toml")
"""The fleet of `halcyon up` without `--fleet`."""

MAX_FLEET_BYTES = 1024 * 1024

_AT = re.compile(r"^(?P<what>.*?) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)\Z", re.DOTALL)


def load_fleet(path: Path | None, *, host: Host | None = None) -> FleetSettings:
    """The fleet in `path`, or the packaged demo fleet for `None`. `host`: what budgets are checked against; `None` is this machine.

    Relative directories in the file (`source`, `state_dir`) come back absolute, from the file's own directory.

    Raises:
        ConfigError: the file cannot be read, or one line for each problem in it.
    """
    file = path or DEMO_FLEET
    text = _read(file)
    return parse_fleet(text, file=str(file), anchor=file.absolute().parent, host=host)


def parse_fleet(text: str, *, file: str, anchor: Path, host: Host | None = None) -> FleetSettings:
    """The fleet in `text`; `file` is what problems call it, `anchor` the directory that relative ones start at.

    Raises:
        ConfigError: one line for each problem.
    """
    problems = Problems(file)
    fleet = decode(_parse(text, file), FleetSettings, Place(), problems)
    check_fleet(fleet, host=host or Host.read(), anchor=anchor, problems=problems)
    lines = problems.lines
    if lines:
        raise ConfigError(lines)
    return _anchored(fleet.settings, anchor)


def fleet_digest(settings: FleetSettings) -> str:
    """16 hex digits that two fleets share when they ask for the same; comments, order of keys and spelled-out defaults do not count."""
    return hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()[:16]


def default_version(settings: FleetSettings, model: str) -> str:
    """The version that requests get which name none: the first `[[model]]` table with that name. '' for an unknown model."""
    return next((m.version for m in settings.models if m.name == model), "")


def replica_id(model: str, version: str, index: int) -> str:
    """The id of the `index`-th replica (from 0) of a version. Unique in a fleet, and a safe path component."""
    return f"{model}-{version}-{index}"


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_FLEET_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError([f"{file}: no such file. Name a fleet file, or leave --fleet out for the demo fleet."]) from error
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError([f"{str(file)!r}: not a file name"]) from error
    if len(raw) > MAX_FLEET_BYTES:
        raise ConfigError([f"{file}: over {MAX_FLEET_BYTES} bytes; expected a fleet file"])
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{file}:{line}: not UTF-8 text at byte {error.start}; save the file as UTF-8"]) from error


def _parse(text: str, file: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError([f"{file}: nested too deeply; expected tables and plain values"]) from error
    except ValueError as error:
        raise ConfigError([_syntax_problem(str(error), text, file)]) from error


def _syntax_problem(message: str, text: str, file: str) -> str:
    """`FILE:LINE:COLUMN: what` from tomllib's message, which puts the place into its words."""
    match = _AT.match(message)
    if match is None:
        return f"{file}: not TOML: {message}"
    if match["line"] is None:
        lines = text.splitlines() or [""]
        return f"{file}:{len(lines)}:{len(lines[-1]) + 1}: not TOML: {match['what']}, the file ends too early"
    return f"{file}:{match['line']}:{match['column']}: not TOML: {match['what']}"


def _anchored(settings: FleetSettings, anchor: Path) -> FleetSettings:
    """The same settings with every relative directory made absolute."""
    state_dir = settings.daemon.state_dir
    models = tuple(replace(m, source=anchored(m.source, anchor)) if m.runtime == "torch" else m for m in settings.models)
    return replace(settings, models=models, daemon=replace(settings.daemon, state_dir=anchored(state_dir, anchor)))
