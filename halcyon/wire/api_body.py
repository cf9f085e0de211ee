"""Strict JSON bodies: every field is known, refused by name, or neutral; nothing is ignored in silence.

The usual body decodes in one typed pass. Only when that pass objects is the body looked at field by field: alternative spellings are
translated, fields that stand at a value which changes nothing are dropped, the others are refused with their path, and an unknown field
is answered with the nearest known one. Error texts name fields and small scalars; they never repeat strings of the body.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from halcyon.errors import InvalidRequest

_T = TypeVar("_T")
MAX_ITEMS = 4096
"""Objects in one array of a body (messages of a conversation, parts of a message), at most."""
_LONGEST_NEUTRAL_BYTES = 64
_LONGEST_SHOWN = 48
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()
_COMPLAINT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_QUOTED = re.compile(r" '.*'", re.DOTALL)
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # of a decoded string: whole pairs are one character there
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_BOUND = re.compile(r"Expected `(?:int|float)` (?P<sign><=|>=|<|>) (?P<bound>-?[0-9.]+)")
_BOUND_WORDS = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}
_SCALAR = re.compile(rb"-?[0-9][0-9.eE+-]{0,31}|true|false|null")


class Fields:
    """What one JSON object may hold.

    Args:
        struct: its supported fields.
        neutral: fields that are understood but not supported → the values at which they change nothing (null always does).
        spellings: other names → the field they mean. elsewhere: names that other endpoints have for our fields, to be told apart by name.
        nested: supported fields that are objects, or arrays of objects, themselves.
    """

    def __init__(
        self,
        struct: type[msgspec.Struct],
        *,
        neutral: Mapping[str, tuple[object, ...]] | None = None,
        spellings: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        nested: Mapping[str, Fields] | None = None,
    ) -> None:
        self._known = frozenset(struct.__struct_fields__)
        self._neutral = neutral or {}
        self._spellings = spellings or {}
        self._elsewhere = elsewhere or {}
        self._nested = nested or {}

    def clean(self, raw: bytes | msgspec.Raw, *, path: str = "") -> msgspec.Raw:
        """The object with supported fields only, under their own names.

        Raises:
            InvalidRequest: a field is unknown, unsupported, or given under two names.
        """
        kept: dict[str, msgspec.Raw] = {}
        for key, value in _fields_decoder.decode(raw).items():
            name = self._spellings.get(key, key)
            if name not in self._known:
                self._drop(key, value, path)
                continue
            if name in kept:
                raise InvalidRequest(f"`{path}{name}` is given in two spellings; send one of them", param=path + name)
            kept[name] = self._nested[name].clean_value(value, path=path + name) if name in self._nested else value
        return msgspec.Raw(_encoder.encode(kept))

    def clean_value(self, raw: msgspec.Raw, *, path: str) -> msgspec.Raw:
        """Cleans an object, or every object of an array; leaves anything else for the typed pass to judge."""
        first = bytes(memoryview(raw)[:1])
        if first == b"{":
            return self.clean(raw, path=f"{path}.")
        if first != b"[":
            return raw
        items = _items_decoder.decode(raw)
        if len(items) > MAX_ITEMS:
            raise InvalidRequest(f"`{path}` holds {len(items)} items: at most {MAX_ITEMS}", param=path)
        return msgspec.Raw(_encoder.encode([self.clean_value(item, path=f"{path}[{i}]") for i, item in enumerate(items)]))

    def _drop(self, key: str, value: msgspec.Raw, path: str) -> None:
        """Passes over a neutral value and refuses everything else."""
        shown = f"{path}{key[:_LONGEST_SHOWN]}"
        if key not in self._neutral:
            raise InvalidRequest(f"`{shown}` is not a known field{self._suggestion(key)}", param=shown)
        if not _is_neutral(value, self._neutral[key]):
            raise InvalidRequest(f"`{shown}` is not supported; leave it out{_or_send(self._neutral[key])}", param=shown)

    def _suggestion(self, key: str) -> str:
        if key in self._elsewhere:
            return f" here; it is `{self._elsewhere[key]}`"
        candidates = [*self._known, *self._spellings, *self._neutral]
        nearest = difflib.get_close_matches(key[:_LONGEST_SHOWN], sorted(candidates), n=1)
        return f"; did you mean `{nearest[0]}`?" if nearest else "; leave it out"


class Body(Generic[_T]):
    """Decodes a whole request body into one struct type, strictly."""

    def __init__(self, struct: type[_T], fields: Fields) -> None:
        self._decoder: msgspec.json.Decoder[_T] = msgspec.json.Decoder(struct)
        self._fields = fields

    def decode(self, data: bytes) -> _T:
        """The body as its struct.

        Raises:
            InvalidRequest: the body is not JSON, or a field is unknown, unsupported, of the wrong type or out of range.
        """
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError:
            pass  # told field by field below
        except msgspec.DecodeError as error:
            raise _no_json(error, data) from None
        except RecursionError:
            raise _nested_too_deeply() from None
        return self._decode_cleaned(data)

    def _decode_cleaned(self, data: bytes) -> _T:
        try:
            return self._decoder.decode(self._fields.clean(data))
        except msgspec.ValidationError as error:
            raise _named(str(error), data) from None
        except msgspec.DecodeError as error:
            raise _no_json(error, data) from None
        except RecursionError:
            raise _nested_too_deeply() from None


def _no_json(error: msgspec.DecodeError, data: bytes) -> InvalidRequest:
    """Half a surrogate pair is JSON to some writers, so its field is found with a reader that takes it."""
    path = _path_to_half_pair(data) if _SURROGATE_ESCAPE.search(data) else None
    if path is None:
        return InvalidRequest(f"the body is not valid JSON: {error}")
    return InvalidRequest(f"`{path}` holds half a surrogate pair, which is no character; send whole characters", param=path)


def _nested_too_deeply() -> InvalidRequest:
    return InvalidRequest("the body is nested too deeply; send plain objects and lists")


def _path_to_half_pair(data: bytes) -> str | None:
    try:
        return next(_half_pairs(json.loads(data), ""), None)
    except (ValueError, RecursionError):
        return None


def _half_pairs(value: object, path: str) -> Iterator[str]:
    """The path to each string in which a surrogate stands alone."""
    if isinstance(value, str) and _HALF_PAIR.search(value):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            shown = f"{path}.{key[:_LONGEST_SHOWN]}" if path else key[:_LONGEST_SHOWN]
            if _HALF_PAIR.search(key):
                yield path or "body"
            yield from _half_pairs(item, shown)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _half_pairs(item, f"{path}[{i}]")


def _is_neutral(raw: msgspec.Raw, allowed: tuple[object, ...]) -> bool:
    text = bytes(memoryview(raw))
    if len(text) > _LONGEST_NEUTRAL_BYTES:
        return False
    value = msgspec.json.decode(text)
    return value is None or any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed)


def _or_send(allowed: tuple[object, ...]) -> str:
    return f" or send {msgspec.json.encode(allowed[0]).decode()}" if allowed else ""


def _named(complaint: str, data: bytes) -> InvalidRequest:
    """Turns the decoder's complaint into ours: the field first, the value where it is a small scalar."""
    match = _COMPLAINT.match(complaint)
    what, path = (match["what"], match["path"]) if match else (complaint, None)
    what = _BOUND.sub(_bound_in_words, _QUOTED.sub("", what))
    if not path:
        return InvalidRequest(f"the body has the wrong shape: {_lower_first(what)}", param=_missing_field(what))
    return InvalidRequest(f"`{path}`{_shown_value(path, data)}: {_lower_first(what)}", param=path)


def _bound_in_words(match: re.Match[str]) -> str:
    return f"Expected {_BOUND_WORDS[match['sign']]} {match['bound'].removesuffix('.0')}"


def _missing_field(what: str) -> str | None:
    match = re.fullmatch(r"Object missing required field `(\w+)`", what)
    return match[1] if match else None


def _shown_value(path: str, data: bytes) -> str:
    """` is 3.5` when the field is a top-level number, boolean or null; strings are never repeated."""
    try:
        raw = _fields_decoder.decode(data).get(path)
    except (msgspec.DecodeError, RecursionError):
        return ""
    if raw is None or not _SCALAR.fullmatch(text := bytes(memoryview(raw))):
        return ""
    return f" is {text.decode()}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
