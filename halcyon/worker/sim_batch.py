"""A simulated device that runs one batch at a time: each `Submit` is a batch, and all of it comes at the batch's end.

Duration: the device's law over all tokens of the batch, prompts and answers together. A batch cannot be cut short, as on a real device: a
sequence cancelled while its batch runs ends as cancelled with it; one cancelled before costs nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from halcyon.config.settings import ModelSettings
from halcyon.core.device import SimulatedDevice
from halcyon.wire.frames import Cancel, Delta, Iteration, Ready, SequenceFailed, Submit
from halcyon.worker.runtime import RuntimeStats
from halcyon.worker.sim_engine import mark_cancelled, refuse, step_ns, take_in
from halcyon.worker.sim_fault import FaultPlan
from halcyon.worker.sim_sequence import SimulatedSequence


@dataclass(slots=True)
class _Batch:
    batch_id: int
    sequences: dict[str, SimulatedSequence] = field(default_factory=dict)
    answers: dict[str, Delta] = field(default_factory=dict)
    """What those that were not cancelled at its start will say."""


class BatchEngine:
    """Runs batches in the order of their arrival."""

    def __init__(self, model: ModelSettings, *, device: SimulatedDevice, faults: FaultPlan) -> None:
        self._model = model
        self._device = device
        self._faults = faults
        self._waiting: deque[_Batch] = deque()
        self._running: _Batch | None = None
        self._number = 0
        self._progress_ns = 0
        self._started_ns = 0
        self._end_ns = 0

    def ready(self) -> Ready:
        """Sizes; a batch device has no pool of KV blocks."""
        return Ready(
            kind="batch",
            max_batch=self._model.max_batch,
            max_context=self._model.max_context,
            device="sim",
            architecture="simulated",
            has_chat_template=True,
        )

    def submit(self, message: Submit, *, now: int) -> tuple[SequenceFailed, ...]:
        """Queues the batch."""
        if self._running is None and not self._waiting:
            self._progress_ns = now
        batch, failed = _Batch(message.batch_id), []
        for sequence in message.sequences:
            failure = refuse(sequence, self._model, self._faults)
            if failure is None:
                batch.sequences[sequence.sequence_id] = take_in(sequence, self._model)
            else:
                failed.append(failure)
        if batch.sequences:
            self._waiting.append(batch)
        return tuple(failed)

    def cancel(self, message: Cancel) -> None:
        """Marks them; the end of their batch ends them."""
        running = [self._running] if self._running is not None else []
        mark_cancelled(message, *(batch.sequences for batch in (*running, *self._waiting)))

    def begin(self, *, now: int) -> int | None:
        """Starts the next batch."""
        if not self._waiting:
            return None
        batch = self._running = self._waiting.popleft()
        batch.answers = {i: s.run_to_end(now=now) for i, s in batch.sequences.items() if not s.cancelled}
        self._started_ns = now
        self._end_ns = now + (
            step_ns(self._prefill_tokens(batch) + _decode_tokens(batch), self._device, self._faults) if batch.answers else 0
        )
        return self._end_ns

    def take_given_up(self) -> tuple[SequenceFailed, ...]:
        """A batch is run whole; nobody is given up."""
        return ()

    def finish(self) -> Iteration:
        """Ends the running batch."""
        batch, self._running = self._running, None
        assert batch is not None, "finish without begin"
        self._number += 1
        self._progress_ns = self._end_ns
        self._faults.count_served(len(batch.sequences))
        return Iteration(
            number=self._number,
            started_ns=self._started_ns,
            duration_ns=self._end_ns - self._started_ns,
            running=len(batch.answers),
            waiting=self._count_waiting(),
            decode_tokens=_decode_tokens(batch),
            prefill_tokens=self._prefill_tokens(batch),
            batch_id=batch.batch_id,
            deltas=tuple(_last_delta(sequence, batch.answers) for sequence in batch.sequences.values()),
        )

    def stats(self) -> RuntimeStats:
        """Counts of this instant."""
        return RuntimeStats(
            running=len(self._running.sequences) if self._running is not None else 0,
            waiting=self._count_waiting(),
            kv_blocks_used=0,
            kv_blocks_free=0,
            kv_blocks_cached=0,
            engine_progress_ns=self._progress_ns,
        )

    def _count_waiting(self) -> int:
        return sum(len(batch.sequences) for batch in self._waiting)

    def _prefill_tokens(self, batch: _Batch) -> int:
        return sum(batch.sequences[i].prompt_tokens for i in batch.answers)


def _decode_tokens(batch: _Batch) -> int:
    return sum(answer.output_tokens for answer in batch.answers.values())


def _last_delta(sequence: SimulatedSequence, answers: dict[str, Delta]) -> Delta:
    answer = answers.get(sequence.sequence_id)
    if answer is None:
        return sequence.end_cancelled()
    if not sequence.cancelled:
        return answer
    return msgspec.structs.replace(answer, text="", token_ids=(), logprobs=(), output_tokens=0, finish_reason="cancelled", stop_reason=None)
