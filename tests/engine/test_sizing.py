"""Sizes: room for the whole batch where memory allows, what a budget allows where it does not, a clear no where nothing would run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_harness import EngineHarness

from halcyon.engine.loading import LoadedModel, choose_device, choose_dtype, choose_threads
from halcyon.engine.sizing import PAGE_TOKENS, SizeLimits, choose_sizes
from halcyon.errors import ModelUnavailable

LIMITS = SizeLimits(max_batch=8, max_context=256, memory_bytes=None, prefill_chunk=64, prefix_sharing=True)


def test_the_whole_batch_fits_by_default(tiny: LoadedModel) -> None:
    """Eight sequences of 256 tokens get 64 blocks of 32 tokens, and an iteration holds eight decodes beside a chunk of 64."""
    sizes = choose_sizes(tiny, LIMITS)
    assert (sizes.kv_blocks, sizes.page_tokens, sizes.max_batch_tokens) == (64, PAGE_TOKENS, 72)


def test_the_model_s_own_context_bounds_the_cache(tiny: LoadedModel) -> None:
    """A max_context above what the architecture was made for asks for no more blocks than that."""
    sizes = choose_sizes(replace(tiny, context_limit=64), LIMITS)
    assert sizes.kv_blocks == 8 * 64 // PAGE_TOKENS


def test_a_budget_buys_what_it_buys(tiny: LoadedModel) -> None:
    """With a budget for the weights and 20 blocks there are 20 blocks."""
    budget = tiny.weights_bytes + 20 * PAGE_TOKENS * tiny.kv_bytes_per_token
    assert choose_sizes(tiny, replace(LIMITS, memory_bytes=budget)).kv_blocks == 20


@pytest.mark.parametrize("memory_bytes", [1000, 10**6])
def test_a_budget_too_small_is_explained(tiny: LoadedModel, memory_bytes: int) -> None:
    """A budget that does not hold weights and a smallest cache is refused with the number that would do, and that number does."""
    with pytest.raises(ModelUnavailable, match=rf"memory_bytes = {memory_bytes}: .* expected at least \d+") as refused:
        choose_sizes(tiny, replace(LIMITS, memory_bytes=memory_bytes))
    enough = int(refused.value.message.rsplit(" ", 1)[1])
    assert choose_sizes(tiny, replace(LIMITS, memory_bytes=enough)).kv_blocks == 8


def test_a_cache_that_cannot_be_allocated_is_explained(tiny: LoadedModel) -> None:
    """A cache larger than the machine ends in ModelUnavailable with what to lower, before anything is allocated."""
    with pytest.raises(ModelUnavailable, match="smaller max_batch or max_context"):
        EngineHarness(tiny, kv_blocks=10**10)


def test_devices_and_threads() -> None:
    """A device that is not there is refused by name; threads are what was asked, else the cores divided among the replicas, never none."""
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ModelUnavailable, match="no device torch knows"):
        choose_device("gpu0")
    with pytest.raises(ModelUnavailable, match="CUDA devices"):
        choose_device("cuda:63")
    assert choose_dtype("float16", torch.device("cpu")) == torch.float16
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_threads(3, 8) == 3
    assert choose_threads(0, 10_000) == 1
