"""The model cache: directories named by a hash of what they hold, complete or absent, shared by all processes of a user.

An entry is built under a temporary name beside its own and renamed when it is whole; a lock per entry makes concurrent starts wait for
the first. `manifest.json` holds size and SHA-256 of every file: sizes are checked on every use, checksums on request. An entry that does
not match is moved away and built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from halcyon.clock import wall_iso

CONVERTER = 1
"""Raised when conversion changes what it writes; older entries are then built anew."""

MANIFEST = "manifest.json"
_CHUNK_BYTES = 4 * 1024 * 1024

Progress = Callable[[str, str, float | None], None]
"""(stage, detail for people, share in [0, 1] or None). Called from the preparing thread."""


class FileRecord(msgspec.Struct, frozen=True):
    """One file of an entry."""

    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What an entry holds and where it came from."""

    source: str
    dtype: str
    converter: int
    created: str
    files: dict[str, FileRecord]


@dataclass(frozen=True, slots=True)
class ModelCache:
    """The cache below `root` (usually `~/.cache/halcyon/models`)."""

    root: Path

    def directory(self, canonical: str) -> Path:
        """Where the entry of a source is or would be."""
        digest = hashlib.sha256(f"{canonical}\n{CONVERTER}".encode()).hexdigest()
        return self.root / digest[:24]

    def obtain(self, canonical: str, build: Callable[[Path], str], progress: Progress, *, verify: bool = False) -> Path:
        """The entry of `canonical`, built by `build` (fills the directory it is given, returns the dtype stored) when missing or damaged.

        `verify` compares checksums too. Raises whatever `build` raises; nothing is left behind then.
        """
        target = self.directory(canonical)
        if not verify and fault_of(target) is None:
            return target
        self.root.mkdir(parents=True, exist_ok=True)
        with _EntryLock(target.with_suffix(".lock"), progress):
            fault = fault_of(target, checksums=verify)
            if fault is not None:
                self._rebuild(target, canonical, build, progress, fault)
        return target

    def _rebuild(self, target: Path, canonical: str, build: Callable[[Path], str], progress: Progress, fault: str) -> None:
        for stale in self.root.glob(f"{target.name}.tmp-*"):
            shutil.rmtree(stale, ignore_errors=True)
        scratch = target.with_suffix(f".tmp-{os.getpid()}")
        if target.exists():
            progress("preparing", f"the cached copy is damaged ({fault}); building it again", None)
            target.rename(target.with_suffix(f".tmp-damaged-{os.getpid()}"))
            shutil.rmtree(target.with_suffix(f".tmp-damaged-{os.getpid()}"), ignore_errors=True)
        scratch.mkdir()
        try:
            dtype = build(scratch)
            _write_manifest(scratch, canonical, dtype, progress)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def fault_of(directory: Path, *, checksums: bool = False) -> str | None:
    """What is wrong with an entry, in a phrase; `None` when it is whole."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "no manifest"
    except msgspec.DecodeError:
        return "unreadable manifest"
    for name, record in manifest.files.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != record.size_bytes:
            return f"{name} has {path.stat().st_size} bytes, expected {record.size_bytes}"
        if checksums and sha256_of(path) != record.sha256:
            return f"{name} does not match its checksum"
    return None


def sha256_of(path: Path) -> str:
    """Lower-case hex of the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_manifest(directory: Path, canonical: str, dtype: str, progress: Progress) -> None:
    progress("preparing", "checksums", None)
    files = {
        str(path.relative_to(directory)): FileRecord(path.stat().st_size, sha256_of(path))
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    manifest = Manifest(canonical, dtype, CONVERTER, wall_iso(), files)
    (directory / MANIFEST).write_text(json.dumps(msgspec.to_builtins(manifest), indent=2), encoding="utf-8")


class _EntryLock:
    """Holds a file lock; says so while another process has it. The kernel frees it when its holder dies."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._lock, self._progress = FileLock(path), progress

    def __enter__(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            self._progress("preparing", "waiting for another process that prepares the same model", None)
            self._lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()
