"""The simulated continuous replica conserves what it counts, and the suites over it show what they claim."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halcyon.core.batching.iteration import EngineView, FirstComeFirstServed, IterationPlan, IterationPolicy
from halcyon.core.batching.orders.deadline import DeadlineOrder
from halcyon.core.batching.orders.edf import EarliestFirstToken
from halcyon.core.batching.orders.shortest import ShortestPromptFirst
from halcyon.sim.blocks import Blocks, KvMode
from halcyon.sim.clock import NS_PER_MS, NS_PER_S, TimeStalled
from halcyon.sim.continuous import ContinuousReplica, IterationLaw, Prompt, ReplicaSize
from halcyon.sim.prompts import PromptWorkload, seeded
from halcyon.sim.suites import chunking, fairness, serving

POLICIES = (FirstComeFirstServed, EarliestFirstToken, ShortestPromptFirst, DeadlineOrder)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 300), st.integers(1, 40), st.integers(10, 4000)), min_size=1, max_size=25),
    st.sampled_from(POLICIES),
    st.sampled_from(("reserve", "on_demand")),
    st.integers(1, 6),
)
def test_every_prompt_ends_and_every_block_returns(
    shape: list[tuple[int, int, int, int]], make: type[IterationPolicy], mode: KvMode, batch: int
) -> None:
    """Served to its true length or given up before any token; afterwards every KV block is free, in both modes and with preemption."""
    ordered = sorted(shape)
    prompts = [
        Prompt(
            index=index,
            arrived_ns=at_ms * NS_PER_MS,
            prompt_tokens=tokens,
            output_tokens=output,
            most_output=40,
            ttft_ns=ttft_ms * NS_PER_MS,
            tpot_ns=30 * NS_PER_MS,
        )
        for index, (at_ms, tokens, output, ttft_ms) in enumerate(ordered)
    ]
    size = ReplicaSize(max_batch=batch, kv_blocks=24, kv_block_tokens=16, kv_mode=mode)
    replica = ContinuousReplica(make(), IterationLaw(jitter=0.1), prompts, size=size, seed=1)
    for fate in replica.run():
        assert fate.given_up != (fate.finished_ns is not None)
        assert not (fate.given_up and fate.first_token_ns is not None)
        if fate.finished_ns is not None:
            assert fate.prompt.arrived_ns <= (fate.admitted_ns or 0) <= (fate.first_token_ns or 0) <= fate.finished_ns
    assert replica.blocks.free == replica.blocks.total


def test_a_full_cache_preempts_and_everybody_still_finishes() -> None:
    """KV exhaustion: with blocks for a third of the demand on demand, sequences are preempted, recomputed and all end."""
    prompts = seeded(PromptWorkload(requests=40, rate_per_s=0.0), 3)
    size = ReplicaSize(max_batch=16, kv_blocks=60, kv_mode="on_demand")
    replica = ContinuousReplica(FirstComeFirstServed(), IterationLaw(), prompts, size=size, seed=1)
    fates = replica.run()
    assert all(fate.finished_ns for fate in fates)
    assert sum(fate.preemptions for fate in fates) > 0
    assert replica.wasted_prefill_tokens > 0


def test_blocks_cannot_be_taken_twice_or_from_nothing() -> None:
    """Asking first is not optional: taking what is not there raises and changes nothing."""
    blocks = Blocks(10, 16, "reserve")
    blocks.admit(1, 60, 20)
    with pytest.raises(ValueError, match="cannot take"):
        blocks.admit(2, 100, 20)
    with pytest.raises(ValueError, match="cannot take"):
        blocks.admit(1, 1, 1)
    assert blocks.free == 5
    blocks.release(1)
    with pytest.raises(KeyError):
        blocks.release(1)
    assert blocks.free == 10


def test_a_policy_that_never_plans_is_found_out() -> None:
    """Time that does not advance while work waits raises instead of hanging."""

    class Never:
        def plan(self, view: EngineView, *, now: int) -> IterationPlan:
            return IterationPlan(prefill_budget=0, prefill_order=())

        def observe(self, *, duration_ns: int, running: int, prefill_tokens: int) -> None:
            raise AssertionError("nothing ever ran")

    prompts = seeded(PromptWorkload(requests=2, rate_per_s=0.0), 1)
    with pytest.raises(TimeStalled, match="none is ever planned"):
        ContinuousReplica(Never(), IterationLaw(), prompts, size=ReplicaSize(), seed=1).run()


def test_with_exact_costs_no_admitted_request_misses_its_tpot() -> None:
    """The deadline order on a device without noise: after it has learned the law, whoever is served keeps 40 ms a token."""
    workload = PromptWorkload(requests=400, rate_per_s=40, prompt_median=400, prompt_cap=3000, ttft_ms=800, tpot_ms=40)
    replica = ContinuousReplica(DeadlineOrder(), IterationLaw(), seeded(workload, 5), size=ReplicaSize(max_batch=128), seed=1)
    served = [fate for fate in replica.run() if fate.finished_ns is not None and fate.prompt.index >= 50]
    assert len(served) > 100
    assert all(fate.tpot_ns <= fate.prompt.tpot_ns for fate in served)


@pytest.mark.parametrize("rate", [20.0, 30.0, 45.0])
def test_under_overload_the_deadline_order_keeps_what_the_others_lose(rate: float) -> None:
    """Goodput of `deadline` is at least fcfs's and EDF's at every load, and four times theirs in deep overload."""
    workload = PromptWorkload(
        requests=600, rate_per_s=rate, prompt_median=600, prompt_sigma=0.9, prompt_cap=4000, ttft_ms=600, tpot_ms=40, output_cap=256
    )
    prompts = seeded(workload, 6)
    good = {}
    for make in (FirstComeFirstServed, EarliestFirstToken, DeadlineOrder):
        fates = ContinuousReplica(make(), IterationLaw(jitter=0.04), prompts, size=ReplicaSize(max_batch=256), seed=2).run()
        good[make.__name__] = sum(fate.good for fate in fates)
    best_other = max(good["FirstComeFirstServed"], good["EarliestFirstToken"])
    assert good["DeadlineOrder"] >= best_other
    assert rate < 45 or good["DeadlineOrder"] >= 4 * best_other


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_ageing_is_fair_to_both(seed: int) -> None:
    """Short prompts wait at most half as long as under fcfs in the median, and no long one twice as long as under fcfs at worst."""
    orders = fairness.run(seed, quick=False).orders
    assert orders["shortest_prompt_aged"]["short"].median_ms <= 0.5 * orders["fcfs"]["short"].median_ms
    assert orders["shortest_prompt_aged"]["long"].longest_ms < 2 * orders["fcfs"]["long"].longest_ms


def test_continuous_batching_serves_and_static_does_not() -> None:
    """Up to 0.9 of capacity at least 99 % within objectives; static slots are 35 to 65 % useful; deadline is never worse than fcfs."""
    for scenario in serving.run(7, quick=True).scenarios:
        rows = scenario.schedulers
        if scenario.load <= 0.9:
            assert rows["continuous"].goodput >= 0.99
        assert rows["continuous_deadline"].goodput >= rows["continuous"].goodput
        for size in serving.STATIC_SIZES:
            assert 0.35 <= rows[f"static_{size}"].useful_fraction <= 0.65


def test_smaller_budgets_shorten_the_worst_gap() -> None:
    """The worst gap between tokens falls with the budget, and the deadline order keeps every tpot on its own."""
    budgets = chunking.run(7, quick=True).budgets
    gaps = [budgets[name].worst_gap_ms for name in ("none", "256", "128", "64")]
    assert gaps == sorted(gaps, reverse=True)
    assert budgets["deadline"].goodput >= max(row.goodput for row in budgets.values())


def test_the_generation_suites_are_functions_of_their_seed() -> None:
    """The same seed gives the same bytes."""
    first, second = (json.dumps(dataclasses.asdict(fairness.run(4, quick=True))) for _ in range(2))
    assert first == second
    assert NS_PER_S == 1000 * NS_PER_MS
