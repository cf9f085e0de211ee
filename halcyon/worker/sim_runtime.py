"""The simulated runtime: a thread that lets a simulated engine's time pass for real.

Everything that decides is in the engine, which is told the time. The thread only waits until the absolute instant at which an iteration
ends and starts the next one at that same instant, so that lateness of the machine never adds up. A machine that slept longer than
`RESYNC_NS` does not catch up: the next iteration starts now.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from typing import Final

import msgspec

from halcyon.clock import NS_PER_MS, NS_PER_S, now_ns
from halcyon.config.settings import ModelSettings
from halcyon.core.batching.orders.choice import order_named
from halcyon.core.device import SimulatedDevice
from halcyon.wire.frames import Cancel, Configure, Stage, Submit
from halcyon.worker.outbox import WorkerExit
from halcyon.worker.runtime import Emit, Fail, RuntimeStats
from halcyon.worker.sim_batch import BatchEngine
from halcyon.worker.sim_engine import ContinuousEngine, SimulatedEngine
from halcyon.worker.sim_fault import FaultPlan

RESYNC_NS: Final = 250 * NS_PER_MS
MOST_PREFILL_TOKENS: Final = 8192
"""Prompt tokens of one iteration where no chunk is configured; a simulated device has no work space that it must fit."""

_IDLE: Final = RuntimeStats(running=0, waiting=0, kv_blocks_used=0, kv_blocks_free=0, kv_blocks_cached=0, engine_progress_ns=0)


def build_engine(model: ModelSettings, faults: FaultPlan, *, replica_index: int) -> SimulatedEngine:
    """The engine of one replica of `model`; its noise is seeded by the model's seed and the replica's index."""
    law = model.sim
    device = SimulatedDevice(
        overhead_ms=law.overhead_ms,
        per_token_ms=law.per_token_ms,
        jitter=law.jitter,
        speed=law.speed[min(replica_index, len(law.speed) - 1)],
        rng=random.Random(f"{law.seed}/{replica_index}"),
    )
    if law.mode == "batch":
        return BatchEngine(model, device=device, faults=faults)
    policy = order_named(model.order, prefill_chunk=model.prefill_chunk)
    most_tokens = (model.prefill_chunk or MOST_PREFILL_TOKENS) + model.max_batch
    return ContinuousEngine(model, device=device, faults=faults, policy=policy, max_batch_tokens=most_tokens)


class SimulatedRuntime:
    """A `Runtime` without a device."""

    def __init__(self) -> None:
        self._engine: SimulatedEngine | None = None
        self._changed = threading.Condition()
        self._stopped = False
        self._stats = _IDLE

    def start(self, configure: Configure, emit: Emit, fail: Fail) -> None:
        """Pretends to load for `load_ms`, then serves."""
        started_ns = now_ns()
        model = msgspec.convert(configure.model, ModelSettings)
        emit(Stage("loading", detail="simulated weights", progress=0.0))
        self._wait_until(started_ns + round(model.sim.load_ms * NS_PER_MS))
        self._faults = FaultPlan(model.sim, replica_index=configure.replica_index)
        self._engine = build_engine(model, self._faults, replica_index=configure.replica_index)
        self._emit, self._fail = emit, fail
        self._stats = self._engine.stats()
        emit(msgspec.structs.replace(self._engine.ready(), load_ns=now_ns() - started_ns))
        threading.Thread(name="engine", target=self._run, daemon=True).start()

    def submit(self, message: Submit) -> None:
        """Takes the sequences in and wakes the engine."""
        with self._changed:
            for failure in self._live_engine().submit(message, now=now_ns()):
                self._emit(failure)
            self._note_change()

    def cancel(self, message: Cancel) -> None:
        """Marks the sequences and wakes the engine."""
        with self._changed:
            self._live_engine().cancel(message)
            self._note_change()

    def stats(self) -> RuntimeStats:
        """The figures as of the engine's last step."""
        stats = self._stats
        if stats.running or stats.waiting:
            return stats
        return replace(stats, engine_progress_ns=now_ns())

    def stop(self) -> None:
        """Ends the engine thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _live_engine(self) -> SimulatedEngine:
        assert self._engine is not None, "the process turns away what comes before Ready"
        return self._engine

    def _note_change(self) -> None:
        self._stats = self._live_engine().stats()
        self._changed.notify_all()

    def _run(self) -> None:
        """The engine thread: iterations end to end while there is work, else wait to be woken."""
        engine = self._live_engine()
        with self._changed:
            start_ns = now_ns()
            while not self._stopped:
                end_ns = None if self._is_broken() else engine.begin(now=start_ns)
                for failure in engine.take_given_up():
                    self._emit(failure)
                    self._stats = engine.stats()
                if end_ns is None:
                    self._changed.wait()
                    start_ns = now_ns()
                    continue
                self._stats = engine.stats()  # what waited may run now
                self._wait_until(end_ns)
                self._emit(engine.finish())
                self._stats = engine.stats()
                start_ns = end_ns if now_ns() < end_ns + RESYNC_NS else now_ns()

    def _is_broken(self) -> bool:
        """Acts out the fault in force, if there is work to break. True while the engine must not advance."""
        if not (self._stats.running or self._stats.waiting):
            return False
        match self._faults.now_in_force():
            case "crash":
                os._exit(WorkerExit.FAILED)
            case "oom":
                self._stopped = True
                self._fail("out of memory: the simulated device could not allocate KV blocks")
                return True
            case "hang":
                return True
            case _:
                return False

    def _wait_until(self, instant_ns: int) -> None:
        """Returns at the instant, or when stopped. Releases the engine's lock meanwhile."""
        with self._changed:
            while not self._stopped and (remaining_ns := instant_ns - now_ns()) > 0:
                self._changed.wait(remaining_ns / NS_PER_S)
