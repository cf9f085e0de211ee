"""The inference service: a client's call becomes a request of the core and a generation that its handler reads.

Objectives come from the call, else the model's version, else the tenant. What must not be here: waiting for a replica, or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from halcyon import clock
from halcyon.config.settings import ModelSettings, TenantSettings
from halcyon.core.actions import Refusal
from halcyon.core.events import ClientGone, FirstByteSent, RequestArrived
from halcyon.core.request import Request
from halcyon.core.rollout.versions import Resolved
from halcyon.daemon.catalog import Catalog
from halcyon.daemon.generation import GenerationPorts, LiveGeneration
from halcyon.daemon.loop import ControlLoop
from halcyon.daemon.traffic import LiveRequest, Traffic, error_of
from halcyon.wire.control import ModelStatus
from halcyon.wire.inference import InferenceCall

_BYTES_PER_TOKEN = 4
"""The usual ratio for text; only an estimate for scheduling, the replica counts exactly."""

_NOBODY = TenantSettings(name="", key_sha256="")


class FleetService:
    """`halcyon.daemon.service.InferenceService` over a running fleet.

    Args:
        models: gives the status of every version; readiness is told from it. draining: whether the daemon is going down.
        ended: told of each request once, at its end. refused: told of each call that named no model or version of ours.
    """

    def __init__(
        self,
        loop: ControlLoop,
        traffic: Traffic,
        catalog: Catalog,
        *,
        tenants: Iterable[TenantSettings],
        buffer_tokens: int,
        models: Callable[[], tuple[ModelStatus, ...]],
        draining: Callable[[], bool],
        ended: Callable[[LiveRequest], None],
        refused: Callable[[Refusal], None],
    ) -> None:
        self._loop = loop
        self._traffic = traffic
        self._catalog = catalog
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._buffer_tokens = buffer_tokens
        self._models = models
        self._draining = draining
        self._ended = ended
        self._refused = refused

    async def open(self, call: InferenceCall, *, tenant: str, request_id: str) -> LiveGeneration:
        """Admits the call; returns as soon as it is queued.

        Raises:
            RequestError: refused at once.
        """
        meant = self._loop.core.resolve(call.model, call.version)
        if isinstance(meant, Refusal):
            self._refused(meant)
            raise error_of(meant, param="model")
        live = self._live(call, meant, self._tenants.get(tenant, _NOBODY), request_id)
        self._traffic.admit(live)
        self._loop.handle(RequestArrived(live.request))
        if live.generation.error is not None:
            raise live.generation.error
        return live.generation

    def models(self) -> tuple[ModelStatus, ...]:
        """Every version of every model."""
        return self._models()

    def is_ready(self) -> tuple[bool, str]:
        """Whether every model's default version has a ready replica and the daemon is not draining; and a sentence that says why not."""
        if self._draining():
            return False, "the daemon is going down"
        missing = [model for model in self._models() if model.default and not model.ready]
        lost = ", ".join(f"{model.name}@{model.version}" for model in missing if not model.coming)
        if lost:
            return False, f"no replica of {lost} serves or is about to; see `halcyon status`: an operator must act"
        late = ", ".join(f"{model.name}@{model.version}" for model in missing)
        return not late, f"no ready replica yet for {late}; retry later, `halcyon status` shows what they do" if late else ""

    def _live(self, call: InferenceCall, meant: Resolved, tenant: TenantSettings, request_id: str) -> LiveRequest:
        settings = self._catalog.find(meant.model, meant.version)
        call = _with_defaults(call, settings)
        request = _request(call, meant, settings, tenant, request_id, now=self._loop.now())
        generation = LiveGeneration(
            request_id,
            model=meant.model,
            version=meant.version,
            arrived_ns=request.arrived_ns,
            answers=call.n,
            stream=call.stream,
            buffer_tokens=self._buffer_tokens,
            ports=GenerationPorts(on_sent=self._sent, on_gone=self._gone, on_end=self._end, clock=self._loop.now),
        )
        return LiveRequest(request=request, call=call, generation=generation)

    def _sent(self, request_id: str) -> None:
        self._loop.handle(FirstByteSent(request_id))

    def _gone(self, request_id: str) -> None:
        self._loop.handle(ClientGone(request_id))

    def _end(self, generation: LiveGeneration) -> None:
        live = self._traffic.forget(generation.request_id)
        if live is not None:
            self._ended(live)


def _with_defaults(call: InferenceCall, settings: ModelSettings | None) -> InferenceCall:
    """What the client left out of its sampling, as the model's settings have it."""
    known = {name: getattr(settings, name, None) for name in call.unsaid}
    said = {name: value for name, value in known.items() if value is not None}
    return msgspec.structs.replace(call, sampling=msgspec.structs.replace(call.sampling, **said)) if said else call


def _request(
    call: InferenceCall, meant: Resolved, settings: ModelSettings | None, tenant: TenantSettings, request_id: str, *, now: int
) -> Request:
    owners = (settings, tenant)
    deadline_ms = _first(call.deadline_ms, *(owner.deadline_ms for owner in owners if owner is not None))
    ttft_ms = _first(call.ttft_ms, *(owner.ttft_ms for owner in owners if owner is not None))
    tpot_ms = _first(call.tpot_ms, *(owner.tpot_ms for owner in owners if owner is not None))
    return Request(
        request_id=request_id,
        model=meant.model,
        version=meant.version,
        arrived_ns=now,
        prompt_tokens=_estimated_tokens(call),
        max_output_tokens=call.sampling.max_output_tokens,
        deadline_ns=_instant(now, deadline_ms),
        ttft_deadline_ns=_instant(now, ttft_ms),
        tpot_ns=None if tpot_ms is None else tpot_ms * clock.NS_PER_MS,
        lane=call.lane or "interactive",
        priority=tenant.priority + (settings.priority if settings is not None else 0),
        weight=tenant.weight,
        sequences=call.n,
        tenant=tenant.name,
        session_key=call.session_key,
        replica_id=call.replica_id,
    )


def _estimated_tokens(call: InferenceCall) -> int:
    return len(call.token_ids) if call.token_ids is not None else max(1, -(-call.input_bytes // _BYTES_PER_TOKEN))


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _instant(now: int, after_ms: int | None) -> int | None:
    return None if after_ms is None else now + after_ms * clock.NS_PER_MS
