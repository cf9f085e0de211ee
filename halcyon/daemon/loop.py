"""The actor around the core: every fact of the daemon passes through `ControlLoop.handle`, one at a time, in order.

Rules: what carrying out an order brings about is handled after the order, never inside it. Time never goes back. One timer, re-armed
from `next_wakeup()`. A core or an order that raises leaves a state nobody can vouch for, so `on_broken` is told and must end the daemon:
better a restart than a scheduler that lies. What must not be here: any decision.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from halcyon import clock
from halcyon.core.actions import Action
from halcyon.core.control import ControlPlane
from halcyon.core.events import Event, TimerFired

_NS_PER_TIMER_TICK = clock.NS_PER_MS
"""Event loops keep milliseconds; a shorter delay would fire before its instant."""


class ControlLoop:
    """Owns the core. `carry_out` receives every order with the instant it was given at."""

    def __init__(
        self,
        core: ControlPlane,
        *,
        carry_out: Callable[[Action, int], None],
        on_broken: Callable[[BaseException], None],
        read_clock: Callable[[], int] = clock.now_ns,
    ) -> None:
        self.core = core
        self._carry_out = carry_out
        self._on_broken = on_broken
        self._read_clock = read_clock
        self._pending: deque[Event] = deque()
        self._handling = False
        self._now_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None

    def now(self) -> int:
        """The instant of the daemon: never before one it has already acted on."""
        self._now_ns = max(self._now_ns, self._read_clock())
        return self._now_ns

    def handle(self, event: Event) -> None:
        """Takes a fact, and carries out what follows from it before it returns (or, inside another one, right after that)."""
        self._pending.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._pending:
                self._step(self._pending.popleft())
        except BaseException as error:
            self._pending.clear()
            self._on_broken(error)
            raise
        finally:
            self._handling = False
        self._arm()

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self, event: Event) -> None:
        now = self.now()
        for action in self.core.handle(event, now=now):
            self._carry_out(action, now)

    def _arm(self) -> None:
        wakeup_ns = self.core.next_wakeup()
        if wakeup_ns == self._armed_ns and self._timer is not None:
            return
        self.close()
        self._armed_ns = wakeup_ns
        if wakeup_ns is not None:
            ticks = -(-max(0, wakeup_ns - self.now()) // _NS_PER_TIMER_TICK)
            self._timer = asyncio.get_running_loop().call_later(ticks / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._armed_ns = None
        self.handle(TimerFired())
