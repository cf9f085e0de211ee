"""Fleet files: TOML → frozen settings."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from halcyon.config.settings import FleetSettings
from halcyon.errors import ConfigError

DEMO_FLEET = Path(__file__).with_name("demo.toml")
"""The fleet of `halcyon up` without `--fleet`."""


def load_fleet(path: Path | None) -> FleetSettings:
    """The fleet in `path`, or the packaged demo fleet for `None`.

    Raises:
        ConfigError: the file cannot be read, or one line for each problem in it.
    """
    try:
        table = tomllib.loads((path or DEMO_FLEET).read_text())
        renamed = {{"model": "models", "device": "devices", "tenant": "tenants"}.get(k, k): v for k, v in table.items()}
        return msgspec.convert(renamed, FleetSettings)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ConfigError([f"{path}: {error}"]) from error


def default_version(settings: FleetSettings, model: str) -> str:
    """The version that requests get which name none: the first `[[model]]` table with that name. '' for an unknown model."""
    return next((m.version for m in settings.models if m.name == model), "")


def replica_id(model: str, version: str, index: int) -> str:
    """The id of the `index`-th replica (from 0) of a version. Unique in a fleet, and a safe path component."""
    return f"{model}-{version}-{index}"
