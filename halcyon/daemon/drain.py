"""Going down: nothing new is admitted, what runs finishes, then the daemon ends; hurried, what runs ends with an error.

The drain is bounded by `timeout_s`. Asking twice hurries: a second Ctrl-C means now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from halcyon.core.events import DrainStarted, Event


class Drain:
    """One way down. handle: facts for the core. end_running: ends every live request with an error. began: told once."""

    def __init__(
        self, *, handle: Callable[[Event], None], end_running: Callable[[], None], began: Callable[[], None], timeout_s: float
    ) -> None:
        self._handle = handle
        self._end_running = end_running
        self._began = began
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._finished = asyncio.Event()
        self.is_begun = False

    def begin(self, *, now: bool = False) -> None:
        """Starts the drain; asked again, or with `now`, it ends what runs."""
        again, self.is_begun = self.is_begun, True
        if not again:
            self._began()
            self._handle(DrainStarted())
        if now or again:
            self.hurry()
        elif not self._finished.is_set():
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self.hurry)

    def hurry(self) -> None:
        """Ends what runs, now."""
        self.is_begun = True
        self._end_running()
        self.finish()

    def finish(self) -> None:
        """Nothing runs any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._finished.set()

    async def finished(self) -> None:
        """Waits until the daemon may end."""
        await self._finished.wait()
