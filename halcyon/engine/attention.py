"""Attention over a batch of sequences of different lengths, one sequence at a time, for devices where starting an operation is cheap.

transformers' masked way multiplies every query of a batch with every key of the batch and throws away what belongs to other sequences:
with n sequences that is n times the work, and a mask of queries × keys to build and read. Here each sequence meets its own keys only, with
the same kernel and the same shapes as when it runs alone. On an accelerator the many small operations would cost more than they save, so
`cb_adapter` uses this on the CPU only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "halcyon_per_sequence"
"""The attention implementation's name in a model's config."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,  # noqa: ANN401 - whatever a model passes to its attention
) -> tuple[torch.Tensor, None]:
    """Causal attention, within a sliding window where the layer has one.

    query: [1, heads, query tokens of all sequences, dim]; key, value: [1, KV heads, key tokens of all sequences, dim]. `cu_seq_lens_q` and
    `cu_seq_lens_k` hold the bounds between sequences; without them (outside of continuous batching) this is plain sdpa.
    Returns [1, query tokens, heads, dim].
    """
    bounds_q, bounds_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if bounds_q is None or bounds_k is None:
        plain: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return plain
    refused = [name for name in ("softcap", "position_bias", "s_aux") if kwargs.get(name) is not None]
    if refused:
        raise ValueError(f"this attention has no {refused[0]}")
    groups = int(getattr(module, "num_key_value_groups", 1))
    sizes_q, sizes_k = bounds_q.diff().tolist(), bounds_k.diff().tolist()
    keys, values = key.split_with_sizes(sizes_k, 2), value.split_with_sizes(sizes_k, 2)
    if len(sizes_q) == query.shape[2]:
        return _decodes(query, keys, values, groups, scaling), None
    window = kwargs["sliding_window"] if "sliding_window" in kwargs else getattr(module, "sliding_window", None)
    parts = zip(query.split_with_sizes(sizes_q, 2), keys, values, strict=True)
    return torch.cat([_one(q, k, v, groups, scaling, window) for q, k, v in parts], dim=2).transpose(1, 2), None


def _decodes(
    query: torch.Tensor, keys: tuple[torch.Tensor, ...], values: tuple[torch.Tensor, ...], groups: int, scaling: float | None
) -> torch.Tensor:
    """One query token for each sequence, which sees all its keys: the heads that share a KV head stand where query tokens stand."""
    heads, tokens, dim = query.shape[1:]
    packed = query[0].transpose(0, 1).reshape(tokens, 1, heads // groups, groups, dim).unbind()
    attended = [scaled_dot_product_attention(q, k, v, scale=scaling) for q, k, v in zip(packed, keys, values, strict=True)]
    return torch.cat(attended).reshape(1, tokens, heads, dim)


def _one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: int, scaling: float | None, window: int | None
) -> torch.Tensor:
    """One sequence; shapes as in `attend`, its own tokens only."""
    tokens, keys = query.shape[2], key.shape[2]
    if tokens == 1:
        return _decodes(query, (key,), (value,), groups, scaling).transpose(1, 2)
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    if tokens == keys and (window is None or tokens <= window):
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return scaled_dot_product_attention(query, key, value, attn_mask=_mask(tokens, keys, window), scale=scaling)


@lru_cache(maxsize=32)
def _mask(tokens: int, keys: int, window: int | None) -> torch.Tensor:
    """Which of the last `keys` positions each of the last `tokens` positions sees: itself and earlier, fewer than `window` back."""
    mask = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens)
    return mask if window is None else mask.triu(keys - tokens - window + 1)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)  # only used outside of continuous batching
