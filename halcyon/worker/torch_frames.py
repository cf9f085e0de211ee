"""Frames of the wire to what the engine takes, and what the engine reports to frames of the wire. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halcyon.engine.request import IterationReport, SamplingRules, SequenceDelta, SequenceRequest, TokenScore
from halcyon.errors import InvalidRequest
from halcyon.wire.frames import Delta, Iteration, Sampling, Sequence, TokenLogprob

if TYPE_CHECKING:
    from halcyon.engine.chat import PromptEncoder
    from halcyon.engine.detokenize import DetokenizerFactory


def prompt_ids(sequence: Sequence, prompts: PromptEncoder) -> tuple[int, ...]:
    """The prompt's tokens.

    Raises:
        InvalidRequest: it has none, or the model cannot read it.
    """
    if sequence.messages is not None:
        return prompts.messages([{"role": message.role, "content": message.content} for message in sequence.messages])
    if sequence.text is not None:
        return prompts.text(sequence.text)
    if sequence.token_ids is not None:
        return prompts.token_ids(sequence.token_ids)
    raise InvalidRequest("input: the sequence has no prompt; expected messages, text or token_ids", param="input")


def sequence_request(sequence: Sequence, token_ids: tuple[int, ...]) -> SequenceRequest:
    """The sequence as the engine takes it. Its output bound and seed are resolved by the engine."""
    return SequenceRequest(
        sequence_id=sequence.sequence_id,
        token_ids=token_ids,
        sampling=_rules(sequence.sampling),
        arrived_ns=sequence.arrived_ns,
        deadline_ns=sequence.deadline_ns,
        ttft_deadline_ns=sequence.ttft_deadline_ns,
        tpot_ns=sequence.tpot_ns,
        bulk=sequence.lane == "bulk",
        priority=sequence.priority,
        return_token_ids=sequence.return_token_ids,
    )


def iteration_frame(report: IterationReport, detokenizers: DetokenizerFactory) -> Iteration:
    """One iteration with everything it produced."""
    return Iteration(
        number=report.number,
        started_ns=report.started_ns,
        duration_ns=report.duration_ns,
        running=report.running,
        waiting=report.waiting,
        decode_tokens=report.decode_tokens,
        prefill_tokens=report.prefill_tokens,
        kv_blocks_used=report.kv.used,
        kv_blocks_free=report.kv.free,
        kv_blocks_cached=report.kv.cached,
        preempted=report.preempted,
        deltas=tuple(_delta(delta, detokenizers) for delta in report.deltas),
    )


def _rules(sampling: Sampling) -> SamplingRules:
    return SamplingRules(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        ignore_eos=sampling.ignore_eos,
        stop=sampling.stop,
        stop_token_ids=frozenset(sampling.stop_token_ids),
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
    )


def _delta(delta: SequenceDelta, detokenizers: DetokenizerFactory) -> Delta:
    return Delta(
        sequence_id=delta.sequence_id,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=tuple(_logprob(score, detokenizers) for score in delta.scores),
        prompt_tokens=delta.prompt_tokens,
        cached_tokens=delta.cached_tokens,
        output_tokens=delta.output_tokens,
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )


def _logprob(score: TokenScore, detokenizers: DetokenizerFactory) -> TokenLogprob:
    text, exact = detokenizers.spell(score.token_id)
    top = tuple((token_id, *detokenizers.spell(token_id), logprob) for token_id, logprob in score.top)
    return TokenLogprob(score.token_id, text, exact, score.logprob, top)
