"""docs/fleet.md is complete and true."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from halcyon.config.schema import keys_of
from halcyon.config.settings import FleetSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/fleet.md").read_text()


def test_the_reference_is_fresh() -> None:
    """The page is what scripts/build_fleet_doc.py writes from the settings as they stand."""
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts/build_fleet_doc.py"), "--check"], capture_output=True, text=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def every_table(cls: type[object] = FleetSettings) -> list[type[object]]:
    """All settings classes, from the top."""
    below = [key.table for key in keys_of(cls) if key.table is not None]
    return [cls, *(table for child in below for table in every_table(child))]


@pytest.mark.parametrize("cls", every_table()[1:], ids=lambda cls: cls.__name__)
def test_every_key_is_explained(cls: type[object]) -> None:
    """Each field of each settings class has a row in the reference with a meaning, taken from its docstring."""
    rows = [[cell.strip() for cell in line.split(" | ")] for line in PAGE.splitlines() if line.startswith("| `")]
    explained = {row[0].strip("|` ") for row in rows if row[-1].strip("| ")}
    scalars = [key for key in keys_of(cls) if key.table is None]
    assert len(scalars) + sum(key.table is not None for key in keys_of(cls)) == len(dataclasses.fields(cls))  # type: ignore[arg-type]
    assert {key.name for key in scalars} <= explained
