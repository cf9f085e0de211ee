"""What the CLI and the daemon say to each other over the control socket (`/v1/control/…`, JSON).

    GET    /v1/control/status                    → Status
    POST   /v1/control/down        DownRequest   → Status (after the drain has begun)
    GET    /v1/control/models                    → ModelList
    GET    /v1/control/replicas                  → ReplicaList
    POST   /v1/control/replicas    RegisterRequest → ReplicaStatus
    POST   /v1/control/replicas/{id}/drain       → ReplicaStatus
    DELETE /v1/control/replicas/{id}             → ReplicaStatus
    POST   /v1/infer, /v1/chat/completions, …    the same handlers as on TCP

Errors have the same body as on TCP. All keys are stable.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ReplicaState = Literal["starting", "preparing", "loading", "warming", "ready", "draining", "waiting", "failed", "removed"]
"""`waiting`: dead, restart scheduled; `failed`: given up, an operator must act."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as people and scripts see it. Ages and instants: seconds, wall clock where named `_at`.

    Fields:
        detail: what it is doing or why it is not ready; `progress` in [0, 1] where known.
        restarts: how often it was started again; next_restart_s: until the next try; `None` when none is planned.
        outstanding: sequences dispatched and not ended. kv_*: blocks.
        registered: by an operator at run time, and kept for the next daemon of this state directory; not of the fleet file.
    """

    replica_id: str
    model: str
    version: str
    runtime: str
    state: ReplicaState
    detail: str = ""
    progress: float | None = None
    pid: int | None = None
    url: str = ""
    device: str = ""
    dtype: str = ""
    kind: str = ""
    max_batch: int = 0
    max_context: int = 0
    outstanding: int = 0
    running: int = 0
    kv_blocks_used: int = 0
    kv_blocks_free: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_total: int = 0
    served: int = 0
    failed: int = 0
    restarts: int = 0
    next_restart_s: float | None = None
    last_error: str = ""
    rss_bytes: int = 0
    weights_bytes: int = 0
    ready_s: float | None = None
    registered: bool = False


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one model. `default` marks the version unnamed requests get; `coming` counts replicas on their way to ready."""

    name: str
    version: str
    runtime: str
    source: str
    default: bool
    replicas: int
    ready: int
    queued: int = 0
    max_context: int = 0
    deadline_ms: int | None = None
    ttft_ms: int | None = None
    tpot_ms: int | None = None
    coming: int = 0


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of the history. `degraded` says why rows are being lost (a full disk, a locked or corrupt file); serving goes on.

    Fields:
        set_aside: where this daemon moved the last corrupt file; '' when it met none.
    """

    path: str
    rows_written: int = 0
    rows_dropped: int = 0
    degraded: str = ""
    set_aside: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon at a glance.

    Fields:
        state: `starting` until every replica is ready or given up, then `ready` or `degraded`; `draining` at the end.
        fleet_digest: of the settings that the fleet file held when the daemon read it; see `halcyon.config.load.fleet_digest`.
    """

    pid: int
    version: str
    state: Literal["starting", "ready", "degraded", "draining"]
    listen: str
    socket: str
    state_dir: str
    fleet: str
    uptime_s: float
    queued: int
    running: int
    connections: int
    requests_total: int
    replicas: tuple[ReplicaStatus, ...]
    models: tuple[ModelStatus, ...]
    store: StoreStatus
    fleet_digest: str = ""


class DownRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`now`: end running requests with an error instead of waiting for them."""

    now: bool = False


class RegisterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Register a remote OpenAI-compatible server as one more replica of (model, version).

    `new`: make the model where there is none of that name; without it an unknown one is refused.
    """

    model: str
    url: str
    version: str = ""
    remote_model: str = ""
    api_key_env: str = ""
    max_batch: int = 32
    max_context: int = 2048
    new: bool = False


class ReplicaList(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas, in fleet order, registered ones last."""

    replicas: tuple[ReplicaStatus, ...]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All versions of all models, in fleet order."""

    models: tuple[ModelStatus, ...]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `error` object of every failed answer, on both sockets. OpenAI's SDKs read `message`, `type`, `param`, `code`."""

    code: str
    message: str
    type: str
    param: str | None = None
    retry_after_ms: int | None = None
    request_id: str | None = None
    details: dict[str, int | float | str] | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    """`{"error": {...}}`."""

    error: ErrorBody
