"""What the parser complains of, in our own sentences.

The parser's words change with its release and speak of its own types; what it knows of a parameter (its name, its bounds, its choices)
is read from it, and where it knows nothing its own words stand.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Protocol

_OTHER_WORDS = {"start": "up", "serve": "up", "run": "up", "stop": "down", "kill": "down", "ps": "status", "ls": "status", "ask": "infer"}
"""Verbs of other tools, and ours for the same."""
_UNKNOWN_COMMAND = re.compile(r"No such command '(?P<name>[^']*)'\.(?P<rest>.*)", re.DOTALL)
_UNKNOWN_OPTION = re.compile(r"No such option: (?P<name>\S+)(?: \(Possible options: (?P<near>.*)\))?\.?")
_WHOLE, _NUMBER = "a whole number", "a number"


class Parameter(Protocol):
    """What this file reads of a parameter; the parser's own class has no public name."""

    opts: list[str]
    param_type_name: str
    metavar: str | None
    name: str | None


def sentence_of(error: Exception) -> str:
    """The complaint as one or two sentences, ended."""
    parameter: Parameter | None = getattr(error, "param", None)
    expected = _expected(parameter) if type(error).__name__ == "BadParameter" else ""
    if parameter is not None and expected:
        return f"{_name(parameter)}: expected {expected}{_found(error)}."
    said = error.format_message() if hasattr(error, "format_message") else str(error)
    said = said if said.endswith((".", "?", "!")) else f"{said}."
    return _without_jargon(said, at_the_top=_is_at_the_top(error))


def _without_jargon(said: str, *, at_the_top: bool) -> str:
    if unknown := _UNKNOWN_COMMAND.match(said):
        meant = _OTHER_WORDS.get(unknown["name"]) if at_the_top else None
        hint = f" Did you mean `halcyon {meant}`?" if meant else unknown["rest"]
        return f"No such command {unknown['name']!r}.{hint}"
    if unknown := _UNKNOWN_OPTION.match(said):
        near = f" Did you mean {unknown['near'].replace(', ', ' or ')}?" if unknown["near"] else ""
        return f"No such option {unknown['name']}.{near}"
    return said


def _is_at_the_top(error: Exception) -> bool:
    context = getattr(error, "ctx", None)
    return context is None or context.parent is None


def _name(parameter: Parameter) -> str:
    return str(parameter.opts[0]) if parameter.param_type_name == "option" else str(parameter.metavar or parameter.name)


def _expected(parameter: Parameter | None) -> str:
    """What its values look like: choices, or a kind of number within its bounds; '' where it is neither."""
    ask = getattr(parameter, "get_runtime_param", None)
    runtime = ask() if ask is not None else None
    kind, bounds = getattr(runtime, "annotation", None), getattr(runtime, "parameter_info", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(str(member.value) for member in kind)
    if kind not in {int, float}:
        return ""
    return _within(_WHOLE if kind is int else _NUMBER, getattr(bounds, "min", None), getattr(bounds, "max", None))


def _within(what: str, least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f"{what} from {least:g} to {most:g}"
    if least is not None:
        return f"{what} from {least:g} up"
    return what if most is None else f"{what} up to {most:g}"


def _found(error: Exception) -> str:
    """The value itself, where the parser tells it."""
    details = getattr(error.__cause__, "errors", None)
    value = details()[0].get("input") if callable(details) else None
    return f", found {value!r}" if isinstance(value, str) else ""
