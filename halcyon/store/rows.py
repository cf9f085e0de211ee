"""The rows of the history. Numbers, names and codes only: no field may ever hold prompt text, an answer or a key.

Every `at` is seconds since the Unix epoch, for people; durations are milliseconds on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = int | float | str | bool | None


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """How one request went (table `requests`).

    Attributes:
        at: when it ended. endpoint: `infer`, `completions`, `chat`. replica_id: the one that answered; '' for none.
        prompt_tokens / output_tokens / cached_tokens: exact counts; cached: prompt tokens found in the KV cache.
        queue_ms: wait in the daemon. ttft_ms: arrival to first token. tpot_ms: mean per further token. total_ms: arrival to end.
            `None` where it did not come to that.
        outcome: `ok`, `cancelled`, or a wire code of `halcyon.errors`. finish_reason: of the last answer; '' without one.
        attempts: dispatches. batch_size: sequences in the last one. deadline_ms: the objective; `None` without.
        on_time: whether every objective was kept; `None` without objectives.
    """

    request_id: str
    at: float
    tenant: str
    model: str
    version: str
    endpoint: str
    outcome: str
    replica_id: str = ""
    stream: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    total_ms: float | None = None
    finish_reason: str = ""
    attempts: int = 0
    batch_size: int = 0
    deadline_ms: int | None = None
    on_time: bool | None = None


@dataclass(frozen=True, kw_only=True)
class DecisionRow:
    """One decision and the numbers behind it (table `decisions`).

    Attributes:
        kind: `dispatch`, `refuse`, `fail`, `cancel`, … reason: the code of the reason, the same word as on the wire.
        request_id / model / version / replica_id: '' where the decision is about none.
        facts: JSON values by name; units in the names.
    """

    at: float
    kind: str
    request_id: str = ""
    model: str = ""
    version: str = ""
    replica_id: str = ""
    reason: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReplicaRow:
    """One event in the life of a replica (table `replicas`).

    Attributes:
        event: `registered`, `removed`, or the state it entered (`starting`, `ready`, `waiting`, …). detail: why, one sentence.
        pid: of the worker; `None` for a remote one. url: of a remote one; ''.
    """

    at: float
    replica_id: str
    model: str
    version: str
    event: str
    runtime: str = ""
    detail: str = ""
    pid: int | None = None
    url: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RegistrationRow:
    """A remote replica that an operator registered and that the next daemon must know (table `registrations`, one row a replica).

    Never pruned; it goes when the replica is removed. `api_key_env` names a variable, it is not a key.
    """

    replica_id: str
    at: float
    model: str
    version: str
    url: str
    remote_model: str = ""
    api_key_env: str = ""
    max_batch: int = 32
    max_context: int = 2048


@dataclass(frozen=True)
class RegistrationRemoved:
    """The registration of `replica_id` is over; its row is deleted."""

    replica_id: str


Row = RequestRow | DecisionRow | ReplicaRow | RegistrationRow | RegistrationRemoved
