"""`POST /v1/chat/completions`: bodies in, completions and chunks out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from halcyon import clock
from halcyon.config.settings import Limits
from halcyon.daemon.http.answers import Answer, Answers
from halcyon.daemon.http.asked import Asked
from halcyon.daemon.http.messages import messages_bytes, messages_of
from halcyon.daemon.http.sampling import agreed_max_tokens, choices_of, sampling_of, unsaid_of
from halcyon.daemon.http.streamed_usage import StreamedUsage, check_stream_options
from halcyon.daemon.http.wording import chat_logprobs, usage_of
from halcyon.errors import InvalidRequest
from halcyon.wire.inference import Account, InferenceCall, Part
from halcyon.wire.openai import (
    CHAT_BODY,
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
)

_encode = msgspec.json.Encoder().encode
_ROLE = ChatDelta(role="assistant", content="")
_NOTHING = ChatDelta()


def read_chat(data: bytes, *, limits: Limits, request_id: str) -> Asked:
    """A `Dialect`."""
    body = CHAT_BODY.decode(data)
    check_stream_options(body.stream_options, stream=bool(body.stream))
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    messages = messages_of(body.messages, field="messages")
    call = InferenceCall(
        model=body.model,
        messages=messages,
        sampling=sampling_of(
            body,
            limits=limits,
            max_output_tokens=agreed_max_tokens(body.max_tokens, body.max_completion_tokens),
            logprobs=bool(body.logprobs),
            top_logprobs=body.top_logprobs or 0,
        ),
        n=choices_of(body, limits),
        stream=bool(body.stream),
        session_key=body.user or "",
        input_bytes=messages_bytes(messages),
        return_token_ids=bool(body.return_token_ids),
        endpoint="chat",
        unsaid=unsaid_of(body),
    )
    return Asked(calls=(call,), reply=ChatReply(body, request_id))


class ChatReply:
    """A `Reply`. One chunk for every part that shows something; the first one of a choice is preceded by its role."""

    def __init__(self, body: ChatRequest, request_id: str) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._model = body.model
        self._created_s = int(clock.wall_s())
        self._logprobs = bool(body.logprobs)
        self._token_ids = bool(body.return_token_ids)
        self._usage = StreamedUsage(body.stream_options, choices=body.n or 1, choices_per_prompt=body.n or 1)
        self._begun: set[int] = set()

    def whole(self, answers: Answers, account: Account) -> bytes:
        """The body of a plain answer."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        answer = ChatAnswer(id=self._id, created=self._created_s, model=self._model, choices=choices, usage=usage_of(account.usage))
        return _encode(answer)

    def step(self, parts: Sequence[Part]) -> bytes:
        """The chunks for one step."""
        events: list[bytes] = []
        for part in parts:
            self._usage.add(part)
            if not (part.text or part.finish_reason or part.logprobs or (self._token_ids and part.token_ids)):
                continue
            if part.index not in self._begun:
                self._begun.add(part.index)
                events.append(self._event((ChatChunkChoice(index=part.index, delta=_ROLE),)))
            events.append(self._event((self._chunk_choice(part),)))
        return b"".join(events)

    def ending(self, account: Account) -> bytes:
        """The usage chunk, where it was asked for."""
        if not self._usage.at_end:
            return b""
        chunk = ChatChunk(id=self._id, created=self._created_s, model=self._model, choices=(), usage=usage_of(account.usage))
        return b"data: " + _encode(chunk) + b"\n\n"

    def _event(self, choices: tuple[ChatChunkChoice, ...]) -> bytes:
        chunk = ChatChunk(id=self._id, created=self._created_s, model=self._model, choices=choices, usage=self._usage.for_chunk())
        return b"data: " + _encode(chunk) + b"\n\n"

    def _chunk_choice(self, part: Part) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=part.index,
            delta=ChatDelta(part.text) if part.text else _NOTHING,
            logprobs=ChatLogprobs(chat_logprobs(part.logprobs)) if part.logprobs and self._logprobs else None,
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason if part.finish_reason else UNSET,
            token_ids=list(part.token_ids) if self._token_ids else UNSET,
        )

    def _choice(self, index: int, answer: Answer) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AnswerMessage(answer.text),
            logprobs=ChatLogprobs(chat_logprobs(answer.logprobs)) if self._logprobs else None,
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self._token_ids else UNSET,
        )
