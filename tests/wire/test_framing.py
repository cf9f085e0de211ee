"""The frame codec: any cut of the stream gives the same messages, and nothing broken passes or hangs."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.errors import WorkerFailure
from halcyon.wire.frames import PROTOCOL, Cancel, Configure, FromWorker, Heartbeat, Hello, Sequence, Stage, Stop, Submit, ToWorker
from halcyon.wire.framing import MAX_FRAME_BYTES, FrameDecoder, encode_frame

PREFIX_BYTES = 4

messages_from_worker = st.lists(
    st.one_of(
        st.builds(Hello, pid=st.integers(1, 2**31), protocol=st.integers(0, 9)),
        st.builds(Stage, stage=st.sampled_from(["preparing", "loading", "warming"]), detail=st.text(max_size=40)),
        st.builds(Heartbeat, sent_ns=st.integers(0, 2**63 - 1), engine_progress_ns=st.integers(0, 2**63 - 1)),
    ),
    max_size=8,
)


def framed(body: bytes) -> bytes:
    """A body with its length before it."""
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def from_worker() -> FrameDecoder[FromWorker]:
    """What the daemon reads a worker with."""
    return FrameDecoder(FromWorker)


@given(messages=messages_from_worker, cuts=st.lists(st.integers(0, 600), max_size=30))
def test_any_cut_gives_the_same_messages(messages: list[FromWorker], cuts: list[int]) -> None:
    """However the stream is cut, the messages come out whole, in order, once, and nothing stays behind."""
    stream = b"".join(map(encode_frame, messages))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = from_worker()
    received = [m for start, end in itertools.pairwise(edges) for m in decoder.feed(stream[start:end])]
    assert received == messages
    assert decoder.pending_bytes == 0


def test_byte_by_byte_gives_each_message_at_its_last_byte() -> None:
    """A message is complete at its last byte, not before and not later."""
    frame = encode_frame(Cancel(("a/0", "b/1")))
    decoder: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
    assert [decoder.feed(frame[i : i + 1]) for i in range(len(frame) - 1)] == [[]] * (len(frame) - 1)
    assert decoder.pending_bytes == len(frame) - 1
    assert decoder.feed(frame[-1:]) == [Cancel(("a/0", "b/1"))]


@given(garbage=st.binary(min_size=PREFIX_BYTES, max_size=400))
def test_garbage_either_waits_for_more_or_is_refused(garbage: bytes) -> None:
    """Garbage is refused as a WorkerFailure or taken as the start of a longer frame; no other exception, no endless loop."""
    decoder = from_worker()
    try:
        received = decoder.feed(garbage)
    except WorkerFailure:
        return
    assert len(received) * PREFIX_BYTES <= len(garbage)
    assert decoder.pending_bytes <= len(garbage)


@given(body=st.binary(max_size=200))
def test_a_whole_frame_of_garbage_is_refused(body: bytes) -> None:
    """A complete frame that is no known message is a WorkerFailure (random bytes never spell a tagged message)."""
    with pytest.raises(WorkerFailure, match="not a known message"):
        from_worker().feed(framed(body))


def test_an_over_long_prefix_is_refused_at_its_fourth_byte() -> None:
    """A frame over the limit is refused from its prefix alone, before any of its body is buffered."""
    decoder = from_worker()
    prefix = (MAX_FRAME_BYTES + 1).to_bytes(PREFIX_BYTES, "big")
    assert decoder.feed(prefix[:3]) == []
    with pytest.raises(WorkerFailure, match=str(MAX_FRAME_BYTES)):
        decoder.feed(prefix[3:])


def test_a_broken_stream_stays_broken() -> None:
    """After one bad frame every further call raises: a good frame behind it must not be believed."""
    decoder = from_worker()
    with pytest.raises(WorkerFailure):
        decoder.feed(framed(b"\xc1"))
    with pytest.raises(WorkerFailure, match="earlier"):
        decoder.feed(encode_frame(Hello(pid=1, protocol=PROTOCOL)))
    assert decoder.pending_bytes == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        msgspec.msgpack.encode({"type": "stage", "stage": "sleeping"}),
        msgspec.msgpack.encode({"type": "nonsense"}),
        msgspec.msgpack.encode(Stop()),
        msgspec.msgpack.encode(Hello(pid=1, protocol=1)) + b"\x00",
        b"\x82\xa4type\xa5hello\xa3pid",
        b"\x83\xa4type\xa5stage\xa5stage\xa7loading\xa6detail\xa2\xff\xfe",
        b"\x83\xa4type\xa5stage\xa5stage\xa7loading\xa1x" + b"\x91" * 100_000 + b"\xc0",
    ],
    ids=["empty", "bad value", "unknown tag", "wrong direction", "trailing byte", "cut body", "not UTF-8", "deep nesting"],
)
def test_each_kind_of_broken_frame_is_refused(body: bytes) -> None:
    """Every way in which a frame can be wrong ends in one error, that of a broken worker."""
    with pytest.raises(WorkerFailure, match="not a known message"):
        from_worker().feed(framed(body))


def test_a_frame_over_the_limit_cannot_be_written() -> None:
    """The sender refuses what every receiver would refuse."""
    with pytest.raises(WorkerFailure, match="Stage frame"):
        encode_frame(Stage("loading", detail="x" * MAX_FRAME_BYTES))


def test_half_a_surrogate_pair_is_refused_without_its_text() -> None:
    """A string that is no Unicode text is the sender's error, and the message does not quote it."""
    broken = Submit(1, (Sequence(sequence_id="a/0", text="secret \ud800"),))
    with pytest.raises(WorkerFailure, match="Submit frame") as raised:
        encode_frame(broken)
    assert "secret" not in raised.value.message


def test_a_number_over_64_bits_is_refused() -> None:
    """A seed that does not fit the wire is an error of its sender, not of the stream."""
    with pytest.raises(WorkerFailure, match="64 bits"):
        encode_frame(Submit(2**64, ()))


def test_configure_carries_plain_data_unchanged() -> None:
    """The model's settings arrive as the plain data that was sent."""
    configure = Configure(
        protocol=PROTOCOL,
        replica_id="m/v1/0",
        replica_index=0,
        model={"name": "m", "sim": {"speed": [1.0, 0.6]}, "threads": 0},
        cache_dir="/c",
        heartbeat_interval_ns=1,
    )
    decoder: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
    assert decoder.feed(encode_frame(configure)) == [configure]
