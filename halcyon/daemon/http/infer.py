"""`POST /v1/infer`: Halcyon's own endpoint, whose answer carries the account of how it was served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET

from halcyon.config.settings import Limits
from halcyon.daemon.http.answers import Answers
from halcyon.daemon.http.asked import Asked
from halcyon.daemon.http.messages import messages_bytes, messages_of, text_bytes
from halcyon.daemon.http.sampling import choices_of, sampling_of, unsaid_of
from halcyon.daemon.http.wishes import lane_of
from halcyon.daemon.http.wording import chat_logprobs
from halcyon.errors import InvalidRequest
from halcyon.wire.api_infer import INFER_BODY, InferAnswer, InferEnd, InferPart, InferRequest
from halcyon.wire.inference import Account, InferenceCall, Part

_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")


def read_infer(data: bytes, *, limits: Limits, request_id: str) -> Asked:
    """A `Dialect`."""
    del request_id  # the account carries it
    body = INFER_BODY.decode(data)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    call = InferenceCall(
        model=body.model,
        version=body.version or "",
        sampling=sampling_of(
            body,
            limits=limits,
            max_output_tokens=body.max_output_tokens,
            logprobs=bool(body.logprobs),
            top_logprobs=body.top_logprobs or 0,
        ),
        n=choices_of(body, limits),
        stream=bool(body.stream),
        deadline_ms=body.deadline_ms,
        ttft_ms=body.ttft_ms,
        tpot_ms=body.tpot_ms,
        lane=lane_of(body.lane or "", shown="`lane`", param="lane"),
        session_key=body.session_key or "",
        return_token_ids=bool(body.return_token_ids),
        replica_id=body.replica_id or "",
        endpoint="infer",
        unsaid=unsaid_of(body),
    )
    return Asked(calls=(_with_input(call, body),), reply=InferReply(body))


def _with_input(call: InferenceCall, body: InferRequest) -> InferenceCall:
    if isinstance(body.input, str):
        if not body.input:
            raise InvalidRequest("`input` is empty; send text or messages", param="input")
        return msgspec.structs.replace(call, text=body.input, input_bytes=text_bytes(body.input))
    messages = messages_of(body.input, field="input")
    return msgspec.structs.replace(call, messages=messages, input_bytes=messages_bytes(messages))


class InferReply:
    """A `Reply`: parts, then the account."""

    def __init__(self, body: InferRequest) -> None:
        self._single = (body.n or 1) == 1
        self._logprobs = bool(body.logprobs)
        self._token_ids = bool(body.return_token_ids)
        self._finish_reasons = [""] * (body.n or 1)

    def whole(self, answers: Answers, account: Account) -> bytes:
        """The body of a plain answer."""
        answer = InferAnswer(
            **msgspec.structs.asdict(account),
            output=self._one_or_all([answer.text for answer in answers]),
            finish_reason=self._one_or_all([answer.finish_reason for answer in answers]),
            logprobs=self._flat_or_nested([chat_logprobs(answer.logprobs) for answer in answers]) if self._logprobs else UNSET,
            token_ids=self._flat_or_nested([answer.token_ids for answer in answers]) if self._token_ids else UNSET,
        )
        return _encode(answer)

    def step(self, parts: Sequence[Part]) -> bytes:
        """One object for every part that shows something."""
        events: list[bytes] = []
        for part in parts:
            if part.finish_reason:
                self._finish_reasons[part.index] = part.finish_reason
            if part.text or part.finish_reason or part.logprobs or (self._token_ids and part.token_ids):
                events.append(b"data: " + _encode(self._part(part)) + b"\n\n")
        return b"".join(events)

    def ending(self, account: Account) -> bytes:
        """The account."""
        end = InferEnd(**msgspec.structs.asdict(account), finish_reason=self._one_or_all(self._finish_reasons))
        return b"data: " + _encode(end) + b"\n\n"

    def _part(self, part: Part) -> InferPart:
        return InferPart(
            index=part.index,
            text=part.text,
            output_tokens=part.output_tokens,
            finish_reason=part.finish_reason,
            logprobs=chat_logprobs(part.logprobs) if self._logprobs and part.logprobs else UNSET,
            token_ids=list(part.token_ids) if self._token_ids else UNSET,
        )

    def _one_or_all(self, values: list[_T]) -> _T | list[_T]:
        return values[0] if self._single else values

    def _flat_or_nested(self, lists: list[list[_T]]) -> list[_T | list[_T]]:
        return [*lists[0]] if self._single else [*lists]
