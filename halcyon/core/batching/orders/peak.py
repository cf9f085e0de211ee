"""How much KV cache the running sequences will hold at their worst common moment.

Sequences end in order of their remaining output. Just before the i-th longest ends, the i longest run and each has grown by its
remaining length: peak = max over i of (remaining_i·i + sum of held over the i longest). Exact when the remaining lengths are; monotone
in every argument. Source: the future-memory test of LightLLM's scheduler, restated.
"""

from __future__ import annotations

from collections.abc import Iterable


def peak_tokens(sequences: Iterable[tuple[int, int]]) -> int:
    """Tokens held at the peak, from (held now, remaining output) of each sequence."""
    peak = held_sum = 0
    ordered = sorted(sequences, key=lambda pair: -pair[1])
    for count, (held, remaining) in enumerate(ordered, start=1):
        held_sum += held
        peak = max(peak, held_sum + remaining * count)
    return peak
