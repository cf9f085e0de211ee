"""What a worker has to say goes out, however large it is."""

from __future__ import annotations

import pytest

from halcyon.errors import WorkerFailure
from halcyon.wire import framing
from halcyon.wire.frames import Delta, Fatal, FromWorker, Iteration, SequenceFailed
from halcyon.wire.framing import FrameDecoder
from halcyon.worker.outbox import encoded


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of 1,000 bytes at most stand for those of 64 MiB."""
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 1000)


def iteration(*sizes: int) -> Iteration:
    """One iteration whose deltas have so many characters."""
    deltas = tuple(Delta(sequence_id=f"r/{i}", text="x" * size, output_tokens=size) for i, size in enumerate(sizes))
    return Iteration(
        number=4, started_ns=1, duration_ns=9, running=len(sizes), decode_tokens=5, prefill_tokens=2, batch_id=3, deltas=deltas
    )


def decoded(frame: FromWorker) -> list[FromWorker]:
    """What the daemon reads."""
    decoder: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)  # type: ignore[arg-type]  # a union of structs is a type to msgspec
    return decoder.feed(encoded(frame))


def test_what_fits_is_one_frame() -> None:
    """An ordinary iteration is itself."""
    assert decoded(iteration(10, 20)) == [iteration(10, 20)]


@pytest.mark.parametrize("sizes", [(600, 600), (300,) * 9, (700, 10, 700, 10, 700)])
def test_a_large_iteration_goes_in_several_frames(sizes: tuple[int, ...]) -> None:
    """Every delta arrives once and in order, and the iteration's duration and tokens are counted once."""
    frames = [frame for frame in decoded(iteration(*sizes)) if isinstance(frame, Iteration)]
    assert [delta for frame in frames for delta in frame.deltas] == list(iteration(*sizes).deltas)
    assert len(frames) > 1
    assert (sum(f.duration_ns for f in frames), sum(f.decode_tokens for f in frames), sum(f.prefill_tokens for f in frames)) == (9, 5, 2)
    assert {(f.number, f.batch_id) for f in frames} == {(4, 3)}


def test_a_delta_that_fits_nowhere_fails_its_sequence_alone() -> None:
    """The answers beside it arrive; its own request is told what to do; the worker lives."""
    frames = decoded(iteration(10, 5000, 20))
    failed = [frame for frame in frames if isinstance(frame, SequenceFailed)]
    arrived = [delta.sequence_id for frame in frames if isinstance(frame, Iteration) for delta in frame.deltas]
    assert [(f.sequence_id, f.code, f.retryable) for f in failed] == [("r/1", "payload_too_large", False)]
    assert arrived == ["r/0", "r/2"]


def test_what_has_no_parts_still_raises() -> None:
    """Only iterations are taken apart."""
    with pytest.raises(WorkerFailure):
        encoded(Fatal("x" * 2000))
