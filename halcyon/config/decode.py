"""One pass over a parsed TOML table: every key checked alone, and settings built from what is sound.

A field whose value is broken keeps its default (or an empty stand-in where it is required) so that the rules which span keys can still
run; `Entry.broken` tells them which fields to leave in peace. Settings of a file with problems never leave this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar, cast

from halcyon.config.problems import Problems, may_be_secret, show, suggestion
from halcyon.config.schema import Key, Mismatch, checked, expected, keys_of
from halcyon.config.settings import FleetSettings
from halcyon.config.units import format_size

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Place:
    """Where a table stands in the file. `dotted`: its TOML name; `owner`: the array entry it belongs to, such as `[[model]] #2 "llama"`."""

    dotted: str = ""
    owner: str = ""

    def __str__(self) -> str:
        """As a problem's line names it; empty for the top of the file."""
        if not self.dotted:
            return ""
        if self.owner.startswith(f"[[{self.dotted}]]"):
            return self.owner
        return f"[{self.dotted}] of {self.owner}" if self.owner else f"[{self.dotted}]"

    def nested(self, name: str) -> Place:
        """The place of a table inside this one."""
        return Place(f"{self.dotted}.{name}" if self.dotted else name, self.owner)

    def item(self, name: str, number: int, label: object) -> Place:
        """The place of the `number`-th table (from 1) of an array."""
        return Place(name, f"[[{name}]] #{number}" + (f" {show(label)}" if isinstance(label, str) and label else ""))


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A table that was read.

    Attributes:
        settings: built from it. given: fields it sets. broken: fields with a problem already told.
        children: the tables inside it.
    """

    place: Place
    settings: T
    given: frozenset[str]
    broken: frozenset[str]
    children: tuple[Entry[object], ...]

    def tables(self, cls: type[S]) -> Iterator[Entry[S]]:
        """The tables directly inside this one that make a `cls`, in file order."""
        for child in self.children:
            if isinstance(child.settings, cls):
                yield cast("Entry[S]", child)

    def blame(self, problems: Problems, field: str, text: str) -> None:
        """Notes that `field` is wrong for the reason in `text`, unless a problem with it is already told."""
        if field in self.broken:
            return
        key = next(k for k in keys_of(type(self.settings)) if k.field.name == field)
        setting = getattr(self.settings, field)
        value = show(format_size(setting) if key.is_size and isinstance(setting, int) else setting, secret=key.secret)
        problems.add(str(self.place), f"{key.name} = {value}: {text}" if field in self.given else f"{key.name} is missing: {text}")


def decode(table: dict[str, object], cls: type[T], place: Place, problems: Problems) -> Entry[T]:
    """Reads `table` as a `cls` and notes everything that is wrong with it or with the tables inside it."""
    draft = _Draft(cls, place, problems)
    for name, value in table.items():
        draft.read(name, value)
    broken = draft.given - draft.values.keys()
    broken |= draft.stand_in_for_missing()
    settings = cast("Callable[..., T]", cls)(**draft.values)
    return Entry(place, settings, frozenset(draft.given), frozenset(broken), tuple(draft.children))


class _Draft:
    """A table while it is read: `values` by field for all that was sound."""

    def __init__(self, cls: type[object], place: Place, problems: Problems) -> None:
        self._keys = keys_of(cls)
        self._spelled = {name: key for key in self._keys for name in (key.name, *key.aliases)}
        self._place = place
        self._problems = problems
        self.values: dict[str, object] = {}
        self.given: set[str] = set()
        self.children: list[Entry[object]] = []

    def read(self, name: str, value: object) -> None:
        """Takes one key of the table."""
        key = self._spelled.get(name)
        if key is None:
            secret = any(k.secret for k in self._keys) or may_be_secret(name)
            self._blame(f"unknown key {show(name)[1:-1]} = {show(value, secret=secret)}{self._hint(name)}")
        elif key.field.name in self.given:
            self._blame(f"{name} = {show(value)}: expected only one of {' and '.join((key.name, *key.aliases))}")
            self.values.pop(key.field.name, None)
        else:
            self.given.add(key.field.name)
            self._read_known(key, name, value)

    def stand_in_for_missing(self) -> set[str]:
        """Gives every required field some value, and returns those that the file leaves out, each told as a problem."""
        missing: set[str] = set()
        for key in self._keys:
            if not key.field.required or key.field.name in self.values:
                continue
            self.values[key.field.name] = 0 if key.is_size else ""
            if key.field.name not in self.given:
                self._blame(f"{key.name} is missing: expected {expected(key.field.type, size=key.is_size)}")
                missing.add(key.field.name)
        return missing

    def _read_known(self, key: Key, name: str, value: object) -> None:
        if key.table is not None and key.array:
            self._read_array(key, key.table, value)
        elif key.table is not None:
            self._read_nested(key, key.table, value)
        else:
            try:
                self.values[key.field.name] = checked(value, key.field.type, size=key.is_size)
            except Mismatch as mismatch:
                self._blame(f"{name} = {show(value, secret=key.secret)}: {mismatch}")

    def _read_nested(self, key: Key, cls: type[object], value: object) -> None:
        place = self._place.nested(key.name)
        if not isinstance(value, dict):
            self._blame(f"{key.name} = {show(value)}: expected a table, [{place.dotted}]")
            return
        child = decode(value, cls, place, self._problems)
        self.children.append(child)
        self.values[key.field.name] = child.settings

    def _read_array(self, key: Key, cls: type[object], value: object) -> None:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            found = f"[{key.name}]" if isinstance(value, dict) else f"{key.name} = {show(value)}"
            self._blame(f"{found}: expected [[{key.name}]] with two brackets, one for each {key.name}")
            return
        places = (self._place.item(key.name, number, item.get("name")) for number, item in enumerate(value, 1))
        made = [decode(item, cls, place, self._problems) for item, place in zip(value, places, strict=True)]
        self.children.extend(made)
        self.values[key.field.name] = tuple(child.settings for child in made)

    def _hint(self, name: str) -> str:
        elsewhere = _tables_with().get(name)
        if elsewhere:
            return f"; it is a key of {elsewhere}"
        return suggestion(name, self._spelled) or f"; expected one of {', '.join(self._spelled)}"

    def _blame(self, text: str) -> None:
        self._problems.add(str(self._place), text)


@cache
def _tables_with() -> dict[str, str]:
    """For every key of every table, the first table that has it, for keys written under the wrong heading."""
    found: dict[str, str] = {}
    todo: list[tuple[type, Place, bool]] = [(FleetSettings, Place(), False)]
    while todo:
        cls, place, array = todo.pop(0)
        for key in keys_of(cls):
            if key.table is not None:
                todo.append((key.table, place.nested(key.name), key.array))
            elif place.dotted:
                found.setdefault(key.name, f"[[{place.dotted}]]" if array else f"[{place.dotted}]")
    return found
