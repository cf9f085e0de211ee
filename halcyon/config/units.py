"""Sizes as people write them: `"4 GiB"`, `"98 MB"`, `4294967296`."""

from __future__ import annotations

import re
from decimal import Decimal

SIZE_UNITS = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
"""Bytes in each unit. KB, MB, GB are powers of 1000; KiB, MiB, GiB are powers of 1024."""

SIZE_EXPECTED = 'a size such as "4 GiB" (units KB, MB, GB, KiB, MiB, GiB) or a number of bytes'

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,3})\Z")
_BY_LOWER_NAME = {name.lower(): size_bytes for name, size_bytes in SIZE_UNITS.items()}


def parse_size_bytes(text: str) -> int:
    """Bytes in `text`: a decimal number, at most one space, a unit in any case. Parts of a byte are dropped.

    Raises:
        ValueError: `text` is not a size; the message says what was expected.
    """
    match = _SIZE.match(text.strip())
    unit_bytes = _BY_LOWER_NAME.get(match.group(2).lower()) if match else None
    if match is None or unit_bytes is None:
        raise ValueError(SIZE_EXPECTED)
    return int(Decimal(match.group(1)) * unit_bytes)


def format_size(size_bytes: int) -> str:
    """`size_bytes` in the largest binary unit that leaves a number of at least 1, with one decimal where it is not whole."""
    for unit in ("GiB", "MiB", "KiB"):
        amount = size_bytes / SIZE_UNITS[unit]
        if amount >= 1:
            return f"{amount:.0f} {unit}" if amount == int(amount) else f"{amount:.1f} {unit}"
    return f"{size_bytes} B"
