"""Attention one sequence at a time: what the textbook formula gives, with chunks, windows and grouped heads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from halcyon.engine.attention import attend

HEADS, KV_HEADS, DIM = 4, 2, 8


def textbook(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """softmax(q·k / √dim) v in float64 over the positions each query sees. Shapes [heads, tokens, dim]."""
    groups = HEADS // KV_HEADS
    key, value = (part.double().repeat_interleave(groups, dim=0) for part in (key, value))
    tokens, keys = query.shape[1], key.shape[1]
    scores = query.double() @ key.transpose(1, 2) / DIM**0.5
    for at in range(tokens):
        own = keys - tokens + at
        hidden = [seen > own or (window is not None and seen <= own - window) for seen in range(keys)]
        scores[:, at, torch.tensor(hidden)] = float("-inf")
    return (torch.softmax(scores, dim=-1) @ value).transpose(0, 1)


MIXED = [(1, 7), (6, 6), (4, 11), (12, 12), (1, 1)]
MIXED_IN_WINDOW = [(1, 5), (6, 6), (4, 8), (12, 12), (1, 1)]
DECODES = [(1, 5), (1, 1), (1, 3)]


@pytest.mark.parametrize(("lengths", "window"), [(MIXED, None), (MIXED_IN_WINDOW, 5), (DECODES, None), (DECODES, 5)])
def test_each_sequence_meets_its_own_keys(lengths: list[tuple[int, int]], window: int | None) -> None:
    """A batch of decodes, whole prompts and a chunk after others equals the formula on each alone, within 1e-5."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(1, HEADS, sum(q for q, _ in lengths), DIM, generator=generator)
    key, value = (torch.randn(1, KV_HEADS, sum(k for _, k in lengths), DIM, generator=generator) for _ in range(2))
    bounds = [torch.tensor([0, *(part[at] for part in lengths)]).cumsum(0) for at in (0, 1)]
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS)
    found, _ = attend(
        module, query, key, value, None, scaling=DIM**-0.5, sliding_window=window, cu_seq_lens_q=bounds[0], cu_seq_lens_k=bounds[1]
    )
    for at in range(len(lengths)):
        here, there = slice(int(bounds[0][at]), int(bounds[0][at + 1])), slice(int(bounds[1][at]), int(bounds[1][at + 1]))
        expected = textbook(query[0, :, here], key[0, :, there], value[0, :, there], window)
        assert torch.allclose(found[0, here].double(), expected, atol=1e-5)


def test_what_it_cannot_do_is_refused() -> None:
    """A model that caps its attention scores is refused, not served wrongly."""
    one = torch.zeros(1, 1, 1, DIM)
    with pytest.raises(ValueError, match="softcap"):
        attend(torch.nn.Module(), one, one, one, None, softcap=30.0, cu_seq_lens_q=torch.tensor([0, 1]), cu_seq_lens_k=torch.tensor([0, 1]))
