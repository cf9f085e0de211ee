"""The seam between whoever speaks HTTP and whoever runs the fleet.

`InferenceService` is what the handlers call; `daemon/loop.py` has the one real implementation, tests have a small one that scripts
answers. A `Generation` is owned by the handler that opened it: leaving its `async with` block, for whatever reason, ends the request
down to its KV blocks. Refusals before the first part are raised by `open`; failures after it are raised by iteration.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol

from halcyon.wire.control import ModelStatus
from halcyon.wire.inference import Account, InferenceCall, Part


class Generation(Protocol):
    """One running request.

    Use as `async with await service.open(call) as generation: async for parts in generation: ...`.
    Each step yields the parts that are ready (at least one); the last step holds the last answer's `finish_reason`.
    """

    request_id: str

    async def __aenter__(self) -> Generation:
        """The generation itself."""
        ...

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        """Cancels whatever still runs. Never waits for the replica."""
        ...

    def __aiter__(self) -> AsyncIterator[tuple[Part, ...]]:
        """Yields parts until every answer has a finish reason.

        Raises:
            RequestError: refused while queued, or failed; no part follows. `parts_seen` tells which it was for the client.
        """
        ...

    def mark_sent(self) -> None:
        """The client has been sent part of the answer: the request must not be replayed on another replica from now on."""
        ...

    def account(self) -> Account:
        """How it was served so far; complete after the last part. Counts are exact."""
        ...


class InferenceService(Protocol):
    """Opens generations and answers what a client may ask about the fleet."""

    async def open(self, call: InferenceCall, *, tenant: str, request_id: str) -> Generation:
        """Admits the call. Returns as soon as it is queued; does not wait for a replica.

        Raises:
            RequestError: refused at once (`model_not_found`, `invalid_request`, `queue_full`, `no_capacity`, …).
        """
        ...

    def models(self) -> tuple[ModelStatus, ...]:
        """Every version of every model."""
        ...

    def is_ready(self) -> tuple[bool, str]:
        """Whether a request could be served now (at least one ready replica for every model's default version, not draining),
        and a sentence that says why not."""
        ...
