"""The control socket: who may own its path, who may speak on it, and the routes of `halcyon.wire.control`.

Rules: a path that is not a socket is never removed; a socket is removed only when nobody answers on it; every connection's peer must be
this user or root. Mode 0600 in a private directory keeps others away as well, but the peer's uid is what counts.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web

from halcyon.config.paths import make_private_dir
from halcyon.errors import ConfigError, DaemonAlreadyRunning, Forbidden, InvalidRequest
from halcyon.wire.control import DownRequest, ModelList, RegisterRequest, ReplicaList, ReplicaStatus, Status

BACKLOG = 1024
_UCRED = struct.Struct("3i")
_ROOT_UID = 0
_T = TypeVar("_T")


class ClaimedSocket:
    """The bound, listening socket, and which file is its name."""

    def __init__(self, listener: socket.socket, path: Path) -> None:
        self.listener = listener
        self._path = path
        self._identity = _identity(path)

    def remove(self) -> None:
        """Unlinks the path if it still names our socket: another daemon's is left alone."""
        try:
            if _identity(self._path) == self._identity:
                self._path.unlink()
        except FileNotFoundError:
            pass


def _identity(path: Path) -> tuple[int, int]:
    """Which file the path names; an inode number alone is soon given to the next one."""
    found = path.lstat()
    return found.st_ino, found.st_ctime_ns


def claim(path: Path) -> ClaimedSocket:
    """A bound, listening socket at `path`, mode 0600.

    Raises:
        DaemonAlreadyRunning: somebody answers there.
        ConfigError: the path is taken by something that is not a socket, or cannot be used.
    """
    make_private_dir(path.parent)
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError([f"{path}: cannot listen there: {error.strerror}; choose another state directory"]) from error
    return ClaimedSocket(listener, path)


def _clear(path: Path) -> None:
    """Makes the path free, if that harms nobody."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError([f"{path}: expected a socket or nothing, found something else; move it away or choose another state directory"])
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        probe.settimeout(2.0)
        probe.connect(str(path))
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except FileNotFoundError:
        return
    except TimeoutError:
        pass  # somebody holds it and is too busy to answer: alive
    except OSError as error:
        raise ConfigError([f"{path}: cannot be reached: {error.strerror}; choose another state directory"]) from error
    finally:
        probe.close()
    raise DaemonAlreadyRunning(f"a daemon answers on {path}; stop it with `halcyon down` or choose another --state-dir")


class Operator(Protocol):
    """What the routes ask of the daemon. Each may raise a RequestError."""

    def status(self) -> Status:
        """The daemon at a glance."""
        ...

    def down(self, *, now: bool) -> None:
        """Begins the drain, or hurries it."""
        ...

    def model_list(self) -> ModelList:
        """All versions."""
        ...

    def replica_list(self) -> ReplicaList:
        """All replicas."""
        ...

    async def register(self, asked: RegisterRequest) -> ReplicaStatus:
        """Adds a remote replica; kept for the next daemon before it returns."""
        ...

    def drain_replica(self, replica_id: str) -> ReplicaStatus:
        """Takes it out of selection."""
        ...

    async def remove_replica(self, replica_id: str) -> ReplicaStatus:
        """Drains and forgets it."""
        ...


def add_control_routes(app: web.Application, operator: Operator) -> None:
    """Adds `/v1/control/…` to the trusted application and lets in only this user and root."""
    app.middlewares.append(_only_same_user)
    routes = _Routes(operator)
    app.router.add_get("/v1/control/status", routes.status, name="control_status")
    app.router.add_post("/v1/control/down", routes.down, name="control_down")
    app.router.add_get("/v1/control/models", routes.models, name="control_models")
    app.router.add_get("/v1/control/replicas", routes.replicas, name="control_replicas")
    app.router.add_post("/v1/control/replicas", routes.register, name="control_register")
    app.router.add_post("/v1/control/replicas/{replica_id}/drain", routes.drain, name="control_drain")
    app.router.add_delete("/v1/control/replicas/{replica_id}", routes.remove, name="control_remove")


class _Routes:
    """One handler for each route."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def status(self, request: web.Request) -> web.Response:
        del request
        return _json(self._operator.status())

    async def down(self, request: web.Request) -> web.Response:
        asked = await _read(request, DownRequest)
        self._operator.down(now=asked.now)
        return _json(self._operator.status())

    async def models(self, request: web.Request) -> web.Response:
        del request
        return _json(self._operator.model_list())

    async def replicas(self, request: web.Request) -> web.Response:
        del request
        return _json(self._operator.replica_list())

    async def register(self, request: web.Request) -> web.Response:
        return _json(await self._operator.register(await _read(request, RegisterRequest)))

    async def drain(self, request: web.Request) -> web.Response:
        return _json(self._operator.drain_replica(request.match_info["replica_id"]))

    async def remove(self, request: web.Request) -> web.Response:
        return _json(await self._operator.remove_replica(request.match_info["replica_id"]))


@web.middleware
async def _only_same_user(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    uid = _peer_uid(request)
    if uid not in {os.geteuid(), _ROOT_UID}:
        raise Forbidden(f"user {uid} may not control the daemon of user {os.geteuid()}")
    return await handler(request)


def _peer_uid(request: web.Request) -> int:
    """The uid at the other end, from the kernel; -1 when the connection is gone."""
    connection = request.transport.get_extra_info("socket") if request.transport is not None else None
    if connection is None:
        return -1
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)


async def _read(request: web.Request, of: type[_T]) -> _T:
    body = await request.read()
    try:
        return msgspec.json.decode(body or b"{}", type=of)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not a {of.__name__}: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply; send plain objects") from None


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", charset="utf-8")
