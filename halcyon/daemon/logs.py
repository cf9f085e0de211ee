"""The daemon's log: one JSON object a line, rotated by size, readable by its owner only.

A line has `ts`, `level`, `event` (a fixed snake_case name) and the event's own fields. Rules: fields are ids, numbers and sentences of
ours, never prompt, answer or key; of an exception that is not ours only the type and the place are written, because its message may
quote what it choked on.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from halcyon import clock
from halcyon.errors import HalcyonError

Field = str | int | float | bool | None | list[str]
"""What a field of a log line may be."""

_ROOT = "halcyon"
_THIRD_PARTIES = ("asyncio", "aiohttp")


class EventLog:
    """Writes events of one part of the daemon: `log.info("replica_ready", replica="m-v1-0")`."""

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{part}")

    def debug(self, event: str, **fields: Field) -> None:
        """Only of interest to who develops Halcyon."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Field) -> None:
        """A normal step of the daemon's life."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Field) -> None:
        """Something went wrong and was dealt with."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, error: BaseException | None = None, **fields: Field) -> None:
        """An operator should look."""
        self._write(logging.ERROR, event, fields | (_exception_fields(error) if error is not None else {}))

    def _write(self, level: int, event: str, fields: dict[str, Field]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """Renders a record as one line of JSON. Records of libraries keep their logger's name and lose their text but for the template."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        fields: dict[str, Field] | None = getattr(record, "fields", None)
        if fields is None:
            fields = {"logger": record.name, "template": (str(record.msg).splitlines() or [""])[0][:200]}
            event = "library"
        else:
            event = record.msg
        if record.exc_info and record.exc_info[1] is not None:
            fields = fields | _exception_fields(record.exc_info[1])
        line = {"ts": clock.wall_iso(), "level": record.levelname.lower(), "event": event, **fields}
        return msgspec.json.encode(line).decode()


class _OwnerOnlyRotatingFile(RotatingFileHandler):
    """A rotating file with mode 0600 whatever the umask says."""

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return io.TextIOWrapper(io.FileIO(descriptor, "a"), encoding="utf-8", write_through=True)

    def handleError(self, record: logging.LogRecord) -> None:
        """A line that cannot be written (a full disk) is lost; the daemon goes on."""
        del record

    def reopen(self) -> None:
        """Lets go of the file; the next line opens the name anew (for rotation from outside)."""
        with self.lock:  # type: ignore[union-attr]  # set by createLock() in the constructor
            if self.stream is not None:
                self.stream.close()
                self.stream = None


class LogFile:
    """The configured log of a daemon. `close` detaches it again."""

    def __init__(self, path: Path, *, level: str, max_bytes: int, old_files: int, stderr: bool) -> None:
        self.path = path
        self._file = _OwnerOnlyRotatingFile(path, maxBytes=max_bytes, backupCount=old_files, encoding="utf-8")
        self._handlers: list[logging.Handler] = [self._file]
        if stderr:
            self._handlers.append(logging.StreamHandler(sys.stderr))
        for name in (_ROOT, *_THIRD_PARTIES):
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.setLevel(level.upper() if name == _ROOT else logging.WARNING)
            for handler in self._handlers:
                logger.addHandler(handler)
        for handler in self._handlers:
            handler.setFormatter(JsonFormatter())

    def reopen(self) -> None:
        """Opens the file's name anew."""
        self._file.reopen()

    def close(self) -> None:
        """Flushes and detaches."""
        for name in (_ROOT, *_THIRD_PARTIES):
            logger = logging.getLogger(name)
            logger.propagate = True
            for handler in self._handlers:
                logger.removeHandler(handler)
        for handler in self._handlers:
            handler.close()


def _exception_fields(error: BaseException) -> dict[str, Field]:
    """Type and place of an exception; its message only when it is ours, because ours never quote a client."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    fields: dict[str, Field] = {
        "error": type(error).__name__,
        "at": [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames],
    }
    if isinstance(error, HalcyonError):
        fields["message"] = str(error)
    return fields
