"""What a line of clients is asked, whoever decides in it: one line for each (model, version).

Rules: a ticket stands in at most one line. `arrive` may refuse; one that was admitted before (`put_back`) is not refused as an arrival.
Every call that may let the queue move is followed by `take_late` and `send` in the same breath, so `next_wakeup` lies in the future.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from halcyon.core.actions import Refusal
from halcyon.core.batching.fill import Batch, Choose
from halcyon.core.batching.waiting import Ticket
from halcyon.core.events import IterationFinished
from halcyon.core.fleet import ReplicaKind, ReplicaView, ServedVersion


class Line(Protocol):
    """Requests that wait for one (model, version), and the policy that decides what leaves when and with what."""

    serves: ServedVersion
    kind: ReplicaKind
    """Replicas it is made for."""

    def __len__(self) -> int:
        """Requests that wait."""
        ...

    def __contains__(self, request_id: str) -> bool:
        """Whether the request waits here."""
        ...

    def tickets(self) -> tuple[Ticket, ...]:
        """All that wait, in the order they came."""
        ...

    def arrive(self, ticket: Ticket, *, now: int) -> Refusal | None:
        """A request that passed admission: it waits, or the reason why it may not."""
        ...

    def put_back(self, ticket: Ticket) -> None:
        """A ticket that was admitted before waits (again)."""
        ...

    def remove(self, request_id: str) -> Ticket | None:
        """Takes a ticket out, if it waits here."""
        ...

    def take_late(self, *, now: int) -> list[tuple[Ticket, Refusal]]:
        """Takes out what can no longer be on time, with what its client is told."""
        ...

    def send(self, replicas: Sequence[ReplicaView], choose: Choose, *, now: int) -> tuple[Batch, ...]:
        """What leaves now: at most one batch for each of `replicas`, which are all that may be sent anything."""
        ...

    def next_wakeup(self) -> int | None:
        """The instant at which to call `take_late` and `send` although nothing happened; `None` when only an event can change anything."""
        ...

    def retry_after_ms(self, request_id: str, *, now: int) -> int:
        """Milliseconds until everything that waits here will have been served; at least 1."""
        ...

    def answered(self, *, sequences: int, output_tokens: int) -> None:
        """Answers of one request ended by themselves; tokens of all of them."""
        ...

    def served(self, *, now: int) -> None:
        """A request was served to its end."""
        ...

    def iterated(self, event: IterationFinished) -> None:
        """What a batch or iteration of one of its replicas took."""
        ...

    def idled(self) -> None:
        """Nothing waits and nothing runs."""
        ...

    def drain(self) -> None:
        """Nothing more will arrive."""
        ...

    def forget(self, replica_id: str) -> None:
        """The replica is gone for good."""
        ...
