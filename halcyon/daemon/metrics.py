"""What Prometheus can ask the daemon. Names are `halcyon_<noun>_<base unit>`; every label is bounded by the fleet, never by clients.

Gauges are read from their owners when they are asked for, so that they cannot drift: an idle daemon shows zero because nothing is there.
A request for a model that does not exist is counted under the model `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from halcyon import clock
from halcyon.core.actions import Action, Dispatch, Fail, Refuse
from halcyon.daemon.traffic import LiveRequest
from halcyon.wire.control import ReplicaStatus, StoreStatus

UNKNOWN = "unknown"

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The daemon's gauges at one instant. queued / running: requests by (model, version). connections: of clients, open now."""

    queued: dict[tuple[str, str], int]
    running: dict[tuple[str, str], int]
    replicas: tuple[ReplicaStatus, ...]
    store: StoreStatus
    connections: int


class Metrics:
    """The daemon's own registry. `snapshot` gives the gauges when they are asked for."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        disable_created_metrics()  # a second series for each, which nobody here reads
        self._registry = CollectorRegistry(auto_describe=False)
        served = ("model", "version")
        self._requests = self._counter(
            "halcyon_requests", "Requests ended, by outcome code (`ok`, `cancelled` or a wire code).", (*served, "code")
        )
        self._tokens = self._counter("halcyon_tokens", "Tokens of ended requests, by kind (prompt, cached, output).", (*served, "kind"))
        self._queue_wait = self._histogram("halcyon_queue_wait_seconds", "Arrival to dispatch.", served, _FAST_S)
        self._ttft = self._histogram("halcyon_ttft_seconds", "Arrival to first token.", served, _SLOW_S)
        self._tpot = self._histogram("halcyon_tpot_seconds", "Mean time per token after the first.", served, _FAST_S)
        self._total = self._histogram("halcyon_request_seconds", "Arrival to the end, of requests that ended well.", served, _SLOW_S)
        self._iterations = self._histogram("halcyon_iteration_seconds", "One iteration (or batch) of a replica.", ("replica",), _FAST_S)
        self._decisions = self._counter("halcyon_decisions", "Orders of the core, by kind and reason.", ("kind", "reason"))
        self._restarts = self._counter("halcyon_worker_restarts", "Times a replica was started again.", ("replica",))
        self._http = self._counter("halcyon_http_requests", "HTTP requests answered, by endpoint and code.", ("endpoint", "code"))
        self._registry.register(_Gauges(snapshot))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> bytes:
        """The exposition text."""
        return bytes(generate_latest(self._registry))

    # ---- what happened -----------------------------------------------------------------------------------------------

    def request_ended(self, live: LiveRequest) -> None:
        """An admitted or refused request of a known model ended."""
        model, version = live.request.model, live.request.version
        account = live.generation.account()
        self._requests.labels(model, version, live.generation.outcome).inc()
        usage = account.usage
        for kind, count in (("prompt", usage.prompt_tokens), ("cached", usage.cached_tokens), ("output", usage.completion_tokens)):
            self._tokens.labels(model, version, kind).inc(count)
        timings = account.timings
        total_ms = timings.total_ms if live.generation.outcome == "ok" else None
        for histogram, value_ms in (
            (self._queue_wait, timings.queue_ms),
            (self._ttft, timings.ttft_ms),
            (self._tpot, timings.tpot_ms),
            (self._total, total_ms),
        ):
            if value_ms is not None:
                histogram.labels(model, version).observe(value_ms / 1000)

    def request_misaddressed(self, code: str) -> None:
        """A call named no model or version of ours."""
        self._requests.labels(UNKNOWN, "", code).inc()

    def decided(self, action: Action) -> None:
        """The core gave an order."""
        match action:
            case Dispatch():
                self._decisions.labels("dispatch", action.reason).inc(len(action.request_ids))
            case Refuse(_, refusal):
                self._decisions.labels("refuse", refusal.code).inc()
            case Fail(_, refusal):
                self._decisions.labels("fail", refusal.code).inc()
            case _:
                pass

    def iterated(self, replica_id: str, duration_ns: int) -> None:
        """A replica finished an iteration."""
        self._iterations.labels(replica_id).observe(duration_ns / clock.NS_PER_S)

    def restarted(self, replica_id: str) -> None:
        """A replica is started again."""
        self._restarts.labels(replica_id).inc()

    def started(self, *, endpoint: str) -> None:
        """An HTTP request began: counted at its end."""

    def finished(self, *, endpoint: str, status: int, code: str, duration_ns: int) -> None:
        """An HTTP request ended."""
        del status, duration_ns
        self._http.labels(endpoint, code).inc()

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)


class _Gauges:
    """Reads the owners when Prometheus asks."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Every gauge, once."""
        now = self._snapshot()
        yield _by_version("halcyon_queued_requests", "Requests waiting in the daemon.", now.queued)
        yield _by_version("halcyon_running_requests", "Requests dispatched and not ended.", now.running)
        yield from _replica_gauges(now.replicas)
        connections = GaugeMetricFamily("halcyon_client_connections", "Client connections open.")
        connections.add_metric((), now.connections)
        yield connections
        dropped = CounterMetricFamily("halcyon_store_rows_dropped", "Rows of history lost.")
        dropped.add_metric((), now.store.rows_dropped)
        yield dropped
        degraded = GaugeMetricFamily("halcyon_store_degraded", "1 while the history cannot be written.")
        degraded.add_metric((), int(bool(now.store.degraded)))
        yield degraded


def _by_version(name: str, text: str, values: dict[tuple[str, str], int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("model", "version"))
    for served, value in values.items():
        family.add_metric(served, value)
    return family


def _replica_gauges(replicas: Iterable[ReplicaStatus]) -> Iterator[Metric]:
    ready = GaugeMetricFamily("halcyon_replica_ready", "1 while the replica may be selected.", labels=("model", "version", "replica"))
    outstanding = GaugeMetricFamily("halcyon_outstanding_sequences", "Sequences dispatched and not ended.", labels=("replica",))
    blocks = GaugeMetricFamily("halcyon_kv_blocks", "KV cache blocks by state.", labels=("replica", "state"))
    memory = GaugeMetricFamily("halcyon_worker_memory_bytes", "Resident memory of the worker.", labels=("replica",))
    for replica in replicas:
        ready.add_metric((replica.model, replica.version, replica.replica_id), int(replica.state == "ready"))
        outstanding.add_metric((replica.replica_id,), replica.outstanding)
        memory.add_metric((replica.replica_id,), replica.rss_bytes)
        for state, count in (("used", replica.kv_blocks_used), ("free", replica.kv_blocks_free), ("cached", replica.kv_blocks_cached)):
            blocks.add_metric((replica.replica_id, state), count)
    yield from (ready, outstanding, blocks, memory)
