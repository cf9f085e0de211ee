"""Fixtures that start real workers and leave none behind."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode keeps test directories off the path; `worker_rig` lives beside the tests

from worker_rig import BareWorker, HandledWorker


@pytest.fixture
async def launch() -> AsyncIterator[Callable[..., Awaitable[HandledWorker]]]:
    """Launches workers behind handles; on teardown each must have been lost exactly once."""
    workers: list[HandledWorker] = []

    async def start(*args: object, **spec: object) -> HandledWorker:
        worker = await HandledWorker().launch(*args, **spec)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        await worker.close()


@pytest.fixture
def bare() -> Iterator[Callable[..., BareWorker]]:
    """Starts workers on bare sockets."""
    workers: list[BareWorker] = []

    def start(**how: object) -> BareWorker:
        workers.append(BareWorker(**how))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
