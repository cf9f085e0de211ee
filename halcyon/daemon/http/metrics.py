"""What the HTTP API reports about itself. Labels are bounded: endpoints are route names, codes are wire codes; never a path or a model."""

from __future__ import annotations

from typing import Protocol


class HttpMetrics(Protocol):
    """Receives one call when a request begins and one when it ends."""

    def started(self, *, endpoint: str) -> None:
        """A request reached its handler. endpoint: `infer`, `completions`, `chat`, `models`, `model`, `healthz`, `health`, `ready`,
        `metrics`, the name of a route that the daemon added, or `other`."""
        ...

    def finished(self, *, endpoint: str, status: int, code: str, duration_ns: int) -> None:
        """It was answered, or its client left.

        status: HTTP status as sent (a stream that failed late keeps 200); 0 when the client left before any.
        code: `ok`, a wire code of `halcyon.errors`, `client_gone` or `internal_error`.
        """
        ...


class NoMetrics:
    """Counts nothing."""

    def started(self, *, endpoint: str) -> None:
        """Ignored."""

    def finished(self, *, endpoint: str, status: int, code: str, duration_ns: int) -> None:
        """Ignored."""
