"""The tiny model, made once, and an engine whose reports tests can wait for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from engine_harness import EngineHarness

from halcyon.engine.loading import LoadedModel, load_model
from halcyon.engine.sources.builtin import write_tiny_llama

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama on disk, seed 1."""
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(directory, seed=1)
    return directory


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> LoadedModel:
    """The tiny Llama in fp32 on the CPU."""
    return load_model(tiny_directory, dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture
def engine_of() -> Iterator[Callable[..., EngineHarness]]:
    """Builds engines that are stopped when the test ends."""
    built: list[EngineHarness] = []

    def build(loaded: LoadedModel, **sizes: int | bool) -> EngineHarness:
        built.append(EngineHarness(loaded, **sizes))
        return built[-1]

    yield build
    for harness in built:
        harness.close()
