"""How large the KV cache and the batches of one engine are.

Rule: room for `max_batch` sequences of `max_context` tokens, unless a memory budget or the free memory of the device leaves less; then as
much as fits, at least one page for each sequence of the batch or one whole context, whichever is more modest. What does not fit at once
is preempted and comes again.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from halcyon.engine.cb_adapter import LoopSizes
from halcyon.engine.loading import LoadedModel
from halcyon.errors import ModelUnavailable

PAGE_TOKENS = 32
"""Tokens in a KV block: small enough to share short prefixes, large enough to keep index building cheap."""

_FREE_MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.7}
"""How much of a device's free memory a KV cache may take when no budget is set."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """What the operator allows. memory_bytes: weights and KV cache together; `None` without a budget. prefill_chunk: tokens, > 0."""

    max_batch: int
    max_context: int
    memory_bytes: int | None
    prefill_chunk: int
    prefix_sharing: bool


def choose_sizes(loaded: LoadedModel, limits: SizeLimits) -> LoopSizes:
    """The sizes of an engine over `loaded`.

    Raises:
        ModelUnavailable: the budget does not hold the weights and a smallest cache.
    """
    context = min(limits.max_context, loaded.context_limit or limits.max_context)
    page_bytes = PAGE_TOKENS * loaded.kv_bytes_per_token
    wanted = limits.max_batch * -(-context // PAGE_TOKENS)
    affordable = _kv_budget_bytes(loaded, limits) // page_bytes
    least = min(limits.max_batch, -(-context // PAGE_TOKENS))
    if affordable < least:
        raise ModelUnavailable(_too_small(loaded, limits, least, page_bytes))
    return LoopSizes(
        max_batch=limits.max_batch,
        max_batch_tokens=limits.max_batch + limits.prefill_chunk,
        page_tokens=PAGE_TOKENS,
        kv_blocks=min(wanted, affordable),
        prefix_sharing=limits.prefix_sharing,
    )


def _too_small(loaded: LoadedModel, limits: SizeLimits, least: int, page_bytes: int) -> str:
    blocks = f"{least} KV blocks of {page_bytes} bytes"
    if limits.memory_bytes is None:
        return f"{loaded.device} has too little free memory for {blocks}; free some, or use a smaller max_batch"
    weights = f"{loaded.weights_bytes // _MIB} MiB of weights"
    needed = loaded.weights_bytes + least * page_bytes
    return f"memory_bytes = {limits.memory_bytes}: {weights} leave no room for {blocks}; expected at least {needed}"


def _kv_budget_bytes(loaded: LoadedModel, limits: SizeLimits) -> int:
    if limits.memory_bytes is not None:
        return max(0, limits.memory_bytes - loaded.weights_bytes)
    on_cuda = loaded.device.type == "cuda"
    free_bytes = torch.cuda.mem_get_info(loaded.device)[0] if on_cuda else psutil.virtual_memory().available
    return int(free_bytes * _FREE_MEMORY_SHARE[loaded.device.type])
