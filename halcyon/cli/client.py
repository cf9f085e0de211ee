"""The control client: typed calls over the daemon's Unix socket.

An error body becomes the exception of its code again, so a command fails with the same class, message and exit code as a handler raised.
Nobody on the socket is `DaemonNotRunning`; silence is `TimedOut`.
"""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from halcyon.cli.events import EventDecoder, ServerEvent
from halcyon.config.paths import socket_path, state_dir
from halcyon.errors import DaemonNotRunning, HalcyonError, TimedOut, request_errors_by_code
from halcyon.wire.control import DownRequest, ErrorReply, ModelList, RegisterRequest, ReplicaList, ReplicaStatus, Status

PATIENCE_S = 10.0
"""How long a control call may take."""
_CONTROL = "/v1/control"
_T = TypeVar("_T")


def connect(state_directory: str = "", *, timeout_s: float | None = None) -> ControlClient:
    """A client of the daemon that owns this state directory ("" for the usual one). Nothing is sent yet."""
    return ControlClient(socket_path(state_dir(state_directory)), timeout_s=timeout_s)


class ConnectionCut(HalcyonError):
    """The daemon closed the connection before it had answered: it is ending, or it died."""


class ControlClient:
    """Calls of the control socket. Use as a context manager.

    Raises (every call):
        DaemonNotRunning: nobody listens on the socket.
        TimedOut: no answer within `timeout_s` (`PATIENCE_S` where none is given).
        ConnectionCut: the daemon ended before it had answered.
        RequestError: the daemon refused; the class is that of the wire code.
        HalcyonError: the socket is somebody else's, or the answer is not one of ours.
    """

    def __init__(self, path: Path, *, timeout_s: float | None = None) -> None:
        self.socket = path
        self._timeout_s = timeout_s or PATIENCE_S
        transport = httpx.HTTPTransport(uds=str(path))
        self._http = httpx.Client(transport=transport, base_url="http://halcyon", timeout=self._timeout_s, trust_env=False)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self._http.close()

    def status(self) -> Status:
        """The daemon at a glance."""
        return self._call("GET", f"{_CONTROL}/status", Status)

    def status_or_none(self) -> Status | None:
        """The same, or `None` where no daemon runs."""
        try:
            return self.status()
        except DaemonNotRunning:
            return None

    def down(self, *, now: bool) -> Status:
        """Asks the daemon to drain and end; it answers when the drain has begun."""
        return self._call("POST", f"{_CONTROL}/down", Status, DownRequest(now=now))

    def models(self) -> ModelList:
        """Every version of every model."""
        return self._call("GET", f"{_CONTROL}/models", ModelList)

    def replicas(self) -> ReplicaList:
        """Every replica."""
        return self._call("GET", f"{_CONTROL}/replicas", ReplicaList)

    def register(self, request: RegisterRequest) -> ReplicaStatus:
        """Adds a remote server as one more replica."""
        return self._call("POST", f"{_CONTROL}/replicas", ReplicaStatus, request)

    def drain(self, replica_id: str) -> ReplicaStatus:
        """Takes the replica out of selection; what runs on it finishes."""
        return self._call("POST", f"{_CONTROL}/replicas/{quote(replica_id, safe='')}/drain", ReplicaStatus)

    def remove(self, replica_id: str) -> ReplicaStatus:
        """Drains the replica and takes it out of the fleet."""
        return self._call("DELETE", f"{_CONTROL}/replicas/{quote(replica_id, safe='')}", ReplicaStatus)

    def infer(self, body: dict[str, object]) -> bytes:
        """One whole answer of `/v1/infer`, as the JSON it came in. Waits for as long as the answer takes."""
        with self._translated():
            response = self._http.post("/v1/infer", json=body, timeout=httpx.Timeout(self._timeout_s, read=None))
        self._raise_for_error(response)
        return response.content

    def infer_stream(self, body: dict[str, object]) -> Generator[ServerEvent]:
        """The events of one streamed `/v1/infer`. Closing the iterator ends the request down to the replica."""
        decoder = EventDecoder()
        timeout = httpx.Timeout(self._timeout_s, read=None)
        with self._translated(), self._http.stream("POST", "/v1/infer", json=body, timeout=timeout) as response:
            if response.is_error:
                response.read()
                self._raise_for_error(response)
            for chunk in response.iter_bytes():
                yield from decoder.feed(chunk)

    def _call(self, method: str, path: str, reply: type[_T], body: msgspec.Struct | None = None) -> _T:
        content = None if body is None else msgspec.json.encode(body)
        with self._translated():
            response = self._http.request(method, path, content=content, headers={"content-type": "application/json"} if content else None)
        self._raise_for_error(response)
        try:
            return msgspec.json.decode(response.content, type=reply)
        except msgspec.DecodeError as error:
            message = f"The daemon on {self.socket} answered {method} {path} with something this halcyon cannot read ({error})."
            raise HalcyonError(f"{message} Compare `halcyon version` with the daemon's, and restart the older one.") from None

    def _raise_for_error(self, response: httpx.Response) -> None:
        if response.is_error:
            raise error_of_reply(response.content, what=f"HTTP status {response.status_code} from the daemon on {self.socket}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns failures of the socket into ours. It knocks first, because a plain socket says exactly what is wrong."""
        self._knock()
        try:
            yield
        except httpx.ConnectError:
            raise self._not_running() from None  # it ended since the knock
        except httpx.TimeoutException:
            patience = f"No answer on {self.socket} within {self._timeout_s:g} s."
            raise TimedOut(f"{patience} The daemon may be overloaded or stopped; its log is in {self.socket.parent}.") from None
        except httpx.TransportError as error:
            cut = f"The daemon on {self.socket} closed the connection before it had answered ({error or type(error).__name__})."
            raise ConnectionCut(f"{cut} See `halcyon status` and its log.") from None

    def _knock(self) -> None:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(self._timeout_s)
            try:
                knock.connect(str(self.socket))
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                raise self._not_running() from None
            except PermissionError:
                foreign = f"The socket {self.socket} belongs to another user."
                raise HalcyonError(f"{foreign} Run as that user, or choose another --state-dir.") from None
            except OSError as error:
                raise HalcyonError(f"The socket {self.socket} cannot be used: {error.strerror or error}. See `halcyon doctor`.") from None

    def _not_running(self) -> DaemonNotRunning:
        return DaemonNotRunning(f"No daemon runs here: nobody answers on {self.socket}. Start one with `halcyon up`.")


def error_of_reply(body: bytes | str, *, what: str) -> HalcyonError:
    """The exception that an error body stands for. `what` names the source where the body is not one of ours."""
    try:
        error = msgspec.json.decode(body, type=ErrorReply).error
    except msgspec.DecodeError:
        return HalcyonError(f"{what}, without a readable reason. See the daemon's log.")
    found = request_errors_by_code().get(error.code)
    if found is None:
        return HalcyonError(error.message)
    return found(error.message, retry_after_ms=error.retry_after_ms, param=error.param, details=error.details)
