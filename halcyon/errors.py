"""The error tree: every failure a person or a client can meet, with its code, HTTP status and exit code.

    HalcyonError
    ├── ConfigError            the operator's file or flag is wrong (exit 2)
    ├── DaemonNotRunning       nobody answers on the control socket (exit 3)
    ├── DaemonAlreadyRunning   the state directory is owned by a live daemon (exit 5)
    ├── TimedOut               a bounded wait ran out (exit 6)
    ├── WorkerFailure          a worker process broke its promise; ours or the model's fault
    ├── ModelUnavailable       weights cannot be fetched, converted or loaded; the source's fault
    └── RequestError           what a client of the HTTP API can see
        ├── InvalidRequest     400 invalid_request        the client's fault; names the field
        ├── Unauthorized       401 unauthorized           no key, or one nobody knows
        ├── Forbidden          403 forbidden              the key may not do this
        ├── ModelNotFound      404 model_not_found        names the models that exist
        ├── PayloadTooLarge    413 payload_too_large      refused before it is parsed
        ├── ClientTooSlow      408 client_too_slow        a stream that is not read; seen as its last event
        ├── QuotaExceeded      429 quota_exceeded         the tenant's own budget
        ├── Overloaded         503 overloaded             the adaptive limit
        ├── QueueFull          503 queue_full             a bounded queue is at its bound
        ├── NoCapacity         503 no_capacity            no live replica, or the daemon drains
        ├── DeadlineUnreachable 503 deadline_unreachable  provably too late
        └── UpstreamFailure    502 upstream_failure       the replica failed and no other could answer

Inside `core/` a refusal is a value (`halcyon.core.actions.Refusal`), never an exception; `RequestError`s are raised only where
a request is answered.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What a command's exit status means; scripts may rely on these numbers."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    DAEMON_NOT_RUNNING = 3
    NOT_FOUND = 4
    REFUSED = 5
    TIMEOUT = 6


class HalcyonError(Exception):
    """Any failure Halcyon reports on purpose. `message` says what happened and what to do next."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILURE

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(HalcyonError):
    """The fleet file or a flag is wrong. `problems` holds one line each; nothing was applied."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DaemonNotRunning(HalcyonError):
    """Nobody answers on the control socket."""

    exit_code = ExitCode.DAEMON_NOT_RUNNING


class DaemonAlreadyRunning(HalcyonError):
    """Another daemon owns the state directory."""

    exit_code = ExitCode.REFUSED


class TimedOut(HalcyonError):
    """A bounded wait ran out."""

    exit_code = ExitCode.TIMEOUT


class WorkerFailure(HalcyonError):
    """A worker process died, broke the frame protocol or reported that it cannot go on."""


class ModelUnavailable(HalcyonError):
    """Weights could not be fetched, converted or loaded. The message names the source and the remedy."""


class RequestError(HalcyonError):
    """What a client of the HTTP API can see. `code`, `http_status` and `type` are fixed per class.

    Attributes:
        retry_after_ms: milliseconds after which a retry can help; `None` when a retry cannot.
        param: the offending field of the request, when one is to blame.
        details: further numbers for the error body, JSON values only; never prompt text, answers or keys.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        retry_after_ms: int | None = None,
        param: str | None = None,
        details: dict[str, int | float | str] | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.param = param
        self.details = details or {}


class InvalidRequest(RequestError):
    """The request's shape, limits or a parameter value; the message names the field."""

    code = "invalid_request"
    http_status = 400
    type = "invalid_request_error"
    exit_code = ExitCode.USAGE


class Unauthorized(RequestError):
    """No key, or a key nobody knows."""

    code = "unauthorized"
    http_status = 401
    type = "authentication_error"
    exit_code = ExitCode.REFUSED


class Forbidden(RequestError):
    """The key may not use this model or verb."""

    code = "forbidden"
    http_status = 403
    type = "permission_error"
    exit_code = ExitCode.REFUSED


class ModelNotFound(RequestError):
    """No such model or version; the message names those that exist."""

    code = "model_not_found"
    http_status = 404
    type = "invalid_request_error"
    exit_code = ExitCode.NOT_FOUND


class NotFound(RequestError):
    """No such thing (replica, path); the message names what exists."""

    code = "not_found"
    http_status = 404
    type = "invalid_request_error"
    exit_code = ExitCode.NOT_FOUND


class Conflict(RequestError):
    """The thing exists in a state that forbids the verb."""

    code = "conflict"
    http_status = 409
    type = "invalid_request_error"
    exit_code = ExitCode.REFUSED


class PayloadTooLarge(RequestError):
    """The body is over the limit; refused before it is parsed."""

    code = "payload_too_large"
    http_status = 413
    type = "invalid_request_error"
    exit_code = ExitCode.USAGE


class ClientTooSlow(RequestError):
    """The client does not read its stream; what would have to be held for it is over the limit."""

    code = "client_too_slow"
    http_status = 408
    type = "invalid_request_error"


class QuotaExceeded(RequestError):
    """The tenant's own bucket is empty."""

    code = "quota_exceeded"
    http_status = 429
    type = "rate_limit_error"
    exit_code = ExitCode.REFUSED


class Overloaded(RequestError):
    """The adaptive limit shed the request."""

    code = "overloaded"
    http_status = 503
    type = "overloaded_error"
    exit_code = ExitCode.REFUSED


class QueueFull(RequestError):
    """A bounded queue is at its bound."""

    code = "queue_full"
    http_status = 503
    type = "overloaded_error"
    exit_code = ExitCode.REFUSED


class NoCapacity(RequestError):
    """No live replica can take the request, or the daemon is draining."""

    code = "no_capacity"
    http_status = 503
    type = "overloaded_error"
    exit_code = ExitCode.REFUSED


class DeadlineUnreachable(RequestError):
    """Provably too late; `details` carry the predicted finish where one is known."""

    code = "deadline_unreachable"
    http_status = 503
    type = "overloaded_error"
    exit_code = ExitCode.REFUSED


class UpstreamFailure(RequestError):
    """The replica failed and no other could answer in time."""

    code = "upstream_failure"
    http_status = 502
    type = "server_error"


def request_errors_by_code() -> dict[str, type[RequestError]]:
    """Maps every wire code to its class, for turning a `Refusal` or an error body back into an exception."""
    return {cls.code: cls for cls in RequestError.__subclasses__()}
