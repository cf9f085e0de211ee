"""From a model's `source` in the fleet file to a local directory of safetensors and tokenizer files."""

from __future__ import annotations

from halcyon.engine.sources.obtain import default_cache_dir, prepare_source

__all__ = ["default_cache_dir", "prepare_source"]
