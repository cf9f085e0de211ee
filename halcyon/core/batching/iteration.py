"""The question an engine asks before every iteration, and the shape of the answer.

Rules: pure; the engine (real or simulated) owns sequences and KV blocks and describes them in an `EngineView`; a policy answers with an
`IterationPlan`. Sequences in decode always run (one token each); the plan says only how many prompt tokens may be processed beside them
and for whom. The engine admits in the plan's order as long as slots, tokens and KV blocks last; a sequence that does not fit is
skipped, and smaller ones behind it may go. What must not be here: anything of torch or of a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceView:
    """One sequence as the scheduler sees it. Instants are absolute monotonic ns; token counts are exact.

    Attributes:
        remaining_prefill: prompt tokens not processed yet; 0 in decode.
        generated: output tokens so far. max_output_tokens: its bound (context included).
        first_token_ns: when the first token came; `None` before.
    """

    sequence_id: str
    arrived_ns: int
    remaining_prefill: int
    generated: int
    max_output_tokens: int
    first_token_ns: int | None = None
    deadline_ns: int | None = None
    ttft_deadline_ns: int | None = None
    tpot_ns: int | None = None
    bulk: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """The engine before an iteration.

    Attributes:
        decoding / prefilling / waiting: by state; prefilling have processed part of their prompt. Each in order of arrival.
        max_batch: sequences in one iteration, at most. max_batch_tokens: tokens in one iteration, at most.
        kv_blocks_free: what a new sequence may take, blocks that are only kept for prefix sharing included.
    """

    decoding: Sequence[SequenceView]
    prefilling: Sequence[SequenceView]
    waiting: Sequence[SequenceView]
    max_batch: int
    max_batch_tokens: int
    kv_blocks_free: int
    kv_blocks_total: int
    kv_block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationPlan:
    """What may be prefilled in this iteration.

    Attributes:
        prefill_budget: prompt tokens, at most, over all sequences.
        prefill_order: ids of prefilling and waiting sequences in order of service; those left out wait.
        give_up: ids of waiting sequences whose first token cannot be on time any more; an engine may end them at once.
    """

    prefill_budget: int
    prefill_order: tuple[str, ...]
    give_up: tuple[str, ...] = ()


class IterationPolicy(Protocol):
    """Decides prefill for one replica. One instance a replica; it may learn from `observe`."""

    def plan(self, view: EngineView, *, now: int) -> IterationPlan:
        """The plan for the iteration that starts at `now`."""
        ...

    def observe(self, *, duration_ns: int, running: int, prefill_tokens: int) -> None:
        """What the last iteration took."""
        ...


DEFAULT_PREFILL_BUDGET = 512
"""Prompt tokens an iteration may process when no chunk is configured."""


class FirstComeFirstServed:
    """Prompts in order of arrival, those already begun first; `prefill_chunk` tokens an iteration.

    Rule: budget = min(chunk, max_batch_tokens − decoding); order = prefilling, then waiting as far as slots and KV blocks last, both by
    arrival. The first that waits is always named, for only the engine knows what prefix sharing spares it; the next ones are named only
    while the prompts before them fit, so that small ones do not take the blocks a large one waits for.
    """

    def __init__(self, *, prefill_chunk: int = DEFAULT_PREFILL_BUDGET) -> None:
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk is {prefill_chunk}; it must be at least 1")
        self._prefill_chunk = prefill_chunk

    def plan(self, view: EngineView, *, now: int) -> IterationPlan:
        """The next prompts in order of arrival."""
        del now  # arrival order needs no clock
        budget = max(0, min(self._prefill_chunk, view.max_batch_tokens - len(view.decoding)))
        order = [*view.prefilling, *self._admissible(view)]
        return IterationPlan(prefill_budget=budget, prefill_order=tuple(sequence.sequence_id for sequence in order))

    def observe(self, *, duration_ns: int, running: int, prefill_tokens: int) -> None:
        """Nothing to learn."""
        del duration_ns, running, prefill_tokens

    def _admissible(self, view: EngineView) -> list[SequenceView]:
        """Waiting sequences up to and including the first whose prompt may not fit behind those before it."""
        free_slots = max(0, view.max_batch - len(view.decoding) - len(view.prefilling))
        free_blocks = view.kv_blocks_free - sum(_prompt_blocks(sequence, view) for sequence in view.prefilling)
        admissible: list[SequenceView] = []
        for sequence in view.waiting[:free_slots]:
            if admissible and free_blocks < 0:
                break
            admissible.append(sequence)
            free_blocks -= _prompt_blocks(sequence, view)
        return admissible


def _prompt_blocks(sequence: SequenceView, view: EngineView) -> int:
    """KV blocks the rest of the prompt takes, at most."""
    return -(-sequence.remaining_prefill // view.kv_block_tokens) if view.kv_block_tokens else 0
