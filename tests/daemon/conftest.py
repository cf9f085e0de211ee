"""What the tests of the daemon share: daemons with simulated workers that leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode keeps test directories off the path; `daemon_rig` lives beside the tests

from daemon_rig import Rigs


@pytest.fixture
async def rigs() -> AsyncIterator[Rigs]:
    """Starts daemons; all are ended after the test."""
    started = Rigs()
    yield started
    await started.close()
