"""Replays a trace through a real engine: every iteration takes its real time, idle gaps take none.

A virtual instant is a real one plus what was skipped. Whenever nothing runs, the gap to the next release is skipped; the engine is told
deadlines in real time. Arrivals join between iterations, as they do in the simulator.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from halcyon.clock import now_ns
from halcyon.engine.request import IterationReport, SamplingRules, SequenceRequest
from halcyon.errors import WorkerFailure
from halcyon.sim.continuous import Fate, Prompt

PATIENCE_S = 3600.0


class Engine(Protocol):
    """What a replay asks of an engine."""

    def submit(self, request: SequenceRequest, *, max_output_tokens: int | None, seed: int | None) -> None:
        """Takes a sequence in; may be called from the engine's own thread."""
        ...


class Release(Protocol):
    """When requests that have arrived may enter the engine. The queue is in order of arrival and not empty."""

    def instant_ns(self, queue: Sequence[Prompt]) -> int:
        """The first instant at which the head may enter an idle engine."""
        ...

    def entering(self, queue: Sequence[Prompt], *, running: int, now: int) -> int:
        """How many of the queue enter now."""
        ...


class AtOnce:
    """Continuous batching: whoever has arrived enters."""

    def instant_ns(self, queue: Sequence[Prompt]) -> int:
        """Its arrival."""
        return queue[0].arrived_ns

    def entering(self, queue: Sequence[Prompt], *, running: int, now: int) -> int:
        """All that have arrived."""
        return next((index for index, prompt in enumerate(queue) if prompt.arrived_ns > now), len(queue))


class InBatches:
    """Static batching: into an idle engine, `size` at once, or fewer when the oldest has waited `wait_ns`."""

    def __init__(self, size: int, wait_ns: int) -> None:
        self._size = size
        self._wait_ns = wait_ns

    def instant_ns(self, queue: Sequence[Prompt]) -> int:
        """When the batch is full or its oldest has waited long enough."""
        leaves_ns = queue[0].arrived_ns + self._wait_ns
        return min(leaves_ns, queue[self._size - 1].arrived_ns) if len(queue) >= self._size else leaves_ns

    def entering(self, queue: Sequence[Prompt], *, running: int, now: int) -> int:
        """A batch, when the last one is over."""
        if running or now < self.instant_ns(queue):
            return 0
        return min(self._size, AtOnce().entering(queue, running=running, now=now))


class Replay:
    """One trace through one engine, whose sink it is. `answers` are the tokens each prompt was answered with.

    `to_longest`: whoever enters together holds its slot until the longest answer of them is done, as static batching has it.
    """

    def __init__(self, prompts: Sequence[Prompt], token_ids: Sequence[Sequence[int]], release: Release, *, to_longest: bool) -> None:
        self.fates = [Fate(prompt) for prompt in prompts]
        self.answers: list[list[int]] = [[] for _ in prompts]
        self.slot_steps = 0
        self.useful_steps = 0
        self.ended_ns = 0
        self._token_ids = token_ids
        self._release = release
        self._to_longest = to_longest
        self._queue = deque(prompts)
        self._last_token_ns = [0] * len(prompts)
        self._running = 0
        self._skipped_ns = 0
        self._over = threading.Event()
        self._failure = ""
        self._submit: Callable[[Prompt, int], None] = _nowhere

    def run(self, engine: Engine) -> None:
        """Every prompt to its end. Raises WorkerFailure where the engine does not serve one."""
        self._submit = lambda prompt, tokens: self._enter(engine, prompt, tokens)
        self._skipped_ns = -now_ns()
        self._proceed(now=0)
        if not self._over.wait(PATIENCE_S):
            raise WorkerFailure(f"The engine served {sum(bool(f.finished_ns) for f in self.fates)} requests in an hour, and not all.")
        if self._failure:
            raise WorkerFailure(self._failure)

    # ---- EngineSink, on the engine's thread ----------------------------------------------------------------------------

    def iteration(self, report: IterationReport) -> None:
        """Counts the iteration's tokens, then lets in who may enter."""
        now = report.started_ns + report.duration_ns + self._skipped_ns
        for delta in report.deltas:
            if delta.token_ids:
                self._token(int(delta.sequence_id), delta.token_ids[0], now)
            self._running -= delta.finish_reason is not None
        self._proceed(now=now)

    def failed(self, sequence_id: str, message: str) -> None:
        """Ends the replay."""
        self.fatal(f"request {sequence_id}: {message}")

    def gave_up(self, sequence_id: str) -> None:
        """The sequence was ended before it began; whoever waits may take its place."""
        self.fates[int(sequence_id)].given_up = True
        self._running -= 1
        self._proceed(now=now_ns() + self._skipped_ns)

    def fatal(self, message: str) -> None:
        """Ends the replay."""
        self._failure = message
        self._over.set()

    # --------------------------------------------------------------------------------------------------------------------

    def _token(self, index: int, token_id: int, now: int) -> None:
        fate = self.fates[index]
        self.slot_steps += 1
        if len(self.answers[index]) >= fate.prompt.output_tokens:
            return  # it only waits for the longest of its batch
        self.useful_steps += 1
        if fate.first_token_ns is None:
            fate.first_token_ns = now
        else:
            fate.worst_gap_ns = max(fate.worst_gap_ns, now - self._last_token_ns[index])
        self._last_token_ns[index] = now
        self.answers[index].append(token_id)
        if len(self.answers[index]) == fate.prompt.output_tokens:
            fate.finished_ns = self.ended_ns = now

    def _proceed(self, *, now: int) -> None:
        if not self._running and self._queue:
            gap_ns = max(0, self._release.instant_ns(self._queue) - now)
            self._skipped_ns += gap_ns
            now += gap_ns
        count = self._release.entering(self._queue, running=self._running, now=now) if self._queue else 0
        entering = [self._queue.popleft() for _ in range(count)]
        self._running += count
        longest = max((prompt.output_tokens for prompt in entering), default=0)
        for prompt in entering:
            self.fates[prompt.index].admitted_ns = now
            self._submit(prompt, longest if self._to_longest else prompt.output_tokens)
        if not self._running and not self._queue:
            self._over.set()

    def _enter(self, engine: Engine, prompt: Prompt, tokens: int) -> None:
        arrived_ns = prompt.arrived_ns - self._skipped_ns
        request = SequenceRequest(
            sequence_id=str(prompt.index),
            token_ids=tuple(self._token_ids[prompt.index]),
            sampling=SamplingRules(ignore_eos=True),
            arrived_ns=arrived_ns,
            ttft_deadline_ns=arrived_ns + prompt.ttft_ns,
            tpot_ns=prompt.tpot_ns,
            return_token_ids=True,
        )
        engine.submit(request, max_output_tokens=tokens, seed=0)


def _nowhere(_prompt: Prompt, _tokens: int) -> None:
    """Before `run` there is no engine."""
