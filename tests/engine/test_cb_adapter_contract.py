"""Everything `cb_adapter` relies on inside transformers, by name and signature: an upgrade fails here, and says where."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from engine_harness import EngineHarness
from packaging.version import Version
from transformers import masking_utils
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import continuous_api, input_outputs, model_runner, requests, scheduler, utils
from transformers.integrations import sdpa_attention

from halcyon.engine import attention
from halcyon.engine.cb_adapter import SUPPORTED_TRANSFORMERS
from halcyon.engine.loading import LoadedModel

SIGNATURES: list[tuple[Any, str, list[str]]] = [
    (continuous_api.ContinuousBatchingManager, "__init__", ["model", "generation_config", "continuous_batching_config", "workload_hints"]),
    (continuous_api.ContinuousBatchingManager, "_create_batch_processor", []),
    (continuous_api.ContinuousBatchingManager, "_generation_loop_body", ["batch_processor", "bootstrapping"]),
    (continuous_api.ContinuousBatchingManager, "_handle_critical_error", ["error", "batch_processor"]),
    (continuous_api.ContinuousBatchingManager, "switch_to_cb_friendly_attn", ["model", "auto_switch_to_flash"]),
    (sdpa_attention, "repeat_kv", ["hidden_states", "n_rep"]),
    (continuous_api.ContinuousBatchingManager, "cancel_request", ["request_id"]),
    (continuous_api.ContinuousBatchingManager, "start", []),
    (continuous_api.BackgroundThreadStatus, "request_stop", ["status", "global_rank"]),
    (continuous_api.OutputRouter, "deliver", ["output"]),
    (continuous_api.OutputRouter, "deliver_batch", ["outputs"]),
    (continuous_api.OutputRouter, "fail_and_deliver", ["state", "error"]),
    (scheduler.Scheduler, "__init__", ["cache", "safety_margin", "max_requests_per_batch"]),
    (scheduler.Scheduler, "schedule_batch", ["token_budget", "cache_budget"]),
    (scheduler.Scheduler, "clear_cancelled_requests", []),
    (scheduler.Scheduler, "_process_candidates", ["candidates", "token_budget", "cache_budget", "request_ids_to_remove_from_waiting"]),
    (scheduler.Scheduler, "_cleanup_waiting_queue", ["request_ids_to_remove_from_waiting"]),
    (requests.RequestState, "update_and_check_completion", ["token_id", "logprob"]),
    (requests.RequestState, "create_equivalent_initial_request", []),
    (requests.RequestState, "to_generation_output", []),
    (model_runner.ModelRunner, "_sample", ["scores", "output_ids"]),
    (model_runner, "infer_max_single_request_tokens", ["cache"]),
]


@pytest.mark.parametrize(("owner", "name", "expected"), SIGNATURES, ids=[f"{owner.__name__}.{name}" for owner, name, _ in SIGNATURES])
def test_signature(owner: Any, name: str, expected: list[str]) -> None:  # noqa: ANN401 - classes and modules
    """A method we override or call takes the parameters that we know."""
    parameters = [parameter for parameter in inspect.signature(getattr(owner, name)).parameters if parameter != "self"]
    assert parameters == expected


def test_version_is_one_we_have_read() -> None:
    """The installed transformers is in the range whose sources the adapter was written against."""
    lowest, beyond = map(Version, SUPPORTED_TRANSFORMERS)
    assert lowest <= Version(transformers.__version__) < beyond


def test_configuration_has_our_fields() -> None:
    """Each field that the adapter sets exists."""
    fields = set(inspect.signature(ContinuousBatchingConfig).parameters)
    assert {
        "page_size", "num_blocks", "max_batch_tokens", "max_requests_per_batch", "max_blocks_per_request", "allow_block_sharing",
        "use_async_batching", "use_cuda_graph", "auto_switch_to_flash", "scheduler_type", "max_memory_percent", "seed",
    } <= fields  # fmt: skip


def test_request_state_and_status() -> None:
    """The states a request goes through, and the fields the adapter reads, are there."""
    names = [status.name for status in requests.RequestStatus]
    assert names == ["PENDING", "PREFILLING", "DECODING", "FINISHED", "FAILED"]
    state = requests.RequestState(request_id="a", initial_tokens=[1, 2], max_new_tokens=None)
    for name in ("generated_tokens", "tokens_to_process", "remaining_prefill_tokens", "position_offset", "status", "request_id"):
        assert hasattr(state, name)


def test_a_running_processor_has_the_parts_we_replace(tiny: LoadedModel, engine_of: Any) -> None:  # noqa: ANN401 - a factory
    """On a live loop: scheduler, runner, cache and pool are ours to read, and our parts stand where theirs stood."""
    harness: EngineHarness = engine_of(tiny)
    loop = harness.engine.loop
    processor = loop._manager.batch_processor
    assert type(processor.scheduler).__name__ == "_PlannedScheduler"
    assert processor.model_runner._sample == loop.rows.sample
    assert processor.logit_processor is loop.rows
    assert type(processor.output_router).__name__ == "_Router"
    assert isinstance(processor.inputs_and_outputs, input_outputs.ContinuousBatchingIOs)
    assert not processor.model_runner.pad_inputs
    cache = processor.cache
    assert cache.num_blocks >= 1
    assert len(cache.pool.free_sectors) <= cache.num_sectors
    for allocator in cache.cache_allocators.values():
        assert allocator.bytes_per_block > 0
        assert len(allocator.ledger.cached_blocks) == 0
        assert cache.pool.count_free_blocks(allocator.index) >= 0


def test_attention_is_told_the_bounds_between_sequences() -> None:
    """The forward pass gets the bounds that `attention` reads, by layer type, and no mask for an implementation that is not sdpa's."""
    assert {"cu_seq_lens_q", "cu_seq_lens_k", "is_causal"} <= set(input_outputs.PagedAttentionArgs.__annotations__)
    config = SimpleNamespace(_attn_implementation=attention.NAME)
    assert not utils.attn_mask_is_needed(config)
    assert "isinstance(cache, PagedAttentionCache)" in inspect.getsource(masking_utils._preprocess_mask_arguments)


def test_the_loop_body_counts_batches() -> None:
    """The figure by which the adapter knows that an iteration ran is still raised by one for each."""
    source = inspect.getsource(continuous_api.ContinuousBatchingManager._generation_loop_body)
    assert "self.current_batch += 1" in source
    assert "self._wake_up_loop.wait" in source


def test_sampling_still_goes_through_the_runner() -> None:
    """The forward pass hands float32 logits of shape [1, rows, vocabulary] to `_sample`, and skips processors that do nothing."""
    source = inspect.getsource(model_runner.ModelRunner._forward_process_and_sample)
    assert "self._sample(scores, output_ids)" in source
    assert "logits = logits.float()" in source
    assert "if self.logit_processor.do_processing" in source
