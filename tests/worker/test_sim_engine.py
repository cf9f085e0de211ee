"""The simulated continuous engine, driven with `now`: exact durations, the shared policy, blocks that return to zero."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_rig import Answers, sequence, sim_model, submit

from halcyon.clock import NS_PER_MS
from halcyon.config.settings import ModelSettings, SimSettings
from halcyon.core.simulated_answer import SimulatedAnswer
from halcyon.wire.frames import Cancel, Iteration
from halcyon.worker.sim_engine import SimulatedEngine
from halcyon.worker.sim_fault import FaultPlan
from halcyon.worker.sim_runtime import build_engine

LAW = SimSettings(overhead_ms=18.0, per_token_ms=0.022)
PROMPT = "x" * 400  # 100 tokens


def engine_of(model: ModelSettings, *, replica_index: int = 0) -> SimulatedEngine:
    """The engine that the worker would run."""
    return build_engine(model, FaultPlan(model.sim, replica_index=replica_index), replica_index=replica_index)


def run(engine: SimulatedEngine, *, now: int = 0, before: Callable[[int], None] = lambda _: None) -> tuple[list[Iteration], Answers]:
    """Runs until there is nothing to do. `before(k)` is called while iteration k (from 1) runs."""
    iterations: list[Iteration] = []
    answers = Answers()
    while (end := engine.begin(now=now)) is not None:
        before(len(iterations) + 1)
        iterations.append(engine.finish())
        answers.add(iterations[-1])
        now = end
        assert len(iterations) < 10_000, "the engine does not come to an end"
    return iterations, answers


def test_durations_follow_the_law() -> None:
    """One request of 100 prompt tokens: prefill 18 + 0.022·100 ms, then one decode token each 18.022 ms, end to end."""
    engine = engine_of(sim_model(LAW))
    engine.submit(submit(sequence("r/0", text=PROMPT, tokens=3)), now=0)
    iterations, _ = run(engine)
    assert [i.duration_ns for i in iterations] == [20_200_000, 18_022_000, 18_022_000]
    assert [i.started_ns for i in iterations] == [0, 20_200_000, 38_222_000]
    assert [(i.prefill_tokens, i.decode_tokens) for i in iterations] == [(100, 0), (0, 1), (0, 1)]
    assert [i.number for i in iterations] == [1, 2, 3]


@pytest.mark.parametrize(("replica_index", "duration_ns"), [(0, 18 * NS_PER_MS), (1, 30 * NS_PER_MS), (5, 30 * NS_PER_MS)])
def test_each_replica_has_its_speed(replica_index: int, duration_ns: int) -> None:
    """Speed 0.6 makes 18 ms 30 ms; the last speed serves the rest."""
    engine = engine_of(sim_model(SimSettings(overhead_ms=18.0, per_token_ms=0.0, speed=(1.0, 0.6))), replica_index=replica_index)
    engine.submit(submit(sequence("r/0", tokens=1)), now=0)
    assert run(engine)[0][0].duration_ns == duration_ns


def test_jitter_is_seeded_and_bounded() -> None:
    """Jitter 0.2 stays within ±20 %, differs between replicas, and is the same in every run."""

    def durations(replica_index: int) -> list[int]:
        engine = engine_of(sim_model(SimSettings(overhead_ms=10.0, per_token_ms=0.0, jitter=0.2)), replica_index=replica_index)
        engine.submit(submit(sequence("r/0", tokens=50)), now=0)
        return [i.duration_ns for i in run(engine)[0]]

    assert durations(0) == durations(0) != durations(1)
    assert all(8 * NS_PER_MS <= d <= 12 * NS_PER_MS for d in durations(0))
    assert len(set(durations(0))) == 50


def test_a_slow_fault_multiplies_durations_from_its_instant_on() -> None:
    """`slow` after one served sequence, factor 10: 10 ms before, 100 ms after."""
    model = sim_model(SimSettings(overhead_ms=10.0, per_token_ms=0.0, fault="slow", fault_after=1, fault_factor=10.0))
    engine = engine_of(model)
    engine.submit(submit(sequence("r/0", tokens=2)), now=0)
    assert {i.duration_ns for i in run(engine)[0]} == {10 * NS_PER_MS}
    engine.submit(submit(sequence("r/1", tokens=2)), now=0)
    assert {i.duration_ns for i in run(engine)[0]} == {100 * NS_PER_MS}


def test_prompts_are_chunked_by_the_shared_policy() -> None:
    """A prompt of 100 tokens with chunks of 64 takes two iterations beside a running decode, and its first token comes with the second."""
    engine = engine_of(sim_model(LAW, prefill_chunk=64))
    engine.submit(submit(sequence("short/0", text="x" * 4, tokens=4)), now=0)
    iterations: list[Iteration] = []
    now = engine.begin(now=0)
    iterations.append(engine.finish())
    engine.submit(submit(sequence("long/0", text=PROMPT, tokens=1)), now=now)
    rest, answers = run(engine, now=now)
    assert [(i.prefill_tokens, i.decode_tokens) for i in rest] == [(64, 1), (36, 1), (0, 1)]
    assert answers.endings == ["long/0", "short/0"]


def test_no_more_than_max_batch_run_at_once() -> None:
    """20 sequences on 8 slots: never more than 8 in an iteration, all served, in order of arrival."""
    engine = engine_of(sim_model(LAW))
    ids = [f"r{i}/0" for i in range(20)]
    engine.submit(submit(*(sequence(i) for i in ids)), now=0)
    iterations, answers = run(engine)
    assert max(i.running for i in iterations) == 8
    assert iterations[0].waiting == 12
    assert answers.endings == ids


def test_blocks_are_held_while_running_and_return_to_zero() -> None:
    """100 prompt tokens and 14 of 16 answered take ceil(114/16) blocks of 16; at the end none is held."""
    engine = engine_of(sim_model(LAW))
    engine.submit(submit(sequence("r/0", text=PROMPT, tokens=16)), now=0)
    iterations, _ = run(engine)
    total = engine.ready().kv_blocks_total
    assert total == 8 * 256 // 16
    assert [i.kv_blocks_used for i in iterations] == [-(-(100 + k) // 16) for k in range(1, 16)] + [0]
    assert all(i.kv_blocks_used + i.kv_blocks_free == total for i in iterations)


@given(
    prompts=st.lists(st.integers(1, 900), min_size=1, max_size=24),
    cancels=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 23)), max_size=24),
    chunk=st.sampled_from([0, 1, 7, 64]),
)
def test_a_storm_of_cancels_leaves_nothing(prompts: list[int], cancels: list[tuple[int, int]], chunk: int) -> None:
    """200 clients leave at random instants: every sequence ends exactly once, and slots, queue and KV blocks return to zero."""
    engine = engine_of(sim_model(LAW, prefill_chunk=chunk))
    ids = [f"r{i}/0" for i in range(len(prompts))]
    engine.submit(submit(*(sequence(i, text="y" * size, tokens=5) for i, size in zip(ids, prompts, strict=True))), now=0)

    def cancel(number: int) -> None:
        engine.cancel(Cancel(tuple(f"r{who}/0" for when, who in cancels if when == number)))

    iterations, answers = run(engine, before=cancel)
    stats = engine.stats()
    assert sorted(answers.endings) == sorted(ids)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert stats.kv_blocks_free == engine.ready().kv_blocks_total
    assert iterations[-1].kv_blocks_used == 0


@pytest.mark.parametrize(
    ("during", "tokens_seen"), [(1, 0), (2, 0), (5, 3)], ids=["in its first prefill", "in a later prefill", "in decode"]
)
def test_a_cancel_takes_effect_within_one_iteration(during: int, tokens_seen: int) -> None:
    """The client leaves and the GPU works on: in prefill and in decode the sequence ends with the very iteration that runs."""
    engine = engine_of(sim_model(LAW, prefill_chunk=64))
    engine.submit(submit(sequence("r/0", text=PROMPT, tokens=50)), now=0)
    iterations, answers = run(engine, before=lambda k: engine.cancel(Cancel(("r/0", "unknown/0"))) if k == during else None)
    assert len(iterations) == during
    assert answers.last["r/0"].finish_reason == "cancelled"
    assert answers.last["r/0"].output_tokens == tokens_seen
    assert iterations[-1].kv_blocks_used == 0


def test_a_waiting_sequence_cancels_without_ever_running() -> None:
    """Cancelled in the queue: it ends with the running iteration and costs no token."""
    engine = engine_of(sim_model(LAW, max_batch=1))
    engine.submit(submit(sequence("a/0", tokens=3), sequence("b/0", tokens=3)), now=0)
    iterations, answers = run(engine, before=lambda k: engine.cancel(Cancel(("b/0",))) if k == 1 else None)
    assert answers.endings == ["b/0", "a/0"]
    assert sum(i.prefill_tokens for i in iterations) == 9  # the prompt of the one that ran
    assert len(iterations) == 3


def test_a_cancel_before_the_first_iteration_costs_no_time() -> None:
    """With nothing else to do, the cancelled sequence ends at once, in an iteration of no duration and no tokens."""
    engine = engine_of(sim_model(LAW))
    engine.submit(submit(sequence("r/0")), now=7)
    engine.cancel(Cancel(("r/0",)))
    (only,), answers = run(engine, now=7)
    assert (only.duration_ns, only.running, only.prefill_tokens, only.decode_tokens) == (0, 0, 0, 0)
    assert answers.last["r/0"].finish_reason == "cancelled"


def test_the_text_is_the_law_of_the_core() -> None:
    """Prompt, version and nothing else make the answer: the worker says what the simulator would."""
    engine = engine_of(sim_model(LAW, version="v2"))
    engine.submit(submit(sequence("r/0", text="why", tokens=6)), now=0)
    _, answers = run(engine)
    assert answers.texts["r/0"] == SimulatedAnswer(b"why", version="v2").text(6)


def test_the_batch_around_it_does_not_change_an_answer() -> None:
    """16 sequences together say token for token what each says alone."""
    sequences = [sequence(f"r{i}/0", text=f"prompt {i}", tokens=5 + i) for i in range(16)]
    together = engine_of(sim_model(LAW, prefill_chunk=16))
    together.submit(submit(*sequences), now=0)
    texts = run(together)[1].texts
    for one in sequences:
        alone = engine_of(sim_model(LAW))
        alone.submit(submit(one), now=0)
        assert run(alone)[1].texts[one.sequence_id] == texts[one.sequence_id]


def test_a_prompt_that_fills_the_context_is_refused_by_numbers() -> None:
    """A prompt of 256 tokens in a context of 256 is the client's error, with both numbers and no text."""
    engine = engine_of(sim_model(LAW))
    (failure,) = engine.submit(submit(sequence("r/0", text="q" * 1024)), now=0)
    assert (failure.code, failure.retryable, failure.param) == ("invalid_request", False, "input")
    assert "256" in failure.message
    assert "qq" not in failure.message
    assert engine.begin(now=0) is None


def test_the_context_bounds_the_answer() -> None:
    """`max_tokens` over what the context leaves ends at the context, as length."""
    engine = engine_of(sim_model(LAW))
    engine.submit(submit(sequence("r/0", text="q" * 1000, tokens=1000)), now=0)
    _, answers = run(engine)
    assert (answers.last["r/0"].output_tokens, answers.last["r/0"].finish_reason) == (6, "length")


@pytest.mark.parametrize(("after", "failed"), [(0, [True, True]), (1, [False, True])])
def test_fail_fast_fails_every_sequence_once_it_has_begun(after: int, failed: list[bool]) -> None:
    """`fail_fast` answers at once with a failure that another replica may cure, from the given count on."""
    engine = engine_of(sim_model(SimSettings(fault="fail_fast", fault_after=after)))
    seen = []
    for name in ("a/0", "b/0"):
        failures = engine.submit(submit(sequence(name)), now=0)
        seen.append(bool(failures))
        assert all(f.retryable and f.code == "upstream_failure" for f in failures)
        run(engine)
    assert seen == failed


def test_a_fault_spares_the_other_replicas() -> None:
    """`fault_replicas = [1]`: replica 0 serves, replica 1 fails."""
    model = sim_model(SimSettings(fault="fail_fast", fault_replicas=(1,)))
    assert not engine_of(model, replica_index=0).submit(submit(sequence("r/0")), now=0)
    assert engine_of(model, replica_index=1).submit(submit(sequence("r/0")), now=0)


def test_progress_is_the_last_end_or_the_first_arrival() -> None:
    """An idle engine that gets work at 5 s has not stood still since its last iteration: progress counts from the arrival."""
    engine = engine_of(sim_model(LAW))
    engine.submit(submit(sequence("a/0", tokens=1)), now=5)
    assert engine.stats().engine_progress_ns == 5
    iterations, _ = run(engine, now=5)
    assert engine.stats().engine_progress_ns == 5 + iterations[0].duration_ns


def test_a_first_token_that_cannot_be_in_time_ends_its_sequence_before_it_begins() -> None:
    """Costs known, 18 ms an iteration: a first token within 5 ms is given up at once as deadline_unreachable and takes no slot or time."""
    engine = engine_of(sim_model(LAW))
    now = 0
    for number in range(9):
        engine.submit(submit(sequence(f"r{number}/0", tokens=1)), now=now)
        now += sum(i.duration_ns for i in run(engine, now=now)[0])
    late = msgspec.structs.replace(sequence("late/0"), ttft_deadline_ns=now + 5 * NS_PER_MS)
    engine.submit(submit(late), now=now)
    assert engine.begin(now=now) is None
    (failure,) = engine.take_given_up()
    assert (failure.sequence_id, failure.code, failure.retryable) == ("late/0", "deadline_unreachable", False)
    assert engine.take_given_up() == ()
    assert (engine.stats().running, engine.stats().waiting) == (0, 0)


@pytest.mark.parametrize(
    ("order", "first"), [("fcfs", "long/0"), ("shortest_prompt", "short/0"), ("edf", "urgent/0"), ("deadline", "urgent/0")]
)
def test_the_order_of_prompts_is_the_operators_choice(order: str, first: str) -> None:
    """One slot and three prompts that wait: `order` says whose is processed first."""
    engine = engine_of(sim_model(LAW, max_batch=1, order=order))
    urgent = msgspec.structs.replace(sequence("urgent/0", text="u" * 200, tokens=1), ttft_deadline_ns=500 * NS_PER_MS)
    engine.submit(submit(sequence("long/0", text="l" * 800, tokens=1), sequence("short/0", text="s", tokens=1), urgent), now=0)
    assert run(engine)[1].endings[0] == first
