"""A store on a file of its own, closed after the test, and rows to put in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halcyon.store.history import Store
from halcyon.store.rows import RequestRow

NOW_S = 1_800_000_000.0
WAIT_S = 30.0
"""Bound for what happens at once unless it never does."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the history goes."""
    return tmp_path / "history.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[Callable[..., Store]]:
    """Opens stores on `path` that never wait for another program's lock; closes them all."""
    opened: list[Store] = []

    def opener(**changes: object) -> Store:
        settings: dict[str, Any] = {"max_rows": 1000, "max_days": 30, "busy_timeout_ms": 0, "wall_s": lambda: NOW_S}
        opened.append(Store.open(path, **(settings | changes)))
        return opened[-1]

    yield opener
    assert all(store.close(timeout_s=WAIT_S) for store in opened)


@pytest.fixture
def request_row() -> Callable[..., RequestRow]:
    """Makes the audit row of the `index`-th request."""

    def make(index: int, **changes: object) -> RequestRow:
        values: dict[str, Any] = {
            "request_id": f"r{index}",
            "at": NOW_S + index,
            "tenant": "web",
            "model": "llama",
            "version": "v1",
            "endpoint": "chat",
            "outcome": "ok",
        }
        return RequestRow(**(values | changes))

    return make
