"""The log: one JSON object a line, bounded, its owner's alone, and silent about what others wrote into exceptions."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halcyon.daemon.logs import EventLog, LogFile
from halcyon.errors import ConfigError


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[..., LogFile]]:
    """Opens logs of 4 KiB with two old files; closes them at the end."""
    opened: list[LogFile] = []

    def opener(name: str = "a.log") -> LogFile:
        opened.append(LogFile(tmp_path / name, level="info", max_bytes=4096, old_files=2, stderr=False))
        return opened[-1]

    yield opener
    for log in opened:
        log.close()


def lines(path: Path) -> list[dict[str, object]]:
    """The log's objects."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_one_object_with_its_fields(open_log: Callable[..., LogFile]) -> None:
    """`ts`, `level`, `event` and the event's own fields; below the level nothing."""
    log = open_log()
    EventLog("part").info("happened", replica="m-v1-0", count=3)
    EventLog("part").debug("too_fine")
    (line,) = lines(log.path)
    assert {key: line[key] for key in ("level", "event", "replica", "count")} == {
        "level": "info", "event": "happened", "replica": "m-v1-0", "count": 3,
    }  # fmt: skip


def test_an_exceptions_words_are_written_only_if_they_are_ours(open_log: Callable[..., LogFile]) -> None:
    """Of a foreign exception the type and place are kept; of ours the message too. Libraries' records lose their arguments."""
    log = open_log()
    EventLog("part").error("failed", error=ValueError("secret words"))
    EventLog("part").error("failed", error=ConfigError(["a line of ours"]))
    logging.getLogger("aiohttp.server").warning("bad request %s", "secret words")
    written = log.path.read_text()
    assert "secret words" not in written
    assert "a line of ours" in written
    assert [line["error"] for line in lines(log.path)[:2]] == ["ValueError", "ConfigError"]


def test_it_is_bounded_and_private(open_log: Callable[..., LogFile]) -> None:
    """1,000 lines leave at most three files of 4 KiB, each with mode 0600. (Fault: logs grow without bound.)"""
    log = open_log()
    for number in range(1000):
        EventLog("part").info("happened", number=number)
    files = sorted(log.path.parent.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= 4096 for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
