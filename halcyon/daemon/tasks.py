"""Background tasks that are never silently dead: one that fails is reported to the daemon, which ends loudly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class Tasks:
    """Owns the daemon's background tasks. `on_crash(name, error)` is told of every failure but a cancellation that was asked for."""

    def __init__(self, on_crash: Callable[[str, BaseException], None]) -> None:
        self._on_crash = on_crash
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Runs `work` until it ends, fails or is cancelled."""
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    async def cancel_all(self) -> None:
        """Cancels what still runs and waits for it. Failures meanwhile are reported as ever."""
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_crash(task.get_name(), error)
