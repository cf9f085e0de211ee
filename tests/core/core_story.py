"""Tells a real control plane what happened and keeps what it ordered. Instants are plain nanoseconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

from halcyon.core.actions import Action, Cancel, Dispatch, Fail, Refuse
from halcyon.core.batching.fill import BatchFormer, FillFreeSlots
from halcyon.core.batching.settings import BatchSettings
from halcyon.core.control import ControlPlane, ControlSettings
from halcyon.core.events import (
    ClientGone,
    Event,
    FirstByteSent,
    IterationFinished,
    ReplicaAdded,
    ReplicaReady,
    RequestArrived,
    RequestFailed,
    SequencesFinished,
    TimerFired,
)
from halcyon.core.request import Request
from halcyon.core.rollout.versions import ModelVersions

MODELS = (ModelVersions("m", ("v1", "v2")),)


class Story:
    """A plane, the instant it is in, and everything it was told and ordered."""

    def __init__(
        self,
        *,
        seed: int = 0,
        max_queue: int = 512,
        former: Callable[[], BatchFormer] = FillFreeSlots,
        batching: BatchSettings | None = None,
    ) -> None:
        settings = ControlSettings(models=MODELS, max_queue=max_queue, batching={("m", "v1"): batching} if batching else {})
        self.plane = ControlPlane(settings, rng=random.Random(seed), former=former)
        self.now = 0
        self.told: list[tuple[int, Event]] = []
        self.ordered: list[list[Action]] = []

    def tell(self, event: Event) -> list[Action]:
        """One event at the current instant."""
        self.told.append((self.now, event))
        actions = self.plane.handle(event, now=self.now)
        self.ordered.append(actions)
        return actions

    def at(self, now: int) -> Story:
        """Moves to an instant; nothing happens until something is told."""
        self.now = now
        return self

    def timer(self) -> list[Action]:
        """The timer fires."""
        return self.tell(TimerFired())

    def replica(
        self, replica_id: str, *, max_batch: int = 4, version: str = "v1", kind: Literal["continuous", "batch"] = "continuous"
    ) -> list[Action]:
        """A replica is added and becomes ready."""
        self.tell(ReplicaAdded(replica_id=replica_id, model="m", version=version, kind=kind, max_batch=max_batch))
        return self.tell(ReplicaReady(replica_id=replica_id, kind=kind, max_batch=max_batch))

    def arrive(self, request_id: str, **fields: Any) -> list[Action]:  # noqa: ANN401 - any field of Request
        """A request for m@v1 arrives."""
        known = {"model": "m", "version": "v1", "arrived_ns": self.now, "prompt_tokens": 8}
        return self.tell(RequestArrived(Request(request_id=request_id, **{**known, **fields})))

    def arrive_all(self, *request_ids: str, **fields: Any) -> None:  # noqa: ANN401 - any field of Request
        """Several requests with the same fields, in this order."""
        for request_id in request_ids:
            self.arrive(request_id, **fields)

    def finish(self, request_id: str, replica_id: str, count: int = 1) -> list[Action]:
        """Sequences end."""
        return self.tell(SequencesFinished(request_id=request_id, replica_id=replica_id, count=count, output_tokens=8 * count))

    def batch_end(self, replica_id: str, *request_ids: str, duration_ns: int, tokens: int, output_tokens: int = 8) -> list[Action]:
        """A batch ended: each request, then what it took. All that follows."""
        finished = [
            self.tell(SequencesFinished(request_id=request_id, replica_id=replica_id, count=1, output_tokens=output_tokens))
            for request_id in request_ids
        ]
        took = IterationFinished(
            replica_id=replica_id, duration_ns=duration_ns, running=len(request_ids), decode_tokens=tokens, prefill_tokens=0, batch_id=1
        )
        return [action for actions in (*finished, self.tell(took)) for action in actions]

    def first_byte(self, request_id: str) -> list[Action]:
        """The client saw something."""
        return self.tell(FirstByteSent(request_id))

    def gone(self, request_id: str) -> list[Action]:
        """The client left."""
        return self.tell(ClientGone(request_id))

    def fail(
        self, request_id: str, replica_id: str, *, retryable: bool = True, busy: bool = False, code: str = "upstream_failure"
    ) -> list[Action]:
        """The replica could not serve it."""
        return self.tell(
            RequestFailed(request_id=request_id, replica_id=replica_id, code=code, message="it broke", retryable=retryable, busy=busy)
        )

    def where(self, request_id: str) -> str:
        """The replica it was last sent to; empty if none."""
        sent = [
            action.replica_id
            for actions in self.ordered
            for action in actions
            if isinstance(action, Dispatch) and request_id in action.request_ids
        ]
        return sent[-1] if sent else ""


def sent(actions: list[Action]) -> dict[str, tuple[str, ...]]:
    """Requests by the replica they are sent to."""
    return {action.replica_id: action.request_ids for action in actions if isinstance(action, Dispatch)}


def refused(actions: list[Action]) -> dict[str, str]:
    """Codes by refused request."""
    return {action.request_id: action.refusal.code for action in actions if isinstance(action, Refuse)}


def failed(actions: list[Action]) -> dict[str, str]:
    """Codes by failed request."""
    return {action.request_id: action.refusal.code for action in actions if isinstance(action, Fail)}


def cancelled(actions: list[Action]) -> dict[str, str]:
    """Replicas by cancelled request."""
    return {action.request_id: action.replica_id for action in actions if isinstance(action, Cancel)}
