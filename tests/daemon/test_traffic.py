"""Frames of replicas against a real core: what is late, unknown, partial or too large ends in the right place."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from halcyon.core.actions import Action, Cancel, Dispatch, Fail, Refuse
from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.events import ClientGone, ReplicaAdded, ReplicaReady, RequestArrived
from halcyon.core.request import Request
from halcyon.core.rollout.versions import ModelVersions
from halcyon.daemon.generation import GenerationPorts, LiveGeneration
from halcyon.daemon.loop import ControlLoop
from halcyon.daemon.traffic import LiveRequest, Traffic
from halcyon.errors import InvalidRequest, PayloadTooLarge, WorkerFailure
from halcyon.wire import frames
from halcyon.wire.frames import Delta, Iteration, SequenceFailed, Submit, ToWorker
from halcyon.wire.inference import InferenceCall
from halcyon.worker.link import WorkerBusy


@dataclass
class Line:
    """A link that keeps what it is sent. most_sequences: a frame with more is too large. full: it takes no work now."""

    most_sequences: int = 100
    full: bool = False
    sent: list[ToWorker] = field(default_factory=list)

    def send(self, frame: ToWorker) -> None:
        """Keeps it."""
        if isinstance(frame, Submit) and len(frame.sequences) > self.most_sequences:
            raise WorkerFailure("too large")
        if isinstance(frame, Submit) and self.full:
            raise WorkerBusy("too much")
        self.sent.append(frame)

    def stop(self) -> None:
        """Nothing to stop."""

    terminate = kill = stop

    async def wait_gone(self) -> None:
        """It is gone."""

    def submitted(self) -> list[str]:
        """Sequence ids of every Submit, in order."""
        return [sequence.sequence_id for frame in self.sent if isinstance(frame, Submit) for sequence in frame.sequences]

    def cancelled(self) -> list[str]:
        """Sequence ids of every Cancel, in order."""
        return [sequence_id for frame in self.sent if isinstance(frame, frames.Cancel) for sequence_id in frame.sequence_ids]


class Story:
    """Two replicas `a` and `b`, one request at a time, all on a clock that stands at 1 s."""

    def __init__(self, *, replicas: str = "ab", most_sequences: int = 100) -> None:
        core = ControlPlane(ControlSettings(models=(ModelVersions("m", ("v1",)),)), rng=random.Random(3))
        self.lines = {name: Line(most_sequences) for name in replicas}
        self.loop = ControlLoop(core, carry_out=self._carry_out, on_broken=lambda error: None, read_clock=lambda: 10**9)
        self.traffic = Traffic(handle=self.loop.handle, link_to=self.lines.get, now=self.loop.now)
        for name in replicas:
            self.loop.handle(ReplicaAdded(replica_id=name, model="m", version="v1", kind="continuous", max_batch=8))
            self.loop.handle(ReplicaReady(replica_id=name, kind="continuous", max_batch=8))

    def _carry_out(self, action: Action, now: int) -> None:
        match action:
            case Dispatch():
                self.traffic.dispatch(action, now)
            case Refuse() | Fail():
                self.traffic.refuse(action, now)
            case Cancel():
                self.traffic.cancel(action)
            case _:
                pass

    def open(self, request_id: str = "r", *, n: int = 1, stream: bool = False) -> LiveGeneration:
        """A request that arrives now."""
        ports = GenerationPorts(on_sent=lambda _: None, on_gone=lambda _: None, on_end=lambda g: self.traffic.forget(g.request_id))
        generation = LiveGeneration(
            request_id, model="m", version="v1", arrived_ns=0, answers=n, stream=stream, buffer_tokens=99, ports=ports
        )
        request = Request(request_id=request_id, model="m", version="v1", arrived_ns=0, prompt_tokens=1, sequences=n)
        self.traffic.admit(LiveRequest(request=request, call=InferenceCall(model="m", text="t", n=n), generation=generation))
        self.loop.handle(RequestArrived(request))
        return generation

    def home(self, request_id: str = "r") -> str:
        """The replica that was sent the request last."""
        return next(name for name, line in self.lines.items() if any(s.startswith(request_id) for s in line.submitted()))

    def outstanding(self) -> int:
        """Sequences the core thinks are running."""
        return sum(self.loop.core.outstanding().values())


def iteration(*deltas: Delta) -> Iteration:
    """One iteration that brought these."""
    return Iteration(number=1, started_ns=0, duration_ns=1, running=1, deltas=deltas)


async def test_a_late_frame_of_a_failed_attempt_cannot_reach_the_next() -> None:
    """A request whose first attempt failed runs elsewhere under other sequence ids: tokens that the first replica still sends are cancelled
    there and seen by nobody."""
    story = Story()
    generation = story.open()
    first = story.home()
    (old_id,) = story.lines[first].submitted()
    failed = SequenceFailed(sequence_id=old_id, code="upstream_failure", message="m", retryable=True)
    story.traffic.sequence_failed(first, failed)
    second = next(name for name in "ab" if name != first)
    (new_id,) = story.lines[second].submitted()
    assert (old_id, new_id) == ("r/0", "r~2/0")
    story.traffic.iteration(first, iteration(Delta(sequence_id=old_id, text="ghost", output_tokens=1)))
    story.traffic.iteration(second, iteration(Delta(sequence_id=new_id, text="real", output_tokens=1, finish_reason="stop")))
    (parts,) = [step async for step in generation]
    assert [part.text for part in parts] == ["real"]
    assert story.lines[first].cancelled() == [old_id]
    assert story.outstanding() == 0


async def test_one_failed_answer_of_three_ends_them_all_there() -> None:
    """When one of n = 3 sequences fails for good, the other two are cancelled, their slots are free, and the error names the field."""
    story = Story(replicas="a")
    generation = story.open(n=3)
    failed = SequenceFailed(sequence_id="r/1", code="invalid_request", message="too long", param="prompt")
    story.traffic.sequence_failed("a", failed)
    with pytest.raises(InvalidRequest) as raised:
        await anext(generation)
    assert raised.value.param == "prompt"
    assert story.lines["a"].cancelled() == ["r/0", "r/2"]
    assert (story.outstanding(), story.traffic.running()) == (0, 0)


async def test_a_batch_that_is_too_large_for_a_frame_goes_in_pieces() -> None:
    """A request that fits goes alone; one that does not fit alone is refused as too large, and its slots are free."""
    story = Story(replicas="a", most_sequences=2)
    fits, too_large = story.open("fits", n=2), story.open("large", n=3)
    assert story.lines["a"].submitted() == ["fits/0", "fits/1"]
    assert fits.outcome == ""
    assert isinstance(too_large.error, PayloadTooLarge)
    assert story.outstanding() == 2


async def test_a_replica_with_too_much_to_read_is_busy_and_not_lost() -> None:
    """A request that finds no room before one replica goes to the other; where there is no other it waits, alive. (Fault: backpressure is
    counted as a fault.)"""
    story = Story()
    story.lines["a"].full = True
    for number in range(4):
        story.open(f"r{number}")
    assert (story.lines["a"].submitted(), len(story.lines["b"].submitted())) == ([], 4)
    alone = Story(replicas="a")
    alone.lines["a"].full = True
    waiting = alone.open()
    assert (waiting.outcome, alone.outstanding(), sum(alone.loop.core.queued().values())) == ("", 0, 1)


async def test_slots_stay_counted_until_the_replica_gives_them_back() -> None:
    """A client that left is cancelled at its replica; its slot is free only with the last delta. (Fault: in-flight counters drift.)"""
    story = Story(replicas="a")
    story.open()
    story.loop.handle(ClientGone("r"))
    assert (story.lines["a"].cancelled(), story.outstanding()) == (["r/0"], 1)
    story.traffic.iteration("a", iteration(Delta(sequence_id="r/0", finish_reason="cancelled")))
    assert story.outstanding() == 0
