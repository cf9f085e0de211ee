"""Server-sent events from bytes cut anywhere."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from halcyon.cli.events import EventDecoder, ServerEvent

STREAM = ': waiting\n\nevent: part\ndata: {"text":"日本 😀\u2028\x0c"}\r\n\r\ndata: a\ndata:b\n\nid: 7\n\ndata: [DONE]\n\n'.encode()
EVENTS = [ServerEvent("part", '{"text":"日本 😀\u2028\x0c"}'), ServerEvent("message", "a\nb"), ServerEvent("message", "[DONE]")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    """Cut anywhere, also within a character (Streams: a multi-byte character split across chunks), the bytes give the same events."""
    decoder = EventDecoder()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [event for start, end in itertools.pairwise(edges) for event in decoder.feed(STREAM[start:end])]
    assert found == EVENTS


def test_an_unfinished_event_is_not_an_event() -> None:
    """A stream that is cut within an event does not yield its half."""
    assert EventDecoder().feed(b'data: {"text":"Hel\n') == []
