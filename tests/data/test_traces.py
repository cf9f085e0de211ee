"""The synthetic traces are what their script makes, and have the shape that readers of the public ones rely on."""

from __future__ import annotations

import csv
import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "tests/data/traces"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that wrote them."""
    spec = importlib.util.spec_from_file_location("make_test_traces", ROOT / "scripts/make_test_traces.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of one trace."""
    with gzip.open(TRACES / f"{name}.csv.gz", "rt") as stream:
        return list(csv.DictReader(stream))


def test_the_same_seed_gives_the_same_traces(script: ModuleType) -> None:
    """Every committed trace is, byte for byte, what the script makes today, and there are no others."""
    assert {path.name for path in TRACES.iterdir()} == {f"{name}.csv.gz" for name in script.TRACES}
    for name in script.TRACES:
        assert gzip.decompress((TRACES / f"{name}.csv.gz").read_bytes()).decode() == script.text_of(name)
        assert len(rows_of(name)) == script.ROWS


@pytest.mark.parametrize("name", ["azure_like", "bursty_like", "mooncake_like"])
def test_arrivals_never_go_back(name: str) -> None:
    """Arrivals begin at 0 and never decrease; every request has at least one token in and out."""
    rows = rows_of(name)
    arrivals = [float(row["arrival_s"]) for row in rows]
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    assert all(int(row["prompt_tokens"]) >= 1 and int(row["output_tokens"]) >= 1 for row in rows)


def test_prefix_blocks_cover_the_prompt_and_repeat() -> None:
    """A prompt has one block id for every 512 tokens begun, and between a tenth and a half of all ids were seen before."""
    ids = [[int(block) for block in row["hash_ids"].split()] for row in rows_of("mooncake_like")]
    assert [len(blocks) for blocks in ids] == [-(-int(row["prompt_tokens"]) // 512) for row in rows_of("mooncake_like")]
    every = [block for blocks in ids for block in blocks]
    assert 0.1 < 1 - len(set(every)) / len(every) < 0.5
