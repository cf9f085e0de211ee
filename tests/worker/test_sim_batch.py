"""The simulated batch device, driven with `now`."""

from __future__ import annotations

from worker_rig import Answers, sequence, sim_model, submit

from halcyon.config.settings import SimSettings
from halcyon.core.simulated_answer import SimulatedAnswer
from halcyon.wire.frames import Cancel
from halcyon.worker.sim_engine import SimulatedEngine
from halcyon.worker.sim_fault import FaultPlan
from halcyon.worker.sim_runtime import build_engine

LAW = SimSettings(mode="batch", overhead_ms=18.0, per_token_ms=0.022)


def batch_engine() -> SimulatedEngine:
    """One batch device of that law."""
    return build_engine(sim_model(LAW), FaultPlan(LAW, replica_index=0), replica_index=0)


def test_a_batch_costs_all_its_tokens_and_ends_as_one() -> None:
    """Two prompts of 10 tokens and answers of 20 and 30: 18 + 0.022·70 ms, and both answers whole in one frame."""
    engine = batch_engine()
    engine.submit(submit(sequence("a/0", text="x" * 40, tokens=20), sequence("b/0", text="y" * 40, tokens=30), batch_id=9), now=100)
    assert engine.begin(now=100) == 100 + 19_540_000
    frame = engine.finish()
    answers = Answers()
    answers.add(frame)
    assert (frame.batch_id, frame.running, frame.prefill_tokens, frame.decode_tokens) == (9, 2, 20, 50)
    assert answers.texts["b/0"] == SimulatedAnswer(b"y" * 40, version="v1").text(30)
    assert [d.finish_reason for d in frame.deltas] == ["length", "length"]
    assert engine.begin(now=frame.duration_ns) is None


def test_batches_run_one_after_another_in_order() -> None:
    """Three submits are three batches; one runs, two wait."""
    engine = batch_engine()
    for batch_id in (1, 2, 3):
        engine.submit(submit(sequence(f"r{batch_id}/0"), batch_id=batch_id), now=0)
    order = []
    now = 0
    while (end := engine.begin(now=now)) is not None:
        now = end
        order.append((engine.stats().running, engine.stats().waiting))
        order.append(engine.finish().batch_id)
    assert order == [(1, 2), 1, (1, 1), 2, (1, 0), 3]


def test_a_cancel_ends_with_the_batch_and_gives_no_text() -> None:
    """A sequence cancelled while its batch runs, and one cancelled before, end as cancelled; the third is served."""
    engine = batch_engine()
    engine.submit(submit(sequence("a/0"), sequence("b/0"), sequence("c/0")), now=0)
    engine.cancel(Cancel(("a/0",)))
    engine.begin(now=0)
    engine.cancel(Cancel(("b/0",)))
    frame = engine.finish()
    assert {d.sequence_id: (d.finish_reason, bool(d.text)) for d in frame.deltas} == {
        "a/0": ("cancelled", False),
        "b/0": ("cancelled", False),
        "c/0": ("length", True),
    }
    assert frame.running == 2
    assert engine.stats().running == 0


def test_a_wholly_cancelled_batch_costs_no_time() -> None:
    """Nothing is left to compute: the batch ends where it begins."""
    engine = batch_engine()
    engine.submit(submit(sequence("a/0")), now=0)
    engine.cancel(Cancel(("a/0",)))
    assert engine.begin(now=50) == 50
    assert engine.finish().deltas[0].finish_reason == "cancelled"


def test_a_refused_sequence_does_not_hold_up_its_batch() -> None:
    """A prompt over the context fails at once; the others of its `Submit` run."""
    engine = batch_engine()
    failures = engine.submit(submit(sequence("long/0", text="q" * 2000), sequence("a/0")), now=0)
    assert [f.sequence_id for f in failures] == ["long/0"]
    engine.begin(now=0)
    assert [d.sequence_id for d in engine.finish().deltas] == ["a/0"]
