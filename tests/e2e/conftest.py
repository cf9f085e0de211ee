"""Fleets that the end-to-end tests share. Each is started once a session and must be idle again after each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode keeps test directories off the path; `fleet` lives beside the tests

from fleet import RunningFleet

TINY = """
[daemon]
listen = "127.0.0.1:0"

[[model]]
name = "tiny"
source = "builtin:tiny-llama?seed=1"
dtype = "float32"
max_batch = 16
max_context = 512
threads = 1

[[model]]
name = "tiny-chunked"
source = "builtin:tiny-llama?seed=1"
dtype = "float32"
max_batch = 16
max_context = 512
prefill_chunk = 64
threads = 1
"""


@pytest.fixture(scope="session")
def tiny_fleet() -> Iterator[RunningFleet]:
    """The built-in tiny Llama on the torch runtime, once unchunked and once with its prefill in chunks of 64."""
    fleet = RunningFleet.start(TINY)
    yield fleet
    fleet.stop()
