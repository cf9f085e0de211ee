"""The two doors of the daemon: the control socket and the HTTP port. Both serve the same API; they differ in whom they trust.

Rules: a handler whose client left is cancelled. A connection over the bound gets an answer, then the door; only whether the daemon lives is
told to everybody. One port is one address: a name that means several is bound at the first that can be. At the end, answers that are
complete still reach their clients, for a bounded time.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Middleware

from halcyon.config.address import is_loopback
from halcyon.config.settings import FleetSettings
from halcyon.daemon import control_socket
from halcyon.daemon.assembly import Assembly
from halcyon.daemon.http import build_api
from halcyon.daemon.http.server import ApiRunner
from halcyon.errors import ConfigError, Overloaded

FAREWELL_S = 5.0
"""How long answers that are complete may take to reach their clients at the end."""

_BACKLOG = 4096
_ALWAYS_ANSWERED = {"healthz", "health"}
"""Routes that answer over the bound too: who asks whether we live must not be told that we are busy."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Listeners:
    """Opens and closes the doors."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._runners: list[web.AppRunner] = []
        self._http: web.AppRunner | None = None
        self._socket: control_socket.ClaimedSocket | None = None

    def connections(self) -> int:
        """Client connections open on the HTTP port."""
        server = self._http.server if self._http is not None else None
        return len(server.connections) if server is not None else 0

    async def open_control(self, path: Path, fleet: Assembly, operator: control_socket.Operator) -> None:
        """Opens the control socket.

        Raises:
            DaemonAlreadyRunning: somebody answers there. ConfigError: it cannot be used.
        """
        self._socket = control_socket.claim(path)
        app = build_api(fleet.service, settings=self._settings, metrics=fleet.metrics, metrics_text=fleet.metrics.text, trusted=True)
        control_socket.add_control_routes(app, operator)
        runner = await self._run(app)
        await web.SockSite(runner, self._socket.listener, backlog=control_socket.BACKLOG).start()

    async def open_http(self, host: str, port: int, fleet: Assembly) -> str:
        """Opens the HTTP port; returns ADDRESS:PORT as bound.

        Raises:
            ConfigError: the address is taken or cannot be used.
        """
        app = build_api(
            fleet.service, settings=self._settings, metrics=fleet.metrics, metrics_text=fleet.metrics.text, loopback=is_loopback(host)
        )
        app.middlewares.append(self._bounded())
        try:
            listener = await _bind(host, port)
        except OSError as error:
            hint = "another program has the port; stop it or choose another" if error.errno == errno.EADDRINUSE else "choose another"
            raise ConfigError([f"listen: {host}:{port}: cannot listen there ({error.strerror or error}); {hint}"]) from error
        address, bound_port, *_ = listener.getsockname()
        self._http = await self._run(app)
        await web.SockSite(self._http, listener, backlog=_BACKLOG).start()
        return f"[{address}]:{bound_port}" if ":" in address else f"{address}:{bound_port}"

    async def close(self) -> None:
        """Closes both, the port first; the control socket's path is removed if it is still ours."""
        for runner in reversed(self._runners):
            await runner.cleanup()
        if self._socket is not None:
            self._socket.remove()

    async def _run(self, app: web.Application) -> web.AppRunner:
        runner = ApiRunner(app, farewell_s=FAREWELL_S)
        await runner.setup()
        self._runners.append(runner)
        return runner

    def _bounded(self) -> Middleware:
        most = self._settings.daemon.limits.max_connections

        @web.middleware
        async def bounded(request: web.Request, handler: _Handler) -> web.StreamResponse:
            if self.connections() > most and request.match_info.route.name not in _ALWAYS_ANSWERED:
                request.protocol.keep_alive(False)
                raise Overloaded(f"{most} connections are open, which is the bound; reuse connections or retry later", retry_after_ms=1000)
            return await handler(request)

        return bounded


async def _bind(host: str, port: int) -> socket.socket:
    """A bound socket at the first address of the host that can be had.

    Raises:
        OSError: the host has none, or none of them is free; says what was wrong with the first.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    failures: list[OSError] = []
    for family, kind, protocol, _, address in sorted(found, key=lambda each: each[0] != socket.AF_INET):
        try:
            return _bound(socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol), address)
        except OSError as error:
            failures.append(error)
    raise failures[0] if failures else OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


def _bound(listener: socket.socket, address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
