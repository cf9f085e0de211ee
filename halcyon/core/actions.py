"""Orders the core gives the shell: frozen, imperative. Every request that arrived gets exactly one terminal order or ending:
it is served to its end, `Refuse`d (before any byte) or `Fail`ed (the replica broke and nothing can replace it), or its client left.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request is not served. A value, not an exception.

    Attributes:
        code: a wire code of `halcyon.errors`.
        message: a sentence for the client; says what to do next; no prompt text.
        retry_after_ms: computed; `None` where a retry cannot help.
        details: the numbers behind it.
    """

    code: str
    message: str
    retry_after_ms: int | None = None
    details: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """Send these requests to this replica as one batch.

    Attributes:
        batch_id: unique for the life of the core, from 1.
        request_ids: in order of service.
        reason: why now and why there, one of `slot_free`, `saturated`, `deadline`, `linger`, `density`, `drain`, `retry`.
        batch_size: sequences in this dispatch. queue_depth: requests still waiting for (model, version) after it.
        eligible_replicas: how many could have been chosen.
        predicted_tokens / predicted_ns: size and duration expected of the batch; 0 for replicas of which nothing is predicted here.
        output_guess: what the answers' lengths were guessed from: `max_tokens`, `prior`, `learned`, or several with commas.
    """

    batch_id: int
    replica_id: str
    request_ids: tuple[str, ...]
    reason: str
    batch_size: int
    queue_depth: int
    eligible_replicas: int
    predicted_tokens: int = 0
    predicted_ns: int = 0
    output_guess: str = ""


@dataclass(frozen=True)
class Refuse:
    """Answer the request with an error; nothing of it was sent to the client and nothing of it runs."""

    request_id: str
    refusal: Refusal


@dataclass(frozen=True)
class Fail:
    """End the request with an error although part of the answer may have been sent (mid-stream: an error event, then a clean end)."""

    request_id: str
    refusal: Refusal


@dataclass(frozen=True)
class Cancel:
    """Stop whatever runs for the request on the replica; its slots stay taken until `SequencesFinished` or `ReplicaLost` says otherwise."""

    request_id: str
    replica_id: str


@dataclass(frozen=True)
class ReplicaEmptied:
    """A draining replica has nothing left: the shell may stop it."""

    replica_id: str


@dataclass(frozen=True)
class DrainFinished:
    """A draining core has nothing left: the shell may end."""


Action = Dispatch | Refuse | Fail | Cancel | ReplicaEmptied | DrainFinished
