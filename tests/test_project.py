"""What the project declares is what it uses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared(requirements: list[str]) -> set[str]:
    """The names of some requirements."""
    return {re.split(r"[\[;<>=!~ ]", requirement)[0].lower() for requirement in requirements}


def test_the_demo_extra_holds_everything_a_gguf_is_converted_with() -> None:
    """A fresh machine that installs `halcyon[demo]` can convert the demo's model: transformers wants both of these for a GGUF."""
    assert declared(PROJECT["optional-dependencies"]["demo"]) == {"accelerate", "gguf"}


def test_every_declared_package_is_pinned() -> None:
    """constraints.txt pins one version of everything that a person installs for use or development."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    extras = PROJECT["optional-dependencies"]
    assert declared([*PROJECT["dependencies"], *extras["demo"], *extras["dev"]]) - pinned == set()
