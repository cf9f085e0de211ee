"""The frames themselves: every kind survives the trip, and the numbers and bytes in them exactly."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.config.settings import ModelSettings, SimSettings
from halcyon.wire.frames import (
    PROTOCOL,
    Cancel,
    ChatMessage,
    Configure,
    Delta,
    Fatal,
    FromWorker,
    Heartbeat,
    Hello,
    Iteration,
    Ready,
    Sampling,
    Sequence,
    SequenceFailed,
    Stage,
    Stop,
    Submit,
    TokenLogprob,
    ToWorker,
)
from halcyon.wire.framing import FrameDecoder, encode_frame

LOGPROB = TokenLogprob(7, "\N{REPLACEMENT CHARACTER}", b"\xe4\xb8", -0.1234567890123456, ((7, "x", b"\xe4", -0.1), (8, "y", b"y", -2.5)))

TO_WORKER = [
    Configure(protocol=PROTOCOL, replica_id="m/v1/0", replica_index=3, model={"name": "m"}, cache_dir="/c", heartbeat_interval_ns=10**9),
    Submit(2**40, (Sequence(sequence_id="r/0", messages=(ChatMessage("user", "héllo 世界 🙂"),), deadline_ns=2**62),)),
    Submit(1, (Sequence(sequence_id="r/0", token_ids=(1, 2, 3), sampling=Sampling(temperature=0.0, seed=2**63, stop=("\n",))),)),
    Cancel(("r/0", "r/1")),
    Stop(),
]
FROM_WORKER = [
    Hello(pid=1, protocol=PROTOCOL),
    Stage("loading", "weights", 0.5),
    Ready(kind="continuous", max_batch=8, max_context=2048, kv_blocks_total=1024, kv_block_tokens=16, weights_bytes=2**35),
    Iteration(
        number=1,
        started_ns=2**60,
        duration_ns=18_022_000,
        running=1,
        deltas=(
            Delta(sequence_id="r/0", text="世", token_ids=(7,), logprobs=(LOGPROB,), prompt_tokens=3, output_tokens=1),
            Delta(sequence_id="r/1", output_tokens=9, finish_reason="stop", stop_reason="END"),
            Delta(sequence_id="r/2", output_tokens=9, finish_reason="stop", stop_reason=2),
        ),
    ),
    SequenceFailed(sequence_id="r/0", code="invalid_request", message="too long", param="input"),
    Heartbeat(sent_ns=1, engine_progress_ns=1),
    Fatal("out of memory"),
]


@pytest.mark.parametrize("frame", TO_WORKER, ids=lambda f: type(f).__name__)
def test_frames_to_the_worker_survive_the_trip(frame: ToWorker | FromWorker) -> None:
    """Every frame the daemon can send comes out equal."""
    decoder: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
    assert decoder.feed(encode_frame(frame)) == [frame]


@pytest.mark.parametrize("frame", FROM_WORKER, ids=lambda f: type(f).__name__)
def test_frames_from_the_worker_survive_the_trip(frame: ToWorker | FromWorker) -> None:
    """Every frame a worker can send comes out equal: floats bit for bit, bytes as bytes, a stop reason as string or number."""
    decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)
    assert decoder.feed(encode_frame(frame)) == [frame]


def test_every_frame_kind_is_covered() -> None:
    """No frame type is forgotten above."""
    assert {type(f) for f in TO_WORKER} == set(ToWorker.__args__)
    assert {type(f) for f in FROM_WORKER} == set(FromWorker.__args__)


@given(text=st.text(), ids=st.lists(st.integers(0, 2**31), max_size=20))
def test_any_text_survives(text: str, ids: list[int]) -> None:
    """Any Unicode text and any token ids come out as they went in (multi-byte characters are never cut)."""
    frame = Iteration(number=1, started_ns=0, duration_ns=1, running=1, deltas=(Delta(sequence_id="r/0", text=text, token_ids=tuple(ids)),))
    decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)
    assert decoder.feed(encode_frame(frame)) == [frame]


def test_model_settings_survive_as_plain_data() -> None:
    """The settings a worker reads back equal the daemon's, tuples and nested tables included."""
    model = ModelSettings(name="m", runtime="sim", sim=SimSettings(speed=(1.0, 0.6), fault="slow", fault_replicas=(1,)), memory_bytes=2**40)
    sent = msgspec.to_builtins(model)
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent))
    assert msgspec.convert(received, ModelSettings) == model


def test_an_idle_delta_is_small() -> None:
    """A plain token costs under 64 bytes on the wire: fields at their defaults are left out."""
    assert len(msgspec.msgpack.encode(Delta(sequence_id="0123456789abcdef/0", text=" word", output_tokens=100))) < 64
