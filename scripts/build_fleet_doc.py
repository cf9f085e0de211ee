"""Writes docs/fleet.md, the reference of the fleet file, from the settings dataclasses and the docstrings of their fields.

python scripts/build_fleet_doc.py            writes it
python scripts/build_fleet_doc.py --check    exits 1 when the file on disk is not what would be written
"""

from __future__ import annotations

import argparse
import ast
import inspect as source_inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import inspect

from halcyon.config.schema import Key, expected, keys_of
from halcyon.config.settings import FleetSettings
from halcyon.config.units import format_size

TARGET = Path(__file__).resolve().parent.parent / "docs" / "fleet.md"

HEAD = """# The fleet file

<!-- Written by scripts/build_fleet_doc.py from halcyon/config/settings.py. Change that and run the script. -->

A fleet file is TOML. `halcyon up --fleet FILE` reads it; without `--fleet` the demo fleet is used (`examples/demo.toml`).
A file is taken whole or not at all: every problem is reported at once, one line each, with file, table, key, value and what was expected,
and nothing is started.

Sizes are written as text with a unit (`"4 GiB"`, `"98 MB"`; KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024) or as a number of
bytes. A key that ends in `_ms` counts milliseconds, one that ends in `_s` seconds. Relative directories start at the file's own directory.
"""

RULES = """
## What must hold between keys

- At least one `[[model]]`. Each (name, version) once; the first table with a name is the default version.
- `listen` on a host other than loopback needs at least one `[[tenant]]`.
- `source`: runtime `torch` needs one of the forms above, a directory must exist; runtime `openai` needs an http or https URL without user
  or password; runtime `sim` takes none.
- `[model.sim]` only with runtime `sim`, `[model.openai]` only with runtime `openai`.
- With any `[[device]]`, a model's `device` is `auto` or one of them. A model's `memory` must fit its device, and the models pinned to one
  device must fit together. Without any, on a machine without an NVIDIA device, the device is the CPU with the machine's memory.
- `ttft_ms` and `tpot_ms` are at most `deadline_ms`. `worker_timeout_s` is at least twice `worker_heartbeat_s`.
- Tenants have different names and different keys, and name only models of the file.
"""


def docstrings(cls: type[object]) -> tuple[str, dict[str, str]]:
    """The class's own docstring, and the string under each field, by field name."""
    tree = ast.parse(textwrap.dedent(source_inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    notes: dict[str, str] = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            notes[field.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return " ".join((cls.__doc__ or "").split()), notes


def tables() -> Iterator[tuple[str, type[object]]]:
    """Heading and class of every table, parents before children."""
    todo: list[tuple[str, Key]] = [("", key) for key in keys_of(FleetSettings)]
    while todo:
        prefix, key = todo.pop(0)
        if key.table is None:
            continue
        dotted = f"{prefix}{key.name}"
        yield (f"[[{dotted}]]" if key.array else f"[{dotted}]"), key.table
        todo[:0] = [(f"{dotted}.", child) for child in keys_of(key.table)]


def default(key: Key) -> str:
    """The default as TOML writes it."""
    value = key.field.default
    if key.field.required:
        return "required"
    if value is None:
        return "none"
    if value == "":
        return "empty"
    if key.is_size:
        return f'`"{format_size(value)}"`'
    return f"`{msgspec.json.encode(value).decode()}`"


def accepts(key: Key) -> str:
    """What the key takes, in a few words."""
    kind = key.field.type
    if isinstance(kind, inspect.UnionType):
        kind = next(t for t in kind.types if not isinstance(t, inspect.NoneType))
    if key.is_size and isinstance(kind, inspect.IntType):
        return f"size, at least {format_size(int(kind.ge or 0))}"
    return expected(kind).removeprefix("a ").replace("|", "\\|")


def section(heading: str, cls: type[object]) -> Iterator[str]:
    """The lines of one table's section."""
    doc, notes = docstrings(cls)
    yield f"\n## `{heading}`\n"
    text = doc.removeprefix(f"`{heading}`").lstrip(":. ") or "the daemon itself."
    yield text[0].upper() + text[1:]
    yield "\n| key | takes | default | meaning |\n|---|---|---|---|"
    for key in keys_of(cls):
        if key.table is None:
            meaning = notes.get(key.field.name, "").replace("|", "\\|")
            yield f"| `{key.name}` | {accepts(key)} | {default(key)} | {meaning} |"


def render() -> str:
    """The whole page."""
    lines = [line for heading, cls in tables() for line in section(heading, cls)]
    return "\n".join([HEAD.rstrip(), *lines]) + "\n" + RULES


def main() -> int:
    """Writes or checks the page; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build docs/fleet.md from the settings dataclasses.")
    parser.add_argument("--check", action="store_true", help="exit 1 when the file is not up to date")
    check: bool = parser.parse_args().check
    page = render()
    if not check:
        TARGET.write_text(page)
        return 0
    if TARGET.exists() and TARGET.read_text() == page:
        return 0
    print(f"{TARGET} is not up to date; run python {Path(__file__).name}")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
