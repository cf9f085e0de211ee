"""The requests that are alive, and the translation between them and the frames of replicas.

Rules
- A request is here from its admission to its end, a sequence from its dispatch until its replica says that it ended (or is lost): a client
  that left takes its request away at once, while the slots stay counted until they are free.
- Sequence ids are `{request_id}/{i}`, and `{request_id}~{attempt}/{i}` for later attempts, so that a late frame of an attempt that failed
  can never be taken for one of the next.
- Unknown ids are late news. One that still produces tokens is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from halcyon.core.actions import Cancel as CancelOrder
from halcyon.core.actions import Dispatch, Fail, Refusal, Refuse
from halcyon.core.events import Event, IterationFinished, ReplicaLost, RequestFailed, SequencesFinished
from halcyon.core.request import Request
from halcyon.daemon.generation import LiveGeneration
from halcyon.daemon.link import Link
from halcyon.errors import RequestError, WorkerFailure, request_errors_by_code
from halcyon.wire.frames import Cancel, Iteration, Sequence, SequenceFailed, Submit
from halcyon.wire.inference import InferenceCall
from halcyon.worker.link import WorkerBusy


@dataclass(slots=True)
class LiveRequest:
    """One admitted request. attempts: dispatches so far. param: the field a replica blamed, if it blamed one."""

    request: Request
    call: InferenceCall
    generation: LiveGeneration
    attempts: int = 0
    param: str | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """One sequence on one replica. unwanted: it was cancelled, so only its end still matters, and only to the core."""

    live: LiveRequest
    index: int
    replica_id: str
    unwanted: bool = False


class Traffic:
    """Live requests and running sequences. `handle` takes facts to the control loop, `link_to` finds a replica's line."""

    def __init__(self, *, handle: Callable[[Event], None], link_to: Callable[[str], Link | None], now: Callable[[], int]) -> None:
        self._handle = handle
        self._link_to = link_to
        self._now = now
        self._requests: dict[str, LiveRequest] = {}
        self._running: dict[str, _Running] = {}

    # ---- what the service does ---------------------------------------------------------------------------------------

    def admit(self, live: LiveRequest) -> None:
        """The request is alive from now on; told before the core hears of it."""
        self._requests[live.request.request_id] = live

    def forget(self, request_id: str) -> LiveRequest | None:
        """The request ended; sequences of it that still run stay known. Returns it, `None` when it was forgotten before."""
        return self._requests.pop(request_id, None)

    @property
    def alive(self) -> Mapping[str, LiveRequest]:
        """Every request that has not ended, by id."""
        return self._requests

    def running(self) -> int:
        """Sequences dispatched and not ended."""
        return len(self._running)

    # ---- orders of the core ------------------------------------------------------------------------------------------

    def dispatch(self, order: Dispatch, now: int) -> None:
        """Sends the requests of one batch."""
        lives = [live for request_id in order.request_ids if (live := self._requests.get(request_id)) is not None]
        per_request = [self._begin(live, order, now) for live in lives]
        link = self._link_to(order.replica_id)
        if link is None or not per_request:
            return  # the replica's loss is on its way
        try:
            link.send(Submit(order.batch_id, tuple(sequence for sequences in per_request for sequence in sequences)))
        except WorkerFailure:  # too large together, or too much for now: each may still fit
            for live, sequences in zip(lives, per_request, strict=True):
                self._send_alone(link, live, Submit(order.batch_id, sequences), order.replica_id)

    def refuse(self, order: Refuse | Fail, now: int) -> None:
        """Ends a request with the core's reason."""
        live = self._requests.get(order.request_id)
        if live is not None:
            live.generation.fail(error_of(order.refusal, param=live.param), now=now)

    def cancel(self, order: CancelOrder) -> None:
        """Stops what runs for the request on the replica. A link may report the end before this returns: it is no answer."""
        sequence_ids = self._ids_of(order.request_id, order.replica_id)
        for sequence_id in sequence_ids:
            self._running[sequence_id] = replace(self._running[sequence_id], unwanted=True)
        self._cancel(order.replica_id, sequence_ids)

    # ---- frames of replicas ------------------------------------------------------------------------------------------

    def iteration(self, replica_id: str, frame: Iteration) -> None:
        """What one iteration produced, to its readers and to the core."""
        finished, unknown = self._deliver(replica_id, frame)
        if unknown:
            self._cancel(replica_id, unknown)
        for event in finished.values():
            self._handle(event)
        if frame.duration_ns:  # a remote server does not say how long its iterations take
            self._handle(_iteration_finished(replica_id, frame))

    def sequence_failed(self, replica_id: str, frame: SequenceFailed) -> None:
        """One sequence cannot be served, so its request cannot be served there: its other sequences are cancelled."""
        running = self._running.pop(frame.sequence_id, None)
        if running is None or running.replica_id != replica_id:
            return
        live, request_id = running.live, running.live.request.request_id
        siblings = self._ids_of(request_id, replica_id)
        for sequence_id in siblings:
            del self._running[sequence_id]
        self._cancel(replica_id, siblings)
        live.param = frame.param
        live.generation.lose_attempt()
        self._handle(
            RequestFailed(
                request_id=request_id,
                replica_id=replica_id,
                code=frame.code,
                message=frame.message,
                retryable=frame.retryable,
                busy=frame.busy,
            )
        )

    def replica_lost(self, replica_id: str, reason: str) -> None:
        """The replica is gone with all that ran on it. What nobody was sent is dropped before the core decides who tries again."""
        lost = [sequence_id for sequence_id, running in self._running.items() if running.replica_id == replica_id]
        for sequence_id in lost:
            self._running.pop(sequence_id).live.generation.lose_attempt()
        self._handle(ReplicaLost(replica_id, reason))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _begin(self, live: LiveRequest, order: Dispatch, now: int) -> tuple[Sequence, ...]:
        live.attempts += 1
        live.param = None
        live.generation.start_attempt(order, now=now)
        sequences = sequences_of(live.request, live.call, attempt=live.attempts)
        for index, sequence in enumerate(sequences):
            self._running[sequence.sequence_id] = _Running(live, index, order.replica_id)
        return sequences

    def _send_alone(self, link: Link, live: LiveRequest, submit: Submit, replica_id: str) -> None:
        """Many large prompts do not fit into one frame; one that does not fit alone is refused, or waits where there is no room yet."""
        try:
            link.send(submit)
        except WorkerBusy:
            self._unsent(live, submit, replica_id, code="overloaded", message="the replica has too much to read; retry later", busy=True)
        except WorkerFailure:
            message = "the prompt is too large to be sent to a replica; send a shorter one, or a smaller n"
            self._unsent(live, submit, replica_id, code="payload_too_large", message=message, busy=False)

    def _unsent(self, live: LiveRequest, submit: Submit, replica_id: str, *, code: str, message: str, busy: bool) -> None:
        for sequence in submit.sequences:
            del self._running[sequence.sequence_id]
        request_id = live.request.request_id
        self._handle(RequestFailed(request_id=request_id, replica_id=replica_id, code=code, message=message, retryable=busy, busy=busy))

    def _deliver(self, replica_id: str, frame: Iteration) -> tuple[dict[str, SequencesFinished], list[str]]:
        """Hands deltas to their readers. Returns what finished, by request, and the unknown sequences that still produce."""
        now = self._now()
        finished: dict[str, SequencesFinished] = {}
        unknown: list[str] = []
        for delta in frame.deltas:
            running = self._running.get(delta.sequence_id)
            if running is None or running.replica_id != replica_id:
                if delta.finish_reason is None:
                    unknown.append(delta.sequence_id)
                continue
            if not running.unwanted:
                running.live.generation.push(running.index, delta, now=now)
            if delta.finish_reason is not None:
                del self._running[delta.sequence_id]
                _count_finished(finished, running, delta.output_tokens)
        return finished, unknown

    def _ids_of(self, request_id: str, replica_id: str) -> list[str]:
        """The request's running sequences there, by scanning: it holds at most what fits into the fleet's slots."""
        return [
            sequence_id
            for sequence_id, running in self._running.items()
            if running.replica_id == replica_id and running.live.request.request_id == request_id
        ]

    def _cancel(self, replica_id: str, sequence_ids: list[str]) -> None:
        link = self._link_to(replica_id)
        if link is not None and sequence_ids:
            link.send(Cancel(tuple(sequence_ids)))


def _iteration_finished(replica_id: str, frame: Iteration) -> IterationFinished:
    return IterationFinished(
        replica_id=replica_id,
        duration_ns=frame.duration_ns,
        running=frame.running,
        decode_tokens=frame.decode_tokens,
        prefill_tokens=frame.prefill_tokens,
        batch_id=frame.batch_id,
    )


def _count_finished(finished: dict[str, SequencesFinished], running: _Running, output_tokens: int) -> None:
    request_id = running.live.request.request_id
    before = finished.get(request_id)
    finished[request_id] = SequencesFinished(
        request_id=request_id,
        replica_id=running.replica_id,
        count=1 + (before.count if before else 0),
        output_tokens=output_tokens + (before.output_tokens if before else 0),
    )


def sequences_of(request: Request, call: InferenceCall, *, attempt: int) -> tuple[Sequence, ...]:
    """One sequence for each answer of the request. Answer i draws with seed + i."""
    stem = request.request_id if attempt == 1 else f"{request.request_id}~{attempt}"
    seed = call.sampling.seed
    return tuple(
        Sequence(
            sequence_id=f"{stem}/{index}",
            messages=call.messages,
            text=call.text,
            token_ids=call.token_ids,
            sampling=call.sampling if seed is None else msgspec.structs.replace(call.sampling, seed=seed + index),
            arrived_ns=request.arrived_ns,
            deadline_ns=request.deadline_ns,
            ttft_deadline_ns=request.ttft_deadline_ns,
            tpot_ns=request.tpot_ns,
            lane=request.lane,
            priority=request.priority,
            return_token_ids=call.return_token_ids,
        )
        for index in range(request.sequences)
    )


def error_of(refusal: Refusal, *, param: str | None = None) -> RequestError:
    """The exception a client meets for a refusal of the core."""
    found = request_errors_by_code().get(refusal.code, RequestError)
    return found(refusal.message, retry_after_ms=refusal.retry_after_ms, param=param, details=dict(refusal.details))
