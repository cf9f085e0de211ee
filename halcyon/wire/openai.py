"""The OpenAI API's bodies, as far as Halcyon speaks it: `/v1/completions`, `/v1/chat/completions`, `/v1/models`.

What lives here: shapes, units and what each field may hold. What must not: limits of a daemon, or how a request is served. Fields that
vLLM and its clients add (`top_k`, `ignore_eos`, `min_tokens`, `stop_token_ids`, `return_token_ids`) go by their names there. Fields
that exist elsewhere and mean nothing here are listed with the values at which they change nothing; at any other value they are refused.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from halcyon.wire.api_body import MAX_ITEMS, Body, Fields

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
NotNegative = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Name = Annotated[str, Meta(max_length=256)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """include_usage: a last chunk without choices carries the usage. continuous_usage_stats: every chunk does."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every endpoint says about how tokens are drawn and sent. `None`: the client said nothing.

    Fields:
        top_k: −1 and 0 keep all. n: answers wanted. stop: strings that end an answer and are not part of it.
        return_token_ids: answers carry the ids of their tokens.
    """

    model: Name
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    n: Positive | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    min_tokens: NotNegative | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content; `type` is `text`, the only kind there is here."""

    type: str
    text: str


class ChatTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message; several text parts are joined."""

    role: str
    content: str | list[TextPart] | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/chat/completions`. `metadata` is accepted and not read."""

    messages: Annotated[list[ChatTurn], Meta(max_length=MAX_ITEMS)]
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"null")


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/completions`.

    Fields:
        prompt: text, token ids, or several of either.
        max_tokens: absent for the API's small default; null for as much as the context holds.
    """

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Positive | UnsetType | None = UNSET
    max_completion_tokens: Positive | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"null")


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "logit_bias": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "best_of": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (0,),
    "priority": (0,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
}

_CHAT_NEUTRAL = _NEUTRAL | {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "include_reasoning": (True,),
    "mm_processor_kwargs": ({},),
    "echo": (False,),
}

_COMPLETION_NEUTRAL = _NEUTRAL | {"echo": (False,), "suffix": ("",), "add_special_tokens": (True,)}

_MESSAGE_NEUTRAL: dict[str, tuple[object, ...]] = {
    "name": (),
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "tool_calls": ([],),
    "tool_call_id": (),
    "reasoning": (),
    "reasoning_content": (),
}

_PART_NEUTRAL: dict[str, tuple[object, ...]] = {
    "image_url": (),
    "input_audio": (),
    "video_url": (),
    "file": (),
    "refusal": (),
    "cache_control": (),
}

_STREAM_OPTIONS = Fields(StreamOptions, neutral={"include_obfuscation": (False,)})
TURN_FIELDS = Fields(ChatTurn, neutral=_MESSAGE_NEUTRAL, nested={"content": Fields(TextPart, neutral=_PART_NEUTRAL)})

CHAT_BODY: Body[ChatRequest] = Body(
    ChatRequest, Fields(ChatRequest, neutral=_CHAT_NEUTRAL, nested={"messages": TURN_FIELDS, "stream_options": _STREAM_OPTIONS})
)
COMPLETION_BODY: Body[CompletionRequest] = Body(
    CompletionRequest, Fields(CompletionRequest, neutral=_COMPLETION_NEUTRAL, nested={"stream_options": _STREAM_OPTIONS})
)


# ---- answers ---------------------------------------------------------------------------------------------------------


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many of the prompt's tokens a prefix cache held."""

    cached_tokens: int


class OpenAIUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Exact token counts over all choices; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative token. `bytes` are its exact bytes; `logprob` is a natural logarithm, −9999 at the least."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """One token of a chat answer, with its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a choice's tokens, in order."""

    content: list[ChatLogprob]


class AnswerMessage(msgspec.Struct, frozen=True):
    """What the model said."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `token_ids` stands only where it was asked for."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/chat/completions`. `created`: seconds since the Unix epoch."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: OpenAIUsage
    object: str = "chat.completion"


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds; the first one of a choice carries the role."""

    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event of a chat stream. `usage`: absent unless asked for, null on all chunks that do not carry it."""

    id: str
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: OpenAIUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The legacy shape: parallel lists over the tokens. text_offset: characters before the token in the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, whole or the part that a chunk carries."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class CompletionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/completions`, and each chunk of its stream."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: OpenAIUsage | UnsetType | None = UNSET
    object: str = "text_completion"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Beside OpenAI's fields: the version it resolves to, its context in tokens, replicas that can serve now."""

    id: str
    version: str
    max_model_len: int
    ready: int
    created: int = 0
    owned_by: str = "halcyon"
    object: str = "model"


class ModelCards(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"
