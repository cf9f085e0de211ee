"""Keeps away from a replica that said it was busy, for a while.

Busy is not a fault: it opens no breaker and costs the request no attempt. But a request that bounced off must not bounce at the speed
of the network, so the replica rests: pause = min(0.1 s × 2^k, 5 s), k = pauses in a row without a sequence finishing there.
A sequence that finishes there ends the pause, for there is room again.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_NS = 100_000_000
LONGEST_PAUSE_NS = 5_000_000_000


@dataclass(slots=True)
class _Pause:
    until_ns: int | None
    in_a_row: int


class BusyPauses:
    """Which replicas rest, and until when."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def is_resting(self, replica_id: str) -> bool:
        """Whether the replica must not be selected; true until `lift` or `forget` ends it."""
        pause = self._pauses.get(replica_id)
        return pause is not None and pause.until_ns is not None

    def said_busy(self, replica_id: str, *, now: int) -> None:
        """Begins a pause. Further refusals within it change nothing: they were sent before it began."""
        pause = self._pauses.setdefault(replica_id, _Pause(None, 0))
        if pause.until_ns is None:
            pause.until_ns = now + min(FIRST_PAUSE_NS << min(pause.in_a_row, 6), LONGEST_PAUSE_NS)
            pause.in_a_row += 1

    def lift(self, *, now: int) -> list[str]:
        """Ends the pauses whose time has come; returns their replicas."""
        over = [replica_id for replica_id, pause in self._pauses.items() if pause.until_ns is not None and now >= pause.until_ns]
        for replica_id in over:
            self._pauses[replica_id].until_ns = None
        return over

    def forget(self, replica_id: str) -> None:
        """Begins anew: the replica finished something, came back or went for good."""
        self._pauses.pop(replica_id, None)

    def next_wakeup(self) -> int | None:
        """When the first pause ends; `None` when nobody rests."""
        return min((pause.until_ns for pause in self._pauses.values() if pause.until_ns is not None), default=None)
