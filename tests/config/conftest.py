"""Fleet files as text, checked against a machine that is the same everywhere: 16 GiB and no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from halcyon.config.capacity import Host
from halcyon.config.load import parse_fleet
from halcyon.config.settings import FleetSettings
from halcyon.config.units import SIZE_UNITS
from halcyon.errors import ConfigError

LAPTOP = Host(memory_bytes=16 * SIZE_UNITS["GiB"], has_cuda=False)


@pytest.fixture
def parse(tmp_path: Path) -> Callable[..., FleetSettings]:
    """Parses text as `fleet.toml`; `host` may be another machine."""

    def parser(text: str, *, host: Host = LAPTOP) -> FleetSettings:
        return parse_fleet(text, file="fleet.toml", anchor=tmp_path, host=host)

    return parser


@pytest.fixture
def problems(parse: Callable[..., FleetSettings]) -> Callable[..., list[str]]:
    """The problem lines of a text; empty for a sound one."""

    def finder(text: str, *, host: Host = LAPTOP) -> list[str]:
        try:
            parse(text, host=host)
        except ConfigError as error:
            return error.problems
        return []

    return finder
