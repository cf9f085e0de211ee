"""One sequence from submission to its last delta: what it has produced, and when it must end.

Rules: owned by the engine's thread once submitted; knows nothing of batches, blocks or torch. It survives preemption: whatever the
scheduler does with its KV blocks, tokens are counted, detokenized and matched here exactly once.
"""

from __future__ import annotations

from halcyon.core.batching.iteration import SequenceView
from halcyon.engine.detokenize import Detokenizer
from halcyon.engine.request import FinishReason, SequenceDelta, SequenceRequest, TokenScore
from halcyon.engine.stop import StopMatcher


class LiveSequence:
    """State of one answer.

    Attributes:
        cached_tokens: prompt tokens whose KV the prefix cache held; `None` until the sequence is first scheduled.
        first_token_ns: when the first token came; `None` before.
        output_tokens: tokens produced so far.
    """

    __slots__ = ("_announced", "_detokenizer", "_eos", "_stops", "cached_tokens", "first_token_ns", "output_tokens", "request")

    def __init__(self, request: SequenceRequest, detokenizer: Detokenizer, eos_token_ids: frozenset[int]) -> None:
        self.request = request
        self.cached_tokens: int | None = None
        self.first_token_ns: int | None = None
        self.output_tokens = 0
        self._detokenizer = detokenizer
        self._stops = StopMatcher(request.sampling.stop)
        self._eos = frozenset() if request.sampling.ignore_eos else eos_token_ids
        self._announced = False

    @property
    def next_position(self) -> int:
        """Absolute position of the next token to be drawn."""
        return len(self.request.token_ids) + self.output_tokens

    def accept(self, token_id: int, score: TokenScore | None, *, now: int) -> SequenceDelta:
        """Takes the next token in. The sequence is over when the delta has a `finish_reason`."""
        self.output_tokens += 1
        if self.first_token_ns is None:
            self.first_token_ns = now
        rules = self.request.sampling
        if token_id in rules.stop_token_ids:
            return self._ended(token_id, score, "", "stop", token_id)
        if token_id in self._eos:
            return self._ended(token_id, score, "", "stop", None)
        text, match = self._stops.push(self._detokenizer.push(token_id))
        if match is not None:
            return self._delta(token_id, score, text, "stop", match)
        if self.output_tokens >= rules.max_output_tokens:
            return self._ended(token_id, score, text, "length", None)
        return self._delta(token_id, score, text)

    def cancelled(self) -> SequenceDelta:
        """The last delta of a sequence that nobody waits for any more."""
        return self._delta(None, None, "", "cancelled")

    def view(self, remaining_prefill: int) -> SequenceView:
        """What a scheduling policy may know of it; `remaining_prefill` in tokens."""
        request = self.request
        return SequenceView(
            sequence_id=request.sequence_id,
            arrived_ns=request.arrived_ns,
            remaining_prefill=remaining_prefill,
            generated=self.output_tokens,
            max_output_tokens=request.sampling.max_output_tokens,
            first_token_ns=self.first_token_ns,
            deadline_ns=request.deadline_ns,
            ttft_deadline_ns=request.ttft_deadline_ns,
            tpot_ns=request.tpot_ns,
            bulk=request.bulk,
            priority=request.priority,
        )

    def _ended(
        self, token_id: int, score: TokenScore | None, text: str, reason: FinishReason, stop_reason: str | int | None
    ) -> SequenceDelta:
        tail, match = self._stops.push(self._detokenizer.flush())
        if match is not None:
            return self._delta(token_id, score, text + tail, "stop", match)
        return self._delta(token_id, score, text + tail + self._stops.flush(), reason, stop_reason)

    def _delta(
        self,
        token_id: int | None,
        score: TokenScore | None,
        text: str,
        reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
    ) -> SequenceDelta:
        request, first, self._announced = self.request, not self._announced, True
        shows_ids = token_id is not None and (request.return_token_ids or request.sampling.logprobs)
        return SequenceDelta(
            sequence_id=request.sequence_id,
            text=text,
            token_ids=(token_id,) if shows_ids and token_id is not None else (),
            scores=(score,) if score is not None else (),
            prompt_tokens=len(request.token_ids) if first else 0,
            cached_tokens=(self.cached_tokens or 0) if first else 0,
            output_tokens=self.output_tokens,
            finish_reason=reason,
            stop_reason=stop_reason,
        )
