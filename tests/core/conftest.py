"""What the tests of the core share: a story told to a real control plane."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode keeps test directories off the path; `core_story` lives beside the tests

from core_story import Story


@pytest.fixture
def story() -> Story:
    """A control plane with one model `m` (v1 the default, v2), no replica yet, at instant 0."""
    return Story()
