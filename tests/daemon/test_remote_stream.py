"""A server's stream read back: cut anywhere, worded oddly, hostile."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.daemon.remote_stream import MAX_EVENT_BYTES, AnswerStream, StreamBroken, error_class
from halcyon.wire.frames import Delta

WORDS = ["Grüße ", "日本", "語 ", "\N{GRINNING FACE}\N{ZERO WIDTH JOINER}\N{FIRE}"]
DONE = b"data: [DONE]"


def event(**chunk: object) -> bytes:
    """One event, without the empty line that ends it."""
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode()


def piece(text: str, finish: str | None = None) -> bytes:
    """One piece of text."""
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}])


def usage(**counts: object) -> bytes:
    """The event with the counts."""
    return event(choices=[], usage=counts)


def read(data: bytes, cuts: list[int] | None = None) -> list[Delta]:
    """All deltas of a stream that comes in these pieces and then ends."""
    stream, deltas, places = AnswerStream("s/0"), [], [0, *sorted(cuts or []), len(data)]
    for start, end in itertools.pairwise(places):
        deltas += stream.feed(data[start:end])
    return deltas + stream.end()


WELL = [*(piece(word) for word in WORDS), piece("", "stop"), usage(prompt_tokens=7, completion_tokens=9), DONE]


@given(cuts=st.lists(st.integers(0, 600), max_size=40), newline=st.sampled_from([b"\n", b"\r\n"]), comments=st.booleans())
def test_a_stream_cut_anywhere_is_the_same_stream(cuts: list[int], newline: bytes, comments: bool) -> None:
    """However the bytes are cut, with either end of line and with comments between, no character is lost (Streams: a multi-byte character
    is split across chunks)."""
    between = newline * 2 + (b": waiting" + newline * 2 if comments else b"")
    data = between.join(WELL) + newline * 2
    deltas = read(data, [min(cut, len(data)) for cut in cuts])
    assert "".join(delta.text for delta in deltas) == "".join(WORDS)
    assert (deltas[-1].finish_reason, deltas[-1].prompt_tokens, deltas[-1].output_tokens) == ("stop", 7, 9)


@pytest.mark.parametrize(
    "counts",
    [
        {"completion_tokens": -5},
        {"prompt_tokens": 2**31},
        {"completion_tokens": 10**30},
        {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": -1}},
        {"prompt_tokens": "many"},
    ],
)
def test_counts_that_cannot_be_are_a_broken_stream(counts: dict[str, object]) -> None:
    """A count below zero or over 31 bits never reaches a counter, a frame or a row."""
    with pytest.raises(StreamBroken):
        read(b"\n\n".join([piece("a", "stop"), usage(**counts), DONE, b""]))


@pytest.mark.parametrize("counts", [{}, {"prompt_tokens": None, "completion_tokens": None}, {"prompt_tokens_details": None}])
def test_counts_that_are_missing_are_our_own(counts: dict[str, object]) -> None:
    """A server that knows no counts still ends well: each piece was counted as a token."""
    last = read(b"\n\n".join([piece("a"), piece("b", "length"), usage(**counts), DONE, b""]))[-1]
    assert (last.finish_reason, last.output_tokens, last.prompt_tokens) == ("length", 2, 0)


@pytest.mark.parametrize(
    "broken",
    [
        b"data: {",
        b"data: []",
        b"data: null",
        b"data: " + b'{"choices":' * 100_000,
        b'data: {"choices":[{"text":"\\ud800 and on"}]}',
        b'data: {"choices":[{"text":"\xff\xfe"}]}',
        b'data: {"choices":[{"text":"a","stop_reason":1' + b"0" * 30 + b"}]}",
        b'data: {"choices":[{"text":"a","finish_reason":"abort"}]}',
        b'data: {"error":"no"}',
        b'data: {"error":{"type":"server_error","message":"words"}}',
        b"data: " + b"x" * (MAX_EVENT_BYTES + 1),
        (b"data: " + b"x" * 4000 + b"\n") * (MAX_EVENT_BYTES // 4000 + 1),
    ],
    ids=lambda data: data[:40].decode("latin1"),
)
def test_what_is_no_answer_is_said_to_be_so(broken: bytes) -> None:
    """Garbage, depth, half characters, numbers over 64 bits, endless events of one line or of many: each is StreamBroken, so one request's
    failure and never the line's (Streams: one bad chunk)."""
    with pytest.raises(StreamBroken):
        read(broken + b"\n\n")


def test_what_came_before_a_break_is_passed_on() -> None:
    """Two good pieces and a broken one in the same bytes: both pieces come, then the break."""
    deltas = AnswerStream("s/0").feed(piece("a") + b"\n\n" + piece("b") + b"\n\ndata: {\n\n")
    assert [next(deltas).text, next(deltas).text] == ["a", "b"]
    with pytest.raises(StreamBroken):
        next(deltas)


def test_an_answer_without_its_end_is_broken() -> None:
    """Text without a `finish_reason` is not an answer, `[DONE]` or not (Streams: the upstream stream is cut)."""
    for end in (b"", DONE + b"\n\n"):
        with pytest.raises(StreamBroken, match="middle"):
            read(piece("a") + b"\n\n" + end)


def test_a_large_event_in_small_pieces_is_read_in_linear_time() -> None:
    """An event of 4 MiB that comes in 64 Ki pieces is searched once, not once a piece: what is held is never split again."""
    stream, data = AnswerStream("s/0"), piece("x" * 4 * 1024 * 1024, "stop") + b"\n\n"
    deltas = [delta for start in range(0, len(data), 64) for delta in stream.feed(data[start : start + 64])]
    assert len(deltas[0].text) == 4 * 1024 * 1024


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"error":' * 50_000, b'{"error":{"type":"two words"}}', b'{"error":null}'])
def test_an_error_body_may_be_anything(body: bytes) -> None:
    """Where a server's error has no plain class it has none."""
    assert error_class(body) == ""
