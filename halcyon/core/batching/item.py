"""What a request-level scheduler holds and what it sends: sizes and instants, never text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from halcyon.core.request import Lane

FlushReason = Literal["saturated", "deadline", "linger", "density", "drain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request as the batching queue sees it.

    Attributes:
        tokens: predicted device work; the scheduler holds it in [1, largest batch].
        deadline_ns: absolute instant by which the whole answer is due; finishing at that very instant is on time. `None`: no objective.
        slots: sequences it occupies in a batch.
        weight: worth under the `weighted` objective; > 0.
        priority: higher goes first, whatever its size and deadline. returned: it ran and its replica failed it; goes before all others.
        guess: what the part of `tokens` that is not there yet was predicted from.
        only_on: the one replica that may run it; empty for any. avoid: not on this one while another could hold it; empty without.
    """

    request_id: str
    arrived_ns: int
    tokens: int
    deadline_ns: int | None = None
    slots: int = 1
    lane: Lane = "interactive"
    weight: float = 1.0
    priority: int = 0
    returned: bool = False
    only_on: str = ""
    avoid: str = ""
    guess: str = ""


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
    reason: FlushReason
