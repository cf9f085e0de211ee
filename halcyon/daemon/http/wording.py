"""Numbers as the OpenAI API words them: usage, and log-probabilities in its two shapes."""

from __future__ import annotations

from collections.abc import Iterable

from halcyon.wire.frames import TokenLogprob
from halcyon.wire.inference import Usage
from halcyon.wire.openai import ChatLogprob, CompletionLogprobs, OpenAIUsage, PromptTokensDetails, TopLogprob

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot carry."""


def usage_of(usage: Usage) -> OpenAIUsage:
    """The same counts under OpenAI's names."""
    return OpenAIUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
    )


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> list[ChatLogprob]:
    """One entry a token, with its alternatives, best first."""
    return [
        ChatLogprob(
            token=token.text,
            logprob=_bounded(token.logprob),
            bytes=list(token.bytes_),
            top_logprobs=[TopLogprob(text, _bounded(logprob), list(raw)) for _, text, raw, logprob in token.top],
        )
        for token in tokens
    ]


class LegacyLogprobs:
    """The parallel lists of `/v1/completions`, over one choice's tokens; remembers where in the text the next token begins."""

    def __init__(self) -> None:
        self._offset_chars = 0

    def of(self, tokens: Iterable[TokenLogprob]) -> CompletionLogprobs:
        """The lists for the next tokens. `top_logprobs` always holds the chosen token beside the best ones."""
        shape = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            shape.tokens.append(token.text)
            shape.token_logprobs.append(_bounded(token.logprob))
            best = {text: _bounded(logprob) for _, text, _, logprob in token.top}
            shape.top_logprobs.append(best | {token.text: _bounded(token.logprob)})
            shape.text_offset.append(self._offset_chars)
            self._offset_chars += sum(1 for byte in token.bytes_ if byte & 0xC0 != 0x80)  # UTF-8: one such byte a character
        return shape


def _bounded(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
