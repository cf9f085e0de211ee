"""What a request-level scheduler holds and what it sends: sizes and instants, never text."""

from __future__ import annotations

from dataclasses import dataclass

from halcyon.core.request import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request as the batching queue sees it.

    Attributes:
        tokens: predicted device work; the scheduler holds it in [1, largest batch].
        deadline_ns: absolute instant by which the whole answer is due; finishing at that very instant is on time. `None`: no objective.
        slots: sequences it occupies in a batch.
        weight: worth under the `weighted` objective; > 0.
    """

    request_id: str
    arrived_ns: int
    tokens: int
    deadline_ns: int | None = None
    slots: int = 1
    lane: Lane = "interactive"
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Work for one replica, to be sent now.

    Attributes:
        batch_id: unique for the life of the scheduler, from 1.
        tokens: summed size. predicted_ns: expected duration on that replica.
        reason: `saturated` full by slots, tokens or time; `deadline` a member's slack ran out; `linger` the wait was used up; `density`
            nothing is gained by waiting; `drain` no more work is to come.
    """

    batch_id: int
    replica_id: str
    items: tuple[WorkItem, ...]
    tokens: int
    predicted_ns: int
    reason: str
