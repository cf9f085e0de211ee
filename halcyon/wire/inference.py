"""One inference call and its answer, in the one form that every endpoint is translated to and from.

`/v1/infer`, `/v1/completions`, `/v1/chat/completions` and the control socket build an `InferenceCall`; the daemon's service yields
`Part`s and, at the end, an `Account`. Durations and instants on this level are milliseconds, as clients write them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from halcyon.wire.frames import ChatMessage, FinishReason, Sampling, TokenLogprob


class InferenceCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks. Exactly one of `messages`, `text`, `token_ids` is set.

    Fields:
        model: as the client named it (`name`, or `name@version`). version: "" lets rollout choose.
        n: answers wanted. Answer i draws with seed + i when a seed is given.
        stream: the client reads parts as they come.
        lane, session_key, deadline_ms, ttft_ms, tpot_ms: "" / None where the client said nothing.
        input_bytes: size of the prompt text in UTF-8, for the estimate of its tokens.
        replica_id: pin to one replica; "" for the router's choice.
        unsaid: fields of `sampling` the client left out and the model's settings may fill: `temperature`, `top_p`.
    """

    model: str
    version: str = ""
    messages: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    n: int = 1
    stream: bool = False
    deadline_ms: int | None = None
    ttft_ms: int | None = None
    tpot_ms: int | None = None
    lane: Literal["interactive", "bulk", ""] = ""
    session_key: str = ""
    input_bytes: int = 0
    return_token_ids: bool = False
    replica_id: str = ""
    endpoint: Literal["infer", "completions", "chat"] = "infer"
    unsaid: tuple[Literal["temperature", "top_p"], ...] = ()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one iteration added to one answer.

    Fields:
        index: which answer (0 … n−1). text: whole characters, never part of a stop string.
        prompt_tokens / cached_tokens: set on the answer's first part. output_tokens: of this answer so far.
        finish_reason: set on its last part; `stop_reason` names the stop string or token id where one ended it.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Exact token counts over all answers of a request. `prompt_tokens` counts the prompt once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds since the request arrived (`queue_ms`, `ttft_ms`, `total_ms`), and per token (`tpot_ms`: mean after the first).
    `None` where it did not come to that."""

    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    total_ms: float | None = None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """How the schedulers served a request: what `halcyon infer` prints and `/v1/infer` returns.

    Fields:
        batch_size: sequences dispatched together with it, itself included. batch_reason: why the batch left when it did.
        queue_depth: requests left waiting behind it at that moment. attempts: dispatches it took (2 after one lost replica).
        eligible_replicas: how many could have been chosen.
    """

    request_id: str
    model: str
    version: str
    replica_id: str
    usage: Usage
    timings: Timings
    batch_size: int = 0
    batch_reason: str = ""
    queue_depth: int = 0
    eligible_replicas: int = 0
    attempts: int = 1
    hedged: bool = False
