"""Stop strings: never a part of one leaves, everything before one does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halcyon.engine.stop import StopMatcher

SMALL_TEXT = st.text(alphabet="ab<|é🙂", max_size=40)


def feed(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str | None]:
    """What was released after each piece, and the match; ends with a flush when nothing matched."""
    matcher, released = StopMatcher(stops), []
    for piece in pieces:
        text, match = matcher.push(piece)
        released.append(text)
        if match is not None:
            return released, match
    return [*released, matcher.flush()], None


def test_a_stop_string_spread_over_pieces_is_never_emitted() -> None:
    """`<|end|>` that comes a character at a time leaves nothing behind, and the text before it all comes. (Streams: part of a stop string
    is sent before the match.)"""
    released, match = feed(("<|end|>",), ["Hello ", "<", "|", "e", "n", "d", "|", ">", "more"])
    assert (released, match) == (["Hello ", "", "", "", "", "", "", ""], "<|end|>")


def test_a_false_start_is_released_as_soon_as_it_is_one() -> None:
    """`<|e` held back for `<|end|>` is released with the character that contradicts it, and only what can still match stays."""
    released, match = feed(("<|end|>",), ["a<|e", "x<", "b"])
    assert (released, match) == (["a", "<|ex", "<b", ""], None)


def test_the_earliest_match_wins_and_of_two_there_the_longer() -> None:
    """Of several stop strings the one that begins first ends the answer; of two that begin together, the longer."""
    assert feed(("bc", "abcd", "abc"), ["xxabcd"]) == (["xx"], "abcd")
    assert feed(("late", "early"), ["early late"]) == ([""], "early")


@given(st.lists(st.text(alphabet="ab<|é🙂", min_size=1, max_size=5), min_size=1, max_size=4), st.lists(SMALL_TEXT, max_size=8))
def test_splitting_a_text_changes_nothing(stops: list[str], pieces: list[str]) -> None:
    """However a text is cut into pieces, what is released is the text up to the first match that any prefix of it shows, never more."""
    released, match = feed(tuple(stops), pieces)
    text = "".join(pieces)
    starts = [at for stop in stops if (at := text.find(stop)) >= 0]
    out = "".join(released)
    assert text.startswith(out)
    if match is None:
        assert not starts
        assert out == text
    else:
        assert text[len(out) :].startswith(match)
        assert not any(stop in out for stop in stops)


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3), SMALL_TEXT)
def test_what_is_released_can_no_longer_become_a_match(stops: list[str], text: str) -> None:
    """After each character, no stop string can begin inside what was released and end in what is still to come."""
    matcher, out = StopMatcher(tuple(stops)), ""
    for character in text:
        piece, match = matcher.push(character)
        out += piece
        if match is not None:
            return
        assert not any(out.endswith(stop[:size]) for stop in stops for size in range(1, len(stop)) if matcher._held == "")
