"""What goes into an engine and what comes out of it, as plain data.

Rules: no torch, no tokenizer, no wire. The worker turns frames into these and back; tests use them directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "cancelled"]

MAX_TOP_LOGPROBS = 20
"""Most alternatives reported for one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """How the tokens of one sequence are drawn and when they end. Everything is resolved: no field means "the default".

    Attributes:
        temperature: 0 takes the highest logit, the lowest id on a tie.
        top_p: nucleus mass in (0, 1]. top_k: 0 keeps all.
        seed: draws depend on (seed, absolute position, logits) alone.
        max_output_tokens: a real maximum.
        stop: strings that end the answer and are no part of it. stop_token_ids: ids that do the same.
        logprobs: report the chosen token under the raw distribution; top_logprobs: and this many best ones.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    max_output_tokens: int = 16
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: bool = False
    top_logprobs: int = 0

    @property
    def is_plain(self) -> bool:
        """Greedy and without logprobs: the argmax is all there is to do."""
        return self.temperature == 0.0 and not self.logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """One answer to produce. Instants are absolute monotonic ns; `token_ids` is the whole prompt, special tokens included."""

    sequence_id: str
    token_ids: tuple[int, ...]
    sampling: SamplingRules
    arrived_ns: int = 0
    deadline_ns: int | None = None
    ttft_deadline_ns: int | None = None
    tpot_ns: int | None = None
    bulk: bool = False
    priority: int = 0
    return_token_ids: bool = False


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural-log probability of one token under the raw distribution; `top` is (id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceDelta:
    """What one iteration added to one sequence.

    Attributes:
        text: complete characters only, never part of a stop string.
        prompt_tokens / cached_tokens: on the first delta only, else 0.
        output_tokens: all tokens so far.
        finish_reason: on the last delta. stop_reason: the stop string or stop token id that ended it, where one did.
    """

    sequence_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    scores: tuple[TokenScore, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvUsage:
    """Blocks of the KV cache. used: held by live sequences; cached: kept for prefix sharing, reclaimable; free: the rest."""

    used: int = 0
    cached: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        """All blocks."""
        return self.used + self.cached + self.free


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """One iteration. An iteration that only ended cancelled sequences has running = 0 and no tokens.

    Attributes:
        number: counts from 1. started_ns / duration_ns: monotonic clock.
        running: sequences that took part. waiting: submitted and not started.
        decode_tokens / prefill_tokens: tokens processed, by kind.
        preempted: sequences put back to waiting.
    """

    number: int
    started_ns: int
    duration_ns: int
    running: int
    waiting: int
    decode_tokens: int
    prefill_tokens: int
    preempted: int
    kv: KvUsage
    deltas: tuple[SequenceDelta, ...]


class EngineSink(Protocol):
    """Where an engine reports. Called from the engine's own thread; must return at once."""

    def iteration(self, report: IterationReport) -> None:
        """An iteration ended."""
        ...

    def failed(self, sequence_id: str, message: str) -> None:
        """A sequence ended without an answer; nothing further is said of it."""
        ...

    def gave_up(self, sequence_id: str) -> None:
        """A sequence whose first token could not be on time any more was ended before anything was done for it."""
        ...

    def fatal(self, message: str) -> None:
        """The engine cannot go on. Every live sequence has been reported as failed."""
        ...
