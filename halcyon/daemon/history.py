"""What the daemon writes into its history: one row for each request at its end, each decision, each step of a replica's life.

Rules: numbers, names and codes; never text of a prompt or an answer, never a key. Nothing here waits or raises: the store keeps what it
can and says in `status` what it could not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from halcyon import clock
from halcyon.core.actions import Action, Cancel, Dispatch, DrainFinished, Fail, Refuse, ReplicaEmptied
from halcyon.core.request import Request
from halcyon.daemon.generation import OUTCOME_OK
from halcyon.daemon.traffic import LiveRequest
from halcyon.store.rows import DecisionRow, ReplicaRow, RequestRow
from halcyon.wire.inference import Timings


class Recorder(Protocol):
    """The part of the store that takes rows; none of it waits."""

    def record_request(self, row: RequestRow) -> None:
        """An audit row."""
        ...

    def record_decision(self, row: DecisionRow) -> None:
        """A decision of the core."""
        ...

    def record_replica(self, row: ReplicaRow) -> None:
        """A step in a replica's life."""
        ...


class History:
    """Turns what happens into rows."""

    def __init__(self, store: Recorder) -> None:
        self._store = store

    def request_ended(self, live: LiveRequest) -> None:
        """The audit row of an admitted request."""
        account = live.generation.account()
        self._store.record_request(
            RequestRow(
                request_id=live.request.request_id,
                at=clock.wall_s(),
                tenant=live.request.tenant,
                model=live.request.model,
                version=live.request.version,
                endpoint=live.call.endpoint,
                outcome=live.generation.outcome,
                replica_id=account.replica_id,
                stream=live.call.stream,
                prompt_tokens=account.usage.prompt_tokens,
                output_tokens=account.usage.completion_tokens,
                cached_tokens=account.usage.cached_tokens,
                queue_ms=account.timings.queue_ms,
                ttft_ms=account.timings.ttft_ms,
                tpot_ms=account.timings.tpot_ms,
                total_ms=account.timings.total_ms,
                finish_reason=live.generation.finish_reason,
                attempts=account.attempts,
                batch_size=account.batch_size,
                deadline_ms=_deadline_ms(live.request),
                on_time=on_time(live, account.timings),
            )
        )

    def decided(self, action: Action, request_of: Mapping[str, LiveRequest]) -> None:
        """The rows of one order; announcements that decide nothing have none."""
        match action:
            case Dispatch():
                for request_id in action.request_ids:
                    self._dispatched(action, request_id, request_of.get(request_id))
            case Refuse(request_id, refusal):
                row = _about(
                    request_of.get(request_id), kind="refuse", request_id=request_id, reason=refusal.code, facts=dict(refusal.details)
                )
                self._store.record_decision(row)
            case Fail(request_id, refusal):
                row = _about(
                    request_of.get(request_id), kind="fail", request_id=request_id, reason=refusal.code, facts=dict(refusal.details)
                )
                self._store.record_decision(row)
            case Cancel() | ReplicaEmptied() | DrainFinished():
                pass

    def replica_event(self, row: ReplicaRow) -> None:
        """One step in a replica's life."""
        self._store.record_replica(row)

    def _dispatched(self, order: Dispatch, request_id: str, live: LiveRequest | None) -> None:
        facts: dict[str, int | str] = {
            "batch_id": order.batch_id,
            "batch_size": order.batch_size,
            "queue_depth": order.queue_depth,
            "eligible_replicas": order.eligible_replicas,
        }
        if order.predicted_tokens:
            facts |= {"predicted_tokens": order.predicted_tokens, "predicted_us": order.predicted_ns // 1000}
            facts["output_guess"] = order.output_guess
        self._store.record_decision(
            _about(live, kind="dispatch", request_id=request_id, reason=order.reason, facts=facts, replica_id=order.replica_id)
        )


def on_time(live: LiveRequest, timings: Timings) -> bool | None:
    """Whether every objective the request had was kept; `None` without objectives."""
    request, generation = live.request, live.generation
    kept: list[bool] = []
    if request.deadline_ns is not None:
        kept.append(generation.ended_ns is not None and generation.ended_ns <= request.deadline_ns)
    if request.ttft_deadline_ns is not None:
        kept.append(generation.first_token_ns is not None and generation.first_token_ns <= request.ttft_deadline_ns)
    if request.tpot_ns is not None:
        kept.append(timings.tpot_ms is None or timings.tpot_ms * clock.NS_PER_MS <= request.tpot_ns)
    return generation.outcome == OUTCOME_OK and all(kept) if kept else None


def _deadline_ms(request: Request) -> int | None:
    return None if request.deadline_ns is None else (request.deadline_ns - request.arrived_ns) // clock.NS_PER_MS


def _about(
    live: LiveRequest | None, *, kind: str, request_id: str, reason: str, facts: dict[str, int | str], replica_id: str = ""
) -> DecisionRow:
    return DecisionRow(
        at=clock.wall_s(),
        kind=kind,
        request_id=request_id,
        model=live.request.model if live else "",
        version=live.request.version if live else "",
        replica_id=replica_id,
        reason=reason,
        facts=facts,
    )
