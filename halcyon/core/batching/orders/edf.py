"""Earliest first-token deadline first: the known rule, a choice and a baseline. It collapses under overload; see `orders.deadline`."""

from __future__ import annotations

from halcyon.core.batching.iteration import DEFAULT_PREFILL_BUDGET, EngineView, IterationPlan, SequenceView
from halcyon.core.batching.orders.objectives import ttft_deadline_ns


class EarliestFirstToken:
    """Prompts by the deadline of their first token; `prefill_chunk` prompt tokens an iteration; those already begun keep their turn."""

    def __init__(self, *, prefill_chunk: int = DEFAULT_PREFILL_BUDGET) -> None:
        self._prefill_chunk = prefill_chunk

    def plan(self, view: EngineView, *, now: int) -> IterationPlan:
        """The next prompts, earliest due first."""
        del now  # deadlines are absolute
        free_slots = max(0, view.max_batch - len(view.decoding) - len(view.prefilling))
        waiting = sorted(view.waiting, key=_key)[:free_slots]
        order = (*(s.sequence_id for s in view.prefilling), *(s.sequence_id for s in waiting))
        budget = max(0, min(self._prefill_chunk, view.max_batch_tokens - len(view.decoding)))
        return IterationPlan(prefill_budget=budget, prefill_order=order)

    def observe(self, *, duration_ns: int, running: int, prefill_tokens: int) -> None:
        """Nothing to learn."""
        del duration_ns, running, prefill_tokens


def _key(sequence: SequenceView) -> tuple[int, int]:
    return ttft_deadline_ns(sequence), sequence.arrived_ns
