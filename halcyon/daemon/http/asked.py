"""What a decoded body amounts to: calls for the service, and the one object that knows how to word the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from halcyon.config.settings import Limits
from halcyon.daemon.http.answers import Answers
from halcyon.wire.inference import Account, InferenceCall, Part


class Reply(Protocol):
    """Words one request's answer in its endpoint's shape. Bytes out; nothing here waits."""

    def whole(self, answers: Answers, account: Account) -> bytes:
        """The body of a plain answer."""
        ...

    def step(self, parts: Sequence[Part]) -> bytes:
        """The events for one step of a stream; empty when the step shows nothing to the client."""
        ...

    def ending(self, account: Account) -> bytes:
        """The events between the last part and `[DONE]`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Asked:
    """calls: one for each prompt, all with the same n. session_key: the one from the body, which a header overrides for OpenAI bodies."""

    calls: tuple[InferenceCall, ...]
    reply: Reply

    @property
    def stream(self) -> bool:
        """Whether the client reads as the answer grows."""
        return self.calls[0].stream

    @property
    def choices(self) -> int:
        """Answers over all prompts."""
        return self.calls[0].n * len(self.calls)


class Dialect(Protocol):
    """Reads one endpoint's bodies."""

    def __call__(self, data: bytes, *, limits: Limits, request_id: str) -> Asked:
        """The body as calls and a reply.

        Raises:
            InvalidRequest: it cannot be served as it stands; the message names the field.
        """
        ...
