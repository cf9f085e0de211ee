"""What can be looked at without asking for tokens: models, liveness, readiness, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from aiohttp import web

from halcyon.config.settings import TenantSettings
from halcyon.daemon.http.keys import KeyRing, may_use
from halcyon.daemon.service import InferenceService
from halcyon.errors import ModelNotFound, NoCapacity, NotFound
from halcyon.wire.control import ModelStatus
from halcyon.wire.openai import ModelCard, ModelCards

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_encode = msgspec.json.Encoder().encode


class Looks:
    """Handlers that only read. metrics_need_key: whether `/metrics` asks for a tenant's key."""

    def __init__(
        self, service: InferenceService, *, keys: KeyRing, metrics_text: Callable[[], str | bytes] | None, metrics_need_key: bool
    ) -> None:
        self._service = service
        self._keys = keys
        self._metrics_text = metrics_text
        self._metrics_need_key = metrics_need_key

    async def models(self, request: web.Request) -> web.Response:
        """`GET /v1/models`: every model the key may use."""
        return _json(ModelCards(data=self._cards(self._keys.tenant_of(request))))

    async def model(self, request: web.Request) -> web.Response:
        """`GET /v1/models/{id}`."""
        wanted = request.match_info["model"]
        cards = self._cards(self._keys.tenant_of(request))
        for card in cards:
            if card.id == wanted:
                return _json(card)
        raise ModelNotFound(f"no such model; there are: {', '.join(card.id for card in cards)}", param="model")

    async def health(self, request: web.Request) -> web.Response:
        """`GET /healthz`: 200 as long as the loop runs, whatever the workers do."""
        del request
        return _json({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """`GET /readyz`: 200 when a request could be served now, else 503 with the reason."""
        del request
        ready, reason = self._service.is_ready()
        if not ready:
            raise NoCapacity(reason)
        return _json({"status": "ready"})

    async def metrics(self, request: web.Request) -> web.Response:
        """`GET /metrics`, Prometheus text."""
        if self._metrics_need_key:
            self._keys.tenant_of(request)
        if self._metrics_text is None:
            raise NotFound("this daemon exports no metrics")
        text = self._metrics_text()
        return web.Response(body=text.encode() if isinstance(text, str) else text, headers={"Content-Type": METRICS_CONTENT_TYPE})

    def _cards(self, tenant: TenantSettings) -> list[ModelCard]:
        return [card for card in cards_of(self._service.models()) if may_use(tenant, card.id)]


def cards_of(models: Iterable[ModelStatus]) -> list[ModelCard]:
    """One card for each model by its name (its default version), followed by `name@version` for each version where there are several."""
    by_name: dict[str, list[ModelStatus]] = {}
    for model in models:
        by_name.setdefault(model.name, []).append(model)
    cards: list[ModelCard] = []
    for name, versions in by_name.items():
        default = next((model for model in versions if model.default), versions[0])
        cards.append(_card(name, default))
        if len(versions) > 1:
            cards += [_card(f"{name}@{model.version}", model) for model in versions]
    return cards


def _card(card_id: str, model: ModelStatus) -> ModelCard:
    return ModelCard(id=card_id, version=model.version, max_model_len=model.max_context, ready=model.ready)


def _json(value: object) -> web.Response:
    return web.Response(body=_encode(value), content_type="application/json", charset="utf-8")
