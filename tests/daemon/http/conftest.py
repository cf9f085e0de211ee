"""Lets the tests import `scripted`, which lives beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode keeps test directories off the path
