"""One sequence on a simulated device: how far its prompt and its answer have come, and the `Delta` each step adds."""

from __future__ import annotations

from dataclasses import dataclass, field

from halcyon.core.batching.iteration import SequenceView
from halcyon.engine.stop import StopMatcher
from halcyon.wire.frames import Delta, FinishReason, Sequence, TokenLogprob
from halcyon.worker.sim_prompt import answer_to, prompt_tokens, token_logprob


@dataclass(slots=True)
class _Step:
    """What is gathered for one delta."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class SimulatedSequence:
    """Tells its sizes and advances by whole tokens. The caller owns slots, KV blocks and time."""

    def __init__(self, sequence: Sequence, *, version: str, mean_tokens: int, max_context: int) -> None:
        sampling = sequence.sampling
        self.sequence = sequence
        self.prompt_tokens = prompt_tokens(sequence)
        self.remaining_prefill = self.prompt_tokens
        self.output_tokens = 0
        self.cancelled = False
        self.finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._answer = answer_to(sequence, version=version, mean_tokens=mean_tokens)
        self._matcher = StopMatcher(sampling.stop)
        room = max_context - self.prompt_tokens
        self.max_output_tokens = room if sampling.max_output_tokens is None else min(room, sampling.max_output_tokens)
        self._reported = False
        self._first_token_ns: int | None = None

    @property
    def sequence_id(self) -> str:
        """As submitted."""
        return self.sequence.sequence_id

    @property
    def held_tokens(self) -> int:
        """Tokens whose keys and values are kept: the processed prompt and the answer so far."""
        return self.prompt_tokens - self.remaining_prefill + self.output_tokens

    def view(self) -> SequenceView:
        """As the iteration policy sees it."""
        sequence = self.sequence
        return SequenceView(
            sequence_id=sequence.sequence_id,
            arrived_ns=sequence.arrived_ns,
            remaining_prefill=self.remaining_prefill,
            generated=self.output_tokens,
            max_output_tokens=self.max_output_tokens,
            first_token_ns=self._first_token_ns,
            deadline_ns=sequence.deadline_ns,
            ttft_deadline_ns=sequence.ttft_deadline_ns,
            tpot_ns=sequence.tpot_ns,
            bulk=sequence.lane == "bulk",
            priority=sequence.priority,
        )

    def step(self, *, now: int) -> Delta:
        """One more token, produced at `now`."""
        if self._first_token_ns is None:
            self._first_token_ns = now
        gathered = _Step()
        self._advance(gathered)
        return self._delta(gathered)

    def run_to_end(self, *, now: int) -> Delta:
        """All tokens at once, for a batch that starts at `now`."""
        self._first_token_ns = now
        self.remaining_prefill = 0
        gathered = _Step()
        while self.finish_reason is None:
            self._advance(gathered)
        return self._delta(gathered)

    def end_cancelled(self) -> Delta:
        """The last delta of a cancelled sequence; text held back for a stop string is dropped with it."""
        self.finish_reason = "cancelled"
        return self._delta(_Step())

    def _advance(self, gathered: _Step) -> None:
        sampling = self.sequence.sampling
        position = self.output_tokens
        self.output_tokens += 1
        if sampling.logprobs:
            gathered.logprobs.append(token_logprob(self._answer, position, top=sampling.top_logprobs))
        if self.sequence.return_token_ids or sampling.logprobs:
            gathered.token_ids.append(self._answer.token_id(position))
        gathered.text += self._release(position)

    def _release(self, position: int) -> str:
        """The text that may leave after the token at `position`; ends the sequence where that token does."""
        sampling = self.sequence.sampling
        token_id = self._answer.token_id(position)
        if token_id in sampling.stop_token_ids:
            self.finish_reason, self._stop_reason = "stop", token_id
            return self._matcher.flush()
        text, stop = self._matcher.push(self._answer.token_text(position))
        if stop is not None:
            self.finish_reason, self._stop_reason = "stop", stop
            return text
        if self.output_tokens == self._answer.target_tokens and not sampling.ignore_eos:
            self.finish_reason = "stop"
        elif self.output_tokens >= self.max_output_tokens:
            self.finish_reason = "length"
        return text if self.finish_reason is None else text + self._matcher.flush()

    def _delta(self, gathered: _Step) -> Delta:
        first = not self._reported
        self._reported = True
        return Delta(
            sequence_id=self.sequence_id,
            text=gathered.text,
            token_ids=tuple(gathered.token_ids),
            logprobs=tuple(gathered.logprobs),
            prompt_tokens=self.prompt_tokens if first else 0,
            output_tokens=self.output_tokens,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )
