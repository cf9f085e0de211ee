"""Whether a request may wait at all. Pure; the cheapest refusal comes first; every refusal says what to do next.

Order: the daemon drains → too late already → no replica could ever take it → the queue is full. A replica that is still loading or
restarting is expected back, so its requests may wait, bounded by their deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halcyon.core.actions import Refusal
from halcyon.core.fleet import Replica
from halcyon.core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What admission knows when a request arrives.

    Attributes:
        queued: requests waiting for its (model, version). max_queue: how many may.
        retry_after_ms: when those will have been served.
        living: replicas of its (model, version) that serve or are expected to.
        pinned: the replica it is pinned to, if that exists.
    """

    draining: bool
    queued: int
    max_queue: int
    retry_after_ms: int
    living: Sequence[Replica]
    pinned: Replica | None


def admit(request: Request, standing: Standing, *, now: int) -> Refusal | None:
    """Why the request may not wait; `None` when it may."""
    if standing.draining:
        message = "the daemon is shutting down and admits nothing new; retry when it is up again"
        return Refusal(code="no_capacity", message=message, retry_after_ms=standing.retry_after_ms)
    if request.deadline_ns is not None and now >= request.deadline_ns:
        return too_late(request, retry_after_ms=standing.retry_after_ms)
    if (impossible := unservable(request, standing.living, standing.pinned)) is not None:
        return impossible
    if standing.queued >= standing.max_queue:
        return Refusal(
            code="queue_full",
            message=f"{standing.queued} requests wait for {request.model}@{request.version}, which is its bound; retry later",
            retry_after_ms=standing.retry_after_ms,
            details={"queued": standing.queued, "max_queue": standing.max_queue},
        )
    return None


def unservable(request: Request, living: Sequence[Replica], pinned: Replica | None) -> Refusal | None:
    """Why no replica that serves or is expected to could ever take the request; `None` when one could."""
    if request.replica_id:
        return _unservable_there(request, living, pinned)
    if not living:
        why = f"no replica of {request.model}@{request.version} serves or is about to"
        message = f"{why}; see `halcyon status`: after mending the cause, `halcyon down` and `halcyon up`"
        return Refusal(code="no_capacity", message=message)
    return _too_many(request, max(replica.max_batch for replica in living))


def too_late(request: Request, *, retry_after_ms: int) -> Refusal:
    """The refusal of a request whose deadline came before a replica could take it."""
    return _missed(request, "no replica could begin within the deadline of {} ms; retry later or allow more time", retry_after_ms)


def overdue(request: Request) -> Refusal:
    """The end of a request whose deadline came before its answer was whole. The same request would meet the same end: no retry helps."""
    message = "the answer was not whole within the deadline of {} ms; allow more time or ask for fewer tokens"
    return _missed(request, message, None)


def _missed(request: Request, message: str, retry_after_ms: int | None) -> Refusal:
    budget_ms = ((request.deadline_ns or request.arrived_ns) - request.arrived_ns) // 1_000_000
    return Refusal(
        code="deadline_unreachable",
        message=message.format(budget_ms),
        retry_after_ms=retry_after_ms,
        details={"deadline_ms": budget_ms},
    )


def _unservable_there(request: Request, living: Sequence[Replica], pinned: Replica | None) -> Refusal | None:
    if pinned is None:
        there = ", ".join(replica.replica_id for replica in living) or "none"
        whose = f"{request.model}@{request.version}"
        message = f"no replica {request.replica_id!r}; of {whose} there are: {there}. Choose one, or leave replica_id out"
        return Refusal(code="not_found", message=message)
    if pinned.serves != (request.model, request.version):
        message = f"replica {request.replica_id!r} serves {'@'.join(pinned.serves)}, not {request.model}@{request.version}"
        return Refusal(code="invalid_request", message=message)
    if not pinned.lifecycle.is_living:
        message = f"replica {request.replica_id!r} is {pinned.lifecycle.state} and takes nothing new; leave replica_id out"
        return Refusal(code="no_capacity", message=message)
    return _too_many(request, pinned.max_batch)


def _too_many(request: Request, most: int) -> Refusal | None:
    if request.sequences <= most:
        return None
    message = f"n is {request.sequences}, but no replica serves more than {most} answers at once; send n <= {most}"
    return Refusal(code="invalid_request", message=message, details={"n": request.sequences, "max_n": most})
