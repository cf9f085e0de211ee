"""The KV cache of a simulated continuous replica, in blocks: each held by one sequence, freed exactly once.

`reserve` takes prompt and longest answer when a sequence is admitted: nothing is ever preempted, and much stands empty. `on_demand`
takes blocks as tokens come and keeps a watermark free at admission; when it runs out somebody must be preempted and start over.
"""

from __future__ import annotations

from typing import Literal

KvMode = Literal["reserve", "on_demand"]
WATERMARK_PERCENT = 2


class Blocks:
    """Conserved: held by sequences plus free equals total, always."""

    def __init__(self, total: int, block_tokens: int, mode: KvMode) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self._mode = mode
        self._held: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return self.total - sum(self._held.values())

    def can_admit(self, prompt_tokens: int, most_output: int) -> bool:
        """Whether a new sequence fits. One that needs all there is fits only when nobody else is there."""
        if self._mode == "reserve":
            return self._needed(prompt_tokens + most_output) <= self.free
        watermark = self.total * WATERMARK_PERCENT // 100 if self._held else 0
        return self._needed(prompt_tokens + 1) + watermark <= self.free

    def admit(self, index: int, prompt_tokens: int, most_output: int) -> None:
        """Takes a sequence's first blocks; ask `can_admit` before."""
        tokens = prompt_tokens + (most_output if self._mode == "reserve" else 1)
        if index in self._held or self._needed(tokens) > self.free:
            raise ValueError(f"sequence {index} cannot take {self._needed(tokens)} of {self.free} free blocks")
        self._held[index] = self._needed(tokens)

    def can_grow(self, index: int, tokens: int) -> bool:
        """Whether the sequence may come to hold that many tokens."""
        return self._needed(tokens) - self._held[index] <= self.free

    def grow(self, index: int, tokens: int) -> None:
        """Takes what is missing for that many tokens; ask `can_grow` before."""
        if not self.can_grow(index, tokens):
            raise ValueError(f"sequence {index} cannot grow to {tokens} tokens with {self.free} free blocks")
        self._held[index] = max(self._held[index], self._needed(tokens))

    def release(self, index: int) -> None:
        """Frees everything the sequence holds; exactly once."""
        del self._held[index]

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
