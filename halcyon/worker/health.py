"""When a worker counts as lost although its process exists. Pure: told the time, never asks for it.

Four promises are watched, each as one absolute instant by which something must have happened:

    started      `Ready` within `start_ns` of the launch
    heard        some frame within `silence_ns` of the last one
    advancing    while it has sequences, engine progress within `progress_ns` of the last reported
    reading      frames for it leave our buffer within `silence_ns`

*Alive* and *advancing* are apart on purpose: a faulted device answers heartbeats for ever. *Busy* is neither: heartbeats do not wait
behind user work. A look that comes late proves that we slept, not the worker: what it sent meanwhile may still lie unread, so every promise
is extended by the lateness before it is judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from halcyon.clock import NS_PER_MS, NS_PER_S
from halcyon.wire.frames import Heartbeat

LATE_LOOK_NS = 500 * NS_PER_MS
"""A look this long after `next_check()` counts as our own sleep."""

STARTING_PATIENCE = 6
"""Before `Ready`, this many times `silence_ns` are tolerated: loading runs long calls that hold the interpreter."""


@dataclass(frozen=True, kw_only=True)
class HealthLimits:
    """Bounds in nanoseconds; see the module for what each bounds."""

    start_ns: int = 900 * NS_PER_S
    silence_ns: int = 10 * NS_PER_S
    progress_ns: int = 60 * NS_PER_S

    def __post_init__(self) -> None:
        for name in ("start_ns", "silence_ns", "progress_ns"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a positive number of nanoseconds")


class HealthWatch:
    """Watches one worker from its launch at `now`."""

    def __init__(self, limits: HealthLimits, *, now: int) -> None:
        self._limits = limits
        self._start_due_ns: int | None = now + limits.start_ns
        self._heard_due_ns = now + self._tolerated_silence_ns
        self._progress_due_ns: int | None = None
        self._read_due_ns: int | None = None

    def heard(self, *, now: int, heartbeat: Heartbeat | None = None) -> None:
        """A frame came; `heartbeat` if it was one."""
        self._heard_due_ns = now + self._tolerated_silence_ns
        if heartbeat is not None:
            busy = heartbeat.running > 0 or heartbeat.waiting > 0
            due_ns = heartbeat.engine_progress_ns + self._limits.progress_ns
            self._progress_due_ns = max(due_ns, now) if busy else None  # not in the past: that would read as our own sleep

    def became_ready(self, *, now: int) -> None:
        """`Ready` came."""
        self._start_due_ns = None
        self.heard(now=now)

    def stopped_reading(self, *, now: int) -> None:
        """Our buffer for the worker is over its high mark."""
        if self._read_due_ns is None:
            self._read_due_ns = now + self._limits.silence_ns

    def resumed_reading(self) -> None:
        """Our buffer for the worker has drained."""
        self._read_due_ns = None

    def next_check(self) -> int:
        """The instant of the next look: no verdict can change before it unless something is heard."""
        dues = (self._start_due_ns, self._heard_due_ns, self._progress_due_ns, self._read_due_ns)
        return min(due for due in dues if due is not None)

    def verdict(self, *, now: int) -> str | None:
        """Why the worker is lost, in words for people; `None` while it keeps its promises."""
        late_ns = now - self.next_check()
        if late_ns > LATE_LOOK_NS:
            self._extend(late_ns)
            return None
        if self._start_due_ns is not None and now >= self._start_due_ns:
            return f"it was not ready {_seconds(self._limits.start_ns)} after its start"
        if now >= self._heard_due_ns:
            return f"it was silent for {_seconds(self._tolerated_silence_ns)}"
        if self._progress_due_ns is not None and now >= self._progress_due_ns:
            return f"it answers, but its engine made no progress for {_seconds(self._limits.progress_ns)}"
        if self._read_due_ns is not None and now >= self._read_due_ns:
            return f"it has not read what it was sent for {_seconds(self._limits.silence_ns)}"
        return None

    @property
    def _tolerated_silence_ns(self) -> int:
        return self._limits.silence_ns * (1 if self._start_due_ns is None else STARTING_PATIENCE)

    def _extend(self, late_ns: int) -> None:
        self._heard_due_ns += late_ns + LATE_LOOK_NS
        if self._start_due_ns is not None:
            self._start_due_ns += late_ns + LATE_LOOK_NS
        if self._progress_due_ns is not None:
            self._progress_due_ns += late_ns + LATE_LOOK_NS
        if self._read_due_ns is not None:
            self._read_due_ns += late_ns + LATE_LOOK_NS


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / NS_PER_S:g} s"
