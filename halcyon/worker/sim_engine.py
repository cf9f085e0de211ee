"""A simulated engine that decides and never waits: told the time, it says when its iteration ends and what it produced.

Two of them behind one protocol. `ContinuousEngine` lets sequences join and leave at every iteration and asks the same iteration policy as
the real engine; `BatchEngine` (in `sim_batch`) runs one `Submit` after another. The shell calls `begin` and, at the instant it named,
`finish`; `submit` and `cancel` may come at any time between.
"""

from __future__ import annotations

import math
from typing import Protocol

from halcyon.config.settings import ModelSettings
from halcyon.core.batching.iteration import EngineView, IterationPlan, IterationPolicy
from halcyon.core.device import SimulatedDevice
from halcyon.wire.frames import Cancel, Delta, Iteration, Ready, Sequence, SequenceFailed, Submit
from halcyon.worker.runtime import RuntimeStats, given_up
from halcyon.worker.sim_fault import FaultPlan
from halcyon.worker.sim_sequence import SimulatedSequence

KV_BLOCK_TOKENS = 16


class SimulatedEngine(Protocol):
    """What the shell needs of either kind."""

    def ready(self) -> Ready:
        """The sizes it will report."""
        ...

    def submit(self, message: Submit, *, now: int) -> tuple[SequenceFailed, ...]:
        """Takes sequences in; returns those it cannot serve."""
        ...

    def cancel(self, message: Cancel) -> None:
        """Marks sequences; they end with the iteration that runs, or the next."""
        ...

    def begin(self, *, now: int) -> int | None:
        """Starts an iteration at `now` and returns the instant of its end; `None` with nothing to do."""
        ...

    def take_given_up(self) -> tuple[SequenceFailed, ...]:
        """What the last `begin` gave up; each is told of once."""
        ...

    def finish(self) -> Iteration:
        """Ends the iteration begun last, at the instant `begin` returned."""
        ...

    def stats(self) -> RuntimeStats:
        """The figures after the last call; `engine_progress_ns` is the last end, or the last arrival at an idle engine."""
        ...


class ContinuousEngine:
    """Sequences join and leave at every iteration.

    An iteration processes one token for every sequence in decode, and prompt tokens as the policy plans them. A sequence whose prompt is
    done gets its first token at the end of that iteration. The pool holds `max_batch` full contexts, so what has begun always fits.
    """

    def __init__(
        self, model: ModelSettings, *, device: SimulatedDevice, faults: FaultPlan, policy: IterationPolicy, max_batch_tokens: int
    ) -> None:
        self._model = model
        self._device = device
        self._faults = faults
        self._policy = policy
        self._max_batch_tokens = max_batch_tokens
        self._kv_blocks_total = model.max_batch * math.ceil(model.max_context / KV_BLOCK_TOKENS)
        self._waiting: dict[str, SimulatedSequence] = {}
        self._running: dict[str, SimulatedSequence] = {}
        self._number = 0
        self._progress_ns = 0
        self._started_ns = 0
        self._end_ns = 0
        self._prefill: dict[str, int] = {}
        self._decoding: tuple[SimulatedSequence, ...] = ()
        self._given_up: list[SequenceFailed] = []

    def ready(self) -> Ready:
        """Sizes of the simulated pool; no bytes, because nothing is held."""
        return Ready(
            kind="continuous",
            max_batch=self._model.max_batch,
            max_context=self._model.max_context,
            kv_blocks_total=self._kv_blocks_total,
            kv_block_tokens=KV_BLOCK_TOKENS,
            device="sim",
            architecture="simulated",
            has_chat_template=True,
        )

    def submit(self, message: Submit, *, now: int) -> tuple[SequenceFailed, ...]:
        """Lets the sequences wait for a slot."""
        if not self._waiting and not self._running:
            self._progress_ns = now
        failed = []
        for sequence in message.sequences:
            failure = refuse(sequence, self._model, self._faults)
            if failure is None:
                self._waiting[sequence.sequence_id] = take_in(sequence, self._model)
            else:
                failed.append(failure)
        return tuple(failed)

    def cancel(self, message: Cancel) -> None:
        """Marks them; `finish` ends them."""
        mark_cancelled(message, self._waiting, self._running)

    def begin(self, *, now: int) -> int | None:
        """Plans and starts one iteration."""
        if not self._waiting and not self._running:
            return None
        self._started_ns = now
        self._decoding = tuple(s for s in self._running.values() if s.remaining_prefill == 0 and not s.cancelled)
        plan = self._policy.plan(self._view(), now=now)
        self._give_up(plan)
        if not self._waiting and not self._running:
            return None
        self._prefill = self._admit(plan)
        live = any(not s.cancelled for s in (*self._running.values(), *self._waiting.values()))
        tokens = len(self._decoding) + sum(self._prefill.values())
        self._end_ns = now + (step_ns(tokens, self._device, self._faults) if live else 0)
        return self._end_ns

    def take_given_up(self) -> tuple[SequenceFailed, ...]:
        """Empties the list."""
        given_up, self._given_up = tuple(self._given_up), []
        return given_up

    def finish(self) -> Iteration:
        """Advances everything that took part, ends what was cancelled or is done, and frees its slots and blocks."""
        running = len(self._decoding) + len(self._prefill)
        deltas = self._advance()
        prefill_tokens, decode_tokens = sum(self._prefill.values()), len(self._decoding)
        self._number += 1
        self._progress_ns = self._end_ns
        duration_ns = self._end_ns - self._started_ns
        self._policy.observe(duration_ns=duration_ns, running=running, prefill_tokens=prefill_tokens)
        self._prefill, self._decoding = {}, ()
        used = self._kv_blocks_used()
        return Iteration(
            number=self._number,
            started_ns=self._started_ns,
            duration_ns=duration_ns,
            running=running,
            waiting=len(self._waiting),
            decode_tokens=decode_tokens,
            prefill_tokens=prefill_tokens,
            kv_blocks_used=used,
            kv_blocks_free=self._kv_blocks_total - used,
            deltas=deltas,
        )

    def stats(self) -> RuntimeStats:
        """Counts of this instant."""
        used = self._kv_blocks_used()
        return RuntimeStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_used=used,
            kv_blocks_free=self._kv_blocks_total - used,
            kv_blocks_cached=0,
            engine_progress_ns=self._progress_ns,
        )

    def _view(self) -> EngineView:
        live = [s for s in self._running.values() if not s.cancelled]
        return EngineView(
            decoding=[s.view() for s in self._decoding],
            prefilling=[s.view() for s in live if s.remaining_prefill > 0],
            waiting=[s.view() for s in self._waiting.values() if not s.cancelled],
            max_batch=self._model.max_batch,
            max_batch_tokens=self._max_batch_tokens,
            kv_blocks_free=self._kv_blocks_total - self._kv_blocks_used(),
            kv_blocks_total=self._kv_blocks_total,
            kv_block_tokens=KV_BLOCK_TOKENS,
        )

    def _give_up(self, plan: IterationPlan) -> None:
        """Ends the waiting ones that the policy gives up; whatever waits has produced nothing."""
        for sequence_id in plan.give_up:
            del self._waiting[sequence_id]
            self._given_up.append(given_up(sequence_id))

    def _admit(self, plan: IterationPlan) -> dict[str, int]:
        """Prompt tokens for each sequence of the plan, as far as budget and slots last."""
        prefill: dict[str, int] = {}
        budget = plan.prefill_budget
        for sequence_id in plan.prefill_order:
            if budget <= 0:
                break
            if sequence_id not in self._running:
                if len(self._running) >= self._model.max_batch:
                    continue
                self._running[sequence_id] = self._waiting.pop(sequence_id)
            prefill[sequence_id] = min(budget, self._running[sequence_id].remaining_prefill)
            budget -= prefill[sequence_id]
        return prefill

    def _advance(self) -> tuple[Delta, ...]:
        for sequence_id, tokens in self._prefill.items():
            self._running[sequence_id].remaining_prefill -= tokens
        prefilled = [self._running[i] for i in self._prefill if self._running[i].remaining_prefill == 0]
        deltas = [s.step(now=self._end_ns) for s in (*self._decoding, *prefilled) if not s.cancelled]
        deltas += [s.end_cancelled() for s in (*self._running.values(), *self._waiting.values()) if s.cancelled]
        ended = [delta.sequence_id for delta in deltas if delta.finish_reason is not None]
        for sequence_id in ended:
            self._running.pop(sequence_id, None)
            self._waiting.pop(sequence_id, None)
        self._faults.count_served(len(ended))
        return tuple(deltas)

    def _kv_blocks_used(self) -> int:
        return sum(math.ceil(s.held_tokens / KV_BLOCK_TOKENS) for s in self._running.values())


def refuse(sequence: Sequence, model: ModelSettings, faults: FaultPlan) -> SequenceFailed | None:
    """Why this sequence cannot be served here, if so."""
    if faults.now_in_force() == "fail_fast":
        return SequenceFailed(
            sequence_id=sequence.sequence_id, code="upstream_failure", message="the simulated device fails every sequence", retryable=True
        )
    candidate = take_in(sequence, model)
    if candidate.max_output_tokens >= 1:
        return None
    return SequenceFailed(
        sequence_id=sequence.sequence_id,
        code="invalid_request",
        message=f"the prompt has {candidate.prompt_tokens} tokens and the context holds {model.max_context}, the answer included; "
        "send a shorter prompt",
        param="input",
    )


def step_ns(tokens: int, device: SimulatedDevice, faults: FaultPlan) -> int:
    """How long an iteration or batch of `tokens` takes on this device in its present state."""
    return round(device.duration_ns(tokens) * faults.slowdown())


def take_in(sequence: Sequence, model: ModelSettings) -> SimulatedSequence:
    """The sequence as the engine keeps it."""
    return SimulatedSequence(sequence, version=model.version, mean_tokens=model.sim.output_tokens, max_context=model.max_context)


def mark_cancelled(message: Cancel, *groups: dict[str, SimulatedSequence]) -> None:
    """Marks those that are still there; ignores the rest."""
    for sequence_id in message.sequence_ids:
        for group in groups:
            if sequence_id in group:
                group[sequence_id].cancelled = True
