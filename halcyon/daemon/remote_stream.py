"""One answer of an OpenAI-compatible server: the request's body, and its stream read back into deltas.

Rules: an answer is complete only when a `finish_reason` came; a stream that ends, stalls or stops making sense before that is
`StreamBroken`. Token counts are the server's own `usage`, which comes last, so the finish waits for it; before it, each piece of text
counts as one token; an answer that has finished is whole even if the server never comes to its counts. Nothing is believed that the core,
the metrics or the history could choke on. No text of the server's errors is kept: only their class, where it is a plain word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from halcyon.errors import HalcyonError
from halcyon.wire.frames import Delta, FinishReason, Sequence, TokenLogprob

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""A longer event is a broken server, not an answer."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""Tokens, as a server counts them."""

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What every codec of ours can carry on."""

_GIVEN_UP = {"abort", "cancelled", "error"}
"""Reasons by which servers say that they did not finish."""

_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")
_UNKNOWN_TOKEN_ID = -1


class StreamBroken(HalcyonError):
    """The server's stream cannot be read on. The message names the break, never what was sent."""


class _TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _TokenLogprob(_TopLogprob):
    top_logprobs: list[_TopLogprob] | None = None


class _Logprobs(msgspec.Struct):
    """Both shapes: `content` of chats, the parallel lists of completions."""

    content: list[_TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | Integer | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _ErrorObject(msgspec.Struct):
    type: str | None = None
    code: str | int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _ErrorObject | str | None = None


class _ErrorReply(msgspec.Struct):
    error: _ErrorObject | str | None = None
    type: str | None = None


_chunks = msgspec.json.Decoder(_Chunk)
_errors = msgspec.json.Decoder(_ErrorReply)


def path_of(sequence: Sequence) -> str:
    """The endpoint under the base URL."""
    return "chat/completions" if sequence.messages is not None else "completions"


def body_of(sequence: Sequence, model: str) -> dict[str, object]:
    """The request's body. What is not OpenAI's own is sent only when it was asked for."""
    sampling = sequence.sampling
    body: dict[str, object] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sequence.messages is not None:
        body["messages"] = msgspec.to_builtins(sequence.messages)
    else:
        body["prompt"] = sequence.text if sequence.text is not None else list(sequence.token_ids or ())
    optional = {
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_output_tokens,
        "ignore_eos": sampling.ignore_eos,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    body |= {key: value for key, value in optional.items() if value}
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logprobs:
        chat = sequence.messages is not None
        body |= {"logprobs": True, "top_logprobs": sampling.top_logprobs} if chat else {"logprobs": max(1, sampling.top_logprobs)}
    return body


def error_class(body: bytes) -> str:
    """The class that an error body gives itself (`rate_limit_error`, `context_length_exceeded`), '' where it gives no plain word."""
    try:
        reply = _errors.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ""
    named = (reply.error.code, reply.error.type) if isinstance(reply.error, _ErrorObject) else (reply.type,)
    return next((word for word in named if isinstance(word, str) and _PLAIN_WORD.fullmatch(word)), "")


class AnswerStream:
    """Turns the bytes of one server-sent-events stream, cut anywhere, into deltas of one sequence."""

    def __init__(self, sequence_id: str) -> None:
        self._sequence_id = sequence_id
        self._line = bytearray()
        self._event = bytearray()
        self._usage: _Usage | None = None
        self._finish: tuple[FinishReason, str | int | None] | None = None
        self.output_tokens = 0
        self.is_complete = False

    def feed(self, data: bytes) -> Iterator[Delta]:
        """What these bytes add, up to where they break if they do. To be read to its end before the next bytes.

        Raises:
            StreamBroken: they are no answer.
        """
        first, *others = data.split(b"\n")  # only what is new is searched: an event in a thousand pieces costs no more than in one
        self._line += first
        for following in others:
            line, self._line = bytes(self._line), bytearray(following)
            yield from self._ended_line(line.removesuffix(b"\r"))
        if len(self._line) + len(self._event) > MAX_EVENT_BYTES:
            raise StreamBroken(f"the remote server sent an event of more than {MAX_EVENT_BYTES} bytes")

    def end(self) -> list[Delta]:
        """The stream's end: the last delta, if it has not been given.

        Raises:
            StreamBroken: the answer is not complete.
        """
        if self.is_complete:
            return []
        if not self.has_finished:
            raise StreamBroken("the remote server ended its stream in the middle of the answer")
        return [self._last()]

    @property
    def has_finished(self) -> bool:
        """Whether the answer is whole; its counts may still come."""
        return self._finish is not None

    def cancelled(self) -> Delta:
        """The delta that ends a cancelled sequence."""
        return Delta(sequence_id=self._sequence_id, output_tokens=self.output_tokens, finish_reason="cancelled")

    def _ended_line(self, line: bytes) -> Iterator[Delta]:
        if line.startswith(b"data:"):
            self._event += line[5:].removeprefix(b" ") + b"\n"
        elif not line and self._event:
            event, self._event = bytes(self._event), bytearray()
            yield from self._ended_event(event)

    def _ended_event(self, event: bytes) -> Iterator[Delta]:
        if self.is_complete:
            return
        if event.strip() == b"[DONE]":
            yield from self.end()
            return
        try:
            chunk = _chunks.decode(event)
        except (msgspec.DecodeError, RecursionError):
            raise StreamBroken("the remote server sent an event that is not a chunk of an answer") from None
        if chunk.error is not None:
            raise StreamBroken(f"the remote server failed in its stream{_named(event)}")
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            yield from self._choice(choice)

    def _choice(self, choice: _Choice) -> Iterator[Delta]:
        text = (choice.delta.content if choice.delta is not None else choice.text) or ""
        logprobs = _logprobs(choice.logprobs) if choice.logprobs is not None else ()
        self.output_tokens += len(logprobs) or bool(text)
        if choice.finish_reason in _GIVEN_UP:
            raise StreamBroken("the remote server gave the answer up")
        if choice.finish_reason is not None:
            self._finish = (_finish_reason(choice.finish_reason), choice.stop_reason)
        if text or logprobs:
            yield Delta(sequence_id=self._sequence_id, text=text, logprobs=logprobs, output_tokens=self.output_tokens)

    def _last(self) -> Delta:
        assert self._finish is not None, "only a finished answer has a last delta"
        self.is_complete = True
        usage = self._usage or _Usage()
        self.output_tokens = self.output_tokens if usage.completion_tokens is None else usage.completion_tokens
        details = usage.prompt_tokens_details
        return Delta(
            sequence_id=self._sequence_id,
            prompt_tokens=usage.prompt_tokens or 0,
            cached_tokens=(details.cached_tokens or 0) if details is not None else 0,
            output_tokens=self.output_tokens,
            finish_reason=self._finish[0],
            stop_reason=self._finish[1],
        )


def _named(body: bytes) -> str:
    word = error_class(body)
    return f" ({word})" if word else ""


def _finish_reason(reason: str) -> Literal["stop", "length"]:
    """A server's other reasons (a tool call, a filter) are ends of its own choosing: stops."""
    return "length" if reason == "length" else "stop"


def _logprobs(logprobs: _Logprobs) -> tuple[TokenLogprob, ...]:
    if logprobs.content is not None:
        return tuple(_chat_logprob(token) for token in logprobs.content)
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(tokens)
    return tuple(
        TokenLogprob(
            token_id=_UNKNOWN_TOKEN_ID,
            text=token,
            bytes_=token.encode(),
            logprob=value or 0.0,
            top=tuple((_UNKNOWN_TOKEN_ID, text, text.encode(), each) for text, each in (top or {}).items()),
        )
        for token, value, top in zip(tokens, values, tops, strict=False)
    )


def _chat_logprob(token: _TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        token_id=_UNKNOWN_TOKEN_ID,
        text=token.token,
        bytes_=_bytes(token),
        logprob=token.logprob,
        top=tuple((_UNKNOWN_TOKEN_ID, other.token, _bytes(other), other.logprob) for other in token.top_logprobs or ()),
    )


def _bytes(token: _TopLogprob) -> bytes:
    given = token.bytes
    return bytes(given) if given is not None and all(0 <= value < 256 for value in given) else token.token.encode()
