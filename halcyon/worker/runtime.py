"""What a worker process asks of the thing that runs a model, real or simulated.

Who calls what: the process's main thread calls `start` once; the reader thread calls `submit`, `cancel` and, at the end, `stop`; the
heartbeat thread calls `stats` at any time, also before and during `start`. No call but `start` may wait for the engine. Frames leave
through `emit` and are sent in the order in which they were handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from halcyon.wire.frames import Cancel, Configure, FromWorker, SequenceFailed, Submit

Emit = Callable[[FromWorker], None]
"""Hands one frame to the writer thread. Safe from any thread; returns at once."""


class Fail(Protocol):
    """Reports, from any thread, that a running engine cannot go on. The process sends `Fatal` and exits non-zero."""

    def __call__(self, message: str, *, retryable: bool = True) -> None:
        """`message`: one sentence, no prompt text. `retryable`: False where a restart cannot help. Returns; the process ends soon after."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """A glance at the engine, for heartbeats.

    Attributes:
        running / waiting: sequences started, and submitted but not started.
        kv_blocks_used / free / cached: as in `halcyon.wire.frames.Iteration`; 0 before `Ready`.
        engine_progress_ns: the last monotonic instant at which an iteration ended; now, when there is nothing to do.
    """

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_free: int
    kv_blocks_cached: int
    engine_progress_ns: int


class Runtime(Protocol):
    """One model on one device, for the life of one process. Built without arguments by `halcyon.worker.process`."""

    def start(self, configure: Configure, emit: Emit, fail: Fail) -> None:
        """Loads the model; blocks meanwhile. Emits `Stage`s and, last, `Ready`; from then on `submit` is answered. Returns after `Ready`.

        Raises:
            ModelUnavailable: the weights cannot be had; a restart cannot help.
            WorkerFailure: this process cannot serve; another try might.
        """
        ...

    def submit(self, message: Submit) -> None:
        """Takes the sequences in. Each ends in one last `Delta` (inside an `Iteration`) or one `SequenceFailed`; raises nothing."""
        ...

    def cancel(self, message: Cancel) -> None:
        """Ends these sequences within one iteration (`finish_reason="cancelled"`) and frees their blocks; ignores unknown ids."""
        ...

    def stats(self) -> RuntimeStats:
        """The figures of this instant: cheap, never waits behind the engine or a lock that it holds while it computes."""
        ...

    def stop(self) -> None:
        """Ends the engine; returns at once. The process exits right after, so nothing needs to be freed."""
        ...


def given_up(sequence_id: str) -> SequenceFailed:
    """The end of a sequence that the iteration policy gave up before anything was done for it."""
    return SequenceFailed(
        sequence_id=sequence_id,
        code="deadline_unreachable",
        message="the deadline of the first token cannot be met behind what runs; allow more time, send a shorter prompt, or retry later",
    )
