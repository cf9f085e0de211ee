"""First come, first served, at every iteration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.batching.iteration import EngineView, FirstComeFirstServed, SequenceView


def sequence(name: str, prompt: int) -> SequenceView:
    """A sequence with so much of its prompt left."""
    return SequenceView(sequence_id=name, arrived_ns=0, remaining_prefill=prompt, generated=0, max_output_tokens=10)


def view(
    *,
    decoding: int = 0,
    prefilling: tuple[int, ...] = (),
    waiting: tuple[int, ...] = (),
    max_batch: int = 8,
    max_batch_tokens: int = 1024,
    kv_blocks_free: int = 100,
) -> EngineView:
    """An engine with blocks of 16 tokens; prefilling are named p0, p1, …, waiting w0, w1, …"""
    return EngineView(
        decoding=[sequence(f"d{number}", 0) for number in range(decoding)],
        prefilling=[sequence(f"p{number}", prompt) for number, prompt in enumerate(prefilling)],
        waiting=[sequence(f"w{number}", prompt) for number, prompt in enumerate(waiting)],
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        kv_blocks_free=kv_blocks_free,
        kv_blocks_total=100,
        kv_block_tokens=16,
    )


def test_prompts_already_begun_come_first() -> None:
    """Order: prefilling by arrival, then waiting by arrival, as far as slots last (8 − 2 decoding − 2 prefilling = 4)."""
    plan = FirstComeFirstServed().plan(view(decoding=2, prefilling=(30, 30), waiting=(10,) * 6), now=0)
    assert plan.prefill_order == ("p0", "p1", "w0", "w1", "w2", "w3")


@pytest.mark.parametrize(
    ("chunk", "decoding", "max_batch_tokens", "budget"), [(64, 0, 1024, 64), (64, 4, 20, 16), (64, 8, 8, 0), (512, 0, 100, 100)]
)
def test_the_budget_is_the_chunk_or_what_decode_leaves(chunk: int, decoding: int, max_batch_tokens: int, budget: int) -> None:
    """budget = min(chunk, max_batch_tokens − decoding), never below 0."""
    plan = FirstComeFirstServed(prefill_chunk=chunk).plan(view(decoding=decoding, max_batch_tokens=max_batch_tokens, waiting=(5,)), now=0)
    assert plan.prefill_budget == budget


def test_small_prompts_do_not_take_the_blocks_a_large_one_waits_for() -> None:
    """A head of 20 blocks with 10 free is named alone: the engine may know that sharing spares it, but nobody overtakes it."""
    assert FirstComeFirstServed().plan(view(waiting=(320, 16, 16), kv_blocks_free=10), now=0).prefill_order == ("w0",)


def test_prompts_are_named_while_those_before_them_fit() -> None:
    """10 free blocks: 4 + 4 fit, the third of 4 is the first that may not, the fourth waits. Begun prompts keep their blocks."""
    policy = FirstComeFirstServed()
    assert policy.plan(view(waiting=(64, 64, 64, 64), kv_blocks_free=10), now=0).prefill_order == ("w0", "w1", "w2")
    assert policy.plan(view(prefilling=(64,), waiting=(64, 64, 64, 64), kv_blocks_free=10), now=0).prefill_order == ("p0", "w0", "w1")


@given(
    st.integers(0, 10),
    st.lists(st.integers(1, 400), max_size=6),
    st.lists(st.integers(1, 400), max_size=12),
    st.integers(0, 100),
    st.integers(1, 600),
)
def test_a_plan_is_a_prefix_of_arrival(decoding: int, prefilling: list[int], waiting: list[int], free: int, chunk: int) -> None:
    """Always: all that began, then an unbroken prefix of who waits, within slots; the first in line is never left out if a slot is free."""
    engine = view(decoding=decoding, prefilling=tuple(prefilling), waiting=tuple(waiting), max_batch=12, kv_blocks_free=free)
    plan = FirstComeFirstServed(prefill_chunk=chunk).plan(engine, now=0)
    slots = max(0, 12 - decoding - len(prefilling))
    admitted = len(plan.prefill_order) - len(prefilling)
    assert plan.prefill_order == tuple(f"p{n}" for n in range(len(prefilling))) + tuple(f"w{n}" for n in range(admitted))
    assert min(1, slots, len(waiting)) <= admitted <= slots
    assert 0 <= plan.prefill_budget <= chunk


def test_an_engine_without_blocks_is_bound_by_slots_alone() -> None:
    """A runtime that reports no KV blocks (0 of 0 tokens) is filled to its slots."""
    engine = EngineView(
        decoding=(),
        prefilling=(),
        waiting=[sequence(f"w{n}", 50) for n in range(9)],
        max_batch=8,
        max_batch_tokens=99,
        kv_blocks_free=0,
        kv_blocks_total=0,
        kv_block_tokens=0,
    )
    assert len(FirstComeFirstServed().plan(engine, now=0).prefill_order) == 8


def test_a_chunk_of_nothing_is_refused() -> None:
    """prefill_chunk 0 would never process a prompt; it raises, naming the value."""
    with pytest.raises(ValueError, match="prefill_chunk is 0"):
        FirstComeFirstServed(prefill_chunk=0)
