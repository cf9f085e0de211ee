"""Facts the shell tells the core: frozen, in the past tense. `ControlPlane.handle(event, now=...)` takes one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halcyon.core.request import Request


@dataclass(frozen=True)
class RequestArrived:
    """A request passed the shell's own checks (shape, key) and asks to be served."""

    request: Request


@dataclass(frozen=True)
class ClientGone:
    """The client left; whatever is queued or running for it must stop."""

    request_id: str


@dataclass(frozen=True, kw_only=True)
class ReplicaAdded:
    """A replica exists (in state `starting`). max_batch: slots it serves at once."""

    replica_id: str
    model: str
    version: str
    kind: Literal["continuous", "batch"]
    max_batch: int


@dataclass(frozen=True, kw_only=True)
class ReplicaReady:
    """The replica may be selected from now on. kind and max_batch as it reported them."""

    replica_id: str
    kind: Literal["continuous", "batch"]
    max_batch: int


@dataclass(frozen=True)
class ReplicaDrainStarted:
    """An operator (or scaling) wants the replica empty: no new work, running work finishes."""

    replica_id: str


@dataclass(frozen=True)
class ReplicaLost:
    """The process died, the connection broke, or it made no progress. It may come back (`ReplicaReady` again)."""

    replica_id: str
    reason: str


@dataclass(frozen=True)
class ReplicaRemoved:
    """The replica will not come back."""

    replica_id: str


@dataclass(frozen=True)
class FirstByteSent:
    """The client has seen part of the answer: from now on the request can never be replayed elsewhere."""

    request_id: str


@dataclass(frozen=True, kw_only=True)
class SequencesFinished:
    """`count` sequences of the request ended on the replica (their slots are free)."""

    request_id: str
    replica_id: str
    count: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class RequestFailed:
    """The replica could not serve the request. All its remaining sequences there are over.

    retryable: another replica might. busy: this replica is merely full (backpressure, not a fault).
    """

    request_id: str
    replica_id: str
    code: str
    message: str
    retryable: bool
    busy: bool = False


@dataclass(frozen=True, kw_only=True)
class IterationFinished:
    """One iteration (or batch) of a replica is over: the cost models' food. Units: ns, tokens."""

    replica_id: str
    duration_ns: int
    running: int
    decode_tokens: int
    prefill_tokens: int
    batch_id: int = 0


@dataclass(frozen=True)
class DrainStarted:
    """The daemon is going down: nothing new is admitted, everything admitted finishes."""


@dataclass(frozen=True)
class TimerFired:
    """`next_wakeup()` has come; the core looks at its clocks."""


Event = (
    RequestArrived
    | ClientGone
    | ReplicaAdded
    | ReplicaReady
    | ReplicaDrainStarted
    | ReplicaLost
    | ReplicaRemoved
    | FirstByteSent
    | SequencesFinished
    | RequestFailed
    | IterationFinished
    | DrainStarted
    | TimerFired
)
