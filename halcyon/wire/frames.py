"""The frames that pass between the daemon and one worker, in both directions.

A worker serves one replica. The daemon speaks first (`Configure`), the worker reports `Stage`s until `Ready`, then the daemon sends
`Submit` and `Cancel` at will and the worker answers with one `Iteration` frame per iteration of its engine. Every sequence that was
submitted ends in exactly one of: a delta with `finish_reason`, or a `SequenceFailed`. A cancelled sequence ends in a delta with
`finish_reason="cancelled"`. Instants are absolute nanoseconds of CLOCK_MONOTONIC, which all processes of one machine share.

What must not be here: anything that decides, and any text in an error. `message` fields never carry prompt or answer text.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL = 1
"""Bumped when a frame changes shape; a worker that answers with another number is refused."""

FinishReason = Literal["stop", "length", "cancelled"]
StageName = Literal["starting", "preparing", "loading", "warming", "ready"]


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation, as the chat template sees it."""

    role: str
    content: str


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn, per sequence.

    Fields:
        temperature: 0 is greedy (argmax of the raw logits, lowest id on a tie).
        top_p: nucleus mass in (0, 1]. top_k: 0 keeps all.
        seed: draws depend only on (seed, absolute position, logits), never on the batch around it; `None` draws a fresh seed.
        max_output_tokens: a real maximum; `None` means what the context leaves.
        ignore_eos: go on past the end-of-sequence token until `max_output_tokens`.
        stop: strings that end the answer; they are never part of it.
        stop_token_ids: token ids that end the answer, beside the tokenizer's own.
        logprobs: report the chosen token's log-probability under the raw distribution. top_logprobs: and of that many best (0..20).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_output_tokens: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to produce. A request with n > 1 is n sequences `"{request_id}/{index}"`, sent in one `Submit`.

    Exactly one of `messages`, `text`, `token_ids` is set.

    Fields:
        ttft_deadline_ns / deadline_ns: absolute instants by which the first token / the whole answer is due; `None` without one.
        tpot_ns: objective for the time per output token; `None` without one.
        return_token_ids: send `token_ids` in every delta (they are always sent when logprobs are).
    """

    sequence_id: str
    messages: tuple[ChatMessage, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    arrived_ns: int = 0
    deadline_ns: int | None = None
    ttft_deadline_ns: int | None = None
    tpot_ns: int | None = None
    lane: Literal["interactive", "bulk"] = "interactive"
    priority: int = 0
    return_token_ids: bool = False


# ---- daemon → worker -------------------------------------------------------------------------------------------------


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """First frame: everything the worker needs to know. `model` is `halcyon.config.settings.ModelSettings` as plain data
    (`msgspec.to_builtins`), read back with `msgspec.convert`."""

    protocol: int
    replica_id: str
    replica_index: int
    model: dict[str, object]
    cache_dir: str
    heartbeat_interval_ns: int


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Sequences to serve. A continuous worker lets them join; a batch worker runs each `Submit` as one batch."""

    batch_id: int
    sequences: tuple[Sequence, ...]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop these sequences within one iteration and free their KV blocks. Unknown ids are ignored (they may just have ended)."""

    sequence_ids: tuple[str, ...]


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Finish nothing, exit with status 0. (Draining is the daemon's business: it stops only an empty worker.)"""


ToWorker = Configure | Submit | Cancel | Stop

# ---- worker → daemon -------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The worker lives and speaks this protocol."""

    pid: int
    protocol: int


class Stage(msgspec.Struct, frozen=True, tag="stage"):
    """Progress to `ready`. `progress` in [0, 1] where it can be measured; `detail` is a short phrase for people."""

    stage: StageName
    detail: str = ""
    progress: float | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The replica can serve. Sizes are tokens, blocks or bytes as named; 0 where the runtime has no such thing."""

    kind: Literal["continuous", "batch"]
    max_batch: int
    max_context: int
    kv_blocks_total: int = 0
    kv_block_tokens: int = 0
    weights_bytes: int = 0
    kv_bytes: int = 0
    device: str = "cpu"
    dtype: str = ""
    architecture: str = ""
    has_chat_template: bool = False
    load_ns: int = 0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token's log-probability (natural log). `text` is its own bytes decoded with replacement; `bytes_` are exact."""

    token_id: int
    text: str
    bytes_: bytes
    logprob: float
    top: tuple[tuple[int, str, bytes, float], ...] = ()


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one iteration added to one sequence.

    Fields:
        text: complete characters only, and never a part of a stop string; may be empty while either is pending.
        token_ids: this iteration's ids when asked for, else empty. logprobs: one per token when asked for.
        prompt_tokens / cached_tokens: set (>0 / >=0) on a sequence's first delta: prompt length, and how much of it the prefix
            cache held.
        output_tokens: how many tokens this sequence has produced so far, all counted (EOS counts, text cut by a stop string counts).
        finish_reason: set on the last delta.
        stop_reason: the stop string or token id that ended it, where one did.
    """

    sequence_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Iteration(msgspec.Struct, frozen=True, kw_only=True, tag="iteration"):
    """One iteration of the engine (or one batch of a batch replica), with everything it produced.

    Fields:
        number: counts from 1 since `Ready`. started_ns / duration_ns: monotonic clock.
        running: sequences in decode or prefill in this iteration. waiting: submitted, not started.
        decode_tokens / prefill_tokens: tokens processed, by kind. batch_id: of the `Submit`, for batch replicas; else 0.
        kv_blocks_used: held by live sequences. kv_blocks_cached: kept only for prefix sharing, reclaimable. kv_blocks_free: the rest.
        preempted: sequences put back to waiting in this iteration.
    """

    number: int
    started_ns: int
    duration_ns: int
    running: int
    waiting: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    batch_id: int = 0
    kv_blocks_used: int = 0
    kv_blocks_free: int = 0
    kv_blocks_cached: int = 0
    preempted: int = 0
    deltas: tuple[Delta, ...] = ()


class SequenceFailed(msgspec.Struct, frozen=True, kw_only=True, tag="sequence_failed"):
    """A sequence that cannot be served. `code` is a wire code of `halcyon.errors` (`invalid_request`, `upstream_failure`, …);
    `retryable` says whether another replica might do better; `busy` that this replica is merely full."""

    sequence_id: str
    code: str
    message: str
    param: str | None = None
    retryable: bool = False
    busy: bool = False


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent every `heartbeat_interval_ns` by a thread that does not wait behind user work.

    `engine_progress_ns` is the last instant the engine made progress (or was idle), so that *alive* and *advancing* stay apart.
    The KV figures and counts let the daemon see an idle worker return to zero.
    """

    sent_ns: int
    engine_progress_ns: int
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_free: int = 0
    kv_blocks_cached: int = 0
    rss_bytes: int = 0


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The worker is about to exit and says why. `retryable` is False where a restart cannot help (a missing model)."""

    message: str
    retryable: bool = True


FromWorker = Hello | Stage | Ready | Iteration | SequenceFailed | Heartbeat | Fatal
