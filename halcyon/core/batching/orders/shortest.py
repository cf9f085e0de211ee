"""Shortest prompt first, with ageing that bounds how long a long prompt can be passed over.

Without ageing long prompts starve for as long as short ones keep coming. With it nobody waits much longer than in order of arrival: the
n-th to arrive would have had its turn when the n-th was admitted, whoever that was; from that instant on it is passed over for at most
`patience_percent` of what it had waited by then, and then goes before all short ones, in order of arrival. A constant age per token was
considered: the right constant depends on how long the queue is.
"""

from __future__ import annotations

from dataclasses import dataclass

from halcyon.core.batching.iteration import DEFAULT_PREFILL_BUDGET, EngineView, IterationPlan, SequenceView

DEFAULT_PATIENCE_PERCENT = 70


@dataclass(slots=True)
class _Turn:
    """A waiting prompt's place in order of arrival, and the instant after which it is passed over no more, once its turn has come."""

    ordinal: int
    promoted_ns: int | None = None


class ShortestPromptFirst:
    """Short prompts first, `prefill_chunk` prompt tokens an iteration; those already begun keep their turn.

    `patience_percent`: see the module; `None` is no ageing.
    """

    def __init__(self, *, prefill_chunk: int = DEFAULT_PREFILL_BUDGET, patience_percent: int | None = DEFAULT_PATIENCE_PERCENT) -> None:
        self._prefill_chunk = prefill_chunk
        self._patience_percent = patience_percent
        self._turns: dict[str, _Turn] = {}
        self._arrived = 0
        self._admitted = 0

    def plan(self, view: EngineView, *, now: int) -> IterationPlan:
        """The next prompts: those passed over long enough, then the shortest."""
        self._age(view, now=now)
        free_slots = max(0, view.max_batch - len(view.decoding) - len(view.prefilling))
        waiting = sorted(view.waiting, key=lambda sequence: self._key(sequence, now))[:free_slots]
        order = (*(s.sequence_id for s in view.prefilling), *(s.sequence_id for s in waiting))
        budget = max(0, min(self._prefill_chunk, view.max_batch_tokens - len(view.decoding)))
        return IterationPlan(prefill_budget=budget, prefill_order=order)

    def observe(self, *, duration_ns: int, running: int, prefill_tokens: int) -> None:
        """Nothing to learn."""
        del duration_ns, running, prefill_tokens

    def _age(self, view: EngineView, *, now: int) -> None:
        """Counts who came and who left the queue, and notes whose turn has come."""
        turns: dict[str, _Turn] = {}
        for sequence in view.waiting:
            turn = self._turns.pop(sequence.sequence_id, None)
            if turn is None:
                self._arrived += 1
                turn = _Turn(self._arrived)
            turns[sequence.sequence_id] = turn
        self._admitted += len(self._turns)
        self._turns = turns
        for sequence in view.waiting:
            turn = turns[sequence.sequence_id]
            if turn.promoted_ns is None and turn.ordinal <= self._admitted and self._patience_percent is not None:
                turn.promoted_ns = now + (now - sequence.arrived_ns) * self._patience_percent // 100

    def _key(self, sequence: SequenceView, now: int) -> tuple[int, int, int]:
        promoted_ns = self._turns[sequence.sequence_id].promoted_ns
        if promoted_ns is not None and promoted_ns <= now:
            return 0, sequence.arrived_ns, 0
        return 1, sequence.remaining_prefill, sequence.arrived_ns
