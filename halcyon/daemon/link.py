"""What the daemon asks of whatever serves a replica: a worker process (`halcyon.worker.handle`) or a remote server (`remote.py`).

Rules: a link reports through two callbacks, `on_frame` (in order, none after the loss) and `on_lost` (exactly once). `send` never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from halcyon.wire.frames import Fatal, FromWorker, ToWorker

OnFrame = Callable[[FromWorker], None]
OnLost = Callable[[str, Fatal | None], None]
"""The reason in words for people, and the worker's own last frame where it sent one."""


class Link(Protocol):
    """One line to one replica."""

    def send(self, frame: ToWorker) -> None:
        """Hands over one frame; returns at once; does nothing after the loss.

        Raises:
            WorkerBusy: the replica has too much to read already. WorkerFailure: the frame is over the size limit. Nothing was sent.
        """
        ...

    def stop(self) -> None:
        """Asks an empty replica to end by itself, and sees to it that it does."""
        ...

    def terminate(self) -> None:
        """Ends it now, by force after a grace."""
        ...

    def kill(self) -> None:
        """Ends it by force."""
        ...

    async def wait_gone(self) -> None:
        """Waits until nothing of it is left."""
        ...
