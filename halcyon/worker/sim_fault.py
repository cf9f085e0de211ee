"""When the fault of a simulated replica begins, and which it is.

Rule: on the replicas that have it, the fault is in force from the moment `fault_after` sequences have been served (ended, in any way).
"""

from __future__ import annotations

from halcyon.config.settings import Fault, SimSettings


class FaultPlan:
    """One replica's fault. `count_served` drives it; `now_in_force` tells it."""

    def __init__(self, settings: SimSettings, *, replica_index: int) -> None:
        self._settings = settings
        self._has_fault = not settings.fault_replicas or replica_index in settings.fault_replicas
        self._served = 0

    def count_served(self, sequences: int) -> None:
        """So many more sequences have ended."""
        self._served += sequences

    def now_in_force(self) -> Fault:
        """`none` before the fault begins and on replicas without one."""
        begun = self._has_fault and self._served >= self._settings.fault_after
        return self._settings.fault if begun else "none"

    def slowdown(self) -> float:
        """By how much durations are multiplied now."""
        return self._settings.fault_factor if self.now_in_force() == "slow" else 1.0
