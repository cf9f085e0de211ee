"""What a simulated model says: short words, and how many of them, as a pure function of prompt, version, index and seed.

Rules: the same four give the same answer on every machine and under every hash seed, so a replay, a retry and a second replica agree;
another version answers otherwise. One token is one word. Nothing of the prompt can be read from the answer: only its digest is used.
"""

from __future__ import annotations

import hashlib

WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fable", "grove", "harbor", "island", "jade", "kelp", "linen", "maple", "north", "olive",
    "pearl", "quartz", "river", "stone", "tidal", "umber", "valley", "willow", "xenon", "yarrow", "zephyr", "acorn", "brook", "coral",
    "dune", "echo", "fern",
)  # fmt: skip
"""The vocabulary; a token's id is its place here."""


class SimulatedAnswer:
    """One answer. prompt: its bytes, of which only a digest is kept. mean_tokens: mean of `target_tokens` over prompts."""

    def __init__(self, prompt: bytes, *, version: str, index: int = 0, seed: int = 0, mean_tokens: int = 64) -> None:
        prompt_digest = hashlib.blake2b(prompt, digest_size=16).digest()
        standing = f"{version}\x00{index}\x00{seed}".encode()
        self._key = hashlib.blake2b(standing, key=prompt_digest, digest_size=16).digest()
        self.target_tokens = self._length(mean_tokens)

    def token_id(self, position: int) -> int:
        """Place in `WORDS` of the token at `position` (from 0)."""
        return self._number(position + 1) % len(WORDS)

    def token_text(self, position: int) -> str:
        """Text of the token at `position`: a word, with a space before it from the second on."""
        word = WORDS[self.token_id(position)]
        return f" {word}" if position else word.capitalize()

    def text(self, tokens: int) -> str:
        """The first `tokens` tokens as one string."""
        return "".join(self.token_text(position) for position in range(tokens))

    def _length(self, mean_tokens: int) -> int:
        """Uniform over [ceil(mean / 2), mean + floor(mean / 2)], so the mean is exact; at least 1."""
        half = mean_tokens // 2
        return max(1, mean_tokens - half + self._number(0) % (2 * half + 1))

    def _number(self, place: int) -> int:
        digest = hashlib.blake2b(place.to_bytes(8, "little"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "little")
