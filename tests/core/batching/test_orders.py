"""Whose prompt goes next on a continuous replica, how much of it, and who is given up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halcyon.core.batching.cost import IterationCost
from halcyon.core.batching.iteration import EngineView, SequenceView
from halcyon.core.batching.orders.choice import order_named
from halcyon.core.batching.orders.deadline import DeadlineOrder
from halcyon.core.batching.orders.edf import EarliestFirstToken
from halcyon.core.batching.orders.peak import peak_tokens
from halcyon.core.batching.orders.shortest import ShortestPromptFirst

MS = 1_000_000
S = 1_000_000_000


def sequence(
    name: str,
    *,
    prompt: int = 0,
    generated: int = 0,
    first_ms: int | None = None,
    ttft_ms: int | None = None,
    tpot_ms: int | None = None,
    arrived_ms: int = 0,
) -> SequenceView:
    """A sequence; instants in ms from 0."""
    return SequenceView(
        sequence_id=name,
        arrived_ns=arrived_ms * MS,
        remaining_prefill=prompt,
        generated=generated,
        max_output_tokens=100,
        first_token_ns=None if first_ms is None else first_ms * MS,
        ttft_deadline_ns=None if ttft_ms is None else ttft_ms * MS,
        tpot_ns=None if tpot_ms is None else tpot_ms * MS,
    )


def view(
    *,
    decoding: list[SequenceView] | None = None,
    prefilling: list[SequenceView] | None = None,
    waiting: list[SequenceView],
    batch: int = 32,
) -> EngineView:
    """An engine with room in its cache."""
    return EngineView(
        decoding=decoding or [],
        prefilling=prefilling or [],
        waiting=waiting,
        max_batch=batch,
        max_batch_tokens=8192,
        kv_blocks_free=10_000,
        kv_blocks_total=10_000,
        kv_block_tokens=16,
    )


def exact() -> DeadlineOrder:
    """8 ms + 0.1 ms a sequence + 0.05 ms a prompt token, believed."""
    return DeadlineOrder(cost=IterationCost((8.0 * MS, 0.1 * MS, 0.05 * MS)))


def test_the_budget_is_what_the_tightest_token_deadline_leaves() -> None:
    """A token due in 40 ms leaves 0.95·40 − 8 − 0.1·2 = 29.8 ms for prompts: 596 tokens of 0.05 ms."""
    running = sequence("d", generated=1, first_ms=0, tpot_ms=40)
    plan = exact().plan(view(decoding=[running], waiting=[sequence("w", prompt=5000, ttft_ms=5000)]), now=0)
    assert plan.prefill_order == ("w",)
    assert plan.prefill_budget == pytest.approx(596, abs=1)


def test_slack_that_was_saved_up_may_be_spent() -> None:
    """A sequence that is three tokens ahead of its schedule lets the next iteration take as long."""
    ahead = sequence("d", generated=4, first_ms=0, tpot_ms=40)
    plan = exact().plan(view(decoding=[ahead], waiting=[sequence("w", prompt=8000, ttft_ms=5000)]), now=0)
    assert plan.prefill_budget == pytest.approx((0.95 * 160 - 8.2) / 0.05, abs=1)


def test_a_late_sequence_does_not_stop_all_prefill() -> None:
    """Prefill starvation: a token that is overdue counts as due one tpot from now, not as a budget of nothing."""
    late = sequence("d", generated=10, first_ms=0, tpot_ms=40)
    plan = exact().plan(view(decoding=[late], waiting=[sequence("w", prompt=5000, ttft_ms=9000)]), now=5000 * MS)
    assert plan.prefill_budget > 500


def test_a_tpot_nobody_can_keep_does_not_block_everybody() -> None:
    """One tenant with 5 ms a token on a replica of 8 ms an iteration: prompts are still processed beside it."""
    greedy = sequence("d", generated=1, first_ms=0, tpot_ms=5)
    plan = exact().plan(view(decoding=[greedy], waiting=[sequence("w", prompt=500, ttft_ms=9000)]), now=0)
    assert plan.prefill_order == ("w",)
    assert plan.prefill_budget > 0


def test_who_cannot_make_it_even_alone_is_given_up() -> None:
    """5000 tokens take 258 ms alone: a first token in 250 ms is hopeless, in 260 ms it is not; without an objective nobody is given up."""
    hopeless, hopeful = sequence("a", prompt=5000, ttft_ms=250), sequence("b", prompt=5000, ttft_ms=260)
    patient = sequence("c", prompt=500_000)
    plan = exact().plan(view(waiting=[hopeless, hopeful, patient]), now=0)
    assert plan.give_up == ("a",)
    assert "b" in plan.prefill_order


def test_where_nobody_can_be_given_up_the_hopeless_come_last() -> None:
    """An engine that cannot end a sequence on a plan's word still serves it, after everybody who can be in time."""
    order = DeadlineOrder(cost=IterationCost((8.0 * MS, 0.1 * MS, 0.05 * MS)), gives_up=False)
    plan = order.plan(view(waiting=[sequence("late", prompt=50, ttft_ms=1), sequence("fine", prompt=50, ttft_ms=900)]), now=0)
    assert plan.prefill_order == ("fine", "late")
    assert plan.give_up == ()


def test_nobody_is_given_up_before_the_costs_are_known() -> None:
    """With a prior alone the hopeless only come last; after eight iterations with prompts the costs are believed."""
    order = DeadlineOrder()
    engine = view(waiting=[sequence("late", prompt=50, ttft_ms=1), sequence("fine", prompt=50, ttft_ms=900)])
    for _ in range(8):
        plan = order.plan(engine, now=0)
        assert (plan.prefill_order, plan.give_up) == (("fine", "late"), ())
        order.observe(duration_ns=12 * MS, running=1, prefill_tokens=50)
    assert order.plan(engine, now=0).give_up == ("late",)


def test_after_a_lull_the_hopeless_are_tried_again() -> None:
    """A cost that is wrong must hear of it: ten seconds after the last prompt the next one runs whatever is predicted, then no more."""
    order = exact()
    order.plan(view(waiting=[sequence("w", prompt=50)]), now=0)
    late = [sequence("late", prompt=50, ttft_ms=10_001)]
    assert order.plan(view(waiting=late), now=10_000 * MS).prefill_order == ("late",)
    assert order.plan(view(waiting=late), now=10_010 * MS).give_up == ("late",)


def test_a_configured_chunk_bounds_every_order() -> None:
    """`prefill_chunk` of 64 tokens holds whatever the order would allow."""
    for name in ("fcfs", "shortest_prompt", "edf", "deadline"):
        plan = order_named(name, prefill_chunk=64).plan(view(waiting=[sequence("w", prompt=5000, ttft_ms=9000)]), now=0)
        assert (name, plan.prefill_budget) == (name, 64)


def test_one_giant_is_relegated_so_that_the_others_make_it() -> None:
    """Moore–Hodgson: of a 4000-token prompt and ten of 100 that cannot all be in time, the giant goes last though it is due first."""
    giant = sequence("giant", prompt=4000, ttft_ms=230)
    small = [sequence(f"s{index}", prompt=100, ttft_ms=240 + index) for index in range(10)]
    plan = exact().plan(view(waiting=[giant, *small]), now=0)
    assert plan.prefill_order[:10] == tuple(f"s{index}" for index in range(10))


def test_prompts_already_begun_keep_their_turn() -> None:
    """A begun prompt goes before a waiting one that is due earlier."""
    begun = sequence("begun", prompt=300, ttft_ms=900)
    plan = exact().plan(view(prefilling=[begun], waiting=[sequence("new", prompt=100, ttft_ms=300)]), now=0)
    assert plan.prefill_order == ("begun", "new")


def test_nobody_is_admitted_whom_the_running_could_not_bear() -> None:
    """TPOT guard: with a tpot of 12 ms and 20 sequences running (10 ms an iteration) a few more are admitted, not all thirty."""
    running = [sequence(f"d{index}", generated=5, first_ms=0, tpot_ms=12) for index in range(20)]
    plan = exact().plan(
        view(decoding=running, waiting=[sequence(f"w{index}", prompt=1, ttft_ms=900) for index in range(30)], batch=64), now=0
    )
    assert 0 < len(plan.prefill_order) <= 10


def test_a_cached_prompt_still_takes_a_token() -> None:
    """A prompt with nothing left to process asks for one token and is planned."""
    plan = exact().plan(view(waiting=[sequence("w", prompt=0, ttft_ms=900)]), now=0)
    assert plan.prefill_order == ("w",)
    assert plan.prefill_budget >= 1


def test_something_moves_whenever_work_waits() -> None:
    """Progress: with nothing running, the first prompt is planned whatever its size, tpot or cache need."""
    monster = sequence("w", prompt=7000, tpot_ms=1)
    engine = EngineView(
        decoding=[],
        prefilling=[],
        waiting=[monster],
        max_batch=1,
        max_batch_tokens=64,
        kv_blocks_free=1,
        kv_blocks_total=1,
        kv_block_tokens=1,
    )
    plan = exact().plan(engine, now=0)
    assert plan.prefill_order == ("w",)
    assert plan.prefill_budget > 0


def test_shortest_first_and_ties_by_arrival() -> None:
    """By prompt length, then by arrival."""
    waiting = [sequence("long", prompt=600), sequence("b", prompt=60, arrived_ms=2), sequence("a", prompt=60, arrived_ms=1)]
    assert ShortestPromptFirst(patience_percent=None).plan(view(waiting=waiting), now=0).prefill_order == ("a", "b", "long")


def test_ageing_lets_a_long_prompt_pass_after_its_turn_and_its_patience() -> None:
    """Passed over when its turn came at 100 ms, with a patience of 70 % it goes first from 170 ms on."""
    order = ShortestPromptFirst(patience_percent=70)
    long = sequence("long", prompt=600, arrived_ms=0)
    shorts = [sequence(f"s{index}", prompt=50, arrived_ms=1) for index in range(4)]
    order.plan(view(waiting=[long, *shorts]), now=1 * MS)
    order.plan(view(waiting=[long, *shorts[1:]]), now=100 * MS)
    assert order.plan(view(waiting=[long, *shorts[1:]]), now=169 * MS).prefill_order[0] != "long"
    assert order.plan(view(waiting=[long, *shorts[1:]]), now=170 * MS).prefill_order[0] == "long"


def test_edf_goes_by_first_token_deadlines() -> None:
    """Earliest due first; without an objective it is due 20 s after arrival."""
    waiting = [sequence("none", prompt=5), sequence("late", prompt=5, ttft_ms=900), sequence("soon", prompt=5, ttft_ms=300)]
    assert EarliestFirstToken().plan(view(waiting=waiting), now=0).prefill_order == ("soon", "late", "none")


def test_the_peak_by_hand() -> None:
    """Held 10 and 20 with 5 and 1 tokens to go: 10 + 20 + 2·1 = 32 just before the second ends, 10 + 5 = 15 before the first."""
    assert peak_tokens([(10, 5), (20, 1)]) == 32
    assert peak_tokens([]) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=8))
def test_the_peak_is_the_peak(sequences: list[tuple[int, int]]) -> None:
    """Stepping the sequences token by token never holds more than the predicted peak, and reaches it."""
    held = 0
    for step in range(31):
        held = max(held, sum(now + min(step, left) for now, left in sequences if left >= step))
    assert peak_tokens(sequences) == held


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(20, 3000)), min_size=1, max_size=20), st.integers(1, 8))
def test_plans_are_sound(prompts: list[tuple[int, int]], batch: int) -> None:
    """Every plan names known sequences once, never more than the slots, never a given-up one, within the token bound; ids do not matter."""
    for make in (exact, EarliestFirstToken, ShortestPromptFirst):
        plans = []
        for prefix in ("x", "a"):
            waiting = [sequence(f"{prefix}{i}", prompt=p, ttft_ms=t, arrived_ms=i) for i, (p, t) in enumerate(prompts)]
            plan = make().plan(view(waiting=waiting, batch=batch), now=20 * MS)
            assert len(set(plan.prefill_order)) == len(plan.prefill_order) <= batch
            assert set(plan.prefill_order) | set(plan.give_up) <= {s.sequence_id for s in waiting}
            assert not set(plan.prefill_order) & set(plan.give_up)
            assert 0 <= plan.prefill_budget <= 8192
            plans.append([name[1:] for name in itertools.chain(plan.prefill_order, plan.give_up)])
        assert plans[0] == plans[1]


@pytest.mark.parametrize(("tpot_ms", "beside"), [(None, True), (100, True), (190, False), (600, True)])
def test_only_a_promise_that_can_be_kept_keeps_others_out(tpot_ms: int | None, beside: bool) -> None:
    """On a device of 70 + 100·running ms a second sequence joins, unless the first was promised 190 ms a token, which it alone can have.
    100 ms are lost for either, and serving one at a time would save nothing."""
    order = DeadlineOrder(cost=IterationCost((70.0 * MS, 100.0 * MS, 0.05 * MS)))
    running = sequence("running", generated=3, first_ms=-500, tpot_ms=tpot_ms)
    plan = order.plan(view(decoding=[running], waiting=[sequence("next", prompt=20, tpot_ms=tpot_ms)]), now=0)
    assert (plan.prefill_order == ("next",)) is beside
