"""Whoever waits for the daemon to reach some state looks again whenever something changed, and never by the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """One stream of changes, many waiters."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()

    def tell(self) -> None:
        """Something changed."""
        for waiter in self._waiters:
            waiter.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once `holds()`; looks at once, then after each change."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            while not holds():
                waiter.clear()
                await waiter.wait()
        finally:
            self._waiters.discard(waiter)
