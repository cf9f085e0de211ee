"""Gumbel noise as a pure function of (seed, absolute position, token id).

Adding it to the scaled logits and taking the argmax draws from the softmax (the Gumbel-max identity), and because the noise of a token
depends on nothing else, a sequence draws the same tokens alone, in any batch and after any preemption. The bits come from two rounds of
a 32-bit multiply-xorshift mixer (constants of the "lowbias32" family), keyed by 64 bits of splitmix64 over seed and position.
"""

from __future__ import annotations

import torch

_MASK_32 = 0xFFFF_FFFF
_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF

_HIGH_BITS = 1 << 24
HIGH_NOISE = 5.5433
"""One token in 256 has noise above this: −ln(−ln(1 − 2⁻⁸)) < 5.5433."""


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit keys for one draw. Any Python int is a seed; it counts modulo 2⁶⁴."""
    mixed = _splitmix(_splitmix(seed & _MASK_64) ^ (position & _MASK_64))
    return mixed & _MASK_32, mixed >> 32


def gumbel(token_ids: torch.Tensor, low: torch.Tensor | int, high: torch.Tensor | int) -> torch.Tensor:
    """Noise for `token_ids` (int64, any shape) under keys that broadcast against it; float64 of the broadcast shape."""
    bits = _mix(_mix((token_ids ^ low) & _MASK_32) ^ high)
    uniform = (bits.to(torch.float64) + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))


def likely_high(count: int, low: int, high: int) -> torch.Tensor:
    """Ids in [0, count) whose noise exceeds `HIGH_NOISE`: the same bits as `gumbel`, in 32-bit arithmetic and without a logarithm."""
    bits = _mix_32(_mix_32(torch.arange(count, dtype=torch.int32) ^ _signed(low)) ^ _signed(high))
    return torch.nonzero((bits < 0) & (bits >= -_HIGH_BITS)).squeeze(1)


def _splitmix(value: int) -> int:
    value = (value + 0x9E37_79B9_7F4A_7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK_64
    return value ^ (value >> 31)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    bits = bits ^ (bits >> 16)
    bits = (bits * 0x7FEB_352D) & _MASK_32
    bits = bits ^ (bits >> 15)
    bits = (bits * 0x846C_A68B) & _MASK_32
    return bits ^ (bits >> 16)


def _mix_32(bits: torch.Tensor) -> torch.Tensor:
    """`_mix` in int32, whose products wrap; its shifts copy the sign, so those copies are masked off."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits = bits * 0x7FEB_352D
    bits = bits ^ ((bits >> 15) & 0x1FFFF)
    bits = bits * _signed(0x846C_A68B)
    return bits ^ ((bits >> 16) & 0xFFFF)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
