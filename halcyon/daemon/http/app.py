"""Puts the HTTP API together: one application, mounted on TCP and on the control socket alike.

It is run by `halcyon.daemon.http.server.ApiRunner`, which cancels handlers whose client is gone; without that a client that leaves before
its answer would be served to the end. Routes that the daemon adds to the application answer errors in the same form.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from halcyon.config.settings import FleetSettings
from halcyon.daemon.http.body import expect_within
from halcyon.daemon.http.boundary import boundary, note_begun
from halcyon.daemon.http.chat import read_chat
from halcyon.daemon.http.completions import read_completion
from halcyon.daemon.http.generate import GenerateHandler
from halcyon.daemon.http.infer import read_infer
from halcyon.daemon.http.keys import KeyRing
from halcyon.daemon.http.looks import Looks
from halcyon.daemon.http.metrics import HttpMetrics, NoMetrics
from halcyon.daemon.http.sse import FLUSH_TIMEOUT_S
from halcyon.daemon.service import InferenceService


def build_api(
    service: InferenceService,
    *,
    settings: FleetSettings,
    metrics: HttpMetrics | None = None,
    metrics_text: Callable[[], str | bytes] | None = None,
    trusted: bool = False,
    loopback: bool = True,
    flush_timeout_s: float = FLUSH_TIMEOUT_S,
) -> web.Application:
    """The application that serves `/v1/…`, `/healthz`, `/health`, `/readyz` and `/metrics`.

    Args:
        metrics: told of every request. metrics_text: gives the body of `/metrics`; 404 without it.
        trusted: the socket itself says who is asking (the control socket): no keys.
        loopback: the listener is reachable from this machine only: `/metrics` needs no key.
        flush_timeout_s: how long the end of a stream waits for a client that does not read.
    """
    limits = settings.daemon.limits
    keys = KeyRing(settings.tenants, trusted=trusted)
    outermost = boundary(metrics=metrics or NoMetrics(), max_body_bytes=limits.max_body_bytes)
    app = web.Application(client_max_size=limits.max_body_bytes, middlewares=[outermost])
    app.on_response_prepare.append(note_begun)
    expect = expect_within(limits.max_body_bytes)
    for path, name, dialect in (
        ("/v1/infer", "infer", read_infer),
        ("/v1/completions", "completions", read_completion),
        ("/v1/chat/completions", "chat", read_chat),
    ):
        handler = GenerateHandler(service, dialect, keys=keys, limits=limits, flush_timeout_s=flush_timeout_s)
        app.router.add_post(path, handler.__call__, name=name, expect_handler=expect)
    looks = Looks(service, keys=keys, metrics_text=metrics_text, metrics_need_key=not loopback)
    for path, name, look in (
        ("/v1/models", "models", looks.models),
        ("/v1/models/{model:.+}", "model", looks.model),
        ("/healthz", "healthz", looks.health),
        ("/health", "health", looks.health),
        ("/readyz", "ready", looks.ready),
        ("/metrics", "metrics", looks.metrics),
    ):
        app.router.add_get(path, look, name=name, expect_handler=expect)
    return app
