"""What a fleet file may hold, read from the settings dataclasses themselves: a new field there is a new key here, with nothing to add.

From field to key: `memory_bytes` is written `memory = "4 GiB"` (or `memory_bytes = 4294967296`); a nested dataclass is a table
(`[daemon.limits]`); a tuple of dataclasses is an array of tables under its singular (`models` → `[[model]]`); everything else keeps
its name.
"""

from __future__ import annotations

import dataclasses
import math
import re
from functools import cache

from msgspec import inspect

from halcyon.config.problems import show, suggestion
from halcyon.config.units import SIZE_EXPECTED, format_size, parse_size_bytes

INT64_MAX = 2**63 - 1


class Mismatch(ValueError):
    """The value is not what the field takes. The message begins with "expected"."""


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes:
        name: as the file spells it; aliases: further spellings. field: the dataclass's own name for it.
        table: the class of a nested table, or of each table of an array where `array` is true; else `None`.
    """

    name: str
    aliases: tuple[str, ...]
    field: inspect.Field
    table: type | None = None
    array: bool = False

    @property
    def secret(self) -> bool:
        """Whether a wrong value must not be shown, since it may be a key."""
        return isinstance(self.field.type, inspect.Metadata) and bool((self.field.type.extra or {}).get("secret"))

    @property
    def is_size(self) -> bool:
        """Whether the value counts bytes and may be written with a unit."""
        return self.field.name.endswith("_bytes")


def keys_of(cls: type[object]) -> tuple[Key, ...]:
    """The keys of the table that makes a `cls`, in the order of its fields."""
    return _keys_of(cls)  # type: ignore[arg-type]  # classes are hashable, whatever their instances are


@cache
def _keys_of(cls: type[object]) -> tuple[Key, ...]:
    described = inspect.type_info(cls)
    if not isinstance(described, inspect.DataclassType):
        raise TypeError(f"{cls.__name__} is not a dataclass")
    return tuple(_key(f) for f in described.fields)


def _key(f: inspect.Field) -> Key:
    match f.type:
        case inspect.DataclassType(cls=cls):
            return Key(f.name, (), f, table=cls)
        case inspect.VarTupleType(item_type=inspect.DataclassType(cls=cls)):
            return Key(f.name.removesuffix("s"), (), f, table=cls, array=True)
        case _ if f.name.endswith("_bytes"):
            return Key(f.name.removesuffix("_bytes"), (f.name,), f)
        case _:
            return Key(f.name, (), f)


def expected(kind: inspect.Type, *, size: bool = False) -> str:
    """What a value of `kind` looks like, for a sentence that begins with "expected"."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=described):
            return str((described or {}).get("description", "")) or expected(inner, size=size)
        case inspect.UnionType(types=types):
            return expected(_without_none(types), size=size)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(show(v) for v in values)
        case inspect.VarTupleType(item_type=item):
            return f"an array, each item {expected(item)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"{SIZE_EXPECTED}, at least {format_size(int(kind.ge or 0))}" if size else f"a whole number{_range(kind)}"
        case inspect.FloatType():
            return f"a number{_range(kind)}"
        case _:
            return "text in quotes"


def checked(value: object, kind: inspect.Type, *, size: bool = False) -> object:
    """`value` as the dataclass holds it. `size`: text with a unit is turned into bytes.

    Raises:
        Mismatch: wrong type, out of bounds, or not one of the words allowed.
    """
    match kind:
        case inspect.Metadata(type=inner):
            return _checked_described(value, kind, inner)
        case inspect.UnionType(types=types):
            return checked(value, _without_none(types), size=size)
        case inspect.VarTupleType(item_type=item):
            return _checked_items(value, kind, item)
        case inspect.IntType() if size and isinstance(value, str):
            return checked(_size_bytes(value, kind), kind, size=True)
        case _ if _fits(value, kind):
            return float(value) if isinstance(kind, inspect.FloatType) and isinstance(value, int) else value
        case inspect.LiteralType(values=values) if isinstance(value, str):
            raise Mismatch(f"expected {expected(kind)}{suggestion(value, [str(v) for v in values])}")
        case _:
            return _refuse(kind, size=size)


def _refuse(kind: inspect.Type, *, size: bool = False) -> object:
    raise Mismatch(f"expected {expected(kind, size=size)}")


def _checked_described(value: object, kind: inspect.Type, inner: inspect.Type) -> object:
    try:
        return checked(value, inner)
    except Mismatch as error:
        raise Mismatch(f"expected {expected(kind)}") from error


def _fits(value: object, kind: inspect.Type) -> bool:
    match kind:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT64_MAX and _within(value, kind)
        case inspect.FloatType():
            return _is_finite_number(value) and _within(value, kind)
        case inspect.StrType(pattern=pattern):
            return isinstance(value, str) and "\0" not in value and (pattern is None or re.search(pattern, value) is not None)
        case inspect.LiteralType(values=values):
            return isinstance(value, str) and value in values
        case _:
            raise TypeError(f"fleet files have no form for {kind}")


def _is_finite_number(value: object) -> bool:
    """True for 1 and 1.5; false for true, nan, inf, and an int that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= INT64_MAX and math.isfinite(value)


def _within(value: object, kind: inspect.IntType | inspect.FloatType) -> bool:
    if not isinstance(value, int | float):
        return False
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    bounds = (("at least", kind.ge), ("above", kind.gt), ("at most", kind.le), ("below", kind.lt))
    told = [f"{word} {bound}" for word, bound in bounds if bound is not None]
    return f", {' and '.join(told)}" if told else ""


def _checked_items(value: object, kind: inspect.VarTupleType, item: inspect.Type) -> object:
    if not isinstance(value, list) or len(value) < (kind.min_length or 0):
        return _refuse(kind)
    try:
        return tuple(checked(v, item) for v in value)
    except Mismatch:
        return _refuse(kind)


def _size_bytes(text: str, kind: inspect.Type) -> int:
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise Mismatch(f"expected {expected(kind, size=True)}") from error


def _without_none(types: tuple[inspect.Type, ...]) -> inspect.Type:
    return next(t for t in types if not isinstance(t, inspect.NoneType))
