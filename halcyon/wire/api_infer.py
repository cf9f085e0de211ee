"""The bodies of `POST /v1/infer`, Halcyon's own endpoint, on both sockets.

A plain answer is one `InferAnswer`. A stream is server-sent events without an `event` field: `InferPart`s, one `InferEnd`, `[DONE]`; a
part has the key `index`, the end has the key `replica_id`, an error has the key `error`. Request fields may also be written in
camelCase, one spelling a field. Durations are milliseconds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from halcyon.wire.api_body import MAX_ITEMS, Body, Fields
from halcyon.wire.inference import Account
from halcyon.wire.openai import TURN_FIELDS, ChatLogprob, ChatTurn, Name, Positive, SamplingFields

LONGEST_OBJECTIVE_MS = 7 * 24 * 3600 * 1000
ObjectiveMs = Annotated[int, Meta(ge=1, le=LONGEST_OBJECTIVE_MS)]


class InferRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client asks. input: text as it stands, or messages for the model's chat template.

    Fields:
        version, session_key, replica_id: absent for the daemon's choice. lane: `interactive` (the default) or `bulk`.
        *_ms: objectives, milliseconds from arrival.
    """

    input: str | Annotated[list[ChatTurn], Meta(max_length=MAX_ITEMS)]
    version: Name | None = None
    session_key: Annotated[str, Meta(max_length=512)] | None = None
    lane: str | None = None
    deadline_ms: ObjectiveMs | None = None
    ttft_ms: ObjectiveMs | None = None
    tpot_ms: ObjectiveMs | None = None
    max_output_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    replica_id: Name | None = None


class InferPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one answer. output_tokens: of this answer so far."""

    index: int
    text: str
    output_tokens: int
    finish_reason: str | None = None
    logprobs: list[ChatLogprob] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class InferEnd(Account, frozen=True, kw_only=True):
    """The stream's last object: the account, and how each answer ended (a list when n > 1)."""

    finish_reason: str | list[str]


class InferAnswer(Account, frozen=True, kw_only=True):
    """The plain answer: the account and the output. `output` and the fields that go with it are lists when n > 1."""

    output: str | list[str]
    finish_reason: str | list[str]
    logprobs: list[ChatLogprob | list[ChatLogprob]] | UnsetType = UNSET
    token_ids: list[int | list[int]] | UnsetType = UNSET


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


INFER_BODY: Body[InferRequest] = Body(
    InferRequest,
    Fields(
        InferRequest,
        spellings={_camel(name): name for name in InferRequest.__struct_fields__ if "_" in name},
        elsewhere={"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens", "prompt": "input", "messages": "input"},
        nested={"input": TURN_FIELDS},
    ),
)
