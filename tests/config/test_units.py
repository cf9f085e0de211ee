"""Sizes mean what their units say."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halcyon.config.units import SIZE_UNITS, format_size, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4 GiB", 4 * 1024**3),
        ("4GiB", 4 * 1024**3),
        ("1.5 GB", 1_500_000_000),
        ("98 MB", 98_000_000),
        ("512 kib", 524_288),
        ("0.5 KiB", 512),
        ("7 B", 7),
        ("  1 KB ", 1000),
    ],
)
def test_sizes_people_write(text: str, size_bytes: int) -> None:
    """KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024, in any case, with one space or none."""
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "4", "GiB", "4  GiB", "-1 GiB", "4 TiBs", "4,5 GiB", "1e3 MB", "4 G", "٤ GiB", "4 GiB\n5", ".5 GiB"])
def test_what_is_no_size(text: str) -> None:
    """Anything else is refused with what was expected, rather than guessed at."""
    with pytest.raises(ValueError, match="a size such as"):
        parse_size_bytes(text)


@settings(deadline=None)
@given(whole=st.integers(0, 10**9), thousandths=st.integers(0, 999), unit=st.sampled_from(sorted(SIZE_UNITS)))
def test_parsing_is_exact(whole: int, thousandths: int, unit: str) -> None:
    """Up to three decimals of any unit come out as the exact number of bytes, rounded down: no float is in between."""
    exact = Fraction(whole * 1000 + thousandths, 1000) * SIZE_UNITS[unit]
    assert parse_size_bytes(f"{whole}.{thousandths:03d} {unit}") == int(exact)


@settings(deadline=None)
@given(text=st.text(alphabet="0123456789. KMGiBb\n٤", max_size=12))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    """The parser gives a size that is not negative, or ValueError, and nothing else."""
    try:
        size_bytes = parse_size_bytes(text)
    except ValueError:
        return
    assert size_bytes >= 0


@settings(deadline=None)
@given(size_bytes=st.integers(0, 2**50))
def test_shown_sizes_read_back_near(size_bytes: int) -> None:
    """A size as shown to people parses to within a tenth of its unit of the original."""
    shown = format_size(size_bytes)
    assert abs(parse_size_bytes(shown) - size_bytes) <= SIZE_UNITS[shown.split()[1]] * 0.1
