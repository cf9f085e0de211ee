"""The one entry point for sources: `prepare_source` turns a source string into a directory that `loading.load_model` can read."""

from __future__ import annotations

import os
from pathlib import Path

from halcyon.engine.sources.builtin import write_tiny_llama
from halcyon.engine.sources.cache import ModelCache, Progress
from halcyon.engine.sources.hub import fetch_from_hub
from halcyon.engine.sources.package import convert_package
from halcyon.engine.sources.spec import BuiltinSource, DirectorySource, HubSource, PackageSource, parse_source
from halcyon.errors import ModelUnavailable


def default_cache_dir() -> Path:
    """`$HALCYON_CACHE_DIR`, else `$XDG_CACHE_HOME/halcyon`, else `~/.cache/halcyon`. A worker is told instead (`Configure.cache_dir`)."""
    chosen = os.environ.get("HALCYON_CACHE_DIR", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "halcyon"


def prepare_source(source: str, cache_dir: Path | None = None, progress: Progress | None = None, *, verify: bool = False) -> Path:
    """A local directory with config, safetensors and tokenizer. Fetches and converts once; `verify` compares checksums of a cached copy.

    Raises:
        ModelUnavailable: the source cannot be read, fetched or converted; the message says which and what to do.
    """
    spec = parse_source(source)
    cache_dir, progress = cache_dir or default_cache_dir(), progress or _silent
    cache = ModelCache(cache_dir / "models")
    if isinstance(spec, BuiltinSource):
        return cache.obtain(spec.canonical, lambda directory: _build_builtin(spec, directory), progress, verify=verify)
    if isinstance(spec, PackageSource):
        return cache.obtain(spec.canonical, lambda directory: convert_package(spec, directory, progress), progress, verify=verify)
    if isinstance(spec, HubSource):
        return fetch_from_hub(spec, cache_dir / "hub", progress)
    return _checked_directory(spec)


def _silent(_stage: str, _detail: str, _share: float | None) -> None:
    """Nobody wants to know."""


def _build_builtin(spec: BuiltinSource, directory: Path) -> str:
    write_tiny_llama(directory, seed=spec.seed)
    return "float32"


def _checked_directory(spec: DirectorySource) -> Path:
    if not spec.path.is_dir():
        raise ModelUnavailable(
            f"source {str(spec.path)!r} is no directory; expected one with config.json, *.safetensors and tokenizer files"
        )
    for pattern in ("config.json", "*.safetensors", "tokenizer*"):
        if not any(spec.path.glob(pattern)):
            raise ModelUnavailable(f"source {str(spec.path)!r} has no {pattern}; expected a model as `save_pretrained` writes it")
    return spec.path.resolve()
