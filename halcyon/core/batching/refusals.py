"""The refusals batching gives, with their numbers. Durations in messages and details are from now, in ms."""

from __future__ import annotations

import zlib

from halcyon.core.actions import Refusal

_NS_PER_MS = 1_000_000
JITTER_PERMILLE = 200


def retry_after_ms(drain_ns: int, request_id: str) -> int:
    """The time for the present backlog to drain, ±20 % by the request's id, so that those refused together do not come back together."""
    spread = zlib.crc32(request_id.encode()) % (2 * JITTER_PERMILLE + 1) - JITTER_PERMILLE
    return max(1, drain_ns * (1000 + spread) // 1000 // _NS_PER_MS)


def queue_full(waiting: int, retry_ms: int) -> Refusal:
    """The bound on waiting requests is reached."""
    return Refusal(
        code="queue_full",
        message=f"{waiting} requests wait for this model already, the most it may hold; retry after {retry_ms} ms",
        retry_after_ms=retry_ms,
        details={"queue_depth": waiting},
    )


def unreachable(*, finish_in_ns: int, deadline_in_ns: int, retry_ms: int) -> Refusal:
    """The predicted finish is after the deadline."""
    finish_ms, deadline_ms = -(-finish_in_ns // _NS_PER_MS), deadline_in_ns // _NS_PER_MS
    return Refusal(
        code="deadline_unreachable",
        message=f"predicted to finish in {finish_ms} ms, the deadline is in {deadline_ms} ms; ask for {finish_ms} ms or more, or retry",
        retry_after_ms=retry_ms,
        details={"predicted_finish_ms": finish_ms, "deadline_ms": deadline_ms, "feasible_deadline_ms": finish_ms},
    )


def no_capacity(retry_ms: int) -> Refusal:
    """The deadline came while no replica lived."""
    return Refusal(code="no_capacity", message="no live replica serves this model; retry later", retry_after_ms=retry_ms)
