"""Orders of prefill by the name an operator gives them. Every engine, real or simulated, gets its policy here."""

from __future__ import annotations

from typing import Literal

from halcyon.core.batching.iteration import DEFAULT_PREFILL_BUDGET, FirstComeFirstServed, IterationPolicy
from halcyon.core.batching.orders.deadline import DeadlineOrder
from halcyon.core.batching.orders.edf import EarliestFirstToken
from halcyon.core.batching.orders.shortest import ShortestPromptFirst

Order = Literal["fcfs", "shortest_prompt", "edf", "deadline"]


def order_named(order: Order, *, prefill_chunk: int = 0, gives_up: bool = True) -> IterationPolicy:
    """A fresh policy for one replica.

    `prefill_chunk`: most prompt tokens of one iteration; 0 leaves it to the order. `gives_up`: whether the engine ends the sequences
    that a plan gives up; without it they come last instead.
    """
    if order == "deadline":
        return DeadlineOrder(prefill_chunk=prefill_chunk, gives_up=gives_up)
    chunk = prefill_chunk or DEFAULT_PREFILL_BUDGET
    if order == "edf":
        return EarliestFirstToken(prefill_chunk=chunk)
    if order == "shortest_prompt":
        return ShortestPromptFirst(prefill_chunk=chunk)
    return FirstComeFirstServed(prefill_chunk=chunk)
